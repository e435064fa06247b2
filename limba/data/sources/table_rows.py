"""The rows of csv and tsv files, and the column that is read where none has the usual name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import IO

from limba.config import InputError
from limba.data.sources import json_documents, tables
from limba.data.sources.columns import check_names, joined, no_column
from limba.data.sources.failures import RecordError
from limba.data.sources.lines import decoded, lines_of
from limba.data.sources.listing import Unit
from limba.data.sources.notices import say_once

USUAL_COLUMN = "text"  # in whose place the first column of a csv file may stand
SHOWN_LETTERS = 60  # of a first line that is not a header


def table_texts(unit: Unit, file: IO[bytes], form: str, columns: Sequence[str]) -> Iterator[bytes]:
    header, rows = header_and_rows(unit, file, form)
    if header is None:
        return
    if columns == (USUAL_COLUMN,) and USUAL_COLUMN not in header and any(header):
        columns, rows = _first_column(unit, header, rows, form)
    places = list[int]()
    for column in columns:
        stored = json_documents.stored_name(column, header)
        if stored not in header:
            raise no_column(unit.path, column, header)
        check_names(unit.path, [name for name in header if name == stored])
        places.append(header.index(stored))
    if json_documents.are_ids(columns):
        raise json_documents.not_document(unit.path, "", columns[0], holds_ids=True)
    for _, row in rows:
        # A row, but not a document: `joined` keeps a lone blank, and bytes.isspace knows no U+3000.
        is_blank = len(row) == 1 and row[0].isspace()
        yield b"" if is_blank else joined([row[index] for index in places])


def header_and_rows(unit: Unit, file: IO[bytes], form: str) -> tuple[list[str] | None, Iterator[tuple[int, list[str]]]]:
    """Returns the header of csv or tsv, None for a file without rows, and the other rows, all as wide, with numbers."""
    numbered = table_rows(unit, file, form)
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


def table_rows(unit: Unit, file: IO[bytes], form: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of csv or tsv with their line numbers; says once how csv is separated, unless by commas."""
    lines = (decoded(unit, offset, line) for offset, line in lines_of(unit, file, keeps_ends=True))
    try:
        if form == "tsv":
            yield from tables.tsv_rows(lines)
            return
        dialect, rows = tables.csv_rows(lines)
        if dialect is not None and dialect != tables.Dialect():
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
