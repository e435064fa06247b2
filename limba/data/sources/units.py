"""Sources that are read in units; their order is a pure function of the data position, which is saved.

An epoch is a permutation of units divided among shards. A shard interleaves 16 of its units and permutes
the documents inside each chunk. All of it follows from (seed, epoch, unit, chunk): there is no
shuffle buffer, and a saved data position holds indices and not text.

A shard reads whole units, or an even share of the documents, one by one. Dealt evenly, an epoch is a permutation of the
units, and of the documents inside each chunk; each shard has a contiguous part of that order, so a unit is read by one
shard, or by two where a part ends inside it, and shards differ by one document at most.
"""

from __future__ import annotations

import abc
import copy
import functools
import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from limba.config import ConfigError, InputError
from limba.data.dataset import TEXT, Counted, Dataset, State
from limba.data.sources import order
from limba.data.sources.order import Counts, Reading
from limba.data.sources.readers import Unit, say_once
from limba.data.sources.splits import DOCUMENT, Column, Splits

DOCUMENTS_NOTED = 32  # at once, for the progress
MOST_EMPTY_UNITS = 10_000  # in a row, of a shard with fewer units; seconds


class Parts(abc.ABC):
    """The parts of units that one shard reads in each epoch, each chunk by chunk."""

    def __init__(self, source: Splits, reading: Reading):
        self.source, self.reading = source, reading

    def anew(self) -> Self:
        """Returns these parts for another reading of the same shard."""
        return copy.copy(self)

    @property
    def width(self) -> int:
        """The units that are interleaved."""
        return order.INTERLEAVED_UNITS

    @abc.abstractmethod
    def num_parts(self, epoch: int) -> int:
        """Returns the number of units of which the shard reads a part in an epoch."""

    def first_chunk(self, epoch: int, index: int) -> int:
        """Returns the chunk in which a part of a unit begins."""
        del epoch, index
        return 0

    @abc.abstractmethod
    def has_chunk(self, epoch: int, index: int, chunk: int) -> bool:
        """Returns whether a part of a unit has documents in this chunk, or in a later one."""

    @abc.abstractmethod
    def documents(self, epoch: int, index: int, chunk: int) -> list[dict[str, bytes]]:
        """Returns the shard's documents of a chunk, permuted, as `Splits.elements` does."""


class Documents(Dataset):
    """The documents of a shard's parts of units, in all epochs: of several units at a time, one document from each.

    They come as tf.data's `interleave` gives them: a unit that ends is followed by the next one in its place.
    """

    def __init__(self, parts: Parts):
        names = [*parts.source.keys, *([DOCUMENT] if parts.reading.traced else ())]
        super().__init__(dict.fromkeys(names, TEXT))
        self._parts, self._epochs = parts, parts.reading.epochs
        self._width = parts.width if parts.reading.shuffle else 1
        self._begin()

    def _begin(self) -> None:
        self._place = 0  # in the epochs
        self._begin_epoch()

    def anew(self) -> Self:
        other = super().anew()
        other._parts = self._parts.anew()
        return other

    def _begin_epoch(self) -> None:
        self._num_parts: int | None = None  # of the epoch
        self._next = self._turn = 0  # the next part, and the place of which a document is next
        # In each place the part, its chunk, and the documents given of the chunk.
        self._open: list[list[int] | None] = [None] * self._width
        self._chunks: list[list[dict[str, bytes]] | None] = [None] * self._width

    def __next__(self) -> dict[str, bytes]:
        while self._place < len(self._epochs):
            turn = self._turn
            if self._open[turn] is not None:
                document = self._document(turn)
                self._turn = (turn + 1) % self._width
                if document is not None:
                    return document
                self._open[turn] = None
                continue
            epoch = self._epochs[self._place]
            if self._num_parts is None:
                self._num_parts = self._parts.num_parts(epoch)
            if self._next < self._num_parts:
                self._open[turn] = [self._next, self._parts.first_chunk(epoch, self._next), 0]
                self._next += 1
            elif any(part is not None for part in self._open):
                self._turn = (turn + 1) % self._width
            else:
                self._place += 1
                self._begin_epoch()
        raise StopIteration

    def _document(self, turn: int) -> dict[str, bytes] | None:
        """Returns the next document of the part in a place; None at its end."""
        part, epoch = self._open[turn], self._epochs[self._place]
        assert part is not None  # as the caller has seen
        while True:
            chunk = self._chunks[turn]
            if chunk is None:
                if not self._parts.has_chunk(epoch, part[0], part[1]):
                    return None
                chunk = self._chunks[turn] = self._parts.documents(epoch, part[0], part[1])
            if part[2] < len(chunk):
                part[2] += 1
                return chunk[part[2] - 1]
            self._chunks[turn] = None
            part[1], part[2] = part[1] + 1, 0

    def state(self) -> State:
        opened = [part and part.copy() for part in self._open]
        return {"place": self._place, "next": self._next, "turn": self._turn, "open": opened}

    def restore(self, state: State) -> None:
        self._place = state["place"]
        self._begin_epoch()
        self._next, self._turn = state["next"], state["turn"]
        self._open = [part and list(part) for part in state["open"]]


