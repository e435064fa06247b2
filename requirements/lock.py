"""Writes requirements/lock-*.txt: all packages that launch/setup.sh installs, each with the hashes of its files.

    python requirements/lock.py
    python requirements/lock.py --check

Run it after a change of requirements.txt. It asks PyPI, with uv in an environment of its own, for Linux and Python 3.11
to 3.14. lock-cpu.txt has what requirements.txt pins, lock-lean.txt only what pyproject.toml asks for, with buckets and
reports: no seqio and no TensorFlow, so that there are wheels for 3.14. The other locks add what jax needs for their
chips to either of these. lock-t5.txt adds the package t5 for task modules of T5X, and what importing it needs: not all
that it asks for, of which seqio-nightly would lie over seqio. lock-build.txt has what builds the few packages that have
no wheel, lock-uv.txt what launch/setup.sh installs with.

With --check it writes nothing. It resolves each lock for each Python, and for 64-bit ARM too, as an installation would:
the index has files for that machine, and no requirement is missing or in conflict.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

UV = "uv==0.13.9"
T5 = "t5==0.9.4"  # the last one
OF_T5 = ("babel", "scikit-learn")  # what `import t5` needs beside what requirements.txt pins
ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"tpu": "tpu", "cuda12": "cuda12", "cuda13": "cuda13", "rocm": "rocm7-local"}  # lock: jax's extra
ADDED = {*EXTRAS, "t5"}  # to lock-cpu.txt
ALL_PYTHONS, NEXT_PYTHON = ["3.11", "3.12", "3.13"], "3.14"
# jax 0.12.0.1 has no wheels for ROCm, and launch/setup.sh takes Python 3.11 there; TensorFlow has none for 3.14.
PYTHONS = {"rocm": ["3.11"], "lean": [*ALL_PYTHONS, NEXT_PYTHON]}
# promise and rouge_score are built with the first two; editdistance, on Python 3.13, with the others.
BUILD = ("setuptools", "wheel", "Cython", "pdm-backend")
LEAN_EXTRAS = ("gcs", "report")  # of pyproject.toml, of 80 MB: what a run on a grant and the demo end with
LIMIT, LEAN_LIMIT = "3.14", "3.15"  # Pythons before it
SUPPORTED = {"sys_platform == 'linux'", *(f"python_full_version < '{limit}'" for limit in (LIMIT, LEAN_LIMIT))}
PROJECT = """[project]
name = "locks"
version = "0"
requires-python = ">=3.11,<{limit}"
[tool.uv]
environments = ["sys_platform == 'linux' and python_full_version < '{limit}'"]
"""
HEADER = "# Made by requirements/lock.py{source}; do not edit.\n"
SOURCES = {
    "cpu": " from requirements.txt",
    "lean": " from pyproject.toml and requirements.txt",
    "t5": ", for tasks that import t5; installed without what t5 asks for",
}
INDEX = "--default-index=https://pypi.org/simple"


def run_uv(uv: Path, folder: Path, *arguments: str | Path) -> str:
    """Returns what `uv pip compile` prints, run in `folder` without the caller's settings; raises SystemExit."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    command = [uv, "pip", "compile", *arguments, "--quiet", "--no-header", "--no-annotate", INDEX]
    done = subprocess.run(command, cwd=folder, env=variables, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"uv pip compile {' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def resolved(
    uv: Path, folder: Path, wanted: Sequence[str], constraints: Sequence[str] = (), choices: Sequence[str] = ()
) -> dict[str, str]:
    """Returns package==version -> its lines with marker and hashes, of the wanted ones and all that they need."""
    (folder / "wanted.txt").write_text("\n".join(wanted) + "\n")
    (folder / "constraints.txt").write_text("\n".join(constraints) + "\n")
    text = run_uv(
        uv, folder, "wanted.txt", "--constraint=constraints.txt", "--universal", "--python-version=3.11",
        "--generate-hashes", "--no-emit-index-url", *choices,
    )  # fmt: skip
    found = {}
    for lines in re.split(r"\n(?=\S)", text.strip()):
        first, *hashes = lines.split("\n")
        requirement, _, marker = first.removesuffix(" \\").partition(" ; ")
        if " or " not in marker:  # what is the same on all lines says nothing
            marker = " and ".join(part for part in marker.split(" and ") if part not in SUPPORTED)
        found[requirement] = "\n".join([requirement + (f" ; {marker}" if marker else "") + " \\", *hashes])
    return found


def wanted_for(extra: str, pins: Sequence[str], pythons: Sequence[str]) -> list[str]:
    """Returns the pins, and jax's extra at each pinned version that one of the Pythons takes."""
    lines = [pin.replace("jax==", f"jax[{extra}]==") for pin in pins if pin.startswith("jax==")]
    return [*pins, *(line for line in lines if pythons != ["3.11"] or "< '3.12'" in line)]


