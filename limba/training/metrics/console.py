"""The console of a run: few short rows, and one line of progress on a terminal."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence

from tqdm import tqdm

from limba.config import without_credentials

SECONDS_BETWEEN = 10.0  # of rows of progress where there is no terminal
WIDTH = 80  # columns of a row at most; fewer where the terminal is narrower
GAP = re.compile(r"<extra_id_\d+>|<mask>")
PROGRESS = "training {bar} {n_fmt}/{total_fmt}{postfix}"
PROGRESS_WITHOUT_END = "training, step {n_fmt}{postfix}"  # of a run that ends with its corpus


class Console:
    """The console of a run's first process. The run goes on if the console is gone or full.

    `start` is the step that the run begins at, `train_steps` its last one, if that is known. On a terminal the progress
    is one line that is drawn again; elsewhere it is a row every SECONDS_BETWEEN, the first and the last among them.
    """

    def __init__(self, start: int, train_steps: int | None):
        self._start = start
        self._train_steps = train_steps
        self._is_terminal = sys.stderr.isatty()
        self._progress_due = 0.0  # when the next row of progress is shown, where there is no terminal
        self._pending = ""  # the newest row of progress, not shown yet
        self._bar: tqdm | None = None

    def say(self, row: str) -> None:
        """Prints a row, above the line of progress if there is one."""
        try:
            tqdm.write(without_credentials(row), file=sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:  # its reader has ended
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError:
            return

    def advance(self, step: int) -> None:
        """Moves the line of progress of a terminal, and draws it at the first step."""
        if not self._is_terminal:
            return
        if self._bar is None:
            form = PROGRESS if self._train_steps else PROGRESS_WITHOUT_END
            self._bar = tqdm(
                total=self._train_steps,
                initial=self._start,
                dynamic_ncols=True,
                bar_format=form,
                leave=False,
            )
        self._bar.update(step - self._bar.n)

    def progress(self, step: int, figures: str) -> None:
        """Shows a step and its figures; where there is no terminal, seldom."""
        if self._bar is not None:
            self._bar.set_postfix_str(figures)
            return
        end = f"/{self._train_steps:,}" if self._train_steps else ""
        self._pending = f"step {step:,}{end} | {figures}"
        if time.monotonic() >= self._progress_due or step == self._train_steps:
            self._say_pending()

    def _say_pending(self) -> None:
        if self._pending:
            self.say(self._pending)
        self._pending = ""
        self._progress_due = time.monotonic() + SECONDS_BETWEEN

    def saved(self, step: int, path: object) -> None:
        """Shows that a step is saved; a terminal shows only progress, and the log has this."""
        if not self._is_terminal:
            self._say_pending()
            self.say(f"step {step:,} saved in {path}")

    def close(self) -> None:
        """Shows the last progress; the line of a terminal goes, since the rows after it say how the run has ended."""
        self._say_pending()
        if self._bar is not None:
            self._bar.close()


class Warnings(logging.Handler):
    """Copies warnings, which the console shows, to the log of a run, except from `writer`, which writes the log."""

    def __init__(self, append: Callable[[str], None], writer: logging.Logger):
        super().__init__(logging.WARNING)
        self._append = append
        self._writer = writer.name

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != self._writer:  # it warns that the log cannot be written
            self._append(record.getMessage())


def shortened(row: str) -> str:
    """Returns a row of at most WIDTH columns, and of no more than a terminal has, cut with … where it is longer.

    >>> shortened("a" * 120)[-3:], shortened("short")
    ('aa…', 'short')
    """
    width = WIDTH
    if sys.stdout.isatty():
        width = min(WIDTH, shutil.get_terminal_size().columns)
    return row if len(row) <= width else row[: width - 1] + "…"


def filled(masked: str, written: str, hidden: Sequence[str]) -> str:
    """Returns a sentence with the model's fills beside the hidden words; "" where these are not all known.

    `written` is the sentence as the model has filled it, its fills in [brackets].

    >>> filled("A <extra_id_0> is a <extra_id_1>.", "A [set] is a [the].", ("set", "list"))
    'A [set ✓] is a [the, not list].'
    """
    fills = re.findall(r"\[(.*?)\]", written)
    if not hidden or len(fills) != len(hidden):
        return ""
    pairs = iter(zip(fills, hidden, strict=True))

    def beside(_: re.Match[str]) -> str:
        fill, word = next(pairs)
        return f"[{fill} ✓]" if fill.strip() == word else f"[{fill}, not {word}]"

    return GAP.sub(beside, masked)
