"""One run a directory: a lease that its holder renews by heartbeats, and that a new start takes over from a dead one.

On one machine the kernel's lock of a file tells at once whether the holder lives, and is free when that one dies. Other
machines watch the heartbeats, a number that changes: two of them are waited for, by the watcher's own clock.
"""

from __future__ import annotations

import contextlib
import errno
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
from typing import Any, NamedTuple

import fsspec

from limba.config import InputError, RestartError, StorageError, foreign, reason_of
from limba.config.errors import is_out_of_memory
from limba.storage.failures import T, limited
from limba.storage.files import fill, gone, hold, is_held, is_local, new_file_beside, open_no_link, try_lock

FILE = "lease.json"  # in a directory; beside an output that cannot hold it: OUTPUT.lease
BEAT_SECONDS = 12.0
PATIENCE = 2  # heartbeats that a watcher waits for
LIMIT_SECONDS = 60.0  # for one answer of a directory or bucket, at the start and at the end
REQUEST_SECONDS = 15.0  # for one request to a bucket
BYTES = 512  # of an owner, padded: it is written in place


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
        except (ValueError, TypeError, KeyError, RecursionError):
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
        _check_links(self._path)
        try:
            self._place = _asked(lambda: place_at(self._path))
            self._take(self._place)
        except Exception as error:  # a bucket's client has errors of its own
            self._close()
            if isinstance(error, InputError | StorageError) or is_out_of_memory(error):
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
            seen = _asked(place.look)
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
            if not _asked(functools.partial(place.take, content, seen)):
                continue  # somebody else was faster
            if is_watched:  # where there is no lock, another watcher may have taken it a moment later
                time.sleep(BEAT_SECONDS / 10)
                if _asked(place.read) != content:
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
        while (now := _asked(place.look)).content == seen.content and time.monotonic() < end:
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
            other = Owner.of(taken.args[0])
            is_back = other is None and self._is_alone_missing()
            if is_back and self._place.take(self.owner.content(self._beats), Seen(None)):
                _say(f"{self._path} was removed while this run goes on; it is written again.")
                self._confirmed, self._is_failing, self._gone_since = time.monotonic(), False, 0.0
                return
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

    def _is_alone_missing(self) -> bool:
        """Returns whether the lease's file alone is missing, and the local directory that it was in is still there."""
        directory = os.path.dirname(self._path)
        return isinstance(self._place, LocalPlace) and is_held(directory) and not gone(directory)

    def _fail(self, reason: str) -> None:
        self._is_failing = True
        if not self._has_complained:
            self._has_complained = True
            _say(
                f"The heartbeat of this run cannot be written to {self._path} ({reason}); the run goes on, and tries"
                f" again every {BEAT_SECONDS:.0f} s."
            )

    def _is_ours(self, content: bytes | None) -> bool:
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
                _asked(lambda: place.leave(self._is_ours))
        self._close()

    def _close(self) -> None:
        if self._place is not None:
            self._place.close()


def _path(directory: str, beside: bool) -> str:
    whole = directory if "://" in directory else os.path.abspath(os.path.expanduser(directory))
    return f"{whole.rstrip('/')}.lease" if beside else f"{whole.rstrip('/')}/{FILE}"


def _check_links(path: str) -> None:
    """Raises InputError for a local path below a link that leads nowhere: no folder can be made there."""
    place = os.path.dirname(path)
    while "://" not in path and place != os.path.dirname(place):
        if os.path.islink(place) and not os.path.exists(place):
            raise InputError(
                f"{place} is a link to {os.readlink(place)}, which does not exist; make that folder, or remove the"
                " link."
            )
        place = os.path.dirname(place)


def _asked(request: Callable[[], T]) -> T:
    return limited(request, LIMIT_SECONDS, "a request")


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a console that is gone ends no heartbeat
        print(sentence, file=sys.stderr, flush=True)


class TakenError(Exception):
    """The place holds what somebody else has written, its argument, or nothing."""


class Seen(NamedTuple):
    """What a place holds. `lock` is "ours", "another's", or "none" where there are no locks."""

    content: bytes | None
    lock: str = "none"
    version: str = ""


IsOurs = Callable[[bytes | None], bool]


class Place:
    """Where an owner is written: a file that the kernel locks, or an object of a bucket."""

    def look(self) -> Seen:
        """Returns what is there; a free lock is taken."""
        raise NotImplementedError

    def take(self, content: bytes, seen: Seen) -> bool:
        """Writes the content in the place of what was seen; False if that has changed."""
        raise NotImplementedError

    def remove(self, seen: Seen) -> None:
        """Removes what was seen."""

    def read(self) -> bytes | None:
        """Returns the content; None if nothing is there."""
        return self.look().content

    def renew(self, content: bytes, is_ours: IsOurs) -> None:
        """Writes the content over our own; raises TakenError if what is there is not ours any more."""
        seen = self.look()
        if is_ours(seen.content) and not self.take(content, seen):
            seen = self.look()
        if not is_ours(seen.content):
            raise TakenError(seen.content)

    def leave(self, is_ours: IsOurs) -> None:
        """Removes the content if it is ours."""
        if is_ours((seen := self.look()).content):
            self.remove(seen)

    def close(self) -> None:
        """Gives the lock back, where there is one."""


