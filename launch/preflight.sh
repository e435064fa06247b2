#!/usr/bin/env bash
# Looks at a run before it starts: what fails, what is wasted, and the gin line that fixes it. Trains nothing.
#
#   bash launch/preflight.sh GIN_FILE [TOPOLOGY] [NAME=VALUE ...] [--FLAG ...]
#   bash launch/preflight.sh gin/ro_t5x_base.gin v4-8 MODEL_DIR=gs://BUCKET/ro VOCABULARY=ro.model CORPUS='ro/*.jsonl'
#
# Ends with 0 (go, or works but wasteful) or 1 (will fail; wrong flags too). `limba preflight --help` has the flags.
# MODEL_DIR, VOCABULARY and CORPUS may come from the environment, SETUP and VENV too: SETUP=no uses .venv, or VENV=DIR,
# as it is.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { echo "launch/preflight.sh: $1" >&2; exit 1; }

for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
[ $# -gt 0 ] || fail "no gin file is given; write bash launch/preflight.sh gin/ro_t5x_base.gin v4-8, or see --help."
flags=("$1")
shift
for name in MODEL_DIR VOCABULARY CORPUS; do
  if [ -n "${!name:-}" ]; then flags+=("--gin.$name=${!name}"); fi
done
for argument in "$@"; do
  case $argument in
    SETUP=*) SETUP=${argument#*=} ;;
    VENV=*) export VENV=${argument#*=} ;; # for launch/setup.sh too
    -*) flags+=("$argument") ;;
    [A-Z]*=*) flags+=("--gin.$argument") ;;
    cpu | gpu | tpu | *[0-9]*) flags+=("--topology=$argument") ;;
    *) fail "the argument $argument is not known; write a topology such as v4-8, or NAME=VALUE; see --help." ;;
  esac
done
venv=${VENV:-$root/.venv}
case ${SETUP:-yes} in
  yes) bash "$root/launch/setup.sh" >&2 || exit 1 ;;
  no) [ -x "$venv/bin/python" ] || fail "SETUP is no, and $venv is not there; run bash launch/setup.sh first." ;;
  *) fail "SETUP is $SETUP; give yes or no." ;;
esac
exec "$venv/bin/python" -m limba preflight "${flags[@]}"
