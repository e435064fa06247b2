"""Files of documents as units that are listed, dealt and read one by one, in bounded memory.

A unit is a byte range of a text or JSON lines file, a row group of a parquet file, or a whole file
that can only be read from its beginning (csv, anything compressed). A unit is read in chunks of about
256 KiB of text; chunk k of a unit is always the same documents, so a position is three numbers.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import sys
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import fsspec

from limba.config import ConfigError

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18
CHUNK_DOCUMENTS = 4096
SMALLEST_UNIT, LARGEST_UNIT = 1 << 16, 1 << 22  # bytes of a range of lines
UNITS_OF_A_CORPUS = 1024  # aimed at, so that small corpora can be dealt to many shards
REMOTE_BLOCK_BYTES = 1 << 20  # one ranged read
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
FORMATS = {".txt": "text", ".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class File:
    """A file as found: its address for fsspec, and its size where the file system tells it."""

    path: str
    size: int | None


@dataclass(frozen=True, order=True)
class Unit:
    """Part of a file: bytes [start, stop) of lines, row group `start` of parquet, or all of it (stop None)."""

    path: str
    start: int = 0
    stop: int | None = None

    @property
    def name(self) -> str:
        return self.path if self.stop is None else f"{self.path}[{self.start}:{self.stop}]"


def file_format(path: str) -> tuple[str, bool]:
    """Returns (format, whether it is gzipped) by suffix; ConfigError for a suffix that is not known."""
    plain = path.split("?")[0].lower()
    zipped = plain.endswith(".gz")
    plain = plain.removesuffix(".gz")
    for suffix, name in FORMATS.items():
        if plain.endswith(suffix) and not (zipped and name == "parquet"):
            return name, zipped
    raise ConfigError(
        f"{path} has a suffix that is not known; "
        "give .txt, .jsonl, .json or .csv files, each also with .gz, or .parquet."
    )


def list_files(patterns: Sequence[str]) -> list[File]:
    """Returns the files of all patterns, sorted by path, each once; ConfigError for one that matches nothing."""
    found: dict[str, File] = {}
    for pattern in patterns:
        try:
            matches = _matches(pattern)
        except ConfigError:
            raise
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(f"The corpus {pattern} cannot be listed ({_reason(error)}); check the path.") from error
        if not matches:
            raise ConfigError(f"The corpus path {pattern} matches no file; check it, and the directory it starts in.")
        found |= {file.path: file for file in matches}
    for path in found:
        file_format(path)
    return [found[path] for path in sorted(found)]


def _matches(pattern: str) -> list[File]:
    system, path = fsspec.core.url_to_fs(pattern)
    local = "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))
    if any(letter in path for letter in "*?[") and not system.exists(path):
        listing = system.glob(path, detail=True)
        entries = [details | {"name": name} for name, details in listing.items()]
    elif system.exists(path):
        entries = [system.info(path)]
        if entries[0]["type"] == "directory":
            raise ConfigError(
                f"The corpus path {pattern} is a directory; give a pattern such as {pattern.rstrip('/')}/*.jsonl."
            )
    else:
        entries = []
    address = str if local else system.unstrip_protocol
    return [File(address(entry["name"]), entry.get("size")) for entry in entries if entry["type"] != "directory"]


def list_units(files: Sequence[File]) -> list[Unit]:
    """Returns the units of the files in order; reads no text, and of parquet only the footers."""
    total = sum(file.size or 0 for file in files)
    size = SMALLEST_UNIT
    while size < LARGEST_UNIT and size * UNITS_OF_A_CORPUS < total:
        size *= 2
    footers = [file for file in files if file_format(file.path)[0] == "parquet"]
    with ThreadPoolExecutor(16) as pool:
        num_groups = dict(zip((file.path for file in footers), pool.map(_num_row_groups, footers), strict=True))
    units = []
    for file in files:
        form, zipped = file_format(file.path)
        if form == "parquet":
            units += [Unit(file.path, group, group + 1) for group in range(num_groups[file.path])]
        elif form == "csv" or zipped or file.size is None:
            units.append(Unit(file.path))
        else:
            units += [Unit(file.path, start, min(start + size, file.size)) for start in range(0, file.size, size)]
    return units


def read_chunks(unit: Unit, column: str) -> Iterator[list[bytes]]:
    """Yields the unit's documents as UTF-8 in lists of about 256 KiB; empty documents are left out.

    Raises ConfigError, naming the file and the place, for what cannot be opened, decoded or parsed,
    and for a column that is not there.
    """
    form, zipped = file_format(unit.path)
    try:
        with _open(unit.path) as raw:
            if form == "parquet":
                rows = _parquet(unit, raw, column)
            elif form == "csv":
                rows = _csv(unit, gzip.open(raw) if zipped else raw, column)
            elif form == "json":
                rows = _json(unit, gzip.open(raw) if zipped else raw, column)
            else:
                rows = _text(unit, gzip.open(raw) if zipped else raw)
            yield from _in_chunks(rows)
    except ConfigError:
        raise
    except (OSError, EOFError, ValueError, zlib.error) as error:  # ValueError: a server without ranged reads
        raise ConfigError(
            f"{unit.path} cannot be read ({_reason(error)}); check the file and its permissions."
        ) from error


def _in_chunks(rows: Iterator[bytes]) -> Iterator[list[bytes]]:
    chunk, size = [], 0
    for row in rows:
        if row and not row.isspace():
            chunk.append(row)
            size += len(row)
        if size >= CHUNK_BYTES or len(chunk) >= CHUNK_DOCUMENTS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _open(path: str) -> IO[bytes]:
    system, stripped = fsspec.core.url_to_fs(path)
    if "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,)):
        return open(stripped, "rb")
    return io.BufferedReader(system.open(stripped, "rb", block_size=REMOTE_BLOCK_BYTES), 1 << 16)


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error).strip().split("\n")[0] or type(error).__name__


def _lines(unit: Unit, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields (offset in the file, line without its end) for lines that start within the unit."""
    position = 0
    if unit.start > 0:
        # The line that the previous range started is that range's; one that starts just here is ours.
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
        yield start, (line.removeprefix(BYTE_ORDER_MARK) if start == 0 else line).rstrip(b"\r\n")


