#!/usr/bin/env bash
# Makes .venv at the repository's root: the packages of requirements/lock-*.txt, each checked by its hash, and the
# command .venv/bin/limba.
#
#   bash launch/setup.sh               what training on a CPU needs
#   bash launch/setup.sh tpu           adds the wheels for Cloud TPUs
#   bash launch/setup.sh cuda          adds the wheels for NVIDIA GPUs (CUDA 13; cuda12 for older cards and drivers)
#   bash launch/setup.sh rocm          adds the wheels for AMD GPUs (ROCm 7, which must be installed; Python 3.11)
#   bash launch/setup.sh t5            adds the package t5, which tasks written for T5X import, without what it asks for:
#                                      that would overwrite seqio
#   bash launch/setup.sh results       adds what fine-tuning in limba results needs: torch, transformers, accelerate
#   bash launch/setup.sh tests         adds what tests/run.sh needs, t5 and results too, and on x86-64 a TPU's compiler
#   bash launch/setup.sh --remove      removes what it made: .venv, and ~/.cache/limba with uv, uv's downloads, among
#                                      them a Python that other checkouts' .venv may need, and compiled programs; not the
#                                      runs, nor a cache of your own uv
#
#   --wheelhouse=DIR   for machines without internet: puts all files into DIR, where they are not there yet, and
#                      installs from DIR alone; run it once where there is internet, with the same arguments
#   LEAN=1             leaves TensorFlow, seqio and TensorFlow Datasets out, which tasks/ and texts in files or on the hub
#                      do not need: 1.2 GB in place of 3.6; LEAN=0 adds them again, else an environment stays as it is
#   VENV=DIR           makes the environment in DIR, and .venv a link to it (54,000 files are slow on a shared disk)
#   PYTHON=PROGRAM     the interpreter, instead of the first of python3.12, python3.11 and python3.13 (and, with LEAN=1,
#                      python3.14) that has venv; tests take python3.11 first; an environment that is made again keeps
#                      its version
#
# uv installs; where it cannot be had, pip does. Where there is no such Python, uv downloads one into its own folder,
# from UV_PYTHON_INSTALL_MIRROR if that is set. The first time it takes a minute or two and 4 GB; when nothing has
# changed, no time and no network. Run it again after an interruption. It ends with 0; with 2 where the sentence says
# what to change; with 75 where the network or the package index failed, and the same command may help.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
wheelhouse='' parts=() remove='' pythons=(3.12 3.11 3.13) # 3.12 and 3.13 have a newer jax; 3.13 is the least tried

fail() { echo "launch/setup.sh: $1" >&2; exit "${2:-2}"; }
say() { echo "setup: $1"; }

for argument in "$@"; do
  case $argument in
    tpu | cuda | cuda12 | cuda13 | t5 | results) parts+=("$argument") ;;
    tests)
      parts+=(t5 results)
      # tests/run.sh tests 3.12 in an environment of its own.
      if [ ${#pythons[@]} -gt 1 ]; then pythons=(3.11 3.12 3.13); fi
      # The compiler of TPUs, which needs none: tests compare what it says. It has no wheel for another machine.
      if [ "$(uname -m)" = x86_64 ]; then parts+=(tpu); fi
      parts+=(tests) ;;
    rocm) parts+=(rocm) pythons=(3.11) ;; # jax has no wheels for ROCm on 3.12 at the pinned version
    cpu) ;;
    --remove) remove=yes ;;
    --wheelhouse=?*) mkdir -p "${argument#*=}" && wheelhouse=$(cd "${argument#*=}" && pwd) ;;
    -h | --help) sed -n '2,30s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) fail "the argument $argument is not known; give tpu, cuda, cuda12, rocm, t5, results, tests, --wheelhouse=DIR or --remove, or none." ;;
  esac
done

