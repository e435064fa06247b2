"""Objectives as seqio preprocessors: documents to tokens, the choice of an objective, the lengths it gives.

Raffel et al. 2020 (arXiv:1910.10683, section 3) compare most of them; docs/objectives.md says what each makes.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import sentencepiece
import seqio
import tensorflow as tf

from limba.config import ConfigError, InputError
from limba.data.objectives.language_modeling import (
    as_one_sequence,
    causal_lm,
    causal_lm_lengths,
    lm_adaptation,
    lm_adaptation_lengths,
    prefix_lm,
    prefix_lm_lengths,
)
from limba.data.objectives.spans import span_corruption, span_corruption_lengths
from limba.data.objectives.token_blocks import Features, check_targets
from limba.data.objectives.ul2 import ul2, ul2_lengths
from limba.data.objectives.whole_words import whole_word_lengths, whole_word_span_corruption

__all__ = [
    "OBJECTIVES",
    "causal_lm",
    "derive_lengths",
    "lm_adaptation",
    "of_one_sequence",
    "prefix_lm",
    "span_corruption",
    "tokenize_documents",
    "ul2",
    "whole_word_span_corruption",
    "with_objective",
]

logger = logging.getLogger(__name__)

DOCUMENTS_PER_BATCH = 32  # tokenized at once; the saved position may hold the tokens of that many


def tokenize_documents(
    dataset: tf.data.Dataset, output_features: Features, append_eos: bool = False
) -> tf.data.Dataset:
    """Returns {"targets": int32 [n]}, the tokens of 32 documents in a row, of {"text"} or {"tokens"}, strings.

    "tokens" are ids of documents tokenized beforehand, as little-endian int32 bytes. As in t5, nothing stands
    between documents; with `append_eos` the end-of-sequence id ends each, as causal language modelling wants it.
    Empty documents give no token.
    """
    vocabulary = output_features["targets"].vocabulary
    end = vocabulary.eos_id if append_eos else None
    name, tokens_of = "text", _tokenizer
    if "tokens" in dataset.element_spec:
        name, tokens_of = "tokens", _decoder
    tokenize = tokens_of(vocabulary, end)
    return dataset.batch(DOCUMENTS_PER_BATCH).map(lambda batch: {"targets": tokenize(batch[name])})


def _decoder(vocabulary: seqio.Vocabulary, end: int | None) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from strings of ids [n] to the ids of all of them, int32 [m]."""
    del vocabulary
    last = b"" if end is None else np.array(end, "<i4").tobytes()

    def decoded(documents: tf.Tensor) -> tf.Tensor:
        ended = tf.where(documents == "", documents, documents + last)
        return tf.io.decode_raw(tf.strings.reduce_join(ended), tf.int32, little_endian=True)

    return decoded


def _tokenizer(vocabulary: seqio.Vocabulary, end: int | None) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from strings [n] to the tokens of all of them, int32 [m], `end` behind each document."""
    if isinstance(vocabulary, seqio.ByteVocabulary) and end is None:
        return lambda texts: vocabulary.encode_tf(tf.strings.reduce_join(texts))
    if not isinstance(vocabulary, seqio.SentencePieceVocabulary):

        def encoded(text: tf.Tensor) -> tf.Tensor:
            tokens = tf.cast(vocabulary.encode_tf(text), tf.int32)
            return tokens if end is None else tf.concat([tokens, tf.fill([tf.minimum(tf.size(tokens), 1)], end)], 0)

        return lambda texts: tf.map_fn(encoded, texts, fn_output_signature=_TOKENS).flat_values
    encode = vocabulary.tokenizer.Encode
    ending = np.array([] if end is None else [end], np.int32)

    def tokens(texts: np.ndarray) -> np.ndarray:
        # All at once: the interpreter is left to the other shards once, and not for each document.
        vectors = encode(texts.tolist(), thread_pool=_threads(), return_type="numpy")
        if end is None:
            return np.concatenate(vectors)
        return np.concatenate([part for vector in vectors for part in ((vector, ending) if len(vector) else (vector,))])

    def in_graph(texts: tf.Tensor) -> tf.Tensor:
        # SentencePiece's own library is four times as fast as its TensorFlow op, and leaves the interpreter
        # to the other shards; one processor serves them all.
        result = tf.numpy_function(tokens, [texts], tf.int32, stateful=False)
        return tf.ensure_shape(result, [None])

    return in_graph


@functools.cache
def _threads() -> sentencepiece.ThreadPool:
    """Threads for all shards' texts; without them each call starts and ends one of its own."""
    return sentencepiece.ThreadPool(min(os.cpu_count() or 1, 16))


_TOKENS = tf.RaggedTensorSpec([None], tf.int32, ragged_rank=0)


