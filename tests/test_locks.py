"""What is pinned, what is locked and what pyproject.toml asks for agree, and setup.sh installs from the locks."""

import ast
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCKS = {path.stem.removeprefix("lock-"): path for path in (ROOT / "requirements").glob("lock-*.txt")}
CHIPS = {"tpu": "libtpu", "cuda12": "jax-cuda12-plugin", "cuda13": "jax-cuda13-plugin", "rocm": "jax-rocm7-plugin"}
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
LINE = re.compile(rf"-r lock-cpu\.txt|[\w.-]+==[\w.+-]+( ; .+)? \\| {{4}}{HASH.pattern}( \\)?")


PYTHONS = ("3.11", "3.12", "3.13")
LEAN_PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def pins(path: Path, python: str = "3.12") -> dict[str, str]:
    """Returns package -> version of the lines `package==version ; marker` that a Python takes."""
    lines = re.findall(r"^([\w.\[\]-]+)==([^\s#;\\]+)(?: *; *([^#\\\n]+))?", path.read_text(), re.MULTILINE)
    where = {"python_version": python, "python_full_version": f"{python}.4"}
    taken = [(str(canonicalize_name(name)), version) for name, version, marker in lines if fits(marker, where)]
    versions = dict(taken)
    assert len(versions) == len(taken) > 0, f"{path} names a package twice"
    return versions


def of_tests() -> dict[str, str]:
    """Returns what the tests need beside requirements.txt; no package is in both files."""
    results = pins(ROOT / "requirements-results.txt")
    tests = pins(ROOT / "requirements-test.txt")
    assert not set(results) & set(tests)
    return results | tests


def fits(marker: str, where: dict[str, str]) -> bool:
    return not marker or Marker(marker.strip()).evaluate(where)


def test_each_chip_has_its_lock_and_the_cpu_s_has_what_is_pinned() -> None:
    assert set(LOCKS) == {"cpu", "lean", "build", "uv", "t5", *CHIPS}
    for python in PYTHONS:
        assert pins(LOCKS["cpu"], python) == pins(ROOT / "requirements.txt", python), "run python requirements/lock.py"
    wanted = pins(ROOT / "requirements.txt")
    build = pins(LOCKS["build"])
    assert {"setuptools", "wheel"} <= set(build)
    assert {name: version for name, version in build.items() if name in wanted}.items() <= wanted.items()


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("lock", "package"), CHIPS.items())
def test_a_chip_s_lock_adds_to_the_cpu_s(lock: str, package: str, python: str) -> None:
    assert "\n-r lock-cpu.txt\n" in LOCKS[lock].read_text()
    if lock == "rocm" and python != "3.11":  # launch/setup.sh rocm takes no other Python
        python = "3.11"
    versions = pins(LOCKS[lock], python)
    cpu = pins(LOCKS["cpu"], python)
    assert package in versions and not set(versions) & set(cpu)
    assert {version for name, version in versions.items() if name.startswith("jax")} <= {cpu["jax"]}
    assert cpu["jax"] == cpu["jaxlib"] and cpu["jax"].startswith("0.10." if python == "3.11" else "0.12.")


def test_the_lock_of_t5_has_nothing_that_overwrites_seqio() -> None:
    assert "\n-r lock-cpu.txt\n" in LOCKS["t5"].read_text()
    tests = of_tests()
    for python in PYTHONS:
        versions = pins(LOCKS["t5"], python)
        cpu = pins(LOCKS["cpu"], python)
        assert {"t5", "babel", "scikit-learn"} <= set(versions) and not set(versions) & set(cpu)
        assert not {"seqio-nightly", "tfds-nightly", "mesh-tensorflow", "transformers"} & set(versions)
        assert {name: version for name, version in versions.items() if tests.get(name, version) != version} == {}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_has_hashes_and_nothing_says_where_it_was_found(lock: str) -> None:
    for line in LOCKS[lock].read_text().splitlines()[1:]:
        assert re.fullmatch(r"-r lock-cpu\.txt|[\w.-]+==[\w.+-]+( ; .+)? \\| {4}" + HASH.pattern + r"( \\)?", line), (
            line
        )
    for block in re.split(r"\n(?=\w)", LOCKS[lock].read_text())[1:]:
        assert HASH.search(block), block


def test_ranges_pins_and_the_tests_packages_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = pins(ROOT / "requirements.txt")
    tests = of_tests()
    for python, requirement in itertools.product(LEAN_PYTHONS, map(Requirement, project["dependencies"])):
        version = pins(ROOT / "requirements.txt", python)[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement} and {version} of requirements.txt"
    extras = project["optional-dependencies"]
    for requirement in map(Requirement, [*extras["proof"], *extras["results"]]):
        name = canonicalize_name(requirement.name)
        assert (tests | pinned)[name] in requirement.specifier, requirement
    assert {name: version for name, version in tests.items() if pinned.get(name, version) != version} == {}
    assert "3.11" in project["requires-python"] and "<3.15" in project["requires-python"]  # as requirements/lock.py


# The package that is imported -> the one that is installed, where their names differ.
INSTALLED_AS = {"gin": "gin-config"}


