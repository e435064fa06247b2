#!/usr/bin/env bash
# Runs a command of Limba, and starts it again where that helps. pretrain.sh and demo.sh call it.
#
#   bash launch/supervise.sh COMMAND [ARGUMENT ...]
#
# From the environment:
#   RETRIES         restarts in a row; 10 if it is not given, 0: none
#   RETRY_SECONDS   pause before the first new start (10); each further pause is twice as long, up to 10 minutes
#   RESET_SECONDS   a start that lasts longer (3600) sets the number of new starts and the pause back
#
# It starts again after status 75 (start again), after a crash (a signal ended the command, such as for memory), and
# after 74 (storage) if MODEL_DIR is in a bucket, whose outage may pass; a full disk needs somebody. It never does after
# 0, 1, 2, 3 and 130, nor if it was asked to stop: SIGTERM, SIGINT and SIGHUP go on to the command, which saves and
# ends. It does so, too, when this script is killed, where setpriv (util-linux 2.33) is installed.
set -euo pipefail
set -m # the command has its own process group, so that Ctrl-C reaches it once, from here

fail() { echo "launch/supervise.sh: $1" >&2; exit 2; }
say() { echo "launch/supervise.sh: $1" >&2; }

case ${1:---help} in -h | --help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
RETRIES=${RETRIES:-10} RETRY_SECONDS=${RETRY_SECONDS:-10} RESET_SECONDS=${RESET_SECONDS:-3600}
for name in RETRIES RETRY_SECONDS RESET_SECONDS; do
  case ${!name} in *[!0-9]*) fail "$name is ${!name}; give a whole number, 0 or more." ;; esac
  printf -v "$name" %d "$((10#${!name}))" # 08 is not an octal number
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=launch/model_dir.sh
. "$root/launch/model_dir.sh"
bucket=
if in_bucket "$@"; then bucket=yes; fi

child='' asked='' pending='' interrupted=''
forward() {
  asked=yes interrupted=yes
  if [ -z "$child" ]; then pending=$1; else kill -s "$1" "$child" 2>/dev/null || true; fi
}
trap 'forward TERM' TERM
trap 'forward INT' INT
trap 'forward HUP' HUP

# Runs a command in the background, so that a signal is handled at once; sets `status`.
run() {
  local now
  "$@" &
  child=$! status=127
  if [ -n "$pending" ]; then forward "$pending"; fi # it came before this start
  pending=
  while true; do
    interrupted=
    wait "$child" 2>/dev/null && now=0 || now=$?
    if [ "$now" != 127 ]; then status=$now; fi # 127: it has been waited for, while the signal came
    if [ -n "$interrupted" ]; then continue; fi
    if ! kill -0 "$child" 2>/dev/null; then break; fi
    sleep 1 # SIGSTOP has stopped it
  done
  child=
}

restarts() {
  case $status in
    75) return 0 ;;
    74) [ -n "$bucket" ] ;;
    129 | 130 | 143) return 1 ;; # somebody ended it: SIGHUP, SIGINT, SIGTERM
    *) [ "$status" -gt 128 ] ;;
  esac
}

if setpriv --pdeathsig TERM true 2>/dev/null; then set -- setpriv --pdeathsig TERM "$@"; fi
left=$RETRIES pause=$RETRY_SECONDS
while true; do
  began=$SECONDS
  run "$@"
  ended=$status
  if [ -n "$asked" ] || ! restarts; then break; fi
  if [ $((SECONDS - began)) -gt "$RESET_SECONDS" ]; then left=$RETRIES pause=$RETRY_SECONDS; fi
  if [ "$left" -eq 0 ]; then
    say "the run ended with status $ended, and no new start is left (RETRIES=$RETRIES)."
    break
  fi
  say "the run ended with status $ended; new start $((RETRIES - left + 1)) of at most $RETRIES in $pause s."
  run sleep "$pause"
  if [ -n "$asked" ]; then ended=75; break; fi
  left=$((left - 1)) pause=$((2 * pause > 600 ? 600 : 2 * pause))
done
case $ended in 129 | 143) ended=75 ;; esac # stopped before it could save: the same command resumes
exit "$ended"
