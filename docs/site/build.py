"""Builds the docs site: python docs/site/build.py [FOLDER], by default site/.

mkdocs makes it by mkdocs.yml, whose hooks write the pages first, so `mkdocs build` and `mkdocs serve` do by themselves
what this does. Where zensical is installed, it makes the site: it reads mkdocs.yml too, but has no hooks, so its pages
are written here.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import reference

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str]) -> int:
    """Builds the site; returns the exit status. Warnings are errors."""
    place = Path(arguments[0] if arguments else ROOT / "site").resolve()
    if importlib.util.find_spec("zensical"):
        return by_zensical(place)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={place}"]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


def by_zensical(place: Path) -> int:
    """Builds the site in a folder of its own, and copies it to `place`; returns the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "docs").mkdir()
        reference.write(folder / "docs")
        text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
        text = text.replace("paths: [.]", f"paths: [{ROOT}]").replace("[docs/site/", f"[{ROOT}/docs/site/")
        (folder / "mkdocs.yml").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        ended = subprocess.run(command, cwd=folder, check=False)
        if ended.returncode == 0:
            reference.name_languages(folder / "site")
            shutil.copytree(folder / "site", place, dirs_exist_ok=True)
        return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
