"""The lines of a file of text that begin within a unit, decoded; an error names the line by its number."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Any

from limba.config import untrusted_files
from limba.data.sources.failures import RecordError
from limba.data.sources.listing import Unit
from limba.data.sources.notices import say_once
from limba.data.sources.remote import COMPRESSIONS, PATIENT, in_place, in_utf8, open_file, unpacked

BYTES_COUNTED = 1 << 28  # of a local file, for the number of a line in a message
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NO_TEXT = bytes(set(range(32)) - set(b"\t\n\f\r\x1b"))  # control characters that no text has
# How files begin that are often found under a name of text, and what they are.
_BEGINNINGS = {
    b"\x1f\x8b": "gzip (.gz)",
    b"\x28\xb5\x2f\xfd": "Zstandard (.zst)",
    b"BZh": "bzip2 (.bz2)",
    b"\xfd7zXZ\x00": "xz (.xz)",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "parquet",
}


def texts_of_lines(unit: Unit, file: Any) -> Iterator[bytes]:
    for offset, line in lines_of(unit, file):
        decoded(unit, offset, line)
        if b"\r" in line:
            say_of_return(unit, file, offset)
        yield line


def text_lines(path: str, file: IO[bytes]) -> Iterator[str]:
    """Yields the lines of an open file of text, the blank ones too, as training reads them.

    >>> import io
    >>> list(text_lines("nb.txt", io.BytesIO("Ære være.\\n\\nGod dag.".encode())))
    ['Ære være.', '', 'God dag.']
    """
    unit = Unit(path)
    for offset, line in lines_of(unit, file):
        text = decoded(unit, offset, line)
        if "\r" in text:
            say_of_return(unit, file, offset)
        yield text


def lines_of(unit: Unit, file: IO[bytes], keeps_ends: bool = False) -> Iterator[tuple[int, bytes]]:
    r"""Yields (offset in the file, line without its end) for lines that start within the unit.

    A line ends with \n or \r\n, and with nothing else that Unicode calls a line's end.
    """
    position = 0
    if unit.start > 0:
        # A line belongs to the range in which it starts.
        file.seek(unit.start - 1)
        position = unit.start - 1
        while True:
            skipped = file.readline(1 << 20)
            position += len(skipped)
            if skipped.endswith(b"\n"):
                break
            if not skipped or (unit.stop is not None and position >= unit.stop):
                return
    while unit.stop is None or position < unit.stop:
        line = file.readline()
        if not line:
            return
        start = position
        position += len(line)
        line = line.removeprefix(BYTE_ORDER_MARK) if start == 0 else line
        yield start, line if keeps_ends else line.rstrip(b"\r\n")


def decoded(unit: Unit, offset: int, line: bytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        if kind := _packed_kind(unit.path):
            raise RecordError(
                f"{unit.path} holds {kind}, which its name does not say; give it the ending for that, or unpack it."
            ) from None
        location = line_at(unit.path, offset)
        raise RecordError(
            f"{unit.path} is not UTF-8 at byte {offset + error.start} ({location});"
            " convert it, for instance with iconv.",
            fix=in_utf8(unit.path),
        ) from None
    # A letter of UTF-16 has a byte that is a control character in UTF-8, and a space or line end has NUL.
    if offset == 0 and b"\0" in line and len(line) - len(line.translate(None, _NO_TEXT)) > len(line) // 4:
        raise RecordError(
            f"{unit.path} is not UTF-8: a quarter of its first line are control characters, as in UTF-16 and in binary"
            " files; convert it, for instance with iconv -f UTF-16LE."
        )
    return text


def say_of_return(unit: Unit, file: Any, offset: int) -> None:
    """Says that a carriage return stands alone in a line; RecordError if the whole file has no other line's end."""
    if offset == 0 and not file.peek(1):
        raise RecordError(
            f"{unit.path} has carriage returns alone where lines end, and would be one document; write them as \\n.",
            fix=in_place(unit.path, "tr '\\r' '\\n' < {}"),
        )
    say_once(
        f"{unit.path.rpartition('/')[0]} return",
        f"{unit.path} has a carriage return within a line; it is kept there, since lines end with \\n or \\r\\n alone.",
    )


def line_at(path: str, offset: int) -> str:
    """Returns the line number at an offset of the content, or the offset if counting would take too long."""
    if "://" in path or offset > BYTES_COUNTED:
        return f"the line at byte {offset}"
    try:
        with _again(path) as file:
            number = 1
            left = offset
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                number += block.count(b"\n")
                left -= len(block)
    except OSError:
        return f"the line at byte {offset}"
    return f"line {number}"


def _packed_kind(path: str) -> str:
    """Returns what a file that is not text holds, by its first bytes; "" if that is not known."""
    with contextlib.suppress(OSError), _again(path) as file:
        head = file.read(8)
        return next((kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning)), "")
    return ""


@contextlib.contextmanager
def _again(path: str) -> Iterator[IO[bytes]]:
    """Opens a file that is being read once more, to say where it is wrong; OSError if it cannot be, as a pipe."""
    if "://" not in path and not untrusted_files.is_regular(path):
        raise OSError(f"{path} is read once")
    packed = next((suffix for suffix in COMPRESSIONS if path.lower().endswith(suffix)), "")
    with open_file(path, PATIENT) as raw:
        yield unpacked(raw, packed)
