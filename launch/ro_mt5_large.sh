#!/usr/bin/env bash
# mT5 large for Romanian on a TPU v4-32; each worker runs this. gin/ro_mt5x_large.gin has the hours and expected results.
#
#   MODEL_DIR=gs://BUCKET/ro_mt5x_large bash launch/ro_mt5_large.sh [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# MODEL_DIR is yours; the vocabulary is mT5's, in a public bucket, unless VOCABULARY names a copy.
# launch/pretrain.sh --help lists the other names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
LIMBA_SCRIPT="${BASH_SOURCE[0]}" LIMBA_REQUIRED=MODEL_DIR exec bash "$here/pretrain.sh" gin/ro_mt5x_large.gin "$@"
