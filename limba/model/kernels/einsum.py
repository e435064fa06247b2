"""Attention that computes all scores as one array."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

# The score of a hidden key: far below any real score, and finite, so that a query that sees
# nothing (padding) spreads evenly instead of giving NaN.
HIDDEN_SCORE = -1e10


def dot_product_attention(
    query: Float[Array, "B Q H C"],
    key: Float[Array, "B K H C"],
    value: Float[Array, "B K H C"],
    bias: Float[Array, "H Q K"] | None,
    mask: Bool[Array, "B Q K"] | None,
) -> Float[Array, "B Q H C"]:
    """Returns softmax(q k^T + bias) v; scores and softmax in float32, products in the inputs' dtype."""
    scores = jnp.einsum("bqhc,bkhc->bhqk", query, key, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias[None]
    if mask is not None:
        scores = jnp.where(mask[:, None], scores, HIDDEN_SCORE)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bhqk,bkhc->bqhc", weights.astype(value.dtype), value)


def cached_attention(
    query: Float[Array, "B H Q C"],
    key: Float[Array, "B H K C"],
    value: Float[Array, "B H K C"],
    bias: Float[Array, "H _ K"] | None,
    mask: Bool[Array, "B K"],
) -> Float[Array, "B H Q C"]:
    """Returns the same for the layout of a KV cache, heads first, where all queries see the same keys."""
    scores = jnp.einsum("bhqc,bhkc->bhqk", query, key, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias[None]
    scores = jnp.where(mask[:, None, None], scores, HIDDEN_SCORE)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bhqk,bhkc->bhqc", weights.astype(value.dtype), value)
