"""An even sample of a corpus's documents in bounded memory, whatever its size and the kind of its files."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import seqio

from limba.config import InputError
from limba.data.sources.files import UnitSource
from limba.data.sources.parquet import TOKENS
from limba.data.sources.readers import FIELD_SEPARATOR, Unit

UNITS_AT_ONCE = 128  # read side by side, a chunk of each in turn; ChunkReader keeps that many open
READ_PER_SAMPLED = 8

Progress = Callable[[int, int], None]  # told (bytes read, units finished)


def text_source(task: seqio.Task) -> UnitSource:
    """Returns the task's source of text; ConfigError where it has no units, or holds tokens."""
    if not isinstance(task.source, UnitSource):
        raise InputError(
            f"Task {task.name} reads a source that has no units; give its files as --files, or a source of "
            "limba.data.sources.files."
        )
    if TOKENS in task.source.keys:
        raise InputError(f"{task.source.name} holds tokens and no text; give the files that they were made of.")
    return task.source


def check_not_empty(source: UnitSource, split: str) -> None:
    """Reads as far as the split's first document; ConfigError where there is none, or what is there cannot be read."""
    for unit in source.units(split):
        chunk = 0
        while (documents := source.read(split, unit, chunk)) is not None:
            if documents:
                return
            chunk += 1
    advice = "give files with text in them"
    if split == "validation" and source.is_carved(split):
        advice = f"give more text, or set DataConfig.validation_percent above {source.percent_held_out(split):g}"
    raise InputError(f"{source.name} holds no document in split {split!r}; {advice}.")


def texts_of(source: UnitSource, documents: Sequence[bytes]) -> list[bytes]:
    """Returns the texts of the source's documents: of rows of several columns each column's by itself, in order."""
    if len(source.keys) == 1:
        return list(documents)
    return [text for document in documents for text in document.split(FIELD_SEPARATOR)]


def sample_documents(
    source: UnitSource,
    split: str,
    sample_bytes: int,
    *,
    held_out_bytes: int = 0,
    read_bytes: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[list[bytes], list[bytes]]:
    """Returns about `sample_bytes` of documents, each as likely as another, and `held_out_bytes` of others.

    Up to `read_bytes` (8 times the sample) are read, so a smaller corpus is read as a whole; of a larger one
    units are taken at random, 128 side by side, so that of files that can only be read from their
    beginning many contribute. Documents come in the corpus's order; the same call gives the same ones.
    At most a fiftieth of what is read is held out. Raises ConfigError where the corpus cannot be read.
    """
    if read_bytes is None:
        read_bytes = READ_PER_SAMPLED * (sample_bytes + held_out_bytes)
    sample, held_out = _Reservoir(sample_bytes), _Reservoir(held_out_bytes)
    total = finished = 0
    for number, chunk, documents in _chunks_in_turn(source, split, seed):
        if documents is None:
            finished += 1
        else:
            draws = np.random.RandomState([seed & 0xFFFF_FFFF, number, chunk]).random_sample([2, len(documents)])
            for row, (document, draw, side) in enumerate(zip(documents, *draws.tolist(), strict=True)):
                target = held_out if held_out_bytes and side < 0.02 else sample
                target.offer(draw, (number, chunk, row), document)
                total += len(document)
        if progress is not None:
            progress(total, finished)
        if total >= read_bytes:
            break
    return sample.documents(), held_out.documents()


def _chunks_in_turn(source: UnitSource, split: str, seed: int) -> Iterator[tuple[int, int, Sequence[bytes] | None]]:
    """Yields (number of the unit, chunk, documents), and None for documents where a unit has ended."""
    units: Sequence[Unit] = source.units(split)
    order = np.random.RandomState(seed & 0xFFFF_FFFF).permutation(len(units)).tolist()
    for start in range(0, len(order), UNITS_AT_ONCE):
        reading, chunk = order[start : start + UNITS_AT_ONCE], 0
        while reading:
            going_on = []
            for number in reading:
                documents = source.read(split, units[number], chunk)
                if documents is not None:
                    going_on.append(number)
                yield number, chunk, documents
            reading, chunk = going_on, chunk + 1


class _Reservoir:
    """Keeps the documents of the smallest draws that fit into so many bytes."""

    def __init__(self, size: int):
        self._free = size
        self._kept: list[tuple[float, tuple[int, int, int], bytes]] = []  # a heap, the largest draw first

    def offer(self, draw: float, place: tuple[int, int, int], document: bytes) -> None:
        if self._free < 0 and draw > -self._kept[0][0]:
            return
        heapq.heappush(self._kept, (-draw, place, document))
        self._free -= len(document)
        # One document may stand over the edge, so that a sample smaller than a document is not empty.
        while self._free + len(self._kept[0][2]) < 0:
            self._free += len(heapq.heappop(self._kept)[2])

    def documents(self) -> list[bytes]:
        return [document for _, _, document in sorted(self._kept, key=lambda item: item[1])]
