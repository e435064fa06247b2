"""Generates text for inputs that may be longer than a model reads: in segments, cut, or refused."""

from __future__ import annotations

import collections
import dataclasses
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from limba.config import ConfigError, GenerationConfig, InputError
from limba.data.objectives.text_segments import Segment, joined, long_inputs_of, segments_of
from limba.inference.generate import Writer, Written
from limba.inference.texts import whole_letters
from limba.inference.token_ids import input_ids

logger = logging.getLogger(__name__)

ROOM = 0.9  # share of the targets' length that a segment may have, since its output may be longer
HALVINGS = 3  # times at most that a segment whose output does not end is cut in two
Key = tuple[int, ...]  # a segment's number in its text, then its number in the segment that was cut in two, and so on


class Item(NamedTuple):
    """A segment to generate text for."""

    text: int  # the index of its text
    key: Key
    segment: Segment
    halvings: int  # how often it was cut in two


class Read(NamedTuple):
    """What a model reads of one text: the segments; the tokens of the whole text, and those that are not read."""

    segments: Sequence[Segment]
    num_tokens: int
    num_cut: int = 0


class Result(NamedTuple):
    """The texts generated for one input. `unfinished`: segments whose text reached `max_tokens` without an end."""

    read: Read
    samples: Sequence[Written]  # joined; the score is the sum of the segments' scores
    parts: Sequence[tuple[Segment, Sequence[Written]]]  # each segment with its samples
    unfinished: int

    @property
    def fields(self) -> dict[str, object]:
        """What a JSON line says about the input beside the prediction."""
        fields: dict[str, object] = {
            "input_tokens": self.read.num_tokens,
            "cut_tokens": self.read.num_cut,
            "num_segments": len(self.parts),
            "unfinished": self.unfinished,
        }
        if len(self.parts) < 2:
            return fields
        segments = []
        for segment, samples in self.parts:
            prediction = samples[0].text if samples else ""  # a blank segment has no output
            score = samples[0].score if samples else 0.0
            segments.append({"input": segment.text, "prediction": prediction, "score": score})
        fields["segments"] = segments
        return fields


@dataclasses.dataclass
class Totals:
    """Counts of the texts that were longer than the model reads."""

    limit: int
    longer: int = 0  # texts
    segments: int = 0  # of these
    cut: int = 0  # tokens that were not read
    unfinished: int = 0  # texts with a segment whose output did not end

    def sentences(self) -> list[str]:
        """Returns the sentences about them that a command prints at its end."""
        sentences = []
        if self.segments:
            sentences.append(
                f"{self.longer:,} inputs were longer than the {self.limit:,} tokens that are read at once; they were"
                f" generated in {self.segments:,} segments, and joined."
            )
        elif self.longer:
            sentences.append(
                f"{self.longer:,} inputs were cut to the {self.limit:,} tokens that the model reads; {self.cut:,} of"
                " their tokens were not read."
            )
        if self.unfinished:
            sentences.append(f"GenerationConfig.max_tokens ended {self.unfinished:,} of the texts.")
        return sentences