def _span_corruption_lengths(
    lengths: Mapping[str, int], noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> dict[str, int]:
    inputs = lengths["inputs"]
    return {"inputs": inputs, "targets": span_corruption_lengths(inputs, noise_density, mean_noise_span_length)[1]}


# What objective may be, and what lengths each gives of the lengths asked for and its own choices.
OBJECTIVES: dict[str, Callable[..., tf.data.Dataset]] = {
    "span_corruption": span_corruption,
    "whole_word_span_corruption": whole_word_span_corruption,
    "ul2": ul2,
    "prefix_lm": prefix_lm,
    "lm_adaptation": lm_adaptation,
    "causal_lm": causal_lm,
}
OBJECTIVE_LENGTHS: dict[Callable[..., tf.data.Dataset], Callable[..., dict[str, int]]] = {
    span_corruption: _span_corruption_lengths,
    whole_word_span_corruption: whole_word_lengths,
    ul2: ul2_lengths,
    prefix_lm: prefix_lm_lengths,
    lm_adaptation: lm_adaptation_lengths,
    causal_lm: causal_lm_lengths,
}


# Those of them that rows of one sequence can be made of.
SEQUENCE_FUNCTIONS = (causal_lm, prefix_lm, lm_adaptation)


def _function(step: Any) -> Any:
    return step.func if isinstance(step, functools.partial) else step


def with_objective(task: seqio.Task, name: str) -> seqio.Task:
    """Returns the task with its objective's step replaced by the named one, with that one's own choices.

    For causal language modelling documents also end with the end-of-sequence id. Raises ConfigError for a
    name that is none, and for a task without an objective of this module.
    """
    if name not in OBJECTIVES:
        near = difflib.get_close_matches(name, OBJECTIVES, n=1)
        hint = f"did you mean {near[0]}? It" if near else "it"
        raise ConfigError("DataConfig.objective", f"is {name!r}; {hint} must be one of {', '.join(OBJECTIVES)}.")
    steps = list(task.preprocessors)
    places = [place for place, step in enumerate(steps) if _function(step) in OBJECTIVE_LENGTHS]
    if len(places) != 1:
        raise ConfigError(
            "DataConfig.objective",
            f"is {name!r} and task {task.name} has {len(places) or 'no'} objectives of limba.data.objectives "
            "that it could replace; register the task with tokenize_documents and span_corruption, or leave "
            "DataConfig.objective "
            "None.",
        )
    steps[places[0]] = OBJECTIVES[name]
    if name == "causal_lm":
        steps = [
            functools.partial(step, append_eos=True) if _function(step) is tokenize_documents else step
            for step in steps
        ]
    return task.replace(preprocessors=steps)


def with_noise(task: seqio.Task, **choices: float | None) -> seqio.Task:
    """Returns the task with `noise_density` and `mean_noise_span_length`, where not None, given to its objective.

    Raises ConfigError where its objective has no such choice.
    """
    given = {name: value for name, value in choices.items() if value is not None}
    steps = list(task.preprocessors)
    for place, step in enumerate(steps if given else ()):
        function = _function(step)
        if function in OBJECTIVE_LENGTHS and set(given) <= set(inspect.signature(function).parameters):
            steps[place] = functools.partial(step, **given)
            return task.replace(preprocessors=steps)
    if given:
        raise InputError(
            f"DataConfig gives {' and '.join(given)}, and task {task.name}'s objective has no such choice; set "
            "DataConfig.objective to span_corruption or whole_word_span_corruption, or leave it out."
        )
    return task


def of_one_sequence(task: seqio.Task, packed: bool) -> seqio.Task:
    """Returns the task with its steps set for a decoder-only model; ConfigError for an objective with an encoder."""
    steps = []
    for step in task.preprocessors:
        function = _function(step)
        if function in OBJECTIVE_LENGTHS and function not in SEQUENCE_FUNCTIONS:
            raise InputError(
                f"Task {task.name} is {function.__name__}, whose inputs an encoder reads, and "
                "DataConfig.task_feature_lengths "
                "gives only targets; set DataConfig.objective to causal_lm, prefix_lm or lm_adaptation."
            )
        if function is tokenize_documents:
            step = functools.partial(step, append_eos=True)
        steps.append(as_one_sequence(step, packed))
    return task.replace(preprocessors=steps)


def derive_lengths(task: seqio.Task | seqio.Mixture, lengths: Mapping[str, int]) -> dict[str, int]:
    """Returns {"inputs", "targets"}, or {"targets"} alone, with targets filled in from the task's objective.

    Of {"targets": L} alone, a decoder-only model's sequence, what each part of it may have at most.
    Raises ConfigError for targets too short or inputs too short, and for missing targets where the
    task's objective is not one of this module. Targets longer than needed are kept; that is logged.
    """
    parts = [needed for part in _tasks(task) if (needed := _lengths_needed(part, lengths))]
    given = lengths.get("targets")
    if "inputs" not in lengths:
        sides = [name for name in ("inputs", "targets") if any(name in part for part in parts)]
        return {name: max(part.get(name, 0) for part in parts) for name in sides} or {"targets": lengths["targets"]}
    if not parts:
        if given is None:
            raise ConfigError(
                "DataConfig.task_feature_lengths",
                f"has no 'targets', and task {task.name} has no objective that they follow from; add 'targets'.",
            )
        return {"inputs": lengths["inputs"], "targets": given}
    needed = max(part["targets"] for part in parts)
    check_targets("the task's objective", lengths, needed)
    if given is not None and given > needed:
        logger.warning(
            "DataConfig.task_feature_lengths gives 'targets' %d where %d are used: %.0f %% of the targets are padding.",
            given,
            needed,
            100 * (given - needed) / given,
        )
    inputs = {"inputs": lengths["inputs"]} if any("inputs" in part for part in parts) else {}
    return {**inputs, "targets": given or needed}


def _tasks(task: seqio.Task | seqio.Mixture) -> list[seqio.Task]:
    return list(task.tasks) if isinstance(task, seqio.Mixture) else [task]


def _lengths_needed(task: seqio.Task, lengths: Mapping[str, int]) -> dict[str, int] | None:
    for step in task.preprocessors:
        needed = OBJECTIVE_LENGTHS.get(_function(step))
        if needed is not None:
            choices = step.keywords if isinstance(step, functools.partial) else {}
            known = inspect.signature(needed).parameters
            return needed(lengths, **{name: value for name, value in choices.items() if name in known})
    return None
