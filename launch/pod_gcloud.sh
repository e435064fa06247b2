# What launch/pod.sh asks of gcloud, and what gcloud's messages mean. launch/pod.sh sources it.
# shellcheck shell=bash disable=SC2034,SC2154

# Runs gcloud without questions, its messages in a file. With --dry-run it prints the command, and its answer is DRY.
call() {
  if [ -z "$dry" ]; then gcloud "$@" --quiet 2>"$folder/${errors:-errors}"; return; fi
  printf 'gcloud%s\n' "$(printf ' %q' "$@" --quiet)" >&3
  echo "${DRY:-}"
}
# The same within `limit` seconds.
cloud() {
  local code=0
  if [ -n "$dry" ]; then call "$@"; return; fi
  limited "$limit" 'echo gcloud' call "$@" </dev/null || code=$?
  if [ "$code" = 124 ]; then echo "ERROR: gcloud gave no answer within $limit s" >>"$folder/errors"; fi
  return $code
}
tpus() { cloud compute tpus "$@" --zone="$zone"; }
# The name of a slice: the pod's, or NAME-0, NAME-1 and so on. Workers are counted over all slices.
slice_of() { if [ "$slices" -eq 1 ]; then echo "$name"; else echo "$name-$1"; fi; }
# Flags of ssh and scp, as -oNAME=VALUE: gcloud divides --ssh-flag at spaces, and --scp-flag not.
# https://docs.cloud.google.com/sdk/gcloud/reference/compute/tpus/tpu-vm/ssh, man ssh_config
ssh_flags() {
  printf -- "--$1-flag=-o%s\n" BatchMode=yes ConnectTimeout=20 ServerAliveInterval=15 ServerAliveCountMax=4
}
# Runs a command on a worker, with $3 as its input; copies a file to a worker's home. One worker a call: for several,
# gcloud's scp asks for a key in ssh-agent.
ssh_to() {
  # shellcheck disable=SC2046  # one word a flag
  call compute tpus tpu-vm ssh "$(slice_of $(($1 / each)))" --zone="$zone" --worker=$(($1 % each)) \
    --strict-host-key-checking=no $(ssh_flags ssh) --command="$2" <<<"${3:-}"
}
scp_to() {
  # shellcheck disable=SC2046  # one word a flag
  call compute tpus tpu-vm scp "$2" "$(slice_of $(($1 / each))):${2##*/}" --zone="$zone" --worker=$(($1 % each)) \
    --strict-host-key-checking=no $(ssh_flags scp) </dev/null
}
absent() { grep -qE 'NOT_FOUND|HTTPError 404|not found' "$folder/errors"; }

# Ends with one sentence for gcloud's message; $1 says what was tried, $2 is the status.
explain() {
  local text why
  text=$(reason "$folder/errors")
  case $text in
    *"gave no answer"*) fail "$1, as far as is known: $text; bash launch/pod.sh status $name --zone=$zone" 75 ;;
    *'auth tokens'* | *'gcloud auth login'* | *UNAUTHENTICATED*) why="log in again: gcloud auth login, then the same
      command again" ;;
    *[Qq]uota* | *RESOURCE_EXHAUSTED*) why="the quota of $type in $zone is too small; take a zone and kind (--spot
      or not) of your grant, and delete forgotten pods: gcloud compute tpus queued-resources list --zone=$zone" ;;
    *"more capacity"* | *"ot enough resources"*) why="no $type is free in $zone; try later, or take another zone" ;;
    *SERVICE_DISABLED* | *"has not been used"*) why="switch the API on: gcloud services enable tpu.googleapis.com" ;;
    *actAs* | *ervice\ account*) why="the service account ${account:-of the pod} is not there or not yours to use;
      ask the project's owner for roles/iam.serviceAccountUser" ;;
    *PERMISSION_DENIED* | *ermission* | *'HTTPError 403'*) why="your account may not do this, or not in $zone;
      see gcloud config list, and ask the project's owner for roles/tpu.admin and roles/storage.admin" ;;
    *ALREADY_EXISTS* | *'already exists'*) why="a pod of this name is there; take another name, or delete it" ;;
    *) why="gcloud's message follows" ;;
  esac
  fail "$1: $(tr -s ' \n' ' ' <<<"$why")${text:+($text)}" "${2:-2}"
}