class SegmentWriter:
    """Generates text for texts of any length; `totals` counts the long ones. All processes call it alike.

    `trained` is a TrainedModel, `writer` its writer for `config`. `say` gets the one warning of a cut input. Raises
    ConfigError for segments of a language model, whose prompts it continues.
    """

    def __init__(
        self, trained: Any, config: GenerationConfig, writer: Writer, say: Callable[[str], None] | None = None
    ):
        self._trained = trained
        self._config = config
        self._writer = writer
        self._say = say or logger.warning
        self._continues = trained.network.config.is_decoder_only
        self.choice = choice_of(trained, config)
        self.limit = 0 if self._continues else self._longest()
        self.totals = Totals(self.limit)

    def _longest(self) -> int:
        """Returns the tokens that are read at once, prefix and end of sequence included."""
        lengths = self._trained.lengths
        if self.choice != "segments":
            return lengths["inputs"]
        prefix = self._count("") - self._around
        limit = min(lengths["inputs"], int(ROOM * min(lengths["targets"], self._config.max_tokens)) + prefix)
        if limit < prefix + 3:
            raise InputError(
                f"Segments of {limit} tokens, {prefix} of them of the prefix, hold no text; raise"
                " GenerationConfig.max_tokens, or set GenerationConfig.long_inputs to 'cut'.",
                fix=("GenerationConfig.long_inputs", "cut"),
            )
        return limit

    def _count(self, text: str) -> int:
        trained = self._trained
        return len(input_ids(trained.prefix + text, trained.vocabulary, trained.special_ids))

    @property
    def _around(self) -> int:
        """The number of ids around a text, such as the end of sequence."""
        special = self._trained.special_ids
        return len(special.before) + len(special.after)

    def read(self, text: str, name: str) -> Read:
        """Returns what is read of a text; InputError, which names it, if it is longer and long inputs are refused."""
        text = whole_letters(text)
        if self._continues:
            return Read([Segment(text)], len(self._trained.tokenize(text)))
        num_tokens = self._count(text)
        if self.choice == "segments":
            return Read(segments_of(text, self._count, self.limit), num_tokens)
        num_cut = max(0, num_tokens - self.limit)
        if num_cut and self.choice == "refuse":
            raise InputError(
                f"{name} has {num_tokens:,} tokens, and the model reads {self.limit:,}; split it, or set"
                " GenerationConfig.long_inputs to 'segments' or 'cut'."
            )
        if num_cut and not self.totals.longer:
            self._say(
                f"{name} has {num_tokens:,} tokens, and the model reads {self.limit:,}: the rest of it, and of other"
                " long inputs, is not read. GenerationConfig.long_inputs 'segments' generates all of it."
            )
        return Read([Segment(text)], num_tokens, num_cut)

    def results(
        self, texts: Sequence[str], first: int = 0, name: str = "Input", skips_blank: bool = False
    ) -> Iterator[tuple[int, Result]]:
        """Yields (index, result) of each text, in any order; `first` is the number of the first text, from 0.

        Samples of a text depend only on its number. Blank texts have no output with `skips_blank`, and blank segments
        never have one.
        """
        done: dict[int, dict[Key, tuple[Segment, Sequence[Written]]]] = collections.defaultdict(dict)
        num_waiting: collections.Counter[int] = collections.Counter()  # segments of each text without an output yet
        reads: list[Read] = []
        work: list[Item] = []
        for index, text in enumerate(texts):
            read = self.read(text, f"{name} {first + index + 1:,}")
            reads.append(read)
            self._count_long(read)
            for number, segment in enumerate(read.segments):
                if segment.text.strip() or not (skips_blank or self.choice == "segments"):
                    work.append(Item(index, (number,), segment, 0))
                    num_waiting[index] += 1
                else:
                    done[index][number,] = (segment, [])
            if not num_waiting[index]:  # a blank text
                samples = [Written("", 0.0, np.zeros(0, np.int32))] * self._config.num_samples
                yield index, Result(read, samples, list(done.pop(index, {}).values()), 0)
        # Segments of all texts are generated side by side; those whose output does not end come back as two.
        while work:
            again: list[Item] = []
            for item, samples in self._written(work, first):
                halves = self._halves(item, samples)
                if halves:
                    again += halves
                    num_waiting[item.text] += len(halves) - 1
                    continue
                done[item.text][item.key] = (item.segment, samples)
                num_waiting[item.text] -= 1
                if not num_waiting[item.text]:
                    parts = done.pop(item.text)
                    yield item.text, self._joined(reads[item.text], [parts[key] for key in sorted(parts)])
            work = again

    def _count_long(self, read: Read) -> None:
        is_in_segments = self.choice == "segments" and len(read.segments) > 1
        if is_in_segments:
            self.totals.segments += len(read.segments)
        if is_in_segments or read.num_cut:
            self.totals.longer += 1
        self.totals.cut += read.num_cut

    def _written(self, work: Sequence[Item], first: int) -> Iterator[tuple[Item, list[Written]]]:
        inputs = [self._trained.tokenize(item.segment.text) for item in work]
        for batch in self._writer.batches(inputs):
            items = [work[i] for i in batch]
            numbers = [_number(first + item.text, item.key) for item in items]
            written = self._writer.write(self._trained.params, [inputs[i] for i in batch], numbers)
            yield from zip(items, written, strict=True)

    def _halves(self, item: Item, samples: Sequence[Written]) -> list[Item]:
        """Returns the parts of a segment whose output did not end, or nothing if it is not cut any more."""
        if self.choice != "segments" or item.halvings == HALVINGS or not self._is_unfinished(samples):
            return []
        num_around = self._count("")  # tokens of the prefix and around a text
        num_own = self._count(item.segment.text) - num_around
        limit = num_around + max(2, -(-num_own // 2))
        halves = segments_of(item.segment.text, self._count, limit)
        if len(halves) < 2:
            return []
        halves[-1] = halves[-1]._replace(after=halves[-1].after + item.segment.after)
        return [Item(item.text, (*item.key, i), half, item.halvings + 1) for i, half in enumerate(halves)]

    def _is_unfinished(self, samples: Sequence[Written]) -> bool:
        ends = self._trained.special_ids.ends
        return not self._continues and any(not np.isin(sample.ids, ends).any() for sample in samples)

    def _joined(self, read: Read, parts: Sequence[tuple[Segment, Sequence[Written]]]) -> Result:
        unfinished = sum(self._is_unfinished(samples) for _, samples in parts)
        self.totals.unfinished += bool(unfinished)
        if len(parts) == 1:
            return Result(read, parts[0][1], parts, unfinished)
        return Result(read, [_sample(parts, number) for number in range(self._config.num_samples)], parts, unfinished)


def choice_of(trained: Any, config: GenerationConfig) -> str:
    """Returns what is done with long inputs: the configuration's choice, else the task's.

    A language model has no maximum length of inputs and gets 'cut', which never applies. ConfigError for its
    'segments'.
    """
    if not trained.network.config.is_decoder_only:
        return config.long_inputs or long_inputs_of(trained.task)
    if config.long_inputs == "segments":
        raise ConfigError(
            "GenerationConfig.long_inputs", "is 'segments', and a language model continues its prompt; leave it out."
        )
    return "cut"


def check_all(writer: SegmentWriter, texts: Iterable[str], name: str = "Input") -> None:
    """Raises InputError for the first text that is refused, before text is generated for any."""
    for number, text in enumerate(texts, 1):
        writer.read(text, f"{name} {number:,}")


def _sample(parts: Sequence[tuple[Segment, Sequence[Written]]], number: int) -> Written:
    """Returns one sample of all segments, joined."""
    blank = Written("", 0.0, np.zeros(0, np.int32))
    samples = [samples[number] if samples else blank for _, samples in parts]
    text = joined([segment for segment, _ in parts], [sample.text for sample in samples])
    return Written(text, sum(sample.score for sample in samples), np.concatenate([sample.ids for sample in samples]))


def _number(text: int, key: Key) -> int:
    """Returns the number that a segment's samples depend on: for the first segment its text's own.

    So a text that is read whole has the same samples as without segments. The others get a hash of 32 bits, as many as
    a random key folds in.
    """
    if key == (0,):
        return text
    return (text ^ zlib.crc32(repr((text, key)).encode())) & 0xFFFFFFFF
