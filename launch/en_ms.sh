#!/usr/bin/env bash
# English to Malay; each worker runs this. gin/en_ms_translation.gin has the hardware and expected results.
#
#   MODEL_DIR=DIR CORPUS='pairs/*.jsonl' bash launch/en_ms.sh [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# launch/pretrain.sh --help lists the names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export MODEL_DIR=${MODEL_DIR:-$here/../runs/en_ms}
LIMBA_SCRIPT="${BASH_SOURCE[0]}" exec bash "$here/pretrain.sh" gin/en_ms_translation.gin "$@"
