"""Where a lease is written: a file by filelock on a file system, an object by tensorstore at gs://.

filelock brings the file's format, the identity of a process (its number, machine and start) and the heartbeats. It
takes over an expired lease by swapping two names, which NFS, SMB and CephFS cannot, and it compares machines by name
alone; `_remove` and `Owner.is_here` are for these.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fsspec
from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

from limba.config import InputError
from limba.storage.files import is_local, key_value_store, make_folder, open_no_link

if TYPE_CHECKING:
    import tensorstore

# One constant for all: whoever watches a lease waits so long for a sign of its holder, and filelock refuses a lease of
# another length. Two heartbeats may be missed; a new start after `kill -9` on another host trains within a minute.
LEASE_SECONDS = 30.0
BEAT_SECONDS = 12.0
REQUEST_SECONDS = 15.0  # for one request to a bucket
ASIDE = re.compile("[0-9a-f]{16}")  # ends the name of a file that is taken away, after a dot
PAUSE_SECONDS = 0.2  # before a second look: who takes over may hold another's file in its hands for a moment


class Owner(NamedTuple):
    """Who holds a lease. `token` tells one holder from the next."""

    token: str
    host: str  # as filelock writes it, in a container with the number of its process namespace
    pid: int
    start: int  # the boot of the machine in the high 64 bits, then when the process began; 0 where nobody knows
    lease_seconds: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host.partition('?')[0] or 'a machine without a name'}"

    @classmethod
    def of(cls, content: bytes | None) -> Owner | None:
        """Returns the owner that an object names; None if it names none."""
        try:
            fields = json.loads(content or b"")
            return cls(*(kind(fields[name]) for name, kind in _FIELDS.items()))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    def content(self) -> bytes:
        """Returns what is written to an object."""
        return (json.dumps(self._asdict()) + "\n").encode()

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine, since the same start of it, and of the same container."""
        here = this_process()
        boot = here.start >> 64
        return boot != 0 and (self.host, self.start >> 64) == (here.host, boot)

    @property
    def is_alive(self) -> bool:
        """Whether this process, one of this machine, has not ended; a stopped one has not."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's
            pass
        try:
            stat_line = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:  # a system that shows nothing of other users' processes
            return True
        # The second field, the program's name in parentheses, may hold spaces.
        fields = stat_line.rpartition(b")")[2].split()
        state = fields[0]
        ticks = int(fields[19])  # of its start
        has_ended = state in (b"Z", b"X")
        return not has_ended and ticks == self.start % 2**64


_FIELDS = {"token": str, "host": str, "pid": int, "start": int, "lease_seconds": float}


def this_process() -> Owner:
    """Returns this process as filelock names it.

    Where the temporary folder cannot be written its start is 0, so that it is watched like one of another machine.
    """
    return _this_process(os.getpid())


@functools.cache
def _this_process(pid: int) -> Owner:
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory() as folder:
        lease = _file_lease(f"{folder}/this")
        with lease:
            owner = _owner_of_file(lease)
            if owner is not None:
                return owner
    return Owner("", socket.gethostname(), pid, 0, LEASE_SECONDS)


def read_owner(path: str, content: bytes | None) -> Owner | None:
    """Returns the owner that a lease at a local path or an address names, where this is its content; None if none."""
    if "://" in path:
        return Owner.of(content)
    return _owner_of_file(SoftFileLease(path))


def _file_lease(path: str) -> SoftFileLease:
    # Its methods are called by several threads of a process, which all mean the same lease.
    return SoftFileLease(path, lease_duration=LEASE_SECONDS, heartbeat_interval=BEAT_SECONDS, thread_local=False)


def _owner_of_file(lease: SoftFileLease) -> Owner | None:
    """Returns the owner that filelock reads in a file; None if it is missing or not a lease."""
    record = lease.owner
    if record is None or record.token is None or record.lease_duration is None:
        return None
    return Owner(record.token, record.hostname, record.pid, record.start or 0, record.lease_duration)


class Seen(NamedTuple):
    """What is at a place. `mark` changes with each heartbeat, and is only compared."""

    is_there: bool
    mark: Hashable
    owner: Owner | None = None  # None also where it cannot be read


class TakenError(Exception):
    """The place holds what another process has written, or nothing: `seen`."""

    def __init__(self, seen: Seen):
        super().__init__(seen)
        self.seen = seen


class Place:
    """Where one lease is written. All methods raise the storage's own errors."""

    def look(self) -> Seen:
        """Returns what is there."""
        raise NotImplementedError

    def take(self, seen: Seen) -> bool:
        """Makes the lease ours where nothing was, or in place of what was seen; False if that has changed."""
        raise NotImplementedError

    def keep(self) -> None:
        """Sees to it that heartbeats go on; called at each. Raises TakenError if the lease is not ours any more."""
        raise NotImplementedError

    def confirm(self) -> None:
        """Gives a heartbeat that is seen before anybody can take over. Raises TakenError as `keep`."""
        raise NotImplementedError

    def leave(self) -> None:
        """Ends the heartbeats, and removes the lease if it is ours."""
        raise NotImplementedError


