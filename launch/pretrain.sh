#!/usr/bin/env bash
# Sets up and trains one gin file; every worker of a pod runs the same command.
#
#   bash launch/pretrain.sh GIN_FILE [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#
# From the environment or as NAME=VALUE:
#   MODEL_DIR     directory, local or gs://, for checkpoints and logs
#   VOCABULARY    path of the SentencePiece model
#   CORPUS        files to read instead of the published corpus, such as 'corpus/*.jsonl.gz'
#   ACCELERATOR   tpu, cuda (or cuda12) or cpu; found by itself where it is not given
# Any other NAME=VALUE, such as TRAIN_STEPS=1000, sets that name of the gin file.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { echo "launch/pretrain.sh: $1" >&2; exit 2; }

# A TPU VM shows its chips on the PCI bus: Google's vendor id with the ids of v2/v3, v4, v5p, v5e, v6e and 7x.
has_tpu() {
  local device
  for device in /sys/bus/pci/devices/*; do
    [ "$(cat "$device/vendor" 2>/dev/null)" = 0x1ae0 ] || continue
    case $(cat "$device/device" 2>/dev/null) in 0x0027 | 0x0056 | 0x005e | 0x0062 | 0x0063 | 0x006f | 0x0076) return 0 ;; esac
  done
  return 1
}

accelerator() {
  if has_tpu; then echo tpu
  elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then echo cuda
  else echo cpu; fi
}

[ $# -gt 0 ] || fail "no gin file is given; write bash launch/pretrain.sh gin/ro_t5x_base.gin, or see --help."
gin_file=$1
shift
flags=()
for argument in "$gin_file" "$@"; do
  case $argument in -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
for name in MODEL_DIR VOCABULARY CORPUS; do
  if [ -n "${!name:-}" ]; then flags+=("--gin.$name=${!name}"); fi
done
for argument in "$@"; do
  case $argument in
    ACCELERATOR=*) ACCELERATOR=${argument#*=} ;;
    -*) flags+=("$argument") ;;
    [A-Z]*=*) flags+=("--gin.$argument") ;;
    *) fail "the argument $argument is not known; write NAME=VALUE or --gin.NAME=VALUE, or see --help." ;;
  esac
done

case ${ACCELERATOR:=$(accelerator)} in
  tpu | cuda | cuda12 | cpu) ;;
  *) fail "ACCELERATOR is $ACCELERATOR; give tpu, cuda, cuda12 or cpu." ;;
esac
bash "$root/launch/setup.sh" "$ACCELERATOR"
# An explicit list makes an accelerator that fails an error, where jax would fall back to the CPU.
case $ACCELERATOR in
  tpu) export JAX_PLATFORMS=${JAX_PLATFORMS:-tpu,cpu} ;;
  cuda*) export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu} ;;
  cpu) export JAX_PLATFORMS=cpu ;;
esac
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$root/.venv/bin/python" -m launch.train --gin_file="$gin_file" ${flags[@]+"${flags[@]}"}