versions='3.11, 3.12 or 3.13'
if [ ${#pythons[@]} -eq 1 ]; then versions=${pythons[0]}; fi

venv=$root/.venv
if [ -L "$venv" ]; then venv=$(readlink -m "$venv"); fi # -m: its folder may be gone, as on a scratch disk
if [ -n "${VENV:-}" ]; then
  case $VENV in /*) ;; *) VENV=$PWD/$VENV ;; esac
  if [ -e "$root/.venv" ] && [ ! -L "$root/.venv" ] && [ ! "$VENV" -ef "$root/.venv" ]; then
    fail "VENV is given, but $root/.venv is a folder; delete it, so that it can become a link to $VENV."
  fi
  mkdir -p "$(dirname "$VENV")"
  if [ ! "$VENV" -ef "$root/.venv" ]; then venv=$VENV; fi
fi
stamps=$venv/.limba
former=$venv.limba-former # the environment that worked, until another one stands in its place
cache=${XDG_CACHE_HOME:-$HOME/.cache}/limba
lean=${LEAN:-0} base=$root/requirements/lock-cpu.txt
if [ -z "${LEAN:-}" ] && { [ -f "$stamps/lean" ] || [ -f "$former/.limba/lean" ]; }; then lean=1; fi
if [ "$lean" != 0 ]; then
  if [[ " ${parts[*]-} " = *" t5 "* ]]; then
    fail "t5 and the tests need seqio and TensorFlow, which this lean environment leaves out; run it with LEAN=0."
  fi
  base=$root/requirements/lock-lean.txt
  if [ ${#pythons[@]} -gt 1 ]; then pythons+=(3.14) versions='3.11, 3.12, 3.13 or 3.14'; fi # TensorFlow has no wheel
fi

# Prints the number and the command of a program that runs in this environment; fails where there is none. It is seen by
# its command, as of a supervisor that is about to start it again, or by the libraries that it has loaded; not on other
# machines, which may share the folder.
find_user() {
  local place commands=() libraries=() process words
  for place in "$venv" "$(readlink -m "$venv")" "$root/.venv"; do
    commands+=("$place/bin/python" "$place/bin/python3" "$place/bin/limba")
    libraries+=("$place/lib/")
  done
  # The patterns come through a pipe, since grep would find its own command if they were among its arguments.
  # shellcheck disable=SC2062
  for process in $({
    printf '%s\n' "${commands[@]}" | grep -lzxF --file=- /proc/[0-9]*/cmdline
    printf '%s\n' "${libraries[@]}" | grep -lF --file=- /proc/[0-9]*/maps
  } 2>/dev/null | sed -n 's|^/proc/\([0-9]*\)/.*|\1|p'); do
    words=$(tr '\0' ' ' 2>/dev/null <"/proc/$process/cmdline") || continue # it has just ended
    if [ -n "$words" ]; then
      echo "$process (${words:0:100}…)"
      return
    fi
  done
  return 1
}

# Ends where a program uses this environment: a run imports some packages late, and they must not change meanwhile.
refuse_if_used() {
  local user instead=''
  find_user >/dev/null || return 0
  sleep 1 # a program that ends at once is no reason, such as the Python by which another script looks at its versions
  user=$(find_user) || return 0
  if [ -z "$remove" ]; then instead=", or use the environment as it is by SETUP=no, where a script takes that"; fi
  fail "process $user runs in $venv, which would be made again or removed; wait for its end$instead."
}

# Whether this script did not make what stands there.
is_foreign() { [ -e "$1" ] && [ ! -d "$1/.limba" ] && [ -n "$(ls -A "$1")" ]; }

# Removes an environment that this script made, and can be interrupted: its stamps go first, since what is half removed
# must not count as right, and their folder goes last, so that the rest is still known to be ours.
discard() {
  local path
  rm -f "$1/.limba/"*
  for path in "$1/"* "$1/".[!.]*; do
    if [ "$path" != "$1/.limba" ]; then rm -rf "$path"; fi
  done
  rm -rf "$1"
}

# Puts the environment that worked back, where another one was begun in its place and not finished.
bring_back() {
  if [ ! -f "$former/.limba/core" ] || is_foreign "$venv"; then return; fi
  discard "$venv"
  mv "$former" "$venv"
}
forget_former() {
  if [ -e "$former" ] && ! is_foreign "$former"; then discard "$former"; fi
}

