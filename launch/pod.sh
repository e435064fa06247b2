#!/usr/bin/env bash
# A TPU pod from a laptop, by gcloud: https://cloud.google.com/sdk/docs/install, `gcloud init`, nothing else.
#
#   bash launch/pod.sh create NAME --type=v4-32 --zone=ZONE [--spot] [--bucket=gs://BUCKET] [--service-account=EMAIL]
#                             [--slices=N] [--image=IMAGE] [-- MORE FLAGS OF gcloud's queued-resources create]
#   bash launch/pod.sh setup  NAME [--env=NAME=VALUE ...]      this commit and launch/setup.sh tpu on all workers
#   bash launch/pod.sh run    NAME GIN_FILE [NAME=VALUE ...] [--env=NAME=VALUE ...]     on all workers, detached
#   bash launch/pod.sh status NAME                             the pod, and what each worker does
#   bash launch/pod.sh logs   NAME [--lines=20] [--follow]     of all workers
#   bash launch/pod.sh stop   NAME                             the run saves and ends; the pod stays, and costs
#   bash launch/pod.sh watch  NAME [--tries=20]                makes a preempted pod again, and resumes the run
#   bash launch/pod.sh delete NAME [--yes]
#
# --dry-run prints each gcloud command, and runs none. --zone=ZONE after NAME reaches a pod that another machine made.
# No call waits without end: variables set its seconds, here with the usual ones. STATUS_SECONDS=60 of status and logs,
# RUN_SECONDS=120, STOP_SECONDS=900, SETUP_SECONDS=1800; CLOUD_SECONDS=120 of a question to gcloud, CHANGE_SECONDS=900
# of a request or deletion; NOTICE_SECONDS=30: so often the workers that have not answered are named.
# GIN_FILE may be a script, such as launch/ro_base.sh. setup, and watch for a pod that it makes again, take HF_TOKEN,
# for private corpora, to the workers. What --env gives to setup, launch/setup.sh has there, by watch too.
# Exit statuses: 0; 2, change what the sentence names; 75, the same command again; of watch also the run's. docs/pods.md
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fail() { echo "launch/pod.sh: $1" >&2; exit "${2:-2}"; }
say() { echo "$name: $1"; }

case ${1:---help} in -h | --help) sed -n '2,21s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
action=$1 name=${2:-} dry='' type='' zone='' spot='' bucket='' account='' image='' yes='' lines=20 follow='' tries=20
case $action in
  create | setup | run | status | logs | stop | watch | delete | remake | resume) ;; # the last two are of watch
  *) fail "$action is not known; see --help." ;;
esac
[[ $name =~ ^[a-z][a-z0-9-]*$ ]] || fail "give a name after $action: small letters, digits and -, such as my-pod."
shift 2
more=() words=() variables=() set_up_with=() token='' command=() poll=${POLL_SECONDS:-20} workers=1 slices=1 each=1
run_commit='' # which the run was started with
record=${LIMBA_PODS:-${XDG_CONFIG_HOME:-$HOME/.config}/limba/pods}/$name
# shellcheck source=/dev/null
if [ "$action" != create ] && [ -f "$record" ]; then . "$record"; fi
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry=yes ;; --spot) spot=yes ;; --yes) yes=yes ;; --follow) follow=follow ;;
    --type=*) type=${1#*=} ;; --zone=*) zone=${1#*=} ;; --bucket=*) bucket=${1#*=} ;; --image=*) image=${1#*=} ;;
    --service-account=*) account=${1#*=} ;; --lines=*) lines=${1#*=} ;; --tries=*) tries=${1#*=} ;;
    --slices=*) slices=${1#*=} ;;
    --env*)
      case $action in setup | run) ;; *) fail "--env is for setup and run; leave it out of $action." ;; esac
      [[ $1 =~ ^--env=[A-Za-z_][A-Za-z0-9_]*= ]] || fail "$1 is not a variable; write --env=NAME=VALUE."
      variables+=("${1#*=}") ;;
    --) shift; more+=("$@"); break ;;
    *) [ "$action" = run ] || fail "the argument $1 of $action is not known; see --help."; words+=("$1") ;;
  esac
  shift
