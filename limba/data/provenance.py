"""Which documents gave the tokens of some rows: found afterwards, at no cost in a normal step.

A shard is read once more from its beginning, by the same pipeline, but with every token replaced by the number of its
document. Masks, cuts, packing, shuffles and mixtures depend only on seeds and on numbers of tokens, so that each row
then names its documents.
"""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from limba.config import DataConfig, InputError
from limba.data.dataset import TOKENS as TOKENS_SPEC
from limba.data.dataset import Dataset, Spec, Step, preprocessor
from limba.data.deal import WHOLE_UNITS, Deal
from limba.data.objectives import token_blocks
from limba.data.objectives.choice import examples_of, objective_of
from limba.data.objectives.language_modeling import causal_lm, causal_lm_lengths, cut_documents
from limba.data.objectives.masked_language_modeling import masked_lm, whole_word_masked_lm
from limba.data.objectives.token_blocks import Features, tokenize_documents, unwrapped
from limba.data.objectives.whole_words import begins_word, corrupt_words, whole_word_span_corruption
from limba.data.packing import FEATURES
from limba.data.registry import Task
from limba.data.sources.parquet import TOKENS
from limba.data.sources.readers import FIELD_SEPARATOR
from limba.data.sources.splits import DOCUMENT
from limba.data.sources.units import UnitSource
from limba.data.stream.positions import DataPositions
from limba.data.stream.shard import Follow, Pipeline
from limba.data.tasks import Provider
from limba.data.user_code import UserCodeError
from limba.data.vocabulary.stream import published_of
from limba.data.vocabulary.vocabularies import Vocabulary

LARGEST = np.iinfo(np.int32).max
MASKED = (masked_lm, whole_word_masked_lm)
Wanted = Mapping[int, Sequence[tuple[int, int, int]]]  # element of the data set -> (batch, row, row in the element)
Found = dict[tuple[int, int], list[tuple[int, int]]]  # (batch, row) -> (part of the mixture, number of the document)


@dataclass(frozen=True)
class Document:
    """A document that gave tokens of a row. A long one is read in pieces: `text` has those that gave tokens.

    `row` is its number in its unit, from 0. Where a preprocessor cannot be followed, `is_exact` is False: the document
    was read shortly before the row was made, and may have given none of its tokens.
    """

    source: str  # the task that reads it
    unit: str  # a file, a range of its bytes, or a row group
    row: int
    text: str
    is_exact: bool = True


def documents_of(
    task: Provider,
    lengths: Mapping[str, int],
    config: DataConfig,
    shard: int,
    batch: int,
    rows: Sequence[int],
    position: bytes | None = None,
    deal: Deal = WHOLE_UNITS,
) -> list[Document]:
    """Returns the documents that gave the tokens of these rows of a batch, in the order in which they were read.

    The arguments and errors are those of `documents_by_row`, which finds those of many batches at once.
    """
    by_row = documents_by_row(task, lengths, config, shard, {batch: rows}, position, deal)
    return list(dict.fromkeys(document for documents in by_row.values() for document in documents))


