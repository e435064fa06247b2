"""What a file is known by, so that a resumed run notices another one: its size and a mark of its content.

A local file's mark is the checksums of its first and last bytes. A remote file's is what its server lists: a
checksum, an ETag, a generation or a time. No file is read whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import google_crc32c

from limba.config import InputError, reason_of

END_BYTES = 1 << 16  # read of a local file at its head, and as many at its tail
# A corpus of many files: less is read of each, so that 100,000 files take seconds and not minutes on a slow disk.
MANY_FILES = 20_000
SHORT_END_BYTES = 1 << 12
FILES_AT_ONCE = 16
# In a server's listing, the best first: checksums stay when a file is copied elsewhere, the others do not.
CHECKSUMS = ("sha256", "crc32c", "md5Hash", "Content-MD5")
VERSIONS = (*CHECKSUMS, "blob_id", "ETag", "etag", "generation", "versionId")
TIMES = ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "modified", "created")


@dataclass(frozen=True)
class File:
    """A file that was listed: its address for fsspec, its size and its version, where the file system gives one.

    The version is "kind:value", of a remote file only.
    """

    path: str
    size: int | None
    version: str | None = None


@dataclass(frozen=True)
class Mark:
    """What a file is known by: its size, the mark of its content as "kind:value", and a local file's time of change.

    The time is in milliseconds and only a hint: copying a file changes it, and an edit may not.
    """

    path: str
    size: int | None
    content: str | None
    time: int | None = None

    @property
    def has_content(self) -> bool:
        """True if any two machines that read this file know it by the same mark: not by a server's ETag, or a time."""
        kind, _, _ = (self.content or "").partition(":")
        return self.size is not None and (kind.isdigit() or kind in CHECKSUMS)

    @property
    def has_unread_middle(self) -> bool:
        """True if an edit of the same length in the middle of this file would change no mark."""
        kind, _, _ = (self.content or "").partition(":")
        # gzip ends with a checksum of all content.
        return kind.isdigit() and (self.size or 0) > 2 * int(kind) and not self.path.lower().endswith(".gz")

    def differs(self, other: Mark) -> bool:
        """Returns whether the two are certainly not the same file; marks of different kinds cannot be compared."""
        if None not in (self.size, other.size) and self.size != other.size:
            return True
        mine, others = ((mark.content or "").partition(":") for mark in (self, other))
        return bool(mine[0] == others[0] and mine[2] != others[2])


def version_of(entry: Mapping[str, object]) -> str | None:
    """Returns the version of a file in a server's listing.

    >>> version_of({"size": 3, "ETag": '"5-a"', "mtime": 1}), version_of({"size": 3})
    ('ETag:"5-a"', None)
    """
    name = next((name for name in (*VERSIONS, *TIMES) if entry.get(name)), None)
    return None if name is None else f"{name}:{entry[name]}"


def end_bytes_for(num_files: int) -> int:
    """Returns the number of bytes at each end of a local file that count, in a corpus of so many files."""
    return END_BYTES if num_files <= MANY_FILES else SHORT_END_BYTES


def marks_of(files: Sequence[File], end_bytes: int) -> list[Mark]:
    """Returns the files' marks, in their order; InputError for a local file that changes or cannot be read."""
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        return list(pool.map(lambda file: _mark(file, end_bytes), files))


def mark_of(path: str, end_bytes: int) -> Mark:
    """Returns the mark of a local file; OSError if it cannot be read."""
    number = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(number)
        content = _content(number, status.st_size, end_bytes)
    finally:
        os.close(number)
    return Mark(path, status.st_size, content, status.st_mtime_ns // 1_000_000)


def begins_as(mark: Mark, end_bytes: int) -> bool:
    """Returns whether a local file begins with the one of the mark, which ended with a whole line; OSError as above."""
    size = mark.size or 0
    number = os.open(mark.path, os.O_RDONLY)
    try:
        last = os.pread(number, 1, max(size - 1, 0))
        return last == b"\n" and _content(number, size, end_bytes) == mark.content
    finally:
        os.close(number)


def _content(number: int, size: int, end_bytes: int) -> str:
    """Returns the mark of the first `size` bytes of an open file."""
    head = os.pread(number, min(end_bytes, size), 0)
    start = max(size - end_bytes, len(head))
    tail = os.pread(number, size - start, start)
    return f"{end_bytes}:{google_crc32c.value(head):08x}{google_crc32c.value(tail):08x}"


def _mark(file: File, end_bytes: int) -> Mark:
    if "://" in file.path:
        return Mark(file.path, file.size, file.version)
    try:
        mark = mark_of(file.path, end_bytes)
    except OSError as error:
        raise InputError(
            f"{file.path} cannot be read ({reason_of(error)}); check the file and its permissions."
        ) from error
    if file.size is not None and file.size != mark.size:
        raise InputError(
            f"{file.path} has changed since it was listed: {file.size:,} bytes then, {mark.size:,} now; start"
            " again when nothing writes to the corpus any more."
        )
    return mark
