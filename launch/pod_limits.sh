# How launch/pod.sh waits: each call ends within a limit, and what does not answer is named. launch/pod.sh sources it.
# shellcheck shell=bash disable=SC2034,SC2154

# Seconds, each set by its variable. A question to gcloud; the request of a pod, or its deletion. On the workers: status
# and logs; the checks and the start of a run; stop, in which the run saves; setup. How often the silent are named.
: "${CLOUD_SECONDS:=120}" "${CHANGE_SECONDS:=900}" "${STATUS_SECONDS:=60}" "${RUN_SECONDS:=120}"
: "${STOP_SECONDS:=900}" "${SETUP_SECONDS:=1800}" "${NOTICE_SECONDS:=30}"
for word in CLOUD CHANGE STATUS RUN STOP SETUP NOTICE; do
  limit=${word}_SECONDS
  [[ ${!limit} =~ ^[1-9][0-9]*$ ]] || fail "$limit is '${!limit}'; give a whole number of seconds, above 0."
done
limit=$CLOUD_SECONDS skip='' at_once=16 # workers at once

# `pause 5` sleeps 5 seconds without a process that could outlive this one.
mkfifo "$folder/nothing" && exec 4<>"$folder/nothing"
pause() { read -r -t "$1" -u 4 _ || true; }

# Prints process $1 and all that it started; of this shell only what it started.
tree() {
  ps -A -o pid= -o ppid= | awk -v top="$1" -v keep=$$ '{ parent[$1] = $2 } END {
    for (pid in parent) {
      for (at = pid; at != top && at > 1 && (at in parent); at = parent[at]) continue
      if (at == top && pid != keep) print pid
    } }'
}
# Ends them, stopped first, so that none starts another meanwhile. (macOS has no timeout and no setsid.)
# shellcheck disable=SC2046,SC2086  # one word a process
end_tree() {
  local all
  all=$(tree "$1") || return 0
  kill -STOP $all 2>/dev/null || true
  kill -KILL $all $(tree "$1") 2>/dev/null || true
}

# Runs `$3 ...`; past $1 seconds it is ended, and the status is 124. $2 prints who has not answered.
limited() {
  local seconds=$1 who=$2 job dog code=0 waited
  shift 2
  rm -f "$folder/late"
  "$@" <&0 &
  job=$!
  {
    for ((waited = NOTICE_SECONDS; waited < seconds; waited += NOTICE_SECONDS)); do
      pause "$NOTICE_SECONDS"
      say "no answer for $waited s from $($who)" >&3
    done
    pause $((seconds - waited + NOTICE_SECONDS))
    touch "$folder/late"
    end_tree "$job"
  } </dev/null >/dev/null 2>&1 &
  dog=$!
  # The script's own end does this, except after a `$(...)` that Ctrl-C ended first.
  if [ "$BASH_SUBSHELL" -gt 0 ]; then trap 'end_tree "$job"; kill -KILL "$dog"' EXIT; fi
  wait "$job" 2>/dev/null || code=$?
  if [ "$BASH_SUBSHELL" -gt 0 ]; then trap - EXIT; fi
  if [ -f "$folder/late" ]; then code=124; else kill -KILL "$dog" 2>/dev/null || true; fi
  wait "$dog" 2>/dev/null || true
  return $code
}

# Prints the workers that have not answered.
silent() {
  local worker all=''
  for ((worker = 0; worker < workers; worker++)); do
    case " $skip " in *" $worker "*) continue ;; esac
    [ -f "$folder/$worker.code" ] || all="$all, $worker"
  done
  echo "worker ${all#, }"
}
# Runs `$2 WORKER ...` for all workers at once, within $1 seconds. $folder/WORKER has what it prints, WORKER.errors its
# messages, WORKER.code its status: 124 of one that did not answer. `skip` names workers that are left out.
on_workers() {
  local seconds=$1 worker
  shift
  rm -f "$folder"/[0-9]*
  limited $((seconds * ((workers + at_once - 1) / at_once))) silent ask_workers "$@" || true
  for ((worker = 0; worker < workers; worker++)); do
    if [ -f "$folder/$worker.code" ]; then continue; fi
    echo 124 >"$folder/$worker.code"
    echo "ERROR: gcloud or ssh gave no answer within $seconds s" >>"$folder/$worker.errors"
  done
}
ask_workers() {
  local worker
  for ((worker = 0; worker < workers; worker++)); do
    case " $skip " in *" $worker "*) continue ;; esac
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do sleep 0.2; done
    ask_worker "$worker" "$@" &
    if [ -n "$dry" ]; then wait; fi
  done
  wait
}
# A refused connection is tried once more; gcloud itself has tried it ten times by then.
ask_worker() {
  local worker=$1 errors=$1.errors code=0
  "$2" "$worker" "${@:3}" >"$folder/$worker" || code=$?
  if [ "$code" = 255 ]; then code=0 && "$2" "$worker" "${@:3}" >"$folder/$worker" || code=$?; fi
  echo "$code" >"$folder/$worker.code.new"
  mv "$folder/$worker.code.new" "$folder/$worker.code"
}

# Prints the last line of a worker's answer that is not empty: a banner or a greeting of its shell comes before it.
answer() { cat "$folder/$1" 2>/dev/null | tr '\r' '\n' | sed '/^[[:space:]]*$/d' | tail -n 1; }
# Prints in one line why a call failed, from what it printed: all of gcloud's reason, after the line before it (ssh's
# own) if ssh failed or was ended, or else the last two lines.
reason() {
  cat "$@" 2>/dev/null | tr '\r' '\n' | awk '
    NF && !/^(SSH|SCP): Attempting to connect|^Retrying: / {
      sub(/^[ \t]+/, ""); line[++n] = $0
      if (!from && /^ERROR: (\(gcloud|gcloud)/) from = n - (/return code|gave no answer/ && n > 1)
    }
    END {
      if (!from) from = n > 1 ? n - 1 : 1
      for (i = from; i <= n; i++) printf "%s%s", (i > from ? " " : ""), line[i]
    }'
}
# Prints a line for each worker, its answer or why there is none; fails if one failed.
report() {
  local worker failed=0 text
  for ((worker = 0; worker < workers; worker++)); do
    if [ "$(cat "$folder/$worker.code")" = 0 ]; then
      text=$(answer "$worker")
      say "worker $worker: ${text:-(printed nothing)}"
    else
      failed=1 text=$(reason "$folder/$worker" "$folder/$worker.errors")
      case $text in *'Permission denied (publickey'*) text="$text; if your key has a passphrase: ssh-add \
~/.ssh/google_compute_engine" ;; esac
      say "worker $worker FAILED: ${text:-status $(cat "$folder/$worker.code"), and it printed nothing}" >&2
    fi
  done
  return $failed
}
# Ends after a report of failures; $1 says what was not done, and how the workers failed says what to do.
advise() {
  case " $(cat "$folder"/*.code | sort -u | tr '\n' ' ')" in
    *' 4 '*) fail "$1; a run is going on: bash launch/pod.sh stop $name" ;;
    *' 124 '* | *' 255 '*) fail "$1: not all workers answer; the same command again." 75 ;;
    *' 127 '*) fail "$1; it is not set up: bash launch/pod.sh setup $name" ;;
    *) fail "$1; see above, then the same command again." 75 ;;
  esac
}
