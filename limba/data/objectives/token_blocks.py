"""Cuts the stream of tokens into rows, block by block: the common part of all objectives.

A block is a fixed number of tokens with its own seed, so a row is a pure function of the tokens
and the seed. tf.data's own checkpoint then restores the exact data position, and a shard's rows do not
depend on another shard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import cast

import seqio
import tensorflow as tf

from limba.config import ConfigError, InputError
from limba.data.vocabulary.load import has_byte_sentinels, num_sentinels, warn_of_byte_sentinels

Features = Mapping[str, seqio.Feature]
Rows = dict[str, tf.Tensor]
Side = tuple[tf.Tensor, tf.Tensor]  # tokens int32 [B, L], and bool [B, L]: which of them stay


def unwrapped(step: Callable[..., object]) -> Callable[..., object]:
    """Returns the function of a preprocessor, without the choices that `functools.partial` has given it."""
    while isinstance(step, functools.partial):
        step = step.func
    return step


def rows_of_blocks(
    dataset: tf.data.Dataset, tokens_per_block: int, rows_of: Callable[[tf.Tensor, tf.Tensor], Rows]
) -> tf.data.Dataset:
    """Returns {"inputs", "targets"}, int32 vectors, of {"targets": int32 [n]}, the stream of tokens.

    `rows_of(tokens [n], seed [2])` returns a block's rows as `padded` does. n is `tokens_per_block`, or less
    at the end of a finite stream.
    """
    draw = seqio.map_over_dataset(lambda _, seed: tf.stack(seed), num_seeds=1, num_parallel_calls=None)
    blocks = dataset.map(lambda example: example["targets"]).rebatch(tokens_per_block)
    seeds = cast(tf.data.Dataset, draw(tf.data.Dataset.range(2**62)))
    rows = tf.data.Dataset.zip((blocks, seeds)).map(rows_of).unbatch()
    return rows.map(
        lambda row: {"inputs": row["inputs"][: row["num_inputs"]], "targets": row["targets"][: row["num_targets"]]}
    )


def row_seeds() -> tf.data.Dataset:
    """Returns endless pairs of int64: the seeds that `seqio.map_over_dataset` would give to single rows.

    Its map over single rows would cost a tenth of the pipeline's time. As there, each call takes the next pair of
    seqio's seeds.
    """
    first = seqio.utils._NEXT_MAP_SEED  # seqio 0.0.20 has no public access to it
    seqio.map_over_dataset(lambda _, seed: seed, num_seeds=1)(tf.data.Dataset.range(0))
    pair = (None, None) if first is None else (first, first + 1)
    return tf.data.Dataset.zip(tuple(map(tf.data.Dataset.random, pair)))


def padded(
    inputs: Side,
    targets: Side,
    widths: tuple[int, int],
    before_inputs: int | tf.Tensor | None = None,
    after: int | None = None,
) -> Rows:
    """Returns the selected tokens as zero-padded matrices, with `num_inputs` and `num_targets` of each row.

    If not None, `before_inputs` is put before each row's inputs, and `after` at the end of both sides.
    """
    rows = {}
    for name, side, width, before in zip(
        ("inputs", "targets"), (inputs, targets), widths, (before_inputs, None), strict=True
    ):
        rows[name], rows[f"num_{name}"] = _compacted(*side, width, before, after)
    return rows


def _compacted(
    tokens: tf.Tensor, stays: tf.Tensor, width: int, before: int | tf.Tensor | None, after: int | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the tokens of each row that stay, without gaps [B, width], and their number [B].

    Ragged tensors could do this, but their assertions prevent tf.data from saving its state.
    """
    offset = 0 if before is None else 1
    columns = tf.cumsum(tf.cast(stays, tf.int32), axis=1)
    places = tf.where(stays)
    places = tf.stack([places[:, 0], tf.cast(tf.gather_nd(columns, places), tf.int64) - 1 + offset], 1)
    num_rows = tf.shape(tokens)[0]
    matrix = tf.scatter_nd(places, tf.boolean_mask(tokens, stays), tf.cast(tf.stack([num_rows, width]), tf.int64))
    lengths = tf.reduce_sum(tf.cast(stays, tf.int32), axis=1) + offset
    if before is not None:
        matrix += tf.one_hot(tf.zeros([num_rows], tf.int32), width, on_value=before, off_value=0, dtype=tf.int32)
    if after is not None:
        matrix += tf.one_hot(lengths, width, on_value=after, off_value=0, dtype=tf.int32)
        lengths += 1
    return tf.ensure_shape(matrix, [None, width]), lengths


def stacked(parts: list[Rows]) -> Rows:
    """Concatenates the rows of several results of `padded`."""
    return {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]}


def check_targets(objective: str, lengths: Mapping[str, int], needed: int) -> None:
    """Raises ConfigError if targets are configured and too short."""
    given = lengths.get("targets")
    if given is not None and given < needed:
        raise ConfigError(
            "DataConfig.task_feature_lengths",
            f"gives 'targets' {given}, and {objective} of {lengths['inputs']} inputs needs "
            f"{needed}; give {needed}, or leave 'targets' out.",
            ("DataConfig.task_feature_lengths", {"inputs": lengths["inputs"]}),
        )


def require_sentinels(
    vocabulary: seqio.Vocabulary, needed: int, what: str, otherwise: str, may_be_bytes: bool = False
) -> None:
    """Raises InputError if the vocabulary has too few sentinels for `what`.

    With `may_be_bytes`, bytes without extra ids then give the ids of real text, as in T5X: a warning.
    """
    available = num_sentinels(vocabulary)
    if may_be_bytes and has_byte_sentinels(vocabulary):
        warn_of_byte_sentinels(needed, what)
    elif needed > available:
        raise InputError(
            f"{what} needs {needed} sentinels and the vocabulary has {available}; set DataConfig.extra_ids to {needed},"
            f" or take {otherwise}.",
            fix=("DataConfig.extra_ids", needed),
        )
