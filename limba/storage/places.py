"""Where the owner of a directory is written: a file that the kernel locks, or an object of a bucket."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fsspec

from limba.config import InputError, StorageError
from limba.storage.files import is_local, new_file_beside, open_no_link

REQUEST_SECONDS = 15.0  # for one request to a bucket
WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # a file system has none, or not now


class TakenError(Exception):
    """The place holds what somebody else has written, or nothing."""

    def __init__(self, content: bytes | None):
        self.content = content


class Seen(NamedTuple):
    """What a place holds. `lock` is "ours", "another's", or "none" where there are no locks."""

    content: bytes | None
    lock: str = "none"
    version: Any = None


class LocalPlace:
    """A local file, locked while its holder lives, whatever ends the holder. Its content is for other hosts.

    The kernels of two hosts may not see each other's locks on a network's file system.
    """

    def __init__(self, path: str):
        self._path = Path(path)
        self._descriptor: int | None = None

    def read(self) -> bytes | None:
        """Returns the content; None if there is no file."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def look(self) -> Seen:
        """Returns the content, and locks the file if nobody has."""
        for _ in range(100):
            if self._descriptor is None:
                try:
                    descriptor = open_no_link(self._path, os.O_RDWR)
                except FileNotFoundError:
                    return Seen(None)
                lock = _locked(descriptor)
                if lock != "ours":
                    os.close(descriptor)
                    return Seen(self.read(), lock)
                self._descriptor = descriptor
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._descriptor), os.stat(self._path)):
                    return Seen(self.read(), "ours")
            self.close()  # it was removed or replaced before it was locked
        raise OSError(errno.EBUSY, "the file is replaced all the time", str(self._path))

    def take(self, content: bytes, seen: Seen) -> bool:
        """Writes the content in the place of what was seen; False if that has changed."""
        if seen.content is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                return False
            if _locked(descriptor) == "another's":  # somebody has looked at it at once
                os.close(descriptor)
                return False
            self._descriptor = descriptor
            try:
                _fill(descriptor, content)
            except OSError:
                self._path.unlink(missing_ok=True)
                raise
            return True
        if seen.lock == "ours" and self._descriptor is not None:
            if self.read() != seen.content:
                return False
            _fill(self._descriptor, content)
            return True
        return self._replaced(content, seen)

    def _replaced(self, content: bytes, seen: Seen) -> bool:
        """Puts a new file in the place of one whose holder is silent. If that one wakes, it writes to the old file."""
        descriptor, unfinished = new_file_beside(self._path)
        try:
            _locked(descriptor)
            _fill(descriptor, content)
            if self.read() == seen.content:
                os.replace(unfinished, self._path)
                self._descriptor, descriptor = descriptor, None
                return True
            return False
        finally:
            if descriptor is not None:
                os.unlink(unfinished)
                os.close(descriptor)

    def renew(self, content: bytes, is_ours: Callable[[bytes], bool]) -> None:
        """Writes the content over our own; raises TakenError if the file is not ours any more."""
        found = self.read()
        if found is None or not is_ours(found):
            raise TakenError(found)
        is_same = False
        with contextlib.suppress(OSError, TypeError):
            is_same = os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))  # pyright: ignore[reportArgumentType]
        if not is_same:  # the directory was away, and came back as a copy or by a new mount
            self.close()
            self.look()
        assert self._descriptor is not None
        _fill(self._descriptor, content)

    def leave(self, is_ours: Callable[[bytes], bool]) -> None:
        """Removes the file if it is ours, and then the lock."""
        found = self.read()
        if found is not None and is_ours(found):
            self._path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Gives the lock back."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # a file system that is away; it is closed all the same
                os.close(descriptor)


