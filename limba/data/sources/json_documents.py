"""Documents of several lines or columns: JSON files that are one array, nested columns, lists."""

from __future__ import annotations

import array
import contextlib
import json
import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from limba.config import InputError
from limba.config.untrusted_files import reason_for

TOKENS = "tokens"  # a column of documents tokenized beforehand: int32 ids as bytes, or a list of them
HEAD_BYTES = 4096  # that say whether a file is one array
PIECE_BYTES = 1 << 20  # read at a time
MOST_BYTES = 1 << 28  # of one record
AS_LINES = "write one object in each line, as jq -c . does"
# [{…}, …], ["…", …], or an object with that array under "data", which few short values may precede.
_VALUE = rb'(?:"[^"]*"|[-\d.eE]+|true|false|null)'
_ARRAY = re.compile(
    rb'(?:\xef\xbb\xbf)?\s*(?:\{\s*(?:"[^"]*"\s*:\s*' + _VALUE + rb'\s*,\s*)*"data"\s*:\s*)?\[\s*(?=[\{"\]])'
)
_WHITE = re.compile(r"[ \t\r\n]*")  # JSON's own white space
_OVER_LINES = re.compile(rb"(?:\xef\xbb\xbf)?\s*\{[ \t\r]*\n")  # a line of JSON lines is never a bracket alone


class JsonError(ValueError):
    """Text that is not JSON; `offset` is its place in the file, in bytes."""

    def __init__(self, reason: str, offset: int):
        super().__init__(reason)
        self.offset = offset


def is_array(head: bytes) -> bool:
    """Returns whether a file that begins like this is one array of records, or an object with one as "data".

    >>> is_array(b'[{"text": "a"}]'), is_array(b'{"version": "1", "data": [{"text": "a"}]}'), is_array(b'{"text": "a"}')
    (True, True, False)
    """
    match = _ARRAY.match(head)
    # A line {"data": ["word", …]} is a record with a list of words.
    return match is not None and not (b"{" in match[0] and head[match.end() : match.end() + 1] == b'"')


def is_over_lines(head: bytes) -> bool:
    """Returns whether a file that begins like this is an object over several lines, as json.dump(indent=2) writes it.

    >>> is_over_lines(b'{\\n  "text": ["a"]}'), is_over_lines(b'{"text": "a"}\\n')
    (True, False)
    """
    return _OVER_LINES.match(head) is not None


def object_over_lines(file: IO[bytes]) -> Mapping[str, object]:
    """Returns the one object of a file. JsonError for a file of several, that is too long, and for bad JSON."""
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise JsonError(f"it is one object of more than {MOST_BYTES >> 20} MiB; {AS_LINES}", 0)
    text, _ = _whole_text(data.removeprefix(b"\xef\xbb\xbf"), 0, True)
    start = len(text) - len(text.lstrip())
    try:
        record, end = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, len(text[: error.pos].encode())) from None
    except (ValueError, RecursionError) as error:
        raise JsonError(reason_for(error), 0) from None
    if text[end:].strip():
        raise JsonError(f"another value follows its first object; {AS_LINES}", len(text[:end].encode()))
    return record


def array_records(file: IO[bytes]) -> Iterator[tuple[int, object]]:
    """Yields (offset in bytes, record) of a file that is one array, in bounded memory. JsonError for bad JSON."""
    head = file.read(HEAD_BYTES)
    match = _ARRAY.match(head)
    assert match is not None, "is_array has seen it"
    offset = match.end()
    decoder = json.JSONDecoder()
    data = head[offset:]
    is_over = False
    is_first = True
    while True:
        text, rest = _whole_text(data, offset, is_over)
        used = 0
        while True:
            position = _past_white(text, used)
            if text[position : position + 1] == "]":
                position += 1
                end = offset + len(text[:position].encode())
                _check_end(text[position:].encode() + rest, file, b"{" in match[0], end)
                return
            has_comma = text[position : position + 1] == ","
            if position < len(text) and has_comma == is_first:
                reason = "a comma before its first record" if is_first else "two of its records have no comma between"
                raise JsonError(reason, offset + len(text[:position].encode()))
            position = _past_white(text, position + has_comma)
            try:
                record, end = decoder.raw_decode(text, position)
            except (ValueError, RecursionError) as error:
                if is_over or len(data) > MOST_BYTES:
                    reason = str(error).split(":")[0] if position < len(text) else "it ends within the array"
                    raise JsonError(reason, offset + len(text[:position].encode())) from None
                break
            if end == len(text) and not is_over and not isinstance(record, list | dict | str):
                break  # a number may continue
            yield offset + len(text[:used].encode()) if position < 1 << 16 else offset, record
            used = end
            is_first = False
        consumed = len(text[:used].encode())
        offset += consumed
        data = text[used:].encode() + rest
        more = file.read(max(PIECE_BYTES, len(data)))  # twice as much each time for a long record
        is_over = not more
        data += more


def _past_white(text: str, position: int) -> int:
    """Returns the first place from this one on that is not white space."""
    match = _WHITE.match(text, position)
    return match.end() if match else position


def _check_end(data: bytes, file: IO[bytes], is_in_object: bool, offset: int) -> None:
    """Raises JsonError for what may not follow an array: anything, or what does not end the object around it.

    `data` is what was read of it, from `offset` on; the rest is still in the file.
    """
    if not is_in_object:
        while data:
            if data.strip(b" \t\r\n"):
                raise JsonError(f"another value follows its array; {AS_LINES}", offset)
            data = file.read(PIECE_BYTES)
        return
    data += file.read(MOST_BYTES)
    try:
        json.loads(b'{"data": 0' + data)
    except (ValueError, RecursionError) as error:
        raise JsonError(f"what follows its array does not end the object: {reason_for(error)}", offset) from None


