"""The first example that a task makes of its documents: without one an endless reading would go on for ever."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeVar

from limba.config import InputError
from limba.data.dataset import Dataset, Derived, Item, Place

T = TypeVar("T")
WITHOUT_AN_EPOCH = 10  # times as many documents, where nobody knows whether the source ends


class FirstExample:
    """Whether the preprocessors of a task have made an example of a shard's documents, and when they must have.

    `source` names the text in a sentence. After `most_documents` and an epoch there must be one.
    """

    def __init__(self, task: str, source: str, shard: int, most_documents: int):
        self.is_there = False
        self._task = task
        self._source = source
        self._shard = shard
        self._most_documents = most_documents

    def of(self, examples: Dataset[T]) -> Dataset[T]:
        """Returns the examples; it is noted when they give one."""
        return _Noted(self, examples)

    def check(self, num_documents: int, num_epochs: int) -> None:
        """Raises InputError if the first documents of so many whole epochs had to make an example, and have not."""
        if self.is_there:
            return
        most = self._most_documents
        where = f"in {num_epochs:,} epoch(s)"
        if num_epochs == 0:
            most *= WITHOUT_AN_EPOCH
            where = "before the end of an epoch"
        if num_documents < most:
            return
        raise InputError(
            f"{self._source} gives no row: the preprocessors of task {self._task} have made none of the"
            f" {num_documents:,} documents that data shard {self._shard} has read of it, {where}; give text that they"
            " keep, or other preprocessors."
        )


class _Noted(Derived[T, T]):
    def __init__(self, first: FirstExample, parent: Dataset[T]):
        super().__init__(parent, None, parent.cardinality)
        self._first = first

    def read(self, place: Place = None) -> Iterator[Item[T]]:
        items = self._parent.read(place)
        if place is None:
            for item in itertools.islice(items, 1):
                self._first.is_there = True
                yield item
        self._first.is_there = True
        yield from items
