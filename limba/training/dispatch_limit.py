"""How many steps the host may begin before the devices have computed them."""

import math
import time
from collections import deque
from typing import Any

import jax

SECONDS_AHEAD = 1.0  # of steps that have begun and not ended: a stop is carried out after them
FEWEST = 2  # steps; with two the devices need not wait for the host
MOST = 32  # steps, which jax begins at most


class DispatchLimit:
    """Holds the host back while more than a second's steps have begun and not ended, at least two.

    jax returns from a step before it is computed, and lets a program begin 32 of them. With steps of two seconds a
    request to stop would be carried out a minute later, when a preempted machine is gone.
    """

    def __init__(self) -> None:
        self._begun: deque[Any] = deque()  # an array of each step that may not have ended
        self._seconds = deque([math.inf] * 4, maxlen=4)  # of the last steps waited for; the longest counts
        self._waited: float | None = None  # until when, for the step that began before the oldest one

    def add(self, result: Any) -> None:
        """Takes an array with which the step that has just begun ends; returns when another step may begin."""
        self._begun.append(result)
        longest = max(*self._seconds, 1e-6)
        most = min(max(FEWEST, int(SECONDS_AHEAD / longest)), MOST)
        while self._begun and (self._begun[0].is_ready() or len(self._begun) > most):
            oldest = self._begun.popleft()
            if oldest.is_ready():
                self._waited = None
                continue
            jax.block_until_ready(oldest)
            now = time.monotonic()
            if self._waited is not None:
                self._seconds.append(now - self._waited)
            self._waited = now
