"""A file in a bucket that grows: only what is new is uploaded, and the bucket joins it to what is there.

Nothing can be appended to an object. So new bytes become an object of their own, `<path>.tail`, and Google's storage
composes the two on its side; the sum of all uploads is the file's size.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import fsspec

from limba.config import InputError, StorageError
from limba.storage.files import open_no_link
from limba.storage.places import REQUEST_SECONDS

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
