#!/usr/bin/env bash
# Sets up .venv, checks style and types, and runs the tests.
#
#   bash tests/run.sh               all but the slow tests: under 10 minutes on 2 cores
#   bash tests/run.sh --all         the slow ones, too, and some of the fast ones on the other Python (3.12): about an
#                                   hour; what .ci/run calls
#   bash tests/run.sh -m long       the longest ones, minutes each, which nothing else runs
#   bash tests/run.sh -m fast       a test or two of every part, without types: minutes, before each commit
#   bash tests/run.sh -k config     other arguments go to pytest; a choice of tests leaves out the types
#   bash tests/run.sh --cpu         ends with a table of the tests' processor time
#
# The times are those of a first run on two quiet cores. What it compiles stays in .pytest_cache, and the next runs are
# faster; LIMBA_TEST_CACHE=/an/empty/folder measures a first run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

other=() # what the other Python runs: models, configurations, formats of files, processes that share programs
chosen=(-m "not slow and not long") # how the tests are chosen, where the arguments do not
arguments=()
for argument in "$@"; do
  case $argument in
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' tests/run.sh; exit 0 ;;
    --all)
      chosen=(-m "not long")
      other=(-m fast tests/{model,config,formats} tests/sharding/test_{multihost,compiling}.py)
      ;;
    -m* | -k* | --lf | --last-failed | tests/*) chosen=(chosen by arguments); arguments+=("$argument") ;;
    *) arguments+=("$argument") ;;
  esac
done
whole=true
if [ "${chosen[*]-}" = "chosen by arguments" ]; then
  whole=false
  chosen=()
fi

bash launch/setup.sh tests
.venv/bin/python -m ruff check .
.venv/bin/python -m ruff format --check .
if $whole; then # beside the tests: the two processes of these do not always use both cores
  types=$(mktemp)
  trap 'rm -f "$types"' EXIT
  .venv/bin/pyright >"$types" 2>&1 &
  checked=$!
fi
failed=0
# A file stays in one process, which keeps what it has compiled; -n 0 runs all in one.
.venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder \
  ${chosen[@]+"${chosen[@]}"} ${arguments[@]+"${arguments[@]}"} || failed=$?
if $whole; then
  wait "$checked" || failed=1
  cat "$types"
  if [ ${#other[@]} -gt 0 ]; then
    bash tests/other_python.sh "${other[@]}" || ended=$?
    case ${ended:-0} in 0 | 77) ;; *) failed=1 ;; esac # 77: it has said why nothing could be tested
  fi
fi
exit "$failed"
