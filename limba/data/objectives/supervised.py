"""Preprocessors of supervised tasks, whose source gives inputs and targets: translation, summaries, classes, …

An element is {"inputs": string, "targets": string} until it is tokenized. `SUPERVISED` are the last preprocessors of
such a task. The text stays in the example as `targets_pretokenized`, for metrics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import seqio
import tensorflow as tf

from limba import toolbox
from limba.config import ConfigError
from limba.data.objectives.token_blocks import unwrapped
from limba.data.packing import FEATURES
from limba.data.registry import Mixture, Task
from limba.data.vocabulary.vocabularies import Vocabulary

# `append_eos_after_trim` cuts to one less than the length and appends the end: every example has exactly one.
SUPERVISED = (seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim)
TOKENIZERS = (seqio.preprocessors.tokenize, seqio.preprocessors.tokenize_and_append_eos)


def text_of(example: Mapping[str, Any], name: str, vocabulary: Vocabulary) -> str:
    """Returns a feature's text before tokenization or, if the example lacks it, the text of its ids."""
    text = example.get(f"{name}_pretokenized")
    return vocabulary.decode(example[name].tolist()) if text is None else text.decode()


def add_prefix(dataset: tf.data.Dataset, prefix: str = "") -> tf.data.Dataset:
    """Returns the examples with the prefix before their inputs."""
    return dataset.map(lambda example: {**example, "inputs": tf.strings.join([prefix, example["inputs"]])})


def with_prefix(task: Task, prefix: str) -> Task:
    """Returns the task with another prefix; ConfigError if it has no `add_prefix`."""
    steps = list(task.preprocessors)
    places = [i for i, step in enumerate(steps) if unwrapped(step) is add_prefix]
    if len(places) != 1:
        raise ConfigError(
            "DataConfig.prefix",
            f"is {prefix!r}, and task {task.name} has no add_prefix of limba.data.objectives; leave it None.",
        )
    steps[places[0]] = functools.partial(add_prefix, prefix=prefix)
    return task.replace(preprocessors=steps)


def prefix_of(task: Task | Mixture) -> str:
    """Returns the task's prefix; "" for a task without `add_prefix`, and for a mixture."""
    for step in getattr(task, "preprocessors", ()):
        if isinstance(step, functools.partial) and step.func is add_prefix:
            return step.keywords["prefix"]
    return ""


def is_supervised(task: Task) -> bool:
    """Returns whether the task tokenizes inputs and targets of its source, so that metrics can compare texts."""
    return any(unwrapped(step) in TOKENIZERS for step in task.preprocessors) and not has_objective(task)


def has_objective(task: Task) -> bool:
    """Returns whether the task has an objective of another trainer, which makes inputs of the one text."""
    migrate = toolbox.find("migrate")
    modules = ((name_of(step), getattr(unwrapped(step), "__module__", "") or "") for step in task.preprocessors)
    return any(migrate and migrate.is_objective(name, module) for name, module in modules)


def name_of(step: Callable[..., object]) -> str:
    return getattr(unwrapped(step), "__name__", "")


def lengths_of(task: Task, documents: tf.data.Dataset, limits: Mapping[str, int], count: int) -> list[dict[str, int]]:
    """Returns the lengths of the first examples before truncation, including the end of sequence."""
    from limba.data.seqio_tasks import as_seqio

    task = as_seqio(task)
    examples = task.preprocess_postcache(task.preprocess_precache(documents), sequence_length=limits)
    vocabularies = {name: task.output_features[name].vocabulary for name in FEATURES}
    return [
        {name: len(vocabularies[name].encode(text_of(example, name, vocabularies[name]))) + 1 for name in FEATURES}
        for example in examples.take(count).as_numpy_iterator()
    ]


def truncation_report(lengths: list[dict[str, int]], limits: Mapping[str, int]) -> str:
    """Returns a sentence on the truncation of examples with these lengths.

    >>> truncation_report([{"inputs": 9, "targets": 3}], {"inputs": 8, "targets": 4})
    'Of 1 examples 100.0 % of inputs are cut to 8 tokens (longest 9), 0.0 % of targets to 4 (longest 3).'
    """
    parts = []
    for name in FEATURES:
        sizes, limit = [length[name] for length in lengths], limits[name]
        share = sum(size > limit for size in sizes) / len(sizes)
        what = "are cut to {} tokens" if name == FEATURES[0] else "to {}"
        parts.append(f"{share:.1%} of {name} {what.format(limit)} (longest {max(sizes)})".replace("%", " %"))
    return f"Of {len(lengths)} examples {', '.join(parts)}."
