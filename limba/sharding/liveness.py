"""Whether the other processes of a run are alive, and one sentence to end with if one of them is not.

jax's coordination service, which runs in process 0, hears a heartbeat of every process and tells all of them when one
is missing; its C++ threads beat even while Python's lock is held. What jax does then is to abort, with a C++ stack.
Here the process ends with a sentence that names who was lost. To know the name, and the reason if that process could
still give one, each process also writes a number and its last words into the service's key-value store.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from etils import epath
from jax._src import distributed  # jax.distributed has no argument for what is done about a lost process
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

from limba.config import RestartError
from limba.config.environment import end_now
from limba.config.errors import reason_of
from limba.sharding.progress import progress

LONGEST_INTERVAL = 2.0  # seconds between two numbers
GRACE_SECONDS = 10.0  # for a process to end by itself, before it ends because another one has ended
SHUTDOWN_SECONDS = 300  # that a process waits for the others at its end
# What a collective says when the process at its other end is gone: a status, and what was lost.
LOST = re.compile(
    r"(UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|FAILED_PRECONDITION)\b"
    r".*(gloo|nccl|connect|socket|heartbeat|barrier|halted|health|coordination)",
    re.IGNORECASE | re.DOTALL,
)
GLOO = b"N4gloo"  # how the types of its exceptions begin
ADOPTED = (2, 3, 74, 130)  # statuses of errors that a restart of the others does not mend: they end with them too


class Others:
    """The other processes of this run. `watch` begins; the methods of a run with one process do nothing."""

    def __init__(self) -> None:
        self.index, self.count, self.timeout, self.address = 0, 1, 0.0, ""
        self.model_dir = self.native_output = ""
        self._hosts: dict[int, str] = {}
        self._reports: dict[int, dict[str, Any]] = {}  # what each process has said of its steps; in process 0 only
        self._seen: dict[int, tuple[str, float]] = {}  # the newest number of each process, and when it was new here
        self._silent: dict[int, float] = {}  # since when a process gives no new number
        self._ended: dict[int, tuple[int, str]] = {}  # status and last words
        self._answered = 0.0
        self._awake = float("inf")  # when this process fell asleep; infinite while it asks the service
        self._stood = 0.0  # seconds for which this process was stopped
        self._failed: int | None = None
        self._over = threading.Event()

    def watch(self, address: str, timeout: float) -> None:
        """Begins to listen for the loss of a process; `timeout` is that of jax's heartbeats, in seconds."""
        self.index, self.count = jax.process_index(), jax.process_count()
        if self.count == 1:
            return
        self.address, self.timeout, self._answered = address, timeout, time.monotonic()
        self._client: Any = distributed.global_state.client
        self._client.key_value_set(f"limba/host/{self.index}", socket.gethostname(), allow_overwrite=True)
        self._hosts = {0: self._client.blocking_key_value_get("limba/host/0", 10_000)}
        self._reports[self.index] = {}
        _on_cpp_exceptions({b"St8bad_cast": self.lost, GLOO: self._await_the_name})
        self._beating = threading.Thread(target=self._beat, daemon=True, name="liveness")
        atexit.register(self._leave)
        self._beating.start()

    def states(self) -> list[dict[str, Any]]:
        """Returns what process 0 knows of each process: its host, its last report, and for how long it is silent.

        The seconds are counted by process 0's clock, from when it last saw a new heartbeat.
        """
        now, reports = time.monotonic(), {**self._reports, self.index: progress().report()}
        return [
            {
                "process": index,
                "host": self._hosts.get(index, "unknown"),
                "silent_seconds": round(now - self._seen[index][1] if index in self._seen else 0.0, 1),
                **reports.get(index, {}),
            }
            for index in range(self.count)
        ]

    def lost(self, *_: object) -> None:
        """Ends this process with a sentence that names the process that was lost. Called in a thread of jax."""
        status, sentence = self._verdict()
        end_now(sentence, status)

    def _await_the_name(self) -> None:
        """Gives the threads that notice a lost process the time to name it. Called in a thread of gloo.

        A thread of gloo, which exchanges the numbers of CPUs, throws when a message of a killed process is cut.
        """
        time.sleep(self.timeout + GRACE_SECONDS)

    def tell(self, sentence: str, status: int, waits: bool = False) -> None:
        """Leaves the last words of this process to the others, and waits until they have read them.

        Only process 0 need wait: they are kept in its service, which ends with it.
        """
        if self.count == 1:
            return

        def write() -> None:
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                self._client.key_value_set(f"limba/ended/{self.index}", json.dumps([status, sentence]), True)

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        writing.join(LONGEST_INTERVAL)
        if waits and self.index == 0:
            time.sleep(2.5 * self._interval)

    def fail(self, sentence: str, status: int) -> None:
        """Tells the others that this process ends with an error; it then ends within GRACE_SECONDS."""
        self._failed = status
        self.tell(sentence, status)

        def end() -> None:
            time.sleep(GRACE_SECONDS)
            os._exit(status)

        threading.Thread(target=end, daemon=True).start()

    def _leave(self) -> None:
        """Ends the exchange with the others: a process that has failed does not wait for them, they still compute.

        The thread that beats has ended before Python does. In a call of jax's client at that moment, it would be ended
        inside C++, and with it the whole process by a segmentation fault: 3 in 100 ends on a busy machine.
        """
        if self._failed is None:
            try:
                jax.distributed.shutdown()  # waits for the others
            finally:
                self._over.set()
                self._beating.join(GRACE_SECONDS)
            return
        if self.index == 0:
            time.sleep(2.5 * self._interval)  # as in `tell`
        sys.stdout.flush()
        os._exit(self._failed)

    @property
    def _interval(self) -> float:
        return min(LONGEST_INTERVAL, self.timeout / 6)

    def _beat(self) -> None:
        number, began = 0, time.monotonic()
        grace_from: float | None = None
        while not self._over.is_set():
            self._awake = time.monotonic()
            self._over.wait(self._interval)
            self._stood, self._awake = self._standing(), float("inf")
            number += 1
            # While the service does not answer, jax's own heartbeats decide.
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                beat = f"{number} {json.dumps(progress().report())}"
                self._client.key_value_set(f"limba/beat/{self.index}", beat, allow_overwrite=True)
                self._read(began)
                self._answered = time.monotonic()
            if self._ended and self._failed is None:
                grace_from = grace_from or time.monotonic()
                if time.monotonic() > grace_from + GRACE_SECONDS:
                    self.lost()

    def _read(self, began: float) -> None:
        """Reads what process 0 knows about the others; process 0 reads it from all, and writes it for them."""
        if len(self._hosts) < self.count:
            self._hosts = self._numbered("limba/host/")
        now = time.monotonic()
        if self.index:
            news = dict(self._client.key_value_dir_get("limba/news/")).get("limba/news/0")
            if news:
                silent, ended = json.loads(news)
                self._silent = {int(index): now - age for index, age in silent.items()}
                self._ended = {int(index): words for index, words in ended.items() if int(index) != self.index}
            return
        numbers = self._numbered("limba/beat/")
        for index in range(1, self.count):
            text, since = self._seen.get(index, ("", began))
            self._seen[index] = (numbers.get(index, ""), now if numbers.get(index, "") != text else since)
        self._reports = {index: json.loads(text.partition(" ")[2]) for index, text in numbers.items()}
        self._silent = {i: since for i, (_, since) in self._seen.items() if now - since > 2.5 * self._interval}
        ended = {index: json.loads(words) for index, words in self._numbered("limba/ended/").items()}
        self._ended = {index: words for index, words in ended.items() if index}
        news = json.dumps([{index: now - since for index, since in self._silent.items()}, ended])
        self._client.key_value_set("limba/news/0", news, allow_overwrite=True)

    def _numbered(self, directory: str) -> dict[int, str]:
        return {int(key.rpartition("/")[2]): value for key, value in self._client.key_value_dir_get(directory)}

    def _verdict(self) -> tuple[int, str]:
        """Returns the status to end with, and the sentence."""
        now = time.monotonic()
        if self._ended:
            index, (status, words) = min(self._ended.items())
            return (
                status if status in ADOPTED else RestartError.exit_status,
                f"{self._name(index)} has ended: {words.rstrip('.')}; {self._advice()}",
            )
        silent = {index: now - since for index, since in self._silent.items() if now - since > self.timeout / 2}
        if stood := max(self._stood, self._standing()):
            what = f"{self._name(self.index)} stood still for {stood:.0f} s, so the others have ended"
        elif silent:
            names = " and ".join(self._name(index) for index in sorted(silent)[:3])
            what = f"{names} gave no sign of life for {max(silent.values()):.0f} s"
        elif self.index and now - self._answered > self.timeout / 2:
            what = f"{self._name(0)} gave no sign of life for {now - self._answered:.0f} s"
        elif self.index and not _keeps_answering(self.address):
            what = f"{self._name(0)} has ended or was killed"
        elif late := self._latest(now):
            what = f"{self._name(late)} gave no sign of life for {now - self._seen[late][1]:.0f} s"
        else:
            what = f"One of the {self.count} processes was lost, or was started again while the others still ran"
        return RestartError.exit_status, f"{what}; {self._advice()}"

    def _latest(self, now: float) -> int:
        """Returns the process that is silent for the longest, as process 0 sees it; 0 if all have just been heard.

        jax may notice a loss within half of `timeout`, as its own heartbeats are further apart than these numbers.
        """
        late = {since: index for index, (_, since) in self._seen.items() if now - since > 1.5 * self._interval}
        return late[min(late)] if late else 0

    def _standing(self) -> float:
        """Returns the seconds for which this process has not run, as after SIGSTOP; 0 if they are few."""
        seconds = time.monotonic() - self._awake
        return seconds if seconds > self.timeout / 2 else 0.0

    def _name(self, index: int) -> str:
        return f"Process {index} of {self.count} (host {self._hosts.get(index, 'unknown')})"

    def _advice(self) -> str:
        resumes = f": {resumes_from(self.model_dir)}" if self.model_dir else ""
        output = f" (what libraries wrote is in {self.native_output})" if self.native_output else ""
        return f"start all {self.count} processes again{resumes}{output}."


