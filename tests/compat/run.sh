#!/usr/bin/env bash
# Checks converted folders in transformers 4.57.6, PyTorch and Flax classes.
#
#   bash tests/compat/run.sh
#
# Its packages are in .venv-compat, 140 MB, before those of .venv. PyTorch's classes are tested by tests/run.sh --night
# too, in test_models.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash launch/setup.sh tests
export TF_CPP_MIN_LOG_LEVEL=3 TF_ENABLE_ONEDNN_OPTS=0
folders=$(mktemp -d)
trap 'rm -rf "$folders"' EXIT
JAX_PLATFORMS=cpu .venv/bin/python -m tests.compat.write "$folders"
.venv/bin/python -m tests.compat.overlay tests/compat/compare.py "$folders"