def _whole_text(data: bytes, offset: int, is_over: bool) -> tuple[str, bytes]:
    """Returns the text of the bytes, and the bytes of a letter that is cut at their end."""
    try:
        return data.decode("utf-8"), b""
    except UnicodeDecodeError as error:
        if is_over or error.start < len(data) - 3:
            raise JsonError("it is not UTF-8; convert it, for instance with iconv", offset + error.start) from None
        return data[: error.start].decode("utf-8"), data[error.start :]


def value_at(record: Mapping[str, object], column: str, holds_ids: bool = False) -> object:
    """Returns a column's value as `flat` makes it; KeyError if the record lacks it.

    >>> value_at({"translation": {"en": "a", "ro": "b"}}, "translation.ro"), value_at({"words": ["a", "b"]}, "words")
    ('b', 'a b')
    """
    name = stored_name(column)
    if name not in record and "." in name:
        first, _, rest = column.partition(".")
        inner = record[first]
        if inner is None:
            return None
        if not isinstance(inner, Mapping):
            raise KeyError(column)
        return value_at(inner, rest, holds_ids)
    return flat(record[name], holds_ids)


def without_index(value: object) -> object:
    """Returns the values of {"0": …, "1": …}, by which pandas.DataFrame.to_json writes a column, as a list."""
    if isinstance(value, Mapping) and value and all(name.isdecimal() for name in value):
        return [*value.values()]
    return value


def is_column(record: Mapping[str, object], column: str) -> bool:
    """Returns whether a value of an object is a column: a list of texts and nulls, or of what texts are taken from.

    >>> is_column({"text": ["a", None]}, "text"), is_column({"words": ["a", "b"]}, "words[]")
    (True, False)
    >>> is_column({"words": [["a"], ["b"]]}, "words[]"), is_column({"pairs": [{"en": "a"}]}, "pairs.en")
    (True, True)
    """
    name = stored_name(column)
    is_list = column == TOKENS or name != column  # in each row
    kinds: tuple[type, ...] = (list,) if is_list else (str, list)
    if name not in record and "." in name:
        name = name.partition(".")[0]
        kinds = (Mapping,)
    values = record.get(name)
    if not isinstance(values, list):
        return False
    present = [entry for entry in values if entry is not None]
    return any(bool(present) and all(isinstance(entry, kind) for entry in present) for kind in kinds)


def stored_name(column: str, there: Container[str] = ()) -> str:
    """Returns a column's name in the file: `words[]` are the words of the column `words`, as one text.

    Of the columns that are `there` one may be called so itself.
    """
    return column if column in there else column.removesuffix("[]")


def numbers_as_text(value: object) -> object:
    """Returns a number, or a list of them, as text: so labels and scores are often stored beside a text.

    NaN alone is None: pandas writes it for a value that is missing. Infinity stays a number.

    >>> numbers_as_text(4.5), numbers_as_text([1, 0]), numbers_as_text("a"), numbers_as_text(float("nan"))
    ('4.5', '1 0', 'a', None)
    """
    if isinstance(value, float) and math.isnan(value):
        return None
    numbers = value if isinstance(value, list) else [value]
    return " ".join(map(str, numbers)) if all(map(_is_finite, numbers)) else value


def _is_finite(number: object) -> bool:
    if isinstance(number, float):
        return math.isfinite(number)
    return isinstance(number, int) and not isinstance(number, bool)


def shortest(number: float, kind: type[np.floating]) -> float:
    """Returns a number of 16 or 32 bits with the digits that it was written with, not with all that 64 bits show.

    >>> float(np.float32(3.8)), shortest(float(np.float32(3.8)), np.float32)
    (3.799999952316284, 3.8)
    """
    return float(str(kind(number)))


def are_ids(columns: Sequence[str]) -> bool:
    """Returns whether documents are read as ids, not as text: where `tokens` is the one column."""
    return list(columns) == [TOKENS]


def flat(value: Any, holds_ids: bool = False) -> Any:
    r"""Returns a list of words as text with spaces between; of a column of ids, a list of them as int32 bytes.

    >>> flat(["to", "be"]), flat([5, 1], holds_ids=True), flat(["to", "be"], holds_ids=True), flat([1])
    ('to be', b'\x05\x00\x00\x00\x01\x00\x00\x00', ['to', 'be'], [1])
    """
    if not isinstance(value, list):
        return value
    if not value:
        return b"" if holds_ids else ""
    if holds_ids and _are_numbers(value):
        with contextlib.suppress(OverflowError):  # `not_document` says it
            return array.array("i", value).tobytes()
    if not holds_ids and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(number, int) and not isinstance(number, bool) for number in values)


def is_document(value: object, holds_ids: bool) -> bool:
    """Returns whether what `flat` has made of a value can be read: text, of a column of ids their bytes, or null."""
    return value is None or isinstance(value, bytes if holds_ids else str)


def not_document(
    location: str, value: object, column: str, holds_ids: bool, kind: type[InputError] = InputError
) -> InputError:
    """Returns the error for a value that is not text, or not ids in a column of ids."""
    name = type(value).__name__
    held = f"{name} in column {column!r}, not {'ids' if holds_ids else 'text'}"
    better = "another one"
    if holds_ids and isinstance(value, str):
        held = f"text in column {column!r}, a name for ids"
        better = f"'{column}[]'"
    elif holds_ids and isinstance(value, list):
        if _are_numbers(value):
            held = f"a number in column {column!r} that is not an int32 id"
        elif any(isinstance(word, str) for word in value):
            held = f"words in column {column!r}, a name for ids"
            better = f"'{column}[]'"
    return kind(f"{location} holds {held}; set DataConfig.column to {better}.", field="DataConfig.column")
