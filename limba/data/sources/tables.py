"""The rows of csv and tsv: one reader, so that a file has the same rows in training, generation and results.

Csv is RFC 4180's, as Python's `csv`, pandas and `datasets` read it, but that a row of another width is an error: these
libraries fill it up, or take its first fields for an index. The first row names the columns, unless a caller knows
better. The separator is found from the first rows; see `dialect_of`.

Tsv has a row in each line and no quotes, but that a field which is wholly in quotes, as pandas writes one with a quote
in it, is read without them. One of its fields over several lines, which may be as wide as the header, is an error if
all lines but its first are indented by a tab, as code is: no library could tell others from text with a quotation over
several rows.
"""

from __future__ import annotations

import csv
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
SAMPLE_LETTERS = 1 << 16  # that are looked at for the separator
SAMPLE_ROWS = 20
# A first line with which Excel is told the separator, and which is not a row.
_SAYS_SEPARATOR = re.compile(r"\ufeff?\"?sep=([^\"\r\n])\"?\r?\n?", re.IGNORECASE)
MOST_NAME_LETTERS = 60  # of a column's name; a text has more
MOST_NAME_WORDS = 6
_BLANKS = " \t\r\n"  # of a line that pandas takes for blank
_WHOLLY_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
# Of a field in quotes over several lines: how it goes on, with its own quotes doubled, and how it ends.
_GOES_ON = re.compile(r'[^"]*(?:""[^"]*)*')
QUOTATION_ENDS = re.compile(_GOES_ON.pattern + r'"(?:\t.*)?')


class TableError(ValueError):
    """A row that cannot be read; the sentence says which, without the file."""


class Dialect(NamedTuple):
    """What stands between two fields, and whether a space behind it belongs to it."""

    separator: str = ","
    skips_space: bool = False


def dialect_of(lines: Sequence[str], is_cut: bool = False) -> Dialect:
    r"""Returns how the fields of csv are separated, by its first lines; `is_cut` if their last row may be cut.

    The separator is the one of , ; tab and | that cuts the header into the most fields, two at least, and the other
    rows into as many; without such a one that which cuts the header alone into the most; the comma where none does. A
    space behind it is not part of the fields if it precedes every name of the header but the first.

    >>> dialect_of(["id;text\n", "1;One, two, three\n"]), dialect_of(["text\n", "a;b\n"]).separator
    (Dialect(separator=';', skips_space=False), ',')
    >>> dialect_of(["id, text\n", "1, One\n"])
    Dialect(separator=',', skips_space=True)
    """
    best = (False, 1)
    chosen = Dialect()
    for separator in SEPARATORS:
        reader = csv.reader(iter(lines), delimiter=separator)
        try:
            rows = [row for row in itertools.islice(reader, SAMPLE_ROWS) if row]
        except csv.Error:
            continue
        if not rows or len(rows[0]) < 2:
            continue
        header, *others = rows
        if is_cut and others and reader.line_num == len(lines):
            others.pop()
        rank = (all(len(row) == len(header) for row in others), len(header))
        if rank > best:
            best = rank
            skips_space = separator != "\t" and all(name.startswith(" ") for name in header[1:])
            chosen = Dialect(separator, skips_space)
    return chosen


def csv_rows(lines: Iterator[str]) -> tuple[Dialect | None, Iterator[tuple[int, list[str]]]]:
    r"""Returns the dialect that the first rows of csv show, and the rows with the number of their last line.

    Blank lines are left out. A first line `sep=;`, which Excel reads, says the separator, whatever it is, and there is
    no dialect to find: None. `lines` have their ends, which may be in a field too. TableError for what is not csv,
    when it is read.
    """
    csv.field_size_limit(sys.maxsize)  # the library's default limit, 128 KiB, is too small for long documents
    first = next(lines, "")
    said = _SAYS_SEPARATOR.fullmatch(first)
    if said is not None:
        return None, _csv_rows(lines, Dialect(said[1]), lines_before=1)
    sample = list[str]()
    num_letters = 0
    for line in itertools.chain([first] if first else [], lines):
        sample.append(line)
        num_letters += len(line)
        if num_letters >= SAMPLE_LETTERS:
            break
    dialect = dialect_of(sample, is_cut=num_letters >= SAMPLE_LETTERS)
    return dialect, _csv_rows(itertools.chain(sample, lines), dialect)


