"""The names and texts of the documents that a batch was made of."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from limba.config import InputError
from limba.data.dataset import Document
from limba.data.objectives.choice import is_without_tensorflow
from limba.data.sources.columns import FIELD_SEPARATOR
from limba.data.sources.json_documents import TOKENS
from limba.data.sources.readers import chunk_bytes
from limba.data.sources.units import UnitSource
from limba.data.stream.shard import Recipe
from limba.data.vocabulary.shifted import published_of
from limba.data.vocabulary.vocabularies import Vocabulary


@dataclass(frozen=True)
class NamedDocument:
    """A document that gave tokens of a row. A long one is read in pieces: `text` has those that gave tokens.

    `row` is its number in its unit, from 0. After a preprocessor in TensorFlow `is_exact` is False: the document was
    read shortly before the row was made, and may have given none of its tokens. Of a source of others only the epoch
    and the number in it are known, and `text` is empty.
    """

    source: str  # the task that reads it
    unit: str  # a file, a range of its bytes, or a row group; an epoch of a source of others
    row: int
    text: str
    is_exact: bool = True

    @property
    def short(self) -> str:
        return short_name(self.unit, self.row)


class BatchDocuments(NamedTuple):
    """The documents of each row of a batch, by shard, and the recipe by which they were read."""

    by_shard: Mapping[int, Sequence[Sequence[Document]]]
    recipe: Recipe | None

    def of_row(self, shard: int, row: int, most_bytes: int | None = None) -> Iterator[NamedDocument]:
        """Yields the documents of a row; reads their units up to them, and raises what their source raises.

        With `most_bytes` a document with more of its unit before it, as in a large compressed file, is left out, and
        InputError is raised after the others.
        """
        of_rows = self.by_shard.get(shard, ())
        if self.recipe is None or row >= len(of_rows):
            return
        yield from named(self.recipe, of_rows[row], most_bytes)

    def some(self, most: int, most_bytes: int) -> tuple[list[str], int]:
        """Returns (short names of the first documents, how many others there are), of the shards of this process.

        A document that cannot be named, such as one behind `most_bytes` of its unit, is one of the others: whoever asks
        has something worse to say.
        """
        firsts = dict[tuple[int, ...], Document]()  # without the other pieces of a document
        for of_shard in self.by_shard.values():
            for document in itertools.chain.from_iterable(of_shard):
                firsts.setdefault(_key(document), document)
        shown = list[str]()
        if self.recipe is not None:
            for document in itertools.islice(firsts.values(), most):
                with contextlib.suppress(Exception):
                    shown += [found.short for found in named(self.recipe, [document], most_bytes)]
        return shown, len(firsts) - len(shown)


NO_DOCUMENTS = BatchDocuments({}, None)


def short_name(unit: str, row: int) -> str:
    """Returns the name of a document for a sentence.

    >>> short_name("data/part-07.jsonl", 81204)
    'part-07.jsonl, document 81,204'
    """
    return f"{unit.rpartition('/')[2]}, document {row:,}"


def in_parentheses(names: Sequence[str], num_more: int) -> str:
    """Returns some names of documents in parentheses, with how many others there are; "" without names.

    >>> in_parentheses(["a.jsonl, document 3", "a.jsonl, document 9"], 12)
    ' (a.jsonl, document 3; a.jsonl, document 9; and 12 more)'
    """
    if not names:
        return ""
    more = f"; and {num_more:,} more" if num_more else ""
    return f" ({'; '.join(names)}{more})"


def _key(document: Document) -> tuple[int, int, int, int]:
    """Returns what the pieces of a document have in common."""
    return document.task, document.unit, document.chunk, document.row


def named(recipe: Recipe, documents: Iterable[Document], most_bytes: int | None = None) -> Iterator[NamedDocument]:
    """Yields the documents with their names and texts, the pieces of one document together; see `of_row`."""
    pieces: dict[tuple[int, int, int, int], list[int]] = {}
    for document in documents:
        pieces.setdefault(_key(document), []).append(document.piece)
    too_far = None
    for (number, unit, chunk, row), read in pieces.items():
        part = recipe.parts[number]
        source = recipe.sources.get(part.name)
        is_exact = is_without_tensorflow(part)
        if source is None:
            yield NamedDocument(part.name, f"epoch {unit + 1} of task {part.name}", row, "", is_exact)
            continue
        before = chunk * chunk_bytes(source.num_tasks)
        if most_bytes is not None and before > most_bytes:
            unit_of_document = source.units(recipe.config.train_split)[unit]
            too_far = InputError(
                f"one of them lies behind {before >> 20:,} MB of {unit_of_document.name}, which is read from its"
                " beginning; inspect the step to have it named."
            )
            continue
        unit_name, row_of_unit, content = source.document(recipe.config.train_split, unit, chunk, row)
        parts = source.pieces(content)
        if max(read) >= len(parts):
            raise InputError(
                f"document {row_of_unit:,} of {unit_name} is shorter than when it was read; restore the original file."
            )
        between = b"" if source.keys == (TOKENS,) else b" "  # ids are cut anywhere, and are 4 bytes each
        text = between.join(parts[piece] for piece in dict.fromkeys(read))
        vocabulary = part.output_features["targets"].vocabulary
        text_of_document = _text(source, text, vocabulary)
        yield NamedDocument(part.name, unit_name, row_of_unit, text_of_document, is_exact)
    if too_far is not None:
        raise too_far


def _text(source: UnitSource, document: bytes, vocabulary: Vocabulary) -> str:
    if source.keys == (TOKENS,):
        return published_of(vocabulary).decode(np.frombuffer(document, "<i4").tolist())
    return document.replace(FIELD_SEPARATOR, b"\t").decode(errors="replace")