# Removes what this script made and what the commands keep beside it; a folder that it did not make is left.
remove_all() {
  local path
  if is_foreign "$venv"; then
    fail "$venv exists and launch/setup.sh did not make it, so it is not removed; remove it yourself."
  fi
  refuse_if_used
  for path in "$venv" "$former"; do
    if [ -e "$path" ] && ! is_foreign "$path"; then
      discard "$path"
      say "removed $path"
    fi
  done
  for path in "$root/.venv" "$cache" "$root/.venv.lock"; do
    if [ -e "$path" ] || [ -L "$path" ]; then
      rm -rf "$path"
      say "removed $path"
    fi
  done
  path=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/uv}
  if [ -d "$path" ]; then
    say "$path stays, since your uv keeps there what other projects use too; uv cache clean empties it"
  fi
}

# Prints X.Y of an interpreter that runs, has venv and is of a version among `pythons`; fails for any other.
version_of() {
  "$1" -c 'import sys, venv, ensurepip
version = "%d.%d" % sys.version_info[:2]
sys.exit(1) if version not in sys.argv[1:] else print(version)' "${pythons[@]}" 2>/dev/null
}

# The sentence for a system without a Python that fits and without uv. tests/launch/pythons.tsv has what systems have.
advice() {
  local system command
  system=${OS_RELEASE:-/etc/os-release}
  system=$(sed -nE 's/^(ID|ID_LIKE|VERSION_ID)="?([^"]*)"?$/\2/p' "$system" 2>/dev/null | sort | xargs)
  case " $system" in
    *\ 12*\ debian*) command="sudo apt-get install python3.11-venv" ;;
    *\ 13*\ debian*) command="sudo apt-get install python3.13-venv" ;;
    *\ 24.04*\ ubuntu*) command="sudo apt-get install python3.12-venv" ;;
    *debian*) command="sudo apt-get install python3-pip" ;; # which brings uv, and uv a Python
    *\ [89]*rhel*) command="sudo dnf install python3.12" ;;
    *) command="your system's installer for Python ${pythons[0]} with venv" ;;
  esac
  echo "no Python ${versions} with venv was found, and no uv to get one; run $command, or install uv" \
    "(https://docs.astral.sh/uv), and then this again; or set PYTHON=/path/to/python."
}

# Prints the path of a uv that runs: one that is there, or the one of requirements/lock-uv.txt, by any Python's pip.
find_uv() {
  local python folder=$cache/uv lock=$root/requirements/lock-uv.txt
  if uv --version >/dev/null 2>&1; then command -v uv; return; fi
  for python in "$venv/bin/python" python3 python; do
    if "$folder/bin/uv" --version >/dev/null 2>&1 && cmp -s "$lock" "$folder/lock"; then break; fi
    rm -rf "$folder"
    download "$python" "$lock" >/dev/null 2>&1 || continue
    "$python" -m pip install --quiet --target "$folder" "${from_wheelhouse[@]}" --require-hashes --requirement "$lock" \
      >/dev/null 2>&1 && cp "$lock" "$folder/lock"
  done
  "$folder/bin/uv" --version >/dev/null 2>&1 && echo "$folder/bin/uv"
}

# Prints the path of a Python, got by uv where the machine has none that fits.
find_python() {
  local candidate uv
  if [ -n "${PYTHON:-}" ]; then
    version_of "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON is not a Python ${versions} with venv; name one that is."
    echo "$PYTHON"
    return
  fi
  for candidate in "${pythons[@]/#/python}" python3 python; do
    if version_of "$candidate" >/dev/null; then echo "$candidate"; return; fi
  done
  uv=$(find_uv) || fail "$(advice)"
  if [ -n "$wheelhouse" ]; then export UV_PYTHON_INSTALL_DIR=$wheelhouse/python; fi # with the files, for later machines
  candidate=$("$uv" python find --managed-python --no-python-downloads "${pythons[0]}" 2>/dev/null) || {
    say "no Python ${versions} with venv is here; uv downloads Python ${pythons[0]}" >&2
    "$uv" python install --managed-python --no-bin "${pythons[0]}" >&2 ||
      fail "uv could not download a Python (its message is above); set UV_PYTHON_INSTALL_MIRROR, or PYTHON=PROGRAM."
    candidate=$("$uv" python find --managed-python --no-python-downloads "${pythons[0]}")
  }
  version_of "$candidate" >/dev/null || fail "$candidate, which uv downloaded, does not run; set PYTHON=PROGRAM."
  echo "$candidate"
}

