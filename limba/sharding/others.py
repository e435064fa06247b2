"""The other processes of this run: how far each is, errors that end all, and who does not answer any more.

jax's coordination service, which runs in process 0, hears a heartbeat of every process. When one is missing it ends all
others, with a message of its own. What that service cannot know is done here: a process that ends with an error leaves
its sentence to the others.

A step's exchanges make all processes wait for the slowest, so all have the same time per step. What tells them apart
is the time for which each waits for its own data.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import json
import os
import re
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from etils import epath

from limba.config import RestartError, reason_of
from limba.config.environment import end_now
from limba.sharding.agreement import LateError, gather_texts, own_part, service
from limba.storage import manifest
from limba.storage.failures import limited

STEPS = 20  # whose mean counts: steps are started ahead of the devices, and waited for at some of them
INTERVAL_SECONDS = 2.0  # between two looks at what the others have left
LEFT_SECONDS = 0.2  # between two looks of process 0 at who has left
GRACE_SECONDS = 10.0  # for a process to end by itself, before it ends because another one has ended
LAST_SECONDS = GRACE_SECONDS + 2 * INTERVAL_SECONDS  # in which all have read the words of a process, and ended
LISTING_SECONDS = 5.0  # for the checkpoints of a run, whose storage may not answer
LONGEST = 500  # characters of an error that the others are told
ADOPTED = (2, 3, 74, 130)  # statuses of errors that stay after a new start: the others end with them too
# What a collective says when the process at its other end is gone: a status, and what was lost.
LOST = re.compile(
    r"(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|FAILED_PRECONDITION)\b"
    r".*(gloo|nccl|connect|socket|heartbeat|barrier|halted|health|coordination)",
    re.IGNORECASE | re.DOTALL,
)


class Others:
    """The other processes of this run, and what this one tells them; `watch` begins. A process alone has no others."""

    def __init__(self) -> None:
        self.model_dir = ""
        self._silent: set[int] = set()  # processes that gave no answer after an exchange had failed
        self._failed: int | None = None  # the status with which this process ends
        self._over = threading.Event()
        self._step = 0
        self._seconds_for_data = 0.0  # of the step that comes next
        # Of the last steps: when each was begun, and the seconds that its data took.
        self._begun = collections.deque[tuple[float, float]](maxlen=STEPS + 1)

    def step(self, step: int) -> None:
        """Says that a step has been started, which its data was waited for."""
        self._begun.append((time.monotonic(), self._seconds_for_data))
        self._step = step
        self._seconds_for_data = 0.0

    def waited(self, seconds: float) -> None:
        """Says for how long the next step's data was waited for."""
        self._seconds_for_data += seconds

    def report(self) -> dict[str, float]:
        """Returns the step, and the means of the seconds per step and of those that its data took."""
        begun = list(self._begun)
        if len(begun) < 2:
            return {"step": self._step}
        seconds_per_step = (begun[-1][0] - begun[0][0]) / (len(begun) - 1)
        seconds_for_data = statistics.fmean(seconds for _, seconds in begun[1:])
        return {
            "step": self._step,
            "seconds_per_step": round(seconds_per_step, 4),
            "seconds_for_data": round(seconds_for_data, 4),
        }

    def watch(self) -> None:
        """Begins to tell the others how far this process is, and to look for their last words."""
        self._looking = threading.Thread(target=self._look, args=[service()], daemon=True, name="others")
        atexit.register(self._leave)
        self._looking.start()

    def tell(self, sentence: str, status: int) -> None:
        """Leaves the last words of this process, which ends now, to the others."""
        self._failed = status  # their words do not count any more
        process, count = own_part()
        if count > 1:
            words = json.dumps([process, socket.gethostname(), status, sentence])
            _try(lambda: service().key_value_set(f"limba/ended/{process}", words))

    def wait(self, seconds: float = LAST_SECONDS) -> None:
        """Says that this process ends now. The first one, in which jax's service ends too, waits for the others."""
        process, count = own_part()
        if count == 1:
            return
        _try(lambda: service().key_value_set(f"limba/left/{process}", "", True))
        if process == 0:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._wait_for_leaving(count, seconds)

    def _wait_for_leaving(self, count: int, seconds: float) -> None:
        """Returns when all processes have left, or are known to be silent, or when the seconds are over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            left = {_process_of(key) for key, _ in service().key_value_dir_get("limba/left/")}
            if len(left | self._silent) == count:
                return
            time.sleep(LEFT_SECONDS)

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
            who = f"; {late}"
            self._silent = set(late.late)
        except jax.errors.JaxRuntimeError:
            pass  # the service is gone, too: jax ends this process
        count = own_part()[1]
        return RestartError(
            f"The exchange between the {count} processes failed ({reason_of(error)}{who}); {self._advice()}"
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
        """Reports every INTERVAL_SECONDS, and ends this process some time after another one has left its last words."""
        process, count = own_part()
        host = socket.gethostname()
        for beat in itertools.count():
            if self._over.wait(INTERVAL_SECONDS):
                return
            ended: list[tuple[str, str]] = []
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # jax's own heartbeats decide what that means
                report = json.dumps({"host": host, "beat": beat, **self.report()})
                client.key_value_set(f"limba/reports/{process}", report, True)
                ended = client.key_value_dir_get("limba/ended/")
            if not ended or self._failed is not None:
                continue
            other, its_host, status, words = min(json.loads(value) for _, value in ended)
            # Usually this process has an error of its own by then, or its step ends.
            if self._over.wait(GRACE_SECONDS) or self._failed is not None:
                return
            self.wait()
            end_now(
                f"Process {other} of {count} (host {its_host}) has ended: {words.rstrip('.')}; {self._advice()}",
                status if status in ADOPTED else RestartError.exit_status,
            )

    def _advice(self) -> str:
        resumes = ""
        if self.model_dir:
            resumes = f": {resumes_from(self.model_dir)}"
        return f"start all {own_part()[1]} processes again{resumes}."


OTHERS = Others()  # of this process's run, as there is one jax client


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Tells the other processes of an error that ends this one."""
    try:
        yield
    except Exception as error:
        if own_part()[1] > 1:
            is_ours = hasattr(error, "exit_status")
            if not is_ours and LOST.search(str(error)):
                error = OTHERS.lost(error)
            sentence = " ".join(str(error).split()) or type(error).__name__
            OTHERS.fail(sentence[:LONGEST], getattr(error, "exit_status", 1))
        raise error


