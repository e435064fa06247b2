"""The documents of one shard of a corpus, in the order in which they are read: a pure function of the place.

An epoch is a permutation of units. A shard reads its share of them: 16 units at a time (fewer in a mixture of many
tasks), one document from each in turn, and the documents of a chunk in random order. All of it follows from seed, task,
epoch, unit and chunk. So there is no shuffle buffer, and a place holds numbers, never text.

Where documents are not counted, a shard reads whole units. Counted ones are dealt one by one: each shard has a
contiguous part of the epoch's order, so a unit is read by one shard, or by two where a part ends inside it, and shards
differ by one document at most.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from limba.config import InputError
from limba.data.dataset import TEXT, Dataset, Document, Item, Place
from limba.data.sources import order
from limba.data.sources.first_example import FirstExample
from limba.data.sources.notices import say_once
from limba.data.sources.order import Counts, Reading
from limba.data.sources.splits import Splits

MOST_EMPTY_UNITS = 10_000  # in a row, of a shard with fewer units; seconds
CLOSED = -1  # in a place: no part is open there
Chosen = list[tuple[int, bytes]]  # documents of a chunk with their row in it, in the order in which a shard reads them


class Part(NamedTuple):
    """The documents `start` to `stop` of a unit, counted in the unit; `stop` is None where all are read."""

    unit: int
    start: int = 0
    stop: int | None = None


class Share(abc.ABC):
    """What one shard reads of each epoch."""

    most_empty: int  # parts without a document in a row, of an endless reading

    def __init__(self, source: Splits, reading: Reading):
        self.source = source
        self.reading = reading
        self.width = order.open_units(source.num_tasks)  # parts that are open at once

    @abc.abstractmethod
    def parts(self, epoch: int) -> Sequence[Part]:
        """Returns the parts of units that the shard reads in an epoch, in order."""

    def first_chunk(self, part: Part) -> int:
        """Returns the chunk in which a part begins."""
        del part
        return 0

    @abc.abstractmethod
    def chosen(self, epoch: int, part: Part, chunk: int) -> Chosen | None:
        """Returns the shard's documents of a chunk, in order; None where the part ends before the chunk."""

    @abc.abstractmethod
    def epochs(self, epoch: int, num_read: int, num_ended: int) -> float:
        """Returns the epochs read, after so many documents of all epochs, and parts of this one that have ended."""

    @abc.abstractmethod
    def no_document(self) -> InputError:
        """Returns the error for a shard that finds none in `most_empty` parts."""


class _OpenPart:
    """A part that is being read: its number in the epoch, the chunk, and the documents given of the chunk."""

    def __init__(self, share: Share, epoch: int, part: Part, place: Sequence[int]):
        self.part = part
        self.number, self.chunk, self.given = place
        self._share = share
        self._epoch = epoch
        self._documents: list[tuple[int, int, dict[str, bytes]]] | None = None  # row, piece and element

    def next_document(self) -> tuple[int, int, dict[str, bytes]] | None:
        """Returns row, piece and element of the next document; None at the end of the part."""
        # A chunk may have fewer documents than were given of it: its file was edited, or a part of it is skipped now.
        while self._documents is None or self.given >= len(self._documents):
            if self._documents is not None:
                self.chunk += 1
                self.given = 0
            chosen = self._share.chosen(self._epoch, self.part, self.chunk)
            if chosen is None:
                return None
            self._documents = []
            elements = self._share.source.elements
            for row, text in chosen:
                for piece, element in enumerate(elements(text)):
                    self._documents.append((row, piece, element))
        self.given += 1
        return self._documents[self.given - 1]


