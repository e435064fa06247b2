#!/usr/bin/env bash
# T5 1.1 base for Romanian on a TPU v4-8; each worker runs this. gin/ro_t5x_base.gin has the hours and expected results.
#
#   MODEL_DIR=gs://BUCKET/ro_t5x_base VOCABULARY=PATH bash launch/ro_base.sh [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# The defaults are the published paths, in the authors' own bucket. launch/pretrain.sh --help lists the names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export MODEL_DIR=${MODEL_DIR:-gs://myv4-bucket/ro_t5x_base}
exec bash "$here/pretrain.sh" gin/ro_t5x_base.gin "$@"
