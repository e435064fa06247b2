"""launch/setup.sh where no Python fits, offline, and elsewhere; the systems' packages that it names."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = [line for line in (ROOT / "tests/launch/pythons.tsv").read_text().splitlines() if not line.startswith("#")]
# A Python of another version that has neither venv nor pip.
OLD = "#!/bin/sh\nexit 1\n"
# uv's place: finds no Python, and downloads the one that MIRROR names (a link to the tests' own).
UV = """#!/bin/sh
echo "$@" >>"$ASKED"
case "$*" in
  --version) echo uv 0.13.9 ;;
  "python find"*) [ -e "$UV_PYTHON_INSTALL_DIR/bin/python" ] && echo "$UV_PYTHON_INSTALL_DIR/bin/python" ;;
  "python install"*)
    [ -n "$UV_PYTHON_INSTALL_MIRROR" ] || { echo "error: could not connect" >&2; exit 2; }
    mkdir -p "$UV_PYTHON_INSTALL_DIR/bin"
    cp "${UV_PYTHON_INSTALL_MIRROR#file://}" "$UV_PYTHON_INSTALL_DIR/bin/python" ;;
  "pip install"*) [ -z "$UV_FAILS" ] ;;
esac
"""
# An interpreter that makes environments of itself, and writes down what pip was asked for.
PYTHON = f"""#!{Path(sys.executable).resolve()} -S
import os, shutil, sys
arguments = sys.argv[1:]
if arguments[:1] == ["-c"]:
    sys.argv = arguments[:1] + arguments[2:]
    exec(arguments[1])
elif arguments[:2] == ["-m", "venv"]:
    os.makedirs(arguments[2] + "/bin")
    shutil.copy(__file__, arguments[2] + "/bin/python")
