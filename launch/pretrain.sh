#!/usr/bin/env bash
# Sets up .venv and trains one gin file. Each worker of a pod runs the same command.
#
#   bash launch/pretrain.sh GIN_FILE [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# From the environment or as NAME=VALUE:
#   MODEL_DIR     directory, local or gs://, for checkpoints and logs
#   VOCABULARY    path of the SentencePiece model
#   CORPUS        files to read instead of the published corpus, such as 'corpus/*.jsonl.gz'
#   ACCELERATOR   tpu, cuda (or cuda12) or cpu; detected if it is not given
#   RETRIES       new starts after a crash or status 75 (start again), 10 if it is not given; 0: none
# Any other NAME=VALUE, such as TRAIN_STEPS=1000, sets that name of the gin file. launch/supervise.sh starts again.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { echo "launch/pretrain.sh: $1" >&2; exit 2; }

accelerator() {
  if "$root/.venv/bin/python" "$root/limba/config/environment.py"; then echo tpu
  elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo cuda
  else echo cpu; fi
}

[ $# -gt 0 ] || fail "no gin file is given; write bash launch/pretrain.sh gin/ro_t5x_base.gin, or see --help."
gin_file=$1
shift
flags=()
for argument in "$gin_file" "$@"; do
  case $argument in -h | --help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
for name in MODEL_DIR VOCABULARY CORPUS; do
  if [ -n "${!name:-}" ]; then flags+=("--gin.$name=${!name}"); fi
done
for argument in "$@"; do
  case $argument in
    ACCELERATOR=*) ACCELERATOR=${argument#*=} ;;
    RETRIES=*) export RETRIES=${argument#*=} ;;
    -*) flags+=("$argument") ;;
    [A-Z]*=*) flags+=("--gin.$argument") ;;
    *) fail "the argument $argument is not known; write NAME=VALUE or --gin.NAME=VALUE, or see --help." ;;
  esac
done

case ${ACCELERATOR:-cpu} in
  tpu | cuda | cuda12 | cpu) ;;
  *) fail "ACCELERATOR is $ACCELERATOR; give tpu, cuda, cuda12 or cpu." ;;
esac
[ -n "${ACCELERATOR:-}" ] || bash "$root/launch/setup.sh" # the detection needs its Python
: "${ACCELERATOR:=$(accelerator)}"
bash "$root/launch/setup.sh" "$ACCELERATOR"
# With an explicit list an accelerator that fails is an error; without one jax would use the CPU.
case $ACCELERATOR in
  tpu) export JAX_PLATFORMS=${JAX_PLATFORMS:-tpu,cpu} ;;
  cuda*) export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu} ;;
  cpu) export JAX_PLATFORMS=cpu ;;
esac
exec bash "$root/launch/supervise.sh" "$root/.venv/bin/python" -m limba train "$gin_file" ${flags[@]+"${flags[@]}"}
