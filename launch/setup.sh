#!/usr/bin/env bash
# Makes .venv at the repository's root: the packages of requirements/lock-*.txt, each checked by its hash, and the
# command .venv/bin/limba. Changes nothing else on the machine.
#
#   bash launch/setup.sh               what training on a CPU needs
#   bash launch/setup.sh tpu           adds the wheels for Cloud TPUs
#   bash launch/setup.sh cuda          adds the wheels for NVIDIA GPUs (CUDA 13; cuda12 for older drivers)
#   bash launch/setup.sh rocm          adds the wheels for AMD GPUs (ROCm 7, which must be installed)
#   bash launch/setup.sh tests         adds what tests/run.sh needs
#
# The first time it takes a minute or two and 4 GB; when nothing has changed, no time and no network. Run it again after
# an interruption. PYTHON=/path/to/python3.12 chooses the interpreter.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
stamps=$venv/.limba

fail() { echo "launch/setup.sh: $1" >&2; exit 2; }
say() { echo "setup: $1"; }

# Prints X.Y of an interpreter that runs, has venv and is of a supported version; fails for any other.
version_of() {
  "$1" -c 'import sys, venv, ensurepip
v = sys.version_info[:2]
sys.exit(1) if not (3, 11) <= v < (3, 14) else print("%d.%d" % v)' 2>/dev/null
}

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    version_of "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13 with venv; name one that is."
    echo "$PYTHON"
    return
  fi
  for candidate in python3.11 python3.12 python3.13 python3 python; do
    if version_of "$candidate" >/dev/null; then echo "$candidate"; return; fi
  done
  fail "no Python 3.11, 3.12 or 3.13 with venv was found; install one (apt install python3.12-venv), or set PYTHON=/path/to/python."
}

lock_of() { echo "$root/requirements/lock-${1/%cuda/cuda13}.txt"; }

# What a part was installed from: the interpreter and the files that decide it, for Limba itself also its folder.
fingerprint() {
  local files=("$root/requirements/lock-build.txt" "$root/requirements/lock-cpu.txt") folder=
  case $1 in
    core) ;;
    tests) files+=("$root/requirements-test.txt") ;;
    limba) files=("$root/pyproject.toml" "$root/setup.py") folder=$root ;;
    *) files+=("$(lock_of "$1")") ;;
  esac
  "$venv/bin/python" -c 'import hashlib, sys
print(sys.version.split()[0], *(hashlib.sha256(open(name, "rb").read()).hexdigest() for name in sys.argv[1:]))' \
    "${files[@]}" 2>/dev/null && echo "$folder"
}

is_right() {
  local now
  [ -f "$stamps/$1" ] && now=$(fingerprint "$1") && [ "$now" = "$(cat "$stamps/$1")" ]
}

install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@" ||
    fail "pip could not install the packages (its message is above); run this again."
}

# Installs what a lock names. The few packages without a wheel are built by what lock-build.txt names, not by the newest.
install_lock() { install --require-hashes --no-build-isolation --requirement "$1"; }

make_core() {
  local python
  python=$(find_python)
  if [ -e "$venv" ] && [ ! -d "$stamps" ]; then
    fail "$venv exists and launch/setup.sh did not make it; move it away."
  fi
  rm -rf "$venv"
  mkdir -p "$stamps" # first, so that an unfinished .venv is recognized
  say "making .venv with Python $(version_of "$python")"
  "$python" -m venv "$venv" || fail "$python cannot make a virtual environment; install its venv package, or set PYTHON to another."
  say "installing the pinned packages, 4 GB, a minute or two"
  install_lock "$root/requirements/lock-build.txt"
  install_lock "$root/requirements/lock-cpu.txt"
  fingerprint core >"$stamps/core"
}

# The checkout itself, editable: .venv/bin/limba and `import limba` work from any folder.
add_limba() {
  rm -f "$stamps/limba"
  say "installing the command limba"
  install --no-deps --no-build-isolation --no-index --editable "$root"
  fingerprint limba >"$stamps/limba"
}

add_part() {
  rm -f "$stamps/$1"
  say "adding the packages for: $1"
  case $1 in
    tests) install --constraint "$root/requirements.txt" --requirement "$root/requirements-test.txt" ;;
    *) install_lock "$(lock_of "$1")" ;;
  esac
  fingerprint "$1" >"$stamps/$1"
}

parts=()
for argument in "$@"; do
  case $argument in
    tpu | cuda | cuda12 | cuda13 | rocm | tests) parts+=("$argument") ;;
    cpu) ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "the argument $argument is not known; give tpu, cuda, cuda12, rocm or tests, or none for a CPU." ;;
  esac
done

# Whether PYTHON names another version than .venv has.
wants_another_python() {
  [ -n "${PYTHON:-}" ] && [ "$(version_of "$PYTHON" || true)" != "$(version_of "$venv/bin/python" || true)" ]
}

all_right() {
  local part
  if wants_another_python; then return 1; fi
  for part in core limba ${parts[@]+"${parts[@]}"}; do is_right "$part" || return 1; done
}

if all_right; then exit 0; fi # without the lock
exec 9>"$root/.venv.lock"
if command -v flock >/dev/null && ! flock -n 9; then
  say "waiting for another launch/setup.sh to end"
  flock 9
fi
if wants_another_python || ! is_right core; then make_core; fi
is_right limba || add_limba
for part in ${parts[@]+"${parts[@]}"}; do
  is_right "$part" || add_part "$part"
done
say "done; the command is $venv/bin/limba"
