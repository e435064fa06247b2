"""The content of compressed files; a truncated file is an error, not a shorter file."""

from __future__ import annotations

import gzip
import io
from typing import IO, Any, cast

import zstandard

COMPRESSIONS = (".gz", ".zst")


def unpacked(file: IO[bytes], suffix: str) -> IO[bytes]:
    """Returns the content of a file, decompressed according to the suffix; '' is a plain file."""
    if suffix == ".gz":
        return cast(IO[bytes], gzip.open(file))
    return io.BufferedReader(ZstandardFile(file), 1 << 17) if suffix == ".zst" else file


class ZstandardFile(io.RawIOBase):
    """The content of a zstandard file with any number of frames; EOFError if it is truncated.

    The library's own stream reader does not notice a truncated file.
    """

    def __init__(self, file: IO[bytes]):
        self._file = file
        self._packed = b""
        self._content = memoryview(b"")
        self._unpacker = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            self._packed = self._packed or self._file.read(1 << 16)
            if not self._packed:
                if self._unpacker is not None:
                    raise EOFError("the file ends within a zstandard frame")
                return 0
            if self._unpacker is None:
                # zstd's long mode needs a larger window than the library's limit of 128 MiB.
                self._unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            self._content = memoryview(self._unpacker.decompress(self._packed))
            self._packed = b""
            if self._unpacker.eof:
                self._packed, self._unpacker = self._unpacker.unused_data, None
        part = self._content[: len(buffer)]
        buffer[: len(part)] = part
        self._content = self._content[len(part) :]
        return len(part)
