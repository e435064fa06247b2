"""How many documents the units of a split hold, and how many of them each data shard reads in an epoch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Counts:
    """The documents of each unit of a split, in order.

    `sizes` are those of the units. `chunks` are those of each unit's chunks, where the corpus has been read, and () if
    not; `sizes` are then what its files say, which may differ by documents that are empty or in another split.
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

    @property
    def has_rows(self) -> bool:
        """True if a document that gives one row is read in one piece, as far as it is known."""
        return self.num_pieces <= self.total

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


def chunk_starts(chunks: Sequence[int]) -> list[int]:
    """Returns the number of documents before each chunk, and at the end the number of all.

    >>> chunk_starts([3, 4])
    [0, 3, 7]
    """
    return [0, *itertools.accumulate(chunks)]
