"""Paths, files that are written whole or not at all, files that grow, and free space; local, or where fsspec knows."""

import contextlib
import errno
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import fsspec
from etils import epath

from limba.config import InputError, kinds, reason_of, untrusted_files
from limba.storage import servers

TAIL = ".tail"  # of a growing file's name: what is not joined to it yet
REQUEST_SECONDS = 60.0  # for one request about a growing file, and a second for
UPLOAD_BYTES_PER_SECOND = 1 << 18  # so many bytes
NO_STORE = "no-store"  # objects that everybody may read come from caches otherwise, up to an hour old

servers.settle()
logger = logging.getLogger(__name__)


def resolved(path: str) -> epath.Path:
    """Returns a local path as an absolute path, and an address such as gs://… unchanged.

    Raises InputError for an address that is not known, and for a path that no file can have; StorageError for a bucket
    whose server cannot be reached.
    """
    kinds.check_address(path, "The path")
    servers.check(path)
    try:
        return epath.Path(path) if "://" in path else epath.Path(path).expanduser().resolve()
    except (ValueError, RuntimeError, OSError) as error:  # a NUL character, an unknown ~user, a circle of links
        raise InputError(f"The path {path!r} cannot be used ({reason_of(error)}); give another.") from None


def read_bytes(path: epath.Path | Path) -> bytes:
    """Returns the content of a file. InputError for a local path that is not a file, such as a pipe.

    The storage's own errors if it cannot be read.
    """
    return path.read_bytes() if "://" in os.fspath(path) else untrusted_files.bytes_of(path)


def read_text(path: epath.Path) -> str:
    """Returns a UTF-8 file's text, without a byte order mark; InputError if it cannot be read or is not text."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8 ({error.reason}); restore it from a copy.") from None
    except Exception as error:  # a bucket's client has errors of its own
        raise InputError(f"{path} cannot be read ({reason_of(error)}); check the path and its permissions.") from error


def is_local(system: fsspec.AbstractFileSystem) -> bool:
    """Returns whether a file system of fsspec is this machine's."""
    return "file" in ((system.protocol,) if isinstance(system.protocol, str) else system.protocol)


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Writes a file at a path or address atomically: it has its old content or all of the new, after a power cut too.

    Text is written as UTF-8. Makes the folders of a local path. OSError if it fails; then nothing is left behind.

    >>> write_whole("folder/letter.txt", "ș")
    >>> read_text("folder/letter.txt")
    'ș'
    """
    data = data.encode() if isinstance(data, str) else data
    system, stripped = fsspec.core.url_to_fs(os.fspath(path))
    if not is_local(system):
        system.pipe_file(stripped, data)  # an object store shows an object when it is complete
        return
    with replacing(stripped) as file:
        file.write(data)


# A local directory that this process holds -> a file that is in it as long as it is there, and which directory it is.
_HELD: dict[str, tuple[str, tuple[int, int]]] = {}


def hold(directory: str, file: str | None) -> None:
    """Says that a local directory has this file until further notice; None ends that."""
    _HELD.pop(directory, None)
    if file is not None:
        _HELD[directory] = file, _identity(directory)


def is_held(directory: str) -> bool:
    """Returns whether this process has said that it holds a local directory."""
    return directory in _HELD


def _identity(directory: str) -> tuple[int, int]:
    """Returns the numbers of a directory's file system and of itself there; (0, 0) without it."""
    try:
        status = os.stat(directory)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _is_same(directory: str, identity: tuple[int, int]) -> bool:
    """Returns whether a directory is the one of that identity, with something in it: what is not mounted is empty."""
    return _identity(directory) == identity != (0, 0) and bool(os.listdir(directory))


def gone(path: str | os.PathLike[str]) -> str:
    """Returns the directory with this path in it that this process holds and that is gone (moved, unmounted), or "".

    It is not gone if its file alone was removed.
    """
    text = os.fspath(path)
    for directory, (file, identity) in [*_HELD.items()]:
        is_inside = "://" not in text and Path(text).absolute().is_relative_to(directory)
        if is_inside and not os.path.exists(file) and not _is_same(directory, identity):
            return directory
    return ""


def make_folder(folder: epath.Path | Path) -> None:
    """Makes a folder and those above it.

    OSError (EIO) in a held directory that is gone: a new one in its place would hide it when it comes back.
    """
    if held := gone(folder):
        raise OSError(errno.EIO, f"{held} is gone", os.fspath(folder))
    folder.mkdir(parents=True, exist_ok=True)


def as_typed_here(path: str) -> str:
    """Returns a path as one types it in the working directory: relative where it lies below.

    >>> as_typed_here(os.path.join(os.getcwd(), "runs", "a")), as_typed_here("gs://bucket/run")
    ('runs/a', 'gs://bucket/run')
    """
    return path.removeprefix(os.path.join(os.getcwd(), ""))


