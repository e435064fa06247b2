"""What ends a run that cannot go on, and what it shows meanwhile: stuck steps, errors of other processes, hosts.json.

jax's coordination service, which runs in process 0, hears a heartbeat of every process. When one is missing it ends all
others, with a message of its own. What that service cannot know is done here: a process that ends with an error leaves
its sentence to the others, and a step that never ends (jax-ml/jax#38503) ends its process.

A step's exchanges make all processes wait for the slowest, so all have the same time per step. What tells them apart
is the time for which each waits for its own data.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import faulthandler
import itertools
import json
import os
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from etils import epath
from jaxtyping import PyTree

from limba.config import RestartError, RunConfig, reason_of
from limba.config.environment import end_now
from limba.sharding.agreement import LateError, gather_texts, own_part, service
from limba.storage.failures import limited
from limba.storage.files import open_no_link, write_whole

PHASE_STEPS = 12  # what is no step, such as an evaluation, may take as long as this many steps, and
PHASE_SECONDS = 4 * 3600.0  # at least this long
TICK_SECONDS = 1.0
COPY_SECONDS = 10.0  # for the stacks to reach a bucket
FOLDER = "logs"  # of a run directory
STEPS = 20  # whose mean counts: steps are started ahead of the devices, and waited for at some of them
FILE_SECONDS, BUCKET_SECONDS = 5.0, 30.0  # between two writes of hosts.json, to a disk and to a bucket
INTERVAL_SECONDS = 2.0  # between two looks at what the others have left
GRACE_SECONDS = 10.0  # for a process to end by itself, before it ends because another one has ended
LAST_SECONDS = GRACE_SECONDS + 2 * INTERVAL_SECONDS  # in which all have read the words of a process, and ended
ADOPTED = (2, 3, 74, 130)  # statuses of errors that stay after a new start: the others end with them too
# What a collective says when the process at its other end is gone: a status, and what was lost.
LOST = re.compile(
    r"(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|FAILED_PRECONDITION)\b"
    r".*(gloo|nccl|connect|socket|heartbeat|barrier|halted|health|coordination)",
    re.IGNORECASE | re.DOTALL,
)


class Others:
    """The other processes of this run, and what this one tells them; `watch` begins. One that is alone has none."""

    def __init__(self) -> None:
        self.model_dir = ""
        self._silent: set[int] = set()  # who gave no answer after an exchange had failed
        self._failed: int | None = None
        self._over = threading.Event()
        self._step, self._waited = 0, 0.0
        self._begun = collections.deque[tuple[float, float]](maxlen=STEPS + 1)  # when, and the seconds its data took

    def step(self, step: int) -> None:
        """Says that a step has been started, which its data was waited for."""
        self._begun.append((time.monotonic(), self._waited))
        self._step, self._waited = step, 0.0

    def waited(self, seconds: float) -> None:
        """Says for how long the next step's data was waited for."""
        self._waited += seconds

    def report(self) -> dict[str, float]:
        """Returns the step, and the means of the seconds per step and of those that its data took."""
        begun = list(self._begun)
        if len(begun) < 2:
            return {"step": self._step}
        means = {
            "seconds_per_step": (begun[-1][0] - begun[0][0]) / (len(begun) - 1),
            "seconds_for_data": statistics.fmean(waited for _, waited in begun[1:]),
        }
        return {"step": self._step, **{name: round(seconds, 4) for name, seconds in means.items()}}

    def watch(self) -> None:
        """Begins to tell the others how far this process is, and to look for their last words."""
        self._looking = threading.Thread(target=self._look, args=[service()], daemon=True, name="others")
        atexit.register(self._leave)
        self._looking.start()

    def tell(self, sentence: str, status: int) -> None:
        """Leaves the last words of this process, which ends now, to the others."""
        self._failed = status  # their words do not count any more
        own, number = own_part()
        if number > 1:
            words = json.dumps([own, socket.gethostname(), status, sentence])
            _try(lambda: service().key_value_set(f"limba/ended/{own}", words))

    def wait(self, seconds: float = LAST_SECONDS) -> None:
        """Says that this process ends now. The first one, in which jax's service ends too, waits for the others."""
        own, number = own_part()
        if number > 1:
            _try(lambda: service().key_value_set(f"limba/left/{own}", "", True))
            end = time.monotonic() + seconds
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                while not own and time.monotonic() < end:
                    left = {int(key.rpartition("/")[2]) for key, _ in service().key_value_dir_get("limba/left/")}
                    if len(left | self._silent) == number:
                        break
                    time.sleep(0.2)

    def fail(self, sentence: str, status: int) -> None:
        """Tells the others that this process ends with an error; it then ends within LAST_SECONDS."""
        self.tell(sentence, status)
        ending = threading.Timer(LAST_SECONDS, os._exit, [status])
        ending.daemon = True
        ending.start()

    def lost(self, error: Exception) -> RestartError:
        """Returns the error of an exchange whose other end is gone, with the processes that do not answer any more.

        If one of them has left its words, `_look` ends this process meanwhile, with them.
        """
        who = ""
        try:
            gather_texts("lost", "", LAST_SECONDS)
        except LateError as late:
            who, self._silent = f"; {late}", set(late.late)
        except jax.errors.JaxRuntimeError:
            pass  # the service is gone, too: jax ends this process
        return RestartError(
            f"The exchange between the {own_part()[1]} processes failed ({reason_of(error)}{who}); {self._advice()}"
        )

    def _leave(self) -> None:
        """Ends the exchange with the others: a process that has failed does not wait for them, they still compute.

        The thread that looks has ended before Python does. In a call of jax's client at that moment, it would be ended
        inside C++, and with it the whole process by a segmentation fault: 3 in 100 ends on a busy machine.
        """
        if self._failed is None:
            try:
                jax.distributed.shutdown()  # waits for the others
            finally:
                self._over.set()
                self._looking.join(GRACE_SECONDS)
            return
        self.wait()
        sys.stdout.flush()
        os._exit(self._failed)

    def _look(self, client: Any) -> None:
        (own, number), host = own_part(), socket.gethostname()
        for beat in itertools.count():
            if self._over.wait(INTERVAL_SECONDS):
                return
            ended = []
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # jax's own heartbeats decide what that means
                report = json.dumps({"host": host, "beat": beat, **self.report()})
                client.key_value_set(f"limba/reports/{own}", report, True)
                ended = client.key_value_dir_get("limba/ended/")
            if ended and self._failed is None:
                index, host, status, words = min(json.loads(value) for _, value in ended)
                sentence = f"Process {index} of {number} (host {host}) has ended: {words.rstrip('.')}; {self._advice()}"
                if self._over.wait(GRACE_SECONDS) or self._failed is not None:
                    return
                self.wait()
                end_now(sentence, status if status in ADOPTED else RestartError.exit_status)

    def _advice(self) -> str:
        resumes = f": {resumes_from(self.model_dir)}" if self.model_dir else ""
        return f"start all {own_part()[1]} processes again{resumes}."


