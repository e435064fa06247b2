"""Files of documents as units that are listed, divided among shards and read one by one, in bounded memory.

A unit is a byte range of a text or JSON lines file, a row group of a parquet file, or a whole file
that can only be read from its beginning (csv, anything compressed). A unit is read in chunks of about
256 KiB of text. Chunk k of a unit is always the same documents, so a data position is three numbers.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import fsspec
import zstandard
from fsspec import AbstractFileSystem

from limba.config import InputError, reason_of, without_credentials
from limba.data.sources import json_documents
from limba.data.sources.fingerprints import File, version_of
from limba.data.sources.parquet import Footers, UnitError, parquet_values, read_footer
from limba.data.sources.remote import COMPRESSIONS, ReadError, ReadPolicy, ask, in_place, in_utf8, open_file, unpacked
from limba.storage import servers
from limba.storage.files import is_local

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18
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
FORMATS = {".txt": "text", ".jsonl": "json", ".json": "json", ".csv": "csv", ".conllu": "conllu"}
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


class RecordError(UnitError):
    """An invalid line; every reader finds it at the same place."""


def file_format(path: str) -> tuple[str, str]:
    """Returns (format, '.gz', '.zst' or '') by suffix; InputError for an unknown suffix.

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
        "give .txt, .jsonl, .json, .csv or .conllu files, each also with .gz or .zst, .parquet or .array_record."
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
            raise InputError(f"The corpus path {pattern} matches no file; check it, and the directory it starts in.")
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
    return [File(str(entry["name"]), entry.get("size")) for entry in entries if entry["type"] != "directory"]


def _is_directory(pattern: str) -> InputError:
    return InputError(f"The corpus path {pattern} is a directory; give a pattern like {pattern.rstrip('/')}/*.jsonl.")


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
        found = pool.map(lambda path: _begins_array(path, policy), may_be_arrays)
        arrays = {path for path, begins in zip(may_be_arrays, found, strict=True) if begins}
    units = []
    for file in files:
        form, packed = file_format(file.path)
        if form == "array_record":
            raise InputError(
                f"{file.path} is ArrayRecord, which cannot be mixed with other formats; give only such files."
            )
        if form == "parquet":
            units += [Unit(file.path, group, group + 1) for group in range(num_groups[file.path])]
        elif form in ("csv", "conllu") or packed or file.size is None or file.path in arrays:
            units.append(Unit(file.path))
        else:
            units += [Unit(file.path, start, min(start + size, file.size)) for start in range(0, file.size, size)]
    return units


def _is_json(path: str) -> bool:
    """Returns whether a file may be one array: a plain .json, and no .jsonl."""
    return path.split("?")[0].lower().endswith(".json")


def _begins_array(path: str, policy: ReadPolicy) -> bool:
    try:
        with open_file(path, policy, 0, json_documents.HEAD_BYTES) as file:
            return json_documents.is_array(file.read(json_documents.HEAD_BYTES))
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
    """Yields the unit's documents as UTF-8 in lists of about 256 KiB; blank ones are left out, but for a policy.

    A document of several columns has their texts in order with FIELD_SEPARATOR between them; rows with an empty text
    are skipped.

    Raises InputError, which names the file and the place, for a unit that cannot be opened, decoded or parsed,
    and for a missing column; UnitError if only this unit may be damaged.
    """
    columns = (column,) if isinstance(column, str) else tuple(column)
    try:
        if file_format(unit.path)[0] == "parquet":
            yield from in_chunks(_parquet(unit, columns, policy, footers), policy)
            return
        form, packed = file_format(unit.path)
        with open_file(unit.path, policy, unit.start, unit.stop) as raw:
            file = unpacked(raw, packed)
            if form == "csv":
                rows = _csv(unit, file, columns)
            elif form == "json":
                rows = _json(unit, file, columns)
            elif form == "conllu":
                rows = map(
                    joined,
                    json_documents.sentences(unit.path, (_decode(unit, *line) for line in _lines(unit, file)), columns),
                )
            elif len(columns) > 1:
                raise InputError(
                    f"{unit.path} has no columns, and the task reads {columns}; give .jsonl, .csv or .parquet."
                )
            else:
                rows = _text(unit, file)
            yield from in_chunks(rows, policy)
    except InputError:
        raise
    except ReadError as error:
        advice = advice_on(error, "check the file and its permissions")
        raise UnitError(
            f"{unit.place} cannot be read ({error}); {advice}, or set DataConfig.on_read_failure to 'skip' to leave it"
            " out.",
            fix=("DataConfig.on_read_failure", "skip"),
        ) from error
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError) as error:
        is_cut = isinstance(error, EOFError) and file_format(unit.path)[1] == ".gz"
        raise UnitError(
            f"{unit.place} cannot be read ({reason_of(error)}); check the file and its permissions.",
            fix=in_place(unit.path, "gzip -dc {} | sed '$d' | gzip") if is_cut else None,  # all lines that are whole
        ) from error


