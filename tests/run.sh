#!/usr/bin/env bash
# Sets up .venv, checks style and types, and runs the tests.
#
#   bash tests/run.sh               all but the slow tests: seven and a half minutes
#   bash tests/run.sh --all         one slow test of each kind, too, and the numeric core and a short run on Python
#                                   3.12 with its newer jax, which users get: 25 minutes; what .ci/run calls
#   bash tests/run.sh --night       all slow tests, those on Slurm, other Pythons, and under load: hours
#   bash tests/run.sh -m long       the longest ones, minutes each
#   bash tests/run.sh -m fast       before each commit: lint, the numeric core, and the tests of the changed modules;
#                                   a minute with kept programs, without types
#   bash tests/run.sh -k config     other arguments go to pytest; a choice of tests leaves out the types
#   bash tests/run.sh --stress      any of these beside four busy loops: no test may depend on the clock
#   bash tests/run.sh --cpu         ends with a table of the tests' processor time
#
# The times are those of two quiet cores with nothing compiled yet. What is compiled stays in .pytest_cache, and the next
# runs are faster; LIMBA_TEST_CACHE=/an/empty/folder measures a first run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick="not slow and not night and not long"
chosen=(-m "$quick") # how the tests are chosen, where the arguments do not
whole=true
landing=false
night=false
stress=false
arguments=()
for argument in "$@"; do
  case $argument in
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' tests/run.sh; exit 0 ;;
    --all) chosen=(-m "not night and not long"); landing=true ;;
    --night) # with programs compiled as users' are
      export XLA_FLAGS="--xla_force_host_platform_device_count=8"
      chosen=(-m "not long"); night=true ;;
    --stress) stress=true ;;
    -m* | -k* | --lf | --last-failed | tests/*) whole=false; arguments+=("$argument") ;;
    *) arguments+=("$argument") ;;
  esac
done
$whole || chosen=()

started=()
types=$(mktemp)
trap 'rm -f "$types"; [ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null || :' EXIT
busy() { for _ in 1 2 3 4; do (while :; do :; done) & started+=($!); done; }
failed=0
# A file stays in one process, which keeps what it has compiled; -n 0 runs all in one. A third of their time all tests
# wait, for other processes, servers and signals: three keep two cores busy. Of a choice imports are the most.
processes=2
if $whole; then processes=3; fi
limits=() # of a test: pyproject.toml's, or more where tests of the night may be chosen
if $night || ! $whole; then limits=(-o faulthandler_timeout=7200); fi
tests() {
  .venv/bin/python -m pytest -q -n "$processes" --dist loadfile --no-loadscope-reorder --max-worker-restart=1 \
    ${limits[@]+"${limits[@]}"} "$@" || failed=$?
}

bash launch/setup.sh tests
.venv/bin/python -m ruff check .
.venv/bin/python -m ruff format --check .
if $whole; then # beside the tests, whose processes do not always use both cores
  .venv/bin/pyright >"$types" 2>&1 &
  checked=$!
fi
if $landing; then # the other Python's packages come meanwhile; what fails is said below, where its tests run
  bash tests/other_python.sh 3.12 --collect-only -q >/dev/null 2>&1 &
  prepared=$!
fi
if $stress; then busy; fi
tests ${chosen[@]+"${chosen[@]}"} ${arguments[@]+"${arguments[@]}"}
if $whole; then
  wait "$checked" || failed=1
  cat "$types"
fi
if $landing; then # the wheel of torch that the tests above need is for 3.11 alone
  wait "$prepared" || :
  mapfile -t core < <(grep -rlE 'mark\.(core|short_run)' tests --include='test_*.py')
  bash tests/other_python.sh 3.12 -m "core or short_run" "${core[@]}" || failed=1 # without a 3.12, 77: not tested, so red
fi
if $night; then
  # with Slurm, and with the packages of other programs, which the network gives
  tests -m long tests/launch/test_slurm_cluster.py tests/test_blocks.py tests/export/test_converters.py
  for version in 3.12: 3.12:0.11.2 3.13: 3.14:; do # with the jax that it locks, or the one named
    JAX=${version#*:} bash tests/other_python.sh "${version%:*}" || ended=$?
    case ${ended:-0} in 0 | 77) ;; *) failed=1 ;; esac # 77: it has said why nothing could be tested
    ended=0
  done
  busy # what waits for other processes, threads and servers
  tests -m "$quick" tests/{sharding,storage,launch} tests/training/checkpoints tests/data/sources
fi
exit "$failed"
