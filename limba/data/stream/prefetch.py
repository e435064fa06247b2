"""Prefetches the batches of shards, with a few threads that serve all shards in turn.

With a thread for each shard, sixteen of them on a few cores wake one another more than they work.
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
    """Returns the number of threads with which one reading process makes the batches of `num_shards` shards.

    Two for each core, since each waits for the interpreter.
    """
    return max(1, min(num_shards, 2 * (os.cpu_count() or 1) // num_processes))


class Prefetch(Generic[Batch]):
    """A queue of batches, which `make` returns a few at a time; the pool fills it up to `num_batches`.

    One thread calls `request`, `take` and `paused`. An error in `make` is raised by the `take` of its batches.
    """

    def __init__(self, make: Callable[[], Sequence[Batch]], pool: ThreadPoolExecutor, num_batches: int):
        self._make, self._pool, self._num_batches = make, pool, num_batches
        self._lock = threading.Lock()  # locked while batches are made
        self._made: deque[Batch] = deque()
        self._making: Future[None] | None = None  # the last call
        self._failure: BaseException | None = None  # of the last call

    def request(self) -> None:
        """Requests more batches, unless the queue is full, a request is running, or the last one failed."""
        is_idle = self._making is None or (self._making.done() and self._making.exception() is None)
        if is_idle and len(self._made) < self._num_batches:
            self._making = self._pool.submit(self._make_some)

    def _make_some(self) -> None:
        with self._lock:
            try:
                self._made.extend(self._make())
            except BaseException as error:
                self._failure = error
                raise

    def take(self) -> Batch:
        """Returns the next batch; waits until it is ready."""
        self.wait()
        return self._made.popleft()

    def wait(self) -> None:
        """Waits until the next batch is ready; raises what `take` would raise, and takes nothing."""
        while not self._made:
            self.request()
            if self._making is not None:
                self._making.result()

    def put_back(self, batch: Batch) -> None:
        """Puts the batch that was taken last before the others again."""
        self._made.appendleft(batch)

    @property
    def failure(self) -> BaseException | None:
        """The error of `make` if it has failed: what it had taken from its source by then is lost."""
        return self._failure

    @contextlib.contextmanager
    def paused(self) -> Iterator[list[Batch]]:
        """Yields the batches in the queue; no batches are made inside the context."""
        with self._lock:
            yield list(self._made)

    def start_with(self, batches: Sequence[Batch]) -> None:
        """Puts batches into the queue before the first request."""
        self._made.extend(batches)
