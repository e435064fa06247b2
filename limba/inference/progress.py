"""How far a command is with its lines, parts or files: a bar on a terminal, else a line on stderr now and then."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from limba.training.metrics.records import duration

SECONDS_BETWEEN = 30.0  # of lines where there is no terminal


class Progress:
    """Counts lines, `done` of them before the start; says how many of `total` are there, how fast and how long yet.

    Without a total no time is said. With `shows=False` it says nothing. `what` is done with other things than lines,
    `unit` each; it may stand for one of tqdm's bars.
    """

    def __init__(self, total: int | None, done: int, shows: bool = True, unit: str = "line", what: str = ""):
        self._total, self._done, self._begun, self._unit, self._what = total, done, done, unit, what
        is_terminal = sys.stderr.isatty()
        self._says = shows and not is_terminal
        self._bar = tqdm(
            total=total,
            desc=what or None,
            unit=unit,
            initial=done,
            disable=not (shows and is_terminal),
            dynamic_ncols=True,
        )
        self._start = self._said = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def update(self, number: int = 1) -> None:
        """Counts one line, or several."""
        self._done += number
        self._bar.update(number)
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
        speed, units = (self._done - self._begun) / max(seconds, 1e-9), f"{self._unit}s"
        what = f"{self._what}: " if self._what else ""
        if self._total is None:
            return f"{what}{self._done:,} {units}, {speed:.1f} {units}/s"
        left = duration((self._total - self._done) / max(speed, 1e-9))
        return f"{what}{self._done:,} of {self._total:,} {units}, {speed:.1f} {units}/s, ETA {left}"
