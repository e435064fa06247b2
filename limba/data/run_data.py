"""A run's task with what it reads, and its validation split, the same on every host, as batches and as examples."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.config import DataConfig
from limba.data import bridge, user_code
from limba.data.dataset import TEXT, Dataset, Elements
from limba.data.deal import has_row_per_document
from limba.data.draws import Draws
from limba.data.objectives.choice import derive_lengths, examples_of, with_noise
from limba.data.objectives.supervised import begin_of, is_supervised, text_of, truncation_report
from limba.data.objectives.token_blocks import unwrapped
from limba.data.packing import CAUSAL, FEATURES, batched, matrices, model_features, padded_rows
from limba.data.registry import Mixture, Task
from limba.data.sources.order import Counts
from limba.data.sources.units import UnitSource
from limba.data.stream import memory
from limba.data.stream.shard import Recipe
from limba.data.stream.stages import check_rows_of_stage, task_of_stage
from limba.data.stream.streams import feature_shapes
from limba.data.tasks import (
    Provider,
    advice_on,
    check_sources,
    failure_of_code,
    parts_of,
    resolve_task,
    trained_validation,
    unit_sources,
)
from limba.data.vocabulary.sentinels import sentinel_table
from limba.data.vocabulary.shifted import offset_of, row_ids_of

logger = logging.getLogger(__name__)

SEED = 0


def validation_batches(
    task: Provider, lengths: Mapping[str, int], config: DataConfig, num_batches: int | None, num_rows: int | None = None
) -> list[dict[str, np.ndarray]]:
    """Returns the validation split, read once in order, as at most `num_batches` (None: all) batches of model features.

    A batch has `num_rows`; None: as many as one of training. They are the same on every host and in every run of this
    corpus and objective. The last batch is padded with rows of zeros. For an empty split there are no batches, and a
    warning is logged. An encoder's are all masked, also where it learns causal ones too.
    """
    tasks = [part for part in parts_of(task) if _has_split(part, config)]
    if config.is_masked:
        tasks = [with_noise(part, causal_share=0.0) for part in tasks]
    parts = [_examples(part, lengths, config) for part in tasks]
    batches = []
    row_ids = row_ids_of(task.output_features["targets"].vocabulary)
    field = "DataConfig.batch_size" if num_rows is None else "EvaluationConfig.batch_size"
    left = num_batches
    num_rows = num_rows or config.batch_size
    memory.check_rows(field, num_rows, lengths)
    for number, part in enumerate(parts):
        share = None if left is None else -(-left // (len(parts) - number))
        taken = itertools.islice(batched(part, lengths, num_rows, whole=False, packed=config.pack), share)
        rows = [padded_rows(batch, num_rows) for batch in taken]
        batches += [model_features(batch, config.sequence_length, config.num_predicted, row_ids) for batch in rows]
        left = None if left is None else left - len(rows)
    if not batches:
        split = config.validation_split
        advice = "Check its files."
        if any(source.is_carved(split) for source in unit_sources(task).values()):
            advice = "A larger DataConfig.validation_percent takes more of the training text."
        logger.warning("The split %r of %s has no text: nothing is evaluated. %s", split, task.name, advice)
    return batches


def validation_examples(part: Task, lengths: Mapping[str, int], config: DataConfig, count: int) -> list[dict[str, Any]]:
    """Returns a supervised task's first validation examples as seqio's Evaluator has them: ids int32 [<= L], text.

    There are none where the task has no such split. The text is bytes. They are the same on every host and in every
    run. Where inputs and targets are the same text, as with and without diacritics, a text that is truncated is given
    as far as the model reads it.
    """
    if not _has_split(part, config):
        return []
    examples = [
        {name: value[: lengths[name]] if name in lengths else value for name, value in example.items()}
        for example in itertools.islice(_examples(part, lengths, config), count)
    ]
    is_one_text = any(getattr(unwrapped(step), "is_one_text", False) for step in part.preprocessors)
    return [_as_read(part, lengths, example) for example in examples] if is_one_text else examples


def _has_split(part: Task, config: DataConfig) -> bool:
    return bool(unit_sources(part)) or config.validation_split in part.splits


def _as_read(part: Task, lengths: Mapping[str, int], example: dict[str, Any]) -> dict[str, Any]:
    """Returns an example with the text of its tokens in place of a longer one."""
    for name in FEATURES:
        vocabulary = part.output_features[name].vocabulary
        ids = example[name]
        text = text_of(example, name, vocabulary)
        if len(ids) == lengths[name] and len(vocabulary.encode(text)) + 1 > len(ids):
            example = {**example, f"{name}_pretokenized": vocabulary.decode(ids[:-1].tolist()).encode()}
    return example


def _examples(part: Task, lengths: Mapping[str, int], config: DataConfig) -> Dataset:
    """Returns the validation split's examples, once and in order."""
    split = config.validation_split
    for source in unit_sources(part).values():
        return examples_of(part, lengths, source.documents(split, shuffle=False, num_epochs=1), Draws(SEED))
    return _of_seqio(part, lengths, split, SEED)


def _of_seqio(part: Task, lengths: Mapping[str, int], split: str, seed: int) -> Dataset:
    """Returns a task's examples by seqio's own `get_dataset`; what the task's code raises becomes one sentence."""
    with user_code.of_task(part, advice_on(part)):
        return bridge.of_seqio(part, lengths, split, seed, functools.partial(failure_of_code, part))


