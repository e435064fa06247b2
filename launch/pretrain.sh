#!/usr/bin/env bash
# Sets up .venv and trains one gin file. Each worker of a pod runs the same command.
#
#   bash launch/pretrain.sh GIN_FILE [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# From the environment or as NAME=VALUE:
#   MODEL_DIR     directory, local or gs://, for checkpoints and logs
#   VOCABULARY    path of the SentencePiece model
#   CORPUS        files to read instead of the published corpus, such as 'corpus/*.jsonl.gz'
#   ACCELERATOR   tpu, cuda (or cuda13, cuda12), rocm or cpu; detected if it is not given
#   SETUP         no: .venv is used as it is, as on compute nodes without internet
#   VENV          the folder of the environment; .venv if it is not given
#   RETRIES       new starts after a crash or status 75 (start again), 10 if it is not given; 0: none
# Any other NAME=VALUE, such as TRAIN_STEPS=1000, sets that name of the gin file. launch/supervise.sh starts again.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# A script of one run names itself, and what its user must give.
own=${LIMBA_SCRIPT:-${BASH_SOURCE[0]}} required=${LIMBA_REQUIRED:-}
unset LIMBA_SCRIPT LIMBA_REQUIRED
fail() { echo "launch/pretrain.sh: $1" >&2; exit 2; }

accelerator() {
  if "$venv/bin/python" "$root/limba/config/environment.py"; then echo tpu
  elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo cuda
  elif [ -e /dev/kfd ] && grep -qsv '^0$' /sys/class/kfd/kfd/topology/nodes/*/gpu_id; then echo rocm
  else echo cpu; fi
}

[ $# -gt 0 ] || fail "no gin file is given; write bash launch/pretrain.sh gin/ro_t5x_base.gin, or see --help."
gin_file=$1
shift
flags=()
for argument in "$gin_file" "$@"; do
  case $argument in -h | --help) sed -n '/^#!/d;/^#/!q;s/^# \{0,1\}//p' "$own"; exit 0 ;; esac
done
for name in MODEL_DIR VOCABULARY CORPUS; do
  if [ -n "${!name:-}" ]; then flags+=("--gin.$name=${!name}"); fi
done
for argument in "$@"; do
  case $argument in
    ACCELERATOR=*) ACCELERATOR=${argument#*=} ;;
    RETRIES=*) export RETRIES=${argument#*=} ;;
    SETUP=*) SETUP=${argument#*=} ;;
    VENV=*) export VENV=${argument#*=} ;; # for launch/setup.sh too
    -*) flags+=("$argument") ;;
    [A-Z]*=*) flags+=("--gin.$argument") ;;
    *) fail "the argument $argument is not known; write NAME=VALUE or --gin.NAME=VALUE, or see --help." ;;
  esac
done
venv=${VENV:-$root/.venv}

missing=
for name in $required; do
  case " ${flags[*]:-} " in *" --gin.$name="[!\ ]*) ;; *) missing="${missing:+$missing and }$name" ;; esac
done
if [ -n "$missing" ]; then
  example="MODEL_DIR=gs://BUCKET/RUN" && [[ $required != *VOCABULARY* ]] || example+=" VOCABULARY=gs://BUCKET/ro.model"
  echo "launch/${own##*/}: $missing must be given, in a directory or bucket of yours: $example bash launch/${own##*/}" >&2
  exit 2
fi
case ${ACCELERATOR:-cpu} in
  tpu | cuda | cuda12 | cuda13 | rocm | cpu) ;;
  *) fail "ACCELERATOR is $ACCELERATOR; give tpu, cuda, cuda12, cuda13, rocm or cpu." ;;
esac
case ${SETUP:-yes} in
  yes) [ -n "${ACCELERATOR:-}" ] || bash "$root/launch/setup.sh" ;; # the detection needs its Python
  no) [ -x "$venv/bin/python" ] || fail "SETUP is no, and $venv is not there; run bash launch/setup.sh first." ;;
  *) fail "SETUP is $SETUP; give yes or no." ;;
esac
: "${ACCELERATOR:=$(accelerator)}"
if [ "${SETUP:-yes}" = yes ]; then bash "$root/launch/setup.sh" "$ACCELERATOR"; fi
# With an explicit list an accelerator that fails is an error; without one jax would use the CPU.
case $ACCELERATOR in
  tpu) export JAX_PLATFORMS=${JAX_PLATFORMS:-tpu,cpu} ;;
  cuda*) export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu} ;;
  rocm) export JAX_PLATFORMS=${JAX_PLATFORMS:-rocm,cpu} ;;
  cpu) export JAX_PLATFORMS=cpu ;;
esac
exec bash "$root/launch/supervise.sh" "$venv/bin/python" -m limba train "$gin_file" ${flags[@]+"${flags[@]}"}
