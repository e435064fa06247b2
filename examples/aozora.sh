#!/usr/bin/env bash
# A small model from a public corpus to its fills: a Japanese T5 on a fifth of Aozora Bunko, in two hours of a core.
#
#   bash examples/aozora.sh [NAME=VALUE ...]     # in a clone that is set up; everything is in examples/runs/aozora
#
# NAME=VALUE sets a name of the gin file that `limba new` writes. Started again, it resumes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH=$root/.venv/bin:$PATH PYTHONPATH=$root
mkdir -p "$root/examples/runs/aozora"
cd "$root/examples/runs/aozora"
[ -d texts ] || git clone --depth 1 "${AOZORA:-https://github.com/aozorahack/aozorabunko_text}" texts
[ -f ja_aozora.jsonl ] || python -m benchmarks.speedrun corpus --aozora=texts --percent=20 --to=.
[ -f launch/ja.sh ] || limba new ja --corpus=ja_aozora.jsonl --hardware=cpu --days=0.17
exec bash launch/ja.sh TRAIN_STEPS=12000 "$@"
