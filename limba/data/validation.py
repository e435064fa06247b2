"""The held-out split as batches and as examples, alike on every host; and what lengths cut off."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import seqio

from limba.config import DataConfig
from limba.data.objectives.supervised import is_supervised, lengths_of, truncation_report
from limba.data.packing import batched, model_features
from limba.data.sources.files import UnitSource
from limba.data.streams import alone, clear_errors, examples_of, filled
from limba.data.tasks import Provider, parts_of

logger = logging.getLogger(__name__)

SEED = 0


def validation_batches(
    task: Provider, lengths: Mapping[str, int], config: DataConfig, num_batches: int | None
) -> list[dict[str, np.ndarray]]:
    """Returns the held-out split, read once in order, as at most `num_batches` (None: all) batches of model features.

    Every host and every run of this corpus and objective gets the same. The last batch is filled up
    with rows of zeros; an empty split gives no batch, and a warning.
    """
    parts = []
    for part in parts_of(task):
        if isinstance(part.source, UnitSource):
            documents = part.source.documents(config.validation_split, shuffle=False, num_epochs=1)
            parts.append(examples_of(part, lengths, documents, SEED))
        elif config.validation_split in part.splits:
            parts.append(
                part.get_dataset(
                    lengths,
                    config.validation_split,
                    shuffle=False,
                    seed=SEED,
                    num_epochs=1,
                    try_in_mem_cache=False,
                )
            )
    batches: list[dict[str, np.ndarray]] = []
    left = num_batches
    for number, part in enumerate(parts):
        share = -1 if left is None else -(-left // (len(parts) - number))  # -1: all
        taken = alone(batched(part, lengths, config.batch_size, whole=False, packed=config.pack).take(share))
        with clear_errors(task):
            rows = [filled(batch, config.batch_size) for batch in taken.as_numpy_iterator()]
        batches += [model_features(batch, config.sequence_length) for batch in rows]
        left = None if left is None else left - len(rows)
    if not batches:
        sources = [part.source for part in parts_of(task) if isinstance(part.source, UnitSource)]
        logger.warning(
            "The split %r of %s holds no text: nothing is evaluated. %s",
            config.validation_split,
            task.name,
            "A larger validation_percent takes more from the training text."
            if any(source.is_carved(config.validation_split) for source in sources)
            else "Look at its files.",
        )
    return batches


def validation_examples(
    part: seqio.Task, lengths: Mapping[str, int], config: DataConfig, count: int
) -> list[dict[str, Any]]:
    """Returns the held-out split's first examples as seqio's Evaluator has them: ids int32 [<= L], text in bytes.

    Of a supervised task; the same ones for every host and run.
    """
    if isinstance(part.source, UnitSource):
        documents = part.source.documents(config.validation_split, shuffle=False, num_epochs=1)
        examples = seqio.trim_dataset(examples_of(part, lengths, documents, SEED), lengths, part.output_features)
    else:
        examples = part.get_dataset(lengths, config.validation_split, shuffle=False, try_in_mem_cache=False)
    with clear_errors(part):
        return list(alone(examples.take(count)).as_numpy_iterator())


def truncation(task: Provider, lengths: Mapping[str, int], config: DataConfig, count: int = 500) -> list[str]:
    """Returns a sentence for each supervised task on what its lengths cut of its first examples."""
    found = []
    for part in parts_of(task):
        if is_supervised(part) and isinstance(part.source, UnitSource):
            documents = part.source.documents(config.train_split, shuffle=False, num_epochs=1)
            with clear_errors(task):
                sizes = lengths_of(part, documents, lengths, count)
            if sizes:
                found.append(f"{part.name}: {truncation_report(sizes, lengths)}")
    return found
