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
from limba.inference.generate import Writer, Written, input_ids

logger = logging.getLogger(__name__)

ROOM = 0.9  # share of the targets' length that a segment may have, since its output may be longer
HALVINGS = 3  # times at most that a segment whose output does not end is cut in two
Key = tuple[int, ...]  # of a segment: its place in the text, then in the segment that was cut in two


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
        """What a JSON line says of the input beside the prediction."""
        found: dict[str, object] = {"input_tokens": self.read.num_tokens, "cut_tokens": self.read.num_cut}
        found |= {"num_segments": len(self.parts), "unfinished": self.unfinished}
        if len(self.parts) > 1:
            found["segments"] = [
                {
                    "input": segment.text,
                    "prediction": samples[0].text if samples else "",
                    "score": samples[0].score if samples else 0.0,
                }
                for segment, samples in self.parts
            ]
        return found


@dataclasses.dataclass
class Totals:
    """Counts of the texts that were longer than the model reads."""

    limit: int
    longer: int = 0  # texts
    segments: int = 0  # of these
    cut: int = 0  # tokens that were not read
    unfinished: int = 0  # texts with a segment whose output did not end

    def sentences(self) -> list[str]:
        """Returns what is said of them at the end."""
        found = []
        if self.segments:
            found.append(
                f"{self.longer:,} inputs were longer than the {self.limit:,} tokens that are read at once; they were"
                f" generated in {self.segments:,} segments, and joined."
            )
        elif self.longer:
            found.append(
                f"{self.longer:,} inputs were cut to the {self.limit:,} tokens that the model reads; {self.cut:,} of"
                " their tokens were not read."
            )
        if self.unfinished:
            found.append(f"GenerationConfig.max_tokens ended {self.unfinished:,} of the texts.")
        return found


class SegmentWriter:
    """Generates text for texts of any length; `totals` counts the long ones. All processes call it alike.

    `trained` is a TrainedModel, `writer` its writer for `config`. `say` gets the one warning of a cut input. Raises
    ConfigError for segments of a language model, whose prompts it continues.
    """

    def __init__(
        self, trained: Any, config: GenerationConfig, writer: Writer, say: Callable[[str], None] | None = None
    ):
        self._trained, self._config, self._say, self._writer = trained, config, say or logger.warning, writer
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
        """The tokens around a text, the end of sequence."""
        special = self._trained.special_ids
        return len(special.before) + len(special.after)

    def read(self, text: str, name: str) -> Read:
        """Returns what is read of a text; InputError, which names it, if it is longer and long inputs are refused."""
        text = text.encode("utf-8", "replace").decode()  # JSON can hold halves of surrogate pairs, and UTF-8 cannot
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
                f"{name} has {num_tokens:,} tokens, and the model reads {self.limit:,}: its rest is not read, nor that"
                " of other long inputs. GenerationConfig.long_inputs 'segments' generates all of it."
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
        waiting: collections.Counter[int] = collections.Counter()
        reads: dict[int, Read] = {}
        work: list[tuple[int, Key, Segment, int]] = []
        for place, text in enumerate(texts):
            reads[place] = read = self.read(text, f"{name} {first + place + 1:,}")
            for number, segment in enumerate(read.segments):
                if segment.text.strip() or not (skips_blank or self.choice == "segments"):
                    work.append((place, (number,), segment, 0))
                    waiting[place] += 1
                else:
                    done[place][number,] = (segment, [])
            in_segments = self.choice == "segments" and len(read.segments) > 1
            self.totals.longer += in_segments or read.num_cut > 0
            self.totals.segments += len(read.segments) if in_segments else 0
            self.totals.cut += read.num_cut
            if not waiting[place]:
                samples = [Written("", 0.0, np.zeros(0, np.int32))] * self._config.num_samples
                yield place, Result(read, samples, list(done.pop(place, {}).values()), 0)
        while work:
            again: list[tuple[int, Key, Segment, int]] = []
            for (place, key, segment, halvings), samples in self._written(work, first):
                if halves := self._halves(segment, samples, halvings):
                    again += [(place, (*key, i), half, halvings + 1) for i, half in enumerate(halves)]
                    waiting[place] += len(halves) - 1
                    continue
                done[place][key] = (segment, samples)
                waiting[place] -= 1
                if not waiting[place]:
                    parts = done.pop(place)
                    yield place, self._joined(reads[place], [parts[key] for key in sorted(parts)])
            work = again

    def _written(self, work: Sequence[tuple], first: int) -> Iterator[tuple[tuple, list[Written]]]:
        inputs = [self._trained.tokenize(segment.text) for _, _, segment, _ in work]
        for batch in self._writer.batches(inputs):
            items = [work[i] for i in batch]
            numbers = [_number(first + place, key) for place, key, _, _ in items]
            written = self._writer.write(self._trained.params, [inputs[i] for i in batch], numbers)
            yield from zip(items, written, strict=True)

    def _halves(self, segment: Segment, samples: Sequence[Written], halvings: int) -> list[Segment]:
        """Returns the parts of a segment whose output did not end, or nothing if it is not cut any more."""
        if self.choice != "segments" or halvings == HALVINGS or not self._is_unfinished(samples):
            return []
        around = self._count("")  # the prefix, and what stands around a text
        limit = around + max(2, -(-(self._count(segment.text) - around) // 2))
        halves = segments_of(segment.text, self._count, limit)
        return [] if len(halves) < 2 else [*halves[:-1], halves[-1]._replace(after=halves[-1].after + segment.after)]

    def _is_unfinished(self, samples: Sequence[Written]) -> bool:
        ends = self._trained.special_ids.ends
        return not self._continues and any(not np.isin(each.ids, ends).any() for each in samples)

    def _joined(self, read: Read, parts: Sequence[tuple[Segment, Sequence[Written]]]) -> Result:
        unfinished = sum(self._is_unfinished(samples) for _, samples in parts)
        self.totals.unfinished += bool(unfinished)
        if len(parts) == 1:
            return Result(read, parts[0][1], parts, unfinished)
        return Result(read, [_sample(parts, number) for number in range(self._config.num_samples)], parts, unfinished)


def choice_of(trained: Any, config: GenerationConfig) -> str:
    """Returns what is done with long inputs: the configuration's choice, else the task's.

    A language model has no length of inputs: 'cut', which then means nothing. ConfigError for its 'segments'.
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
    samples = [samples[number] if samples else None for _, samples in parts]
    text = joined([segment for segment, _ in parts], ["" if each is None else each.text for each in samples])
    ids = [each.ids for each in samples if each is not None]
    return Written(text, sum(each.score for each in samples if each is not None), np.concatenate(ids))


def _number(place: int, key: Key) -> int:
    """Returns the number that a segment's samples depend on: that of its text for the first one."""
    return place if key == (0,) else (place ^ zlib.crc32(repr((place, key)).encode())) & 0xFFFFFFFF
