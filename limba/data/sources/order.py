"""The order of units and documents, and how many each shard reads: pure functions of seed, epoch and shard."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from limba.config.errors import Fix
from limba.data.draws import Draws, Purpose, Words


@dataclass(frozen=True)
class Counts:
    """The documents of each unit of a split, in order.

    `sizes` are the units' sizes. `chunks` are the sizes of each unit's chunks, where the corpus has been read, and ()
    if not; `sizes` are then what its files say, which may differ by documents that are empty or in another split.
    `left_out` are the numbers of the records of ArrayRecord files that are in no epoch.
    """

    sizes: tuple[int, ...]
    chunks: tuple[tuple[int, ...], ...] = ()
    left_out: tuple[int, ...] = ()
    is_exact: bool = True
    num_pieces: int = 0  # more than documents if long ones are read in pieces

    @functools.cached_property
    def total(self) -> int:
        return sum(self.sizes)

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Counts:
        """Returns the counts that `dataclasses.asdict` made plain, also after they were JSON."""
        lists = {name: tuple(plain[name]) for name in ("sizes", "left_out")}
        return Counts(**{**plain, **lists, "chunks": tuple(map(tuple, plain["chunks"]))})


def shares(total: int, epoch: int, offset: int, num_shards: int) -> np.ndarray:
    """Returns the number of documents that each shard has in an epoch, int64 [num_shards].

    Over any number of epochs they differ by at most one: documents are numbered through all epochs, from `offset` on,
    and number g counts for shard g mod `num_shards`.

    >>> [shares(10, epoch, 0, 4).tolist() for epoch in (0, 1)]
    [[3, 3, 2, 2], [2, 2, 3, 3]]
    """
    first = offset + epoch * total
    ends = np.array([first, first + total])[:, None] + (num_shards - 1 - np.arange(num_shards))
    return np.diff(ends // num_shards, axis=0)[0]


INTERLEAVED_UNITS = 16  # with 16 shards and chunks of 300 documents, neighbours are 75,000 documents apart
UNITS_OF_ALL_TASKS = 256  # that a shard has open, about
CHUNK_STRIDE = 101  # shards between chunks: where each has few documents, some chunks serve all shards
ENDLESS = 2**62
Row = TypeVar("Row", int, np.ndarray)


@dataclass(frozen=True)
class Reading:
    """What of a corpus is read, and in which order; see `UnitSource.documents`.

    A pass over other files than before begins with a later `first_epoch`, and has at least one epoch. `task` is the
    number of the task in a mixture. The order follows from `seed` and the task's name.
    """

    split: str
    shard: int
    num_shards: int
    seed: int
    shuffle: bool
    num_epochs: int | None
    first_epoch: int = 0
    task: int = 0
    name: str = ""

    def words(self, purpose: Purpose, epoch: int, number: int = 0) -> Words:
        """Returns the random words of an epoch's order, which are the same for all shards."""
        return Draws(self.seed, self.name, era=epoch).words(purpose, number)

    def unit_order(self, epoch: int, num_units: int) -> np.ndarray:
        """Returns the permutation of the units in an epoch, int64 [num_units]."""
        return _unit_order(Draws(self.seed, self.name, era=epoch), num_units)

    def chunk_order(self, epoch: int, unit: int, chunk: int, num_documents: int) -> np.ndarray:
        """Returns the permutation of the documents of a chunk in an epoch, int64 [num_documents]."""
        return self.words(Purpose.CHUNK, epoch, unit << 32 | chunk).permutation(num_documents)

    @property
    def is_endless(self) -> bool:
        return self.num_epochs is None

    @property
    def epochs(self) -> range:
        """The numbers of the epochs that are read; from a later first one there is at least one."""
        last = ENDLESS if self.num_epochs is None else self.num_epochs
        return range(self.first_epoch, max(last, self.first_epoch + (self.first_epoch > 0)))


@functools.lru_cache(maxsize=16)
def _unit_order(draws: Draws, num_units: int) -> np.ndarray:
    return draws.words(Purpose.UNITS).permutation(num_units)


def open_units(num_tasks: int) -> int:
    """Returns the units that a shard reads of a corpus at once, where so many tasks are read side by side."""
    return min(INTERLEAVED_UNITS, max(1, UNITS_OF_ALL_TASKS // num_tasks))


def shard_of_row(row: Row, unit: int, chunk: int, num_shards: int) -> Row:
    """Returns the shard that takes a document, or an array of them for many, where units are fewer than shards."""
    return (row + unit + CHUNK_STRIDE * chunk) % num_shards


def fewer_shards(without: int) -> Fix:
    """Returns the fix for data shards of which the one of this number is the first without text."""
    return "DataConfig.num_data_shards", 1 << max((without // 2).bit_length() - 1, 0)
