"""One run a directory: a lease that its holder renews by heartbeats, and that a new start takes over from a dead one.

A process of the same machine is asked for by its number and start, so what was killed here is replaced at once. Of a
process on another machine the heartbeats are watched, for LEASE_SECONDS by the watcher's own clock.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from limba.config import InputError, RestartError, StorageError, reason_of
from limba.config.errors import is_out_of_memory
from limba.storage import lease_places
from limba.storage.failures import T, limited
from limba.storage.files import gone, hold, is_held
from limba.storage.lease_places import BEAT_SECONDS as BEAT_SECONDS
from limba.storage.lease_places import LEASE_SECONDS as LEASE_SECONDS
from limba.storage.lease_places import LocalPlace, Owner, Place, Seen, TakenError, place_at
from limba.storage.lease_places import read_owner as read_owner

FILE = "lease"  # in a directory; beside an output that cannot hold it: OUTPUT.lease
LIMIT_SECONDS = 60.0  # for one answer of a directory or bucket, at the start and at the end


@contextlib.contextmanager
def held(directory: str, *, beside: bool = False) -> Iterator[Lease]:
    """Holds the lease of a directory or an output, a local path or an address, for the time of the context.

    With `beside` the lease is a file beside the path, which need not exist. Raises InputError if another process holds
    it, and StorageError if it cannot be written. It says on stderr when it waits and when it takes over. In the context
    call `check()`, and `confirm()` before something is committed.

    >>> with held("out", beside=True):
    ...     with held("out", beside=True):  # as another process does
    ...         pass
    Traceback (most recent call last):
    limba.config.errors.InputError: Another process uses out now (process ...); wait for its end, or stop it, ...
    """
    lease = Lease(directory, beside)
    lease.acquire()
    try:
        yield lease
    finally:
        lease.release()


class Lease:
    """The lease of one directory; `held` makes, acquires and releases it."""

    def __init__(self, directory: str, beside: bool):
        self.directory = directory
        self._is_beside = beside
        self._path = _path(directory, beside)
        self._place: Place | None = None
        self._asking = threading.Lock()  # one thread at a time asks the place
        self._losing = threading.Lock()  # and one says that it is lost
        self._beats = 0  # so far; the tests wait for them
        self._confirmed = 0.0  # when the lease was last seen to be ours, by time.monotonic()
        self._lost = ""  # the sentence, once it is not ours any more
        self._is_failing = False
        self._has_complained = False
        self._gone_since = 0.0  # by time.monotonic(): the directory is not there; 0: it is
        self._over = threading.Event()
        self._wake = threading.Event()
        self._beaten = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True, name="lease")

    def acquire(self) -> None:
        """Takes the lease and starts its heartbeats; errors as `held`."""
        _check_links(self._path)
        try:
            self._place = _asked(lambda: place_at(self._path))
            self._take(self._place)
        except Exception as error:  # a bucket's client has errors of its own
            self._leave()
            if isinstance(error, InputError | StorageError) or is_out_of_memory(error):
                raise
            is_wrong = isinstance(error, NotADirectoryError | FileExistsError | IsADirectoryError)
            kind = InputError if is_wrong else StorageError
            raise kind(
                f"{self._path} cannot be written ({reason_of(error)}); check the path, the permissions and the space."
            ) from error
        self._confirmed = time.monotonic()
        if self._is_of_local_directory():
            hold(os.path.dirname(self._path), self._path)
        self._thread.start()

    def _is_of_local_directory(self) -> bool:
        return isinstance(self._place, LocalPlace) and not self._is_beside

    def _take(self, place: Place) -> None:
        """Takes the lease if it is free, or if its holder is dead."""
        end = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            seen = self._looked(place)
            after = ""
            if seen.is_there and seen.owner is not None and seen.owner.is_here:
                if seen.owner.is_alive:
                    raise self._in_use(seen.owner)
            elif seen.is_there:
                self._check_length(seen.owner)
                is_same = self._watch(place, seen)
                end = time.monotonic() + LIMIT_SECONDS
                if not is_same:
                    continue
                after = f" after {lease_places.LEASE_SECONDS:.0f} s without a heartbeat"
            if _asked(functools.partial(place.take, seen)):
                if seen.is_there:
                    name = seen.owner or "another process"
                    _say(f"{self.directory} was left by {name}, and is taken over{after}.")
                return
            # Somebody else was faster.
        raise StorageError(f"{self._path} cannot be taken within {LIMIT_SECONDS:.0f} s; remove it if nobody uses it.")

    def _check_length(self, owner: Owner | None) -> None:
        """Raises InputError for a lease that lasts longer or shorter than ours: when it is over is not known."""
        if owner is not None and owner.lease_seconds != lease_places.LEASE_SECONDS:
            raise InputError(
                f"{self._path} is held for {owner.lease_seconds:g} s by {owner}, and this version of Limba holds leases"
                f" for {lease_places.LEASE_SECONDS:g} s; use one version, or remove the file if that process has ended."
            )

    def _looked(self, place: Place) -> Seen:
        """Returns what is there; a file that names nobody is looked at again, since its owner may be about to write."""
        seen = _asked(place.look)
        if seen.is_there and seen.owner is None:
            time.sleep(lease_places.PAUSE_SECONDS)
            seen = _asked(place.look)
        return seen

    def _watch(self, place: Place, seen: Seen) -> bool:
        """Returns whether what was seen is still there after the time of a lease; InputError if its holder lives."""
        seconds = lease_places.LEASE_SECONDS
        _say(
            f"{self.directory} was last used by {seen.owner or 'another process'}, perhaps still: waiting up to"
            f" {seconds:.0f} s for a heartbeat."
        )
        end = time.monotonic() + seconds
        seen_now = _asked(place.look)
        while seen_now == seen and time.monotonic() < end:
            time.sleep(seconds / 100)
            seen_now = _asked(place.look)
        if seen_now.is_there and seen_now != seen and seen_now.owner is not None:
            raise self._in_use(seen_now.owner, ", which gave a heartbeat just now")
        return seen_now == seen

    def _in_use(self, owner: Owner | str, heard: str = "") -> InputError:
        return InputError(
            f"Another process uses {self.directory} now ({owner}{heard}); wait for its end, or stop it, or give another"
            " path."
        )

    def _beat_on(self) -> None:
        while not self._over.is_set():
            self._wake.wait(lease_places.BEAT_SECONDS)
            self._wake.clear()
            if self._over.is_set() or self._lost:
                return
            self._beat()
            self._beaten.set()

    def _beat(self) -> None:
        self._beats += 1
        assert self._place is not None
        try:
            with self._asking:
                self._place.keep()
        except TakenError as taken:
            self._lose(taken.seen)
        except Exception as error:  # noqa: BLE001  a full disk or a bucket that is down must not end the run
            self._fail(reason_of(error))
        else:
            self._succeed()

    def _succeed(self) -> None:
        self._confirmed = time.monotonic()
        self._is_failing = False
        self._has_complained = False
        self._gone_since = 0.0

    def _lose(self, seen: Seen) -> None:
        """Notes and says why the place is not ours: another's, or its file was removed, or its folder is away.

        Only a folder that is away may come back, and with it our lease.
        """
        with self._losing:
            if not self._lost:
                self._judge(seen)

    def _judge(self, seen: Seen) -> None:
        if not seen.is_there and self._is_directory_gone():
            self._gone_since = self._gone_since or time.monotonic()
            self._fail("it is gone")
            return
        if seen.is_there:
            self._lost = (
                f"Another process uses {self.directory} now ({seen.owner or 'unknown'}), since no heartbeat of this one"
                f" was seen there; nothing more is written to {self.directory}. Start again when no other process uses"
                " it."
            )
        else:
            self._lost = (
                f"{self._path} was removed while this process used {self.directory}, so that another one could have"
                f" begun; nothing more is written to {self.directory}. Start the same command again, and leave that"
                " file."
            )
        _say(self._lost)

    def _is_directory_gone(self) -> bool:
        directory = os.path.dirname(self._path)
        if not isinstance(self._place, LocalPlace):
            return False
        if is_held(directory):
            return bool(gone(self._path))
        return not os.path.isdir(directory)

    def _fail(self, reason: str) -> None:
        self._is_failing = True
        if not self._has_complained:
            self._has_complained = True
            _say(
                f"The heartbeat of this run cannot be written to {self._path} ({reason}); the run goes on, and tries"
                f" again every {lease_places.BEAT_SECONDS:.0f} s."
            )

    def check(self, most_seconds: float = math.inf) -> None:
        """Raises RestartError if the lease is known to be another's now. Call it before something is written; cheap.

        Raises StorageError if the lease's file, and the directory with it, has been gone for `most_seconds`.
        """
        stood_still = time.monotonic() - self._confirmed > lease_places.LEASE_SECONDS
        if not self._lost and stood_still and not self._is_failing:
            # This process was stopped, or its storage was: another one may have taken over.
            self._beaten.clear()
            self._wake.set()
            has_looked = self._beaten.wait(lease_places.BEAT_SECONDS)
            self._is_failing = self._is_failing or not has_looked
        if self._lost:
            raise RestartError(self._lost)
        if self._gone_since and time.monotonic() - self._gone_since > most_seconds:
            raise StorageError(
                f"{self._path} has been gone for {most_seconds:,.0f} s, as if {self.directory} had been moved, removed"
                " or unmounted; bring it back, and start the same command again."
            )

    def confirm(self) -> None:
        """Asks the storage whether the lease is ours, and renews it; call it just before something is committed.

        From then on nobody takes over for LEASE_SECONDS. Any thread may call it. Raises RestartError if the lease is
        not ours any more, and the storage's own errors, or TimeoutError, where that cannot be known now.
        """
        if self._lost:
            raise RestartError(self._lost)
        _asked(self._confirm)
        if self._lost:
            raise RestartError(self._lost)

    def _confirm(self) -> None:
        assert self._place is not None
        try:
            with self._asking:
                self._place.confirm()
        except TakenError as taken:
            self._lose(taken.seen)
            if not self._lost:
                raise OSError(errno.EIO, f"{self.directory} is gone", self._path) from None
        else:
            self._succeed()

    def release(self) -> None:
        """Ends the heartbeats and removes the lease, if it is still ours. Never raises, never waits long."""
        if self._is_of_local_directory():  # else the directory may be another lease's
            hold(os.path.dirname(self._path), None)
        self._over.set()
        self._wake.set()
        self._thread.join(lease_places.REQUEST_SECONDS)
        if self._thread.is_alive():
            return  # it waits for the storage; the next start takes over
        self._leave()

    def _leave(self) -> None:
        place = self._place
        if place is not None:
            with contextlib.suppress(Exception):  # the next start takes it over
                _asked(place.leave)


def _path(directory: str, beside: bool) -> str:
    whole = directory if "://" in directory else os.path.abspath(os.path.expanduser(directory))
    return f"{whole.rstrip('/')}.lease" if beside else f"{whole.rstrip('/')}/{FILE}"


def _check_links(path: str) -> None:
    """Raises InputError for a local path below a link that leads nowhere: no folder can be made there."""
    folder = os.path.dirname(path)
    while "://" not in path and folder != os.path.dirname(folder):
        if os.path.islink(folder) and not os.path.exists(folder):
            raise InputError(
                f"{folder} is a link to {os.readlink(folder)}, which does not exist; make that folder, or remove the"
                " link."
            )
        folder = os.path.dirname(folder)


def _asked(request: Callable[[], T]) -> T:
    return limited(request, LIMIT_SECONDS, "a request")


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a console that is gone ends no heartbeat
        print(sentence, file=sys.stderr, flush=True)
