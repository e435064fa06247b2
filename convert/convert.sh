#!/usr/bin/env bash
# Converts checkpoints of Limba or T5X to Hugging Face folders, and checks that the models give the same outputs.
#
#   bash convert/convert.sh MODEL_DIR [OUT_DIR] [--steps=latest|all|N,M] [--formats=pytorch,flax]
#        [--dtype=float32|bfloat16] [--config=FILE.gin] [--vocabulary=PATH|byte|none] [--no-check] [--push=user/name [--dry-run]]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
bash "$root/launch/setup.sh"
exec "$root/.venv/bin/python" -m limba convert export "$@"