def advice_on(error: Exception, otherwise: str) -> str:
    """Returns the advice for a failed request: wait if it may succeed later, else `otherwise`."""
    return "try again later" if getattr(error, "is_temporary", False) else otherwise


def in_chunks(rows: Iterator[bytes], policy: ReadPolicy) -> Iterator[list[bytes]]:
    """Yields lists of the documents that are not blank, about 256 KiB each; the last one is shorter."""
    chunk, size = [], 0
    try:
        for row in rows:
            if policy.keep_blank or (row and not row.isspace()):
                chunk.append(row)
                size += len(row)
            if size >= CHUNK_BYTES or len(chunk) >= CHUNK_DOCUMENTS:
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


def _lines(unit: Unit, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yields (offset in the file, line without its end) for lines that start within the unit."""
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
        yield start, (line.removeprefix(BYTE_ORDER_MARK) if start == 0 else line).rstrip(b"\r\n")


def _decode(unit: Unit, offset: int, line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        place = _place(unit.path, offset)
        raise RecordError(
            f"{unit.path} is not UTF-8 at byte {offset + error.start} ({place}); convert it, for instance with iconv.",
            fix=in_utf8(unit.path),
        ) from None


def _place(path: str, offset: int) -> str:
    """Returns the line number at an offset of the content, or the offset if counting would take too long."""
    if "://" in path or offset > BYTES_COUNTED:
        return f"the line at byte {offset}"
    with open_file(path, PATIENT) as raw:
        file = unpacked(raw, file_format(path)[1])
        number, left = 1, offset
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            number += block.count(b"\n")
            left -= len(block)
    return f"line {number}"


def _text(unit: Unit, file: IO[bytes]) -> Iterator[bytes]:
    for offset, line in _lines(unit, file):
        _decode(unit, offset, line)
        yield line


def _records(unit: Unit, file: Any) -> Iterator[tuple[int, object]]:
    """Yields (offset, record) of JSON lines, or of a .json file that is one array."""
    may_be_array = unit.stop is None and _is_json(unit.path.lower().removesuffix(".gz").removesuffix(".zst"))
    if may_be_array and json_documents.is_array(file.peek(json_documents.HEAD_BYTES)[: json_documents.HEAD_BYTES]):
        try:
            yield from json_documents.array_records(file)
        except json_documents.JsonError as error:
            place = _place(unit.path, error.offset)
            raise RecordError(f"{unit.path} {place} is not JSON ({reason_of(error)}); correct it.") from None
        return
    for offset, line in _lines(unit, file):
        text = _decode(unit, offset, line)
        if not text.strip():
            continue
        try:
            yield offset, json.loads(text)
        except (ValueError, RecursionError) as error:
            hint, place = ARRAY_HINT if text.lstrip()[:1] == "[" else "", _place(unit.path, offset)
            fix = in_place(unit.path, f"sed {place[5:]}d {{}}") if place[5:].isdigit() and unit.stop else None
            raise RecordError(
                f"{unit.path} {place} is not JSON ({reason_of(error)}){hint or '; correct the line'}.", fix=fix
            ) from None


def _json(unit: Unit, file: IO[bytes], columns: Sequence[str]) -> Iterator[bytes]:
    kind = InputError  # if the first record lacks the column, the unit is not damaged
    for offset, record in _records(unit, file):
        if isinstance(record, str) and unit.stop is None and len(columns) == 1:  # of an array of texts
            yield joined([record])
            continue
        if not isinstance(record, Mapping):
            hint = ARRAY_HINT if isinstance(record, list) else ""
            raise RecordError(
                f"{unit.path} {_place(unit.path, offset)} is JSON but not an object{hint}; "
                f'write one {{"{columns[0]}": "..."}} per line.'
            )
        values = []
        for column in columns:
            try:
                found = json_documents.value_at(record, column)
            except KeyError:
                raise _no_column(unit.path, column, list(record), kind) from None
            value = json_documents.numbers_as_text(found) if len(columns) > 1 else found
            if not isinstance(value, str | bytes | None):
                raise json_documents.not_text(f"{unit.path} {_place(unit.path, offset)}", value, column, kind)
            values.append(value)
        yield b"" if None in values else joined(values)
        kind = RecordError


_TOLD: dict[str, str] = {}  # kind -> the sentence of it that was logged


def say_once(kind: str, sentence: str) -> None:
    """Logs the first sentence of a kind: one for a thousand corpora in all their shards."""
    if _TOLD.setdefault(kind, sentence) is sentence:
        logger.warning(without_credentials(sentence))


def _csv(unit: Unit, file: IO[bytes], columns: Sequence[str]) -> Iterator[bytes]:
    csv.field_size_limit(sys.maxsize)  # the library's default limit, 128 KiB, is too small for long documents
    lines = (_decode(unit, offset, line) + "\n" for offset, line in _lines(unit, file))
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        if columns == (USUAL_COLUMN,) and USUAL_COLUMN not in header and any(header):
            columns = (header[0],)
            say_once(
                f"{unit.path.rpartition('/')[0]} {header[0]}",  # one for all files of a folder
                f"{unit.path} has no column {USUAL_COLUMN!r}: its first one, {header[0]!r}, is read. DataConfig.column"
                " names another one.",
            )
        for column in columns:
            if column not in header:
                raise _no_column(unit.path, column, header)
        places = [header.index(column) for column in columns]
        for row in reader:
            if len(row) > max(places):
                yield joined([row[place] for place in places])
            elif row:
                raise RecordError(
                    f"{unit.path} line {reader.line_num} has {len(row)} fields and the header {len(header)}; "
                    "correct the line."
                )
    except csv.Error as error:
        raise RecordError(
            f"{unit.path} line {reader.line_num} is not csv ({reason_of(error)}); correct the line."
        ) from None


def _parquet(unit: Unit, columns: Sequence[str], policy: ReadPolicy, footers: Footers) -> Iterator[bytes]:
    size, metadata = footers(unit.path, policy)
    names = metadata.schema.to_arrow_schema().names
    for column in columns:
        if json_documents.stored_name(column) not in names and column.partition(".")[0] not in names:
            raise _no_column(unit.path, column, names)
    for values in parquet_values(unit.path, unit.start, columns, policy, size, metadata):
        yield joined(values)


def joined(values: Sequence[str | bytes]) -> bytes:
    """Joins a row's texts with FIELD_SEPARATOR; returns b"" if one of several is empty."""
    # JSON may escape half of a surrogate pair.
    encoded = [value if isinstance(value, bytes) else value.encode(errors="replace") for value in values]
    if len(encoded) == 1:
        return encoded[0]
    if any(not text or text.isspace() for text in encoded):
        return b""
    return FIELD_SEPARATOR.join(text.replace(FIELD_SEPARATOR, b"") for text in encoded)


def _no_column(path: str, column: str, columns: Sequence[str], kind: type[InputError] = InputError) -> InputError:
    names, fix = ", ".join(map(repr, columns)) or "none", ("DataConfig.column", columns[0]) if columns else None
    return kind(f"{path} has no column {column!r}; it has {names}: set DataConfig.column to one of these.", fix=fix)