def try_to_write(path: str | os.PathLike[str], data: bytes | str, warns: bool = True) -> bool:
    """As `write_whole`, for a file that no run should end for: returns whether it succeeds, else it `warns`."""
    try:
        write_whole(path, data)
    except Exception as error:  # noqa: BLE001  a bucket's client has errors of its own
        level = logging.WARNING if warns else logging.DEBUG
        logger.log(level, "%s cannot be written (%s); the run goes on.", os.fspath(path), reason_of(error))
        return False
    return True


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yields a file for bytes that replaces a local file at the end of the context, or vanishes after an error."""
    target = Path(path)
    make_folder(target.parent)
    descriptor, unfinished = new_file_beside(target)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with contextlib.suppress(OSError):  # the file keeps its permissions
                os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(unfinished, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    sync_folder(target.parent)


def open_no_link(path: str | os.PathLike[str], flags: int) -> int:
    """Returns the descriptor of a local file of a run; InputError for a link, which leads out of somebody's folder.

    It is also an `opener` of Python's `open`.
    """
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InputError(f"{os.fspath(path)} is a link, and runs do not write through links; remove it.") from None


def new_file_beside(path: Path) -> tuple[int, Path]:
    """Makes an empty file in the folder of a local path; returns its descriptor, for reading and writing, and its path.

    Nobody can know its name and make it, or a link of that name, first. (tempfile's files are for this user only.)
    """
    unfinished = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    return descriptor, unfinished


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Writes the names in a local folder to the disk, where its file system can; else they follow soon."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def private_folder(path: str | os.PathLike[str]) -> Path:
    """Makes a folder that only this user can open, or checks that it is one; returns it.

    For a name that others can know, in a place where they may write. PermissionError for another user's folder, for a
    link, and for a folder that others may write to.
    """
    folder = Path(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    others_may_write = status.st_mode & 0o022
    if not is_own or others_may_write:
        raise PermissionError(errno.EPERM, f"{folder} is not a folder of this user alone", str(folder))
    return folder


def free_bytes(path: str) -> int | None:
    """Returns the free bytes of the file system that holds a local path; None for an address such as gs://….

    The path need not exist; then the nearest folder above it counts.
    """
    if "://" in path:
        return None
    nearest = os.path.abspath(os.path.expanduser(path))
    while not os.path.exists(nearest):
        nearest = os.path.dirname(nearest)
    return shutil.disk_usage(nearest).free


def key_value_store(path: epath.Path | str) -> dict[str, str]:
    """Returns tensorstore's address of a directory, local or gs://; InputError for another address."""
    text = str(path).rstrip("/") + "/"
    if text.startswith("gs://"):
        bucket, _, inside = text.removeprefix("gs://").partition("/")
        return {"driver": "gcs", "bucket": bucket, "path": inside}
    if "://" in text:
        raise InputError(f"{path} holds no arrays that can be read: they are at gs:// or on a disk; copy it there.")
    return {"driver": "file", "path": text}


class LocalFile:
    """A local file that one process appends to."""

    def __init__(self, path: str):
        self.address = path
        self._descriptor = open_no_link(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __len__(self) -> int:
        return os.fstat(self._descriptor).st_size

    def append(self, data: bytes) -> None:
        """Adds the bytes to the end: all of them, or if that is an OSError none."""
        size_before = len(self)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, size_before)
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of a file system that is away: it must not hide why the run ends
            os.close(self._descriptor)


class GrowingFile:
    """A file at gs://… that one process appends to: each addition is an object, FILE.tail, that the bucket joins to it.

    An addition whose answer is lost may be made twice, and one that a killed process has not joined is lost.
    """

    def __init__(self, address: str):
        self.address = address
        self._system, self._path = fsspec.core.url_to_fs(address)
        self._is_there = False

    def append(self, data: bytes) -> None:
        """Adds the bytes to the end. Raises what the bucket's client raises; then the same call may be repeated."""
        tail = self._path + TAIL
        limit = {"timeout": REQUEST_SECONDS + len(data) / UPLOAD_BYTES_PER_SECOND}
        if data and not self._is_there:
            with contextlib.suppress(FileExistsError):
                metadata = {"cache_control": NO_STORE}
                self._system.pipe_file(self._path, data, mode="create", fixed_key_metadata=metadata, **limit)
                data = b""
            self._is_there = True
        if data:
            self._system.pipe_file(tail, data, **limit)
            self._join(limit)
            self._system.rm_file(tail, **limit)

    def _join(self, limit: Mapping[str, float]) -> None:
        """Composes the two objects. gcsfs's `merge` says nothing of the new one, which is then cached."""
        bucket, name, _ = self._system.split_path(self._path)
        sources = [{"name": name}, {"name": name + TAIL}]
        metadata = {"cacheControl": NO_STORE, "contentType": "application/octet-stream"}
        content = {"sourceObjects": sources, "destination": metadata}
        self._system.call("POST", "b/{}/o/{}/compose", bucket, name, json=content, **limit)
