#!/usr/bin/env bash
# Trains with several processes on this machine, each started as on a worker of a pod, on a CPU device of its own.
#
#   bash launch/simulate.sh NUMBER GIN_FILE [--kill-every=SECONDS] [NAME=VALUE ...] [--gin.NAME=VALUE ...]
#   bash launch/simulate.sh 4 gin/demo.gin
#
# --kill-every=SECONDS preempts one of them at random, about so often: with SIGTERM, after which all save, or with
# SIGKILL, after which the others end. All of them resume, as under launch/pretrain.sh, until the run is done.
# MODEL_DIR is runs/simulated if it is not given; gin/demo.gin's own corpus and vocabulary are written there. RETRIES is
# 1000. Each line begins with the number of its process. SEED=NUMBER repeats the preemptions' times and choices.
# SETUP=no and VENV=DIR are as in launch/pretrain.sh.
#
# It ends with 0 when all processes have ended well. When one has ended otherwise and is not started again, the others
# are stopped after LONE_SECONDS (20), and its status is this script's; 75: the same command resumes the run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { echo "launch/simulate.sh: $1" >&2; exit 2; }
say() { echo "launch/simulate.sh: $1" >&2; }

for argument in "$@"; do
  case $argument in -h | --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
done
[ $# -ge 2 ] || fail "give the number of processes and a gin file: bash launch/simulate.sh 4 gin/demo.gin."
count=$1 gin_file=$2
shift 2
case $count in '' | *[!0-9]* | 0) fail "the number of processes is $count; give a whole number, such as 4." ;; esac
every='' arguments=()
for argument in "$@"; do
  case $argument in
    --kill-every=*)
      every=${argument#*=}
      case $every in '' | *[!0-9]* | 0) fail "--kill-every is $every; give whole seconds, such as 60." ;; esac
      ;;
    MODEL_DIR=*) MODEL_DIR=${argument#*=} ;;
    CORPUS=*) CORPUS=${argument#*=} ;;
    VOCABULARY=*) VOCABULARY=${argument#*=} ;;
    SEED=*) SEED=${argument#*=} ;;
    SETUP=*) SETUP=${argument#*=} ;;
    VENV=*) export VENV=${argument#*=} ;; # for launch/setup.sh and launch/pretrain.sh too
    *) arguments+=("$argument") ;;
  esac
done
venv=${VENV:-$root/.venv}
export MODEL_DIR=${MODEL_DIR:-$root/runs/simulated}
for name in CORPUS VOCABULARY; do
  if [ -n "${!name:-}" ]; then export "${name?}"; fi
done
export RETRIES=${RETRIES:-1000} RETRY_SECONDS=${RETRY_SECONDS:-1} RESET_SECONDS=${RESET_SECONDS:-0}
LONE_SECONDS=${LONE_SECONDS:-20}
case $LONE_SECONDS in *[!0-9]*) fail "LONE_SECONDS is $LONE_SECONDS; give whole seconds, such as 20." ;; esac
if [ "${SETUP:-}" != no ]; then bash "$root/launch/setup.sh"; fi
export SETUP=no ACCELERATOR=cpu

# The demo's own text, and a vocabulary of the size that gin/demo.gin has, without its 100 sentinels.
if [ "${gin_file##*/}" = demo.gin ] && [ -z "${CORPUS:-}${VOCABULARY:-}" ]; then
  export CORPUS=$MODEL_DIR/corpus.jsonl VOCABULARY=$MODEL_DIR/vocabulary.model
  mkdir -p "$MODEL_DIR"
  # tasks/ of the clone, and not of the folder that this is called in
  [ -f "$CORPUS" ] || PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} "$venv/bin/python" -P -c 'import sys
from tasks.demo import pydoc_corpus
pydoc_corpus(sys.argv[1])' "$CORPUS"
  [ -f "$VOCABULARY" ] || LIMBA_ALONE=1 "$venv/bin/python" -m limba vocabulary "$CORPUS" --size=3996 \
    --output="$VOCABULARY" >"$MODEL_DIR/vocabulary.txt"
fi
port=$("$venv/bin/python" -c 'import socket
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    print(probe.getsockname()[1])')
export COORDINATOR_ADDRESS=127.0.0.1:$port COORDINATOR_BIND_ADDRESS=127.0.0.1 NUM_PROCESSES=$count
export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=${DEVICES:-1}"
unset LIMBA_ALONE

supervisors=()
# shellcheck disable=SC2329  # the traps call it
stop() { for each in ${supervisors[@]+"${supervisors[@]}"}; do kill -s "$1" "$each" 2>/dev/null || true; done; }
asked=''
trap 'asked=yes; stop TERM' TERM INT HUP
for ((index = 0; index < count; index++)); do
  # The process itself is the job, and not its prefixing reader, so that it can be waited for and stopped.
  PROCESS_ID=$index bash "$root/launch/pretrain.sh" "$gin_file" ${arguments[@]+"${arguments[@]}"} \
    > >(exec sed -u "s/^/$index: /") 2> >(exec sed -u "s/^/$index: /" >&2) &
  supervisors+=("$!")
done

# Prints the process that a supervisor has started and that trains; nothing between two starts.
trainer() {
  local child
  for child in $(pgrep -P "$1" 2>/dev/null); do
    if tr '\0' ' ' <"/proc/$child/cmdline" 2>/dev/null | grep -q -- '-m limba train'; then echo "$child"; fi
  done
}

preempt() {
  local pause victim child signal
  RANDOM=${SEED:-$RANDOM}
  while true; do
    pause=$((every / 2 + RANDOM % (every + 1)))
    sleep $((pause > 0 ? pause : 1))
    victim=$((RANDOM % count)) signal=TERM
    if [ $((RANDOM % 2)) -eq 0 ]; then signal=KILL; fi
    child=$(trainer "${supervisors[victim]}")
    if [ -n "$child" ] && kill -s "$signal" "$child" 2>/dev/null; then say "process $victim gets SIG$signal"; fi
  done
}
preempting=''
if [ -n "$every" ]; then
  preempt &
  preempting=$!
fi

# A status that no new start fixes says more than 75, with which the others end for want of that process.
weight() {
  case $1 in 0) echo 0 ;; 75) echo 1 ;; 74) echo 3 ;; *) if [ "$1" -gt 128 ]; then echo 2; else echo 4; fi ;; esac
}

worst=0 stop_at=''
while [ ${#supervisors[@]} -gt 0 ]; do
  for index in "${!supervisors[@]}"; do
    if kill -0 "${supervisors[index]}" 2>/dev/null; then continue; fi
    wait "${supervisors[index]}" 2>/dev/null && status=0 || status=$?
    unset "supervisors[index]"
    if [ "$(weight "$status")" -gt "$(weight "$worst")" ]; then worst=$status; fi
    if [ "$status" -eq 0 ] || [ -n "$asked$stop_at" ] || [ ${#supervisors[@]} -eq 0 ]; then continue; fi
    say "process $index has ended with status $status; the others are stopped after $LONE_SECONDS s."
    stop_at=$((SECONDS + LONE_SECONDS))
  done
  # On a pod they would wait for somebody to start that process again.
  if [ -n "$stop_at" ] && [ "$SECONDS" -ge "$stop_at" ]; then
    stop TERM
    stop_at=$((SECONDS + 600)) # they save first
  fi
  if [ ${#supervisors[@]} -gt 0 ]; then sleep 0.2; fi
done
if [ -n "$preempting" ]; then kill "$preempting" 2>/dev/null || true; fi
if [ "$worst" -gt 128 ] && [ -n "$asked" ]; then worst=75; fi
exit "$worst"
