"""The order of units and documents: pure functions of seed, epoch and shard."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np

from limba.config.errors import Fix

INTERLEAVED_UNITS = 16  # with 16 shards and chunks of 300 documents, neighbours are 75,000 documents apart
ENDLESS = 2**62


@dataclass(frozen=True)
class Reading:
    """What of a corpus is read, and in which order; `UnitSource.documents` says what each choice means."""

    split: str
    shard: int
    num_shards: int
    seed: int
    shuffle: bool
    num_epochs: int | None
    first_epoch: int
    traced: bool

    @property
    def is_endless(self) -> bool:
        return self.num_epochs is None

    @property
    def epochs(self) -> range:
        """The numbers of the epochs that are read; from a later first one there is at least one."""
        last = ENDLESS if self.num_epochs is None else self.num_epochs
        return range(self.first_epoch, max(last, self.first_epoch + (self.first_epoch > 0)))


def random_generator(purpose: str, *numbers: int) -> np.random.RandomState:
    """Returns a random generator that depends only on the purpose and the numbers."""
    # RandomState, whose numbers numpy promises never to change: an upgrade must not change a run's order.
    digest = hashlib.blake2b(repr((purpose, *numbers)).encode(), digest_size=16).digest()
    return np.random.RandomState(np.frombuffer(digest, "<u4"))


@functools.lru_cache(maxsize=16)
def unit_order(seed: int, epoch: int, num_units: int) -> np.ndarray:
    """Returns the permutation of the units in this epoch, int64 [num_units]."""
    return random_generator("units", seed, epoch).permutation(num_units)


def shard_of_row(row: int, unit: int, chunk: int, num_shards: int) -> int:
    """Returns the shard that takes a document, where there are fewer units than shards."""
    return (row + unit + chunk) % num_shards


class ShardsServed:
    """The data shards that find a document among those that were read."""

    def __init__(self, num_shards: int, num_units: int):
        self._num_shards, self._divides_rows = num_shards, num_units < num_shards
        self._served: set[int] = set()
        self.num_documents = 0

    def add(self, unit: int, chunk: int, num_documents: int) -> None:
        self.num_documents += num_documents
        if not self._divides_rows:
            # Each epoch gives a shard other units: it finds a document sooner or later.
            self._served = set(range(self._num_shards)) if num_documents else self._served
        elif not self.are_all:
            rows = range(min(num_documents, self._num_shards))
            self._served |= {shard_of_row(row, unit, chunk, self._num_shards) for row in rows}

    @property
    def are_all(self) -> bool:
        return len(self._served) == self._num_shards

    @property
    def first_without(self) -> int:
        return min(set(range(self._num_shards)) - self._served)


def fewer_shards(without: int) -> Fix:
    """Returns the fix for data shards of which the one of this number is the first without text."""
    return "DataConfig.num_data_shards", 1 << max((without // 2).bit_length() - 1, 0)
