"""Vectors of texts, from the hidden states of their tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from limba.inference.generate import batches_of_like_lengths, fetched, padded
from limba.model import Network
from limba.model.trees import Batch, Parameters
from limba.sharding.mesh import batch_sharding
from limba.training.placement import place_batch


def computed_in_batches(
    compute: Callable[[Int[Array, "B L"], Int[Array, " B"]], Array],
    ids: Sequence[np.ndarray],
    num_rows: int,
    mesh: Mesh,
) -> list[np.ndarray]:
    """Returns the row of each text in what `compute` gives for batches of tokens and lengths."""
    row_of_texts: list[np.ndarray] = [np.zeros(0)] * len(ids)
    for numbers in batches_of_like_lengths([len(text_ids) for text_ids in ids], num_rows):
        texts = [ids[number] for number in numbers]
        tokens = padded(texts, num_rows)
        lengths = np.ones(num_rows, np.int32)  # 1 for rows that pad the batch: no pooling is over nothing
        lengths[: len(texts)] = [len(text_ids) for text_ids in texts]
        placed = place_batch({"tokens": tokens, "lengths": lengths}, batch_sharding(mesh))
        rows = fetched(compute(placed["tokens"], placed["lengths"]))
        for number, row in zip(numbers, rows, strict=False):
            row_of_texts[number] = row
    return row_of_texts


def _batch_of(tokens: Int[Array, "B L"], lengths: Int[Array, " B"]) -> Batch:
    real = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
    targets = jnp.where(real, jnp.maximum(tokens, 1), 0)  # a language model takes rows that are 0 for padding
    return {"decoder_input_tokens": tokens, "decoder_target_tokens": targets}


@functools.partial(jax.jit, static_argnames=("network", "poolings", "is_published"))
def pooled(
    network: Network,
    poolings: tuple[str, ...],
    is_published: bool,
    params: Parameters,
    tokens: Int[Array, "B L"],
    lengths: Int[Array, " B"],
) -> Float[Array, "B D"]:
    """Returns each text's vector, pooled from its hidden states; several poolings are concatenated.

    `is_published`: 0 may be text, so the lengths tell what is padding for a T5.
    """
    if network.config.is_decoder_only:
        states = network.apply(params, _batch_of(tokens, lengths), as_states=True)
    elif is_published:
        is_read = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
        states = network.encode(params, tokens, is_read.astype(jnp.int32))
    else:
        states = network.encode(params, tokens)
    return jnp.concatenate([_pooled(states.astype(jnp.float32), lengths, pooling) for pooling in poolings], axis=-1)


def mean_over(states: Float[Array, "B L D"], real: Bool[Array, "B L"]) -> Float[Array, "B D"]:
    """Returns the float32 mean of the real tokens' states; zeros for a row without any."""
    weights = real.astype(jnp.float32)[..., None]
    return jnp.sum(states.astype(jnp.float32) * weights, axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1.0)


def _pooled(states: Float[Array, "B L D"], lengths: Int[Array, " B"], pooling: str) -> Float[Array, "B D"]:
    """Returns one vector of each text; the weights of a weighted mean are 1, 2, 3, … (SGPT, arXiv:2202.08904)."""
    positions = jnp.arange(states.shape[1])[None]
    real = positions < lengths[:, None]
    if pooling == "mean":
        return mean_over(states, real)
    if pooling == "mean_sqrt_len":
        return mean_over(states, real) * jnp.sqrt(lengths)[:, None]
    if pooling == "max":
        return jnp.where(real[..., None], states, -jnp.inf).max(axis=1)
    if pooling == "weighted_mean":
        weights = jnp.where(real, positions + 1.0, 0.0)[..., None]
        return (states * weights).sum(axis=1) / weights.sum(axis=1)
    position = lengths - 1 if pooling == "last" else jnp.zeros_like(lengths)
    return jnp.take_along_axis(states, position[:, None, None], axis=1)[:, 0]


def truncated(ids: Int[np.ndarray, " L"], length: int | None, end: int | None) -> Int[np.ndarray, " L"]:
    """Returns at most `length` ids of a text. The last ones are dropped, but the end of sequence is kept.

    transformers truncates so too.

    >>> truncated(np.asarray([5, 6, 7, 1]), 3, end=1).tolist()
    [5, 6, 1]
    """
    if length is None or len(ids) <= length:
        return ids
    if ids[-1] == end:
        return np.append(ids[: length - 1], ids[-1:])
    return ids[:length]
