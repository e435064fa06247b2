#!/usr/bin/env bash
# What launch/pod.sh lets each worker of a pod do; it runs there, in ~/limba. Its files are in ~/pod: log, pid, status.
#
#   bash launch/pod_worker.sh status | check | stop | logs LINES [follow] | start COMMAND [ARGUMENT ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
pod=$HOME/pod
mkdir -p "$pod"

is_running() { [ -s "$pod/pid" ] && [ ! -f "$pod/status" ] && kill -0 "$(cat "$pod/pid")" 2>/dev/null; }
# A progress bar ends its lines with a carriage return.
last_line() { tail -c 4000 "$pod/log" 2>/dev/null | tr '\r' '\n' | sed '/^ *$/d' | tail -n 1; }

case ${1:-} in
  status)
    if [ -f "$pod/status" ]; then echo "ended $(cat "$pod/status") | $(last_line)"
    elif is_running; then echo "running | $(last_line)"
    elif [ -f "$pod/pid" ]; then echo "gone | killed without a word, as by a restart of the worker"
    else echo "idle | nothing was started"; fi
    ;;
  check) # whether a run can start; prints the commit
    if is_running; then echo "a run is going on here"; exit 4; fi
    if [ ! -x .venv/bin/python ]; then echo "its set-up has not ended"; exit 127; fi
    git rev-parse HEAD
    ;;
  start) # also a second time: where the connection broke, the first may have come through
    if is_running && [ "$(cat "$pod/command")" = "${*:2}" ]; then echo started; exit 0; fi
    if is_running; then echo "a run is going on here"; exit 4; fi
    (umask 077 && echo "${*:2}" >"$pod/command") # it may hold a key
    rm -f "$pod/status" "$pod/pid"
    if [ -f ~/.cache/huggingface/token ]; then HF_TOKEN=$(cat ~/.cache/huggingface/token) && export HF_TOKEN; fi
    # shellcheck disable=SC2016  # the inner shell expands them
    nohup setsid bash -c 'pod=$1; shift; "$@" & echo $! >"$pod/pid"; wait $!; echo $? >"$pod/status"' \
      start "$pod" "${@:2}" >>"$pod/log" 2>&1 </dev/null &
    for _ in $(seq 50); do [ ! -s "$pod/pid" ] || break; sleep 0.1; done
    [ -s "$pod/pid" ] || { echo "the run did not start within 5 s; see ~/pod/log"; exit 75; }
    echo started
    ;;
  stop)
    if is_running; then kill -TERM "$(cat "$pod/pid")"; fi
    for _ in $(seq 600); do is_running || break; sleep 1; done # it saves
    exec bash launch/pod_worker.sh status
    ;;
  logs)
    if [ ! -f "$pod/log" ]; then echo "nothing was started"; fi
    if [ -n "${3:-}" ]; then tail -n "$2" -F "$pod/log"; elif [ -f "$pod/log" ]; then tail -n "$2" "$pod/log"; fi
    ;;
  *) sed -n '2,4s/^# \{0,1\}//p' launch/pod_worker.sh; exit 2 ;;
esac