elif arguments[:1] == ["-m"]:
    print(*arguments[1:], file=open(os.environ["ASKED"], "a"))
    fails = os.environ.get("INSTALL_FAILS", "")  # yes, or the file whose packages cannot be had
    if "install" in arguments and fails and (fails == "yes" or arguments[-1].endswith(fails)):
        sys.exit("no index")
    if "download" in arguments and os.environ.get("OFFLINE"):
        sys.exit("no internet")
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout's set-up in `tree`, and a PATH of only `bin`: the tools of a small system, and old Pythons."""
    tree = tmp_path / "tree"
    tools = tmp_path / "bin"
    shutil.copytree(ROOT / "requirements", tree / "requirements")
    (tree / "launch").mkdir()
    tools.mkdir()
    for name in ("launch/setup.sh", "requirements.txt", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tree / name)
    for name in ("requirements-results.txt", "requirements-test.txt"):
        shutil.copy(ROOT / name, tree / name)
    words = (
        "bash sed sort xargs echo mkdir cat cmp cp ln mv rm readlink basename dirname touch flock ls tr pwd sh env"
        " uname grep sleep"
    )
    for name in words.split():
        (tools / name).symlink_to(str(shutil.which(name)))
    for name in ("python3", "python", "python3.11", "python3.12", "python3.13"):
        write(tools / name, OLD)
    (tmp_path / "home").mkdir()
    return tmp_path


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def setup(machine: Path, *arguments: str, **variables: str) -> tuple[int, str, str, list[str]]:
    """Returns the status of launch/setup.sh, what it printed, and what pip and uv were asked for."""
    asked = machine / "asked"
    asked.write_text("")
    environment = {
        "PATH": str(machine / "bin"), "HOME": str(machine / "home"), "ASKED": str(asked),
        "UV_PYTHON_INSTALL_DIR": str(machine / "pythons"), **variables,
    }  # fmt: skip
    command = ["bash", str(machine / "tree" / "launch" / "setup.sh"), *arguments]
    done = subprocess.run(
        command, env=environment, cwd=machine, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr, asked.read_text().splitlines()


@pytest.mark.parametrize("line", list(csv.DictReader(SYSTEMS, delimiter="\t")), ids=lambda line: "".join(line["id"]))
def test_without_python_and_uv_the_system_s_own_command_is_named(line: dict[str, str], machine: Path) -> None:
    release = [f"ID={line['id']}", f'VERSION_ID="{line["version_id"]}"', "NAME=x"]
    release += [f'ID_LIKE="{line["id_like"]}"'] if line["id_like"] else []
    (machine / "os-release").write_text("\n".join(release) + "\n")
    code, _, errors, _ = setup(machine, OS_RELEASE=str(machine / "os-release"))
    assert code == 2 and len(errors.splitlines()) == 1
    assert f"run {line['command']}, or install uv" in errors


def test_an_unknown_system_still_gets_a_sentence(machine: Path) -> None:
    code, _, errors, _ = setup(machine, OS_RELEASE=str(machine / "nothing"))
    assert code == 2 and "your system's installer" in errors and len(errors.splitlines()) == 1


def test_uv_brings_a_python_where_none_fits(machine: Path) -> None:
    write(machine / "bin" / "uv", UV)
    code, _, errors, asked = setup(machine)
    assert code == 2 and "set UV_PYTHON_INSTALL_MIRROR, or PYTHON=PROGRAM" in errors
    write(machine / "python", PYTHON)
    pythons = {"UV_PYTHON_INSTALL_MIRROR": f"file://{machine}/python"}
    # The stand-in has these tests' version, so the machine asks for it.
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    script = machine / "tree" / "launch" / "setup.sh"
    script.write_text(script.read_text().replace("pythons=(3.12 3.11 3.13)", f"pythons=({here})"))
    code, printed, errors, asked = setup(machine, "tpu", **pythons)
    assert code == 0, errors
    assert f"python install --managed-python --no-bin {here}" in asked
    assert (machine / "tree" / ".venv" / "bin" / "python").exists() and "setup: done" in printed
    installed = [line.split()[-1].rpartition("/")[2] for line in asked if "pip install" in line]
    assert installed == ["lock-build.txt", "lock-cpu.txt", "tree", "lock-tpu.txt"]
    by_uv = [line for line in asked if line.startswith("pip install --quiet --python")]
    assert len(by_uv) == 2 and all("--require-hashes --no-build-isolation" in line for line in by_uv)
    assert setup(machine, "tpu", **pythons)[3] == []  # nothing has changed


def of_version(minor: int) -> str:
    """Returns the stand-in of Python 3.<minor>."""
    other = f"sys.version_info = (3, {minor}, 1)\n    sys.version = '3.{minor}.1'\n    exec(arguments[1])"
    return PYTHON.replace("exec(arguments[1])", other)


@pytest.mark.slow
def test_3_12_is_first_and_an_environment_that_is_made_again_keeps_its_version(machine: Path) -> None:
    write(machine / "bin" / "python3.11", of_version(11))
    code, printed, errors, _ = setup(machine, LIMBA_PIP="yes")
    assert code == 0 and f"making {machine}/tree/.venv with Python 3.11" in printed, errors
    write(machine / "bin" / "python3.12", of_version(12))
    assert setup(machine, LIMBA_PIP="yes")[3] == []  # the environment is right as it is
    lock = machine / "tree" / "requirements" / "lock-cpu.txt"
    lock.write_text(lock.read_text() + "# another hash\n")
    assert "with Python 3.11" in setup(machine, LIMBA_PIP="yes")[1]
    shutil.rmtree(machine / "tree" / ".venv")
    assert "with Python 3.12" in setup(machine, LIMBA_PIP="yes")[1]


@pytest.mark.parametrize(
    ("parts", "version"), [(("tests",), "3.11"), (("tpu", "tests"), "3.11"), (("results",), "3.12")]
)
def test_the_tests_environment_has_3_11_where_it_is_installed(
    parts: tuple[str, ...], version: str, machine: Path
) -> None:
    """A landing is judged there, and tests 3.12 in an environment of its own (tests/other_python.sh)."""
    for minor in (11, 12, 13):
        write(machine / "bin" / f"python3.{minor}", of_version(minor))
    code, printed, errors, _ = setup(machine, *parts, LIMBA_PIP="yes")
    assert code == 0 and f"with Python {version}" in printed, errors


def test_rocm_s_only_python_is_the_tests_too(machine: Path) -> None:
    write(machine / "bin" / "python3.12", of_version(12))
    for parts in (("rocm", "tests"), ("tests", "rocm")):
        code, _, errors, _ = setup(machine, *parts, LIMBA_PIP="yes", OS_RELEASE=str(machine / "nothing"))
        assert code == 2 and "3.11" in errors and "3.12 or" not in errors


def test_pip_stays_where_uv_fails(machine: Path) -> None:
    write(machine / "bin" / "uv", UV)
    write(machine / "python", PYTHON)
    code, printed, _, asked = setup(machine, PYTHON=str(machine / "python"), UV_FAILS="yes")
    assert code == 0 and "pip tries, with its own settings" in printed
    assert [
        line for line in asked if line.startswith("pip install") and "lock-cpu.txt" in line and "--no-input" in line
    ]


def test_an_index_that_cannot_be_reached_may_be_reached_later(machine: Path) -> None:
    write(machine / "python", PYTHON)
    python = {"PYTHON": str(machine / "python")}
    code, _, errors, _ = setup(machine, **python, INSTALL_FAILS="yes")
    assert code == 75 and errors.splitlines()[-1].startswith("launch/setup.sh: pip could not install the packages")
    assert setup(machine, **python)[0] == 0  # the same command


@pytest.mark.slow
def test_a_wheelhouse_is_filled_once_and_then_is_enough(machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    house = machine / "house"
    code, _, _, asked = setup(machine, "cuda12", f"--wheelhouse={house}", **variables)
    assert code == 0
    assert [line.split()[-1].rpartition("/")[2] for line in asked if "pip download" in line] == [
        "lock-build.txt", "lock-cpu.txt", "lock-cuda12.txt",
    ]  # fmt: skip
    installs = [line for line in asked if "pip install" in line]
    assert len(installs) == 4 and all(
        f"--no-index --find-links {house}" in line for line in installs[:2] + installs[3:]
    )
    shutil.rmtree(machine / "tree" / ".venv")  # another machine, without internet
    code, _, errors, asked = setup(machine, "cuda12", f"--wheelhouse={house}", OFFLINE="yes", **variables)
    assert code == 0 and not [line for line in asked if "download" in line], errors
    code, _, errors, _ = setup(machine, "tpu", f"--wheelhouse={house}", OFFLINE="yes", **variables)
    assert code == 2 and "first fill the wheelhouse by the same command on a machine that has it" in errors
    shutil.rmtree(machine / "tree" / ".venv")
    offline = {**variables, "OFFLINE": "yes", "INSTALL_FAILS": "yes"}  # a file is missing there
    code, _, errors, _ = setup(machine, f"--wheelhouse={house}", **offline)
    assert code == 2 and f"delete {house}/*.done, and fill it again" in errors
    write(machine / "bin" / "uv", UV)  # which other machines may not have
    _, _, _, asked = setup(machine, f"--wheelhouse={house}", PYTHON=variables["PYTHON"])
    assert [line for line in asked if "pip download" in line and line.endswith("lock-uv.txt")]


def test_the_environment_may_be_elsewhere(machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    link = machine / "tree" / ".venv"
    code, _, errors, _ = setup(machine, VENV="scratch/venv", **variables)
    assert code == 0, errors
    assert link.is_symlink() and link.resolve() == machine / "scratch" / "venv"
    assert setup(machine, **variables)[3] == []  # it is found again
    assert setup(machine, VENV=str(machine / "scratch" / "venv"), **variables)[3] == []
    link.unlink()
    link.mkdir()
    code, _, errors, _ = setup(machine, VENV="scratch/venv", **variables)
    assert code == 2 and "is a folder; delete it" in errors
    code, _, errors, _ = setup(machine, VENV=str(link), **variables)  # the folder itself
    assert code == 0 and not link.is_symlink(), errors


FINDER = """import importlib.util, sys
class _EditableFinder:
    def find_spec(fullname, path=None, target=None):
        if fullname == "limba":
            return importlib.util.spec_from_file_location("limba", FILE)
sys.meta_path.append(_EditableFinder)
"""


def test_all_that_was_made_is_removed_and_nothing_else(machine: Path) -> None:
    write(machine / "bin" / "python3.12", PYTHON)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    script = machine / "tree" / "launch" / "setup.sh"
    script.write_text(script.read_text().replace("pythons=(3.12 3.11 3.13)", f"pythons=({here})"))
    tree = machine / "tree"
    (tree / ".venv" / "own").mkdir(parents=True)
    code, _, errors, _ = setup(machine, "--remove")
    assert code == 2 and "launch/setup.sh did not make it, so it is not removed" in errors and (tree / ".venv").exists()
    shutil.rmtree(tree / ".venv")
    environment = machine / "elsewhere" / "venv"
    code, _, errors, _ = setup(machine, LIMBA_PIP="yes", PYTHON=str(machine / "bin/python3.12"), VENV=str(environment))
    assert code == 0 and environment.is_dir() and (tree / ".venv").is_symlink(), errors
    (tree / "runs").mkdir()
    caches = machine / "home" / ".cache"
    for name in ("limba/xla", "uv"):
        (caches / name).mkdir(parents=True)
    code, printed, errors, asked = setup(machine, "--remove")
    assert code == 0 and not asked, errors
    assert not environment.exists() and not os.path.lexists(tree / ".venv") and not (tree / ".venv.lock").exists()
    assert [path.name for path in caches.iterdir()] == ["uv"] and "uv cache clean empties it" in printed
    assert (tree / "runs").is_dir() and (tree / "requirements").is_dir()
    assert setup(machine, "--remove")[0] == 0, "there is nothing left to remove"


def test_a_uv_that_the_script_brings_keeps_its_files_where_they_are_removed(machine: Path) -> None:
    write(machine / "bin" / "python3.12", PYTHON)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    script = machine / "tree" / "launch" / "setup.sh"
    script.write_text(script.read_text().replace("pythons=(3.12 3.11 3.13)", f"pythons=({here})"))
    cache = machine / "home" / ".cache" / "limba"
    (cache / "uv" / "bin").mkdir(parents=True)
    shutil.copy(machine / "tree" / "requirements" / "lock-uv.txt", cache / "uv" / "lock")
    write(cache / "uv" / "bin" / "uv", UV.replace('echo "$@" >>', 'echo "$@" "$UV_CACHE_DIR" >>'))
    code, _, errors, asked = setup(machine, PYTHON=str(machine / "bin" / "python3.12"))
    by_uv = [line for line in asked if line.startswith("pip install --quiet --python")]
    assert code == 0 and by_uv and all(line.endswith(f" {cache}/uv-downloads") for line in by_uv), errors


def test_limba_is_found_in_the_folder_above_the_checkout(machine: Path) -> None:
    """With setuptools' own finder, which it puts last: Python then takes the folder `limba` for a package."""
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    assert setup(machine, **variables)[0] == 0
    site = machine / "tree" / ".venv" / "lib" / "python3" / "site-packages"
    site.mkdir(parents=True)
    (machine / "tree" / ".venv" / ".limba" / "limba").unlink()
    assert setup(machine, **variables)[0] == 0
    (machine / "theirs.py").write_text("found = True")
    (site / "finder_of_limba.py").write_text(FINDER.replace("FILE", repr(str(machine / "theirs.py"))))
    (site / "__editable__.limba.pth").write_text("import finder_of_limba\n")
    (machine / "limba").mkdir()

    def says(here: Path = machine, path: Path | str = "") -> str:
        program = f"import site; site.addsitedir({str(site)!r}); import limba; print(limba.found)"
        variables = {**os.environ, "PYTHONPATH": str(path)}
        command = [sys.executable, "-S", "-c", program]
        done = subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert says() == "True\n"
    (machine / "own" / "limba").mkdir(parents=True)
    (machine / "own" / "limba" / "__init__.py").write_text("found = False")
    assert says(here=machine / "own") == says(path=machine / "own") == "False\n"  # a module of that name is first
    (site / "limba_above.pth").unlink()
    assert "module 'limba' has no attribute 'found'" in says()
    finders = list(Path(sys.prefix).glob("lib/python*/site-packages/__editable___limba*finder.py"))
    assert finders and all("class _EditableFinder" in path.read_text() for path in finders)


def change_lock(machine: Path) -> None:
    """As `git pull` does: the environment has to be made again."""
    lock = machine / "tree" / "requirements" / "lock-cpu.txt"
    lock.write_text(lock.read_text() + "# another hash\n")


@pytest.mark.slow
def test_an_outage_leaves_the_environment_that_worked(machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    environment = machine / "tree" / ".venv"
    former = machine / "tree" / ".venv.limba-former"
    assert setup(machine, "t5", LEAN="0", **variables)[0] == 0
    (environment / "own").write_text("kept")
    change_lock(machine)
    for fails in ("lock-build.txt", "lock-cpu.txt", "lock-t5.txt"):  # at the first, and when the new one is half made
        assert setup(machine, "t5", INSTALL_FAILS=fails, **variables)[0] == 75
        assert (environment / "own").exists() and (environment / ".limba" / "t5").exists(), fails
        assert (environment / "bin" / "python").exists() and not former.exists(), fails
    # A set-up that was killed has left both.
    shutil.copytree(environment, former)
    shutil.rmtree(environment / ".limba")
    (environment / ".limba").mkdir()
    (environment / "own").unlink()
    assert setup(machine, INSTALL_FAILS="lock-build.txt", **variables)[0] == 75
    assert (environment / "own").exists() and not former.exists()
    assert setup(machine, **variables)[0] == 0  # the network is there again
    assert not (environment / "own").exists() and not former.exists()
    assert setup(machine, **variables)[3] == []
    (former / ".limba").mkdir(parents=True)  # killed while it removed this
    (former / "bin").mkdir()
    assert setup(machine, **variables)[0] == 0 and not former.exists()


@pytest.mark.parametrize("name", [".venv.old", ".venv.limba-former"])
@pytest.mark.slow
def test_a_folder_of_the_user_is_never_removed(name: str, machine: Path) -> None:
    """Whatever its name, as where `.venv` was moved away because a sentence asked for it."""
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    assert setup(machine, **variables)[0] == 0
    own = machine / "tree" / name / "thesis"
    own.mkdir(parents=True)
    assert setup(machine, "tpu", **variables)[0] == 0 and own.is_dir()
    assert setup(machine, "tpu", **variables)[1] == ""  # all is right, beside it, too
    change_lock(machine)
    code, _, errors, _ = setup(machine, **variables)
    if name == ".venv.old":
        assert code == 0, errors
    else:
        assert code == 2 and f"{own.parent} exists and launch/setup.sh did not make it; move it away." in errors
    assert own.is_dir()
    assert setup(machine, "--remove", **variables)[0] == 0 and own.is_dir()
    assert not (machine / "tree" / ".venv").exists()


def test_an_environment_that_the_user_keeps_is_not_put_back(machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    environment = machine / "tree" / ".venv"
    kept = machine / "tree" / ".venv.old"
    assert setup(machine, **variables)[0] == 0
    environment.rename(kept)
    assert setup(machine, **variables)[0] == 0 and (environment / "bin" / "python").exists()
    assert (kept / ".limba" / "core").exists()


def test_a_folder_of_the_user_is_not_replaced_by_the_environment_that_worked(machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    environment = machine / "tree" / ".venv"
    former = machine / "tree" / ".venv.limba-former"
    assert setup(machine, **variables)[0] == 0
    environment.rename(former)  # a set-up was killed here
    (environment / "thesis").mkdir(parents=True)
    code, _, errors, _ = setup(machine, **variables)
    assert code == 2 and f"{environment} exists and launch/setup.sh did not make it" in errors
    assert (environment / "thesis").exists() and (former / ".limba" / "core").exists()


# rm that is killed, with what called it, at the first part of .venv: as by a second Ctrl-C.
KILLED = f"""#!/bin/sh
if [ -e "$DIES/bin/python" ]; then case "$*" in "-rf $DIES"*) kill -9 $PPID; exit 1 ;; esac; fi
exec {shutil.which("rm")} "$@"
"""


@pytest.mark.parametrize("arguments", [("t5",), ("--remove",)])
@pytest.mark.slow
def test_what_is_half_removed_does_not_count_as_right(arguments: tuple[str, ...], machine: Path) -> None:
    """A part fails, so the former environment is to come back, and that is interrupted; or the removal is."""
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    environment = machine / "tree" / ".venv"
    assert setup(machine, "t5", **variables)[0] == 0
    (environment / "own").write_text("kept")
    if arguments == ("t5",):
        change_lock(machine)
    remove = machine / "bin" / "rm"
    remove.unlink()
    write(remove, KILLED)
    code, _, errors, _ = setup(machine, *arguments, INSTALL_FAILS="lock-t5.txt", DIES=str(environment), **variables)
    assert code == -9 and (environment / "bin" / "python").exists(), errors
    code, printed, errors, _ = setup(machine, "t5", INSTALL_FAILS="lock-cpu.txt", **variables)
    assert code == 75 and f"making {environment} with" in printed, errors
    if arguments == ("t5",):
        assert (environment / "own").exists() and (environment / ".limba" / "t5").exists()
    assert setup(machine, "t5", **variables)[0] == 0 and not (environment / "own").exists()


WAITS = "print('ready', flush=True); input()"
LOADS = "import mmap, sys; file = open(sys.argv[1]); kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); "


@pytest.mark.parametrize("by", ["its command", "its libraries"])
@pytest.mark.slow
def test_a_running_program_keeps_its_environment(by: str, machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    elsewhere = machine / "scratch" / "venv"
    environment = machine / "tree" / ".venv"
    assert setup(machine, "t5", VENV=str(elsewhere), **variables)[0] == 0
    (elsewhere / "own").write_text("kept")
    change_lock(machine)
    (elsewhere / "lib").mkdir()
    (elsewhere / "lib" / "late.so").write_bytes(bytes(5_000))
    command = [str(environment / "bin" / "python"), "-c", WAITS]
    if by == "its libraries":  # as of `python` in an activated environment
        command = [sys.executable, "-c", LOADS + WAITS, "late.so"]
    with subprocess.Popen(
        command, cwd=environment / "lib", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None and running.stdout.readline() == "ready\n"
        for arguments in ((), ("--remove",)):
            code, _, errors, asked = setup(machine, *arguments, **variables)
            assert code == 2 and asked == [], errors
            assert errors.startswith(f"launch/setup.sh: process {running.pid} (") and f"runs in {elsewhere}" in errors
            assert ("SETUP=no" in errors) == (not arguments) and len(errors.splitlines()) == 1
            assert (environment / "own").exists()
        running.kill()
    assert setup(machine, **variables)[0] == 0 and not (environment / "own").exists()


# tr that fails at its first call, as where a process has ended since it was found.
GONE = f"""#!/bin/sh
if [ ! -e "$HOME/first" ]; then : >"$HOME/first"; exit 1; fi
exec {shutil.which("tr")} "$@"
"""
# The second until the second look, in which a program ends.
ENDS = f"""#!/bin/sh
kill -9 $ENDS
while {shutil.which("grep")} -qz . /proc/$ENDS/cmdline 2>/dev/null; do :; done
"""


def test_each_program_that_runs_there_is_looked_at(machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    environment = machine / "tree" / ".venv"
    assert setup(machine, **variables)[0] == 0
    change_lock(machine)
    command = [str(environment / "bin" / "python"), "-c", WAITS]
    (machine / "bin" / "tr").unlink()
    write(machine / "bin" / "tr", GONE)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        for running in (first, second):
            assert running.stdout is not None and running.stdout.readline() == b"ready\n"
        code, _, errors, asked = setup(machine, **variables)
        assert code == 2 and asked == [] and f"runs in {environment}" in errors
        assert (machine / "home" / "first").exists()
        first.kill()
        second.kill()


def test_a_program_that_ends_at_once_is_no_reason_to_refuse(machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    environment = machine / "tree" / ".venv"
    assert setup(machine, **variables)[0] == 0
    change_lock(machine)
    (machine / "bin" / "sleep").unlink()
    write(machine / "bin" / "sleep", ENDS)
    command = [str(environment / "bin" / "python"), "-c", WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline() == b"ready\n"
        code, printed, errors, _ = setup(machine, ENDS=str(running.pid), **variables)
    assert running.returncode == -9
    assert code == 0 and f"making {environment} with" in printed, errors


@pytest.mark.slow
def test_a_part_whose_packages_have_changed_waits_for_a_running_program(machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    assert setup(machine, "t5", **variables)[0] == 0
    lock = machine / "tree" / "requirements" / "lock-t5.txt"
    lock.write_text(lock.read_text() + "# another hash\n")
    command = [str(machine / "tree" / ".venv" / "bin" / "python"), "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as running:
        code, _, errors, asked = setup(machine, "t5", **variables)
        assert code == 2 and f"process {running.pid} (" in errors and asked == []
        assert setup(machine, "tpu", **variables)[0] == 0  # what is added changes nothing that is there
        running.kill()
    assert setup(machine, "t5", **variables)[0] == 0


def test_a_link_to_a_disk_that_was_emptied_makes_the_environment_there_again(machine: Path) -> None:
    write(machine / "python", PYTHON)
    variables = {"PYTHON": str(machine / "python"), "LIMBA_PIP": "yes"}
    environment = machine / "scratch" / "me" / "venv"
    link = machine / "tree" / ".venv"
    assert setup(machine, VENV=str(environment), **variables)[0] == 0
    shutil.rmtree(machine / "scratch")
    code, printed, errors, _ = setup(machine, **variables)
    assert code == 0 and f"making {environment} with" in printed and link.resolve() == environment, errors
    shutil.rmtree(machine / "scratch")
    (machine / "scratch").write_text("no folder any more")
    code, _, errors, _ = setup(machine, **variables)
    assert code == 2 and "give another folder by VENV=DIR, or delete the link .venv." in errors
    assert setup(machine, "--remove", **variables)[0] == 0 and not link.is_symlink()


def test_amd_s_wheels_are_for_one_python(machine: Path) -> None:
    write(
        machine / "python",
        PYTHON.replace("exec(arguments[1])", "sys.version_info = (3, 12, 1)\n    exec(arguments[1])"),
    )
    code, _, errors, _ = setup(machine, "rocm", PYTHON=str(machine / "python"))
    assert code == 2 and "is not a Python 3.11 with venv" in errors


@pytest.mark.parametrize("accelerator", ["cuda", "cuda12", "cuda13", "rocm", "tpu", "cpu", "gpu"])
def test_pretrain_takes_each_accelerator_that_setup_knows(accelerator: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    (tmp_path / "launch" / "setup.sh").write_text('echo "set up: $*"\n')
    (tmp_path / "launch" / "supervise.sh").write_text('echo "on $JAX_PLATFORMS"\n')
    variables = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        ["bash", str(tmp_path / "launch" / "pretrain.sh"), "gin/demo.gin", f"ACCELERATOR={accelerator}"],
        env=variables, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    if accelerator == "gpu":
        assert done.returncode == 2 and "give tpu, cuda, cuda12, cuda13, rocm or cpu" in done.stderr
    else:
        first = "cuda" if accelerator.startswith("cuda") else accelerator
        assert done.stdout == f"set up: {accelerator}\non {first}{'' if accelerator == 'cpu' else ',cpu'}\n"
