#!/usr/bin/env bash
# From an empty machine to a trained, evaluated tiny T5, in one command. Started again, it resumes.
#
#   bash launch/demo.sh
#   CORPUS='path/*.txt' STEPS=2000 MODEL_DIR=DIR bash launch/demo.sh [--gin.NAME=VALUE ...]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
bash "$root/launch/setup.sh"
exec bash "$root/launch/supervise.sh" "$root/.venv/bin/python" -m limba demo "$@"