def imported_in(folder: Path) -> set[str]:
    """Returns the packages that the files of a folder import, by the names under which they are installed."""
    packages = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                modules = [node.module]
            else:
                modules = []
            packages.update(module.partition(".")[0] for module in modules)
    return {str(canonicalize_name(INSTALLED_AS.get(package, package))) for package in packages}


@pytest.mark.slow
def test_limba_imports_each_package_that_it_asks_for() -> None:
    """What only another package imports is that package's to ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked_for = {str(canonicalize_name(Requirement(line).name)) for line in project["dependencies"]}
    assert asked_for - imported_in(ROOT / "limba") == set()


# An interpreter that makes environments of itself and writes down what pip was asked for.
FAKE = f"""#!{Path(sys.executable).resolve()} -S
import json, os, shutil, sys
arguments = sys.argv[1:]
if arguments[:1] == ["-c"]:
    sys.argv = arguments[:1] + arguments[2:]
    exec(arguments[1])
elif arguments[:2] == ["-m", "venv"]:
    os.makedirs(arguments[2] + "/bin")
    shutil.copy(__file__, arguments[2] + "/bin/python")
else:
    with open(os.environ["ASKED"], "a") as file:
        file.write(json.dumps(arguments) + "\\n")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what setup.sh reads."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "requirements", tree / "requirements")
    (tree / "launch").mkdir()
    for name in ("launch/setup.sh", "requirements.txt", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tree / name)
    for name in ("requirements-results.txt", "requirements-test.txt"):
        shutil.copy(ROOT / name, tree / name)
    (tmp_path / "python").write_text(FAKE)
    (tmp_path / "python").chmod(0o755)
    return tree


def asked_by_setup(tree: Path, *parts: str) -> list[list[str]]:
    """Runs setup.sh; returns what pip was asked to install."""
    asked = tree.parent / "asked.jsonl"
    asked.write_text("")
    variables = {**os.environ, "PYTHON": str(tree.parent / "python"), "ASKED": str(asked), "LIMBA_PIP": "yes"}
    command = ["bash", str(tree / "launch" / "setup.sh"), *parts]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)[2:] for line in asked.read_text().splitlines()]


@pytest.mark.slow
def test_setup_installs_from_the_locks_by_their_hashes(tree: Path) -> None:
    first = asked_by_setup(tree, "cuda", "tests")
    files = [Path(arguments[-1]).name for arguments in first]
    assert files == [
        "lock-build.txt",
        "lock-cpu.txt",
        "tree",
        "lock-cuda13.txt",
        "lock-t5.txt",
        "requirements-results.txt",
        *(["lock-tpu.txt"] if platform.machine() == "x86_64" else []),
        "requirements-test.txt",
    ]
    for arguments in first[0], first[1], first[3], first[4]:
        assert "--require-hashes" in arguments and "--no-build-isolation" in arguments
    assert [files[n] for n, arguments in enumerate(first) if "--no-deps" in arguments] == ["tree", "lock-t5.txt"]
    assert asked_by_setup(tree, "cuda", "tests") == []

    pinned = tree / "requirements.txt"
    pinned.write_text(pinned.read_text().replace("# arrays, compilation, sharding", "# another comment"))
    assert asked_by_setup(tree, "cuda", "tests") == []

    lock = tree / "requirements" / "lock-cuda13.txt"
    lock.write_text(lock.read_text() + "# another hash\n")
    assert [Path(arguments[-1]).name for arguments in asked_by_setup(tree, "cuda", "tests")] == ["lock-cuda13.txt"]
    lock = tree / "requirements" / "lock-cpu.txt"
    lock.write_text(lock.read_text() + "# another hash\n")
    again = [Path(arguments[-1]).name for arguments in asked_by_setup(tree, "cuda12")]
    assert again == ["lock-build.txt", "lock-cpu.txt", "tree", "lock-cuda12.txt"]


@pytest.mark.slow
def test_a_lean_environment_has_no_tensorflow_and_stays_lean(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"tensorflow", "tensorflow-text", "tensorflow-datasets", "seqio", "clu", "keras", "rouge-score"}
    for python in LEAN_PYTHONS:
        whole = pins(LOCKS["cpu"], python)
        lean = pins(LOCKS["lean"], python)
        assert lean.items() <= whole.items() and absent <= set(whole) and not absent & set(lean)
        assert {"gcsfs", "bokeh"} <= set(lean)  # a bucket and the page of a run are for every run
    monkeypatch.setenv("LEAN", "1")
    first = [Path(arguments[-1]).name for arguments in asked_by_setup(tree, "cuda")]
    assert first == ["lock-build.txt", "lock-lean.txt", "tree", "lock-cuda13.txt"]
    of_chip = (tree / ".venv" / ".limba" / "lock-cuda13.txt").read_text()
    assert f"\n-r {tree}/requirements/lock-lean.txt\n" in of_chip and "lock-cpu" not in of_chip
    monkeypatch.delenv("LEAN")
    assert asked_by_setup(tree, "cuda") == []
    with pytest.raises(AssertionError, match="t5 and the tests need seqio and TensorFlow, .*run it with LEAN=0"):
        asked_by_setup(tree, "t5")
    monkeypatch.setenv("LEAN", "0")
    whole = [Path(arguments[-1]).name for arguments in asked_by_setup(tree, "t5")]
    assert whole == ["lock-build.txt", "lock-cpu.txt", "tree", "lock-t5.txt"]