done
case $lines$tries in *[!0-9]*) fail "--lines and --tries are whole numbers." ;; esac
tries=$((10#$tries))
[[ $slices =~ ^[1-9][0-9]*$ ]] || fail "--slices is $slices; give a whole number above 0."
[ -n "$zone" ] || fail "give --zone=ZONE: no pod $name was made from this machine; your grant names the zones."
[[ $zone =~ ^[a-z]+-[a-z]+[0-9]+-[a-z]$ ]] || fail "the zone $zone is not one; a zone is like us-central2-b."
[ -n "$dry" ] || command -v ps >/dev/null || fail "ps is missing, with which calls are ended; install procps"
[ -n "$dry" ] || command -v gcloud >/dev/null || fail "gcloud is missing; see https://cloud.google.com/sdk/docs/install"
region=${zone%-*} folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
exec 3>&1
# shellcheck source=launch/pod_limits.sh
. "$root/launch/pod_limits.sh"
trap 'end_tree $$; rm -rf "$folder"' EXIT
# shellcheck source=launch/pod_gcloud.sh
. "$root/launch/pod_gcloud.sh"

save() {
  if [ -n "$dry" ]; then return; fi
  mkdir -p "$(dirname "$record")"
  # For this user alone: --env=NAME=VALUE may hold a key.
  (umask 077 && declare -p type zone spot bucket account image slices set_up_with token command run_commit more \
    >"$record.new")
  mv "$record.new" "$record"
}

create() {
  local right now
  right=$(image_of "$type") || fail "give --type=v4-8, or another size of v2, v3, v4, v5litepod, v5p, v6e; not '$type'."
  case ${image:=$right} in
    "$right") ;;
    tpu-ubuntu2204-base | v2-alpha-tpuv[56]*)
      fail "the image $image is not for $type; leave --image out, for $right." ;;
  esac
  if [ ! -f "$record" ]; then now=$(state NONE) || explain "$name was not created"; fi
  [ "${now:-}" = NONE ] || fail "$name is there already; take another name, or: launch/pod.sh delete $name --zone=$zone"
  if [ -n "$bucket" ]; then beside "$bucket"; else say "zone $zone; the bucket's region should be $region, too"; fi
  for now in "accelerator-types $type" "versions $image"; do
    tpus tpu-vm "${now% *}" describe "${now#* }" >/dev/null || {
      if absent; then fail "$zone has no ${now#* }; see gcloud compute tpus tpu-vm ${now% *} list --zone=$zone"; fi
      explain "$name was not created"
    }
  done
  (request)
  save
  trap 'say "stays in the queue; bash launch/pod.sh status, watch or delete $name" >&2; exit 75' INT TERM
  await
  if [ -n "$dry" ]; then
    say "nothing was asked of Google: whether $zone has $type is seen without --dry-run"
    return
  fi
  say "ready; next: bash launch/pod.sh setup $name"
}
remake() { remove; request; await; }

# Sets `commit` to what the workers get. It is what is checked out here, and nothing that is here may be missing there;
# when watch resumes a run it is the run's own commit, whatever is checked out by now.
find_commit() {
  local shallow above file
  above=$(LC_ALL=C git -C "$root" rev-parse --show-prefix 2>"$folder/errors") ||
    grep -q "not a git repository" "$folder/errors" ||
    fail "git cannot read $root: $(tr -s '\n\t' ' ' <"$folder/errors")"
  [ -z "$above" ] && [ ! -s "$folder/errors" ] ||
    fail "$root has no git history (an unpacked archive?); the workers get a commit, so use a clone made by git."
  shallow=$(git -C "$root" rev-parse --is-shallow-repository)
  [ "$shallow" != true ] || fail "this clone is shallow, and the workers need its history; run git fetch --unshallow."
  if [ "$action" != setup ] && [ "$action" != run ] && [ -n "$run_commit" ]; then
    commit=$run_commit
    git -C "$root" cat-file -e "$commit^{commit}" 2>/dev/null ||
      fail "the run of $name has commit ${commit:0:12}, which this clone does not have; fetch it, or start the run anew."
    return
  fi
  # Of new files only those are asked for that a run may need: a corpus or a model may lie elsewhere.
  file=$({
    git -C "$root" status --porcelain --untracked-files=no
    git -C "$root" status --porcelain --untracked-files=all -- gin tasks limba launch convert
  } | sed -n '1s/^...//p')
  [ -z "$file" ] || fail "$file is not committed, and the workers get a commit; commit it (git status shows all such \
files), or name a new file that no run needs in .git/info/exclude."
  commit=$(git -C "$root" rev-parse HEAD)
}

