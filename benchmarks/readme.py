"""Runs the demo and writes what it shows into README.md: a part of its output, its loss, and pictures of its pages.

    python -m benchmarks.readme

The part is chosen by the lines that README.md has now: each takes the numbers of the run's own line, `…` stays.
`tests/run/test_readme.py` compares the lines with those of a shorter run, numbers aside.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(?<=```text\n).*?(?=```)", re.DOTALL)
PICTURE = ROOT / "docs" / "demo_loss.png"
CUT = "…"  # stands alone where lines are left out, and at the end of a line that is cut
NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]\d+)?|\bnan\b")


def demo(folder: Path, *arguments: str, **variables: str) -> list[str]:
    """Returns the lines that launch/demo.sh prints, started in this folder, in which it writes runs/demo.

    It installs nothing there: its Python is this one.
    """
    shutil.copytree(ROOT / "launch", folder / "launch")
    (folder / "launch" / "setup.sh").write_text("exit 0\n")
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("MODEL_DIR", "CORPUS", "STEPS")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **variables}
    command = ["bash", str(folder / "launch" / "demo.sh"), *arguments]
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise InputError(f"The demo ended with {ended.returncode}:\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")
    return ended.stdout.replace(f"{folder}/", "").splitlines()


def form(line: str) -> str:
    """Returns a line without its numbers, spaces made one.

    >>> form("step 20/600 | loss 7.842 | ETA 1 m")
    'step #/# | loss # | ETA # m'
    """
    return " ".join(NUMBER.sub("#", line).split())


def kind(line: str) -> str:
    """Returns what a line is about: its beginning, up to the first text that differs between runs.

    >>> kind("step 800 sample: The [of, not set] is"), kind("  the hidden word is among five in 40% of 200 gaps (the")
    ('step # sample', 'the hidden word is among five in #% of # gaps')
    """
    return re.split(r"[:|(]", form(line))[0].strip()


def shown() -> list[str]:
    """Returns the lines of README.md's output."""
    (block,) = BLOCK.findall(README.read_text(encoding="utf-8"))
    return block.splitlines()


def counterpart(line: str, printed: Sequence[str]) -> str | None:
    """Returns the last printed line with the form of a line of README.md, cut where that is cut; None if there is none.

    Of lines of training, which are many, the last is the one with the most to say.
    """
    wanted = form(line.removesuffix(CUT))
    for other in reversed(printed):
        if form(other) == wanted:
            return other
        if line.endswith(CUT) and (cut := _beginning(other, wanted)) is not None:
            return cut + CUT
    return None


def _beginning(line: str, wanted: str) -> str | None:
    """Returns the part of a line, from its beginning, that has the form `wanted`."""
    for end in range(len(line), 0, -1):
        if form(line[:end]) == wanted:
            return line[:end]
    return None


def main(argv: Sequence[str]) -> int:
    Parser("-m benchmarks.readme", __doc__ or "", "python").parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        printed = demo(Path(folder))
        lines = [line if line == CUT else counterpart(line, printed) for line in shown()]
        lost = [line for line, found in zip(shown(), lines, strict=True) if found is None]
        if lost:
            raise InputError(f"README.md shows lines that the demo does not print: {lost}")
        subprocess.run([sys.executable, "-m", "limba", "report", f"{folder}/runs/demo"], cwd=ROOT, check=True)
        shutil.copyfile(Path(folder, "runs", "demo", "loss.png"), PICTURE)
        text = "\n".join(line for line in lines if line is not None)
        README.write_text(BLOCK.sub(lambda _: f"{text}\n", README.read_text(encoding="utf-8")), encoding="utf-8")
        subprocess.run([sys.executable, "docs/site/screenshots.py", f"{folder}/runs/demo"], cwd=ROOT, check=True)
    print(f"{len(lines)} lines of README.md and the pictures are those of this run.")
    return 0


if __name__ == "__main__":
    sys.exit(program.exit_code(main, sys.argv[1:]))
