#!/usr/bin/env bash
# Submits a training run to Slurm: one process a node or a GPU, saved before the time limit, and queued again until done.
#
#   bash launch/slurm.sh GIN_FILE --time=LIMIT [--nodes=N] [--gpus-per-node=N] [--SBATCH-OPTION ...] [NAME=VALUE ...]
#   bash launch/slurm.sh gin/ro_t5x_base.gin --time=24:00:00 --nodes=2 --gpus-per-node=4 MODEL_DIR=/scratch/ro
#
# --tasks=node starts one process a node, with all its GPUs (the default), --tasks=gpu one process a GPU. --offline lets
# the libraries of Hugging Face use no network. Other options with two dashes go to sbatch, --gin.NAME=VALUE and
# NAME=VALUE to launch/pretrain.sh. From the environment or as NAME=VALUE, beside those of launch/pretrain.sh:
#   SAVE_SECONDS  how long before its time limit a job is told to save and to end; 120 if it is not given
#   RETRIES       how often a job that crashed is queued again; 10. The ends of time limits are not counted
# The environment (.venv, or VENV=DIR) is made here, where there is internet, and not on the compute nodes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { echo "launch/slurm.sh: $1" >&2; exit 2; }
say() { echo "launch/slurm.sh: $1" >&2; }

# Prints the seconds of a time limit of Slurm: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS.
seconds_of() {
  local days=0 rest=$1 parts
  case $1 in *[!0-9:-]* | '' | *-*-*) return 1 ;; esac
  if [[ $1 == *-* ]]; then days=${1%%-*} rest=${1#*-}; fi
  IFS=: read -r -a parts <<<"$rest"
  case ${#parts[@]} in
    1) [[ $1 == *-* ]] && parts=("${parts[0]}" 0 0) || parts=(0 "${parts[0]}" 0) ;;
    2) [[ $1 == *-* ]] && parts=("${parts[@]}" 0) || parts=(0 "${parts[@]}") ;;
    3) ;;
    *) return 1 ;;
  esac
  echo $((10#${days:-0} * 86400 + 10#${parts[0]:-0} * 3600 + 10#${parts[1]:-0} * 60 + 10#${parts[2]:-0}))
}

# On the first node of a job: starts a process for each task, hands SIGTERM on, and queues the job again if that helps.
job() {
  local tasks='' asked='' interrupted='' status=127 now began=$SECONDS
  # shellcheck disable=SC2329  # the trap calls it
  forward() {
    asked=yes interrupted=yes
    if [ -n "$tasks" ]; then kill -s TERM "$tasks" 2>/dev/null || true; fi
  }
  trap forward TERM
  local retries=${RETRIES:-10}
  # A new start inside the job would wait for a node that may be gone; the job itself is queued again.
  export SETUP=no RETRIES=0
  srun --label --kill-on-bad-exit=0 bash "$root/launch/pretrain.sh" "$@" &
  tasks=$!
  while true; do
    interrupted=
    wait "$tasks" && now=0 || now=$?
    if [ "$now" != 127 ]; then status=$now; fi # 127: it was waited for while the signal came
    if [ -z "$interrupted" ] && ! kill -0 "$tasks" 2>/dev/null; then break; fi
  done
  [ "$status" -ne 0 ] || exit 0
  [ "$status" -ne 143 ] || status=75 # srun itself was ended by the signal
  if [ "$status" -ne 75 ] && [ "$status" -le 128 ] && ! { [ "$status" -eq 74 ] && [[ " $* " == *MODEL_DIR=*://* ]]; }; then
    say "the run ended with status $status, which a new start does not mend."
    exit "$status"
  fi
  if [ -z "$asked" ] && [ $((SECONDS - began)) -lt "${RESET_SECONDS:-3600}" ] &&
    [ "${SLURM_RESTART_COUNT:-0}" -ge "$retries" ]; then
    say "the run ended with status $status, and job $SLURM_JOB_ID was queued again $retries times (RETRIES)."
    exit "$status"
  fi
  if ! scontrol show job "$SLURM_JOB_ID" | grep -q 'JobState=RUNNING'; then
    say "job $SLURM_JOB_ID was cancelled or preempted; what was saved stays, and the same command resumes it."
    exit "$status"
  fi
  say "the run ended with status $status; job $SLURM_JOB_ID is queued again, and resumes."
  scontrol requeue "$SLURM_JOB_ID" || { say "the job cannot be queued again; submit the same command."; exit "$status"; }
  exit 0
}

if [ "${1:-}" = --job ]; then
  shift
  job "$@"
fi
for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
[ $# -gt 0 ] || fail "no gin file is given; write bash launch/slurm.sh gin/ro_t5x_base.gin --time=24:00:00, or see --help."
gin_file=$1
shift
options=() arguments=() limit='' gpus='' tasks=node nodes=1 offline='' output=''
while [ $# -gt 0 ]; do
  case $1 in
    --gin.* | --gin_*) arguments+=("$1") ;;
    --tasks=*) tasks=${1#*=} ;;
    --offline) offline=yes ;;
    --time=*) limit=${1#*=} ;;
    --nodes=*) nodes=${1#*=} ;;
    --gpus-per-node=*) gpus=${1#*=} ;;
    --signal=* | --ntasks*=* | --requeue | --no-requeue | --wrap=*) fail "launch/slurm.sh sets ${1%%=*} itself; leave it out." ;;
    --output=*) output=${1#*=} ;;
    --*=* | --exclusive | --contiguous) options+=("$1") ;;
    -*) fail "write the option $1 with two dashes and =, as in --account=NAME." ;;
    SAVE_SECONDS=*) SAVE_SECONDS=${1#*=} ;;
    VENV=*) export VENV=${1#*=} ;;
    SETUP=*) SETUP=${1#*=} ;;
    ACCELERATOR=*) ACCELERATOR=${1#*=} ;;
    RETRIES=*) export RETRIES=${1#*=} ;;
    [A-Z]*=*) arguments+=("$1") ;;
    *) fail "the argument $1 is not known; write NAME=VALUE, --gin.NAME=VALUE or an option of sbatch." ;;
  esac
  shift
