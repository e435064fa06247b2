"""One run a directory: a lease that its holder renews by heartbeats, and that a new start takes over from a dead one.

On one machine the kernel's lock of a file tells at once whether the holder lives, and is free when that one dies. Other
machines watch the heartbeats, a number that changes: two of them are waited for, by the watcher's own clock.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from limba.config import InputError, RestartError, StorageError
from limba.config.errors import is_out_of_memory, reason_of
from limba.storage.files import hold
from limba.storage.places import LocalPlace, Place, Seen, TakenError, place_at

FILE = "lease.json"  # in a directory; beside an output that cannot hold it: OUTPUT.lease
BEAT_SECONDS = 12.0
PATIENCE = 2  # heartbeats that a watcher waits for
LIMIT_SECONDS = 60.0  # for one answer of a directory or bucket, at the start and at the end
BYTES = 512  # of an owner, padded: it is written in place

T = TypeVar("T")


@dataclass(frozen=True)
class Owner:
    """Who holds a lease. `boot` tells machines and their starts apart, `token` one holder from the next."""

    token: str
    purpose: str  # "trains in", as a sentence says it
    host: str
    boot: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"

    def content(self, beat: int) -> bytes:
        return (json.dumps({"format": 1, **asdict(self), "beat": beat}).ljust(BYTES - 1) + "\n").encode()

    @classmethod
    def of(cls, content: bytes | None) -> Owner | None:
        """Returns the owner that a file names; None if it names none."""
        try:
            found = json.loads(content or b"")
            return cls(**{name: found[name] for name in cls.__dataclass_fields__})
        except (ValueError, TypeError, KeyError):
            return None

    @classmethod
    def here(cls, purpose: str) -> Owner:
        """Returns this process."""
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return cls(secrets.token_hex(8), purpose, socket.gethostname(), _boot(), os.getpid(), now)


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""  # equals no other, see `_is_here`


def _is_here(owner: Owner | None) -> bool:
    return owner is not None and bool(owner.boot) and owner.boot == _boot()


@contextlib.contextmanager
def held(directory: str, purpose: str, *, beside: bool = False) -> Iterator[Lease]:
    """Holds the lease of a directory or an output, a local path or an address, for the time of the context.

    `purpose` is a verb such as "trains in", for the sentence that another process ends with. With `beside` the lease
    is a file beside the path, which need not exist. Raises InputError if another process holds it, and StorageError if
    it cannot be written. It says on stderr when it waits and when it takes over. In the context call `check()`.
    """
    lease = Lease(directory, purpose, beside)
    lease.acquire()
    try:
        yield lease
    finally:
        lease.release()


class Lease:
    """The lease of one directory; `held` makes, acquires and releases it."""

    def __init__(self, directory: str, purpose: str, beside: bool):
        self.directory, self.owner, self._path = directory, Owner.here(purpose), _path(directory, beside)
        self._place: Place | None = None
        self._beats, self._confirmed = 0, 0.0
        self._lost = ""  # the sentence, once another process holds it
        self._is_failing = self._has_complained = False
        self._gone_since = 0.0  # by time.monotonic(): the file is not there; 0: it is
        self._over, self._wake, self._beaten = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True, name="lease")

    def acquire(self) -> None:
        """Takes the lease and starts its heartbeats; errors as `held`."""
        try:
            self._place = within(LIMIT_SECONDS, lambda: place_at(self._path))
            self._take(self._place)
        except (InputError, StorageError):
            self._close()
            raise
        except Exception as error:  # a bucket's client has errors of its own
            self._close()
            if is_out_of_memory(error):
                raise
            kind = InputError if isinstance(error, NotADirectoryError | FileExistsError) else StorageError
            raise kind(
                f"{self._path} cannot be written ({reason_of(error)}); check the path, the permissions and the space."
            ) from error
        self._confirmed = time.monotonic()
        if isinstance(self._place, LocalPlace) and os.path.basename(self._path) == FILE:
            hold(os.path.dirname(self._path), self._path)
        self._thread.start()

    def _take(self, place: Place) -> None:
        """Takes the lease if it is free, or if its holder is dead."""
        end = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            seen = within(LIMIT_SECONDS, place.look)
            owner, after = Owner.of(seen.content), ""
            if seen.lock == "another's" and (not seen.content or _is_here(owner)):
                if owner:
                    raise self._in_use(owner)
                time.sleep(BEAT_SECONDS / 100)  # it is about to write who it is
                continue
            is_watched = bool(seen.content) and not (seen.lock == "ours" and _is_here(owner))
            if is_watched:
                seen = self._watched(place, seen, owner)
                after = f" after {PATIENCE * BEAT_SECONDS:.0f} s without a heartbeat"
                end = time.monotonic() + LIMIT_SECONDS
            content = self.owner.content(0)
            if not within(LIMIT_SECONDS, functools.partial(place.take, content, seen)):
                continue  # somebody else was faster
            if is_watched:  # where there is no lock, another watcher may have taken it a moment later
                time.sleep(BEAT_SECONDS / 10)
                if within(LIMIT_SECONDS, place.read) != content:
                    continue
            if seen.content:
                _say(f"{self.directory} was left by {owner or 'another process'}, and is taken over{after}.")
            return
        raise StorageError(f"{self._path} cannot be taken within {LIMIT_SECONDS:.0f} s; remove it if nobody uses it.")

    def _watched(self, place: Place, seen: Seen, owner: Owner | None) -> Seen:
        """Returns what is there after two heartbeats, or when it is free; InputError if its holder lives."""
        seconds = PATIENCE * BEAT_SECONDS
        _say(
            f"{self.directory} was last used by {owner or 'another process'}, perhaps still: waiting up to"
            f" {seconds:.0f} s for a heartbeat."
        )
        end = time.monotonic() + seconds
        while (now := within(LIMIT_SECONDS, place.look)).content == seen.content and time.monotonic() < end:
            time.sleep(BEAT_SECONDS / 10)
        if now.content and now.content != seen.content and (living := Owner.of(now.content) or owner):
            raise self._in_use(living, ", which gave a heartbeat just now")
        return now

    def _in_use(self, owner: Owner, heard: str = "") -> InputError:
        return InputError(
            f"Another process {owner.purpose} {self.directory} now ({owner}{heard}); wait for its end, or stop it, or"
            " give another path."
        )

    def _beat_on(self) -> None:
        while not self._over.is_set():
            self._wake.wait(BEAT_SECONDS)
            self._wake.clear()
            if self._over.is_set() or self._lost:
                return
            self._beat()
            self._beaten.set()

    def _beat(self) -> None:
        self._beats += 1
        assert self._place is not None
        try:
            self._place.renew(self.owner.content(self._beats), self._is_ours)
        except TakenError as taken:
            other = Owner.of(taken.content)
            if other is None:
                self._gone_since = self._gone_since or time.monotonic()
                self._fail("it is gone")
                return
            self._lost = (
                f"Another process {other.purpose} {self.directory} now ({other}), since no heartbeat of this one was"
                f" seen there; nothing more is written to {self.directory}. Start again when no other process uses it."
            )
            _say(self._lost)
        except Exception as error:  # noqa: BLE001  a full disk or a bucket that is down must not end the run
            self._fail(reason_of(error))
        else:
            self._confirmed, self._is_failing, self._gone_since = time.monotonic(), False, 0.0

    def _fail(self, reason: str) -> None:
        self._is_failing = True
        if not self._has_complained:
            self._has_complained = True
            _say(
                f"The heartbeat of this run cannot be written to {self._path} ({reason}); the run goes on, and tries"
                f" again every {BEAT_SECONDS:.0f} s."
            )

    def _is_ours(self, content: bytes) -> bool:
        owner = Owner.of(content)
        return owner is not None and owner.token == self.owner.token

    def check(self, most_seconds: float = math.inf) -> None:
        """Raises RestartError if another process holds the lease now. Call it before something is written; cheap.

        Raises StorageError if the lease's file, and perhaps the directory with it, has been gone for `most_seconds`.
        """
        stood_still = time.monotonic() - self._confirmed > PATIENCE * BEAT_SECONDS
        if not self._lost and stood_still and not self._is_failing:
            # This process was stopped, or its storage was: another one may have taken over.
            self._beaten.clear()
            self._wake.set()
            self._is_failing = not self._beaten.wait(BEAT_SECONDS) or self._is_failing
        if self._lost:
            raise RestartError(self._lost)
        if self._gone_since and time.monotonic() - self._gone_since > most_seconds:
            raise StorageError(
                f"{self._path} has been gone for {most_seconds:,.0f} s, as if {self.directory} had been moved, removed"
                " or unmounted; bring it back, and start the same command again."
            )

    def release(self) -> None:
        """Ends the heartbeats and removes the lease, if it is still ours. Never raises, never waits long."""
        hold(os.path.dirname(self._path), None)
        self._over.set()
        self._wake.set()
        self._thread.join(min(BEAT_SECONDS, LIMIT_SECONDS))
        if self._thread.is_alive():
            return  # it waits for the storage; what it holds ends with this process
        place = self._place
        if not self._lost and place is not None:
            with contextlib.suppress(Exception):  # the next start takes it over
                within(LIMIT_SECONDS, lambda: place.leave(self._is_ours))
        self._close()

    def _close(self) -> None:
        if self._place is not None:
            self._place.close()


def _path(directory: str, beside: bool) -> str:
    whole = directory if "://" in directory else os.path.abspath(os.path.expanduser(directory))
    return f"{whole.rstrip('/')}.lease" if beside else f"{whole.rstrip('/')}/{FILE}"


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a console that is gone ends no heartbeat
        print(sentence, file=sys.stderr, flush=True)


class Sight(NamedTuple):
    """What a watcher knows of a holder: who it is, if it is there, and how it is seen to live."""

    owner: Owner | None
    silent_seconds: float  # since the watcher has last seen a change
    has_beaten: bool  # a change was seen, so the holder lived then


class Watch:
    """The lease of somebody else, watched by a process that waits for its work."""

    def __init__(self, directory: str, *, beside: bool = False):
        self._place = place_at(_path(directory, beside))
        self._content, self._changed, self._has_beaten = self._place.read(), time.monotonic(), False

    def look(self) -> Sight:
        """Returns what is seen now; the storage's own errors if it cannot be read."""
        content = within(LIMIT_SECONDS, self._place.read)
        if content != self._content:
            self._content, self._changed, self._has_beaten = content, time.monotonic(), True
        return Sight(Owner.of(content), time.monotonic() - self._changed, self._has_beaten)


def within(seconds: float, call: Callable[[], T]) -> T:
    """Returns what a call returns; TimeoutError if it takes longer. It is then left waiting in a thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((True, call()))
        except BaseException as error:  # noqa: BLE001  raised below
            found.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise TimeoutError(f"there is no answer within {seconds:.0f} s")
    succeeded, result = found[0]
    if not succeeded:
        raise result
    return result
