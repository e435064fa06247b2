"""A limit for a step that never ends: a device or another process that is alive but stuck (jax-ml/jax#38503)."""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import jax
from etils import epath

from limba.config import RestartError, RunConfig
from limba.config.environment import end_now
from limba.sharding.liveness import others, resumes_from
from limba.sharding.progress import kept, progress
from limba.storage.files import open_no_link

PHASE_STEPS = 12  # what is no step, such as an evaluation, may take as long as this many steps, and
PHASE_SECONDS = 4 * 3600.0  # at least this long
TICK_SECONDS = 1.0
COPY_SECONDS = 10.0  # for the stacks to reach a bucket
FOLDER = "logs"  # of a run directory


class Watchdog:
    """Ends the process when neither the loop nor a device gets on for too long. Use it as a context manager.

    A step counts as ended when its result is there: jax returns from a step before it is computed. Only time in which
    this process could run counts, so a process that was stopped and continued, or a machine that slept, goes on.
    """

    def __init__(self, timeout: float, model_dir: str, phase_seconds: float | None = None):
        self._step_limit, self._model_dir = timeout, model_dir
        self._phase_limit = phase_seconds or max(PHASE_STEPS * timeout, PHASE_SECONDS)
        self._limit, self._doing = self._phase_limit, "The start of the run, with its first step,"
        self._steps: collections.deque[tuple[int, Any]] = collections.deque()  # begun, in order
        self._step: int | None = None
        self._signs = 0  # of life, from the thread that trains
        self._ended = threading.Event()

    def __enter__(self) -> Watchdog:
        self._file = _open_log(self._model_dir, f"stacks_process_{jax.process_index()}.txt")
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

    def beat(self, step: int, result: Any) -> None:
        """Says that a step has begun, and with which array it ends."""
        self._steps.append((step, result))
        self._step, self._limit, self._doing = step, self._step_limit, ""
        self._signs += 1

    @contextlib.contextmanager
    def phase(self, doing: str) -> Iterator[None]:
        """Gives what is done inside, such as "An evaluation", the limit of phases."""
        before = self._limit, self._doing
        self._limit, self._doing = self._phase_limit, doing
        self._signs += 1
        try:
            yield
        finally:
            self._limit, self._doing = before
            self._signs += 1

    def _watch(self) -> None:
        """Ends the process, or returns after `__exit__`."""
        seconds, signs, last, armed = 0.0, -1, time.monotonic(), 0.0
        while not self._ended.wait(TICK_SECONDS):
            now = time.monotonic()
            seconds, last = seconds + min(now - last, 2 * TICK_SECONDS), now
            signs, before = self._signs, signs
            while self._steps and self._steps[0][1].is_ready():
                self._steps.popleft()
                before = -1
            if signs != before:
                seconds = 0.0
            if seconds > self._limit:
                self._end(seconds)
                return
            if now > armed + 10.0:
                # If this thread cannot run either, since a library holds Python's lock, a thread of C writes the
                # stacks and ends the process with status 1.
                faulthandler.dump_traceback_later(2 * self._limit + 60.0, file=self._file, exit=True)
                armed = now

    def _end(self, seconds: float) -> None:
        waiting = self._steps[0][0] if self._steps else (self._step or 0) + 1
        what = self._doing or f"Step {waiting:,}"
        self._file.write(f"{what} of process {jax.process_index()}, {seconds:.0f} s without an end\n")
        self._file.flush()
        faulthandler.dump_traceback(self._file, all_threads=True)
        self._file.close()
        if "://" in self._model_dir:
            copying = threading.Thread(target=_copy, args=[self._file.name, self._model_dir], daemon=True)
            copying.start()
            copying.join(COPY_SECONDS)
        sentence = (
            f"{what} has not ended after {seconds:.0f} s (RunConfig.step_timeout_seconds is {self._step_limit:g});"
            f" the stacks of all threads are in {self._file.name}; start again: {resumes_from(self._model_dir)}."
        )
        others().tell(sentence, RestartError.exit_status, waits=True)
        end_now(sentence, RestartError.exit_status)


_current: list[Watchdog] = []  # at most one a process, as there is one loop


@contextlib.contextmanager
def watching(config: RunConfig) -> Iterator[None]:
    """Watches the run inside, if its configuration has a limit; process 0 of several writes how all are doing."""
    with contextlib.ExitStack() as stack:
        if jax.process_count() > 1 and jax.process_index() == 0:
            stack.enter_context(kept(config.model_dir, others().states))
        if config.step_timeout_seconds is not None:
            _current.append(stack.enter_context(Watchdog(config.step_timeout_seconds, config.model_dir)))
            stack.callback(_current.pop)
        yield


def beat(step: int, result: Any) -> None:
    """Says that a step has begun, and with which array it ends."""
    progress().step(step)
    for watchdog in _current:
        watchdog.beat(step, result)


@contextlib.contextmanager
def phase(doing: str) -> Iterator[None]:
    """Gives what is done inside, such as "An evaluation", more time than a step."""
    with contextlib.ExitStack() as stack:
        for watchdog in _current:
            stack.enter_context(watchdog.phase(doing))
        yield


def log_folder(model_dir: str) -> str:
    """Returns the local folder for the logs of a run; a new one of this user if `model_dir` is in a bucket."""
    if "://" in model_dir:
        return tempfile.mkdtemp(prefix="limba-logs-")
    folder = os.path.join(model_dir, FOLDER)
    os.makedirs(folder, exist_ok=True)
    return folder


def _copy(log: str, model_dir: str) -> None:
    """Copies a local log into the run's directory in a bucket, if that answers."""
    with contextlib.suppress(OSError):
        target = epath.Path(model_dir) / FOLDER / os.path.basename(log)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Path(log).read_text())


def _open_log(model_dir: str, name: str) -> TextIO:
    return open(os.path.join(log_folder(model_dir), name), "a", opener=open_no_link)