def _csv_rows(lines: Iterator[str], dialect: Dialect, lines_before: int = 0) -> Iterator[tuple[int, list[str]]]:
    last = ""

    def noted() -> Iterator[str]:
        nonlocal last
        for line in lines:
            last = line
            yield line

    reader = csv.reader(noted(), delimiter=dialect.separator, skipinitialspace=dialect.skips_space, strict=True)
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            # The library's own words for a carriage return are advice for who opens a file in Python.
            has_return = "\r" in last.rstrip("\r\n")
            reason = "a carriage return stands alone in it" if has_return else str(error).rstrip(".")
            line = lines_before + reader.line_num
            raise TableError(f"line {line} is not csv ({reason}); correct the line.") from None
        if row is None:
            return
        # A field may be a space in quotes or a blank of Unicode's, and empty fields may have tabs between them.
        if len(row) > 1 or (row and last.strip(_BLANKS)):
            yield lines_before + reader.line_num, row


def tsv_rows(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    r"""Yields the rows of tab separated lines with their line numbers; blank lines are left out.

    >>> [*tsv_rows(iter(["text\tlabel\n", '"a ""b"" c"\t1\n', '"a" b\t2\r\n']))]
    [(1, ['text', 'label']), (2, ['a "b" c', '1']), (3, ['"a" b', '2'])]
    """
    opened = 0  # the line in which a quotation mark begins a field that may go on in the lines below, all indented
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\n").removesuffix("\r")
        if not line.strip(" "):
            continue
        if number == 1 and "\r" in line:
            raise TableError("line 1 has a carriage return alone, and would be the whole file; write line ends as \\n.")
        fields = line.split("\t")
        if opened and not line.startswith("\t"):
            opened = 0
        if opened and '"' in line:
            if QUOTATION_ENDS.fullmatch(line):
                raise TableError(
                    f"line {opened} begins a field in quotation marks that ends in line {number}, and a row of tsv is"
                    " one line; write the rows as csv or JSON lines."
                )
            if not _GOES_ON.fullmatch(line):
                opened = 0
        if not opened and fields[-1].startswith('"') and _GOES_ON.fullmatch(fields[-1], 1):
            opened = number
        if len(fields) == 1 and line.startswith('"') and not _WHOLLY_QUOTED.fullmatch(line):
            raise TableError(
                f"line {number} begins with a quotation mark that is not closed in it, and a row of tsv is one line;"
                " write the rows as csv or JSON lines."
            )
        yield number, [_unquoted(field) for field in fields]


def _unquoted(field: str) -> str:
    match = _WHOLLY_QUOTED.fullmatch(field) if field.startswith('"') else None
    return match[1].replace('""', '"') if match else field


def check_width(number: int, row: Sequence[str], header: Sequence[str]) -> None:
    """Raises TableError for a row that has not as many fields as the header."""
    if len(row) == len(header):
        return
    hint = "correct the line"
    if any(field.startswith('"') for field in row):
        hint = "correct the line: a field begins with a quotation mark"
    elif len(row) > len(header):
        hint = "put a field that has the separator in it into quotation marks"
    raise TableError(f"line {number} has {len(row)} fields and the header {len(header)}; {hint}.")


def is_prose(field: str) -> bool:
    """Returns whether a field of a header is a text, so that the file has no header.

    >>> is_prose("body"), is_prose("Text of the article"), is_prose("It was a dark night, and the rain fell.")
    (False, False, True)
    """
    field = field.strip()
    return len(field) > MOST_NAME_LETTERS or len(field.split()) > MOST_NAME_WORDS or field.endswith((".", "!", "。"))


def column_of_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> int | None:
    """Returns the index of the first column if it has most letters of the rows; None if another has more.

    >>> column_of_text(["body", "id"], [["One text", "1"]]), column_of_text(["id", "body"], [["1", "One text"]])
    (0, None)
    """
    counts = [0] * len(header)
    for row in rows:
        for index, field in enumerate(row[: len(header)]):
            counts[index] += sum(map(str.isalpha, field))
    return 0 if counts and counts[0] == max(counts) else None
