"""Files of documents as units that are listed, divided among shards and read one by one, in bounded memory.

A unit is a byte range of a text or JSON lines file, a row group of a parquet file, or a whole file
that can only be read from its beginning (csv, anything compressed). A unit is read in chunks of about
256 KiB of text. Chunk k of a unit is always the same documents, so a data position is three numbers.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import lzma
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import fsspec
import zstandard
from fsspec import AbstractFileSystem

from limba.config import InputError, foreign, reason_of, without_credentials
from limba.config.foreign import reason_for
from limba.data.sources import json_documents, tables
from limba.data.sources.fingerprints import File, version_of
from limba.data.sources.parquet import (
    Footers,
    RecordError,
    UnitError,
    check_column,
    check_names,
    no_column,
    parquet_rows,
    parquet_values,
    read_footer,
)
from limba.data.sources.remote import COMPRESSIONS, ReadError, ReadPolicy, ask, in_place, in_utf8, open_file, unpacked
from limba.storage import servers
from limba.storage.files import is_local

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18
LEAST_CHUNK_BYTES = 1 << 14
BYTES_OF_ALL_TASKS = 1 << 22  # of one chunk of each task of a mixture, about
CHUNK_DOCUMENTS = 4096
SMALLEST_UNIT = 1 << 16  # bytes of a range of lines
# (bytes, units): a corpus with more units gets larger ones, up to this size. These are enough units for many shards,
# and few enough to list and open cheaply.
LARGER_UNITS = ((CHUNK_BYTES, 256), (1 << 20, 4096))
REQUESTS_AT_ONCE = 16
BYTES_COUNTED = 1 << 28  # of a local file, for the number of a line in a message
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
FIELD_SEPARATOR = b"\0"  # between the texts of several columns, and removed from the texts
ARRAY_HINT = "; a file that is one JSON array must have the suffix .json"
USUAL_COLUMN = "text"  # in whose place the first column of a csv file may stand
SHOWN_LETTERS = 60  # of a first line that is no header
FORMATS = {".txt": "text", ".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "tsv"}
FORMATS |= {".parquet": "parquet", ".array_record": "array_record"}
PATIENT = ReadPolicy()


@dataclass(frozen=True, order=True)
class Unit:
    """Part of a file: bytes [start, stop) of lines, row group `start` of parquet, or all of it (stop None)."""

    path: str
    start: int = 0
    stop: int | None = None

    @property
    def name(self) -> str:
        path = without_credentials(self.path)
        return path if self.stop is None else f"{path}[{self.start}:{self.stop}]"

    @property
    def place(self) -> str:
        """The name of the unit in messages."""
        if self.stop is None:
            return self.path
        if file_format(self.path)[0] == "parquet":
            return f"{self.path}, row group {self.start},"
        return f"{self.path}, bytes {self.start} to {self.stop},"


def file_format(path: str) -> tuple[str, str]:
    """Returns (format, '.gz', '.zst', '.bz2', '.xz' or '') by suffix; InputError for an unknown suffix.

    >>> file_format("web/part-0.JSONL.gz"), file_format("hf://datasets/a/b/0.parquet")
    (('json', '.gz'), ('parquet', ''))
    """
    plain = path.split("?")[0].lower()
    packed = next((suffix for suffix in COMPRESSIONS if plain.endswith(suffix)), "")
    plain = plain.removesuffix(packed)
    for suffix, name in FORMATS.items():
        if plain.endswith(suffix) and not (packed and name in ("parquet", "array_record")):
            return name, packed
    raise InputError(
        f"{path} has an unknown suffix; "
        "give .txt, .jsonl, .json, .csv or .tsv files, each also with .gz, .zst, .bz2 or .xz, .parquet or"
        " .array_record."
    )


def list_files(patterns: Sequence[str], policy: ReadPolicy = PATIENT) -> list[File]:
    """Returns the files of all patterns, sorted by path, each once; InputError for a pattern that matches nothing.

    Credentials in addresses do not change the order. A listing that fails is never skipped: a different list of files
    would be a different corpus.
    """
    found: dict[str, File] = {}
    for pattern in patterns:
        try:
            matches = _matches(pattern, policy)
        except InputError:
            raise
        except (OSError, ValueError, ImportError) as error:
            advice = advice_on(error, "check the path, and the token if it is private")
            raise InputError(f"The corpus {pattern} cannot be listed ({reason_of(error)}); {advice}.") from error
        if not matches:
            raise InputError(
                f"The corpus path {pattern} matches no file; check the path, and the directory that it starts in."
            )
        found |= {file.path: file for file in matches}
    for path in found:
        file_format(path)
    return [found[path] for path in sorted(found, key=lambda path: (without_credentials(path), path))]


def _matches(pattern: str, policy: ReadPolicy) -> list[File]:
    servers.check(pattern)
    servers.check_name(pattern)
    if pattern.startswith("hf://"):
        servers.check_hub()
    system, path = fsspec.core.url_to_fs(pattern)
    if not is_local(system):
        return _remote_matches(pattern, system, path, policy)
    if any(letter in path for letter in "*?[") and not system.exists(path):
        entries = [details | {"name": name} for name, details in system.glob(path, detail=True).items()]
    elif system.exists(path):
        entries = [system.info(path)]
        if entries[0]["type"] == "directory":
            raise _is_directory(pattern)
    else:
        entries = []
    entries = [entry for entry in entries if entry["type"] != "directory"]
    for entry in entries:
        foreign.check_regular(entry["name"])
    return [File(str(entry["name"]), entry.get("size")) for entry in entries]


def _is_directory(pattern: str) -> InputError:
    return InputError(
        f"The corpus path {pattern} is a directory; give a pattern such as {pattern.rstrip('/')}/*.jsonl."
    )


def _remote_matches(pattern: str, system: AbstractFileSystem, path: str, policy: ReadPolicy) -> list[File]:
    def answer(method: str, *arguments: str, **options: object) -> Any:
        try:
            return ask(system, policy, method, *arguments, **options)
        except ReadError as error:
            if error.missing:
                return None
            raise

    web = "http" in system.protocol
    magic = [path.index(letter) for letter in ("*[" if web else "*?[") if letter in path]
    if magic:
        listing = answer("glob", path, detail=True, **({"on_error": "raise"} if web else {})) or {}
        entries = [details | {"name": name} for name, details in listing.items()]
        if not entries and not web:  # some libraries list an unreachable server as an empty directory
            answer("ls", path[: min(magic)].rpartition("/")[0], detail=False)
    else:
        details = answer("info", path)
        if details is not None and details["type"] == "directory":
            raise _is_directory(pattern)
        entries = [] if details is None else [details | {"name": path}]
    entries = [entry for entry in entries if entry["type"] != "directory"]
    if web and magic:  # a page of links has no sizes
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            found = list(pool.map(lambda entry: answer("info", entry["name"]) or {}, entries))
        entries = [entry | {"name": listed["name"]} for listed, entry in zip(entries, found, strict=True)]
    return [File(system.unstrip_protocol(entry["name"]), entry.get("size"), version_of(entry)) for entry in entries]


def list_units(files: Sequence[File], policy: ReadPolicy = PATIENT, footers: Footers = read_footer) -> list[Unit]:
    """Returns the units of the files in order; reads only the footers of parquet files.

    A footer that cannot be fetched is an InputError even if the policy is 'skip', since another list of units is
    another order of the corpus. With that policy a file that is not parquet is one unit, skipped when it is read.
    """
    total = sum(file.size or 0 for file in files)
    size = SMALLEST_UNIT
    for largest, num_units in LARGER_UNITS:
        while size < largest and size * num_units < total:
            size *= 2
    parquets = [file.path for file in files if file_format(file.path)[0] == "parquet"]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        counts = pool.map(lambda path: _num_row_groups(path, policy, footers), parquets)
        num_groups = dict(zip(parquets, counts, strict=True))
        may_be_arrays = [file.path for file in files if _is_json(file.path) and file.size is not None]
        found = pool.map(lambda path: _is_one_value(path, policy), may_be_arrays)
        arrays = {path for path, is_one in zip(may_be_arrays, found, strict=True) if is_one}
    units = []
    for file in files:
        form, packed = file_format(file.path)
        if form == "array_record":
            raise InputError(
                f"{file.path} is ArrayRecord, which cannot be mixed with other formats; give only such files."
            )
        if form == "parquet":
            units += [Unit(file.path, group, group + 1) for group in range(num_groups[file.path])]
        elif form in ("csv", "tsv") or packed or file.size is None or file.path in arrays:
            units.append(Unit(file.path))
        else:
            units += [Unit(file.path, start, min(start + size, file.size)) for start in range(0, file.size, size)]
    return units


def _is_json(path: str) -> bool:
    """Returns whether a file may be one array or object: a plain .json, and no .jsonl."""
    return path.split("?")[0].lower().endswith(".json")


def _is_one_value(path: str, policy: ReadPolicy) -> bool:
    """Returns whether a file begins as an array, or as an object over several lines: it cannot be cut into ranges."""
    try:
        with open_file(path, policy, 0, json_documents.HEAD_BYTES) as file:
            head = file.read(json_documents.HEAD_BYTES)
            return json_documents.is_array(head) or json_documents.is_over_lines(head)
    except OSError as error:
        advice = advice_on(error, "check the file and its permissions")
        raise InputError(f"{path} cannot be read ({reason_of(error)}); {advice}.") from error


def group_rows(units: Sequence[Unit], policy: ReadPolicy, footers: Footers) -> list[int]:
    """Returns the rows of each row group, as the files' footers say; InputError for a footer that cannot be read."""
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        paths = list(dict.fromkeys(unit.path for unit in units))
        metadata = dict(zip(paths, pool.map(lambda path: footers(path, policy)[1], paths), strict=True))
    return [metadata[unit.path].row_group(unit.start).num_rows for unit in units]


