"""Texts and pairs that a program holds, as rows of a JSON-lines file that a run reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from etils import epath

from limba.config import InputError, did_you_mean
from limba.storage.files import write_whole

SHORT = 20  # letters of a text without a space that may still be a sentence, as in Japanese


class _Table(Protocol):
    def __getitem__(self, name: str) -> Iterable[object]: ...


class Rows:
    """Rows of one or two texts, from a list, a pandas DataFrame, or a `datasets.Dataset`.

    `columns` are the names that the rows have in the file, each with the column that it is read from. A list holds
    texts for one column, pairs or dictionaries for two. Raises InputError, one sentence, for anything else.

    >>> Rows([("un", "one"), ("doi", "two")], {"inputs": "inputs", "targets": "targets"}).rows[1]
    {'inputs': 'doi', 'targets': 'two'}
    """

    def __init__(self, given: object, columns: Mapping[str, str]):
        self.what = "texts" if len(columns) == 1 else "pairs"
        items, names = _items(given, self.what, list(columns.values()))
        self.rows = [
            dict(zip(columns, self._row(number, item, names), strict=True)) for number, item in enumerate(items)
        ]
        if not self.rows:
            raise InputError(f"There are no {self.what}; give some thousands.")
        if not any(text.strip() for row in self.rows for text in row.values()):
            raise InputError(f"All {len(self.rows):,} {self.what} are empty; give some with letters.")
        texts = [row["text"] for row in self.rows] if self.what == "texts" else []
        if texts and not any(" " in text or len(text) > SHORT for text in texts):
            raise InputError(
                f"The texts are single words, such as {texts[0]!r}, and a model learns from their context; give whole"
                " sentences or documents, each one text of the list."
            )
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows)
        self.content = lines.encode("utf-8", "replace")  # halves of surrogate pairs are no text
        self.digest = hashlib.blake2b(self.content, digest_size=8).hexdigest()

    def _row(self, number: int, item: object, names: Sequence[str]) -> Sequence[str]:
        if isinstance(item, Mapping):
            if missing := [name for name in names if name not in item]:
                raise InputError(_without(f"Row {number} of the {self.what}", missing[0], list(map(str, item))))
            item = [item[name] for name in names]
        texts = [item] if self.what == "texts" and not isinstance(item, list) else item
        found = [text for text in texts if isinstance(text, str)] if isinstance(texts, list | tuple) else []
        if not isinstance(texts, list | tuple) or not len(found) == len(texts) == len(names):
            wanted = "a text" if self.what == "texts" else "two texts, (input, target), or a dictionary of them"
            raise InputError(f"Row {number} of the {self.what} is {item!r:.80}; give {wanted}.")
        return found

    def write(self, directory: str) -> str:
        """Writes the rows into a run's directory, once; returns the file's path, whose name holds their checksum.

        Raises InputError for the directory of a run on other texts.
        """
        folder, name = epath.Path(directory), f"{self.what}-{self.digest}.jsonl"
        others = [each.name for each in folder.glob("*-" + "[0-9a-f]" * 16 + ".jsonl")] if folder.exists() else []
        if others and name not in others:
            raise InputError(
                f"{directory} holds a run on other {self.what}, {others[0]}; give another model_dir, or the same"
                f" {self.what} to resume it."
            )
        if not others:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / name, self.content)
        return str(folder / name)


def _items(given: object, what: str, names: list[str]) -> tuple[Iterable[object], list[str]]:
    """Returns the rows of what is given, and the names of their columns."""
    columns = getattr(given, "column_names", getattr(given, "columns", None))
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable) or isinstance(columns, Mapping):
        of_files = "" if not isinstance(given, str) else "; limba.train reads files"
        wanted = "a DataFrame or a split of a datasets.DatasetDict" if isinstance(given, Mapping) else "a DataFrame"
        raise InputError(f"The {what} are a {type(given).__name__}; give a list of {what}, or {wanted}{of_files}.")
    if columns is None:
        return given, names
    table = cast("_Table", given)
    for name in names:
        if name not in columns:
            raise InputError(_without(f"The {type(given).__name__}", name, list(map(str, columns))))
    values = [list(table[name]) for name in names]
    return (values[0] if len(values) == 1 else zip(*values, strict=True)), names


def _without(what: str, name: str, columns: list[str]) -> str:
    argument = "text" if name == "text" else "inputs or targets"
    near = did_you_mean(name, columns)
    known = f"it has {', '.join(columns) or 'none'}: name one as {argument}"
    return f"{what} has no column {name!r}; {known}{near if near != '.' else '.'}"