def _locked(descriptor: int) -> str:
    """Locks a file if nobody has; returns whose lock it has now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "another's"
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        return "none"
    return "ours"


def _fill(descriptor: int, content: bytes) -> None:
    # In place, since that needs no space on a full disk.
    os.pwrite(descriptor, content, 0)
    os.ftruncate(descriptor, len(content))
    getattr(os, "fdatasync", os.fsync)(descriptor)  # now other hosts see it


class ObjectPlace:
    """An object at an address. It is made only if it is not there, and replaced only if it is as it was read.

    Of the stores only Google's checks the second by itself. With others there is a moment between reading and writing.
    """

    def __init__(self, system: Any, path: str):
        self._system, self._path = system, path

    def read(self) -> bytes | None:
        """Returns the content; None if there is no object."""
        return self.look().content

    def look(self) -> Seen:
        """Returns the content."""
        self._system.invalidate_cache()
        try:
            return Seen(self._system.cat_file(self._path))
        except FileNotFoundError:
            return Seen(None)

    def take(self, content: bytes, seen: Seen) -> bool:
        """Writes the content in the place of what was seen; False if that has changed."""
        if seen.content is None:
            try:
                self._system.pipe_file(self._path, content, mode="create")
            except FileExistsError:
                return False
            return True
        if self.read() != seen.content:
            return False
        self._system.pipe_file(self._path, content)
        return True

    def renew(self, content: bytes, is_ours: Callable[[bytes], bool]) -> None:
        """Writes the content over our own; raises TakenError if the object is not ours any more."""
        found = self.read()
        if found is None or not is_ours(found):
            raise TakenError(found)
        self._system.pipe_file(self._path, content)

    def leave(self, is_ours: Callable[[bytes], bool]) -> None:
        """Removes the object if it is ours."""
        found = self.read()
        if found is not None and is_ours(found):
            self._system.rm_file(self._path)

    def close(self) -> None:
        """There is no lock."""


class GooglePlace:
    """An object of Google Cloud Storage, written only over the generation that was read."""

    def __init__(self, system: Any, path: str):
        self._system = system
        self._bucket, self._name, _ = system.split_path(path)
        self._generation = "0"  # of the object as this process wrote it; 0 is that of no object

    def _ask(self, method: str, path: str, *names: str, **options: Any) -> Any:
        return self._system.call(method, path, *names, timeout=REQUEST_SECONDS, **options)

    def read(self) -> bytes | None:
        """Returns the content; None if there is no object."""
        return self.look().content

    def look(self) -> Seen:
        """Returns the content and its generation."""
        try:
            headers, content = self._ask("GET", "b/{}/o/{}", self._bucket, self._name, alt="media")
        except FileNotFoundError:
            return Seen(None, version="0")
        return Seen(content, version=headers["x-goog-generation"])

    def take(self, content: bytes, seen: Seen) -> bool:
        """Writes the content over the generation that was seen; False if there is another one now."""
        try:
            self._generation = self._written(content, seen.version)
        except FileExistsError:  # the precondition failed, perhaps because an earlier attempt's answer was lost
            now = self.look()
            self._generation = now.version
            return now.content == content
        return True

    def renew(self, content: bytes, is_ours: Callable[[bytes], bool]) -> None:
        """Writes the content over our own; raises TakenError if the object is not ours any more."""
        try:
            self._generation = self._written(content, self._generation)
        except FileExistsError:
            now = self.look()
            if now.content is None or not is_ours(now.content):
                raise TakenError(now.content) from None
            self._generation = now.version

    def leave(self, is_ours: Callable[[bytes], bool]) -> None:
        """Removes the object if it is ours."""
        now = self.look()
        if now.content is not None and is_ours(now.content):
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                self._ask("DELETE", "b/{}/o/{}", self._bucket, self._name, ifGenerationMatch=now.version)

    def close(self) -> None:
        """There is no lock."""

    def _written(self, content: bytes, generation: str) -> str:
        """Writes the object over one generation; returns the new one. FileExistsError if there is another."""
        address = f"{self._system._location}/upload/storage/v1/b/{{}}/o"
        # Objects that everybody may read come from caches, up to an hour old, unless they say no-store.
        about = json.dumps({"name": self._name, "cacheControl": "no-store", "contentType": "application/json"})
        parts = b"".join(
            b"--part\r\nContent-Type: application/json\r\n\r\n%s\r\n" % x for x in (about.encode(), content)
        )
        answer = self._ask(
            "POST", address, self._bucket,
            data=parts + b"--part--", headers={"Content-Type": "multipart/related; boundary=part"},
            uploadType="multipart", ifGenerationMatch=generation, json_out=True,
        )  # fmt: skip
        return answer["generation"]


class NoPlace:
    """Of the Hugging Face hub, where every write is a commit: nothing is written, and nobody is kept away."""

    def read(self) -> bytes | None:
        """Returns None."""

    def look(self) -> Seen:
        """Returns that there is nothing."""
        return Seen(None)

    def take(self, content: bytes, seen: Seen) -> bool:
        """Writes nothing."""
        return True

    def renew(self, content: bytes, is_ours: Callable[[bytes], bool]) -> None:
        """Writes nothing."""

    def leave(self, is_ours: Callable[[bytes], bool]) -> None:
        """Removes nothing."""

    def close(self) -> None:
        """There is no lock."""


Place = LocalPlace | ObjectPlace | GooglePlace | NoPlace


def place_at(path: str) -> Place:
    """Returns the place at a local path or an address; fsspec's errors for an address of an unknown kind."""
    system, stripped = fsspec.core.url_to_fs(path)
    if is_local(system):
        return LocalPlace(stripped)
    protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
    if "hf" in protocols:
        return NoPlace()
    return GooglePlace(system, stripped) if "gs" in protocols else ObjectPlace(system, stripped)


