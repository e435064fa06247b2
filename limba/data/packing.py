"""Packs short examples into full rows, and turns rows, packed or not, into the features that the model reads.

A packed row holds several examples, distinguished by segment ids. Attention stays inside a segment, so
an example has the same loss as in a row of its own (Raffel et al. 2020, arXiv:1910.10683, section 3.1.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import tensorflow as tf

from limba.config import InputError

FEATURES = ("inputs", "targets")
OPEN_ROWS = 16  # open rows of a shard, with room for an example; a saved data position holds them
EXAMPLES_AT_ONCE = 32

Example = dict[str, tf.Tensor]


def batched(
    dataset: tf.data.Dataset, lengths: Mapping[str, int], num_rows: int, whole: bool, packed: bool
) -> tf.data.Dataset:
    """Returns the features of `lengths`, int32 [num_rows, L], truncated and zero-padded, or packed with segment ids.

    Raises InputError if the examples lack one of them.
    """
    spec = cast(Mapping[str, tf.TensorSpec], dataset.element_spec)
    for name in lengths:
        if name not in spec or spec[name].shape.rank != 1:
            raise InputError(
                f"The task's preprocessors return no tokens {name!r}; add the preprocessor that makes them."
            )
    if packed:
        return pack(dataset, lengths).batch(num_rows, drop_remainder=whole)
    if not _is_cut(spec, lengths):
        dataset = dataset.map(
            lambda example: {name: tf.cast(example[name][:width], tf.int32) for name, width in lengths.items()}
        )
    return dataset.padded_batch(
        num_rows, padded_shapes={name: [width] for name, width in lengths.items()}, drop_remainder=whole
    )


def _is_cut(spec: Mapping[str, tf.TensorSpec], lengths: Mapping[str, int]) -> bool:
    """Returns whether examples only need padding; a map over single examples would cost as much as making them."""
    return set(spec) == set(lengths) and all(
        part.dtype == tf.int32 and (part.shape[0] or lengths[name] + 1) <= lengths[name] for name, part in spec.items()
    )


def pack(dataset: tf.data.Dataset, lengths: Mapping[str, int]) -> tf.data.Dataset:
    """Returns rows of several examples each, int32 [length]: {name, name_segment_ids} for each feature of `lengths`.

    Segments are numbered from 1 in the order of their examples; padding has segment 0. An example is put into the first
    open row with room for it; if there is none, the fullest row is returned first. Examples longer than a row are
    truncated, empty ones skipped. The open rows are the state of a `scan`, which tf.data saves and restores. seqio's
    `trim_and_pack_dataset` closes all its rows after every 512 examples: its rows are less full, and a data position
    takes 760 kB.
    """
    names = tuple(name for name in FEATURES if name in lengths)
    widths = [lengths[name] for name in names]

    def cut(example: Example) -> tuple[tf.Tensor, ...]:
        vectors = [tf.cast(example[name][:width], tf.int32) for name, width in zip(names, widths, strict=True)]
        sizes = [tf.math.count_nonzero(vector, dtype=tf.int32) for vector in vectors]  # some are padded already
        return (tf.stack(sizes), *vectors)

    shapes: Any = ([len(names)], *([None] for _ in names))
    batches = dataset.map(cut).padded_batch(EXAMPLES_AT_ONCE, padded_shapes=shapes)
    nothing = (tf.zeros([0, len(names)], tf.int32), *(tf.zeros([0, 0], tf.int32) for _ in names))
    batches = batches.map(lambda *batch: (batch, False))
    batches = batches.concatenate(tf.data.Dataset.from_tensors((nothing, True)))  # returns the open rows

    def pack_batch(state: tuple[tf.Tensor, ...], element: tuple) -> tuple[tuple[tf.Tensor, ...], Example]:
        batch, is_last = element
        kinds = [tf.int32] * (len(state) + 2 * len(names))
        result = tf.numpy_function(_packed, [len(names), is_last, *state, *batch], kinds, stateful=False)
        new_state = tuple(tf.ensure_shape(new, old.shape) for new, old in zip(result, state, strict=False))
        rows = {}
        for place, (name, width) in enumerate(zip(names, widths, strict=True)):
            tokens, segments = result[len(state) + 2 * place :][:2]
            rows[name] = tf.ensure_shape(tokens, [None, width])
            rows[f"{name}_segment_ids"] = tf.ensure_shape(segments, [None, width])
        return new_state, rows

    used = tf.zeros([OPEN_ROWS, len(names) + 1], tf.int32)
    state = (used, *(tf.zeros([OPEN_ROWS, width], tf.int32) for width in widths for _ in range(2)))
    return batches.scan(state, pack_batch).unbatch()


def _packed(num_features: int, is_last: bool, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns the new state and the finished rows, from the state and a batch of examples.

    The state is the tokens used of each feature and the number of examples, by open row [R, F + 1], then the tokens
    and segment ids [R, L] of each feature. The batch is the sizes [B, F] and tokens [B, W] of each feature.
    """
    used, *matrices = (array.copy() for array in arrays[: 1 + 2 * num_features])
    sizes, *vectors = arrays[1 + 2 * num_features :]
    widths = np.array([matrix.shape[1] for matrix in matrices[::2]])
    finished: list[list[np.ndarray]] = []

    def finish(row: int) -> None:
        finished.append([matrix[row].copy() for matrix in matrices])
        for array in (used, *matrices):
            array[row] = 0

    for number, size in enumerate(sizes):
        if not size.any():
            continue
        has_room = (used[:, :-1] + size <= widths).all(1)
        row = int(has_room.argmax())
        if not has_room[row]:
            row = int(used[:, :-1].sum(1).argmax())
            finish(row)
        segment = used[row, -1] + 1
        for place, vector in enumerate(vectors):
            start, stop = used[row, place], used[row, place] + size[place]
            matrices[2 * place][row, start:stop] = vector[number, : size[place]]
            matrices[2 * place + 1][row, start:stop] = segment
        used[row, :-1] += size
        used[row, -1] = segment
    if is_last:
        for row in np.flatnonzero(used[:, -1]):
            finish(int(row))
    rows = [np.stack(column) for column in zip(*finished, strict=True)] if finished else [m[:0] for m in matrices]
    return (used, *matrices, *rows)


