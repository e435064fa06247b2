"""The validation split as batches and as examples, the same on every host; and the share that is truncated."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import seqio
import tensorflow as tf

from limba.config import DataConfig
from limba.data.objectives.supervised import is_supervised, lengths_of, text_of, truncation_report
from limba.data.objectives.token_blocks import unwrapped
from limba.data.packing import FEATURES, batched, model_features
from limba.data.registry import Task
from limba.data.stream.shard import Rows, examples_of, padded_rows, single_threaded, source_errors
from limba.data.tasks import Provider, parts_of, unit_sources

logger = logging.getLogger(__name__)

SEED = 0


def validation_batches(
    task: Provider, lengths: Mapping[str, int], config: DataConfig, num_batches: int | None, num_rows: int | None = None
) -> list[dict[str, np.ndarray]]:
    """Returns the validation split, read once in order, as at most `num_batches` (None: all) batches of model features.

    A batch has `num_rows`; None: as many as one of training. They are the same on every host and in every run of this
    corpus and objective. The last batch is padded with rows of zeros. For an empty split there are no batches, and a
    warning is logged.
    """
    parts = [_examples(part, lengths, config) for part in parts_of(task) if _has_split(part, config)]
    batches: list[dict[str, np.ndarray]] = []
    left, num_rows = num_batches, num_rows or config.batch_size
    for number, part in enumerate(parts):
        share = -1 if left is None else -(-left // (len(parts) - number))  # -1: all
        taken = single_threaded(batched(part, lengths, num_rows, whole=False, packed=config.pack).take(share))
        with source_errors(task):
            rows = [padded_rows(cast(Rows, batch), num_rows) for batch in taken.as_numpy_iterator()]
        batches += [model_features(batch, config.sequence_length) for batch in rows]
        left = None if left is None else left - len(rows)
    if not batches:
        logger.warning(
            "The split %r of %s has no text: nothing is evaluated. %s",
            config.validation_split,
            task.name,
            "A larger DataConfig.validation_percent takes more of the training text."
            if any(source.is_carved(config.validation_split) for source in unit_sources(task).values())
            else "Check its files.",
        )
    return batches


def validation_examples(part: Task, lengths: Mapping[str, int], config: DataConfig, count: int) -> list[dict[str, Any]]:
    """Returns a supervised task's first validation examples as seqio's Evaluator has them: ids int32 [<= L], text.

    There are none where the task has no such split. The text is bytes. They are the same on every host and in every
    run. Where inputs and targets are the same text, as with and without diacritics, a text that is truncated is given
    as far as the model reads it.
    """
    if not _has_split(part, config):
        return []
    examples = seqio.trim_dataset(_examples(part, lengths, config), lengths, part.output_features)
    with source_errors(part):
        found = cast(list[dict[str, Any]], list(single_threaded(examples.take(count)).as_numpy_iterator()))
    is_one_text = any(getattr(unwrapped(step), "is_one_text", False) for step in part.preprocessors)
    return [_as_read(part, lengths, example) for example in found] if is_one_text else found


def _has_split(part: Task, config: DataConfig) -> bool:
    return bool(unit_sources(part)) or config.validation_split in part.splits


def _as_read(part: Task, lengths: Mapping[str, int], example: dict[str, Any]) -> dict[str, Any]:
    """Returns an example with the text of its tokens in place of a longer one."""
    for name in FEATURES:
        vocabulary, ids = part.output_features[name].vocabulary, example[name]
        text = text_of(example, name, vocabulary)
        if len(ids) == lengths[name] and len(vocabulary.encode(text)) + 1 > len(ids):
            example = {**example, f"{name}_pretokenized": vocabulary.decode(ids[:-1].tolist()).encode()}
    return example


def _examples(part: Task, lengths: Mapping[str, int], config: DataConfig) -> tf.data.Dataset:
    """Returns the validation split's examples, once and in order."""
    split = config.validation_split
    for source in unit_sources(part).values():
        return examples_of(part, lengths, source.documents(split, shuffle=False, num_epochs=1), SEED)
    return part.get_dataset(lengths, split, shuffle=False, seed=SEED, num_epochs=1, try_in_mem_cache=False)


def truncation(task: Provider, lengths: Mapping[str, int], config: DataConfig, count: int = 500) -> list[str]:
    """Returns a sentence per supervised task: the share of its first examples that is truncated."""
    found = []
    sources = unit_sources(task)
    for part in filter(is_supervised, parts_of(task)):
        if part.name in sources:
            documents = sources[part.name].documents(config.train_split, shuffle=False, num_epochs=1)
            with source_errors(task):
                sizes = lengths_of(part, documents, lengths, count)
            if sizes:
                found.append(f"{part.name}: {truncation_report(sizes, lengths)}")
    return found
