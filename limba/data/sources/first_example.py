"""The first example that a task makes of its documents: without one an endless reading would go on for ever."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import TypeVar

from limba.config import InputError
from limba.data.dataset import Dataset, Derived, Item, Place

T = TypeVar("T")
WITHOUT_AN_EPOCH = 100  # times as many documents, where nobody knows whether the source ends


class FirstExample:
    """Whether the preprocessors of a task have made an example of a shard's documents, and when they must have.

    `source` names the text in a sentence. After `most_documents` and an epoch there must be one; where it is not known
    that an epoch has ended, after `WITHOUT_AN_EPOCH` times as many. Shards that share `is_made` wait for one example of
    any of them.
    """

    def __init__(self, task: str, source: str, shard: int, most_documents: int, is_made: threading.Event | None = None):
        self._is_made = is_made or threading.Event()
        self._task = task
        self._source = source
        self._shard = shard
        self._most_documents = most_documents
        self._examples: Dataset | None = None
        self._num_held = 1  # elements that may wait in TensorFlow before one of them gets here

    @property
    def is_there(self) -> bool:
        return self._is_made.is_set()

    def note(self) -> None:
        """Notes that there is an example."""
        self._is_made.set()

    def note_held(self, dataset: Dataset, size: int) -> None:
        """Notes that a data set has an element, which waits until `size` of them leave TensorFlow at once.

        It is an example if no other step follows. Else this step may need so many epochs before the others get any.
        """
        if dataset is self._examples:
            self.note()
        self._num_held = size

    def note_given(self) -> None:
        """Notes that the elements which waited have left TensorFlow."""
        self._num_held = 1

    def of(self, examples: Dataset[T]) -> Dataset[T]:
        """Returns the examples; it is noted when they give one."""
        self._examples = examples
        return _Noted(self, examples)

    def check(self, num_documents: int, num_epochs: int) -> None:
        """Raises InputError if the first documents of so many whole epochs had to make an example, and have not."""
        if self.is_there:
            return
        most = self._most_documents * self._num_held
        where = f"in {num_epochs:,} epoch(s)"
        if num_epochs == 0:
            most *= WITHOUT_AN_EPOCH
            where = "and where its epochs end is not known"
        elif num_epochs < self._num_held:
            return
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
                self._first.note()
                yield item
        self._first.note()
        yield from items
