"""Gives limba's command line one command after the other, in one process: python -m tests.run.doors COMMANDS.json.

Importing takes longer than most of them. The file holds lists of arguments; beside it `<number>.out` gets what each
prints, and statuses.json the exit statuses.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from limba.cli import main


def run(file: Path) -> None:
    statuses = []
    for number, argv in enumerate(json.loads(file.read_text())):
        with (file.parent / f"{number}.out").open("w") as out, contextlib.redirect_stdout(out):
            statuses.append(main.main(argv))
    (file.parent / "statuses.json").write_text(json.dumps(statuses))


if __name__ == "__main__":
    run(Path(sys.argv[1]))
