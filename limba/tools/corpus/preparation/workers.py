"""Jobs done by several processes. Nothing heavy is imported, so that a worker can choose how it imports the rest."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from limba.config import InputError

Job = Callable[[], Any]  # picklable; it ends with a whole file, or does nothing if that exists
ATTEMPTS = 3  # a worker that is killed ends the others too; what they have not finished is done again


class Workers:
    """Processes that do jobs; they end with the context.

    Each calls `preload()` before it unpacks its first job. With one worker, or one job, this process does the work.
    """

    def __init__(self, number: int, preload: Callable[[], None] | None = None):
        self._number, self._preload = number, preload
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def results(self, jobs: Sequence[Job], counter: Any = None) -> list[Any]:
        """Returns the results of the jobs in any order; the first error stops the others and is raised.

        `counter` has `update(1)` and `close()`, like tqdm's bars. Raises InputError if a worker is killed again and
        again.
        """
        results = []
        try:
            is_single = self._number < 2 or len(jobs) < 2
            for result in (job() for job in jobs) if is_single else self._in_processes(jobs):
                results.append(result)
                if counter is not None:
                    counter.update(1)
        finally:
            if counter is not None:
                counter.close()
        return results

    def _in_processes(self, jobs: Sequence[Job]) -> Iterator[Any]:
        left = dict(enumerate(jobs))
        for _ in range(ATTEMPTS):
            if self._pool is None:
                # Spawned, not forked: TensorFlow's threads do not survive a fork.
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self._number, context, start_worker, (self._preload,))
            try:
                futures = {self._pool.submit(job): number for number, job in left.items()}
                for future in as_completed(futures):
                    result = future.result()
                    del left[futures[future]]
                    yield result
                return
            except BrokenProcessPool:
                self._end()
        raise InputError(
            "A worker process ended or was killed, perhaps because memory ran out; start again with fewer "
            "workers: finished parts are not repeated."
        )


def start_worker(preload: Callable[[], None] | None) -> None:
    """Makes a worker end with its parent; otherwise a pool's workers wait forever if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives the signal too, and ends the workers
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    if preload is not None:
        preload()
