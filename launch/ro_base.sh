#!/usr/bin/env bash
# T5 1.1 base for Romanian on a TPU v4-8; each worker runs this. gin/ro_t5x_base.gin has the hours and expected results.
#
#   MODEL_DIR=gs://BUCKET/ro_t5x_base VOCABULARY=PATH bash launch/ro_base.sh [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# Both are yours: the published run's are in the authors' own bucket. launch/pretrain.sh --help lists the other names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
LIMBA_SCRIPT="${BASH_SOURCE[0]}" LIMBA_REQUIRED="MODEL_DIR VOCABULARY" exec bash "$here/pretrain.sh" gin/ro_t5x_base.gin "$@"
