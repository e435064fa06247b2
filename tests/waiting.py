"""Waiting for what another thread or process does: as long as a busy machine needs, and no longer than it takes."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import psutil

MOST_SECONDS = 400.0


def wait_until(is_so: Callable[[], object], seen: Callable[[], object] = lambda: "", every: float = 0.01) -> None:
    """Returns when the condition holds; after MOST_SECONDS it fails with what is `seen` then."""
    deadline = time.monotonic() + MOST_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, seen()
        time.sleep(every)


class Clock:
    """A clock that only the test turns, in place of the module `time` in what waits by it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now

    def turn(self, seconds: float, tick: float) -> None:
        """Lets so much time pass, in ticks each of which has been seen."""
        for _ in range(round(seconds / tick)):
            self.now += tick
            before = self.looks
            wait_until(lambda before=before: self.looks > before + 1)


class Patience:
    """Lets no test wait without end for a program that it has started: tests/conftest.py has it for each test.

    What a test reads from a program ends with the program. So a test that still waits after `most_seconds` loses all
    that were started, fails with what they have written so far, and names them.
    """

    def __init__(self, most_seconds: float) -> None:
        self.most_seconds = most_seconds
        self._running: tuple[float, list[str]] | None = None  # when the time of a test is over, and what was ended then
        self._lock = threading.Lock()  # so that no program of the next test is ended for this one
        self._thread = threading.Thread(target=self._look, daemon=True, name="patience")

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Fails where the time was over, or adds the reason to the failure that follows from it."""
        if not self._thread.is_alive():
            self._thread.start()
        ended: list[str] = []
        self._running = (time.monotonic() + self.most_seconds, ended)
        try:
            yield
        except BaseException as error:
            if ended:
                error.add_note(self._sentence(ended))
            raise
        finally:
            with self._lock:
                self._running = None
        assert not ended, self._sentence(ended)

    def _sentence(self, ended: list[str]) -> str:
        return "\n".join([f"What the test had started was ended after {self.most_seconds:,.0f} s:", *ended])

    def _look(self) -> None:
        while True:
            time.sleep(min(1.0, self.most_seconds))
            with self._lock:
                running = self._running
                if running is not None and time.monotonic() > running[0]:
                    self._running = None
                    running[1].extend(end_children())


def end_children() -> list[str]:
    """Kills all programs that this process has started, and those that they have; returns the command of each."""
    ended = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            ended.append(" ".join(child.cmdline())[:300])
            child.kill()
    return ended
