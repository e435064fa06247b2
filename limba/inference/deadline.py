"""The time that an answer may take."""

from __future__ import annotations

import time
from collections.abc import Callable


class TimeIsOverError(Exception):
    """An answer has taken longer than its time; `num_tokens` had been written, or None."""

    def __init__(self, seconds: float, num_tokens: int | None = None):
        super().__init__(f"no answer within {seconds:g} seconds")
        self.seconds, self.num_tokens = seconds, num_tokens


class Deadline:
    """The end of so many seconds, counted from its creation by `clock`."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self.seconds, self.clock = seconds, clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Returns the seconds until then, negative after it."""
        return self._end - self.clock()

    def check(self, num_tokens: int | None = None) -> None:
        """Raises TimeIsOverError after it."""
        if self.left() <= 0:
            raise TimeIsOverError(self.seconds, num_tokens)
