"""The records of a file with all their columns, one by one, each with its place for messages."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from limba.config import InputError
from limba.data.sources import json_documents
from limba.data.sources.columns import check_names
from limba.data.sources.failures import RecordError
from limba.data.sources.json_rows import hint_on_array, is_alone, json_records, record_of, rows_of_columns
from limba.data.sources.lines import decoded, lines_of
from limba.data.sources.listing import Unit, file_format, may_be_one_value
from limba.data.sources.parquet import parquet_rows, read_footer
from limba.data.sources.remote import PATIENT, open_file, unpacked
from limba.data.sources.table_rows import header_and_rows, table_rows

Columns = Mapping[str, object]


def records(
    path: str, columns: Sequence[str] = (), *, has_header: bool = True, content: bytes | None = None
) -> Iterator[tuple[str, Columns]]:
    """Yields (place, columns) of each record of a file of JSON, csv, tsv or parquet, as training reads them.

    `columns` are those that are wanted: an object of columns is told by them, and of parquet only their numbers have
    the digits that training reads. Without a header the columns of a table are '0', '1', …. `content` is what is read
    in the file's place, where it was unpacked from an archive. Raises InputError for what is wrong in the file, and the
    errors of the storage and of the compression; a record may lack a wanted column, which the caller says.

    >>> from pathlib import Path
    >>> _ = Path("nb.jsonl").write_text('{"text": "Ære være."}\\n{"text": "God dag."}\\n')
    >>> list(records("nb.jsonl"))
    [('nb.jsonl line 1', {'text': 'Ære være.'}), ('nb.jsonl line 2', {'text': 'God dag.'})]
    """
    unit = Unit(path)
    form, packed = file_format(path)
    if form == "parquet":
        yield from _parquet_records(path, columns)
        return
    with open_file(path, PATIENT) if content is None else io.BytesIO(content) as raw:
        file = io.BufferedReader(raw) if isinstance(raw, io.BytesIO) else unpacked(raw, packed)
        if form == "json":
            yield from _json_records(unit, file, columns)
        elif form in ("csv", "tsv"):
            yield from _table_records(unit, file, form, columns if has_header else None)
        else:
            raise InputError(f"{path} has no columns; give .jsonl, .json, .csv, .tsv or .parquet.")


def _parquet_records(path: str, columns: Sequence[str]) -> Iterator[tuple[str, Columns]]:
    size, metadata = read_footer(path, PATIENT)
    number = 0
    for group in range(metadata.num_row_groups):
        for row in parquet_rows(path, group, columns, PATIENT, size, metadata):
            number += 1
            yield f"{path} row {number}", row


def _json_records(unit: Unit, file: Any, columns: Sequence[str]) -> Iterator[tuple[str, Columns]]:
    head = file.peek(json_documents.HEAD_BYTES)[: json_documents.HEAD_BYTES]
    if json_documents.is_array(head) and may_be_one_value(unit.path):
        for number, (_, record) in enumerate(json_records(unit, file), 1):
            yield _checked(f"{unit.path} entry {number}", record, columns)
        return
    if json_documents.is_over_lines(head) and may_be_one_value(unit.path):
        values = ((line, record) for line, (_, record) in enumerate(json_records(unit, file), 1))
    else:
        values = _numbered_records(unit, file)
    for place, (number, value) in enumerate(values):
        location, record = _checked(f"{unit.path} line {number}", value, ())
        rows = rows_of_columns(unit, record, columns) if is_alone(unit, file, place) else None
        if rows is None:
            yield location, record
        else:
            yield from ((f"{unit.path} entry {entry}", row) for entry, row in enumerate(rows, 1))


def _numbered_records(unit: Unit, file: Any) -> Iterator[tuple[int, object]]:
    """Yields (number of the line, value) of JSON lines."""
    for number, (offset, line) in enumerate(lines_of(unit, file), 1):
        text = decoded(unit, offset, line)
        if text.strip():
            yield number, record_of(unit, offset, text, number)


def _checked(location: str, record: object, columns: Sequence[str]) -> tuple[str, Columns]:
    if isinstance(record, str) and len(columns) == 1:  # of an array of texts
        return location, {columns[0]: record}
    if not isinstance(record, Mapping):
        path = location.rsplit(" ", 2)[0]
        hint = hint_on_array(path) if isinstance(record, list) else "; write one in each line"
        raise RecordError(f"{location} is not an object with columns{hint}.")
    return location, record


def _table_records(
    unit: Unit, file: IO[bytes], form: str, columns: Sequence[str] | None
) -> Iterator[tuple[str, Columns]]:
    if columns is None:  # there is no header
        for number, row in table_rows(unit, file, form):
            yield f"{unit.path} line {number}", dict(zip(map(str, range(len(row))), row, strict=True))
        return
    header, rows = header_and_rows(unit, file, form)
    if header is None:  # the file is empty
        return
    for column in columns:
        if column not in header:
            raise InputError(f"{unit.path} line 1 has no column {column}; it has {', '.join(header)}.")
    check_names(unit.path, header)
    for number, row in rows:
        yield f"{unit.path} line {number}", dict(zip(header or (), row, strict=True))