def _num_row_groups(path: str, policy: ReadPolicy, footers: Footers) -> int:
    try:
        return footers(path, policy)[1].num_row_groups
    except UnitError:
        if policy.on_failure == "stop":
            raise
        return 1
    except OSError as error:
        advice = advice_on(error, "check the file and its permissions")
        raise InputError(f"The footer of {path} cannot be read ({reason_of(error)}); {advice}.") from error


def read_chunks(
    unit: Unit, column: str | Sequence[str], policy: ReadPolicy = PATIENT, footers: Footers = read_footer
) -> Iterator[list[bytes]]:
    """Yields the unit's documents as UTF-8 in lists of about 256 KiB, of less in a mixture of many tasks.

    Blank ones are left out, but for a policy.

    A document of several columns has their texts in order with FIELD_SEPARATOR between them; rows with an empty text
    are skipped.

    Raises InputError, which names the file and the place, for a unit that cannot be opened, decoded or parsed,
    and for a missing column; UnitError if only this unit may be damaged.
    """
    columns = (column,) if isinstance(column, str) else tuple(column)
    with _faults(unit):
        if file_format(unit.path)[0] == "parquet":
            yield from in_chunks(_parquet(unit, columns, policy, footers), policy)
            return
        form, packed = file_format(unit.path)
        with open_file(unit.path, policy, unit.start, unit.stop) as raw:
            file = unpacked(raw, packed)
            if form in ("csv", "tsv"):
                rows = _table(unit, file, form, columns)
            elif form == "json":
                rows = _json(unit, file, columns)
            elif len(columns) > 1:
                raise InputError(
                    f"{unit.path} has no columns, and the task reads {columns}; give .jsonl, .csv, .tsv or .parquet."
                )
            else:
                rows = _text(unit, file)
            yield from in_chunks(rows, policy)


