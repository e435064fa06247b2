"""A uniform random sample of a corpus's documents in bounded memory, and sentences with some of their words hidden."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from limba.config import InputError
from limba.data.registry import Task
from limba.data.sources.parquet import TOKENS
from limba.data.sources.readers import FIELD_SEPARATOR, Unit
from limba.data.sources.units import UnitSource

# Runs of letters that are about a word in scripts without spaces.
HAN = r"[\u3400-\u4dbf\u4e00-\u9fff]"
KATAKANA = r"[\u30a1-\u30fa\u30fc]"
OTHERS = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"  # Thai, Lao, Burmese, Khmer
UNSPACED = re.compile(rf"{HAN}|{KATAKANA}|{OTHERS}|[\u3041-\u309f]")
WORD = re.compile(rf"{HAN}{{2,4}}|{KATAKANA}{{2,}}|{OTHERS}{{3,6}}|(?:(?!{UNSPACED.pattern})[^\W\d_]){{2,}}")
SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n\s*\n")
LETTERS = (50, 200)  # of a sentence that is shown; half of it in scripts without spaces


class Hidden(NamedTuple):
    """A sentence, its words that are hidden, and the sentence with <extra_id_0> and so on in their place."""

    text: str
    words: tuple[str, ...]
    masked: str


def hidden_words(text: str, num: int = 2) -> Hidden | None:
    """Returns a sentence with `num` of its words hidden, the same ones each time; None if it has too few.

    Words are neither the first nor the last one, no neighbours, and follow a space. In scripts without spaces they are
    runs of kanji or katakana, or a few letters. The choice depends on the text alone, not on a model.

    >>> hidden_words("The module opens the file and reads all of its lines.").masked
    'The module opens <extra_id_0> file and reads all of <extra_id_1> lines.'
    """
    words = [m for m in list(WORD.finditer(text))[1:-1] if UNSPACED.match(m[0]) or text[m.start() - 1] == " "]
    draw = random.Random(hashlib.blake2b(text.encode(), digest_size=8).digest())
    draw.shuffle(words)
    chosen: list[re.Match[str]] = []
    for match in words:
        if all(match.end() + 3 <= other.start() or other.end() + 3 <= match.start() for other in chosen):
            chosen.append(match)
        if len(chosen) == num:
            break
    if len(chosen) < num:
        return None
    chosen.sort(key=lambda match: match.start())
    masked = ""
    end = 0
    for number, match in enumerate(chosen):
        masked += f"{text[end : match.start()]}<extra_id_{number}>"
        end = match.end()
    return Hidden(text, tuple(match[0] for match in chosen), masked + text[end:])


def sentences(documents: Iterable[str], num: int, of_document: int = 1) -> Iterator[Hidden]:
    """Yields `num` sentences, their words hidden: the first fitting ones of each document, at most `of_document`.

    A sentence fits if it has LETTERS letters, nearly all of them of words: no table, no program.
    """
    fitting = (itertools.islice(_fitting(document), of_document) for document in documents)
    return itertools.islice(itertools.chain.from_iterable(fitting), num)


def _fitting(document: str) -> Iterator[Hidden]:
    for part in SENTENCE.split(document):
        text = " ".join(part.split())
        shorter = 2 if UNSPACED.search(text) else 1
        proper = sum(letter.isalpha() or letter in " ,.;:'\u2019\u3001\u3002\u300c\u300d" for letter in text)
        fits = LETTERS[0] // shorter <= len(text) <= LETTERS[1] // shorter and proper > 0.95 * len(text)
        if fits and (hidden := hidden_words(text)) is not None:
            yield hidden


UNITS_AT_ONCE = 128  # read side by side, a chunk of each in turn; ChunkReader keeps that many open
READ_PER_SAMPLED = 8
NUM_SENTENCES = 3  # of the validation text, whose words are hidden
MOST_DOCUMENTS = 500  # that are looked through for them

Progress = Callable[[int, int], None]  # called with (bytes read, units finished)


class Texts:
    """The texts of one source: whole corpora are never in memory."""

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
        """Returns `num` sentences of the first documents, some words hidden; or fewer. See `sentences.sentences`."""
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

        Up to `read_bytes` (8 times the sample) are read, so a smaller corpus is read as a whole. Of a larger one
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
                draws = np.random.RandomState([seed & 0xFFFF_FFFF, number, chunk]).random_sample([2, len(documents)])
                for row, (document, draw, side) in enumerate(zip(documents, *draws.tolist(), strict=True)):
                    target = validation if validation_bytes and side < 0.02 else sample
                    target.offer(draw, (number, chunk, row), document)
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
            chunk = chunk + 1


class _Reservoir:
    """The documents with the smallest draws that fit into `size` bytes."""

    def __init__(self, size: int):
        self._free = size
        self._sample: list[tuple[float, tuple[int, int, int], bytes]] = []  # a heap, the largest draw first

    def offer(self, draw: float, position: tuple[int, int, int], document: bytes) -> None:
        if self._free < 0 and draw > -self._sample[0][0]:
            return
        heapq.heappush(self._sample, (-draw, position, document))
        self._free -= len(document)
        # The last document may exceed the size, so that a sample is never empty.
        while self._free + len(self._sample[0][2]) < 0:
            self._free += len(heapq.heappop(self._sample)[2])

    def documents(self) -> list[bytes]:
        return [document for _, _, document in sorted(self._sample, key=lambda item: item[1])]