done
[ -f "$gin_file" ] || [ -f "$root/$gin_file" ] || fail "$gin_file does not exist; name a file of gin/."
[ -f "$root/$gin_file" ] || gin_file=$(realpath "$gin_file") # the job runs in the checkout's folder
save=${SAVE_SECONDS:-120}
case $save$nodes${RETRIES:-0} in *[!0-9]*) fail "SAVE_SECONDS, --nodes and RETRIES are whole numbers." ;; esac
save=$((10#$save)) # 08 is no octal number
[ -n "$limit" ] || fail "no time limit is given; write --time=24:00:00, or what your partition allows."
seconds=$(seconds_of "$limit") || fail "--time is $limit; write minutes, HH:MM:SS or D-HH:MM:SS."
if [ "$seconds" -lt $((2 * save + 300)) ]; then
  fail "a limit of $limit ($seconds s) leaves no time to train: a start takes minutes, and the job is told to save $save s before the end (SAVE_SECONDS); write a longer --time."
fi
case $tasks in
  node) per_node=1 ;;
  gpu)
    per_node=${gpus##*:}
    case $per_node in '' | *[!0-9]*) fail "--tasks=gpu needs --gpus-per-node=NUMBER." ;; esac
    ;;
  *) fail "--tasks is $tasks; give node or gpu." ;;
esac
command -v sbatch >/dev/null || fail "sbatch is not here; run this on a login node of your cluster."
if [ -z "${ACCELERATOR:-}" ]; then if [ -n "$gpus" ]; then ACCELERATOR=cuda; else ACCELERATOR=cpu; fi; fi
export ACCELERATOR
if [ "${SETUP:-yes}" = yes ]; then bash "$root/launch/setup.sh" "$ACCELERATOR"; fi
if [ -n "$offline" ]; then export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1; fi
name=${gin_file##*/}
[ -n "$output" ] || { mkdir -p "$root/runs" && output=$root/runs/slurm-%j.log; }
[ -z "$gpus" ] || options+=("--gpus-per-node=$gpus")
wrap=$(printf '%q ' exec bash "$root/launch/slurm.sh" --job "$gin_file" ${arguments[@]+"${arguments[@]}"})
# `exec`: the signal goes to the batch shell alone (B), which is then the script that hands it on.
sbatch --job-name="${name%.gin}" --nodes="$nodes" --ntasks-per-node="$per_node" --time="$limit" \
  --signal="B:TERM@$save" --requeue --open-mode=append --output="$output" --chdir="$root" --export=ALL \
  ${options[@]+"${options[@]}"} --wrap="$wrap" || fail "sbatch did not take the job; its message is above."