# Prints the lock of a chip; in a lean environment a copy of it that names lock-lean.txt as its base.
lock_of() {
  local lock=$root/requirements/lock-${1/%cuda/cuda13}.txt
  if [ "$lean" = 0 ]; then echo "$lock"; return; fi
  sed "s|^-r .*|-r $base|" "$lock" >"$stamps/$(basename "$lock")" && echo "$stamps/$(basename "$lock")"
}

# Prints the file that pins the packages of a part without hashes.
pinned_for() {
  if [ "$1" = tests ]; then echo "$root/requirements-test.txt"; else echo "$root/requirements-$1.txt"; fi
}

# What a part was installed from: the interpreter and the files that decide it, for Limba itself also its folder.
fingerprint() {
  local files=("$root/requirements/lock-build.txt" "$base") folder=
  case $1 in
    core) ;;
    results | tests) files+=("$(pinned_for "$1")") ;;
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

from_wheelhouse=(--disable-pip-version-check --no-input)
if [ -n "$wheelhouse" ]; then from_wheelhouse+=(--no-index --find-links "$wheelhouse"); fi

install() {
  if "$venv/bin/python" -m pip install --quiet "${from_wheelhouse[@]}" "$@"; then return; fi
  if [ -z "$wheelhouse" ]; then fail "pip could not install the packages (its message is above); run this again." 75; fi
  fail "pip could not install the packages from $wheelhouse (its message is above); delete $wheelhouse/*.done, and fill \
it again by the same command on a machine that has internet."
}

# Puts what a file of requirements names into the wheelhouse, unless a file there says that this was done.
download() {
  local mark
  if [ -z "$wheelhouse" ]; then return; fi
  mark=$wheelhouse/$("$1" -c 'import hashlib, platform, sys
digest = hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest()
print("%d.%d-%s-%s.done" % (*sys.version_info[:2], platform.machine(), digest))' "$2")
  if [ -f "$mark" ]; then return; fi
  say "downloading what $(basename "$2") names to $wheelhouse"
  "$1" -m pip download --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation \
    --dest "$wheelhouse" "${@:3}" --requirement "$2" && touch "$mark"
}

not_downloaded="pip could not download the packages (its message is above); where there is no internet, first fill the \
wheelhouse by the same command on a machine that has it."

# Installs what a lock names; further arguments go to uv or pip. What has no wheel is built by what lock-build.txt names,
# not by the newest.
install_lock() {
  local uv
  download "$venv/bin/python" "$1" --require-hashes || fail "$not_downloaded"
  # A wheelhouse has uv, too, for the machines that have none.
  if [ -z "${LIMBA_PIP:-}" ]; then download "$venv/bin/python" "$root/requirements/lock-uv.txt" >/dev/null 2>&1 || :; fi
  if [ -z "${LIMBA_PIP:-}" ] && uv=$(find_uv); then
    "$uv" pip install --quiet --python "$venv/bin/python" --require-hashes --no-build-isolation \
      ${wheelhouse:+--offline --no-index --find-links "$wheelhouse"} "${@:2}" --requirement "$1" && return
    say "uv could not install the packages (its message is above); pip tries, with its own settings"
  fi
  install --require-hashes --no-build-isolation "${@:2}" --requirement "$1"
}

make_core() {
  local python kept path
  refuse_if_used
  if kept=$(version_of "$venv/bin/python"); then pythons=("$kept" "${pythons[@]}"); fi # and so its version of jax
  python=$(find_python)
  for path in "$venv" "$former"; do
    if is_foreign "$path"; then fail "$path exists and launch/setup.sh did not make it; move it away."; fi
  done
  mkdir -p "$(dirname "$venv")" || fail "$venv cannot be made; give another folder by VENV=DIR, or delete the link .venv."
  if [ -f "$stamps/core" ]; then
    trap bring_back EXIT
    forget_former
    mv "$venv" "$former"
  fi
  discard "$venv"
  mkdir -p "$stamps" # first, so that an unfinished .venv is recognized
  say "making $venv with Python $(version_of "$python")"
  "$python" -m venv "$venv" || fail "$python cannot make a virtual environment; set PYTHON to another."
  say "installing the packages of $(basename "$base"), a minute or two"
  download "$venv/bin/python" "$root/requirements/lock-build.txt" --require-hashes || fail "$not_downloaded"
  install --require-hashes --no-build-isolation --requirement "$root/requirements/lock-build.txt"
  install_lock "$base"
  if [ "$lean" != 0 ]; then touch "$stamps/lean"; fi
  fingerprint core >"$stamps/core"
}

# The checkout itself, editable: .venv/bin/limba and `import limba` work from any folder.
add_limba() {
  local site
  rm -f "$stamps/limba"
  say "installing the command limba"
  install --no-deps --no-build-isolation --no-index --editable "$root"
  for site in "$venv"/lib/python*/site-packages; do
    if [ -d "$site" ]; then find_above "$site"; fi
  done
  fingerprint limba >"$stamps/limba"
}

# In the folder above the checkout `limba` is the checkout, which has no such module itself: Python would take it for a
# package without one, as setuptools' finder of the editable checkout is asked last.
find_above() {
  echo "import limba_above" >"$1/limba_above.pth"
  cat >"$1/limba_above.py" <<'PYTHON'
"""Asks the finder of the editable checkout for limba, where the path has a bare folder of that name alone."""

import sys
from importlib.machinery import PathFinder


class Above:
    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname == "limba" and (found := PathFinder.find_spec(fullname)) and found.origin is None:
            finders = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "_EditableFinder"]
            return next(filter(None, (finder.find_spec(fullname) for finder in finders)), None)
        return None


sys.meta_path.insert(0, Above)
PYTHON
}

