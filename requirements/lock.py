"""Writes requirements/lock-*.txt: all packages that launch/setup.sh installs, each with the hashes of its files.

    python requirements/lock.py

Run it after a change of requirements.txt. It asks PyPI, with uv in an environment of its own, for Linux and Python
3.11 to 3.13. lock-cpu.txt has what requirements.txt pins. The other locks add what jax needs for their chips.
lock-build.txt has what builds the few packages that have no wheel.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

UV = "uv==0.13.9"
ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"tpu": "tpu", "cuda12": "cuda12", "cuda13": "cuda13", "rocm": "rocm7-local"}  # lock: jax's extra
# promise and rouge_score are built with the first two; editdistance, on Python 3.13, with the others.
BUILD = ("setuptools", "wheel", "Cython", "pdm-backend")
SUPPORTED = "sys_platform == 'linux' and python_full_version < '3.14'"
PROJECT = f"""[project]
name = "locks"
version = "0"
requires-python = ">=3.11,<3.14"
[tool.uv]
environments = ["{SUPPORTED}"]
"""
HEADER = "# Made by requirements/lock.py{source}; do not edit.\n"


def resolved(uv: Path, folder: Path, wanted: Sequence[str], constraints: Sequence[str] = ()) -> dict[str, str]:
    """Returns package -> its lines with version and hashes, of the wanted ones and all that they need."""
    (folder / "wanted.txt").write_text("\n".join(wanted) + "\n")
    (folder / "constraints.txt").write_text("\n".join(constraints) + "\n")
    command = [
        uv, "pip", "compile", "wanted.txt", "--constraint=constraints.txt", "--quiet", "--universal",
        "--python-version=3.11", "--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate",
        "--default-index=https://pypi.org/simple",
    ]  # fmt: skip
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    text = subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True, text=True).stdout
    found = {}
    for lines in re.split(r"\n(?=\S)", text.strip()):
        first, *hashes = lines.split("\n")
        requirement, _, marker = first.removesuffix(" \\").partition(" ; ")
        # The same marker on all lines says nothing.
        rest = "" if set(marker.split(" and ")) <= set(SUPPORTED.split(" and ")) else f" ; {marker}"
        found[requirement.partition("==")[0]] = "\n".join([f"{requirement}{rest} \\", *hashes])
    return found


def main() -> None:
    pinned = (ROOT / "requirements.txt").read_text()
    pins = re.findall(r"^[\w.-]+==[^\s#]+", pinned, re.MULTILINE)
    jax = next(pin for pin in pins if pin.startswith("jax==")).partition("==")[2]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pyproject.toml").write_text(PROJECT)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([folder / "venv/bin/python", "-m", "pip", "install", "--quiet", UV], check=True)
        uv = folder / "venv/bin/uv"
        locks = {"cpu": resolved(uv, folder, pins), "build": resolved(uv, folder, BUILD, pins)}
        for lock, extra in EXTRAS.items():
            whole = resolved(uv, folder, [*pins, f"jax[{extra}]=={jax}"])
            assert whole.items() >= locks["cpu"].items(), f"{lock} changes what requirements.txt pins"
            locks[lock] = {package: lines for package, lines in whole.items() if package not in locks["cpu"]}
    for lock, packages in locks.items():
        source = f", for jax[{EXTRAS[lock]}]" if lock in EXTRAS else " from requirements.txt" if lock == "cpu" else ""
        base = "-r lock-cpu.txt\n" if lock in EXTRAS else ""
        text = HEADER.format(source=source) + base + "\n".join(packages.values()) + "\n"
        (ROOT / "requirements" / f"lock-{lock}.txt").write_text(text)
        print(f"requirements/lock-{lock}.txt: {len(packages)} packages")


if __name__ == "__main__":
    main()
