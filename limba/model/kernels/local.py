"""Attention within a window: queries in blocks of half a window, each against its own and the two neighbouring blocks.

Local attention as Longformer's (Beltagy et al. 2020, arXiv:2004.05150, section 3.1). Plain XLA: of L keys a query's
scores are 1.5 windows, whatever L is.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from limba.model.kernels.einsum import HIDDEN_SCORE

SHORTEST = 4  # windows in a row; of fewer the einsum computes all scores


def fits(length: int, window: int) -> bool:
    """Returns whether a row of this many tokens is computed in blocks.

    >>> fits(512, 128), fits(511, 128)
    (True, False)
    """
    return length >= SHORTEST * window


def local_attention(
    query: Float[Array, "B L H C"],
    key: Float[Array, "B L H C"],
    value: Float[Array, "B L H C"],
    mask: Bool[Array, "B L L"],
    window: int,
) -> Float[Array, "B L H C"]:
    """Returns softmax(q k^T) v over the keys of `mask` at most half a window (an even number) to each side of a query.

    Scores and softmax are in float32, products in the inputs' dtype. A query that sees no key gives a mean of values
    nearby.
    """
    batch, length = query.shape[:2]
    size = window // 2  # of a block: its queries see keys of the block and of its two neighbours
    num = -(-length // size)
    more = num * size - length
    query, key, value = (jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0))) for x in (query, key, value))

    def in_blocks(x: Float[Array, "B M H C"]) -> Float[Array, "B N S H C"]:
        return x.reshape(batch, -1, size, *x.shape[2:])

    def around(x: Float[Array, "B M H C"]) -> Float[Array, "B N T H C"]:
        blocks = in_blocks(jnp.pad(x, ((0, 0), (size, size), (0, 0), (0, 0))))
        return jnp.concatenate([blocks[:, first : first + num] for first in range(3)], axis=2)

    scores = jnp.einsum("bnqhc,bnkhc->bnhqk", in_blocks(query), around(key), preferred_element_type=jnp.float32)
    scores = jnp.where(_banded(mask, num, size)[:, :, None], scores, HIDDEN_SCORE)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    attended = jnp.einsum("bnhqk,bnkhc->bnqhc", weights, around(value))
    return attended.reshape(batch, num * size, *value.shape[2:])[:, :length]


def _banded(mask: Bool[Array, "B L L"], num: int, size: int) -> Bool[Array, "B N S T"]:
    """Returns what the queries of each block see in three blocks of keys, those beyond half a window left out."""
    more = num * size - mask.shape[1]
    pairs = jnp.pad(mask, ((0, 0), (0, more), (0, more))).reshape(-1, num, size, num, size)
    blocks = np.arange(num)[:, None] + np.arange(-1, 2)
    seen = pairs[:, np.arange(num)[:, None], :, blocks.clip(0, num - 1), :]  # [N, 3, B, S, S]
    seen &= ((blocks >= 0) & (blocks < num))[..., None, None, None]
    distance = np.arange(3 * size) - size - np.arange(size)[:, None]
    return seen.transpose(2, 0, 3, 1, 4).reshape(-1, num, size, 3 * size) & (np.abs(distance) <= size)[None, None]
