"""How far a command is with its lines: a bar on a terminal, else a line on stderr now and then."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from limba.training.metrics.records import duration

SECONDS_BETWEEN = 30.0  # of lines where there is no terminal


class Progress:
    """Counts lines, `done` of them before the start; says how many of `total` are there, how fast and how long yet.

    Without a total no time is said. With `shows=False` it says nothing.
    """

    def __init__(self, total: int | None, done: int, shows: bool):
        self._total, self._done, self._begun = total, done, done
        is_terminal = sys.stderr.isatty()
        self._says = shows and not is_terminal
        self._bar = tqdm(
            total=total, unit="line", initial=done, disable=not (shows and is_terminal), dynamic_ncols=True
        )
        self._start = self._said = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self) -> None:
        """Counts one line."""
        self._done += 1
        self._bar.update()
        now = time.monotonic()
        if self._says and now - self._said >= SECONDS_BETWEEN:
            self._said = now
            print(self.sentence(now - self._start), file=sys.stderr, flush=True)

    def sentence(self, seconds: float) -> str:
        """Returns how far it is after some seconds.

        >>> progress = Progress(500, 100, False)
        >>> for _ in range(100): progress.update()
        >>> progress.sentence(50.0)
        '200 of 500 lines, 2.0 lines/s, ETA 2 min 30 s'
        """
        speed = (self._done - self._begun) / max(seconds, 1e-9)
        if self._total is None:
            return f"{self._done:,} lines, {speed:.1f} lines/s"
        left = duration((self._total - self._done) / max(speed, 1e-9))
        return f"{self._done:,} of {self._total:,} lines, {speed:.1f} lines/s, ETA {left}"