def _process_of(key: str) -> int:
    """Returns the process of a key of jax's service, which ends with its number."""
    return int(key.rpartition("/")[2])


def reports_of_all(client: Any) -> dict[int, str]:
    """Returns the newest report of each process, as JSON."""
    return {_process_of(key): report for key, report in client.key_value_dir_get("limba/reports/")}


def _try(call: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the service may be gone
        if threading.main_thread().is_alive():
            limited(call, INTERVAL_SECONDS, "telling the others")
        else:  # Python ends, and 3.12 starts no thread then; `fail` has set a limit
            call()


def resumes_from(model_dir: str, seconds: float = LISTING_SECONDS) -> str:
    """Returns where a run goes on, such as "the run resumes from step 40"; it looks no longer than the seconds."""
    try:
        step = limited(lambda: _newest_step(epath.Path(model_dir, "checkpoints")), seconds, "listing")
    except Exception:  # noqa: BLE001  no answer; a bucket's client has errors of its own
        return "the run resumes from its newest checkpoint"
    if step is None:
        return "nothing is saved yet, the run starts at step 0"
    return f"the run resumes from step {step:,}"


def _newest_step(folder: epath.Path) -> int | None:
    """Returns the newest step in a folder of checkpoints; in a bucket, only a step with its manifest is one."""
    try:
        names = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return None
    steps = [int(name) for name in names if name.isdigit()]
    is_bucket = "://" in str(folder)
    for step in sorted(steps, reverse=True):
        if not is_bucket or manifest.exists(folder / str(step)):
            return step
    return None
