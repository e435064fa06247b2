#!/usr/bin/env bash
# Converts checkpoints of Limba or T5X to Hugging Face folders, and checks that the models give the same outputs.
#
#   bash convert/convert.sh MODEL_DIR [OUT_DIR] [--steps=best|latest|all|N,M] [--formats=pytorch,flax]
#        [--dtype=float32|bfloat16] [--config=FILE.gin] [--vocabulary=PATH|byte|none] [--no_check] [--push=user/name [--dry_run]]
#
# Without arguments it converts the newest run below runs/, here or in the clone, or in this folder. SETUP=no takes .venv
# as it is, as on machines without internet.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
if [ $# = 0 ]; then
  newest=
  for step in "$root"/runs/*/checkpoints/*/ runs/*/checkpoints/*/ */checkpoints/*/; do
    if [ -d "$step" ] && { [ -z "$newest" ] || [ "$step" -nt "$newest" ]; }; then newest=$step; fi
  done
  if [ -z "$newest" ]; then
    places="$root/runs, $PWD/runs or $PWD"
    if [ "$root" -ef "$PWD" ]; then places="$root/runs or $root"; fi
    echo "convert/convert.sh: there is no run below $places; name one: bash convert/convert.sh MODEL_DIR" >&2
    exit 2
  fi
  set -- "$(dirname "$(dirname "$newest")")"
  echo "convert/convert.sh: no run is named; converting the newest, $1"
fi
fail() { echo "convert/convert.sh: $1" >&2; exit 2; }
case ${SETUP:-yes} in
  yes) bash "$root/launch/setup.sh" ;;
  no) [ -x "$root/.venv/bin/python" ] || fail "SETUP is no, and $root/.venv is not there; run bash launch/setup.sh first." ;;
  *) fail "SETUP is $SETUP; give yes or no." ;;
esac
exec "$root/.venv/bin/python" -m limba convert export "$@"