class ShardUnits(Parts):
    """The parts of units of files."""

    def __init__(self, source: Splits, reading: Reading):
        super().__init__(source, reading)
        self.units = source.units(reading.split)

    def documents(self, epoch: int, index: int, chunk: int) -> list[dict[str, bytes]]:
        number, texts, rows = self.chosen(epoch, index, chunk)
        names = (f"{number} {chunk} {row}".encode() for row in rows) if self.reading.traced else None
        return self.source.elements((texts[row] for row in rows), names)

    @abc.abstractmethod
    def chosen(self, epoch: int, index: int, chunk: int) -> tuple[int, list[bytes], Sequence[int] | np.ndarray]:
        """Returns (number of the unit, documents of the chunk, which of them the shard reads, in order)."""


class WholeUnits(ShardUnits):
    """Each unit in one shard; if there are fewer units than shards, every shard takes its own rows of all of them."""

    def __init__(self, source: Splits, reading: Reading):
        super().__init__(source, reading)
        total, num_shards = len(self.units), reading.num_shards
        self._divides_rows = total < num_shards
        self._count = total if self._divides_rows else len(range(reading.shard, total, num_shards))
        if self._divides_rows and num_shards > 1:
            say_once(
                "fewer units than shards",
                f"{source.name} has {total} unit(s) in split {reading.split!r} and {num_shards} data shards: every"
                " shard reads all of them and takes its own documents. With more or larger files each shard would read"
                " only its own units.",
            )
        if total == 0 and reading.is_endless:
            raise InputError(
                f"{source.name} holds no document in split {reading.split!r}; give files with text in them."
            )
        # Units opened since the last document, to notice an endless data set without any. A long line makes many empty
        # units, and by chance a shard may have none but these in several epochs.
        self._opened = 0
        self._most_opened = 2 * self._count + max(order.INTERLEAVED_UNITS, min(64 * self._count, MOST_EMPTY_UNITS))

    def anew(self) -> Self:
        other = super().anew()
        other._opened = 0
        return other

    @property
    def width(self) -> int:
        return min(order.INTERLEAVED_UNITS, max(self._count, 1))

    def num_parts(self, epoch: int) -> int:
        return self._count

    def _unit_at(self, epoch: int, index: int) -> tuple[int, Unit]:
        reading = self.reading
        place = index if self._divides_rows else reading.shard + index * reading.num_shards
        number = int(order.unit_order(reading.seed, epoch, len(self.units))[place]) if reading.shuffle else place
        return number, self.units[number]

    def has_chunk(self, epoch: int, index: int, chunk: int) -> bool:
        source, reading = self.source, self.reading
        _, unit = self._unit_at(epoch, index)
        if chunk == 0:
            self._opened += 1
            if reading.is_endless and self._opened > self._most_opened:
                raise InputError(
                    f"{source.name} has no document for data shard {reading.shard} of {reading.num_shards} in split"
                    f" {reading.split!r}; set DataConfig.num_data_shards lower, or give more documents.",
                    fix=order.fewer_shards(reading.shard),
                )
        exists = source.read_whole(reading.split, unit, chunk) is not None
        if not exists:  # units end roughly in the order of opening
            source.note_progress(reading.split, reading.shard, epoch + (index + 1) / self._count)
        return exists

    def chosen(self, epoch: int, index: int, chunk: int) -> tuple[int, list[bytes], Sequence[int]]:
        source, reading = self.source, self.reading
        number, unit = self._unit_at(epoch, index)
        texts = source.read(reading.split, unit, chunk) or []
        ended = max(0, index - order.INTERLEAVED_UNITS)  # a lower bound, known right after a restore
        source.note_progress(reading.split, reading.shard, epoch + ended / self._count)
        rows: Sequence[int] = range(len(texts))
        if self._divides_rows:
            rows = [row for row in rows if order.shard_of_row(row, number, chunk, reading.num_shards) == reading.shard]
        if rows:
            self._opened = 0
        if reading.shuffle:
            permuted = order.random_generator("rows", reading.seed, epoch, number, chunk).permutation(len(rows))
            rows = [rows[place] for place in permuted]
        return number, texts, rows


