"""The batches of one shard that are made ahead, by a pool of a few threads that all shards of a process share."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

from limba.config import environment
from limba.data.stream.shard import ROWS_AHEAD, Made, Shard, ShardPlace


def num_threads(num_shards: int, num_processes: int = 1) -> int:
    """Returns the number of threads with which one reading process makes the batches of `num_shards` shards.

    Two for each core, since each waits for the interpreter.
    """
    return max(1, min(num_shards, 2 * environment.num_cores() // num_processes))


class Ahead:
    """A queue of a shard's batches, which the pool fills a few at a time.

    The pool's few threads serve all shards in turn: with one for each, sixteen on a few cores wake one another more
    than they work. A shard's reading is only ever moved on by one of them.

    `place` is that after the last batch taken. One thread calls the methods. An error of reading is raised by the
    `take` of its batch.
    """

    def __init__(self, shard: Shard, place: ShardPlace, pool: ThreadPoolExecutor):
        self.shard = shard
        self.place = place
        self._reading: Iterator[Made] = shard.read(place)
        self._pool = pool
        self._num_batches = max(1, ROWS_AHEAD // shard.recipe.config.rows_per_shard)
        # The first batch of a source of others, which is slow, does not wait for those after it.
        self._at_once = shard.recipe.batches_at_once if shard.recipe.is_exact else 1
        self._made: deque[Made | None] = deque()
        self._making: Future[None] | None = None  # the last call
        self.failure: BaseException | None = None  # of the last call

    def request(self) -> None:
        """Requests more batches, unless enough are there, a request is running, or the last one failed."""
        is_idle = self._making is None or (self._making.done() and self.failure is None)
        if is_idle and len(self._made) < self._num_batches:
            self._making = self._pool.submit(self._make)

    def _make(self) -> None:
        try:
            num_made = 0
            for made in itertools.islice(self._reading, self._at_once):
                self._made.append(made)
                num_made += 1
            if not num_made:
                self._made.append(None)
            self._at_once = self.shard.recipe.batches_at_once
        except BaseException as error:
            self.failure = error
            raise

    def wait(self) -> None:
        """Waits until the next batch is ready; raises what `take` would raise, and takes nothing."""
        while not self._made:
            self.request()
            assert self._making is not None  # the request has made it
            wait([self._making])
            if not self._made:  # a call that has failed may have made some before
                self._making.result()

    def take(self) -> Made | None:
        """Returns the next batch, or None at the end of the shard; waits until it is ready."""
        self.wait()
        made = self._made.popleft()
        if made is not None:
            self.place = made.place
        return made

    def pass_over(self, num_batches: int) -> Iterator[None]:
        """Leaves out batches: the iterator does the work, and stops after each few of them.

        Shards that share a source must go on together.
        """
        left = num_batches
        while left > 0:
            passed = list(itertools.islice(self._reading, min(left, self.shard.recipe.batches_at_once)))
            if not passed:
                return
            self.place = passed[-1].place
            left -= len(passed)
            yield
