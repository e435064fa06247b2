"""Preprocessors of supervised tasks, whose source gives inputs and targets: translation, summaries, classes, …

An element is {"inputs": string, "targets": string} until it is tokenized. `SUPERVISED` are the last preprocessors of
such a task. The text stays in the example as `targets_pretokenized`, for metrics.

`labeled` texts are those from which an encoder with a head of its own learns: classes, tags of words, scores, pairs of
texts. A sentence with tags is its words and its tags, with a space between two; a no-break space stands in place of a
space inside of a word, as CoNLL-U has it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from limba import toolbox
from limba.config import ConfigError, InputError
from limba.data.dataset import TOKENS, Dataset, Step, preprocessor
from limba.data.objectives.token_blocks import Features, encoder, unwrapped
from limba.data.packing import FEATURES
from limba.data.registry import Feature, Mixture, Task
from limba.data.vocabulary.load import begin_id, has_dummy_space, piece_bytes
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
    ends = {name: _end(feature) for name, feature in features.items() if with_eos and feature.add_eos}

    def tokenized(example: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(example)
        for name in names:
            (found[name],) = encoders[name]([example[name]])
            if name in ends:
                found[name] = np.append(found[name], ends[name])
            if copy_pretokenized:
                found[f"{name}_pretokenized"] = example[name]
        return found

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

    def ended(example: Mapping[str, Any]) -> dict[str, Any]:
        parts = {name: np.append(example[name][: limits.get(name)], end) for name, end in ends.items()}
        return {**example, **parts}

    return dataset.map(ended, {**dataset.spec, **dict.fromkeys(ends, TOKENS)})


def _end(feature: Feature) -> np.ndarray:
    return np.array([feature.vocabulary.eos_id], np.int32)


# `append_eos_after_trim` cuts to one less than the length and appends the end: every example has exactly one.
SUPERVISED = (tokenize, append_eos_after_trim)
TOKENIZERS = (tokenize, tokenize_and_append_eos)
OF_SEQIO = {step.__name__: step for step in (tokenize, tokenize_and_append_eos, append_eos, append_eos_after_trim)}


def own(step: Step) -> Step:
    """Returns the preprocessor; for one of seqio's that has the same name and result here, that one."""
    function = unwrapped(step)
    if getattr(function, "__module__", "") != "seqio.preprocessors" or name_of(step) not in OF_SEQIO:
        return step
    found, choices = OF_SEQIO[name_of(step)], getattr(step, "keywords", None)
    return functools.partial(found, **choices) if choices else found


def text_of(example: Mapping[str, Any], name: str, vocabulary: Vocabulary) -> str:
    """Returns a feature's text before tokenization or, if the example lacks it, the text of its ids."""
    text = example.get(f"{name}_pretokenized")
    return vocabulary.decode(example[name].tolist()) if text is None else text.decode()


@preprocessor
def add_prefix(dataset: Dataset, prefix: str = "") -> Dataset:
    """Returns the examples with the prefix before their inputs."""
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
    return any(unwrapped(own(step)) in TOKENIZERS for step in task.preprocessors) and not has_objective(task)


def has_objective(task: Task) -> bool:
    """Returns whether the task has an objective of another trainer, which makes inputs of the one text."""
    migrate = toolbox.find("migrate")
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
        sizes, limit = [length[name] for length in lengths], limits[name]
        share = sum(size > limit for size in sizes) / len(sizes)
        what = "are cut to {} tokens" if name == FEATURES[0] else "to {}"
        parts.append(f"{share:.1%} of {name} {what.format(limit)} (longest {max(sizes)})".replace("%", " %"))
    return f"Of {len(lengths)} examples {', '.join(parts)}."


INNER_SPACE = "\N{NO-BREAK SPACE}"
EXAMPLES = 3  # of labels in a sentence


@preprocessor
def labeled(
    dataset: Dataset, sequence_length: Mapping[str, int], output_features: Features, head: Sequence[str] = ("classes",)
) -> Dataset:
    """Returns {"inputs": the tokens of a text, "targets": its labels}, int32 of at most L.

    `head` is the network's, then its labels. Targets of classes are [the label's number + 1], of tags that number at
    the first piece of each word and 0 elsewhere, of a score [the bits of a float32, where 0.0 is -0.0], and of vectors
    the tokens of the other text. Tokens begin with <cls>, if the vocabulary has it, and end with the end of sequence;
    a longer text is truncated.
    """
    row = labeled_row(output_features["targets"].vocabulary, head, sequence_length["targets"])
    return dataset.map(row, dict.fromkeys(("inputs", "targets"), TOKENS))


