#!/usr/bin/env bash
# Sets up .venv, then checks the style and runs the tests; arguments go to pytest: bash tests/run.sh -k config.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup.sh tests
.venv/bin/python -m ruff check .
# A file stays in one process, which keeps what it has compiled; -n 0 runs all in one.
exec .venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests "$@"