class LocalPlace(Place):
    """A local file, locked while its holder lives. Its content is for other hosts, whose kernels may see no lock."""

    def __init__(self, path: str):
        self._path = Path(path)
        self._descriptor: int | None = None

    def read(self) -> bytes | None:
        try:
            return foreign.bytes_of(self._path)
        except FileNotFoundError:
            return None

    def look(self) -> Seen:
        for _ in range(100):
            if self._descriptor is None:
                try:
                    descriptor = open_no_link(self._path, os.O_RDWR)
                except FileNotFoundError:
                    return Seen(None)
                lock = try_lock(descriptor)
                if lock != "ours":
                    os.close(descriptor)
                    return Seen(self.read(), lock)
                self._descriptor = descriptor
            with contextlib.suppress(OSError):  # it is gone, or its file system is
                if os.path.samestat(os.fstat(self._descriptor), os.stat(self._path)):
                    return Seen(self.read(), "ours")
            self.close()  # it was removed or replaced before it was locked
        raise OSError(errno.EBUSY, "the file is replaced all the time", str(self._path))

    def take(self, content: bytes, seen: Seen) -> bool:
        if seen.content is None:
            self.close()  # of a file that was removed
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                return False
            if try_lock(descriptor) == "another's":  # somebody has looked at it at once
                os.close(descriptor)
                return False
            self._descriptor = descriptor
            try:
                fill(descriptor, content)
            except OSError:
                self._path.unlink(missing_ok=True)
                raise
            return True
        if seen.lock == "ours" and self._descriptor is not None:
            if is_same := self.read() == seen.content:
                fill(self._descriptor, content)
            return is_same
        return self._replaced(content, seen)

    def _replaced(self, content: bytes, seen: Seen) -> bool:
        """Puts a new file in the place of one whose holder is silent. If that one wakes, it writes to the old file."""
        descriptor, unfinished = new_file_beside(self._path)
        try:
            try_lock(descriptor)
            fill(descriptor, content)
            if self.read() == seen.content:
                os.replace(unfinished, self._path)
                self._descriptor, descriptor = descriptor, None
            return descriptor is None
        finally:
            if descriptor is not None:
                os.unlink(unfinished)
                os.close(descriptor)

    def renew(self, content: bytes, is_ours: IsOurs) -> None:
        found = self.read()
        if not is_ours(found):
            raise TakenError(found)
        # Opens the file again where the directory was away, and came back as a copy or by a new mount. Another host may
        # have put its file there since the line above: what is open now could be that one.
        seen = self.look()
        if not is_ours(seen.content):
            raise TakenError(seen.content)
        assert self._descriptor is not None
        fill(self._descriptor, content)

    def leave(self, is_ours: IsOurs) -> None:
        if is_ours(self.read()):
            self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # a file system that is away; it is closed all the same
                os.close(descriptor)


class ObjectPlace(Place):
    """An object at an address. It is made only if it is not there, and replaced only if it is as it was read.

    Of the stores only Google's checks the second by itself. With others there is a moment between reading and writing.
    """

    def __init__(self, system: Any, path: str):
        self._system, self._path = system, path

    def look(self) -> Seen:
        self._system.invalidate_cache()
        try:
            return Seen(self._system.cat_file(self._path))
        except FileNotFoundError:
            return Seen(None)

    def take(self, content: bytes, seen: Seen) -> bool:
        if seen.content is None:
            with contextlib.suppress(FileExistsError):
                self._system.pipe_file(self._path, content, mode="create")
                return True
            return False
        if self.read() != seen.content:
            return False
        self._system.pipe_file(self._path, content)
        return True

    def remove(self, seen: Seen) -> None:
        self._system.rm_file(self._path)


class GooglePlace(Place):
    """An object of Google Cloud Storage, written only over the generation that was read; "0" is that of no object."""

    def __init__(self, system: Any, path: str):
        self._system = system
        self._bucket, self._name, _ = system.split_path(path)

    def _ask(self, method: str, **options: object) -> Any:
        """Returns the answer of Google's JSON API; FileExistsError if the object has another generation."""
        return self._system.call(method, "b/{}/o/{}", self._bucket, self._name, timeout=REQUEST_SECONDS, **options)

    def look(self) -> Seen:
        try:
            headers, content = self._ask("GET", alt="media")
        except FileNotFoundError:
            return Seen(None, version="0")
        return Seen(content, version=headers["x-goog-generation"])

    def take(self, content: bytes, seen: Seen) -> bool:
        address = f"{self._system._location}/upload/storage/v1/b/{{}}/o"
        about = json.dumps({"name": self._name, "cacheControl": "no-store"}).encode()  # a cache shows it an hour old
        parts = b"".join(b"--part\r\nContent-Type: application/json\r\n\r\n%s\r\n" % part for part in (about, content))
        headers = {"Content-Type": "multipart/related; boundary=part"}
        options = {"uploadType": "multipart", "ifGenerationMatch": seen.version, "timeout": REQUEST_SECONDS}
        try:
            self._system.call("POST", address, self._bucket, headers=headers, data=parts + b"--part--", **options)
        except FileExistsError:  # the precondition failed, perhaps because an earlier attempt's answer was lost
            return self.read() == content
        return True

    def remove(self, seen: Seen) -> None:
        with contextlib.suppress(FileExistsError, FileNotFoundError):  # an earlier attempt's answer was lost
            self._ask("DELETE", ifGenerationMatch=seen.version)


def place_at(path: str) -> Place:
    """Returns the place at a local path or an address; fsspec's errors for an address of an unknown kind."""
    system, stripped = fsspec.core.url_to_fs(path)
    if is_local(system):
        return LocalPlace(stripped)
    if path.startswith("hf://"):  # every write to the hub is a commit: nothing is written, and nobody is kept away
        return ObjectPlace(fsspec.filesystem("memory"), path)
    return GooglePlace(system, stripped) if path.startswith(("gs://", "gcs://")) else ObjectPlace(system, stripped)