def truncation(task: Provider, lengths: Mapping[str, int], config: DataConfig, count: int = 500) -> dict[str, bool]:
    """Returns, for each supervised task, a sentence on its first examples' truncation, and whether any is truncated."""
    reports = {}
    sources = unit_sources(task)
    for part in filter(is_supervised, parts_of(task)):
        if part.name in sources:
            documents = sources[part.name].documents(config.train_split, shuffle=False, num_epochs=1)
            vocabularies = {name: part.output_features[name].vocabulary for name in FEATURES}
            around = {
                name: len(begin_of(vocabulary, name == FEATURES[0])) + 1 for name, vocabulary in vocabularies.items()
            }
            sizes = [
                {
                    name: len(vocabulary.encode(text_of(example, name, vocabulary))) + around[name]
                    for name, vocabulary in vocabularies.items()
                }
                for example in itertools.islice(examples_of(part, lengths, documents, Draws(SEED)), count)
            ]
            if sizes:
                longest = {name: max(size[name] for size in sizes) for name in vocabularies}
                is_any_cut = any(size > lengths[name] for name, size in longest.items())
                reports[f"{part.name}: {truncation_report(sizes, lengths)}"] = is_any_cut
    return reports


class RunData:
    """A configuration of data with its task. Raises the errors of `resolve_task` where no task is given.

    >>> from limba.data.task_modules import import_tasks
    >>> import_tasks("tasks.demo", "The example imports")
    >>> data = RunData(DataConfig("demo_span_corruption", {"inputs": 512}, batch_size=128, vocabulary="byte"))
    >>> data.lengths(), data.fills_gaps, data.sentinels[:2]
    ({'inputs': 512, 'targets': 114}, True, [358, 357])
    """

    def __init__(self, config: DataConfig, task: Provider | None = None):
        self.config = config
        self.task = resolve_task(config) if task is None else task
        self.parts = parts_of(self.task)

    @property
    def fills_gaps(self) -> bool:
        """True if a task has an objective with sentinels."""
        return not all(map(is_supervised, self.parts))

    @property
    def has_pairs(self) -> bool:
        """True if a task is supervised: the lengths of its rows depend on the text."""
        return any(map(is_supervised, self.parts))

    def lengths(self, configured: Mapping[str, int] | None = None) -> dict[str, int]:
        """Returns the lengths of rows, by the configuration's or these; see `derive_lengths`."""
        return derive_lengths(self.task, self.config.task_feature_lengths if configured is None else configured)

    def check(self) -> None:
        """Reads the beginning of every corpus; InputError for what a run could not read."""
        check_sources(self.task, self.config)

    def trained_validation(self, part: Task) -> str:
        """Returns a sentence that names files of both training and validation of one of `parts`, or ""; see `tasks`."""
        return trained_validation(part, self.config)

    def check_stage(self, begins: int, lengths: Mapping[str, int]) -> Task | Mixture:
        """Returns the task of the stage that begins at a step; InputError unless its rows are like the first one's."""
        later = RunData(self.config, task_of_stage(begins, self.task, lengths, self.config))
        later.check()
        check_rows_of_stage(begins, later.task, later.lengths(), self.task, lengths, self.config)
        return later.task

    def build(self, lengths: Mapping[str, int]) -> None:
        """Builds the preprocessors on no text; InputError for too few sentinels, and lengths that do not fit."""
        for part in self.parts:
            if isinstance(part.source, UnitSource):
                has_row_per_document(part, lengths)

    @property
    def sentinels(self) -> list[int]:
        """The ids of <extra_id_0>, <extra_id_1>, …, in `rows`."""
        return sentinel_table(self.task.output_features["targets"].vocabulary)

    def rows(self, lengths: Mapping[str, int]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yields the first data shard's rows as training reads them, some at once; InputError as its source raises.

        Their ids are the stream's, in which 0 is padding.
        """
        memory.check_stream(self.config, lengths, num_shards=1)
        recipe = Recipe(self.task, lengths, self.config)
        rows, widths = recipe.rows(0)
        size = recipe.batches_at_once * self.config.rows_per_shard
        for group in rows.batch(size, drop_remainder=self.config.num_epochs is None):
            yield matrices(group, widths, len(group))

    def examples(
        self, documents: Sequence[bytes], lengths: Mapping[str, int], split: str, seed: int
    ) -> Iterator[Mapping[str, np.ndarray]]:
        """Yields the ids of a task's examples of these documents; of all documents where its source is another's.

        Masked inputs are as the network reads them, without the mark of the tokens that it predicts. The ids are those
        of `PieceTable`, a published vocabulary's own, and without padding.
        """
        (part,) = self.parts
        if isinstance(part.source, UnitSource):
            elements = []
            for document in documents:
                elements += part.source.elements(document)
            texts = Elements(elements, dict.fromkeys(part.source.keys, TEXT))
            dataset = examples_of(part, lengths, texts, Draws(seed))
        else:
            dataset = _of_seqio(part, lengths, split, seed)
        names = [name for name in FEATURES if name in dataset.spec]
        offset = offset_of(part.output_features["targets"].vocabulary)
        return ({name: np.trim_zeros(example[name] % CAUSAL, "b") - offset for name in names} for example in dataset)

    def elements(self, part: Task, split: str) -> Iterator[Any]:
        """Yields what the source of a part that is not ours gives, once and in order: a text, or {feature: value}.

        What its code raises becomes one sentence.
        """
        with user_code.of_task(part, advice_on(part)):
            source = part.source.get_dataset(split, shuffle=False)
        yield from bridge.OfTensorflow(source, failure=functools.partial(failure_of_code, part))

    def feature_shapes(self, lengths: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Returns the shapes of a global batch's model features; no text is read."""
        return feature_shapes(self.task, lengths, self.config)

    def documents(self, part: Task) -> Counts | None:
        """Returns the counts of the training split of one of `parts`, where they are known or quickly counted."""
        return part.source.count(self.config.train_split)
