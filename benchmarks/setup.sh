#!/usr/bin/env bash
# Prints how many seconds launch/setup.sh takes in a copy of this checkout: by pip and by uv, with empty caches (cold)
# and with what the first installation left in them (warm). Needs the package index, git and 12 GB in TMPDIR; 5 minutes.
#
#   bash benchmarks/setup.sh [tpu | cuda | cuda12 | rocm]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git clone --quiet "$root" "$folder/limba"
for installer in pip uv; do
  export UV_CACHE_DIR=$folder/uv PIP_CACHE_DIR=$folder/pip XDG_CACHE_HOME=$folder/cache
  if [ "$installer" = pip ]; then export LIMBA_PIP=yes; else unset LIMBA_PIP; fi
  for state in cold warm; do
    rm -rf "$folder/limba/.venv"
    began=$SECONDS
    bash "$folder/limba/launch/setup.sh" "$@" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
    echo "$installer, $state: $((SECONDS - began)) s"
  done
done
echo "load average: $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) cores"