OTHERS = Others()  # of this process's run, as there is one jax client


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Tells the other processes of an error that ends this one."""
    try:
        yield
    except Exception as error:
        if own_part()[1] > 1:
            if not hasattr(error, "exit_status") and LOST.search(str(error)):
                error = OTHERS.lost(error)
            sentence = " ".join(str(error).split()) or type(error).__name__
            OTHERS.fail(sentence[:500], getattr(error, "exit_status", 1))
        raise error


def _try(call: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the service may be gone
        if threading.main_thread().is_alive():
            limited(call, INTERVAL_SECONDS, "telling the others")
        else:  # Python ends, and 3.12 starts no thread then; `fail` has set a limit
            call()


def resumes_from(model_dir: str, seconds: float = 5.0) -> str:
    """Returns where a run goes on, such as "the run resumes from step 40"; it looks no longer than the seconds."""
    try:
        places = limited(lambda: list(epath.Path(model_dir, "checkpoints").iterdir()), seconds, "listing")
    except TimeoutError:
        return "the run resumes from its newest checkpoint"
    except OSError:
        places = []
    steps = [int(place.name) for place in places if place.name.isdigit()]
    return f"the run resumes from step {max(steps):,}" if steps else "nothing is saved yet, the run starts at step 0"


@contextlib.contextmanager
def _hosts_written(model_dir: str) -> Iterator[None]:
    """Writes what is known of each process to hosts.json every few seconds inside; no error ends that."""
    every, over, client = BUCKET_SECONDS if "://" in model_dir else FILE_SECONDS, threading.Event(), service()
    seen: dict[int, tuple[str, float]] = {}  # the newest report of each process, and when it was new here

    def write() -> None:
        while not over.wait(every):
            with contextlib.suppress(Exception):  # the lease, which is written as often, says what is wrong
                now = time.monotonic()
                for key, text in client.key_value_dir_get("limba/reports/"):
                    index = int(key.rpartition("/")[2])
                    if seen.get(index, ("",))[0] != text:
                        seen[index] = text, now
                each = [
                    {"process": index, "silent_seconds": round(now - since, 1), **json.loads(text)}
                    for index, (text, since) in sorted(seen.items())
                ]
                record = {"format": 1, "written_every_seconds": every, "pid": os.getpid(), "processes": each}
                write_whole(f"{model_dir.rstrip('/')}/hosts.json", json.dumps(record) + "\n")

    thread = threading.Thread(target=write, daemon=True, name="hosts")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1.0)


class Watchdog:
    """Ends the process when neither the loop nor a device gets on for too long. Use it as a context manager.

    A step counts as ended when its result is there: jax returns from a step before it is computed. Only time in which
    this process could run counts, so a process that was stopped and continued, or a machine that slept, goes on.
    """

    def __init__(self, timeout: float, model_dir: str, phase_seconds: float | None = None):
        self._step_limit, self._model_dir = timeout, model_dir
        self._phase_limit = phase_seconds or max(PHASE_STEPS * timeout, PHASE_SECONDS)
        self._limit, self._doing = self._phase_limit, "The start of the run, with its first step,"
        self._steps: collections.deque[tuple[int, PyTree]] = collections.deque()  # begun, in order
        self._step: int | None = None
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
            target = epath.Path(self._model_dir) / FOLDER / os.path.basename(self._file.name)
            with contextlib.suppress(Exception):  # the bucket may not answer
                limited(lambda: epath.Path(self._file.name).copy(target), COPY_SECONDS, "copying")
        sentence = (
            f"{what} has not ended after {seconds:.0f} s (RunConfig.step_timeout_seconds is {self._step_limit:g});"
            f" the stacks of all threads are in {self._file.name}; start again: {resumes_from(self._model_dir)}."
        )
        OTHERS.tell(sentence, RestartError.exit_status)
        OTHERS.wait()
        end_now(sentence, RestartError.exit_status)


_current: list[Watchdog] = []  # at most one a process, as there is one loop


@contextlib.contextmanager
def watching(config: RunConfig) -> Iterator[None]:
    """Watches the run inside, if its configuration has a limit; process 0 of several writes how all are doing."""
    with contextlib.ExitStack() as stack:
        if jax.process_count() > 1 and jax.process_index() == 0:
            stack.enter_context(_hosts_written(config.model_dir))
        if config.step_timeout_seconds is not None:
            _current.append(stack.enter_context(Watchdog(config.step_timeout_seconds, config.model_dir)))
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
