#!/usr/bin/env bash
# Turns checkpoints of Limba's or T5X's into Hugging Face folders, and proves that they give the same.
#
#   bash convert/convert.sh MODEL_DIR [OUT_DIR] [--steps=latest|all|N,M] [--formats=pytorch,flax]
#        [--dtype=float32|bfloat16] [--config=FILE.gin] [--vocabulary=PATH|byte|none] [--no-check] [--push=user/name [--dry-run]]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
bash "$root/launch/setup.sh"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$root/.venv/bin/python" -m convert.huggingface export "$@"
