"""Preprocessors of supervised tasks, whose source gives inputs and targets: translation, summaries, classes, …

An element is {"inputs": string, "targets": string} until it is tokenized. `SUPERVISED` are the last preprocessors of
such a task. The text stays in the example as `targets_pretokenized`, for metrics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from limba import tool_registry
from limba.config import ConfigError
from limba.data.dataset import TOKENS, Dataset, Step, preprocessor
from limba.data.objectives.token_blocks import Features, unwrapped
from limba.data.packing import FEATURES
from limba.data.registry import Feature, Mixture, Task, parts_of
from limba.data.vocabulary.shifted import StreamVocabulary, offset_of
from limba.data.vocabulary.spelling import encoder
from limba.data.vocabulary.vocabularies import Vocabulary


@preprocessor
def tokenize(
    dataset: Dataset, output_features: Features, copy_pretokenized: bool = True, with_eos: bool = False
) -> Dataset:
    """Returns the examples with the tokens of each feature of `output_features`, as seqio's `tokenize`.

    The text stays as `{feature}_pretokenized` with `copy_pretokenized`. `with_eos` appends the end of sequence to
    features with `add_eos`.
    """
    names = [name for name in dataset.spec if name in output_features]
    features = {name: output_features[name] for name in names}
    encoders = {name: encoder(feature.vocabulary) for name, feature in features.items()}
    first = next((name for name in FEATURES if name in names), None)
    begins = {name: begin_of(feature.vocabulary, name == first) for name, feature in features.items()}
    ends = {name: _end(feature) for name, feature in features.items() if with_eos and feature.add_eos}

    def tokenized(example: Mapping[str, Any]) -> dict[str, Any]:
        tokens = dict(example)
        for name in names:
            (tokens[name],) = encoders[name]([example[name]])
            if len(begins[name]):
                tokens[name] = np.concatenate([begins[name], tokens[name]])
            if name in ends:
                tokens[name] = np.append(tokens[name], ends[name])
            if copy_pretokenized:
                tokens[f"{name}_pretokenized"] = example[name]
        return tokens

    texts = {f"{name}_pretokenized": dataset.spec[name] for name in names if copy_pretokenized}
    return dataset.map(tokenized, {**texts, **dataset.spec, **dict.fromkeys(names, TOKENS)})


@preprocessor
def tokenize_and_append_eos(dataset: Dataset, output_features: Features, copy_pretokenized: bool = True) -> Dataset:
    """Returns what `tokenize` does, with the end of sequence."""
    return tokenize(dataset, output_features, copy_pretokenized, with_eos=True)


@preprocessor
def append_eos(dataset: Dataset, output_features: Features) -> Dataset:
    """Returns the examples with the end of sequence after features with `add_eos`, as seqio's `append_eos`."""
    return append_eos_after_trim(dataset, output_features)


