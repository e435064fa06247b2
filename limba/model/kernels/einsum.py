"""Attention by XLA: all scores as one array, or saving none, one example after another, recomputed for the gradient.

The second is Rabe & Staats 2021 (arXiv:2112.05682), with the softmax's normalizer saved as in FlashAttention (Dao et
al. 2022, arXiv:2205.14135, appendix B.2). On a CPU the scores of one example stay in the cache; the scores of a whole
batch are written to memory and read again several times.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

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


@jax.custom_vjp
def memory_efficient_attention(
    query: Float[Array, "B Q H C"],
    key: Float[Array, "B K H C"],
    value: Float[Array, "B K H C"],
    bias: Float[Array, "H Q K"] | None,
    mask: Bool[Array, "B Q K"] | None,
) -> Float[Array, "B Q H C"]:
    """Returns softmax(q k^T + bias) v; scores and softmax in float32, products in the inputs' dtype."""
    return _forward(query, key, value, bias, mask)[0]


def _scores(
    query: Float[Array, "Q H C"],
    key: Float[Array, "K H C"],
    bias: Float[Array, "H Q K"] | None,
    mask: Bool[Array, "Q K"] | None,
) -> Float[Array, "H Q K"]:
    scores = jnp.einsum("qhc,khc->hqk", query, key, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias
    return scores if mask is None else jnp.where(mask[None], scores, HIDDEN_SCORE)


def _forward(
    query: Array, key: Array, value: Array, bias: Array | None, mask: Array | None
) -> tuple[Array, tuple[Array | None, ...]]:
    def attend(example: PyTree) -> tuple[Array, Array, Array]:
        query, key, value, mask = example
        scores = _scores(query, key, bias, mask)
        highest = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - highest)
        total = jnp.sum(weights, axis=-1)
        attended = jnp.einsum("hqk,khc->qhc", weights.astype(value.dtype), value, preferred_element_type=jnp.float32)
        return (attended / total.T[..., None]).astype(value.dtype), highest, total[..., None]

    # The normalizer is saved in two parts: if all keys are hidden, float32 loses log(total) when it is added to -1e10.
    attended, highest, total = jax.lax.map(attend, (query, key, value, mask))
    return attended, (query, key, value, bias, mask, attended, highest, total)


def _backward(saved: PyTree, gradient: Float[Array, "B Q H C"]) -> tuple[Array, Array, Array, Array | None, None]:
    query, key, value, bias, mask, attended, highest, total = saved

    def step(bias_gradient: Array | None, example: PyTree) -> tuple[Array | None, tuple[Array, ...]]:
        query, key, value, mask, attended, highest, total, gradient = example
        weights = jnp.exp(_scores(query, key, bias, mask) - highest) / total
        to_weights = jnp.einsum("qhc,khc->hqk", gradient, value, preferred_element_type=jnp.float32)
        mean = jnp.sum(gradient.astype(jnp.float32) * attended.astype(jnp.float32), axis=-1)
        to_scores = weights * (to_weights - mean.T[..., None])
        if mask is not None:
            to_scores = jnp.where(mask[None], to_scores, 0.0)
        if bias_gradient is not None:
            bias_gradient = bias_gradient + to_scores
        to_scores = to_scores.astype(query.dtype)
        weights = weights.astype(value.dtype)
        to_query = jnp.einsum("hqk,khc->qhc", to_scores, key)
        to_key = jnp.einsum("hqk,qhc->khc", to_scores, query)
        to_value = jnp.einsum("hqk,qhc->khc", weights, gradient)
        return bias_gradient, (to_query, to_key, to_value)

    zeros = None if bias is None else jnp.zeros_like(bias)
    examples = (query, key, value, mask, attended, highest, total, gradient)
    bias_gradient, (to_query, to_key, to_value) = jax.lax.scan(step, zeros, examples)
    return to_query, to_key, to_value, bias_gradient, None


memory_efficient_attention.defvjp(_forward, _backward)
