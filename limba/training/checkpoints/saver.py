"""Saving in the background: a snapshot is written by a thread, tried again if that fails, and reported when committed.

All processes save the same step. They meet in phases (`_phase`) whose outcome they share, so that a failure in one of
them is a failure in all, and each phase has a limit.
"""

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import jax
from etils import epath

from limba.config import RestartError, StorageError
from limba.sharding import preemption
from limba.sharding.agreement import forget_texts, gather_texts
from limba.storage.failures import limited, short_reason
from limba.storage.files import free_bytes
from limba.storage.manifest import Entry
from limba.training.checkpoints import step_directory
from limba.training.checkpoints.arrays import Snapshot
from limba.training.checkpoints.step_directory import Attempt, size_text

T = TypeVar("T")
logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0  # before the second attempt; each further pause is twice as long,
LONGEST_PAUSE_SECONDS = 20.0  # up to this
QUIET_SECONDS = 10.0  # after which a line says that a stop waits for a save
STOP_SECONDS = 60.0  # for which a save that fails is still tried where the run was asked to stop
GRACE_SECONDS = 30.0  # for another process, which may have begun a phase later, by up to a pause
AGREE_SECONDS = 60.0  # to agree on the call of `poll` that reports
SPARE = 1.05  # of the last checkpoint's bytes, for the next one


class AttemptError(Exception):
    """One attempt has failed; its text says why in a few words."""


@dataclass(frozen=True)
class Outcome:
    """The end of a save: committed, or with an error. The call of `poll` numbered `at` reports it."""

    step: int
    error: StorageError | RestartError | None
    at: int


class Task(NamedTuple):
    """What is saved: the copy of the state, and the item `data`."""

    step: int
    snapshot: Snapshot
    data: Mapping[str, object]