@functools.cache
def others() -> Others:
    """Returns the other processes of this one's run; there is one answer a process, as there is one jax client."""
    return Others()


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Tells the other processes of an error that ends this one; waits for the name if the error is a lost process."""
    try:
        yield
    except Exception as error:
        them = others()
        if them.count > 1:
            if not hasattr(error, "exit_status") and LOST.search(str(error)):
                # A thread of jax, or one that has read the others' words, ends this process with the name.
                time.sleep(them.timeout + GRACE_SECONDS)
                reason = f"The exchange between the {them.count} processes failed ({reason_of(error)}); "
                error = RestartError(reason + them._advice())
            sentence = " ".join(str(error).split()) or type(error).__name__
            them.fail(sentence[:500], getattr(error, "exit_status", 1))
        raise error


@contextlib.contextmanager
def losses_told() -> Iterator[None]:
    """Lets the jax client that is made inside call `Others.lost` when a process is lost, instead of aborting.

    jaxlib 0.10 cannot hand its status to a Python function: the call ends in std::bad_cast, which
    `_on_cpp_exceptions` notices. A jaxlib that can will call the function itself.
    """
    make: Callable[..., Any] = _jax.get_distributed_runtime_client

    def made(*arguments: Any, **named: Any) -> Any:
        return make(*arguments, **named, missed_heartbeat_callback=others().lost)

    _jax.get_distributed_runtime_client = made
    try:
        yield
    finally:
        _jax.get_distributed_runtime_client = make


def answers(address: str, seconds: float) -> bool:
    """Returns whether HOST:PORT accepts a connection within the seconds."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds):
            return True
    except (OSError, ValueError):
        return False


