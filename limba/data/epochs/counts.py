"""How many documents the units of a corpus hold: read from small local files, else from what the files say themselves.

A count of a few hundred megabytes takes seconds and is kept beside the run. Larger corpora are not read: parquet, TFDS
and ArrayRecord know their rows; for others there is no count.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from limba.config import ConfigError
from limba.data.sources.array_record import ArrayRecordSource
from limba.data.sources.compression import COMPRESSIONS
from limba.data.sources.readers import Unit, file_format
from limba.data.sources.tfds import TfdsSource
from limba.data.sources.units import PIECE_BYTES, UnitSource

COUNTED_BYTES = 1 << 29  # of local files that are read to be counted: some ten seconds; compressed ones weigh fivefold
CHOSEN_BYTES = 1 << 32  # of text that is read at most to find a run's first documents


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

    def plain(self) -> dict[str, Any]:
        """Returns the counts as JSON."""
        return {
            "sizes": self.sizes,
            "chunks": self.chunks,
            "left_out": self.left_out,
            "is_exact": self.is_exact,
            "num_pieces": self.num_pieces,
        }

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Counts:
        """Returns what `plain` has given."""
        return Counts(
            tuple(plain["sizes"]),
            tuple(map(tuple, plain["chunks"])),
            tuple(plain["left_out"]),
            plain["is_exact"],
            plain["num_pieces"],
        )


def count(source: UnitSource, split: str, most: int | None = None) -> Counts | None:
    """Returns the counts of a split, with `most` those of its first so many documents; None if they are not known.

    Raises InputError for a corpus that cannot be read, and ConfigError if its first documents are too much text.
    """
    units = source.units(split)
    if isinstance(source, ArrayRecordSource):
        return _count_records(source, split, units, most)
    if most is not None or _is_small(units, source, split):
        return _read(source, split, units, most)
    if isinstance(source, TfdsSource):
        return _claimed(source, split, [(unit.stop or 0) - unit.start for unit in units])
    if units and all(file_format(unit.path)[0] == "parquet" for unit in units):
        return _claimed(source, split, source.parquet_rows(units))
    return None


def _claimed(source: UnitSource, split: str, sizes: Sequence[int]) -> Counts | None:
    """Returns counts from what the files say; a part that is carved out by hash is estimated."""
    percent = source.carved_percent(split)
    if percent:
        share = 1.0 - percent / 100 if split == "train" else percent / 100
        sizes = [round(size * share) for size in sizes]
    return Counts(tuple(sizes), is_exact=False) if sum(sizes) else None


def _is_small(units: Sequence[Unit], source: UnitSource, split: str) -> bool:
    if isinstance(source, TfdsSource) or any("://" in unit.path for unit in units):
        return False
    weights = 0
    for file in source.listed(split):
        if file.size is None:
            return False
        weights += file.size * (5 if file.path.lower().endswith(tuple(COMPRESSIONS)) else 1)
    return weights <= COUNTED_BYTES


def _read(source: UnitSource, split: str, units: Sequence[Unit], most: int | None) -> Counts | None:
    """Returns the counts of the documents, all of them or the first `most`, by reading them."""
    chunks: list[tuple[int, ...]] = []
    left, num_pieces, num_bytes = most, 0, 0
    for unit in units:
        found: list[int] = []
        for documents in () if left == 0 else source.chunks(split, unit):
            documents = documents if left is None else documents[:left]
            left = None if left is None else left - len(documents)
            found.append(len(documents))
            num_pieces += sum(len(source.pieces(text)) if len(text) > PIECE_BYTES else 1 for text in documents)
            num_bytes += sum(map(len, documents))
            if left is not None and left > 0 and num_bytes > CHOSEN_BYTES:
                raise ConfigError(
                    "DataConfig.max_examples",
                    f"is {most:,}, and the first {(most or 0) - left:,} documents of {source.name} are"
                    f" {num_bytes >> 30} GiB of text already, which every start would read; give fewer, or files that"
                    " hold only these.",
                )
            if left == 0:
                break
        chunks.append(tuple(found))
    sizes = tuple(map(sum, chunks))
    return Counts(sizes, tuple(chunks), num_pieces=num_pieces) if sum(sizes) else None


def _count_records(source: ArrayRecordSource, split: str, units: Sequence[Unit], most: int | None) -> Counts | None:
    """Returns the counts of ArrayRecord files: which records are left out, if that is known or quickly read."""
    total, is_read = sum((unit.stop or 0) - unit.start for unit in units), most is not None
    if not is_read and (not source.is_carved(split) or not source.carved_percent(split)):
        # Without reading them, no record counts as empty; see `_is_small`.
        is_read = _is_small(units, source, split)
        if not is_read:
            return Counts((total,), is_exact=False) if total else None
    if not is_read and not _is_small(units, source, split):
        return None
    left_out, kept, num_pieces = list[int](), 0, 0
    for number, text in source.records_in_order(split):
        if kept == most:
            break
        if text and source.filtered(split, [text]):
            kept += 1
            num_pieces += len(source.pieces(text))
        else:
            left_out.append(number)
    return Counts((kept,), left_out=tuple(left_out), num_pieces=num_pieces) if kept else None


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
