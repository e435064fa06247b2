#!/usr/bin/env bash
# A decoder-only language model on a TPU v3-8; each worker runs this. The gin file has the hours and expected results.
#
#   MODEL_DIR=gs://BUCKET/ja_lm TFDS_DATA_DIR=gs://BUCKET/tfds bash launch/ja_lm.sh [GIN_FILE] [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# The default GIN_FILE is gin/ja_lm_0.1b.gin. Before the run, tfds.load('wiki40b/ja', data_dir=…) puts the corpus below
# TFDS_DATA_DIR; MIXTURE_OR_TASK_NAME=wiki40b_ja_causal_lm_stream reads the hub's. Started again, it resumes from the newest checkpoint. launch/pretrain.sh --help lists the names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
gin_file=gin/ja_lm_0.1b.gin
case ${1:-} in *.gin) gin_file=$1; shift ;; esac
for argument in "$@"; do
  case $argument in MODEL_DIR=* | --gin.MODEL_DIR=*) MODEL_DIR=${argument#*=} ;; esac
  case $argument in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
if [ -z "${MODEL_DIR:-}" ]; then
  echo "launch/ja_lm.sh: MODEL_DIR is not set; give a directory or a gs:// path for checkpoints and logs." >&2
  exit 2
fi
export MODEL_DIR
exec bash "$here/pretrain.sh" "$gin_file" "$@"