def all_pins(name: str = "requirements.txt") -> list[str]:
    """Returns the pins of a file."""
    pinned = (ROOT / name).read_text()
    return [pin.strip() for pin in re.findall(r"^[\w.-]+==[^#\n]+", pinned, re.MULTILINE)]


def lean(uv: Path, folder: Path, *extras: str) -> dict[str, str]:
    """Returns what pyproject.toml and LEAN_EXTRAS ask for, of the pinned versions, with jax's extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [requirement.replace("jax>", f"jax[{','.join(extras)}]>") for requirement in project["dependencies"]]
    wanted += [line for extra in LEAN_EXTRAS for line in project["optional-dependencies"][extra]]
    wanted.append("requests")  # of jax[tpu], which lock-tpu.txt leaves to its base
    return resolved(uv, folder / "lean", wanted, all_pins())


def of_t5(uv: Path, folder: Path, pins: Sequence[str], tests: Sequence[str]) -> dict[str, str]:
    """Returns the package t5 itself, and what importing it needs, of the versions that are pinned."""
    alone = resolved(uv, folder, [T5], choices=["--no-deps"])
    needed = resolved(uv, folder, [*pins, *OF_T5], tests)
    return needed | alone


def write(uv: Path, folder: Path) -> None:
    """Writes all locks."""
    pins = all_pins()
    locks = {"cpu": resolved(uv, folder, pins), "build": resolved(uv, folder, BUILD, pins)}
    locks |= {"uv": resolved(uv, folder, [UV]), "lean": lean(uv, folder)}
    assert locks["cpu"].keys() >= locks["lean"].keys(), "requirements.txt does not pin all of pyproject.toml's"
    for lock, extra in EXTRAS.items():
        whole = resolved(uv, folder, wanted_for(extra, pins, PYTHONS.get(lock, ALL_PYTHONS)))
        assert whole.items() >= locks["cpu"].items(), f"{lock} changes what requirements.txt pins"
        locks[lock] = {package: lines for package, lines in whole.items() if package not in locks["cpu"]}
    beside = [*all_pins("requirements-results.txt"), *all_pins("requirements-test.txt")]
    with_t5 = of_t5(uv, folder, pins, beside)
    assert with_t5.items() >= locks["cpu"].items(), "t5 changes what requirements.txt pins"
    locks["t5"] = {package: lines for package, lines in with_t5.items() if package not in locks["cpu"]}
    for lock, packages in locks.items():
        source = f", for jax[{EXTRAS[lock]}]" if lock in EXTRAS else SOURCES.get(lock, "")
        base = "-r lock-cpu.txt\n" if lock in ADDED else ""
        text = HEADER.format(source=source) + base + "\n".join(packages.values()) + "\n"
        (ROOT / "requirements" / f"lock-{lock}.txt").write_text(text)
        print(f"requirements/lock-{lock}.txt: {len(packages)} packages")


def check(uv: Path, folder: Path) -> None:
    """Resolves all locks; raises SystemExit where one cannot be installed or lacks a requirement."""
    without_t5 = folder / "lock-t5.txt"  # what t5 asks for is left out on purpose
    of_t5 = (ROOT / "requirements" / "lock-t5.txt").read_text().replace("-r ", f"-r {ROOT}/requirements/")
    without_t5.write_text(re.sub(rf"{T5}.*(\n    .*)*\n", "", of_t5))
    for path in sorted((ROOT / "requirements").glob("lock-*.txt")):
        lock = path.stem.removeprefix("lock-")
        if lock == "build":  # a package's build runs beside what lock-cpu.txt has
            continue
        for python in PYTHONS.get(lock, ALL_PYTHONS):
            for machine in ("x86_64", "aarch64") if python == "3.12" and lock != "tpu" else ("x86_64",):
                platform = f"--python-platform={machine}-manylinux_2_31"
                wheels = ["--only-binary=:all:"] if python == NEXT_PYTHON else []  # it waits for no library
                asked = without_t5 if lock == "t5" else path
                text = run_uv(uv, folder, asked, f"--python-version={python}", platform, *wheels)
                found = set(re.findall(r"^([\w.-]+==[^\s;]+)", text, re.MULTILINE))
                files = [path, *([path.parent / "lock-cpu.txt"] if lock in ADDED else [])]
                known = "\n".join(file.read_text() for file in files)
                if missing := sorted(name for name in found if f"{name} " not in known):
                    raise SystemExit(f"{path.name} on Python {python}, {machine}, lacks {', '.join(missing)}")
                print(f"{path.name}: {len(found)} packages on Python {python}, {machine}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place, limit in ((folder, LIMIT), (folder / "lean", LEAN_LIMIT)):
            place.mkdir(exist_ok=True)
            (place / "pyproject.toml").write_text(PROJECT.format(limit=limit))
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([folder / "venv/bin/python", "-m", "pip", "install", "--quiet", UV], check=True)
        (check if sys.argv[1:] == ["--check"] else write)(folder / "venv/bin/uv", folder)


if __name__ == "__main__":
    main()
