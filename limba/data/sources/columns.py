"""The texts of a row's columns as one document, and the columns that a file has."""

from __future__ import annotations

from collections.abc import Sequence

from limba.config import InputError
from limba.data.sources.failures import RecordError
from limba.data.sources.notices import say_once

FIELD_SEPARATOR = b"\0"  # between the texts of several columns, and removed from the texts


def joined(values: Sequence[str | bytes]) -> bytes:
    """Joins a row's texts with FIELD_SEPARATOR; returns b"" if one of several is empty."""
    # JSON may escape half of a surrogate pair.
    encoded = [value if isinstance(value, bytes) else value.encode(errors="replace") for value in values]
    if len(encoded) == 1:
        return encoded[0]
    if any(not text or text.isspace() for text in encoded):
        return b""
    return FIELD_SEPARATOR.join(text.replace(FIELD_SEPARATOR, b"") for text in encoded)


def not_utf8(location: str, column: str) -> RecordError:
    """Returns the error for bytes in a column of text that are not text."""
    return RecordError(
        f"{location} holds bytes in column {column!r} that are not text in UTF-8; set DataConfig.column to another one,"
        " or write the texts as UTF-8."
    )


def check_names(path: str, names: Sequence[str]) -> None:
    """Raises InputError for a name that two columns have."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{path} has {names.count(name)} columns {name!r}; give them other names.")


def no_column(path: str, column: str, columns: Sequence[str], kind: type[InputError] = InputError) -> InputError:
    """Returns the error for a column that is not there; it names those that are."""
    names = ", ".join(map(repr, columns)) or "none"
    fix = ("DataConfig.column", columns[0]) if columns else None
    return kind(f"{path} has no column {column!r}; it has {names}: set DataConfig.column to one of these.", fix=fix)


def say_of_list(path: str, column: str) -> None:
    say_once(
        f"{path.rpartition('/')[0]} {column} lists",
        f"{path} has lists of texts in column {column!r}: each is one document, with spaces between its texts. Without"
        f" this line: DataConfig.column '{column}[]'.",
    )
