"""Steps that never end: the process ends with the stacks of its threads (jax-ml/jax#38503)."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import os
import tempfile
import threading
import time
from collections.abc import Iterator

import jax
from etils import epath
from jaxtyping import PyTree

from limba.config import RestartError, RunConfig
from limba.config.environment import end_now
from limba.sharding import hosts_file
from limba.sharding.others import OTHERS, resumes_from
from limba.storage.failures import limited
from limba.storage.files import open_no_link

PHASE_STEPS = 12  # anything but a step, such as an evaluation, may take as long as this many steps, and
PHASE_SECONDS = 4 * 3600.0  # at least this long
TICK_SECONDS = 1.0
ARM_SECONDS = 10.0  # between two settings of the clock in C
MORE_SECONDS = 60.0  # that the clock in C gives beyond twice the limit
COPY_SECONDS = 10.0  # for the stacks to reach a bucket
FOLDER = "logs"  # of a run directory


class Watchdog:
    """Ends the process when neither the loop nor a device gets on for too long. Use it as a context manager.

    A step counts as ended when its result is there: jax returns from a step before it is computed. Only time in which
    this process could run counts, so a process that was stopped and continued, or a machine that slept, goes on.
    """

    def __init__(self, step_limit: float, model_dir: str, phase_limit: float | None = None):
        if phase_limit is None:
            phase_limit = max(PHASE_STEPS * step_limit, PHASE_SECONDS)
        self._step_limit = step_limit
        self._phase_limit = phase_limit
        self._model_dir = model_dir
        self._limit = phase_limit  # of what is done now
        self._doing = "The start of the run, with its first step,"  # "" for a step
        self._steps: collections.deque[tuple[int, PyTree]] = collections.deque()  # begun and not known to have ended
        self._last_step: int | None = None  # that has begun
        self._signs = 0  # of life, from the thread that trains
        self._ended = threading.Event()

    def __enter__(self) -> Watchdog:
        path = os.path.join(log_folder(self._model_dir), f"stacks_process_{jax.process_index()}.txt")
        self._file = open(path, "a", opener=open_no_link)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        self._file.close()
        with contextlib.suppress(OSError):  # it may be gone with its directory
            if not os.path.getsize(self._file.name):
                os.remove(self._file.name)

    def beat(self, step: int, result: PyTree) -> None:
        """Says that a step has begun, and with which array it ends."""
        self._steps.append((step, result))
        self._last_step = step
        self._limit = self._step_limit
        self._doing = ""
        self._signs += 1

    @contextlib.contextmanager
    def phase(self, doing: str) -> Iterator[None]:
        """Gives what is done inside, such as "An evaluation", the limit of phases."""
        limit_before = self._limit
        doing_before = self._doing
        self._limit = self._phase_limit
        self._doing = doing
        self._signs += 1
        try:
            yield
        finally:
            self._limit = limit_before
            self._doing = doing_before
            self._signs += 1

    def _watch(self) -> None:
        """Ends the process, or returns after `__exit__`."""
        seconds = 0.0  # without a sign of life
        signs = -1
        looked_at = time.monotonic()
        armed_at = 0.0
        while not self._ended.wait(TICK_SECONDS):
            now = time.monotonic()
            # More than two ticks have passed only if this process could not run.
            seconds += min(now - looked_at, 2 * TICK_SECONDS)
            looked_at = now
            if self._forget_ended_steps() or self._signs != signs:
                signs = self._signs
                seconds = 0.0
            if seconds > self._limit:
                self._end(seconds)
                return
            if now > armed_at + ARM_SECONDS:
                # If this thread cannot run either, since a library holds Python's lock, a thread of C writes the
                # stacks and ends the process with status 1.
                faulthandler.dump_traceback_later(2 * self._limit + MORE_SECONDS, file=self._file, exit=True)
                armed_at = now

    def _forget_ended_steps(self) -> bool:
        """Returns whether a step has ended since the last call."""
        has_ended = False
        while self._steps and self._steps[0][1].is_ready():
            self._steps.popleft()
            has_ended = True
        return has_ended

    def _end(self, seconds: float) -> None:
        """Ends this process, and tells the others why."""
        what = self._doing or f"Step {self._first_unfinished():,}"
        self._write_stacks(f"{what} of process {jax.process_index()}, {seconds:.0f} s without an end\n")
        sentence = (
            f"{what} has not ended after {seconds:.0f} s (RunConfig.step_timeout_seconds is {self._step_limit:g});"
            f" the stacks of all threads are in {self._file.name}; start again: {resumes_from(self._model_dir)}."
        )
        OTHERS.tell(sentence, RestartError.exit_status)
        OTHERS.wait()
        end_now(sentence, RestartError.exit_status)

    def _first_unfinished(self) -> int:
        if self._steps:
            return self._steps[0][0]
        return (self._last_step or 0) + 1

    def _write_stacks(self, heading: str) -> None:
        """Writes the stacks of all threads to the file, and copies it where the run directory is in a bucket."""
        self._file.write(heading)
        self._file.flush()
        faulthandler.dump_traceback(self._file, all_threads=True)
        self._file.close()
        if "://" in self._model_dir:
            path = epath.Path(self._file.name)
            target = epath.Path(self._model_dir) / FOLDER / path.name
            with contextlib.suppress(Exception):  # the bucket may not answer
                limited(lambda: path.copy(target), COPY_SECONDS, "copying")


_current: list[Watchdog] = []  # at most one a process, as there is one loop


@contextlib.contextmanager
def watching(config: RunConfig) -> Iterator[None]:
    """Watches the run inside, if its configuration has a limit; process 0 of several writes how all are doing."""
    with contextlib.ExitStack() as stack:
        if jax.process_count() > 1 and jax.process_index() == 0:
            stack.enter_context(hosts_file.written(config.model_dir))
        if config.step_timeout_seconds is not None:
            watchdog = Watchdog(config.step_timeout_seconds, config.model_dir)
            _current.append(stack.enter_context(watchdog))
            stack.callback(_current.pop)
        yield


def beat(step: int, result: PyTree) -> None:
    """Says that a step has begun, and with which array it ends."""
    OTHERS.step(step)
    for watchdog in _current:
        watchdog.beat(step, result)


@contextlib.contextmanager
def phase(doing: str) -> Iterator[None]:
    """Gives what is done inside, such as "An evaluation", more time than a step."""
    with _current[0].phase(doing) if _current else contextlib.nullcontext():
        yield


def log_folder(model_dir: str) -> str:
    """Returns the local folder for the logs of a run; a new one of this user if `model_dir` is in a bucket."""
    if "://" in model_dir:
        return tempfile.mkdtemp(prefix="limba-logs-")
    folder = os.path.join(model_dir, FOLDER)
    os.makedirs(folder, exist_ok=True)
    return folder
