#!/usr/bin/env bash
# A TPU pod from a laptop, by gcloud: https://cloud.google.com/sdk/docs/install, `gcloud init`, nothing else.
#
#   bash launch/pod.sh create NAME --type=v4-32 --zone=ZONE [--spot] [--bucket=gs://BUCKET] [--service-account=EMAIL]
#                             [--slices=N] [--image=IMAGE] [-- MORE FLAGS OF gcloud's queued-resources create]
#   bash launch/pod.sh setup  NAME                             this commit and launch/setup.sh tpu on all workers
#   bash launch/pod.sh run    NAME GIN_FILE [NAME=VALUE ...] [--env=NAME=VALUE ...]     on all workers, detached
#   bash launch/pod.sh status NAME                             the pod, and what each worker does
#   bash launch/pod.sh logs   NAME [--lines=20] [--follow]     of all workers
#   bash launch/pod.sh stop   NAME                             the run saves and ends; the pod stays, and costs
#   bash launch/pod.sh watch  NAME [--tries=20]                makes a preempted pod again, and resumes the run
#   bash launch/pod.sh delete NAME [--yes]
#
# --dry-run prints each gcloud command, and runs none. --zone=ZONE after NAME reaches a pod that another machine made.
# GIN_FILE may be a script, such as launch/ro_base.sh. setup takes HF_TOKEN, for private corpora, to the workers.
# Exit statuses: 0; 2, change what the sentence names; 75, the same command again; of watch also the run's. docs/pods.md
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fail() { echo "launch/pod.sh: $1" >&2; exit "${2:-2}"; }
say() { echo "$name: $1"; }

case ${1:---help} in -h | --help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;; esac
action=$1 name=${2:-} dry='' type='' zone='' spot='' bucket='' account='' image='' yes='' lines=20 follow='' tries=20
case $action in
  create | setup | run | status | logs | stop | watch | delete | remake) ;;
  *) fail "$action is not known; see --help." ;;
esac
[[ $name =~ ^[a-z][a-z0-9-]*$ ]] || fail "give a name after $action: small letters, digits and -, such as my-pod."
shift 2
more=() words=() variables=() command=() poll=${POLL_SECONDS:-20} workers=1 slices=1 each=1
record=${LIMBA_PODS:-${XDG_CONFIG_HOME:-$HOME/.config}/limba/pods}/$name
# shellcheck source=/dev/null
if [ "$action" != create ] && [ -f "$record" ]; then . "$record"; fi
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) dry=yes ;; --spot) spot=yes ;; --yes) yes=yes ;; --follow) follow=follow ;;
    --type=*) type=${1#*=} ;; --zone=*) zone=${1#*=} ;; --bucket=*) bucket=${1#*=} ;; --image=*) image=${1#*=} ;;
    --service-account=*) account=${1#*=} ;; --lines=*) lines=${1#*=} ;; --tries=*) tries=${1#*=} ;;
    --slices=*) slices=${1#*=} ;;
    --env=[A-Z]*=*) variables+=("${1#*=}") ;;
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
[ -n "$dry" ] || command -v gcloud >/dev/null || fail "gcloud is missing; see https://cloud.google.com/sdk/docs/install"
region=${zone%-*} folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
exec 3>&1
# shellcheck source=launch/pod_gcloud.sh
. "$root/launch/pod_gcloud.sh"

# Prints a line for each worker, $1 before what it printed last; fails if one failed.
report() {
  local worker failed=0
  for ((worker = 0; worker < workers; worker++)); do
    if [ "$(cat "$folder/$worker.code")" = 0 ]; then
      say "worker $worker: $(tail -n 1 "$folder/$worker")"
    else
      failed=1
      say "worker $worker FAILED: $(cat "$folder/$worker" "$folder/$worker.errors" | tail -n 2 | tr '\n' ' ')" >&2
    fi
  done
  return $failed
}

save() {
  if [ -n "$dry" ]; then return; fi
  mkdir -p "$(dirname "$record")"
  # For this user alone: --env=NAME=VALUE may hold a key.
  (umask 077 && declare -p type zone spot bucket account image slices command more >"$record.new")
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
  say "ready; next: bash launch/pod.sh setup $name"
}
remake() { remove; request; await; }