# Prints the state of the request for the pod, NONE if there is none; fails if gcloud cannot tell.
state() {
  DRY=${1:-ACTIVE} tpus queued-resources describe "$name" --format='value(state.state)' || { absent && echo NONE; }
}
# Prints state and number of workers of a slice: the first that is not ready, or else the last.
node() {
  local slice at
  for ((slice = 0; slice < slices; slice++)); do
    at=$(DRY="READY $1" tpus tpu-vm describe "$(slice_of "$slice")" --format='value(state,networkEndpoints.len())') ||
      return
    case $at in READY*) ;; *) break ;; esac
  done
  echo "$at"
}

# Prints zone and bucket side by side; ends if the bucket of path $1 cannot be read.
beside() {
  local at there
  at=gs://$(cut -d/ -f3 <<<"$1/")
  there=$(DRY=$region cloud storage buckets describe "$at" --format='value(location)') || {
    if absent; then fail "there is no bucket $at; make it: gcloud storage buckets create $at --location=$region"; fi
    explain "the bucket $at cannot be read"
  }
  there=$(tr '[:upper:]' '[:lower:]' <<<"$there")
  say "zone $zone (region $region) | $at (region $there)"
  case $there/$zone in # a multi-region is near all of its regions, as in limba/tools/preflight/checks/storage.py
    "$region"/* | us/us-* | us/northamerica-* | eu/europe-* | asia/asia-*) return ;;
  esac
  say "WARNING: $at is in another region: slow, and each GB between them is billed; \
make one here: gcloud storage buckets create gs://NEW --location=$region" >&2
}

# The image of each generation: https://docs.cloud.google.com/tpu/docs/runtimes
# A size is in cores (of 8 a host) up to v4 and for v5p, in chips for the others; which sizes a zone has, gcloud says.
image_of() {
  local size=${1##*-}
  case $1 in
    v[234]-[1-9]* | v5p-[1-9]*)
      [[ $size =~ ^[0-9]+$ ]] || return 1
      if [ $((size % 8)) -ne 0 ]; then return 1; fi ;;
    v5litepod-* | v6e-*) case $size in 1 | 4 | 8 | 16 | 32 | 64 | 128 | 256) ;; *) return 1 ;; esac ;;
  esac
  case $1 in
    v[234]-[1-9]*) echo tpu-ubuntu2204-base ;;
    v5litepod-[1-9]*) echo v2-alpha-tpuv5-lite ;;
    v5p-[1-9]*) echo v2-alpha-tpuv5 ;;
    v6e-[1-9]*) echo v2-alpha-tpuv6e ;;
    *) return 1 ;;
  esac
}

request() {
  local nodes=(--node-id="$name")
  if [ "$slices" -gt 1 ]; then nodes=(--node-count="$slices" --node-prefix="$name"); fi
  limit=$CHANGE_SECONDS tpus queued-resources create "$name" "${nodes[@]}" --accelerator-type="$type" \
    --runtime-version="$image" ${spot:+--spot} ${account:+--service-account="$account"} \
    ${more[@]+"${more[@]}"} >/dev/null || explain "$name was not created"
}
remove() {
  limit=$CHANGE_SECONDS tpus queued-resources delete "$name" --force >/dev/null || absent ||
    explain "$name was not deleted"
}

# Sets `workers`; ends if the pod is not ready. With --dry-run by the type: chips or cores, and how many a worker has.
find_workers() {
  local at size=${type##*-} per=8
  case $type in v5lite* | v6e*) if [ "$size" -gt 8 ]; then per=4; fi ;; esac
  at=$(node $(((${size:-8} + per - 1) / per))) || {
    if absent; then fail "$name has no workers; bash launch/pod.sh status $name says why."; fi
    explain "$name does not answer" 75
  }
  case $at in READY*) ;; *) fail "$name is ${at%%[!A-Z]*}; wait, or bash launch/pod.sh watch $name." 75 ;; esac
  each=${at##*[!0-9]} workers=$((${at##*[!0-9]} * slices))
}

# Waits until the pod is ready; ends, with the request deleted, if it never will be. The record of a pod that is made
# again stays: the next try reads from it what to ask for.
await() {
  local now='' last='' reason
  while [ "$now" != ACTIVE ]; do
    now=$(state) || explain "$name: its state cannot be read, and it stays in the queue" 75
    if [ "$now" != "$last" ] && [ -z "$dry" ]; then say "$now"; fi
    last=$now
    case $now in
      FAILED | SUSPENDED | NONE)
        reason=$(tpus queued-resources describe "$name" --format='value(state.failedData.error.message)' || true)
        remove
        if [ "$action" != remake ]; then rm -f "$record"; fi
        echo "$reason" >"$folder/errors"
        explain "$name was not created, and its request was deleted" ;;
      ACTIVE) ;;
      *) sleep "$poll" ;;
    esac
  done
}
