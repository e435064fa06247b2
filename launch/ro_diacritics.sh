#!/usr/bin/env bash
# Romanian diacritics with mT5 base; each worker runs this. gin/ro_diacritics.gin has the hardware and expected results.
#
#   MODEL_DIR=DIR CORPUS='ro/*.jsonl.gz' bash launch/ro_diacritics.sh [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# launch/pretrain.sh --help lists the names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export MODEL_DIR=${MODEL_DIR:-$here/../runs/ro_diacritics}
LIMBA_SCRIPT="${BASH_SOURCE[0]}" exec bash "$here/pretrain.sh" gin/ro_diacritics.gin "$@"
