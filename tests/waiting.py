"""Waiting for what another thread or process does: as long as a busy machine needs, and no longer than it takes."""

import time
from collections.abc import Callable

MOST_SECONDS = 400.0


def wait_until(is_so: Callable[[], object], seen: Callable[[], object] = lambda: "", every: float = 0.01) -> None:
    """Returns when the condition holds; after MOST_SECONDS it fails with what is `seen` then."""
    deadline = time.monotonic() + MOST_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, seen()
        time.sleep(every)


class Clock:
    """A clock that only the test turns, in the place of the module `time` in what waits by it."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now

    def turn(self, seconds: float, tick: float) -> None:
        """Lets so much time pass, in ticks each of which has been seen."""
        for _ in range(round(seconds / tick)):
            self.now += tick
            before = self.looks
            wait_until(lambda before=before: self.looks > before + 1)
