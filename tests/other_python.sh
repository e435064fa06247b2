#!/usr/bin/env bash
# Runs tests on another Python: 3.12 with its newer jax where .venv has 3.11, else 3.11; or the one that is named.
#
#   bash tests/other_python.sh [3.13]              models, configurations, formats of files, processes that share programs
#   bash tests/other_python.sh [3.13] -k config    arguments go to pytest, in place of these
#   JAX=0.11.2 bash tests/other_python.sh 3.12     another jax than that Python's locked one
#   LEAN=1 bash tests/other_python.sh              without seqio and TensorFlow; 3.14, of which they have no wheel, always
#
# They run in a copy of the checkout with an environment of its own, in .pytest_cache. The files that need torch are left
# out, as PyPI has no wheel of it for CPUs, and those that need what is not installed, such as t5. Without such a Python,
# or if its packages cannot be had, nothing is tested, and this ends with 77.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1-} =~ ^3\.[0-9]+$ ]]; then
  version=$1 && shift
else
  case "$(.venv/bin/python --version)" in *" 3.11."*) version=3.12 ;; *) version=3.11 ;; esac
fi
python=''
for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python \
  "$(uv python find "$version" 2>/dev/null || :)"; do
  if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then python=$candidate && break; fi
done
not_tested() { echo "tests/other_python.sh: Python $version is NOT TESTED: $1" >&2; exit 77; }
[ -n "$python" ] || not_tested "it is not here; install it, with venv."

absent=(torch t5) lean=${LEAN:-0} copy=$PWD/.pytest_cache/python$version${JAX:+-jax$JAX}
unset LEAN # the tests' own environments are whole
if [ "$version" = 3.14 ]; then lean=1; fi
if [ "$lean" != 0 ]; then absent+=(seqio tensorflow tensorflow_datasets) copy+=-lean; fi
mkdir -p "$copy"
if [ -L "$copy/.venv" ]; then rm "$copy/.venv"; fi # setup.sh would make the environment anew that it leads to
find "$copy" -mindepth 1 -maxdepth 1 ! -name .venv ! -name .pytest_cache -exec rm -rf {} +
git ls-files -z --cached --others --exclude-standard -- ':!.venv' | tar -c --null --ignore-failed-read -T - 2>/dev/null | tar -x -C "$copy"
cd "$copy"
git init -q && git add -A # some tests ask which files belong to the project
LEAN=$lean PYTHON=$python bash launch/setup.sh || not_tested "its packages could not be installed (the message is above)."
grep -hEv '^(torch|accelerate)==' requirements-results.txt requirements-test.txt >.venv/tests.txt
if ! cmp -s .venv/tests.txt .venv/installed.txt; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r .venv/tests.txt ||
    not_tested "the tests' packages could not be installed (the message is above)."
  cp .venv/tests.txt .venv/installed.txt
fi
if [ -n "${JAX-}" ] && [ "$(.venv/bin/python -c 'import jax; print(jax.__version__)')" != "$JAX" ]; then
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "jax==$JAX" "jaxlib==$JAX" ||
    not_tested "jax $JAX could not be installed (the message is above)."
fi
mapfile -t left < <(.venv/bin/python -m tests.changed "${absent[@]}")
[ $# -gt 0 ] || set -- -m "not slow and not night and not long" tests/{model,config,formats} tests/sharding/test_join_hosts.py
arguments=() # without the files that are left out: pytest opens a file that is named, whatever --ignore says
for argument; do
  case " ${left[*]} " in *" $argument "*) ;; *) arguments+=("$argument") ;; esac
done
echo "Python $version${JAX:+ and jax $JAX}: ${arguments[*]}, without ${#left[@]} files that need ${absent[*]}"
exec .venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder "${left[@]/#/--ignore=}" "${arguments[@]}"
