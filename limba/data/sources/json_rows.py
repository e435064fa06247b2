"""JSON lines, and .json files that are one array, one object over several lines, or one object of columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import orjson

from limba.config import InputError, reason_of
from limba.config.untrusted_files import reason_for
from limba.data.sources import json_documents
from limba.data.sources.columns import joined, no_column, say_of_list
from limba.data.sources.failures import RecordError
from limba.data.sources.lines import decoded, line_at, lines_of
from limba.data.sources.listing import Unit, may_be_one_value
from limba.data.sources.notices import say_once
from limba.data.sources.remote import in_place

ARRAY_HINT = "; a file that is one JSON array must have the suffix .json"


def json_texts(unit: Unit, file: IO[bytes], columns: Sequence[str]) -> Iterator[bytes]:
    kind = InputError  # if the first record lacks the column, the unit is not damaged
    holds_ids = json_documents.are_ids(columns)
    text_column = columns[0] if len(columns) == 1 and not holds_ids else None
    for number, (offset, record) in enumerate(json_records(unit, file, text_column)):
        if isinstance(record, bytes):
            yield record
            kind = RecordError
            continue
        if isinstance(record, str) and unit.stop is None and len(columns) == 1:  # of an array of texts
            if holds_ids:
                location = f"{unit.path} {line_at(unit.path, offset)}"
                raise json_documents.not_document(location, record, columns[0], holds_ids, kind)
            yield joined([record])
            continue
        if not isinstance(record, dict):
            hint = hint_on_array(unit.path) if isinstance(record, list) else ""
            raise RecordError(
                f"{unit.path} {line_at(unit.path, offset)} is JSON but not an object{hint}; "
                f'write one {{"{columns[0]}": "..."}} per line.'
            )
        rows = rows_of_columns(unit, record, columns) if is_alone(unit, file, number) else None
        for row in [record] if rows is None else rows:
            yield _joined_columns(unit, offset, row, columns, kind)
        kind = RecordError


def _joined_columns(
    unit: Unit, offset: int, record: Mapping[str, object], columns: Sequence[str], kind: type[InputError]
) -> bytes:
    """Returns what a record's columns hold; an error of that kind for a column that is missing or has no document."""
    holds_ids = json_documents.are_ids(columns)
    if len(columns) == 1 and not holds_ids:
        text = record.get(columns[0])
        if isinstance(text, str):  # as in most arrays, and what follows costs as much as reading the record
            return joined([text])
    values = []
    for column in columns:
        try:
            stored = json_documents.value_at(record, column, holds_ids)
        except KeyError:
            location = f"{unit.path} {line_at(unit.path, offset)}"
            raise no_column(location, column, list(record), kind) from None
        value = json_documents.numbers_as_text(stored) if len(columns) > 1 else stored
        if not json_documents.is_document(value, holds_ids):
            location = f"{unit.path} {line_at(unit.path, offset)}"
            raise json_documents.not_document(location, value, column, holds_ids, kind)
        if isinstance(record.get(column), list) and isinstance(value, str) and value:
            say_of_list(unit.path, column)
        values.append(value)
    return b"" if None in values else joined(values)


def json_records(unit: Unit, file: Any, column: str | None = None) -> Iterator[tuple[int, object]]:
    """Yields (offset, record) of JSON lines, or of a .json file that is one array or one object over several lines.

    With `column` a line may give the UTF-8 of its text there, in place of the whole record.
    """
    if unit.stop is None and may_be_one_value(unit.path):
        head = file.peek(json_documents.HEAD_BYTES)[: json_documents.HEAD_BYTES]
        try:
            if json_documents.is_array(head):
                yield from json_documents.array_records(file)
                return
            if json_documents.is_over_lines(head):
                yield 0, json_documents.object_over_lines(file)
                return
        except json_documents.JsonError as error:
            location = line_at(unit.path, error.offset)
            raise RecordError(f"{unit.path} {location} is not JSON ({reason_of(error)}); correct it.") from None
    for offset, line in lines_of(unit, file):
        if column is not None:
            quick = _quick_record(line)
            value = None if quick is None else quick.get(column)
            if isinstance(value, str):
                yield offset, value.encode()
                continue
            if quick is not None and column not in quick:  # it may be inside another one: no line is read twice for it
                column = None
        text = decoded(unit, offset, line)
        if text and not text.isspace():
            yield offset, record_of(unit, offset, text)


def _quick_record(line: bytes) -> dict[str, Any] | None:
    """Returns the object of a line, of which only the texts may be used; None where json has to read the line.

    orjson takes a third to a half of json's time. It refuses some of what json reads (NaN, half of a surrogate pair),
    and our errors quote json's reasons. It rounds whole numbers of more than 64 bits, and reads 1,024 levels of
    nesting, where json of Python 3.11 ends before 1,000.
    """
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def record_of(unit: Unit, offset: int, text: str, number: int = 0) -> object:
    """Returns the value of a line of JSON; RecordError if it is not JSON. A number that is not given is counted."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = hint_on_array(unit.path) if text.lstrip()[:1] == "[" else ""
        if text.strip() == "{":
            hint = f"; an object over several lines: {json_documents.AS_LINES}"
        location = f"line {number}" if number else line_at(unit.path, offset)
        fix = None
        line_number = location.removeprefix("line ")
        if line_number.isdigit() and unit.stop:
            fix = in_place(unit.path, f"sed {line_number}d {{}}")
        raise RecordError(
            f"{unit.path} {location} is not JSON ({reason_for(error)}){hint or '; correct the line'}.", fix=fix
        ) from None


def hint_on_array(path: str) -> str:
    """Returns what to do about a value that is an array, where an object is read."""
    return "; its array holds arrays, and has to hold objects" if may_be_one_value(path) else ARRAY_HINT


def is_alone(unit: Unit, file: Any, number: int) -> bool:
    """Returns whether the record of a .json file that was read as its unit's `number`th, from 0, is its only one."""
    return unit.start == number == 0 and may_be_one_value(unit.path) and not file.peek(1).strip()


def rows_of_columns(unit: Unit, record: Mapping[str, Any], columns: Sequence[str]) -> list[dict[str, object]] | None:
    """Returns the rows of an object whose values are columns, as pandas and `datasets` read it; None if it is a row.

    It is one if a wanted column is a list of what a row may hold. A value that is not a list is repeated in every row.
    """
    record = {name: json_documents.without_index(value) for name, value in record.items()}
    if not any(json_documents.is_column(record, column) for column in columns):
        return None
    lengths = {name: len(value) for name, value in record.items() if isinstance(value, list)}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} {length:,}" for name, length in lengths.items())
        raise InputError(
            f"{unit.path} is one object of columns, which have different numbers of texts ({told}); give it as one"
            " object in each line, with the suffix .jsonl."
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
