#!/usr/bin/env bash
# mT5 large for Romanian on a TPU v4-32; each worker runs this. gin/ro_mt5x_large.gin has the hours and expected results.
#
#   MODEL_DIR=gs://BUCKET/ro_mt5x_large VOCABULARY=PATH bash launch/ro_mt5_large.sh [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# The defaults are the published paths, in the authors' own bucket. launch/pretrain.sh --help lists the names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export MODEL_DIR=${MODEL_DIR:-gs://myv4-bucket/ro_mt5x_large}
exec bash "$here/pretrain.sh" gin/ro_mt5x_large.gin "$@"