add_part() {
  if [ -f "$stamps/$1" ]; then refuse_if_used; fi # other versions of what is there
  rm -f "$stamps/$1"
  say "adding the packages for: $1"
  case $1 in
    results | tests)
      download "$venv/bin/python" "$(pinned_for "$1")" || fail "$not_downloaded"
      # By pip: its settings may name a place with a small torch.
      install --constraint "$root/requirements.txt" --requirement "$(pinned_for "$1")" ;;
    t5) install_lock "$(lock_of t5)" --no-deps ;; # the lock has all but what would overwrite seqio
    *) install_lock "$(lock_of "$1")" ;;
  esac
  fingerprint "$1" >"$stamps/$1"
}

# Whether .venv has another version than PYTHON or the parts ask for.
wants_another_python() {
  local now
  now=$(version_of "$venv/bin/python") || return 0
  [ -n "${PYTHON:-}" ] && [ "$(version_of "$PYTHON" || true)" != "$now" ]
}

all_right() {
  local part
  if wants_another_python || [ ! "$venv" -ef "$root/.venv" ] || [ -d "$former/.limba" ]; then return 1; fi
  for part in core limba ${parts[@]+"${parts[@]}"}; do is_right "$part" || return 1; done
}

if [ -n "$remove" ]; then
  exec 9>"$root/.venv.lock"
  if command -v flock >/dev/null && ! flock -n 9; then fail "another launch/setup.sh is running; wait for it to end."; fi
  remove_all
  exit 0
fi
if all_right; then exit 0; fi # without the lock
if ! uv --version >/dev/null 2>&1; then # our own uv keeps its files where --remove finds them
  export UV_CACHE_DIR=${UV_CACHE_DIR:-$cache/uv-downloads} UV_PYTHON_INSTALL_DIR=${UV_PYTHON_INSTALL_DIR:-$cache/python}
fi
exec 9>"$root/.venv.lock"
if command -v flock >/dev/null && ! flock -n 9; then
  say "waiting for another launch/setup.sh to end"
  flock 9
fi
# A former environment is here where a set-up was killed.
if [ -f "$stamps/core" ]; then forget_former; else bring_back; fi
if wants_another_python || ! is_right core; then make_core; fi
if [ ! "$venv" -ef "$root/.venv" ]; then ln -sfn "$venv" "$root/.venv"; fi
is_right limba || add_limba
for part in ${parts[@]+"${parts[@]}"}; do
  is_right "$part" || add_part "$part"
done
forget_former
trap - EXIT
say "done; the command is $root/.venv/bin/limba"
