"""Objectives that continue a text: prefix LM, LM adaptation, causal LM.

An encoder-decoder reads the prefix with its encoder. A decoder-only model reads the same rows as one
sequence, inputs then targets: full attention and loss weight 0 in the inputs, causal attention in the targets. Only
the sequence's length is configured then, {"targets": L}, and `as_one_sequence` adapts the preprocessors.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping

import numpy as np

from limba.config import ConfigError, InputError
from limba.data.dataset import TOKENS, Dataset, preprocessor
from limba.data.draws import Words
from limba.data.objectives.token_blocks import Features, Rows, check_targets, padded, rows_of_blocks, stacked, unwrapped


def prefix_lm_lengths(lengths: Mapping[str, int], split: str = "random") -> dict[str, int]:
    """Returns {"inputs", "targets"}, equal: a random split may put nearly the whole row on either side.

    For a single sequence, {"targets": L}, each side may have L - 1. Raises ConfigError for lengths below 2, InputError
    for a split that is not 'random'.

    >>> prefix_lm_lengths({"inputs": 512})
    {'inputs': 512, 'targets': 512}
    """
    if split != "random":
        raise InputError(
            f"The split of prefix_lm is {split!r}, not 'random'; lm_adaptation splits in the middle: use it."
        )
    name = "inputs" if "inputs" in lengths else "targets"
    _check_not_too_short(name, lengths[name])
    return dict.fromkeys(("inputs", "targets"), lengths[name] - (name == "targets"))


def lm_adaptation_lengths(lengths: Mapping[str, int]) -> dict[str, int]:
    """Returns {"inputs", "targets"} as given; targets that are not given are as long as the inputs.

    For a single sequence, {"targets": L}, each side has half of L; with "prefix" P the inputs have P.
    """
    if "inputs" not in lengths:
        _check_not_too_short("targets", lengths["targets"])
        prefix = lengths.get("prefix", lengths["targets"] // 2)
        return {"inputs": prefix, "targets": lengths["targets"] - prefix}
    needed = {"inputs": lengths["inputs"], "targets": lengths.get("targets", lengths["inputs"])}
    for name, length in needed.items():
        _check_not_too_short(name, length)
    return needed


def causal_lm_lengths(lengths: Mapping[str, int]) -> dict[str, int]:
    """Returns {"targets"}: the targets' length, or the inputs' if only that is given."""
    return {"targets": lengths["targets"] if "targets" in lengths else lengths["inputs"]}


def _check_not_too_short(name: str, length: int) -> None:
    if length < 2:
        raise ConfigError(
            "DataConfig.task_feature_lengths",
            f"gives {name!r} {length}, too short for a token and the end of sequence; give 2 or more.",
        )


@preprocessor
def prefix_lm(
    dataset: Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    split: str = "random",
    append_eos: bool = True,
) -> Dataset:
    """Returns {"inputs", "targets"}, int32, of {"targets": int32 [n]}: the beginning of a row, and its rest.

    Prefix LM of Raffel et al. 2020 (arXiv:1910.10683, section 3.2.1). A row of as many tokens as the inputs is split at
    a uniformly random place, with at least one token on each side: on average half of either side is padding.
    `lm_adaptation` splits always at the same place: InputError for another `split` than 'random'. Raises ConfigError if
    the lengths do not fit.

    >>> row = next(iter(prefix_lm(tokens, {"inputs": 24}, features)))
    >>> tuple(features[name].vocabulary.decode(row[name]) for name in ("inputs", "targets"))
    ('To be, or not to be', ', tha')
    """
    needed = prefix_lm_lengths(sequence_length, split)
    check_targets("prefix LM", sequence_length, needed["targets"])
    return _split(dataset, output_features, needed["inputs"] - append_eos + 1, None, append_eos)


@preprocessor
def lm_adaptation(
    dataset: Dataset, sequence_length: Mapping[str, int], output_features: Features, append_eos: bool = True
) -> Dataset:
    """Returns {"inputs", "targets"}, int32, of {"targets": int32 [n]}: a full prefix and a full continuation.

    Lester et al. 2021 (arXiv:2104.08691, sections 2.2 and 3) train a T5 for 100,000 more steps with Raffel's LM
    objective, so that it continues a text instead of filling gaps. The paper does not specify the split;
    here both sides fill their lengths, without padding.

    >>> row = next(iter(lm_adaptation(tokens, {"inputs": 12}, features)))
    >>> tuple(features[name].vocabulary.decode(row[name]) for name in ("inputs", "targets"))
    ('To be, or n', 'ot to be, t')
    """
    needed = lm_adaptation_lengths(sequence_length)
    prefix = needed["inputs"] - append_eos
    rest = needed["targets"] - append_eos
    return _split(dataset, output_features, prefix + rest, prefix, append_eos)


@preprocessor
def causal_lm(
    dataset: Dataset, sequence_length: Mapping[str, int], output_features: Features, whole_documents: bool = False
) -> Dataset:
    """Returns {"targets": int32 [n]} of {"targets": int32 [m]}: the stream cut into rows, for decoder-only models.

    Rows have the targets' length and no end of sequence of their own, since the text continues in the next row; the
    last row of a finite stream may be shorter. With `whole_documents` an example is one document, to be packed, and
    longer documents are cut. Documents are separated by the end-of-sequence id that `tokenize_documents` with
    `append_eos=True` appends.

    >>> rows = causal_lm(tokens, {"targets": 16}, features)
    >>> [features["targets"].vocabulary.decode(row["targets"]) for row in rows]
    ['To be, or not to', ' be, that is the', ' question.']
    """
    length = causal_lm_lengths(sequence_length)["targets"]
    if whole_documents:
        return cut_documents(dataset, length, output_features["targets"].vocabulary.eos_id)
    return dataset.blocks(length)


def cut_documents(vectors: Dataset, length: int, end: int | None) -> Dataset:
    """Returns the documents of vectors of tokens, cut to parts of `length`.

    Where a vector does not say where its documents end, each goes up to the id `end`.
    """

    def documents(tokens: np.ndarray, ends: np.ndarray | None, number: int) -> list[tuple[dict[str, np.ndarray], int]]:
        del number
        stops = np.flatnonzero(tokens == end) + 1 if ends is None else ends
        edges = [0, *stops.tolist(), len(tokens)]
        parts = []
        for start, stop in itertools.pairwise(edges):
            for first in range(start, stop, length):
                last = min(first + length, stop)
                parts.append(({"targets": tokens[first:last]}, last))
        return parts

    return vectors.cut(documents, {"targets": TOKENS})


def as_one_sequence(step: Callable, packed: bool) -> Callable:
    """Returns a preprocessor with its choices for a decoder-only model.

    Documents already end with the end-of-sequence id, so a split adds none; packed, each document is an example.
    """
    function = unwrapped(step)
    if function in (prefix_lm, lm_adaptation):
        return functools.partial(step, append_eos=False)
    if "whole_documents" in inspect.signature(function).parameters:  # causal LM, masked LM
        return functools.partial(step, whole_documents=packed)
    return step


def _split(dataset: Dataset, output_features: Features, raw: int, prefix: int | None, append_eos: bool) -> Dataset:
    end = output_features["targets"].vocabulary.eos_id if append_eos else None
    width = (raw if prefix is None else max(prefix, raw - prefix)) + append_eos
    rows_per_block = dataset.rows_per_block

    def split(tokens: np.ndarray, chance: np.ndarray) -> Rows:
        num_rows, length = tokens.shape
        if prefix is not None:
            prefixes = np.full(num_rows, length * prefix // raw)
        else:  # a row of one token has no prefix
            prefixes = np.minimum(1 + np.floor(chance * np.float32(length - 1)).astype(np.int32), length - 1)
        is_prefix = np.arange(length) < prefixes[:, None]
        return padded((tokens, is_prefix), (tokens, ~is_prefix), (width, width), after=end)

    def rows_of(tokens: np.ndarray, words: Words) -> Rows:
        num_rows, rest = divmod(len(tokens), raw)
        chance = words.uniform(rows_per_block + 1)
        rows = split(tokens[: num_rows * raw].reshape(num_rows, raw), chance[:num_rows])
        return stacked([rows, split(tokens[None, num_rows * raw :], chance[-1:])]) if rest else rows

    return rows_of_blocks(dataset, rows_per_block * raw, rows_of)