class LocalPlace(Place):
    """A file that filelock makes, and whose time it renews."""

    def __init__(self, path: str):
        self._path = path
        self._lease = _file_lease(path)

    def look(self) -> Seen:
        return _look_at(self._path, self._lease)

    def take(self, seen: Seen) -> bool:
        make_folder(Path(self._path).parent)
        is_ours = self._take_over(seen)
        if is_ours:
            self._clear_aside()
        return is_ours

    def _take_over(self, seen: Seen) -> bool:
        """Does what `take` says in a folder that is there."""
        if not seen.is_there:
            return self._acquire()
        # filelock swaps the file of a dead process of this machine where it can, so the place is never empty. It must
        # not do that for another machine of the same name, of which a heartbeat may have come since we looked.
        is_here = seen.owner is not None and seen.owner.is_here
        if is_here and self._acquire():
            return True
        return self._remove(seen) and self._acquire()

    def _acquire(self) -> bool:
        """Makes the file if there is none, or swaps it for one whose process filelock knows to be dead."""
        try:
            self._lease.acquire(blocking=False)
        except (Timeout, LeaseSettingsMismatch):
            return False
        return True

    def _remove(self, seen: Seen) -> bool:
        """Removes the file that was seen; False if another one is there now, or a heartbeat came."""
        if self.look() != seen:
            return False
        aside = f"{self._path}.{secrets.token_hex(8)}"  # as ASIDE has it
        try:
            os.rename(self._path, aside)
        except FileNotFoundError:
            return False
        # Only one of several that try gets the file, and can now look at it in peace.
        if _look_at(aside, SoftFileLease(aside)) == seen:
            Path(aside).unlink(missing_ok=True)
            return True
        self._put_back(aside)
        return False

    def _put_back(self, aside: str) -> None:
        """Gives a living holder its file again. If a third one has made its own meanwhile, that one keeps the place."""
        try:
            os.link(aside, self._path)
        except FileExistsError:
            pass
        except FileNotFoundError:  # who holds the place now has removed it: `_clear_aside`
            return
        except OSError:  # a file system without hard links
            if not os.path.lexists(self._path):
                os.rename(aside, self._path)
                return
        Path(aside).unlink(missing_ok=True)

    def _clear_aside(self) -> None:
        """Removes the files of earlier holders that a process has renamed, which was killed before it removed them."""
        path = Path(self._path)
        beginning = f"{path.name}."
        with contextlib.suppress(OSError, InputError):
            for aside in path.parent.iterdir():
                ending = aside.name.removeprefix(beginning)
                is_aside = aside.name.startswith(beginning) and ASIDE.fullmatch(ending) is not None
                # Our own is there for the moment in which another process finds that it is not the one it has watched.
                if is_aside and not self._is_ours(_look_at(str(aside), SoftFileLease(aside))):
                    aside.unlink(missing_ok=True)

    def _check_ours(self) -> None:
        """Raises TakenError if what is there is not ours, at a second look too."""
        if self._is_ours(self.look()):
            return
        time.sleep(PAUSE_SECONDS)
        seen = self.look()
        if not self._is_ours(seen):
            raise TakenError(seen)

    def _is_ours(self, seen: Seen) -> bool:
        return seen.owner is not None and seen.owner.token == self._lease.token

    def keep(self) -> None:
        self._check_ours()
        if self._lease.compromise is None:
            return
        # filelock ends its heartbeats when the storage was away for as long as a lease, and where the directory came
        # back as a copy or by a new mount. The file still names us, so nobody has taken over: it is made anew.
        self._lease.release()
        if not self._take_over(self.look()):
            raise TakenError(self.look())

    def confirm(self) -> None:
        self._check_ours()
        # Who has watched for the whole lease and takes the file away compares its time afterwards, and puts it back.
        os.utime(self._path, follow_symlinks=False)
        self._check_ours()

    def leave(self) -> None:
        self._lease.release()


