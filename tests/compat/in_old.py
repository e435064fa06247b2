"""What transformers 4.57.6 does in `test_models.py`, in one process: python in_old.py DIRECTORY, which has `ours_4`."""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path

import transformers

from tests.compat import families


class Kept(logging.Handler):
    """The lines of a log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main(directory: Path) -> None:
    transformers.utils.logging.disable_progress_bar()
    lines = Kept()
    logging.getLogger("transformers").addHandler(lines)
    families.write(directory / "by_4")
    gaps, said = families.go_through(
        directory / "ours_4", directory / "again_by_4", directory / "tuned_by_4", lines.lines
    )
    for card in sorted(directory.glob("cards/*/README.md")):
        os.chdir(card.parent)
        exec(compile(families.code_of(card), str(card), "exec"), {})
    (directory / "in_old.json").write_text(
        json.dumps({"version": transformers.__version__, "differences": gaps, "said": said})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
