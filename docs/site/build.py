"""Builds the docs site: python docs/site/build.py [FOLDER], by default site/.

The pages are written into a folder first, since half of them are made from the code or lie outside of docs/; then
zensical makes the site, or mkdocs where only that is installed: both read mkdocs.yml.
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "docs").mkdir()
        reference.write(folder / "docs")
        text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
        text = text.replace("paths: [.]", f"paths: [{ROOT}]").replace("[docs/site/", f"[{ROOT}/docs/site/")
        (folder / "mkdocs.yml").write_text(text, encoding="utf-8")
        program = "zensical" if importlib.util.find_spec("zensical") else "mkdocs"
        command = [sys.executable, "-m", program, "build", "--strict"]
        variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        ended = subprocess.run(command, cwd=folder, env=variables, check=False)
        if ended.returncode == 0:
            _name_languages(folder / "site")
            shutil.copytree(folder / "site", place, dirs_exist_ok=True)
        return ended.returncode


def _name_languages(site: Path) -> None:
    """Writes the language of each translated page, such as start.ja.html, into it: the program knows only one."""
    for path in site.rglob("*.html"):
        language = Path(path.stem).suffix.removeprefix(".")
        if language in reference.LANGUAGES:
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace('<html lang="en"', f'<html lang="{language}"', 1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
