#!/usr/bin/env bash
# Submits a training run to Slurm: one process a node or a GPU, saved before the time limit, and queued again until done.
#
#   bash launch/slurm.sh GIN_FILE --time=LIMIT [--nodes=N] [--gpus-per-node=N] [--SBATCH-OPTION ...] [NAME=VALUE ...]
#   bash launch/slurm.sh gin/ro_t5x_base.gin --time=24:00:00 --nodes=2 --gpus-per-node=4 MODEL_DIR=/scratch/ro \
#     VOCABULARY=/scratch/ro.model
#
# --tasks=node starts one process a node, with all its GPUs (the default), --tasks=gpu one process a GPU. --offline lets
# the libraries of Hugging Face use no network. Other options with two dashes go to sbatch, --gin.NAME=VALUE and
# NAME=VALUE to launch/pretrain.sh. From the environment or as NAME=VALUE, besides what launch/pretrain.sh takes:
#   SAVE_SECONDS  how long before its time limit a job is told to save and to end; 120 if it is not given
#   RETRIES       how often in a row a job that crashed and saved nothing new is queued again; 10
# The environment (.venv, or VENV=DIR) is made here, where there is internet, and not on the compute nodes. Relative
# paths begin in this folder, as with launch/pretrain.sh; --chdir=DIR has the job's begin in DIR.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/model_dir.sh
. "$root/launch/model_dir.sh"

fail() { echo "launch/slurm.sh: $1" >&2; exit 2; }
say() { echo "launch/slurm.sh: $1"; } # into the job's log

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

# A status that no new start fixes says more than 75, with which the others end for want of that process.
weight() {
  case $1 in 0) echo 0 ;; 75) echo 1 ;; 74) echo 3 ;; *) if [ "$1" -gt 128 ]; then echo 2; else echo 4; fi ;; esac
}

# As each of the tasks: runs pretrain.sh, and says how it ended, since srun tells the highest status of all tasks only.
task() {
  local status=0
  trap : TERM # Slurm sends it to every process of the step; this one waits for the others
  bash "$root/launch/pretrain.sh" "$@" || status=$?
  case $status in 0 | 75 | 143) exit "$status" ;; esac # 143: SIGTERM came before the run
  say "task $SLURM_PROCID on $(hostname) ended with status $status."
  if [ "$(weight "$status")" -gt 2 ]; then # the others would wait for this process to join them
    sleep "${LONE_SECONDS:-20}" || true
    scancel --signal=TERM "$SLURM_JOB_ID" || true
  fi
  exit "$status"
}