def _look_at(path: str, lease: SoftFileLease) -> Seen:
    """Returns what is in a file, which is opened so that a network's file system asks its server."""
    try:
        descriptor = open_no_link(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return Seen(False, None)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        # A storage that opens the file and cannot read it is an error: filelock says then that it names nobody, and the
        # holder would take it for another's.
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)
    return Seen(True, (status.st_dev, status.st_ino, status.st_mtime_ns), _owner_of_file(lease))


class BucketPlace(Place):
    """An object at gs://, which is written only over the generation that was read or written before."""

    def __init__(self, path: str):
        directory, _, self._name = path.rpartition("/")
        self._address = key_value_store(directory)
        self._store: tensorstore.KvStore | None = None
        self._owner = this_process()._replace(token=secrets.token_hex(16), lease_seconds=LEASE_SECONDS)
        self._generation: Hashable = None  # of what we have written last; None before

    def look(self) -> Seen:
        result = self._opened().read(self._name).result(timeout=REQUEST_SECONDS)
        is_there = result.state == "value"
        return Seen(is_there, result.stamp.generation, Owner.of(result.value) if is_there else None)

    def _opened(self) -> tensorstore.KvStore:
        import tensorstore

        if self._store is None:
            self._store = tensorstore.KvStore.open(self._address).result(timeout=REQUEST_SECONDS)
        return self._store

    def take(self, seen: Seen) -> bool:
        if self._write(seen.mark):
            return True
        # Perhaps the answer to an attempt was lost that did write.
        now = self.look()
        if not self._is_ours(now):
            return False
        self._generation = now.mark
        return True

    def _write(self, over: Any) -> bool:
        """Writes who we are over a generation, where "there is none" is one too; False if another one is there."""
        stamp = self._opened().write(self._name, self._owner.content(), if_equal=over).result(timeout=REQUEST_SECONDS)
        if stamp.generation:
            self._generation = stamp.generation
        return bool(stamp.generation)

    def _is_ours(self, seen: Seen) -> bool:
        return seen.owner is not None and seen.owner.token == self._owner.token

    def keep(self) -> None:
        if self._generation is None:  # we have never held it, and a write over None is one over anything
            raise TakenError(self.look())
        while not self._write(self._generation):
            seen = self.look()
            if not self._is_ours(seen):
                raise TakenError(seen)
            self._generation = seen.mark  # of an attempt whose answer was lost

    def confirm(self) -> None:
        self.keep()

    def leave(self) -> None:
        generation: Any = self._generation
        if generation is None:
            return
        self._opened().write(self._name, None, if_equal=generation).result(timeout=REQUEST_SECONDS)


class OpenPlace(Place):
    """A place where nobody is kept away: the hub, to which every write is a commit, s3:// and the like."""

    def look(self) -> Seen:
        return Seen(False, None)

    def take(self, seen: Seen) -> bool:
        return True

    def keep(self) -> None:
        pass

    def confirm(self) -> None:
        pass

    def leave(self) -> None:
        pass


def place_at(path: str) -> Place:
    """Returns the place at a local path or an address; fsspec's errors for an address of an unknown kind."""
    system, stripped = fsspec.core.url_to_fs(path)
    if is_local(system):
        return LocalPlace(stripped)
    if path.startswith(("gs://", "gcs://")):
        return BucketPlace("gs://" + path.partition("://")[2])
    return OpenPlace()