def model_features(rows: Mapping[str, np.ndarray], sequence_length: int | None = None) -> dict[str, np.ndarray]:
    """Returns the model features, int32 [B, L], with the names of seqio's feature converters.

    The decoder's inputs are its targets shifted right after a 0, in each segment of packed rows; padding
    has weight 0. With `sequence_length`, for a decoder-only model, inputs and targets become one sequence.

    >>> features = model_features({"targets": np.array([[7, 8, 1, 0]])})
    >>> features["decoder_input_tokens"].tolist(), features["decoder_loss_weights"].tolist()
    ([[0, 7, 8, 1]], [[1, 1, 1, 0]])
    """
    if sequence_length is not None and "inputs" in rows:
        return _joined(rows, sequence_length)
    targets = np.asarray(rows["targets"], np.int32)
    features = _decoder_features(targets, rows.get("targets_segment_ids"))
    if "inputs" in rows:
        features["encoder_input_tokens"] = np.asarray(rows["inputs"], np.int32)
    if "inputs_segment_ids" in rows:
        features["encoder_segment_ids"] = np.asarray(rows["inputs_segment_ids"], np.int32)
    return features


def _decoder_features(targets: np.ndarray, segments: np.ndarray | None) -> dict[str, np.ndarray]:
    shifted = np.pad(targets[:, :-1], [(0, 0), (1, 0)])
    features = {
        "decoder_target_tokens": targets,
        "decoder_input_tokens": shifted,
        "decoder_loss_weights": (targets != 0).astype(np.int32),
    }
    if segments is not None:
        features["decoder_segment_ids"] = np.asarray(segments, np.int32)
        features["decoder_input_tokens"] = np.where(_continues(segments), shifted, 0)
    return features


def _continues(segments: np.ndarray) -> np.ndarray:
    """Returns bool [B, L]: True at tokens in the segment of the previous token."""
    return segments == np.pad(segments[:, :-1], [(0, 0), (1, 0)])


def _joined(rows: Mapping[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    """Returns each example's inputs and targets as one sequence; inputs have full attention and no loss.

    `decoder_causal_attention` is 1 where a token of the prefix is read, its start included (seqio's prefix LM).
    """
    sides = [np.asarray(rows[name], np.int32) for name in FEATURES]
    tokens = np.concatenate(sides, axis=1)
    packed = "inputs_segment_ids" in rows
    numbers = np.concatenate([rows[f"{name}_segment_ids"] for name in FEATURES], axis=1) if packed else tokens != 0
    numbers = numbers.astype(np.int32)
    is_target = np.repeat([[False, True]], [side.shape[1] for side in sides], axis=1)
    # Examples in their order, inputs before targets, padding last.
    rank = np.where(tokens == 0, np.iinfo(np.int32).max, 2 * numbers + is_target)
    order = np.argsort(rank, axis=1, kind="stable")[:, :length]
    tokens, numbers = (np.take_along_axis(each, order, axis=1) for each in (tokens, numbers))
    weights = np.take_along_axis(np.broadcast_to(is_target, rank.shape), order, axis=1) & (tokens != 0)
    is_prefix = ~weights & (tokens != 0)
    features = _decoder_features(tokens, numbers if packed else None)
    reads_prefix = np.pad(is_prefix[:, :-1], [(0, 0), (1, 0)]) & _continues(numbers)
    return {
        **features,
        "decoder_loss_weights": weights.astype(np.int32),
        "decoder_causal_attention": (is_prefix | reads_prefix).astype(np.int32),
    }