@preprocessor
def append_eos_after_trim(
    dataset: Dataset, output_features: Features, sequence_length: Mapping[str, int] | None = None
) -> Dataset:
    """Returns the examples, cut to one less than the length, with the end of sequence, as seqio's function does."""
    features = {name: output_features[name] for name in dataset.spec if name in output_features}
    ends = {name: _end(feature) for name, feature in features.items() if feature.add_eos}
    limits = {name: length - 1 for name, length in (sequence_length or {}).items() if length is not None}

    def ended(example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        parts = {name: np.append(example[name][: limits.get(name)], end) for name, end in ends.items()}
        return {**example, **parts}

    return dataset.map(ended, {**dataset.spec, **dict.fromkeys(ends, TOKENS)})


def begin_of(vocabulary: Vocabulary, is_first: bool) -> np.ndarray:
    """Returns what the template of a folder for transformers puts before a feature's text, the first one or another.

    What a language model reads begins once, before the first one, with a start that is not part of it.
    """
    if not isinstance(vocabulary, StreamVocabulary):
        return np.array([], np.int32)
    begins = vocabulary.begins
    if vocabulary.is_one_sequence:
        begins = begins[1:] if is_first else ()
    return np.array(begins, np.int32)


def _end(feature: Feature) -> np.ndarray:
    return np.array([feature.vocabulary.eos_id], np.int32)


# `append_eos_after_trim` cuts to one less than the length and appends the end: every example has exactly one.
SUPERVISED = (tokenize, append_eos_after_trim)
TOKENIZERS = (tokenize, tokenize_and_append_eos)
ENDING = (tokenize_and_append_eos, append_eos, append_eos_after_trim)
OF_SEQIO = {step.__name__: step for step in (tokenize, tokenize_and_append_eos, append_eos, append_eos_after_trim)}


def own(step: Step) -> Step:
    """Returns the preprocessor; for one of seqio's that has the same name and result here, that one."""
    function = unwrapped(step)
    if getattr(function, "__module__", "") != "seqio.preprocessors" or name_of(step) not in OF_SEQIO:
        return step
    ours = OF_SEQIO[name_of(step)]
    choices = getattr(step, "keywords", None)
    return functools.partial(ours, **choices) if choices else ours


def text_of(example: Mapping[str, Any], name: str, vocabulary: Vocabulary) -> str:
    """Returns a feature's text before tokenization or, if the example lacks it, the text of its ids."""
    text = example.get(f"{name}_pretokenized")
    return vocabulary.decode(example[name].tolist()) if text is None else text.decode()


@preprocessor
def add_prefix(dataset: Dataset, prefix: str = "") -> Dataset:
    """Returns the examples with the prefix before their inputs.

    >>> from limba.data.dataset import TEXT, Elements
    >>> pairs = Elements([{"inputs": b"A cat.", "targets": b"Eine Katze."}], dict.fromkeys(("inputs", "targets"), TEXT))
    >>> next(iter(add_prefix(pairs, "German: ")))["inputs"]
    b'German: A cat.'
    """
    before = prefix.encode()
    return dataset.map(lambda example: {**example, "inputs": before + example["inputs"]})


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
    if not set(FEATURES) <= set(task.output_features):
        return False  # one text: a language model's
    return any(unwrapped(own(step)) in TOKENIZERS for step in task.preprocessors) and not has_objective(task)


def input_end_of(task: Task | Mixture) -> int | None:
    """Returns the model's id that ends each input of a supervised task; None where there is none, or no inputs."""
    end_ids = {_input_end(part) for part in parts_of(task)}
    return end_ids.pop() if len(end_ids) == 1 else None


def _input_end(task: Task) -> int | None:
    if not is_supervised(task):
        return None
    feature = task.output_features[FEATURES[0]]
    end = feature.vocabulary.eos_id
    is_ended = any(unwrapped(own(step)) in ENDING for step in task.preprocessors)
    if end is None or not feature.add_eos or not is_ended:
        return None
    return end - offset_of(feature.vocabulary)


def has_objective(task: Task) -> bool:
    """Returns whether the task has an objective of another trainer, which makes inputs of the one text."""
    migrate = tool_registry.find("migrate")
    modules = ((name_of(step), getattr(unwrapped(step), "__module__", "") or "") for step in task.preprocessors)
    return any(migrate and migrate.is_objective(name, module) for name, module in modules)


def name_of(step: Callable[..., object]) -> str:
    return getattr(unwrapped(step), "__name__", "")


def truncation_report(lengths: list[dict[str, int]], limits: Mapping[str, int]) -> str:
    """Returns a sentence on the truncation of examples with these lengths.

    >>> truncation_report([{"inputs": 9, "targets": 3}], {"inputs": 8, "targets": 4})
    'Of 1 examples 100.0 % of inputs are cut to 8 tokens (longest 9), 0.0 % of targets to 4 (longest 3).'
    """
    parts = []
    for name in FEATURES:
        sizes = [length[name] for length in lengths]
        limit = limits[name]
        share = sum(size > limit for size in sizes) / len(sizes)
        what = "are cut to {} tokens" if name == FEATURES[0] else "to {}"
        parts.append(f"{share:.1%} of {name} {what.format(limit)} (longest {max(sizes)})".replace("%", " %"))
    return f"Of {len(lengths)} examples {', '.join(parts)}."
