"""Jobs done by several processes. Nothing heavy is imported, so that a worker can choose how it imports the rest."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from limba.config import InputError, environment

Job = Callable[[], object]  # picklable; it ends with a whole file, or does nothing if that exists
ATTEMPTS = 3  # a worker that is killed ends the others too; what they have not finished is done again


def results(jobs: Sequence[Job], workers: int) -> Iterator[object]:
    """Yields the results of the jobs in any order; the first error stops the others and is raised.

    With one worker, or one job, this process does the work. Raises InputError if a worker is killed again and again.
    """
    if workers < 2 or len(jobs) < 2:
        yield from (job() for job in jobs)
        return
    left = dict(enumerate(jobs))
    for _ in range(ATTEMPTS):
        # Spawned, not forked: TensorFlow's threads do not survive a fork.
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), start_worker)
        try:
            futures = {pool.submit(job): number for number, job in left.items()}
            for future in as_completed(futures):
                result = future.result()
                del left[futures[future]]
                yield result
            return
        except BrokenProcessPool:
            continue
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    raise InputError(
        "A worker process ended or was killed, perhaps because memory ran out; start again with fewer "
        "workers: finished parts are not repeated."
    )


def start_worker() -> None:
    """Makes a worker end with its parent; otherwise a pool's workers wait forever if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives the signal too, and ends the workers
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    with environment.quiet_imports():
        from limba.api import PieceTable, Texts  # noqa: F401  what jobs import as they are unpacked