def labeled_row(
    vocabulary: Vocabulary, head: Sequence[str], length: int
) -> Callable[[Mapping[str, bytes]], dict[str, np.ndarray]]:
    """Returns what `labeled` does with each row; `head` is the network's, then its labels."""
    kind, *labels = head
    encode, around = encoder(vocabulary), framed(vocabulary, length)
    number = {label: place for place, label in enumerate(labels, 1)}
    pieces_of = word_encoder(vocabulary)

    def row(example: Mapping[str, bytes]) -> dict[str, np.ndarray]:
        text, label = example["inputs"], example["targets"]
        if kind == "tags":
            tokens, starts = joined(pieces_of(text.decode().split(" ")))
            inputs, place = around(tokens)
            targets = np.zeros(place + len(tokens), np.int32)
            targets[place + starts] = [number[each] for each in label.decode().split(" ")]
            return {"inputs": inputs, "targets": targets[: len(inputs) - 1]}
        (inputs,) = encode([text])
        if kind == "vectors":
            targets, _ = around(encode([label])[0])
        elif kind == "score":
            targets = np.array([float(label) or -0.0], np.float32).view(np.int32)
        else:
            targets = np.array([number[label.decode()]], np.int32)
        return {"inputs": around(inputs)[0], "targets": targets}

    return row


def framed(vocabulary: Vocabulary, length: int) -> Callable[[np.ndarray], tuple[np.ndarray, int]]:
    """Returns a function from a text's tokens to them with <cls> and the end, at most `length`, and their place."""
    begin = [] if (first := begin_id(vocabulary)) is None else [first]
    end = vocabulary.eos_id or 1

    def around(tokens: np.ndarray) -> tuple[np.ndarray, int]:
        return np.array([*begin, *tokens[: length - len(begin) - 1], end], np.int32), len(begin)

    return around


def word_encoder(vocabulary: Vocabulary) -> Callable[[Sequence[str]], list[np.ndarray]]:
    """Returns a function from a sentence's words to the pieces of each: at least one, the unknown one if need be."""
    encode = encoder(vocabulary)
    after = "" if has_dummy_space(vocabulary, piece_bytes(vocabulary, vocabulary.vocab_size)) else " "
    unknown = np.array([vocabulary.unk_id or 0], np.int32)

    def pieces(words: Sequence[str]) -> list[np.ndarray]:
        texts = [(after if place else "") + word.replace(INNER_SPACE, " ") for place, word in enumerate(words)]
        return [np.asarray(each, np.int32) if len(each) else unknown for each in encode([t.encode() for t in texts])]

    return pieces


def joined(pieces: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of a sentence, and the place of each word's first one.

    >>> joined([np.array([5, 6]), np.array([7])])
    (array([5, 6, 7]), array([0, 2]))
    """
    sizes = np.array([len(each) for each in pieces])
    return np.concatenate(pieces), np.cumsum(sizes) - sizes


def labels_in(rows: Iterable[bytes], kind: str, place: str) -> list[str]:
    """Returns the labels of rows (text, NUL, label), sorted; those of a score and of pairs are none.

    Raises InputError for a row without text or label, with another number of tags than words, and for a score that is
    no number; `place` names the rows.
    """
    found: set[str] = set()
    for number, row in enumerate(rows, 1):
        text, _, label = row.decode().partition("\0")
        if not (text.strip() and label.strip()):
            raise InputError(f"{place} has a row without text or without label, number {number}; correct or remove it.")
        words, tags = text.split(" "), label.split(" ")
        if kind == "tags" and (len(words) != len(tags) or not (all(words) and all(tags))):
            raise InputError(
                f"{place} has {len(words)} words and {len(tags)} tags in its row number {number}, {text[:40]!r}…; give"
                " a tag for each word, both lists with one space between."
            )
        if kind == "score" and not _is_number(label):
            raise InputError(f"{place} has the score {label[:40]!r} in its row number {number}; give a number.")
        found.update(tags if kind == "tags" else [label] if kind == "classes" else [])
    return sorted(found)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def check_labels(found: Iterable[str], labels: Sequence[str], place: str) -> None:
    """Raises InputError for labels of a split that the network does not have."""
    if unknown := sorted(set(found) - set(labels)):
        more = f" and {len(unknown) - EXAMPLES} more" if len(unknown) > EXAMPLES else ""
        raise InputError(
            f"{place} has the label {', '.join(map(repr, unknown[:EXAMPLES]))}{more}, which is not in"
            f" ModelConfig.labels, {', '.join(map(repr, labels))}: those of the training text unless they are given;"
            " correct the files, or give all labels."
        )