def _keeps_answering(address: str, seconds: float = 2.0) -> bool:
    """Returns whether HOST:PORT accepts connections for some time: the kernel first frees a killed process's memory."""
    end = time.monotonic() + seconds
    while answers(address, seconds):
        if time.monotonic() > end:
            return True
        time.sleep(0.2)
    return False


def resumes_from(model_dir: str, seconds: float = 5.0) -> str:
    """Returns where a run goes on, such as "the run resumes from step 40"; it looks no longer than the seconds."""
    steps: list[int] = []

    def look() -> None:
        with contextlib.suppress(OSError):
            steps.extend(
                int(path.name) for path in epath.Path(model_dir, "checkpoints").iterdir() if path.name.isdigit()
            )

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(seconds)
    if looking.is_alive():
        return "the run resumes from its newest checkpoint"
    return f"the run resumes from step {max(steps):,}" if steps else "nothing is saved yet, the run starts at step 0"


def _on_cpp_exceptions(actions: Mapping[bytes, Callable[[], object]]) -> None:
    """Calls a function when a C++ thread ends in an exception whose type's name begins so.

    If it returns, the handler of before follows: a line about the exception, and the end by SIGABRT.
    """
    _cpp_actions().update(actions)


@functools.cache
def _cpp_actions() -> dict[bytes, Callable[[], object]]:
    """Sets the handler of C++ threads that end in an exception; returns what it calls."""
    actions: dict[bytes, Callable[[], object]] = {}
    try:
        library = ctypes.CDLL("libstdc++.so.6")
    except OSError:  # another platform: a lost process ends this one too, by jax's own message
        return actions
    library._ZSt13set_terminatePFvvE.restype = ctypes.c_void_p
    library._ZSt13set_terminatePFvvE.argtypes = [ctypes.c_void_p]
    library.__cxa_current_exception_type.restype = ctypes.c_void_p

    def terminated() -> None:
        kind = library.__cxa_current_exception_type()  # a std::type_info: a pointer, then the name
        name = ctypes.c_char_p.from_address(kind + ctypes.sizeof(ctypes.c_void_p)).value if kind else None
        for beginning, act in actions.items():
            if (name or b"").startswith(beginning):
                act()
        ctypes.CFUNCTYPE(None)(before)()

    handler = ctypes.CFUNCTYPE(None)(terminated)
    _KEPT.append(handler)  # C++ holds no reference
    before = library._ZSt13set_terminatePFvvE(ctypes.cast(handler, ctypes.c_void_p))
    return actions


_KEPT: list[object] = []