setup() {
  local commit word with=''
  for word in ${variables[@]+"${variables[@]}"}; do
    case $word in
      HF_TOKEN=*) fail "--env would show the token; write HF_TOKEN=… bash launch/pod.sh setup $name." ;;
    esac
  done
  if [ ${#variables[@]} -gt 0 ]; then set_up_with=("${variables[@]}"); fi
  if [ ${#set_up_with[@]} -gt 0 ]; then with=$(printf ' %q' "${set_up_with[@]}"); fi
  find_commit
  find_workers
  # watch sets up a pod that is made again with the same, but for the token, which no file here holds.
  if [ -n "${HF_TOKEN:-}" ]; then token=yes; fi
  if [ -z "$dry" ]; then
    git -C "$root" update-ref "refs/limba-setup/$name" "$commit" # a bundle is of names
    git -C "$root" bundle create -q "$folder/limba.bundle" "refs/limba-setup/$name"
  fi
  on_workers "$SETUP_SECONDS" scp_to "$folder/limba.bundle"
  report >/dev/null || advise "the files were not copied to all workers of $name"
  say "setting up $workers workers with commit ${commit:0:12}"
  on_workers "$SETUP_SECONDS" ssh_to "set -e; read -r token || true
    if [ -n \"\$token\" ]; then mkdir -p ~/.cache/huggingface
    (umask 077; echo \"\$token\" >~/.cache/huggingface/token); fi
    exec 9>~/limba.lock; flock -w 600 9 || { echo 'an earlier set-up is still going on here; wait' >&2; exit 75; }
    if [ -f limba/launch/pod_worker.sh ]; then
    code=0; said=\$(bash limba/launch/pod_worker.sh check) || code=\$?
    if [ \$code -eq 4 ]; then echo \"\$said\"; exit 4; fi; fi
    mkdir -p limba; cd limba; git init -q; git fetch -q ../limba.bundle refs/limba-setup/$name
    git checkout -q --detach $commit
    git diff --quiet HEAD || { echo 'files in ~/limba were changed by hand; undo that' >&2; exit 2; }
    env$with bash launch/setup.sh ${ACCELERATOR:-tpu} </dev/null; echo ready, commit ${commit:0:12}" "${HF_TOKEN:-}"
  report || advise "not all workers of $name are set up"
  if [ ${#variables[@]} -gt 0 ] || [ -n "${HF_TOKEN:-}" ]; then save; fi
}

run() {
  local commit there word model_dir=''
  find_commit
  if [ ${#words[@]} -gt 0 ]; then
    [ -f "$root/${words[0]}" ] || fail "there is no ${words[0]} here; give a gin file or a script of this checkout."
    for word in "${words[@]}"; do
      word=${word#--gin_file=}
      if [ -f "$root/$word" ]; then
        git --literal-pathspecs -C "$root" ls-files --error-unmatch -- "$word" >/dev/null 2>&1 ||
          fail "$word is not in git, so the workers do not get it; add it by git add --force, and commit it."
      fi
    done
    case ${words[0]} in *.sh) ;; *) words=(launch/pretrain.sh "${words[@]}") ;; esac
    command=(env ACCELERATOR="${ACCELERATOR:-tpu}" ${variables[@]+"${variables[@]}"} bash "${words[@]}")
  elif [ ${#variables[@]} -gt 0 ]; then
    fail "--env is given without a gin file; give the whole command again."
  fi
  [ ${#command[@]} -gt 0 ] || fail "give a gin file, such as gin/ro_t5x_base.gin, and MODEL_DIR=gs://BUCKET/FOLDER."
  for word in "${command[@]}"; do case $word in *MODEL_DIR=*) model_dir=${word#*MODEL_DIR=} ;; esac; done
  case $model_dir in
    gs://*) beside "$model_dir" ;;
    '') fail "MODEL_DIR is not given; give MODEL_DIR=gs://BUCKET/FOLDER, since the disks of $name are lost with it." ;;
    *) say "WARNING: $model_dir is on the workers: it must be one shared disk, and may be lost with the pod" >&2 ;;
  esac
  find_workers
  on_workers "$RUN_SECONDS" ssh_to "bash limba/launch/pod_worker.sh check"
  report >"$folder/check" || advise "nothing was started on $name"
  there=$(sed 's/.*: //' "$folder/check" | sort -u)
  case $there in
    *$'\n'*) fail "the workers of $name have different commits; bash launch/pod.sh setup $name" ;;
    "$commit") ;;
    *) [ -n "$dry" ] || fail "the workers of $name have commit ${there:0:12}, and the one here is ${commit:0:12}; \
bash launch/pod.sh setup $name takes it there." ;;
  esac
  run_commit=$commit
  # By this name the commit of the run stays when the branch is rewritten, another one is set up, and git gc runs.
  [ -n "$dry" ] || git -C "$root" update-ref "refs/limba-run/$name" "$commit"
  save
  on_workers "$RUN_SECONDS" ssh_to "bash limba/launch/pod_worker.sh start$(printf ' %q' "${command[@]}")"
  report || {
    skip=$(cd "$folder" && grep -lx 124 ./*.code | tr -dc '0-9\n' | tr '\n' ' ' || true)
    on_workers "$STOP_SECONDS" ssh_to "bash limba/launch/pod_worker.sh stop"
    fail "not all workers of $name started, so the others were stopped; the same command again." 75
  }
}

# The run's own commit and its command, on a pod that was made again or whose run has ended and may resume.
resume() { setup; run; }

status() {
  local now
  now=$(state) || explain "$name: its state cannot be read" 75
  if [ "$now" = NONE ]; then fail "there is no pod $name in $zone; bash launch/pod.sh create makes one."; fi
  [ "$slices" = 1 ] || type="$slices slices of $type"
  say "$now${type:+, $type${spot:+, spot}}, $zone"
  if [ "$now" != ACTIVE ]; then return; fi
  find_workers
  on_workers "$STATUS_SECONDS" ssh_to "bash limba/launch/pod_worker.sh status"
  report || advise "not all of $name is known"
}

logs() {
  local show="bash limba/launch/pod_worker.sh logs $lines"
  find_workers
  if [ -n "$follow" ]; then # for a day at most; a log may be silent
    at_once=$workers NOTICE_SECONDS=86400
    on_workers 86400 print_lines "$show follow"
  else
    on_workers "$STATUS_SECONDS" print_lines "$show"
  fi
  report >/dev/null || advise "not all logs of $name were shown"
}
print_lines() {
  ssh_to "$@" | while IFS= read -r line; do echo "worker $1 | $line" >&3; done
  return "${PIPESTATUS[0]}"
}

stop() {
  find_workers
  on_workers "$STOP_SECONDS" ssh_to "bash limba/launch/pod_worker.sh stop"
  report || advise "not all of $name is known to have stopped"
}

delete() {
  local answer
  if [ -z "$yes$dry" ]; then
    read -r -p "Delete the pod $name in $zone, and all that is on its disks? Write its name: " answer || true
    [ "${answer:-}" = "$name" ] || fail "$name was not deleted; write its name, or give --yes."
  fi
  # A watch makes a pod again by its record, so that is away first, and comes back if this fails or is interrupted.
  if [ -z "$dry" ] && [ -f "$record" ]; then
    trap 'mv "$record.deleted" "$record" || true; end_tree $$; rm -rf "$folder"' EXIT
    mv "$record" "$record.deleted"
  fi
  remove
  trap 'end_tree $$; rm -rf "$folder"' EXIT
  if [ -z "$dry" ]; then
    rm -f "$record" "$record.deleted"
    git -C "$root" update-ref -d "refs/limba-setup/$name" 2>/dev/null || true
    git -C "$root" update-ref -d "refs/limba-run/$name" 2>/dev/null || true
  fi
  say "deleted; what is in buckets stays"
}

# Prints what the pod does: lost, waiting, running, again (all that ran has ended, and may resume), failing STATUS
# (while others run) or ended STATUS; then who is silent, or why gcloud does not tell.
look() {
  local now at
  now=$(state) || { echo "waiting: $(reason "$folder/errors")"; return; }
  case $now in NONE | SUSPEND* | FAILED*) echo lost; return ;; esac # whose workers Google has deleted
  at=$(node 1) || { if absent; then echo waiting; else echo "waiting: $(reason "$folder/errors")"; fi; return; }
  case $now-$at in
    ACTIVE-READY*) each=${at##*[!0-9]} workers=$((${at##*[!0-9]} * slices)) ;;
    *-PREEMPTED* | *-TERMINATED* | *-STOPPED*) echo lost; return ;;
    *) echo waiting; return ;;
  esac
  NOTICE_SECONDS=86400 on_workers "$STATUS_SECONDS" ssh_to "bash limba/launch/pod_worker.sh status"
  for ((at = 0; at < workers; at++)); do echo "$at $(cat "$folder/$at.code") $(answer "$at")"; done | awk '
    $2 == 127 { again = 1; next } # made again, and not set up
    $2 != 0 || NF < 3 { silent = silent (silent ? ", " : "") $1; next }
    $3 == "ended" { if ($4 == 0) done = 1; else if ($4 ~ /^(1|2|3|130)$/) bad = $4; else again = 1 }
    $3 == "running" { running = 1 } $3 == "gone" || $3 == "idle" { again = 1 }
    END {
      says = silent ? ": no answer from worker " silent : ""
      if (bad && running) print "failing", bad; else if (bad) print "ended", bad
      else if (running) print "running" says; else if (silent) print "waiting" says
      else if (again) print "again"; else print done ? "ended 0" : "waiting" }'
}
watch() {
  local left=$tries commit now last='' stays="the pod stays, and costs, until: bash launch/pod.sh delete $name"
  [ ${#command[@]} -gt 0 ] || fail "nothing was started on $name from here; bash launch/pod.sh run $name GIN_FILE …"
  if [ -n "$token" ] && [ -z "${HF_TOKEN+set}" ]; then
    fail "$name was set up with HF_TOKEN, and needs it when it is made again; write HF_TOKEN=… bash launch/pod.sh watch \
$name, or HF_TOKEN= if the run needs none."
  fi
  find_commit # before a pod is made that could not be set up
  while true; do
    now=$(look)
    if [ "$now" != "$last" ]; then say "$(date '+%F %T') $now"; last=$now; fi
    case $now in
      failing*)
        say "a worker ended with ${now#failing }, so the run is stopped on the others"
        bash "${BASH_SOURCE[0]}" stop "$name" || true
        say "$stays"; exit "${now#failing }" ;;
      ended*) say "$stays"; exit "${now#ended }" ;;
      again | lost)
        if [ "$now" = lost ] && [ ! -f "$record" ]; then fail "$name was deleted from here."; fi
        if [ "$left" -eq 0 ]; then
          if [ "$now" = lost ]; then
            case $(state || true) in
              NONE) stays="the pod is not there, and costs nothing" ;;
              ?*) stays="the request stays, until: bash launch/pod.sh delete $name" ;;
            esac
          fi
          fail "the run has not ended, and no try of $tries is left; the same command goes on; $stays." 75
        fi
        left=$((left - 1)) last=''
        say "try $((tries - left)) of $tries"
        if [ "$now" = lost ] && ! bash "${BASH_SOURCE[0]}" remake "$name"; then sleep "$poll"; continue; fi
        bash "${BASH_SOURCE[0]}" resume "$name" || true ;;
    esac
    sleep "$poll"
  done
}

$action