# On the first node of a job: starts a process for each task, lets them save on SIGTERM, and queues the job again if
# that helps. What it must know of the tasks and of earlier starts is in the job's log, to which all of them write.
job() {
  local tasks='' asked='' interrupted='' status=127 now who='' began=$SECONDS log=/proc/$$/fd/1 from=1 saved=unknown
  local idle=${SLURM_RESTART_COUNT:-0} most=${RETRIES:-10} state where
  # shellcheck disable=SC2329  # the trap calls it
  forward() {
    asked=yes interrupted=yes
    local said found
    # A SIGTERM to srun would kill its tasks: it ends their step with SIGKILL. scancel's goes to them, not to this shell.
    until [ -z "$tasks" ] || said=$(scancel --signal=TERM "$SLURM_JOB_ID" 2>&1); do
      if ! kill -0 "$tasks" 2>/dev/null; then break; fi
      if found=$(scontrol show job "$SLURM_JOB_ID" 2>&1) && [[ $found != *JobState=RUNNING* ]]; then break; fi # all ends
      say "scancel has failed, and is called again in 10 s; without it Slurm itself tells the tasks, at the limit. ($said)"
      sleep 10
    done
  }
  trap forward TERM
  if [ -f "$log" ]; then from=$(($(wc -c <"$log") + 1)); else log=''; fi
  # A new start inside the job would wait for a node that may be gone; the job itself is queued again.
  export SETUP=no RETRIES=0
  if [ -z "${SLURM_JOB_END_TIME:-}" ] && state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null); then
    SLURM_JOB_END_TIME=$(date -d "$state" +%s 2>/dev/null) && export SLURM_JOB_END_TIME # Slurm 22.05 does not set it
  fi
  srun --label --kill-on-bad-exit=0 bash "$root/launch/slurm.sh" --task "$@" &
  tasks=$!
  while true; do
    interrupted=
    wait "$tasks" && now=0 || now=$?
    if [ "$now" != 127 ]; then status=$now; fi # 127: it was waited for while the signal came
    if [ -z "$interrupted" ] && ! kill -0 "$tasks" 2>/dev/null; then break; fi
  done
  [ "$status" -ne 0 ] || exit 0
  [ "$status" -ne 143 ] || status=75 # the signal came before the run
  if [ -n "$log" ]; then
    while read -r now where; do
      [ "$(weight "$now")" -ge "$(weight "$status")" ] || continue
      if [ -z "$who" ] || [ "$(weight "$now")" -gt "$(weight "$status")" ]; then status=$now who=" of $where"; fi
    done < <(tail -c "+$from" "$log" |
      sed -nE 's/.*launch\/slurm\.sh: (task [0-9]+ on [^ ]+) ended with status ([0-9]+)\.$/\2 \1/p')
    saved=
    if grep -qE '^ *[0-9]+: step [0-9,]+ saved in ' <(tail -c "+$from" "$log"); then saved=yes; fi
    idle=$(awk -v again="; job $SLURM_JOB_ID is queued again" '
      /^launch\/slurm\.sh: the run ended / && index($0, again) { n = / saved nothing new;/ ? n + 1 : 0 }
      END { print n + 0 }' "$log")
  fi
  if [ "$status" -ne 75 ] && [ "$status" -le 128 ] &&
    ! { [ "$status" -eq 74 ] && in_bucket "$@"; }; then
    say "the run ended with status $status$who, which a new start does not fix."
    exit "$status"
  fi
  for now in {1..12}; do if state=$(scontrol show job "$SLURM_JOB_ID"); then break; else sleep 10; fi; done
  if [[ $state != *JobState=RUNNING* ]]; then
    say "Slurm has ended job $SLURM_JOB_ID (cancelled, preempted, or a lost node); what was saved stays. If Slurm does not queue it again, the same command resumes it."
    exit "$status"
  fi
  # A start that was not cut short, by a crash or for another job, has had its time.
  if [ $((SECONDS - began)) -ge "${RESET_SECONDS:-3600}" ] || { [ -n "$asked" ] && [[ $state != *PreemptTime=[0-9]* ]]; }; then
    if [ -z "$saved" ] && [ "$idle" -gt 0 ]; then
      say "the run ended with status $status$who, and two starts in a row saved nothing new, so job $SLURM_JOB_ID is not queued again: give a longer --time, a shorter CHECKPOINT_PERIOD, or more SAVE_SECONDS."
      exit "$status"
    fi
  elif [ "$saved" != yes ] && [ "$idle" -ge "$most" ]; then
    say "the run ended with status $status$who, and job $SLURM_JOB_ID was queued again $most times (RETRIES)."
    exit "$status"
  fi
  [ -n "$saved" ] || who+=" and saved nothing new"
  say "the run ended with status $status$who; job $SLURM_JOB_ID is queued again, and resumes."
  scontrol requeue "$SLURM_JOB_ID" || { say "the job cannot be queued again; submit the same command."; exit "$status"; }
  exit 0
}

case ${1:-} in
  --job) shift; job "$@" ;;
  --task) shift; task "$@" ;;
esac
for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
[ $# -gt 0 ] || fail "no gin file is given; write bash launch/slurm.sh gin/ro_t5x_base.gin --time=24:00:00, or see --help."
gin_file=$1
shift
options=() arguments=() limit='' gpus='' tasks=node nodes=1 offline='' output='' folder=$PWD
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
    --chdir=*) folder=${1#*=} ;;
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
if [ "$folder" != "$PWD" ]; then # which may have a file of that name too
  [ -f "$gin_file" ] || gin_file=$root/$gin_file
  gin_file=$(realpath "$gin_file")
fi
case ${VENV:-} in '' | /*) ;; *) VENV=$PWD/$VENV ;; esac
save=${SAVE_SECONDS:-120}
case $save$nodes${RETRIES:-0} in *[!0-9]*) fail "SAVE_SECONDS, --nodes and RETRIES are whole numbers." ;; esac
save=$((10#$save)) # 08 is not an octal number
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
  --signal="B:TERM@$save" --requeue --open-mode=append --output="$output" --chdir="$folder" --export=ALL \
  ${options[@]+"${options[@]}"} --wrap="$wrap" || fail "sbatch did not take the job; its message is above."