def _decode(unit: Unit, offset: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{unit.path} is not UTF-8 at byte {offset + error.start} (line {_line_number(unit.path, offset)}); "
            "convert it, for instance with iconv."
        ) from None


def _line_number(path: str, offset: int) -> int:
    """Counts the lines before an offset; read again from the start, for messages only."""
    with _open(path) as raw:
        file = gzip.open(raw) if file_format(path)[1] else raw
        number, left = 1, offset
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            number += block.count(b"\n")
            left -= len(block)
    return number


def _text(unit: Unit, file: IO[bytes]) -> Iterator[bytes]:
    for offset, line in _lines(unit, file):
        _decode(unit, offset, line)
        yield line


def _json(unit: Unit, file: IO[bytes], column: str) -> Iterator[bytes]:
    for offset, line in _lines(unit, file):
        text = _decode(unit, offset, line)
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except ValueError as error:
            hint = "; a file that is one JSON array must be rewritten as JSON lines" if text.lstrip()[:1] == "[" else ""
            raise ConfigError(
                f"{unit.path} line {_line_number(unit.path, offset)} is not JSON ({_reason(error)}){hint}."
            ) from None
        if not isinstance(record, Mapping):
            raise ConfigError(
                f"{unit.path} line {_line_number(unit.path, offset)} is JSON but no object; "
                f'write one {{"{column}": "..."}} per line.'
            )
        if column not in record:
            raise ConfigError(_no_column(unit.path, column, list(record)))
        value = record[column]
        if value is not None:
            yield _encoded(value, unit.path, column)


