"""The documents of a shard when each epoch is dealt evenly: shards differ by one document at most.

An epoch is a permutation of the units, and of the documents inside each chunk. Each shard has a contiguous part of that
order, so a unit is read by one shard, or by two where a part ends inside it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from limba.data.epochs.counts import Counts, chunk_starts, shares
from limba.data.sources.array_record import RECORDS_PER_READ, ArrayRecordSource, permuted
from limba.data.sources.order import ENDLESS, INTERLEAVED_UNITS, Reading, random_generator, unit_order
from limba.data.sources.units import UnitSource, call_numpy, with_names

DOCUMENTS_NOTED = 32  # at once, for the progress


def even_documents(source: UnitSource, reading: Reading, counts: Counts, offset: int) -> tf.data.Dataset:
    """Returns the documents of `UnitSource.documents`, dealt evenly; `offset` is the number of the first of all epochs.

    Raises InputError, from the reading threads, for a corpus that cannot be read.
    """
    source.begin(reading.split, reading.shard)
    if isinstance(source, ArrayRecordSource):
        dataset = _Records(source, reading, counts, offset).dataset()
    else:
        dataset = _Units(source, reading, counts, offset).dataset()
    return dataset if reading.traced else _noted(dataset, source, reading, counts)


def _noted(dataset: tf.data.Dataset, source: UnitSource, reading: Reading, counts: Counts) -> tf.data.Dataset:
    """Returns the documents, and notes the progress as they are passed on, in epochs."""
    of_epoch = max(counts.total, counts.num_pieces, 1) / reading.num_shards
    last = math.inf if reading.num_epochs is None else max(reading.num_epochs, reading.first_epoch + 1)

    def note(number: np.int64) -> np.bool_:
        epochs = reading.first_epoch + (int(number) + 1) * DOCUMENTS_NOTED / of_epoch
        source.note_progress(reading.split, reading.shard, min(epochs, last))
        return np.bool_(True)

    # A filter's answer is used, and in order; of a map TensorFlow would leave out what gives no part of the result.
    batches: Any = dataset.batch(DOCUMENTS_NOTED).enumerate()
    batches = batches.filter(lambda number, documents: call_numpy(note, tf.bool, [], number))
    return batches.map(lambda number, documents: documents).unbatch()


class _Units:
    """The units of a shard: pure functions of (epoch, index among the shard's parts of units, chunk)."""

    def __init__(self, source: UnitSource, reading: Reading, counts: Counts, offset: int):
        self._source, self._reading, self._counts, self._offset = source, reading, counts, offset
        self._units = source.units(reading.split)
        self._sizes = np.array(counts.sizes, np.int64)
        self._starts = [chunk_starts(chunks) for chunks in counts.chunks]
        self._seen: dict[int, list[int]] = {}  # unit -> documents before each chunk, where they were not counted
        self._parts = functools.lru_cache(maxsize=4)(self._parts_of_epoch)

    def dataset(self) -> tf.data.Dataset:
        """Returns the documents of all epochs."""
        width = INTERLEAVED_UNITS if self._reading.shuffle else 1

        def of_unit(epoch: tf.Tensor, index: tf.Tensor) -> tf.data.Dataset:
            first = call_numpy(self.first_chunk, tf.int64, [], epoch, index)
            chunks = tf.data.Dataset.range(first, ENDLESS)
            chunks = chunks.take_while(lambda chunk: call_numpy(self.has_chunk, tf.bool, [], epoch, index, chunk))
            return chunks.flat_map(lambda chunk: self._of_chunk(epoch, index, chunk))

        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            number = call_numpy(lambda epoch: np.int64(len(self._parts(int(epoch)))), tf.int64, [], epoch)
            parts = tf.data.Dataset.range(number)
            return parts.interleave(lambda index: of_unit(epoch, index), cycle_length=width, block_length=1)

        return self._reading.epochs().flat_map(of_epoch)

    def _of_chunk(self, *place: tf.Tensor) -> tf.data.Dataset:
        return _elements(self._source, self._reading, self.documents, *place)

    def _parts_of_epoch(self, epoch: int) -> list[tuple[int, int, int]]:
        """Returns (unit, first document, end) of the shard's parts of units in an epoch."""
        reading, number = self._reading, len(self._sizes)
        order = unit_order(reading.seed, epoch, number) if reading.shuffle else np.arange(number)
        ends = np.cumsum(self._sizes[order])
        share = shares(self._counts.total, epoch, self._offset, reading.num_shards)
        start = int(share[: reading.shard].sum())
        stop = start + int(share[reading.shard])
        first, last = np.searchsorted(ends, [start, stop - 1], side="right") if stop > start else (0, -1)
        parts = []
        for place in range(int(first), int(last) + 1):
            unit = int(order[place])
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
            documents = self._source.read(self._reading.split, self._units[unit], len(seen) - 1)
            if documents is None:
                return None
            seen.append(seen[-1] + len(documents))
        return seen[chunk]

    def first_chunk(self, epoch: int, index: int) -> np.int64:
        """Returns the chunk in which a part of a unit begins."""
        with self._source.failures():
            unit, start, _ = self._parts(int(epoch))[int(index)]
            chunk = 0
            while start > 0 and (end := self._before(unit, chunk + 1)) is not None and end <= start:
                chunk += 1
            return np.int64(chunk)

    def has_chunk(self, epoch: int, index: int, chunk: int) -> np.bool_:
        """Returns whether a part of a unit has documents in this chunk, or in a later one."""
        with self._source.failures():
            unit, _, stop = self._parts(int(epoch))[int(index)]
            before = self._before(unit, int(chunk))
            return np.bool_(before is not None and (before < stop or self._is_open(unit, stop)))

    def _is_open(self, unit: int, stop: int) -> bool:
        """Returns whether a part of a unit goes on to its end, wherever that is."""
        return not self._starts and stop == self._sizes[unit]

    def documents(self, epoch: int, index: int, chunk: int) -> np.ndarray:
        """Returns the shard's documents of a chunk, permuted, bytes [n]; traced ones with their names, bytes [n, 2]."""
        source, reading = self._source, self._reading
        with source.failures():
            unit, start, stop = self._parts(int(epoch))[int(index)]
            before = self._before(unit, int(chunk)) or 0
            texts = source.read(reading.split, self._units[unit], int(chunk)) or []
            if self._starts:  # the last documents may be more than the run reads
                texts = texts[: self._counts.chunks[unit][int(chunk)]]
            rows = np.arange(len(texts))
            if reading.shuffle:
                rows = random_generator("dealt", reading.seed, int(epoch), unit, int(chunk)).permutation(len(texts))
            rows = rows[max(0, start - before) : None if self._is_open(unit, stop) else max(0, stop - before)]
            if reading.traced:
                names = [f"{unit} {int(chunk)} {row}".encode() for row in rows]
                return with_names(source, (texts[row] for row in rows), names)
            return np.array([piece for row in rows for piece in source.pieces(texts[row])], dtype=object)


class _Records:
    """The records of ArrayRecord files: every epoch is one permutation of all of them."""

    def __init__(self, source: ArrayRecordSource, reading: Reading, counts: Counts, offset: int):
        self._source, self._reading, self._counts, self._offset = source, reading, counts, offset
        left_out = np.array(counts.left_out, np.int64)
        self._gaps = left_out - np.arange(len(left_out))  # of each one, the records before it that are read

    def dataset(self) -> tf.data.Dataset:
        """Returns the documents of all epochs."""

        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            blocks = tf.data.Dataset.range(call_numpy(self.num_blocks, tf.int64, [], epoch))
            return blocks.flat_map(lambda block: _elements(self._source, self._reading, self.documents, epoch, block))

        return self._reading.epochs().flat_map(of_epoch)

    def _places(self, epoch: int) -> range:
        """Returns the shard's places in an epoch's order: those whose number in all epochs is its own."""
        reading, total = self._reading, self._counts.total
        first = (reading.shard - self._offset - epoch * total) % reading.num_shards
        return range(first, total, reading.num_shards)

    def num_blocks(self, epoch: int) -> np.int64:
        """Returns the number of the shard's reads in an epoch."""
        return np.int64(-(-len(self._places(int(epoch))) // RECORDS_PER_READ))

    def documents(self, epoch: int, block: int) -> np.ndarray:
        """Returns the documents of one read, as `_Units.documents` does."""
        source, reading = self._source, self._reading
        with source.failures():
            places = self._places(int(epoch))[int(block) * RECORDS_PER_READ :][:RECORDS_PER_READ]
            order = np.arange(places.start, places.stop, places.step)
            if reading.shuffle:
                order = permuted(order, self._counts.total, reading.seed, int(epoch))
            numbers = order + np.searchsorted(self._gaps, order, side="right")
            rows = [(number, text) for number, text in source.records_at(reading.split, numbers) if text]
            if reading.traced:
                return with_names(source, (text for _, text in rows), (b"%d" % number for number, _ in rows))
            pieces = itertools.chain.from_iterable(source.pieces(text) for _, text in rows)
            return np.array(list(pieces), dtype=object)


def _elements(
    source: UnitSource, reading: Reading, documents: Callable[..., np.ndarray], *place: tf.Tensor
) -> tf.data.Dataset:
    if reading.traced:
        return source.traced_elements(call_numpy(documents, tf.string, [None, 2], *place))
    return source.elements(call_numpy(documents, tf.string, [None], *place))