def documents_by_row(
    task: Provider,
    lengths: Mapping[str, int],
    config: DataConfig,
    shard: int,
    rows: Mapping[int, Sequence[int]],
    position: bytes | None = None,
    deal: Deal = WHOLE_UNITS,
) -> dict[tuple[int, int], list[Document]]:
    """Returns (batch, row) -> the documents that gave its tokens, for some rows of some batches; reads the shard once.

    `rows` maps a batch, counted from 1 as the steps are, to rows of the shard in it, counted from 0. The corpus must be
    the earlier one. A data position of the shard, saved at one of these batches or later, lets changes be noticed; a
    run that began a new pass over a changed corpus needs it. `deal` is the run's.

    Raises InputError for a batch or row that does not exist, for a corpus that has changed, and for a task whose source
    is not one of limba.data.sources.
    """
    size = config.rows_per_shard
    others = [row for several in rows.values() for row in several if not 0 <= row < size]
    if others or not 0 <= shard < config.num_shards:
        raise InputError(
            f"There is no row {others[0] if others else 0} of data shard {shard}; a batch has {config.num_shards}"
            f" shards of {size} rows, counted from 0."
        )
    if not rows:
        return {}
    first_epochs, before = _pass(Pipeline(task, lengths, config, deal), shard, min(rows), position)
    # Without the marks of a mixture's tasks: ids are numbers of documents here.
    pipeline = Pipeline(task, lengths, config, dataclasses.replace(deal, marks_corpora=False))
    wanted: dict[int, list[tuple[int, int, int]]] = {}
    for batch, several in sorted(rows.items()):
        fetch, place = divmod(batch - 1 - before, pipeline.rows_per_fetch // size)
        wanted.setdefault(fetch, []).extend((batch, row, place * size + row) for row in several)
    names, is_exact = _Names(pipeline), True
    try:
        found = _followed_rows(names, pipeline.dataset(shard, first_epochs, _following(names, lengths)), wanted)
    except _NotFollowedError:
        names, is_exact = _Names(pipeline), False
        found = _read_recently(names, pipeline.dataset(shard, first_epochs, _counting(names)), wanted)
    return {row: list(_documents(config.train_split, names, numbers, is_exact)) for row, numbers in found.items()}


class _NotFollowedError(Exception):
    """A preprocessor does not pass on which document its result comes from."""


class _Names:
    """Numbers the documents of all tasks as they are read; a number stands for a token in the replayed pipeline."""

    def __init__(self, pipeline: Pipeline):
        self.parts, self.sources = pipeline.parts, pipeline.sources
        if unnamed := [part.name for part in self.parts if part.name not in self.sources]:
            raise InputError(
                f"The documents of task {unnamed[0]} have no names, since its source is not one of"
                " limba.data.sources; set DataConfig.data_files to its files."
            )
        self._names = [array("q") for _ in self.parts]  # the numbers of each document's name, one after another
        self._widths = [1] * len(self.parts)
        vocabularies = [feature.vocabulary for part in self.parts for feature in part.output_features.values()]
        self._base = 2 * max(vocabulary.vocab_size for vocabulary in vocabularies)

    def place_of(self, part: Task) -> int:
        return [each.name for each in self.parts].index(part.name)

    def counts(self) -> list[int]:
        return [len(names) // width for names, width in zip(self._names, self._widths, strict=True)]

    def name(self, part: int, number: int) -> bytes | None:
        """Returns the name of a document; None if the number is none."""
        width = self._widths[part]
        numbers = self._names[part][number * width : (number + 1) * width] if number >= 0 else ()
        return b" ".join(b"%d" % each for each in numbers) if numbers else None

    def numbered(self, part: int, documents: Dataset) -> Dataset:
        """Returns the documents with their number, an int, as their feature DOCUMENT, in place of their name."""

        def number(name: bytes) -> int:
            numbers = [int(each) for each in name.split()]
            self._widths[part] = len(numbers)
            self._names[part].extend(numbers)
            found = self.counts()[part] - 1
            if self._base + 2 * (found + 1) * len(self.parts) > LARGEST:
                raise InputError("The batch comes after too many documents to be followed; give an earlier one.")
            return found

        spec = {**documents.spec, DOCUMENT: Spec("int64")}
        return documents.map(lambda example: {**example, DOCUMENT: number(example[DOCUMENT])}, spec)

    def marked(self, part: int, tokens: np.ndarray, number: int, marks: np.ndarray | bool = False) -> np.ndarray:
        """Returns the document's number and a mark, one int32, in place of each token but zeros, which are padding."""
        code = self._base + 2 * (int(number) * len(self.parts) + part)
        return np.where(tokens == 0, 0, code + np.asarray(marks, np.int32)).astype(np.int32)

    def in_row(self, element: Mapping[str, np.ndarray], place: int) -> list[tuple[int, int]]:
        """Returns (part, number) of the documents in a row of the replayed pipeline."""
        values = np.concatenate([element[name][place] for name in FEATURES if name in element])
        numbers = np.unique((values[values >= self._base] - self._base) // 2)
        return [(int(each % len(self.parts)), int(each // len(self.parts))) for each in numbers]


def _following(names: _Names, lengths: Mapping[str, int]) -> Follow:
    """Returns a function from a task's traced documents to its examples, with marked numbers in place of tokens."""

    def follow(part: Task, sequence_length: Mapping[str, int], documents: Dataset, seed: int) -> Dataset:
        place = names.place_of(part)
        followed = part.replace(preprocessors=[_followed(names, place, part, step) for step in part.preprocessors])
        try:
            examples = examples_of(followed, sequence_length, names.numbered(place, documents), seed)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError) and not isinstance(error, UserCodeError):
                raise
            raise _NotFollowedError from error  # a preprocessor that takes no further feature
        if DOCUMENT not in examples.spec:
            if any(map(objective_of, part.preprocessors)):
                return examples
            raise _NotFollowedError
        return examples.map(
            lambda example: {name: names.marked(place, example[name], example[DOCUMENT]) for name in lengths},
            dict.fromkeys(lengths, TOKENS_SPEC),
        )

    return follow


def _counting(names: _Names) -> Follow:
    """Returns a function that makes a task's own examples, and only numbers the documents as they are read."""

    def follow(part: Task, lengths: Mapping[str, int], documents: Dataset, seed: int) -> Dataset:
        numbered = names.numbered(names.place_of(part), documents)
        spec = {name: each for name, each in documents.spec.items() if name != DOCUMENT}
        plain = numbered.map(lambda example: {name: example[name] for name in spec}, spec)
        return examples_of(part, lengths, plain, seed)

    return follow


def _followed(names: _Names, place: int, part: Task, step: Step) -> Step:
    """Returns the preprocessor for documents with numbers: it makes marked numbers where `step` makes tokens."""
    function, choices, marks = unwrapped(step), getattr(step, "keywords", {}), _marks(part)

    @preprocessor
    def tokenize(dataset: Dataset, output_features: Features) -> Dataset:
        _require_number(dataset)
        name, tokens_of = token_blocks.tokenizer_of(dataset, output_features, **choices)

        def marked(example: Mapping[str, Any]) -> np.ndarray:
            tokens = tokens_of([example[name]])
            return names.marked(place, tokens, example[DOCUMENT], marks(tokens))

        vectors = dataset.map(marked).batch(token_blocks.DOCUMENTS_PER_BATCH)
        return vectors.map(lambda vectors: {"targets": np.concatenate(vectors)}, {"targets": TOKENS_SPEC})

    @preprocessor
    def objective(dataset: Dataset, sequence_length: Mapping[str, int], output_features: Features) -> Dataset:
        if tokenize_documents not in map(unwrapped, part.preprocessors):  # tokens of another preprocessor
            _require_number(dataset)
            mark = lambda tokens, number: names.marked(place, tokens, number, marks(tokens))
            change = lambda example: {"targets": mark(example["targets"], example[DOCUMENT])}
            dataset = dataset.map(change, {"targets": TOKENS_SPEC})
        if function is whole_word_span_corruption:
            shares = (choices.get("noise_density", 0.15), choices.get("mean_noise_span_length", 3.0))
            append = choices.get("append_eos", True)
            return corrupt_words(dataset, sequence_length, output_features, shares, append, _is_marked)
        if choices.get("whole_documents"):
            length = causal_lm_lengths(sequence_length)["targets"]
            rows = cut_documents(dataset.map(lambda example: example["targets"]), length, _is_marked)
        elif function in MASKED:
            rows = causal_lm(dataset, sequence_length, output_features)
        else:
            return step(dataset, sequence_length=sequence_length, output_features=output_features)
        if function in MASKED:  # whose inputs come from the same documents
            both = {"inputs": TOKENS_SPEC, "targets": TOKENS_SPEC}
            rows = rows.map(lambda row: dict.fromkeys(both, row["targets"]), both)
        return rows

    return tokenize if function is tokenize_documents else objective if objective_of(step) else step


def _marks(part: Task) -> Callable[[np.ndarray], np.ndarray | bool]:
    """Returns what an objective must know of a token besides its document: whether it begins a word, or ends a text."""
    vocabulary = part.output_features["targets"].vocabulary
    for step in part.preprocessors:
        if unwrapped(step) is whole_word_span_corruption:
            return begins_word(vocabulary).__getitem__
        if getattr(step, "keywords", {}).get("whole_documents"):
            return lambda tokens: tokens == vocabulary.eos_id
    return lambda tokens: False


def _is_marked(values: np.ndarray) -> np.ndarray:
    return values % 2 == 1


def _require_number(dataset: Dataset) -> None:
    if DOCUMENT not in dataset.spec:
        raise _NotFollowedError


def _followed_rows(names: _Names, dataset: Dataset, wanted: Wanted) -> Found:
    """Returns the documents of the wanted rows, from the replayed pipeline."""
    found: Found = {}
    for fetch, element in _elements(dataset, wanted):
        for batch, row, place in wanted.get(fetch, ()):
            found[batch, row] = names.in_row(element, place)
    return found


def _read_recently(names: _Names, dataset: Dataset, wanted: Wanted) -> Found:
    """Returns the documents read since the last but one time before the wanted rows were made."""
    found: Found = {}
    counts = [[0] * len(names.parts)] * 2  # after each fetch for which documents were read
    for fetch, _ in _elements(dataset, wanted):
        if names.counts() != counts[-1]:
            counts = [*counts[-2:], names.counts()]
        for batch, row, _ in wanted.get(fetch, ()):
            ranges = enumerate(map(range, counts[0], counts[-1]))
            found[batch, row] = [(part, number) for part, numbers in ranges for number in numbers]
    return found


def _elements(dataset: Dataset, wanted: Wanted) -> Iterator[tuple[int, Mapping[str, np.ndarray]]]:
    """Yields the numbered elements up to the last wanted one; InputError if the data set ends before it."""
    number, last = -1, max(wanted)
    for number, element in enumerate(itertools.islice(dataset, last + 1)):
        yield number, element
    if number < last:
        raise _no_batch(wanted[last][-1][0])


def _no_batch(batch: int) -> InputError:
    return InputError(f"There is no batch {batch}: batches count from 1 up to the end of the data shard.")


def _documents(split: str, names: _Names, numbers: Sequence[tuple[int, int]], is_exact: bool) -> Iterator[Document]:
    """Yields the documents with these (part, number), the pieces of one document together."""
    pieces: dict[tuple[int, int], list[int]] = {}  # (part, number of the first piece) -> numbers of pieces
    for part, number in numbers:
        first = number
        while names.name(part, first - 1) == names.name(part, number):
            first -= 1
        pieces.setdefault((part, first), []).append(number - first)
    for (part, first), read in pieces.items():
        source, name = names.sources[names.parts[part].name], names.name(part, first)
        assert name is not None
        unit, row, document = source.named(split, name)
        parts = source.pieces(document)
        text = b" ".join(parts[each % len(parts)] for each in read)
        vocabulary = names.parts[part].output_features["targets"].vocabulary
        yield Document(names.parts[part].name, unit, row, _text(source, text, vocabulary), is_exact)


def _text(source: UnitSource, document: bytes, vocabulary: Vocabulary) -> str:
    if source.keys == (TOKENS,):
        return published_of(vocabulary).decode(np.frombuffer(document, "<i4").tolist())
    return document.replace(FIELD_SEPARATOR, b"\t").decode(errors="replace")


def _pass(pipeline: Pipeline, shard: int, batch: int, position: bytes | None) -> tuple[Mapping[str, int], int]:
    """Returns (first epochs, batches before them) of the pass that the batch is part of."""
    first_epochs, before = {}, 0
    if position is not None:
        resumption = DataPositions(pipeline).check({shard: position})
        saved = resumption.saved[shard]
        first_epochs, before = saved.first_epochs, saved.about.get("batches_before", 0)
        if resumption.new_pass is not None:
            raise InputError(f"{resumption.change}; restore the original files.")
    if batch < 1:
        raise _no_batch(batch)
    if batch <= before:
        raise InputError(
            f"Batch {batch} was read from a corpus that changed after batch {before}: its documents cannot be found"
            " any more."
        )
    return first_epochs, before
