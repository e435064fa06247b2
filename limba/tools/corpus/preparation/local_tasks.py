"""Jobs dealt to the tasks of datatrove's executors, and its local executor with a process for each task.

Task number R of N does the jobs R, R + N, R + 2N, … Each job ends with a whole file or does nothing if that exists, so
a task that was killed is simply repeated. datatrove is imported only here and in `slurm`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from limba.config import InputError
from limba.config.errors import SentenceError
from limba.tools.corpus.preparation.workers import Job

ATTEMPTS = 3  # of a task whose process is killed


class Dealt:
    """A step of datatrove's pipelines: all jobs, of which each task does its own."""

    def __init__(self, what: str, jobs: Sequence[Job], preload: Callable[[], None] | None):
        self.what, self.count, self._preload = what, len(jobs), preload
        self._jobs = pickle.dumps(jobs)  # unpacked after `preload`, which decides how heavy libraries are imported

    def __repr__(self) -> str:
        return f"limba: {self.count} jobs of {self.what}"

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        if self._preload is not None:
            self._preload()
        for job in pickle.loads(self._jobs)[rank::world_size]:
            job()


def check_tasks(tasks: int) -> None:
    """Raises InputError for a number of tasks that cannot work, and if datatrove is not installed."""
    if tasks < 1:
        raise InputError(f"tasks is {tasks}; give 1 or more.")
    if find_spec("datatrove") is None:
        raise InputError(
            "datatrove, whose executors run the tasks, is not installed; install it beside Limba"
            ' (pip install "datatrove==0.10.1", or the extra limba[prepare]).'
        )


class LocalTasks:
    """Tasks of datatrove's LocalPipelineExecutor, each in a process of its own; they end with the context.

    At most `workers` run at a time. `folder` takes datatrove's notes of completed tasks and their logs.
    """

    def __init__(self, tasks: int, workers: int, folder: Path, preload: Callable[[], None] | None = None):
        check_tasks(tasks)
        self._tasks, self._workers, self._folder, self._preload = tasks, workers, folder, preload
        self._rounds = 0
        self._is_over = threading.Event()
        self._running: set[int] = set()  # process groups

    def __enter__(self) -> LocalTasks:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def results(self, jobs: Sequence[Job], counter: Any = None) -> None:
        """Does all jobs; the first error stops the others and is raised.

        A task that is killed is repeated. Raises InputError if it is killed again and again. `counter` has
        `update(number)` and `close()`, like tqdm's bars.
        """
        self._rounds += 1
        number = min(self._tasks, len(jobs))
        folder = self._folder / str(self._rounds)
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier call, which dealt more jobs
        folder.mkdir(parents=True)
        dealt = Dealt(f"round {self._rounds}", jobs, self._preload)
        with ThreadPoolExecutor(self._workers) as pool:
            try:
                done = {pool.submit(self._until_done, folder, dealt, rank, number): rank for rank in range(number)}
                for future in as_completed(done):
                    future.result()
                    if counter is not None:
                        counter.update(len(jobs[done[future] :: number]))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._end()
                raise
            finally:
                if counter is not None:
                    counter.close()

    def _end(self) -> None:
        self._is_over.set()
        for group in list(self._running):
            _kill(group)

    def _until_done(self, folder: Path, dealt: Dealt, rank: int, number: int) -> None:
        """Runs one task, and again if its process is killed."""
        for _ in range(ATTEMPTS):
            if self._is_over.is_set():
                return
            # Spawned, not forked: this process has threads, and perhaps TensorFlow's.
            context = multiprocessing.get_context("spawn")
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_run_task, args=(sending, str(folder), dealt, rank, number))
            process.start()
            sending.close()
            assert process.pid is not None
            self._running.add(process.pid)
            if self._is_over.is_set():  # since this one was begun
                process.kill()
            process.join()
            _kill(process.pid)  # the helper process of datatrove, which outlives a task that is killed
            self._running.discard(process.pid)
            with receiving, contextlib.suppress(EOFError):
                if receiving.poll() and (error := receiving.recv()) is not None:
                    raise error
            if process.exitcode == 0 or self._is_over.is_set():
                return
        raise InputError(
            f"Task {rank} of {number} was killed {ATTEMPTS} times, perhaps because memory ran out; start again with"
            f" fewer workers: finished parts are not repeated. Its log is {_log(folder, rank)}."
        )


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _log(folder: Path, rank: int) -> Path:
    return folder / f"{rank:05d}.log"


def _run_task(sending: Connection, folder: str, dealt: Dealt, rank: int, number: int) -> None:
    """Runs one task in this process and sends its error, or None; what datatrove says goes to a file."""
    os.setpgid(0, 0)  # so that nothing that it starts is left when it is killed; and Ctrl-C reaches only the parent
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), _kill(os.getpid())), daemon=True).start()
    sys.stderr = sys.stdout = _log(Path(folder), rank).open("a", buffering=1)
    error: Exception | None = None
    try:
        from datatrove.executor import LocalPipelineExecutor

        LocalPipelineExecutor(
            [dealt], tasks=number, workers=1, logging_dir=folder, local_tasks=1, local_rank_offset=rank
        ).run()
    except SentenceError as found:
        error = found
    except Exception as found:  # noqa: BLE001  it goes to the parent, which raises it
        error = RuntimeError(f"task {rank} of {number} failed, see {_log(Path(folder), rank)}: {found!r}")
    sending.send(error)