setup() {
  local commit slice
  git -C "$root" diff --quiet HEAD || fail "some changes are not committed; commit them: the workers get a commit."
  commit=$(git -C "$root" rev-parse HEAD)
  find_workers
  git -C "$root" bundle create -q "$folder/limba.bundle" HEAD
  for ((slice = 0; slice < slices; slice++)); do
    tpus tpu-vm scp "$folder/limba.bundle" "$(slice_of "$slice"):limba.bundle" --worker=all \
      --strict-host-key-checking=no >/dev/null || explain "the files were not copied to $(slice_of "$slice")" 75
  done
  say "setting up $workers workers with commit ${commit:0:12}"
  on_workers "set -e; read -r token || true; if [ -n \"\$token\" ]; then mkdir -p ~/.cache/huggingface
    (umask 077; echo \"\$token\" >~/.cache/huggingface/token); fi
    mkdir -p limba; cd limba; git init -q; git fetch -q ../limba.bundle HEAD; git checkout -q --detach $commit
    git diff --quiet HEAD || { echo 'files in ~/limba were changed by hand; undo that' >&2; exit 2; }
    bash launch/setup.sh ${ACCELERATOR:-tpu} </dev/null; echo ready, commit ${commit:0:12}" "${HF_TOKEN:-}"
  report || fail "not all workers of $name are set up; see above, then the same command again." 75
}

run() {
  local word model_dir=''
  if [ ${#words[@]} -gt 0 ]; then
    [ -f "$root/${words[0]}" ] || fail "there is no ${words[0]} here; give a gin file or a script of this checkout."
    case ${words[0]} in *.sh) ;; *) words=(launch/pretrain.sh "${words[@]}") ;; esac
    command=(env ACCELERATOR="${ACCELERATOR:-tpu}" ${variables[@]+"${variables[@]}"} bash "${words[@]}")
  fi
  [ ${#command[@]} -gt 0 ] || fail "give a gin file, such as gin/ro_t5x_base.gin, and MODEL_DIR=gs://BUCKET/FOLDER."
  for word in "${command[@]}"; do case $word in *MODEL_DIR=*) model_dir=${word#*MODEL_DIR=} ;; esac; done
  case $model_dir in
    gs://*) beside "$model_dir" ;;
    '') fail "MODEL_DIR is not given; give MODEL_DIR=gs://BUCKET/FOLDER, since the disks of $name are lost with it." ;;
    *) say "WARNING: $model_dir is on the workers: it must be one shared disk, and may be lost with the pod" >&2 ;;
  esac
  find_workers
  on_workers "bash limba/launch/pod_worker.sh check"
  report >"$folder/check" || fail "nothing was started on $name; if it is not set up: bash launch/pod.sh setup $name"
  [ "$(sed 's/.*: //' "$folder/check" | sort -u | wc -l)" -eq 1 ] ||
    fail "the workers of $name have different commits; bash launch/pod.sh setup $name"
  save
  on_workers "bash limba/launch/pod_worker.sh start$(printf ' %q' "${command[@]}")"
  report || {
    on_workers "bash limba/launch/pod_worker.sh stop"
    fail "not all workers of $name started, so the others were stopped; the same command again." 75
  }
}

status() {
  local now
  now=$(state) || explain "$name: its state cannot be read" 75
  if [ "$now" = NONE ]; then fail "there is no pod $name in $zone; bash launch/pod.sh create makes one."; fi
  [ "$slices" = 1 ] || type="$slices slices of $type"
  say "$now${type:+, $type${spot:+, spot}}, $zone"
  if [ "$now" != ACTIVE ]; then return; fi
  find_workers
  on_workers "bash limba/launch/pod_worker.sh status"
  report || fail "not all workers of $name answer; if they are not set up: bash launch/pod.sh setup $name" 75
}

logs() {
  local worker
  find_workers
  for ((worker = 0; worker < workers; worker++)); do
    ssh_to "$worker" "bash limba/launch/pod_worker.sh logs $lines $follow" </dev/null |
      while IFS= read -r line; do echo "worker $worker | $line"; done &
    if [ -z "$follow" ]; then wait; fi
  done
  wait
}

stop() {
  find_workers
  on_workers "bash limba/launch/pod_worker.sh stop"
  report || fail "not all workers of $name answered; the same command again." 75
}

delete() {
  local answer
  if [ -z "$yes$dry" ]; then
    read -r -p "Delete the pod $name in $zone, and all that is on its disks? Write its name: " answer || true
    [ "${answer:-}" = "$name" ] || fail "$name was not deleted; write its name, or give --yes."
  fi
  remove
  if [ -z "$dry" ]; then rm -f "$record"; fi
  say "deleted; what is in buckets stays"
}

# Prints what the pod does: lost, waiting, running, again (all that ran has ended, and may resume) or ended STATUS.
look() {
  local now at
  now=$(state) || { echo waiting; return; }
  at=$(node 1) || at=NONE
  case $now-$at in
    ACTIVE-READY*) each=${at##*[!0-9]} workers=$((${at##*[!0-9]} * slices)) ;;
    NONE* | SUSPEND* | FAILED* | *-PREEMPTED* | *-TERMINATED* | *-STOPPED*) echo lost; return ;;
    *) echo waiting; return ;;
  esac
  on_workers "bash limba/launch/pod_worker.sh status"
  for ((at = 0; at < workers; at++)); do cat "$folder/$at.code" "$folder/$at" | tr '\n' ' '; echo; done | awk '
    $1 != 0 || /^0 *$/ { if ($1 == 127) again = 1; else silent = 1 } # 127: made again, and not set up
    $2 == "ended" { if ($3 == 0) done = 1; else if ($3 ~ /^(1|2|3|130)$/) bad = $3; else again = 1 }
    $2 == "running" { running = 1 } $2 == "gone" || $2 == "idle" { again = 1 }
    END { if (bad) print "ended", bad; else if (running) print "running"; else if (silent) print "waiting"
      else if (again) print "again"; else print done ? "ended 0" : "waiting" }'
}
watch() {
  local left=$tries now last=''
  [ ${#command[@]} -gt 0 ] || fail "nothing was started on $name from here; bash launch/pod.sh run $name GIN_FILE …"
  while true; do
    now=$(look)
    if [ "$now" != "$last" ]; then say "$(date '+%F %T') $now"; last=$now; fi
    case $now in
      ended*) exit "${now#ended }" ;;
      again | lost)
        [ "$left" -gt 0 ] || fail "the run has not ended, and no try of $tries is left; the same command goes on." 75
        left=$((left - 1)) last=''
        say "try $((tries - left)) of $tries"
        if [ "$now" = lost ] && ! bash "${BASH_SOURCE[0]}" remake "$name"; then sleep "$poll"; continue; fi
        if bash "${BASH_SOURCE[0]}" setup "$name"; then bash "${BASH_SOURCE[0]}" run "$name" || true; fi ;;
    esac
    sleep "$poll"
  done
}

$action