def _csv(unit: Unit, file: IO[bytes], column: str) -> Iterator[bytes]:
    csv.field_size_limit(sys.maxsize)  # the library's 128 KiB is less than a long document
    lines = (_decode(unit, offset, line) + "\n" for offset, line in _lines(unit, file))
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        if column not in header:
            raise ConfigError(_no_column(unit.path, column, header))
        place = header.index(column)
        for row in reader:
            if len(row) > place:
                yield row[place].encode()
            elif row:
                raise ConfigError(
                    f"{unit.path} line {reader.line_num} has {len(row)} fields and the header {len(header)}; "
                    "mend the line."
                )
    except csv.Error as error:
        raise ConfigError(f"{unit.path} line {reader.line_num} is not csv ({_reason(error)}); mend the line.") from None


def _num_row_groups(file: File) -> int:
    import pyarrow.lib
    import pyarrow.parquet

    try:
        with _open(file.path) as raw:
            return pyarrow.parquet.ParquetFile(raw).metadata.num_row_groups
    except (OSError, pyarrow.lib.ArrowException) as error:
        raise ConfigError(f"{file.path} cannot be read as parquet ({_reason(error)}); check the file.") from error


def _parquet(unit: Unit, file: IO[bytes], column: str) -> Iterator[bytes]:
    import pyarrow
    import pyarrow.parquet

    try:
        # With a buffer size the pages come one by one; without it the whole column of the row group is read.
        parquet = pyarrow.parquet.ParquetFile(file, buffer_size=1 << 18, pre_buffer=False)
        names = parquet.schema_arrow.names
        if column not in names:
            raise ConfigError(_no_column(unit.path, column, names))
        batches = parquet.iter_batches(64, row_groups=[unit.start], columns=[column], use_threads=False)
        for batch in batches:
            values = batch.column(0)
            if isinstance(values, pyarrow.DictionaryArray):
                values = values.dictionary_decode()
            for value in values.to_pylist():
                if value is not None:
                    yield _encoded(value, unit.path, column)
    except pyarrow.lib.ArrowException as error:
        raise ConfigError(f"{unit.name} cannot be read as parquet ({_reason(error)}); check the file.") from error


def _encoded(value: Any, path: str, column: str) -> bytes:
    if not isinstance(value, str):
        raise ConfigError(f"{path} holds {type(value).__name__} in column {column!r}, not text; name another column.")
    try:
        return value.encode()
    except UnicodeEncodeError:  # JSON may escape half of a surrogate pair
        return value.encode(errors="replace")


def _no_column(path: str, column: str, there: Sequence[str]) -> str:
    names = ", ".join(map(repr, there)) or "none"
    return f"{path} has no column {column!r}; it has {names}: set DataConfig.column to one."


class ChunkReader:
    """Chunk k of a unit, for many threads at once; reading forward costs each byte once.

    A reader that stands before the chunk wanted next is kept open; when there is none the unit is
    opened again and read up to the chunk, so that what is returned never depends on what was read.
    """

    MOST_OPEN, MOST_KEPT = 512, 64

    def __init__(self, column: str):
        self._column = column
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[Unit, int], list[Iterator[list[bytes]]]] = OrderedDict()
        self._kept: OrderedDict[tuple[Unit, int], list[bytes] | None] = OrderedDict()

    def __call__(self, unit: Unit, chunk: int) -> list[bytes] | None:
        """Returns the documents of the chunk, or None where the unit has ended before it."""
        key = (unit, chunk)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            waiting = self._open.get(key)
            reader = waiting.pop() if waiting else None
            if waiting == []:
                del self._open[key]
        if reader is None:
            reader = read_chunks(unit, self._column)
            for _ in range(chunk):
                next(reader, None)
        documents = next(reader, None)
        with self._lock:
            self._kept[key] = documents
            if len(self._kept) > self.MOST_KEPT:
                self._kept.popitem(last=False)
            if documents is not None:
                self._open.setdefault((unit, chunk + 1), []).append(reader)
            if len(self._open) > self.MOST_OPEN:
                self._open.popitem(last=False)  # its generator closes the file
        return documents
