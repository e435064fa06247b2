"""How far this process is, and how fast: what it adds to its heartbeats, and the file in which process 0 keeps them.

A step's exchanges make all processes wait for the slowest, so all have the same time per step. What tells them apart
is the time for which each waits for its own data.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from limba.storage.files import write_whole

FILE = "hosts.json"
FILE_SECONDS, BUCKET_SECONDS = 5.0, 30.0  # between two writes, to a disk and to a bucket
STEPS = 20  # whose mean counts: steps are started ahead of the devices, and waited for at some of them


class Progress:
    """The last steps of this process."""

    def __init__(self) -> None:
        self._step = 0
        self._ended, self._waits = 0.0, collections.deque[float](maxlen=STEPS)
        self._times = collections.deque[float](maxlen=STEPS)
        self._waited = 0.0

    def step(self, step: int) -> None:
        """Says that a step has been started, which its data was waited for."""
        now = time.monotonic()
        if self._ended:
            self._times.append(now - self._ended)
            self._waits.append(self._waited)
        self._step, self._ended, self._waited = step, now, 0.0

    def waited(self, seconds: float) -> None:
        """Says for how long the next step's data was waited for."""
        self._waited += seconds

    def report(self) -> dict[str, Any]:
        """Returns the step, and the means of the seconds per step and of those that its data took."""
        times, waits = list(self._times), list(self._waits)
        if not times or not waits:
            return {"step": self._step}
        return {
            "step": self._step,
            "seconds_per_step": round(statistics.fmean(times), 4),
            "seconds_for_data": round(statistics.fmean(waits), 4),
        }


@functools.cache
def progress() -> Progress:
    """Returns the progress of this process; there is one, as there is one loop."""
    return Progress()


@contextlib.contextmanager
def kept(model_dir: str, states: Callable[[], list[dict[str, Any]]]) -> Iterator[None]:
    """Writes `states()` to hosts.json in `model_dir` every few seconds inside, in a thread that no error ends."""
    seconds = BUCKET_SECONDS if "://" in model_dir else FILE_SECONDS
    over = threading.Event()

    def write() -> None:
        while not over.wait(seconds):
            record = {"format": 1, "written_every_seconds": seconds, "pid": os.getpid(), "processes": states()}
            with contextlib.suppress(Exception):  # the lease, which is written as often, says what is wrong
                write_whole(f"{model_dir.rstrip('/')}/{FILE}", json.dumps(record) + "\n")

    thread = threading.Thread(target=write, daemon=True, name="hosts")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1.0)
