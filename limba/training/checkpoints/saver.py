"""Saving in the background: a snapshot is written by a thread, tried again if that fails, and reported when committed.

All processes save the same step. They meet in phases (`_phase`) whose outcome they share, so that a failure in one of
them is a failure in all, and each phase has a limit.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax
from etils import epath

from limba.config import StorageError
from limba.sharding import preemption
from limba.sharding.agreement import forget_texts, gather_texts
from limba.storage.failures import limited, short_reason
from limba.storage.files import free_bytes
from limba.storage.manifest import Entry
from limba.training.checkpoints.arrays import Snapshot
from limba.training.checkpoints.step_directory import (
    clear_step,
    commit_step,
    open_step,
    remove_all_but,
    size_text,
    write_own_arrays,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 20.0  # between attempts
QUIET_SECONDS = 10.0  # after which a save that a stop waits for is said
STOP_SECONDS = 60.0  # for which a save that fails is still tried where the run was asked to stop
GRACE_SECONDS = 30.0  # for another process, which may have begun a phase later, by up to a pause
AGREE_SECONDS = 60.0  # to agree on the call of `poll` that reports
SPARE = 1.05  # of the last checkpoint's bytes, for the next one


class SaveError(Exception):
    """One attempt has failed; its text says why in a few words."""


@dataclass(frozen=True)
class Outcome:
    """The end of a save: committed in `directory`, or with an error. The call of `poll` numbered `at` reports it."""

    step: int
    directory: epath.Path
    error: StorageError | None
    at: int


class Saver:
    """Saves one snapshot at a time in `directory`, and where that fails for too long in `fallback`."""

    def __init__(self, name: str, directory: epath.Path, fallback: epath.Path | None, keep: int | None, seconds: float):
        self.directory, self.fallback = directory, fallback
        self._name, self._keep, self._seconds = name, keep, seconds
        self._lock = threading.Lock()  # of the two below; held while processes agree on a call of `poll`
        self._num_polls, self._ended = 0, list[Outcome]()
        self._thread: threading.Thread | None = None
        self._deadline = 0.0
        self._hurry, self._abandoned = threading.Event(), threading.Event()
        self._stop_by = math.inf  # when a save that fails is given up, since the run was asked to stop
        self._serial, self._last_bytes = 0, 0
        self._good: tuple[int, epath.Path] | None = None

    def start(
        self, step: int, snapshot: Snapshot, data: Mapping[str, object], good: tuple[int, epath.Path] | None
    ) -> None:
        """Starts a save; the one before has ended (`wait`). `good` is the newest step before it, for messages."""
        self._serial += 1
        self._hurry.clear()
        self._good = self._good or good
        places = 1 if self.fallback is None else 2
        self._deadline = time.monotonic() + places * (self._seconds + GRACE_SECONDS) + AGREE_SECONDS
        self._thread = threading.Thread(
            target=self._run, args=(step, snapshot, data), daemon=True, name=f"saving step {step}"
        )
        self._thread.start()

    def poll(self) -> list[Outcome]:
        """Returns the saves that have ended, in all processes at the same of its calls."""
        with self._lock:
            self._num_polls += 1
            ready = [outcome for outcome in self._ended if outcome.at <= self._num_polls]
            self._ended = [outcome for outcome in self._ended if outcome.at > self._num_polls]
        if not ready and self._thread is not None and self._thread.is_alive() and time.monotonic() > self._deadline:
            raise self._stuck()
        return ready

    def stop(self) -> None:
        """Tries a save that fails for STOP_SECONDS more, and not until its time is over: the run was asked to stop."""
        self._stop_by = min(self._stop_by, time.monotonic() + STOP_SECONDS)

    def wait(self, hurry: bool = True, seconds: float | None = None) -> None:
        """Waits for the save that is under way; StorageError if it has failed for good, or stands still.

        With `hurry` a failing save goes on to `fallback` at once. What was committed is still reported by `poll`.
        """
        if self._thread is None:
            return
        if hurry:
            self._hurry.set()
        if self._stop_by < math.inf:
            self._thread.join(QUIET_SECONDS)
            if self._thread.is_alive():
                text = "Asked to stop: %s in %s takes more than %.0f s; the run ends with it."
                self._say(text, self._thread.name, self.directory, QUIET_SECONDS)
        left = max(1.0, self._deadline - time.monotonic())
        self._thread.join(left if seconds is None else min(left, seconds))
        if self._thread.is_alive():
            raise self._stuck()
        with self._lock:
            failed = [outcome.error for outcome in self._ended if outcome.error is not None]
            self._ended = [outcome for outcome in self._ended if outcome.error is None]  # an error is raised once
        if failed:
            raise failed[0]

    def abandon(self) -> None:
        """Makes the attempt that is under way the last one; for a run that ends by another error."""
        self._abandoned.set()
        self._hurry.set()

    def _stuck(self) -> StorageError:
        name = self._thread.name if self._thread is not None else "saving"
        return StorageError(
            f"{name[:1].upper()}{name[1:]} in {self.directory} stands still: it has not ended after its"
            f" {self._seconds:,.0f} s (CheckpointConfig.save_timeout_seconds). {self._good_text()} Look at the storage,"
            " and start the same command again."
        )

    def _good_text(self) -> str:
        if self._good is None:
            return "No earlier step is saved."
        return f"Step {self._good[0]:,} in {self._good[1]} is good."

    def _run(self, step: int, snapshot: Snapshot, data: Mapping[str, object]) -> None:
        error: StorageError | None = None
        place = self.directory
        try:
            reason = self._try_for(self.directory, step, snapshot, data, self._seconds, 0)
            if reason is not None and self.fallback is not None:
                place, first = self.fallback, reason
                reason = self._try_for(place, step, snapshot, data, min(self._seconds, 60.0), 1)
                if reason is None:
                    text = "Step %d is saved in %s, as %s cannot be written (%s)."
                    self._say(text, step, place, self.directory, first)
                else:
                    reason = f"{first}), nor in {place} ({reason}"
            if reason is not None:
                error = self._failed(step, snapshot, reason)
        except Exception as caught:  # reported by `poll`, to the run
            logger.debug("A save has failed:", exc_info=True)
            error = self._failed(step, snapshot, short_reason(caught))
            error.__cause__ = caught
        if error is None:
            self._good = (step, place)
        self._report(step, place, error)
        if error is None and jax.process_index() == 0:
            remove_all_but(place, self._keep)

    def _report(self, step: int, place: epath.Path, error: StorageError | None) -> None:
        """Has all processes report the end at the same call of `poll`: the first that none has made yet."""
        with self._lock:
            try:
                polls = gather_texts(f"{self._name}/{self._serial}/polls", str(self._num_polls), AGREE_SECONDS)
                at = max(map(int, polls)) + 1 if len(polls) > 1 else 0
            except Exception as caught:  # noqa: BLE001  another process has ended
                at = 0
                error = error or StorageError(
                    f"The processes cannot agree on the end of the save of step {step} ({short_reason(caught)});"
                    " start the same command again."
                )
            self._ended.append(Outcome(step, place, error, at))
        forget_texts(f"{self._name}/{self._serial - 1}")

    def _failed(self, step: int, snapshot: Snapshot, reason: str) -> StorageError:
        free, space = free_bytes(str(self.directory)), f" A checkpoint takes {size_text(snapshot.num_bytes)}"
        if free is None:
            space += "."
        else:  # where there is no room, the reason says so already
            space = f"{space}, and {size_text(free)} are free." if free >= self._needed(snapshot) else ""
        return StorageError(
            f"Step {step} cannot be saved in {self.directory} ({reason}).{space} {self._good_text()} Mend that, and"
            " start the same command again."
        )

    def _needed(self, snapshot: Snapshot) -> int:
        return int(SPARE * self._last_bytes) or snapshot.num_bytes

    def _try_for(
        self, place: epath.Path, step: int, snapshot: Snapshot, data: Mapping[str, object], seconds: float, number: int
    ) -> str | None:
        """Tries to save until it succeeds, and returns None, or for `seconds`, and returns why it failed."""
        deadline, pause, attempt = time.monotonic() + seconds, FIRST_PAUSE_SECONDS, 0
        while True:
            name = f"{self._name}/{self._serial}/{number}.{attempt}"
            try:
                self._attempt(name, place, step, snapshot, data, deadline)
                return None
            except SaveError as error:
                reason = str(error)
            if preemption.is_asked():  # the main thread may wait for this save
                self.stop()
            if jax.process_index() == 0 and time.monotonic() < self._stop_by:  # else the next start does it
                clear_step(place, step)
            ends = time.monotonic() + pause > min(deadline, self._stop_by) or self._abandoned.is_set()
            ends = ends or (self._hurry.is_set() and number == 0 and self.fallback is not None)
            decision = gather_texts(f"{name}/again", "end" if ends else "again", GRACE_SECONDS)[0]
            if decision == "end":
                return reason
            if attempt == 0:
                left = min(seconds, self._stop_by - time.monotonic())
                self._say(
                    "Step %d cannot be saved in %s (%s); it is tried again for %.0f s.", step, place, reason, left
                )
            (self._hurry if number == 0 and self.fallback is not None else self._abandoned).wait(pause)
            pause, attempt = min(2 * pause, LONGEST_PAUSE_SECONDS), attempt + 1

    def _attempt(
        self, name: str, place: epath.Path, step: int, snapshot: Snapshot, data: Mapping[str, object], deadline: float
    ) -> None:
        is_first = jax.process_index() == 0
        needed = self._needed(snapshot)

        def opened() -> None:
            if is_first:
                open_step(place, step, needed)

        def committed(parts: Sequence[Mapping[str, Entry]]) -> int:
            known = {name: entry for part in parts for name, entry in part.items()}
            if is_first:
                commit_step(place, step, snapshot, data, known)
            return sum(size for size, _ in known.values())

        self._phase(f"{name}/open", opened, deadline)
        parts = self._phase(f"{name}/arrays", lambda: write_own_arrays(place, step, snapshot), deadline)
        self._last_bytes = self._phase(f"{name}/commit", lambda: committed(parts), deadline)[0]

    def _phase(self, name: str, work: Callable[[], T], deadline: float) -> list[T]:
        """Does this process's work; returns the results of all. Raises SaveError if one has failed or gives none."""
        left, failure, result = max(1.0, deadline - time.monotonic()), "", None
        try:
            result = limited(work, left, "writing")
        except Exception as error:  # shared with the others
            logger.debug("A save has failed:", exc_info=True)
            failure = short_reason(error)
        try:
            answers = gather_texts(name, json.dumps([failure, result]), left + GRACE_SECONDS)
        except Exception as error:
            raise SaveError(failure or short_reason(error)) from error
        shared = [json.loads(answer) for answer in answers]
        for index, (reason, _) in enumerate(shared):
            if reason:
                raise SaveError(reason if len(shared) == 1 else f"process {index}: {reason}")
        return [value for _, value in shared]

    def _say(self, text: str, *values: object) -> None:
        if jax.process_index() == 0:
            logger.warning(text, *values)
