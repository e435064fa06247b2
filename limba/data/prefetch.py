"""A shard's batches made before they are asked for, by a few threads that take the shards in turn.

tf.data's own `prefetch` is a thread for each shard; sixteen of them on a few cores wake one another more
than they work.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Batch = TypeVar("Batch")


def num_threads(num_shards: int, num_processes: int = 1) -> int:
    """Returns how many threads of one of the reading processes make the batches of so many shards.

    Two a core, since each waits for the interpreter.
    """
    return max(1, min(num_shards, 2 * (os.cpu_count() or 1) // num_processes))


class Prefetch(Generic[Batch]):
    """The batches that `make` returns, some at a time, made by the pool until `num_ahead` are there to be taken.

    One thread asks, takes and holds; an error of `make` is raised where its batches would have been taken.
    """

    def __init__(self, make: Callable[[], Sequence[Batch]], pool: ThreadPoolExecutor, num_ahead: int):
        self._make, self._pool, self._num_ahead = make, pool, num_ahead
        self._lock = threading.Lock()  # held while batches are made
        self._made: deque[Batch] = deque()
        self._making: Future[None] | None = None  # the last call

    def ask(self) -> None:
        """Has more batches made, unless `num_ahead` are there, some are being made, or the last call failed."""
        free = self._making is None or (self._making.done() and self._making.exception() is None)
        if free and len(self._made) < self._num_ahead:
            self._making = self._pool.submit(self._make_some)

    def _make_some(self) -> None:
        with self._lock:
            self._made.extend(self._make())

    def take(self) -> Batch:
        """Returns the next batch, when it is made."""
        while not self._made:
            self.ask()
            self._making.result()
        return self._made.popleft()

    @contextlib.contextmanager
    def held(self) -> Iterator[list[Batch]]:
        """Gives the batches that are made and not taken; none is made meanwhile."""
        with self._lock:
            yield list(self._made)

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Sets the batches that are taken first; before any is asked for."""
        self._made.extend(batches)