class DealtUnits(ShardUnits):
    """An even share of all documents: a contiguous part of each epoch's order, in some of the units."""

    def __init__(self, source: Splits, reading: Reading, counts: Counts, offset: int):
        super().__init__(source, reading)
        self._counts, self._offset = counts, offset
        self._sizes = np.array(counts.sizes, np.int64)
        # Of each unit the documents before each chunk, and all.
        self._starts = [[0, *itertools.accumulate(chunks)] for chunks in counts.chunks]
        self._seen: dict[int, list[int]] = {}  # unit -> documents before each chunk, where they were not counted
        self._parts = functools.lru_cache(maxsize=4)(self._parts_of_epoch)

    def num_parts(self, epoch: int) -> int:
        return len(self._parts(epoch))

    def _parts_of_epoch(self, epoch: int) -> list[tuple[int, int, int]]:
        """Returns (unit, first document, end) of the shard's parts of units in an epoch."""
        reading, number = self.reading, len(self._sizes)
        permuted = order.unit_order(reading.seed, epoch, number) if reading.shuffle else np.arange(number)
        ends = np.cumsum(self._sizes[permuted])
        share = order.shares(self._counts.total, epoch, self._offset, reading.num_shards)
        start = int(share[: reading.shard].sum())
        stop = start + int(share[reading.shard])
        first, last = np.searchsorted(ends, [start, stop - 1], side="right") if stop > start else (0, -1)
        parts = []
        for place in range(int(first), int(last) + 1):
            unit = int(permuted[place])
            before = int(ends[place] - self._sizes[unit])
            if self._sizes[unit]:
                parts.append((unit, max(start - before, 0), min(stop - before, int(self._sizes[unit]))))
        return parts

    def _before(self, unit: int, chunk: int) -> int | None:
        """Returns the number of a unit's documents before a chunk; None if the unit ends before it."""
        if self._starts:
            return self._starts[unit][chunk] if chunk < len(self._starts[unit]) - 1 else None
        seen = self._seen.setdefault(unit, [0])
        while len(seen) <= chunk + 1:
            documents = self.source.read(self.reading.split, self.units[unit], len(seen) - 1)
            if documents is None:
                return None
            seen.append(seen[-1] + len(documents))
        return seen[chunk]

    def first_chunk(self, epoch: int, index: int) -> int:
        unit, start, _ = self._parts(epoch)[index]
        chunk = 0
        while start > 0 and (end := self._before(unit, chunk + 1)) is not None and end <= start:
            chunk += 1
        return chunk

    def has_chunk(self, epoch: int, index: int, chunk: int) -> bool:
        unit, _, stop = self._parts(epoch)[index]
        before = self._before(unit, chunk)
        return before is not None and (before < stop or self._is_open(unit, stop))

    def _is_open(self, unit: int, stop: int) -> bool:
        """Returns whether a part of a unit goes on to its end, wherever that is."""
        return not self._starts and stop == self._sizes[unit]

    def chosen(self, epoch: int, index: int, chunk: int) -> tuple[int, list[bytes], np.ndarray]:
        reading = self.reading
        unit, start, stop = self._parts(epoch)[index]
        before = self._before(unit, chunk) or 0
        texts = self.source.read(reading.split, self.units[unit], chunk) or []
        if self._starts:  # the last documents may be more than the run reads
            texts = texts[: self._counts.chunks[unit][chunk]]
        rows = np.arange(len(texts))
        if reading.shuffle:
            rows = order.random_generator("dealt", reading.seed, epoch, unit, chunk).permutation(len(texts))
        return unit, texts, rows[max(0, start - before) : None if self._is_open(unit, stop) else max(0, stop - before)]


