"""Environments with the packages of other programs, made once and kept for the next night."""

import hashlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

import filelock
import pytest

CACHE = Path("~/.cache/limba/environments").expanduser()
COMPLETE = "complete"  # a file of an environment whose packages are all there


def environment_with(packages: tuple[str, ...], sees_tests: bool = False) -> Path:
    """Returns the Python of an environment with these packages, and with the tests' if it `sees_tests`.

    It needs the network once, minutes and some GB; skips the test where pip reaches no index.
    """
    facts = (packages, sys.version_info[:2], *([sysconfig.get_path("purelib")] if sees_tests else []))
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=4).hexdigest()
    first = re.sub(r"\[.*\]", "", packages[0])  # without its extras
    folder = CACHE / f"{first.replace('==', '-')}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    with filelock.FileLock(f"{folder}.lock"):
        if (folder / COMPLETE).exists():
            return python
        venv.EnvBuilder(with_pip=True, clear=True).create(folder)
        if sees_tests:
            (site,) = folder.glob("lib/python*/site-packages")
            tests_packages = sysconfig.get_path("purelib")
            # As Python opens its own: the folders that its .pth files name, and what is installed to be edited, too.
            (site / "tests.pth").write_text(f"import site; site.addsitedir({tests_packages!r})\n")
        command = [python, "-m", "pip", "install", "-q", *packages]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode == 0:
            (folder / COMPLETE).touch()
            return python
    if has_index():
        pytest.fail(f"{', '.join(packages)} cannot be installed: {ended.stderr[-2000:]}")
    pytest.skip(f"pip reaches no index, so {packages[0]} cannot be installed")


def has_index() -> bool:
    """Whether pip can download a small package."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", folder, "packaging"]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
