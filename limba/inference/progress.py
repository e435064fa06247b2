"""How much of a long piece of work is done: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from limba.training.metrics.records import duration

SECONDS_BETWEEN = 30.0  # two lines, where there is no terminal


class Progress:
    """Counts lines, and shows how many of `total` are done, how fast, and how long the rest takes.

    On a terminal it is tqdm's bar, elsewhere a line on stderr now and then. `done` lines were done before the start.
    Without a total the time left is not known. With `shows=False` it prints nothing. Other things than lines are named
    by `unit`, and what is done with them by `what`. A speed below one a second is left out.
    """

    def __init__(self, total: int | None, done: int, shows: bool = True, unit: str = "line", what: str = ""):
        self._total = total
        self._done = done
        self._done_before = done  # says nothing of the speed
        self._unit = unit
        self._what = what
        is_terminal = sys.stderr.isatty()
        self._prints = shows and not is_terminal
        has_bar = shows and is_terminal
        self._bar = tqdm(None, what or None, total, unit=unit, initial=done, disable=not has_bar, dynamic_ncols=True)
        self._start = time.monotonic()
        self._printed = self._start

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def update(self, number: int = 1, is_new: bool = True) -> None:
        """Counts one line, or several. Those that are not new were done by an earlier start, and took no time now."""
        self._done += number
        if not is_new:
            self._done_before += number
        self._bar.update(number)
        now = time.monotonic()
        if self._prints and now - self._printed >= SECONDS_BETWEEN:
            self._printed = now
            print(self.sentence(now - self._start), file=sys.stderr, flush=True)

    def sentence(self, seconds: float) -> str:
        """Returns in words how much is done `seconds` after the start.

        >>> progress = Progress(500, 100, False)
        >>> for _ in range(100): progress.update()
        >>> progress.sentence(50.0)
        '200 of 500 lines, 2.0 lines/s, ETA 2 min 30 s'
        >>> progress = Progress(5, 0, False, "outcome", "ro")
        >>> progress.update(2, is_new=False); progress.update()
        >>> progress.sentence(60.0)
        'ro: 3 of 5 outcomes, ETA 2 min 0 s'
        """
        speed = (self._done - self._done_before) / max(seconds, 1e-9)
        units = f"{self._unit}s"
        what = f"{self._what}: " if self._what else ""
        if self._total is None:
            return f"{what}{self._done:,} {units}, {speed:.1f} {units}/s"
        left = duration((self._total - self._done) / max(speed, 1e-9))
        rate = f" {speed:.1f} {units}/s," if speed >= 1 else ""
        return f"{what}{self._done:,} of {self._total:,} {units},{rate} ETA {left}"