def noted(documents: Dataset, source: Splits, reading: Reading, counts: Counts) -> Counted:
    """Returns the documents, counted in epochs, and notes the progress of reading them."""
    of_epoch = max(counts.total, counts.num_pieces, 1) / reading.num_shards
    last = math.inf if reading.num_epochs is None else max(reading.num_epochs, reading.first_epoch + 1)

    def note(batch: list[object], number: int) -> list[object]:
        epochs = reading.first_epoch + (number + 1) * DOCUMENTS_NOTED / of_epoch
        source.note_progress(reading.split, reading.shard, min(epochs, last))
        return batch

    batches = documents.batch(DOCUMENTS_NOTED)
    return Counted(batches, note, DOCUMENTS_NOTED, of_epoch, reading.first_epoch, last)


DataFiles = str | Sequence[str] | Mapping[str, str | Sequence[str]]


class UnitSource(Splits):
    """Documents {"text": string} of some files, in an order that a saved data position continues."""

    def documents(
        self,
        split: str,
        *,
        shard: int = 0,
        num_shards: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        num_epochs: int | None = None,
    ) -> Dataset:
        """Returns {"text": bytes} documents of one shard, endlessly if `num_epochs` is None.

        From a column `tokens` they are {"tokens": bytes}, from several columns {feature: string}. Units are divided
        among the shards; if there are fewer units than shards, every shard reads all of them and takes its own rows. In
        an epoch each document comes once, in exactly one shard.
        """
        return self.dataset(Reading(split, shard, num_shards, seed, shuffle, num_epochs))

    def dataset(self, reading: Reading, counts: Counts | None = None, offset: int = 0) -> Dataset:
        """Returns the elements of `documents`; those of `counts` are dealt evenly, one by one, not in whole units.

        `offset` is then the number of the first document of all epochs.
        """
        self.begin(reading.split, reading.shard)
        documents = Documents(self.parts(reading, counts, offset))
        return documents if counts is None or reading.traced else noted(documents, self, reading, counts)

    def parts(self, reading: Reading, counts: Counts | None, offset: int) -> Parts:
        """Returns what a shard reads of each epoch; the progress is noted where it is whole units."""
        return WholeUnits(self, reading) if counts is None else DealtUnits(self, reading, counts, offset)

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: Any = None,
        *,
        sequence_length: Mapping[str, int] | None = None,
        use_cached: bool = False,
        num_epochs: int | None = 1,
    ) -> Any:
        """Returns the documents as a tf.data.Dataset, with the signature that seqio's `task.get_dataset` calls."""
        bridge = importlib.import_module("..bridge", __package__)  # which stands above
        del sequence_length, use_cached
        index, num_shards = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        documents = self.documents(
            split, shard=index, num_shards=num_shards, seed=seed or 0, shuffle=shuffle, num_epochs=num_epochs
        )
        return bridge.Numbered(documents).in_tensorflow()


class FileSource(UnitSource):
    """Documents of files: .txt (a document a line), .jsonl, .csv, each also .gz or .zst, and .parquet.

    `data_files` is a path or pattern, several of them (separated by commas, or a sequence), or a mapping
    from split to these. Any address that fsspec supports is allowed: local, gs://, hf://, http://.
    """

    def __init__(self, data_files: DataFiles, column: Column = "text", validation_percent: float = 1.0):
        patterns = patterns_of(data_files)
        carved = ["validation"] if "train" in patterns and "validation" not in patterns else []
        name = "The corpus " + ", ".join(pattern for several in patterns.values() for pattern in several)
        super().__init__(name, lambda: patterns, [*patterns, *carved], column, validation_percent)


def patterns_of(data_files: DataFiles) -> dict[str, tuple[str, ...]]:
    """Returns split -> patterns; ConfigError for a split without one.

    >>> patterns_of("a.jsonl, b.txt")
    {'train': ('a.jsonl', 'b.txt')}
    """
    by_split = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    found = {}
    for split, value in by_split.items():
        several = value.split(",") if isinstance(value, str) else value
        found[split] = tuple(pattern.strip() for pattern in several if pattern.strip())
        if not found[split]:
            raise ConfigError("DataConfig.data_files", f"is {value!r}; give a path or a pattern.")
    return found