@contextlib.contextmanager
def _faults(unit: Unit) -> Iterator[None]:
    """Raises UnitError, which names the unit, for what reading and unpacking it raises; see `read_chunks`."""
    try:
        yield
    except InputError:
        raise
    except ReadError as error:
        advice = advice_on(error, "check the file and its permissions")
        raise UnitError(
            f"{unit.place} cannot be read ({error}); {advice}, or set DataConfig.on_read_failure to 'skip' to leave it"
            " out.",
            fix=("DataConfig.on_read_failure", "skip"),
        ) from error
    except (
        OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error, lzma.LZMAError, zstandard.ZstdError
    ) as error:  # fmt: skip
        is_cut = isinstance(error, EOFError) and file_format(unit.path)[1] == ".gz"
        raise UnitError(
            f"{unit.place} cannot be read ({reason_for(error)}); check the file and its permissions.",
            fix=in_place(unit.path, "gzip -dc {} | sed '$d' | gzip") if is_cut else None,  # all lines that are whole
        ) from error


def advice_on(error: Exception, otherwise: str) -> str:
    """Returns the advice for a failed request: wait if it may succeed later, else `otherwise`."""
    return "try again later" if getattr(error, "is_temporary", False) else otherwise


def chunk_bytes(num_tasks: int) -> int:
    """Returns the size of a chunk, about, where so many tasks are read side by side."""
    return min(CHUNK_BYTES, max(LEAST_CHUNK_BYTES, BYTES_OF_ALL_TASKS // num_tasks))


def in_chunks(rows: Iterator[bytes], policy: ReadPolicy) -> Iterator[list[bytes]]:
    """Yields lists of the documents that are not blank, of `chunk_bytes` about; the last one is shorter."""
    chunk, size = [], 0
    enough = chunk_bytes(policy.num_tasks)
    try:
        for row in rows:
            if policy.keep_blank or (row and not row.isspace()):
                chunk.append(row)
                size += len(row)
            if size >= enough or len(chunk) >= CHUNK_DOCUMENTS:
                yield chunk
                chunk, size = [], 0
    except RecordError:
        # The half chunk before a bad line is yielded only if the rest is skipped for good, not if the run stops until
        # the line is corrected, and not after a network failure.
        if chunk and policy.on_failure == "skip":
            yield chunk
        raise
    if chunk:
        yield chunk


def _lines(unit: Unit, file: IO[bytes], keeps_ends: bool = False) -> Iterator[tuple[int, bytes]]:
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


def _decode(unit: Unit, offset: int, line: bytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        if kind := _packed_kind(unit.path):
            raise RecordError(
                f"{unit.path} holds {kind}, which its name does not say; give it the ending for that, or unpack it."
            ) from None
        place = _place(unit.path, offset)
        raise RecordError(
            f"{unit.path} is not UTF-8 at byte {offset + error.start} ({place}); convert it, for instance with iconv.",
            fix=in_utf8(unit.path),
        ) from None
    # A letter of UTF-16 has a byte that is a control character in UTF-8, and a space or line end has NUL.
    if offset == 0 and b"\0" in line and len(line) - len(line.translate(None, _NO_TEXT)) > len(line) // 4:
        raise RecordError(
            f"{unit.path} is not UTF-8: a quarter of its first line are control characters, as in UTF-16 and in binary"
            " files; convert it, for instance with iconv -f UTF-16LE."
        )
    return text


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


def _packed_kind(path: str) -> str:
    """Returns what a file holds that is no text, by its first bytes; "" if that is not known."""
    with contextlib.suppress(OSError), _again(path) as file:
        head = file.read(8)
        return next((kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning)), "")
    return ""


@contextlib.contextmanager
def _again(path: str) -> Iterator[IO[bytes]]:
    """Opens a file that is being read once more, to say where it is wrong; OSError if it cannot be, as a pipe."""
    if "://" not in path and not foreign.is_regular(path):
        raise OSError(f"{path} is read once")
    packed = next((each for each in COMPRESSIONS if path.lower().endswith(each)), "")
    with open_file(path, PATIENT) as raw:
        yield unpacked(raw, packed)


def _place(path: str, offset: int) -> str:
    """Returns the line number at an offset of the content, or the offset if counting would take too long."""
    if "://" in path or offset > BYTES_COUNTED:
        return f"the line at byte {offset}"
    try:
        with _again(path) as file:
            number, left = 1, offset
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                number += block.count(b"\n")
                left -= len(block)
    except OSError:
        return f"the line at byte {offset}"
    return f"line {number}"


def _text(unit: Unit, file: Any) -> Iterator[bytes]:
    for offset, line in _lines(unit, file):
        _decode(unit, offset, line)
        if b"\r" in line:
            _say_of_return(unit, file, offset)
        yield line


def _say_of_return(unit: Unit, file: Any, offset: int) -> None:
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


def _may_be_one_value(path: str) -> bool:
    """Returns whether a file, packed or not, may be one array or object of JSON: by its name a .json, and no .jsonl."""
    path = path.split("?")[0].lower()
    return _is_json(path.removesuffix(next((each for each in COMPRESSIONS if path.endswith(each)), "")))


def _records(unit: Unit, file: Any) -> Iterator[tuple[int, object]]:
    """Yields (offset, record) of JSON lines, or of a .json file that is one array or one object over several lines."""
    if unit.stop is None and _may_be_one_value(unit.path):
        head = file.peek(json_documents.HEAD_BYTES)[: json_documents.HEAD_BYTES]
        try:
            if json_documents.is_array(head):
                yield from json_documents.array_records(file)
                return
            if json_documents.is_over_lines(head):
                yield 0, json_documents.object_over_lines(file)
                return
        except json_documents.JsonError as error:
            place = _place(unit.path, error.offset)
            raise RecordError(f"{unit.path} {place} is not JSON ({reason_of(error)}); correct it.") from None
    for offset, line in _lines(unit, file):
        text = _decode(unit, offset, line)
        if text and not text.isspace():
            yield offset, _record_of(unit, offset, text)


def _hint_on_array(path: str) -> str:
    """Returns what to do about a value that is an array, where an object is read."""
    return "; its array holds arrays, and has to hold objects" if _may_be_one_value(path) else ARRAY_HINT


def _record_of(unit: Unit, offset: int, text: str, number: int = 0) -> object:
    """Returns the value of a line of JSON, whose number is counted if it is not given; RecordError if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = _hint_on_array(unit.path) if text.lstrip()[:1] == "[" else ""
        if text.strip() == "{":
            hint = f"; an object over several lines: {json_documents.AS_LINES}"
        place = f"line {number}" if number else _place(unit.path, offset)
        fix = in_place(unit.path, f"sed {place[5:]}d {{}}") if place[5:].isdigit() and unit.stop else None
        raise RecordError(
            f"{unit.path} {place} is not JSON ({reason_for(error)}){hint or '; correct the line'}.", fix=fix
        ) from None


def _is_alone(unit: Unit, file: Any, offset: int) -> bool:
    """Returns whether the record of a .json file that was read at an offset is the only one of it."""
    return offset == 0 and _may_be_one_value(unit.path) and not file.peek(1).strip()


def _rows_of_columns(unit: Unit, record: Mapping[str, Any], columns: Sequence[str]) -> list[dict[str, object]] | None:
    """Returns the rows of an object whose values are columns, as pandas and `datasets` read it; None if it is a row.

    It is one if a wanted column is a list of what a row may hold. A value that is no list stands in every row.
    """
    record = {name: json_documents.without_index(value) for name, value in record.items()}
    if not any(json_documents.is_column(record, column) for column in columns):
        return None
    lengths = {name: len(value) for name, value in record.items() if isinstance(value, list)}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} {length:,}" for name, length in lengths.items())
        raise InputError(
            f"{unit.path} is one object of columns, which have not as many texts ({told}); give it as one object in"
            " each line, with the suffix .jsonl."
        )
    num_rows = next(iter(lengths.values()))
    say_once(
        f"{unit.path.rpartition('/')[0]} columns",
        f"{unit.path} is one object of columns: its lists are read as {num_rows:,} documents. A row is an object in a"
        " line of its own, with the suffix .jsonl.",
    )
    return [
        {name: value[row] if name in lengths else value for name, value in record.items()} for row in range(num_rows)
    ]


def _json(unit: Unit, file: IO[bytes], columns: Sequence[str]) -> Iterator[bytes]:
    kind = InputError  # if the first record lacks the column, the unit is not damaged
    for offset, record in _records(unit, file):
        if isinstance(record, str) and unit.stop is None and len(columns) == 1:  # of an array of texts
            yield joined([record])
            continue
        if not isinstance(record, dict):
            hint = _hint_on_array(unit.path) if isinstance(record, list) else ""
            raise RecordError(
                f"{unit.path} {_place(unit.path, offset)} is JSON but not an object{hint}; "
                f'write one {{"{columns[0]}": "..."}} per line.'
            )
        rows = _rows_of_columns(unit, record, columns) if _is_alone(unit, file, offset) else None
        for row in [record] if rows is None else rows:
            yield _joined_columns(unit, offset, row, columns, kind)
        kind = RecordError


def _joined_columns(
    unit: Unit, offset: int, record: Mapping[str, object], columns: Sequence[str], kind: type[InputError]
) -> bytes:
    """Returns the texts of a record's columns; an error of that kind for a column that is missing or no text."""
    if len(columns) == 1:
        text = record.get(columns[0])
        if isinstance(text, str):  # so it nearly always is, and what follows costs as much as reading the line
            return joined([text])
    values = []
    for column in columns:
        try:
            found = json_documents.value_at(record, column)
        except KeyError:
            raise no_column(unit.path, column, list(record), kind) from None
        value = json_documents.numbers_as_text(found) if len(columns) > 1 else found
        if not isinstance(value, str | bytes | None):
            raise json_documents.not_text(f"{unit.path} {_place(unit.path, offset)}", value, column, kind)
        if isinstance(record.get(column), list) and isinstance(value, str) and value:
            _say_of_list(unit.path, column)
        values.append(value)
    return b"" if None in values else joined(values)


def _say_of_list(path: str, column: str) -> None:
    say_once(
        f"{path.rpartition('/')[0]} {column} lists",
        f"{path} has lists of texts in column {column!r}: each is one document, with spaces between its texts. Without"
        f" this line: DataConfig.column '{column}[]'.",
    )


_TOLD: dict[str, str] = {}  # kind -> the sentence of it that was logged


def say_once(kind: str, sentence: str) -> None:
    """Logs the first sentence of a kind: one for a thousand corpora in all their shards."""
    if _TOLD.setdefault(kind, sentence) is sentence:
        logger.warning(without_credentials(sentence))


def _table(unit: Unit, file: IO[bytes], form: str, columns: Sequence[str]) -> Iterator[bytes]:
    header, rows = _header_and_rows(unit, file, form)
    if header is None:
        return
    if columns == (USUAL_COLUMN,) and USUAL_COLUMN not in header and any(header):
        columns, rows = _first_column(unit, header, rows, form)
    for column in columns:
        if column not in header:
            raise no_column(unit.path, column, header)
        check_names(unit.path, [name for name in header if name == column])
    places = [header.index(column) for column in columns]
    for _, row in rows:
        yield joined([row[place] for place in places])


def _header_and_rows(
    unit: Unit, file: IO[bytes], form: str
) -> tuple[list[str] | None, Iterator[tuple[int, list[str]]]]:
    """Returns the header of csv or tsv, None for a file without rows, and the other rows, all as wide, with numbers."""
    numbered = _table_rows(unit, file, form)
    first = next(numbered, None)
    if first is None:
        return None, iter(())
    header = first[1]

    def rows() -> Iterator[tuple[int, list[str]]]:
        for number, row in numbered:
            try:
                tables.check_width(number, row, header)
            except tables.TableError as error:
                raise RecordError(f"{unit.path} {error}") from None
            yield number, row

    return header, rows()


def _table_rows(unit: Unit, file: IO[bytes], form: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of csv or tsv with their line numbers; says once how csv is separated if not by commas."""
    lines = (_decode(unit, offset, line) for offset, line in _lines(unit, file, keeps_ends=True))
    try:
        if form == "tsv":
            yield from tables.tsv_rows(lines)
            return
        dialect, rows = tables.csv_rows(lines)
        if dialect != tables.Dialect():
            space = ", each with a space behind it" if dialect.skips_space else ""
            say_once(
                f"{unit.path.rpartition('/')[0]} {dialect}",
                f"{unit.path} has {tables.SEPARATORS[dialect.separator]} between its fields{space}: so its first rows"
                " are as wide as its header.",
            )
        yield from rows
    except tables.TableError as error:
        raise RecordError(f"{unit.path} {error}") from None


def _first_column(
    unit: Unit, header: Sequence[str], rows: Iterator[tuple[int, list[str]]], form: str
) -> tuple[tuple[str], Iterator[tuple[int, list[str]]]]:
    """Returns the first column, which stands in for one that is called `text`, and the rows.

    InputError if the first rows have more letters in another column: the first one is then a number or a name.
    """
    sample = list[tuple[int, list[str]]]()
    failure = None
    try:
        sample += itertools.islice(rows, tables.SAMPLE_ROWS)
    except RecordError as error:
        failure = error

    def again() -> Iterator[tuple[int, list[str]]]:
        yield from sample
        if failure is not None:
            raise failure
        yield from rows

    if form == "tsv" and len(header) == 1 and any(separator in header[0] for separator in tables.SEPARATORS):
        raise InputError(
            f"{unit.path} has the first line {_shortened(header[0])!r}, with no tab in it; if it is csv, name it .csv,"
            f" else put a line with the names of its columns before the first one, such as {USUAL_COLUMN}."
        )
    if tables.is_prose(header[0]):
        raise InputError(
            f"{unit.path} begins with {_shortened(header[0])!r}, which looks like a text, and the first line of a table"
            f" names its columns; put a line with the names before it, such as {USUAL_COLUMN}."
        )
    if tables.column_of_text(header, [row for _, row in sample]) is None:
        raise no_column(unit.path, USUAL_COLUMN, header)
    say_once(
        f"{unit.path.rpartition('/')[0]} {header[0]}",  # one for all files of a folder
        f"{unit.path} has no column {USUAL_COLUMN!r}: its first one, {header[0]!r}, is read, by the names in its first"
        " line. DataConfig.column names another one.",
    )
    return (header[0],), again()


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}…"


def _parquet(unit: Unit, columns: Sequence[str], policy: ReadPolicy, footers: Footers) -> Iterator[bytes]:
    size, metadata = footers(unit.path, policy)
    schema = metadata.schema.to_arrow_schema()
    for column in columns:
        if check_column(unit.path, schema, column) and not column.endswith("[]"):
            _say_of_list(unit.path, column)
    for values in parquet_values(unit.path, unit.start, columns, policy, size, metadata):
        yield joined(values)


Columns = Mapping[str, object]


def records(
    path: str, columns: Sequence[str] = (), *, has_header: bool = True, content: bytes | None = None
) -> Iterator[tuple[str, Columns]]:
    """Yields (place, columns) of each record of a file of JSON, csv, tsv or parquet, as training reads them.

    `columns` are those that are wanted: an object of columns is told by them. Without a header the columns of a table
    are '0', '1', …. `content` is what is read in the file's place, where it was unpacked from an archive. Raises
    InputError for what is wrong in the file, and the errors of the storage and of the compression; a record may lack a
    wanted column, which the caller says.
    """
    unit = Unit(path)
    form, packed = file_format(path)
    if form == "parquet":
        yield from _parquet_records(path)
        return
    with open_file(path, PATIENT) if content is None else io.BytesIO(content) as raw:
        file = io.BufferedReader(raw) if isinstance(raw, io.BytesIO) else unpacked(raw, packed)
        if form == "json":
            yield from _json_records(unit, file, columns)
        elif form in ("csv", "tsv"):
            yield from _table_records(unit, file, form, columns if has_header else None)
        else:
            raise InputError(f"{path} has no columns; give .jsonl, .json, .csv, .tsv or .parquet.")


def _parquet_records(path: str) -> Iterator[tuple[str, Columns]]:
    size, metadata = read_footer(path, PATIENT)
    number = 0
    for group in range(metadata.num_row_groups):
        for row in parquet_rows(path, group, PATIENT, size, metadata):
            number += 1
            yield f"{path} row {number}", row


def _json_records(unit: Unit, file: Any, columns: Sequence[str]) -> Iterator[tuple[str, Columns]]:
    head = file.peek(json_documents.HEAD_BYTES)[: json_documents.HEAD_BYTES]
    if json_documents.is_array(head) and _may_be_one_value(unit.path):
        for number, (_, record) in enumerate(_records(unit, file), 1):
            yield _checked(f"{unit.path} entry {number}", record, columns)
        return
    if json_documents.is_over_lines(head) and _may_be_one_value(unit.path):
        values = ((number, *each) for number, each in enumerate(_records(unit, file), 1))
    else:
        values = _numbered_records(unit, file)
    for number, offset, value in values:
        place, record = _checked(f"{unit.path} line {number}", value, ())
        rows = _rows_of_columns(unit, record, columns) if _is_alone(unit, file, offset) else None
        if rows is None:
            yield place, record
        else:
            yield from ((f"{unit.path} entry {entry}", row) for entry, row in enumerate(rows, 1))


def _numbered_records(unit: Unit, file: Any) -> Iterator[tuple[int, int, object]]:
    """Yields (number of the line, offset, value) of JSON lines."""
    for number, (offset, line) in enumerate(_lines(unit, file), 1):
        text = _decode(unit, offset, line)
        if text.strip():
            yield number, offset, _record_of(unit, offset, text, number)


def _checked(place: str, record: object, columns: Sequence[str]) -> tuple[str, Columns]:
    if isinstance(record, str) and len(columns) == 1:  # of an array of texts
        return place, {columns[0]: record}
    if not isinstance(record, Mapping):
        path = place.rsplit(" ", 2)[0]
        hint = _hint_on_array(path) if isinstance(record, list) else "; write one in each line"
        raise RecordError(f"{place} is no object with columns{hint}.")
    return place, record


def _table_records(
    unit: Unit, file: IO[bytes], form: str, columns: Sequence[str] | None
) -> Iterator[tuple[str, Columns]]:
    if columns is None:  # there is no header
        for number, row in _table_rows(unit, file, form):
            yield f"{unit.path} line {number}", dict(zip(map(str, range(len(row))), row, strict=True))
        return
    header, rows = _header_and_rows(unit, file, form)
    if header is None:  # the file is empty
        return
    for column in columns:
        if column not in header:
            raise InputError(f"{unit.path} line 1 has no column {column}; it has {', '.join(header)}.")
    check_names(unit.path, header)
    for number, row in rows:
        yield f"{unit.path} line {number}", dict(zip(header or (), row, strict=True))


def text_lines(path: str, file: IO[bytes]) -> Iterator[str]:
    """Yields the lines of an open file of text, the blank ones too, as training reads them."""
    unit = Unit(path)
    for offset, line in _lines(unit, file):
        text = _decode(unit, offset, line)
        if "\r" in text:
            _say_of_return(unit, file, offset)
        yield text


def joined(values: Sequence[str | bytes]) -> bytes:
    """Joins a row's texts with FIELD_SEPARATOR; returns b"" if one of several is empty."""
    # JSON may escape half of a surrogate pair.
    encoded = [value if isinstance(value, bytes) else value.encode(errors="replace") for value in values]
    if len(encoded) == 1:
        return encoded[0]
    if any(not text or text.isspace() for text in encoded):
        return b""
    return FIELD_SEPARATOR.join(text.replace(FIELD_SEPARATOR, b"") for text in encoded)