class Documents(Dataset):
    """The documents of a shard in all epochs: of several parts at a time, one document from each.

    They come as tf.data's `interleave` gives them: a part that ends is followed by the next one in its place. A long
    document is read in pieces.
    """

    def __init__(self, share: Share):
        super().__init__(dict.fromkeys(share.source.keys, TEXT))
        self._share = share
        self.first_example: FirstExample | None = None  # is asked at the end of each epoch of an endless reading

    def name_of(self, document: Document) -> str:
        share = self._share
        unit_name, row, _ = share.source.document(share.reading.split, document.unit, document.chunk, document.row)
        return f"Document {row:,} of {unit_name}"

    def read(self, place: Place = None) -> Iterator[Item]:
        """Yields the documents.

        A place has the epoch, the documents read in all epochs, the next part to open and the turn; and, for each part
        that is open, three numbers in `open`: of the part, of its chunk, and of the documents given of the chunk.
        """
        share = self._share
        reading = self._share.reading
        begun = place or {"epoch": 0, "read": 0, "next": 0, "turn": 0, "open": []}
        num_read = begun["read"]
        following = begun["next"]
        turn = begun["turn"]
        width = share.width if reading.shuffle else 1
        counts = list(begun["open"]) or [CLOSED] * (3 * width)
        num_empty = 0  # parts since the last document
        for number in range(begun["epoch"], len(reading.epochs)):
            if reading.is_endless and number > 0 and self.first_example is not None:
                self.first_example.check(num_read, number)
            epoch = reading.epochs[number]
            parts = share.parts(epoch)
            opened: list[_OpenPart | None] = [None] * width
            for slot in range(width):
                of_slot = counts[3 * slot : 3 * slot + 3]
                if of_slot[0] != CLOSED:
                    opened[slot] = _OpenPart(share, epoch, parts[of_slot[0]], of_slot)
            num_open = width - opened.count(None)
            while num_open or following < len(parts):
                slot = turn
                part = opened[slot]
                if part is None and following < len(parts):
                    first = [following, share.first_chunk(parts[following]), 0]
                    part = _OpenPart(share, epoch, parts[following], first)
                    opened[slot] = part
                    num_open += 1
                    following += 1
                    num_empty += 1
                    if reading.is_endless and num_empty > share.most_empty:
                        raise share.no_document()
                turn = (slot + 1) % width
                if part is None:
                    continue
                next_one = part.next_document()
                if next_one is None:
                    opened[slot] = None
                    counts[3 * slot] = CLOSED
                    num_open -= 1
                    continue
                row, piece, element = next_one
                num_read += 1
                num_empty = 0
                epochs = share.epochs(epoch, num_read, following - num_open)
                document = Document(reading.task, part.part.unit, part.chunk, row, piece, epochs)
                counts[3 * slot] = part.number
                counts[3 * slot + 1] = part.chunk
                counts[3 * slot + 2] = part.given
                after = {"epoch": number, "read": num_read, "next": following, "turn": turn, "open": tuple(counts)}
                yield Item(element, (document,), after)
            # The next epoch begins with its first part, and with all slots closed.
            following = 0
            turn = 0
            counts = [CLOSED] * (3 * width)


class _UnitShare(Share):
    """A share of the units of files."""

    def __init__(self, source: Splits, reading: Reading):
        super().__init__(source, reading)
        self.units = source.units(reading.split)

    def _most_empty(self, count: int) -> int:
        """Returns `most_empty` of a shard that reads so many parts in an epoch.

        A long line makes many empty units, and by chance a shard may have none but these in several epochs.
        """
        return 2 * count + max(order.INTERLEAVED_UNITS, min(64 * count, MOST_EMPTY_UNITS))

    def no_document(self) -> InputError:
        reading = self.reading
        shard = f"data shard {reading.shard} of {reading.num_shards} in split {reading.split!r}"
        skipped = self.source.skipped
        if len(skipped) >= len(self.units) > 0:
            unit, reason = skipped[0]
            return InputError(
                f"{self.source.name} has no document that can be read for {shard}, since {len(skipped):,} unit(s) of it"
                f" are skipped, such as {unit} {reason}"
            )
        return InputError(
            f"{self.source.name} has no document for {shard}; set DataConfig.num_data_shards lower, or give more"
            " documents.",
            fix=order.fewer_shards(reading.shard),
        )