class Saver:
    """Saves one snapshot at a time in `directory`.

    `name` is of what the processes exchange, `keep` is how many steps stay there, and `seconds` are for one save with
    all its attempts. `may_commit` raises RestartError if the directory belongs to another run now.
    """

    def __init__(
        self, name: str, directory: epath.Path, keep: int | None, seconds: float, may_commit: Callable[[], None]
    ):
        self.directory = directory
        self._name = name
        self._keep = keep
        self._seconds = seconds
        self._may_commit = may_commit
        self._lock = threading.Lock()  # of the two below; held while processes agree on a call of `poll`
        self._num_polls = 0
        self._ended = list[Outcome]()
        self._thread: threading.Thread | None = None
        self._has_reported = False  # the thread
        self._deadline = 0.0  # when the thread has to have ended
        self._abandoned = threading.Event()
        self._stop_by = math.inf  # when a save that fails is given up, since the run was asked to stop
        self._serial = 0  # of the saves of this process, and
        self._num_attempts = 0  # of their attempts: the same in all processes
        self._last_bytes = 0
        self.good_step: int | None = None  # from which a restart would go on, for messages

    def start(self, step: int, snapshot: Snapshot, data: Mapping[str, object]) -> None:
        """Starts a save; the one before has ended (`wait`)."""
        self._serial += 1
        self._deadline = time.monotonic() + self._seconds + 2 * GRACE_SECONDS + AGREE_SECONDS
        task = Task(step, snapshot, data)
        self._has_reported = False
        self._thread = threading.Thread(target=self._run, args=(task,), daemon=True, name=f"saving step {step}")
        self._thread.start()

    def poll(self) -> list[Outcome]:
        """Returns the saves that have ended, in all processes at the same of its calls."""
        with self._lock:
            self._num_polls += 1
            ready = [outcome for outcome in self._ended if outcome.at <= self._num_polls]
            self._ended = [outcome for outcome in self._ended if outcome.at > self._num_polls]
        is_saving = self._thread is not None and self._thread.is_alive()
        if not ready and is_saving and time.monotonic() > self._deadline:
            raise self._stuck()
        return ready

    def stop(self) -> None:
        """Tries a save that fails for STOP_SECONDS more, and not until its time is over: the run was asked to stop."""
        self._stop_by = min(self._stop_by, time.monotonic() + STOP_SECONDS)

    def wait(self) -> None:
        """Waits for the save that is under way; raises its error if it has failed for good, or stands still.

        What was committed is still reported by `poll`.
        """
        if self._thread is None:
            return
        if self._stop_by < math.inf:
            self._thread.join(QUIET_SECONDS)
            if self._thread.is_alive():
                text = "Asked to stop: %s in %s takes more than %.0f s; the run ends with it."
                self._say(text, self._thread.name, self.directory, QUIET_SECONDS)
        self._thread.join(max(1.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            raise self._stuck()
        if not self._has_reported:  # its own words have failed; nothing says that the step is saved
            name = self._thread.name
            self._thread = None  # an error is raised once
            raise StorageError(
                f"{name[:1].upper()}{name[1:]} in {self.directory} has ended by an error of its own."
                f" {self._good_text()} Start the same command again."
            )
        with self._lock:
            errors = [outcome.error for outcome in self._ended if outcome.error is not None]
            self._ended = [outcome for outcome in self._ended if outcome.error is None]  # an error is raised once
        if errors:
            raise errors[0]

    def abandon(self) -> None:
        """Makes the attempt that is under way the last one; for a run that ends by another error."""
        self._abandoned.set()

    def _stuck(self) -> StorageError:
        name = self._thread.name if self._thread is not None else "saving"
        return StorageError(
            f"{name[:1].upper()}{name[1:]} in {self.directory} stands still: it has not ended after its"
            f" {self._seconds:,.0f} s (CheckpointConfig.save_timeout_seconds). {self._good_text()} Look at the storage,"
            " and start the same command again."
        )

    def _good_text(self) -> str:
        if self.good_step is None:
            return "No earlier step is saved."
        return f"Step {self.good_step:,} in {self.directory} is good."

    def _run(self, task: Task) -> None:
        """Saves, and reports the end; what the thread does."""
        error: StorageError | RestartError | None = None
        try:
            reason = self._reason_after_attempts(task)
            if reason is not None:
                error = self._failed(task, reason)
        except RestartError as caught:  # another run has the directory
            error = caught
        except Exception as caught:  # reported by `poll`, to the run
            logger.debug("A save has failed:", exc_info=True)
            error = self._failed(task, short_reason(caught))
            error.__cause__ = caught
        if error is None:
            self.good_step = task.step
        self._report(task.step, error)
        if error is None and jax.process_index() == 0:
            with contextlib.suppress(RestartError):  # the run's own look at its lease ends it
                step_directory.remove_old(self.directory, task.step, self._keep, self._may_commit)

    def _report(self, step: int, error: StorageError | RestartError | None) -> None:
        """Has all processes report the end at the same call of `poll`: the first that none has made yet."""
        at = 0
        with self._lock:
            try:
                polls = gather_texts(f"{self._name}/{self._serial}/polls", str(self._num_polls), AGREE_SECONDS)
                if len(polls) > 1:
                    at = max(int(number) for number in polls) + 1
            except Exception as caught:  # noqa: BLE001  another process has ended
                error = error or StorageError(
                    f"The processes cannot agree on the end of the save of step {step} ({short_reason(caught)});"
                    " start the same command again."
                )
            self._ended.append(Outcome(step, error, at))
            self._has_reported = True
        forget_texts(f"{self._name}/{self._serial - 1}")

    def _failed(self, task: Task, reason: str) -> StorageError:
        space = f" A checkpoint takes {size_text(task.snapshot.num_bytes)}."
        free = None
        with contextlib.suppress(OSError):  # of the storage, which may be why the save has failed
            free = free_bytes(str(self.directory))
        if free is not None:
            space = f" A checkpoint takes {size_text(task.snapshot.num_bytes)}, and {size_text(free)} are free."
            if free < self._needed_bytes(task.snapshot):
                space = ""  # the reason says so already
        return StorageError(
            f"Step {task.step} cannot be saved in {self.directory} ({reason}).{space} {self._good_text()} Fix that,"
            " and start the same command again."
        )

    def _needed_bytes(self, snapshot: Snapshot) -> int:
        if self._last_bytes:
            return int(SPARE * self._last_bytes)
        return snapshot.num_bytes

    def _reason_after_attempts(self, task: Task) -> str | None:
        """Tries to save until it succeeds, and returns None, or until the time is over, and returns why it failed.

        Raises RestartError if another run has the directory.
        """
        deadline = time.monotonic() + self._seconds
        pause = FIRST_PAUSE_SECONDS
        is_again = False
        while True:
            self._num_attempts += 1
            # In the other processes the first one's takes its place.
            attempt = step_directory.new_attempt(self.directory, task.step)
            try:
                self._attempt(task, attempt, deadline)
                return None
            except AttemptError as error:
                reason = str(error)
            if preemption.is_asked():  # the main thread may wait for this save
                self.stop()
            last_start = min(deadline, self._stop_by) - pause
            if not self._is_tried_again(attempt, last_start):
                return reason
            if not is_again:
                is_again = True
                left = min(self._seconds, self._stop_by - time.monotonic())
                text = "Step %d cannot be saved in %s (%s); it is tried again for %.0f s."
                self._say(text, task.step, self.directory, reason, left)
            self._abandoned.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _is_tried_again(self, attempt: Attempt, last_start: float) -> bool:
        """Removes what an attempt has left; returns whether there is another one, as the first process decides."""

        def cleared() -> bool:
            if jax.process_index() == 0 and time.monotonic() < self._stop_by:  # else the next start does it
                # A storage that is down takes all of the phase's time to say so; the decision needs some of it. What
                # is left there, the next attempt removes, or the next start.
                with contextlib.suppress(TimeoutError):
                    limited(lambda: step_directory.clear_step(attempt), GRACE_SECONDS / 2, "the removal")
            return time.monotonic() < last_start and not self._abandoned.is_set()

        try:
            return self._phase("again", cleared, time.monotonic() + GRACE_SECONDS)[0]
        except AttemptError:
            return False

    def _attempt(self, task: Task, attempt: Attempt, deadline: float) -> None:
        """Saves in three phases; AttemptError if one fails, RestartError if another run has the directory."""
        is_first = jax.process_index() == 0
        needed = self._needed_bytes(task.snapshot)
        has_failed = threading.Event()

        def may_commit() -> None:
            self._may_commit()
            # A phase that stood still for too long was left to itself, and may go on now: its files may be removed.
            if has_failed.is_set():
                raise TimeoutError("the attempt was given up")

        def opened() -> str:
            if is_first:
                step_directory.open_step(attempt, needed, may_commit)
            return attempt.name

        def written(name: str) -> dict[str, Entry]:
            return step_directory.write_own_arrays(replace(attempt, name=name), task.snapshot)

        def committed(entries_of_all: Sequence[Mapping[str, Entry]]) -> int:
            known: dict[str, Entry] = {}
            for entries in entries_of_all:
                known.update(entries)
            if is_first:
                step_directory.commit_step(attempt, task.data, known, may_commit)
            return sum(size for size, _ in known.values())

        try:
            names = self._phase("open", opened, deadline)
            entries_of_all = self._phase("arrays", lambda: written(names[0]), deadline)
            sizes = self._phase("commit", lambda: committed(entries_of_all), deadline)
        except (AttemptError, RestartError):
            has_failed.set()
            raise
        self._last_bytes = sizes[0]

    def _phase(self, name: str, work: Callable[[], T], deadline: float) -> list[T]:
        """Does this process's work; returns the results of all.

        Raises, in all processes alike, AttemptError if one of them has failed or gives no answer, and RestartError if
        one has found that another run has the directory.
        """
        left = max(1.0, deadline - time.monotonic())
        result = None
        failure = ""
        sentence = ""  # that another run has the directory
        try:
            result = limited(work, left, "writing")
        except RestartError as error:
            sentence = str(error)
        except Exception as error:  # shared with the others
            logger.debug("A save has failed:", exc_info=True)
            failure = short_reason(error)
        try:
            exchange = f"{self._name}/{self._serial}/{self._num_attempts}.{name}"
            answers = gather_texts(exchange, json.dumps([sentence, failure, result]), left + GRACE_SECONDS)
        except Exception as error:
            if sentence:
                raise RestartError(sentence) from error
            raise AttemptError(failure or short_reason(error)) from error
        shared = [json.loads(answer) for answer in answers]
        for lost, *_ in shared:
            if lost:
                raise RestartError(lost)
        for process, (_, reason, _) in enumerate(shared):
            if reason and len(shared) > 1:
                raise AttemptError(f"process {process}: {reason}")
            if reason:
                raise AttemptError(reason)
        return [value for *_, value in shared]

    def _say(self, text: str, *values: object) -> None:
        if jax.process_index() == 0:
            logger.warning(text, *values)
