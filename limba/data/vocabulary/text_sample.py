"""A uniform random sample of a corpus's documents, in bounded memory."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from limba.config import InputError
from limba.data.registry import Task
from limba.data.sources.columns import FIELD_SEPARATOR
from limba.data.sources.json_documents import TOKENS
from limba.data.sources.listing import Unit
from limba.data.sources.units import UnitSource
from limba.data.vocabulary.sentences import Hidden, sentences

UNITS_AT_ONCE = 128  # read side by side, a chunk of each in turn; ChunkReader keeps that many open
READ_PER_SAMPLED = 8
VALIDATION_SHARE = 0.02  # of the text that is read, at most
NUM_SENTENCES = 3  # of the validation text, whose words are hidden
MOST_DOCUMENTS = 500  # that are looked through for them

Progress = Callable[[int, int], None]  # called with (bytes read, units finished)


class Texts:
    """The texts of one source: whole corpora are never in memory.

    >>> from limba.data.sources import FileSource
    >>> from pathlib import Path
    >>> _ = Path("nb.txt").write_text("Ære være.\\nGod dag.\\n")
    >>> training, validation = Texts(FileSource("nb.txt", validation_percent=0)).sample("train", 1_000)
    >>> len(training), len(validation)
    (2, 0)
    """

    def __init__(self, source: UnitSource):
        self.source = source

    @classmethod
    def of_task(cls, task: Task) -> Texts:
        """Returns a task's texts; InputError if its source is not from `limba.data.sources`, or holds tokens."""
        if not isinstance(task.source, UnitSource):
            raise InputError(
                f"The source of task {task.name} is not one of limba.data.sources, so parts of it cannot be read; set"
                " DataConfig.data_files to its files."
            )
        if TOKENS in task.source.keys:
            raise InputError(f"{task.source.name} holds tokens and no text; give the files that they were made from.")
        return cls(task.source)

    def check_not_empty(self, split: str) -> None:
        """Reads up to the split's first document; InputError if there is none, or it cannot be read."""
        source = self.source
        if any(documents for unit in source.units(split) for documents in source.chunks(split, unit)):
            return
        advice = "give files with text in them"
        if split == "validation" and source.is_carved(split):
            advice = f"give more text, or set DataConfig.validation_percent above {source.carved_percent(split):g}"
        raise InputError(f"{source.name} holds no document in split {split!r}; {advice}.")

    def sentences(self, split: str, num: int = NUM_SENTENCES, of_document: int = 1) -> list[Hidden]:
        """Returns `num` sentences of the first documents, some words hidden; or fewer. See `sentences`."""
        return list(sentences(itertools.islice(self.source.texts(split), MOST_DOCUMENTS), num, of_document))

    def in_columns(self, documents: Sequence[bytes]) -> list[bytes]:
        """Returns the texts of documents; a row of several columns gives one text for each, in order."""
        if len(self.source.keys) == 1:
            return list(documents)
        return [text for document in documents for text in document.split(FIELD_SEPARATOR)]

    def sample(
        self,
        split: str,
        sample_bytes: int,
        *,
        validation_bytes: int = 0,
        read_bytes: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> tuple[list[bytes], list[bytes]]:
        """Returns about `sample_bytes` of documents, all equally likely, and `validation_bytes` of other documents.

        Up to `read_bytes` (8 times the sample) are read, so a smaller corpus is read as a whole. From a larger one
        random units are read, 128 at the same time, so that many files contribute, also those that can only be read
        from their beginning. Documents are in the corpus's order; the same call returns the same ones. At most a
        fiftieth of the text read is for validation. Raises InputError if the corpus cannot be read.
        """
        if read_bytes is None:
            read_bytes = READ_PER_SAMPLED * (sample_bytes + validation_bytes)
        sample = _Reservoir(sample_bytes)
        validation = _Reservoir(validation_bytes)
        total = finished = 0
        for number, chunk, documents in _chunks_in_turn(self.source, split, seed):
            if documents is None:
                finished += 1
            else:
                # Two numbers for each document: whether it is sampled, and in which of the two samples it may be. They
                # depend on the document's position alone, so the order in which chunks arrive changes nothing.
                random = np.random.RandomState([seed & 0xFFFF_FFFF, number, chunk])
                draws, sides = random.random_sample([2, len(documents)]).tolist()
                for row, (document, draw, side) in enumerate(zip(documents, draws, sides, strict=True)):
                    reservoir = validation if validation_bytes and side < VALIDATION_SHARE else sample
                    reservoir.offer(draw, (number, chunk, row), document)
                    total += len(document)
            if progress is not None:
                progress(total, finished)
            if total >= read_bytes:
                break
        return sample.documents(), validation.documents()


def _chunks_in_turn(source: UnitSource, split: str, seed: int) -> Iterator[tuple[int, int, Sequence[bytes] | None]]:
    """Yields (unit index, chunk, documents); documents is None at the end of the unit."""
    units: Sequence[Unit] = source.units(split)
    order = np.random.RandomState(seed & 0xFFFF_FFFF).permutation(len(units)).tolist()
    for start in range(0, len(order), UNITS_AT_ONCE):
        reading = order[start : start + UNITS_AT_ONCE]
        chunk = 0
        while reading:
            unfinished = []
            for number in reading:
                documents = source.read(split, units[number], chunk)
                if documents is not None:
                    unfinished.append(number)
                yield number, chunk, documents
            reading = unfinished
            chunk += 1


class _Reservoir:
    """The documents with the smallest draws that fit into `size` bytes."""

    def __init__(self, size: int):
        self._free = size
        self._sample: list[tuple[float, tuple[int, int, int], bytes]] = []  # a heap, the largest draw first

    def offer(self, draw: float, position: tuple[int, int, int], document: bytes) -> None:
        """Takes a document in, and others with larger draws out, until they fit."""
        if self._free < 0 and draw > -self._sample[0][0]:
            return
        heapq.heappush(self._sample, (-draw, position, document))
        self._free -= len(document)
        # The last document may exceed the size, so that a sample is never empty.
        while self._free + len(self._sample[0][2]) < 0:
            self._free += len(heapq.heappop(self._sample)[2])

    def documents(self) -> list[bytes]:
        """Returns the documents in the order of their positions."""
        return [document for _, _, document in sorted(self._sample, key=lambda item: item[1])]