TAIL = ".tail"
UPLOAD_BYTES_PER_SECOND = 1 << 18  # the slowest that is waited for
# Objects that everybody may read come from caches, up to an hour old, unless they say no-store.
ABOUT = {"cacheControl": "no-store", "contentType": "application/octet-stream"}


class LocalFile:
    """A local file that one process appends to, with the same method as a GrowingFile."""

    def __init__(self, path: str):
        self.address = path
        self._descriptor = open_no_link(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __len__(self) -> int:
        return os.fstat(self._descriptor).st_size

    def append(self, data: bytes) -> None:
        """Adds the bytes to the end: all of them, or if that is an OSError none."""
        before, rest = len(self), memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, before)
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of a file system that is away: it must not hide why the run ends
            os.close(self._descriptor)


class GrowingFile:
    """A file at gs://… that one process appends to; InputError for another kind of address."""

    def __init__(self, address: str):
        if not address.startswith("gs://"):
            raise InputError(f"{address} cannot grow: only Google's buckets (gs://) join objects; give another path.")
        self.address = address
        self._system, path = fsspec.core.url_to_fs(address)
        self._bucket, self._name, _ = self._system.split_path(path)
        self._size, self._generation = 0, ""  # the generation "" is not known yet, "0" is that of no object

    def append(self, data: bytes) -> None:
        """Adds the bytes to the end: all of them or, if it fails, none, and then the same call may be repeated.

        Raises what the bucket's client raises, and StorageError if somebody else has written to the file.
        """
        if not data:
            return
        if not self._generation:
            self._look()
            self._join_left_tail()
        if self._generation == "0":
            self._settle(lambda: self._upload(self._name, data, self._generation), len(data))
            return
        self._upload(self._name + TAIL, data)
        self._settle(self._compose, len(data))
        self._remove_tail()

    def _settle(self, change: Any, added: int) -> None:
        """Makes a change that needs our generation. If its answer was lost, its repetition finds the next one."""
        try:
            found = change()
        except FileExistsError:  # the precondition failed
            before = self._size
            self._look()
            if self._size != before + added:
                self._generation = ""
                raise StorageError(
                    f"{self.address} was changed by another process; start one run only in its directory."
                ) from None
            return
        self._size, self._generation = int(found["size"]), found["generation"]

    def _look(self) -> None:
        try:
            found = self._ask("GET", "b/{}/o/{}", self._bucket, self._name, json_out=True)
        except FileNotFoundError:
            self._size, self._generation = 0, "0"
        else:
            self._size, self._generation = int(found["size"]), found["generation"]

    def _join_left_tail(self) -> None:
        """Joins what a process that was killed has uploaded and not joined, and removes it."""
        try:
            _, tail = self._ask("GET", "b/{}/o/{}", self._bucket, self._name + TAIL, alt="media")
        except FileNotFoundError:
            return
        if self._generation != "0":
            end = self._read_end(len(tail))
            if end != tail:
                self._settle(self._compose, len(tail))
        self._remove_tail()

    def _read_end(self, length: int) -> bytes:
        start = max(0, self._size - length)
        headers = {"Range": f"bytes={start}-"}
        return self._ask("GET", "b/{}/o/{}", self._bucket, self._name, alt="media", headers=headers)[1]

    def _compose(self) -> Any:
        sources = [{"name": self._name}, {"name": self._name + TAIL}]
        return self._ask(
            "POST", "b/{}/o/{}/compose", self._bucket, self._name,
            json={"sourceObjects": sources, "destination": ABOUT}, ifGenerationMatch=self._generation, json_out=True,
        )  # fmt: skip

    def _upload(self, name: str, data: bytes, generation: str | None = None) -> Any:
        """Writes an object whole, over one generation if that is given."""
        address = f"{self._system._location}/upload/storage/v1/b/{{}}/o"
        parts = b"".join(
            b"--part\r\nContent-Type: application/json\r\n\r\n%s\r\n" % part
            for part in (json.dumps({"name": name, **ABOUT}).encode(), data)
        )
        wanted = {} if generation is None else {"ifGenerationMatch": generation}
        return self._ask(
            "POST", address, self._bucket, data=parts + b"--part--",
            headers={"Content-Type": "multipart/related; boundary=part"}, uploadType="multipart", json_out=True,
            seconds=REQUEST_SECONDS + len(data) / UPLOAD_BYTES_PER_SECOND, **wanted,
        )  # fmt: skip

    def _remove_tail(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # an earlier attempt's answer was lost
            self._ask("DELETE", "b/{}/o/{}", self._bucket, self._name + TAIL)

    def _ask(self, method: str, path: str, *names: str, seconds: float = 4 * REQUEST_SECONDS, **options: Any) -> Any:
        return self._system.call(method, path, *names, timeout=seconds, **options)