class WholeUnits(_UnitShare):
    """Each unit in one shard; if there are fewer units than shards, every shard takes its own rows of all of them."""

    def __init__(self, source: Splits, reading: Reading):
        super().__init__(source, reading)
        total = len(self.units)
        num_shards = reading.num_shards
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
        self.width = min(self.width, max(self._count, 1))
        self.most_empty = self._most_empty(self._count)

    def parts(self, epoch: int) -> Sequence[Part]:
        reading = self.reading
        total = len(self.units)
        units = reading.unit_order(epoch, total) if reading.shuffle else np.arange(total)
        of_reading = units if self._divides_rows else units[reading.shard :: reading.num_shards]
        return [Part(unit) for unit in of_reading.tolist()]

    def chosen(self, epoch: int, part: Part, chunk: int) -> Chosen | None:
        reading = self.reading
        texts = self.source.read(reading.split, self.units[part.unit], chunk)
        if texts is None:
            return None
        rows = np.arange(len(texts))
        if reading.shuffle:
            rows = reading.chunk_order(epoch, part.unit, chunk, len(texts))
        if self._divides_rows:
            rows = rows[order.shard_of_row(rows, part.unit, chunk, reading.num_shards) == reading.shard]
        return [(row, texts[row]) for row in rows.tolist()]

    def epochs(self, epoch: int, num_read: int, num_ended: int) -> float:
        return epoch + num_ended / self._count


class Dealt:
    """The epochs of documents that are counted: each is an equal part of one."""

    def __init__(self, reading: Reading, counts: Counts):
        self._of_epoch = max(counts.total, counts.num_pieces, 1) / reading.num_shards
        self._first = reading.first_epoch
        self._last = math.inf
        if reading.num_epochs is not None:
            self._last = max(reading.num_epochs, reading.first_epoch + 1)

    def epochs(self, num_read: int) -> float:
        return min(self._first + num_read / self._of_epoch, self._last)


class DealtUnits(_UnitShare):
    """An even share of all documents: a contiguous part of each epoch's order, in some of the units.

    `offset` is the number of the first document of all epochs.
    """

    def __init__(self, source: Splits, reading: Reading, counts: Counts, offset: int):
        super().__init__(source, reading)
        self._counts = counts
        self._offset = offset
        self._sizes = np.array(counts.sizes, np.int64)
        # Of each unit the documents before each chunk, and all.
        self._starts = [[0, *itertools.accumulate(chunks)] for chunks in counts.chunks]
        self._seen: dict[int, list[int]] = {}  # unit -> documents before each chunk, where they were not counted
        self._dealt = Dealt(reading, counts)
        self.most_empty = self._most_empty(len(self.units) // reading.num_shards + 2)

    def parts(self, epoch: int) -> Sequence[Part]:
        reading = self.reading
        number = len(self._sizes)
        permuted = reading.unit_order(epoch, number) if reading.shuffle else np.arange(number)
        ends = np.cumsum(self._sizes[permuted])
        share = order.shares(self._counts.total, epoch, self._offset, reading.num_shards)
        start = int(share[: reading.shard].sum())
        stop = start + int(share[reading.shard])
        first, last = np.searchsorted(ends, [start, stop - 1], side="right") if stop > start else (0, -1)
        parts = []
        for index in range(int(first), int(last) + 1):
            unit = int(permuted[index])
            size = int(self._sizes[unit])
            before = int(ends[index]) - size
            if size:
                parts.append(Part(unit, max(start - before, 0), min(stop - before, size)))
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

    def first_chunk(self, part: Part) -> int:
        chunk = 0
        while part.start > 0:
            end = self._before(part.unit, chunk + 1)
            if end is None or end > part.start:
                break
            chunk += 1
        return chunk

    def chosen(self, epoch: int, part: Part, chunk: int) -> Chosen | None:
        reading = self.reading
        unit = part.unit
        before = self._before(unit, chunk)
        # Uncounted documents of a unit's last part go on to its end, wherever that is.
        is_open = not self._starts and part.stop == self._sizes[unit]
        if before is None or not (is_open or before < (part.stop or 0)):
            return None
        texts = self.source.read(reading.split, self.units[unit], chunk) or []
        if self._starts:
            counted = self._counts.chunks[unit][chunk]
            if len(texts) < counted and not self.source.skips_what_cannot_be_read:
                raise InputError(
                    f"{self.units[unit].place} has fewer documents than when the run counted them, so it was cut or"
                    " replaced while the run reads it; restore the file, and start the same command again."
                )
            texts = texts[:counted]  # the last documents may be more than the run reads
        rows = np.arange(len(texts))
        if reading.shuffle:
            rows = reading.chunk_order(epoch, unit, chunk, len(texts))
        stop = None if is_open else max(0, (part.stop or 0) - before)
        return [(row, texts[row]) for row in rows[max(0, part.start - before) : stop].tolist()]

    def epochs(self, epoch: int, num_read: int, num_ended: int) -> float:
        return self._dealt.epochs(num_read)
