#!/usr/bin/env bash
# Checks converted folders in transformers 4.57.6, PyTorch and Flax classes, in an environment of its own.
#
#   bash tests/compat/run.sh
#
# Takes some minutes and 3 GB the first time; it is no part of tests/run.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash launch/setup.sh
venv=.venv-compat
if ! cmp -s tests/compat/requirements.txt "$venv/made-from.txt"; then
  rm -rf "$venv"
  .venv/bin/python -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement tests/compat/requirements.txt
  cp tests/compat/requirements.txt "$venv/made-from.txt"
fi
export TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0
folders=$(mktemp -d)
trap 'rm -rf "$folders"' EXIT
JAX_PLATFORMS=cpu .venv/bin/python -m tests.compat.write "$folders"
JAX_PLATFORMS=cpu HF_HUB_OFFLINE=1 "$venv/bin/python" tests/compat/compare.py "$folders"
