"""Multi-head attention without 1/sqrt(C): that factor lies in the query's initial values (T5X)."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from limba.model.layers import Dense, attention_kernel_init

# What a hidden key scores: far below any real score, and finite, so that a query that sees
# nothing (padding) spreads evenly instead of giving NaN.
HIDDEN_SCORE = -1e10


def query_init(head_dim: int) -> Initializer:
    def init(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return attention_kernel_init(key, shape, dtype) / math.sqrt(head_dim)

    return init


def dot_product_attention(
    query: Float[Array, "B Q H C"],
    key: Float[Array, "B K H C"],
    value: Float[Array, "B K H C"],
    bias: Float[Array, "H Q K"] | None,
    mask: Bool[Array, "B Q K"] | None,
    dropout_rate: float = 0.0,
    dropout_key: Array | None = None,
) -> Float[Array, "B Q H C"]:
    """Returns softmax(q k^T + bias) v; scores and softmax in float32, products in the inputs' dtype.

    With a dropout key, shares of `dropout_rate` of the weights are zeroed, the same for all queries
    of a head, as T5 does.
    """
    scores = jnp.einsum("bqhc,bkhc->bhqk", query, key, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias[None]
    if mask is not None:
        scores = jnp.where(mask[:, None], scores, HIDDEN_SCORE)
    weights = jax.nn.softmax(scores, axis=-1)
    if dropout_key is not None:
        batch, heads, _, keys = weights.shape
        kept = jax.random.bernoulli(dropout_key, 1 - dropout_rate, (batch, heads, 1, keys))
        weights = jnp.where(kept, weights / (1 - dropout_rate), 0)
    return jnp.einsum("bhqk,bkhc->bqhc", weights.astype(value.dtype), value)


class Attention(nn.Module):
    """Projects, attends, projects back. `x` asks; `memory` (x itself, or the encoder's output) answers."""

    num_heads: int
    head_dim: int
    dropout_rate: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q D"],
        memory: Float[Array, "B K D"],
        bias: Float[Array, "H Q K"] | None,
        mask: Bool[Array, "B Q K"] | None,
        deterministic: bool,
    ) -> Float[Array, "B Q D"]:
        def project(name: str, inputs: Array, init: Initializer) -> Array:
            width = self.num_heads * self.head_dim
            flat = Dense(width, ("embed", "joined_kv"), self.dtype, init, name=name)(inputs)
            return flat.reshape(*flat.shape[:-1], self.num_heads, self.head_dim)

        query = project("query", x, query_init(self.head_dim))
        key = project("key", memory, attention_kernel_init)
        value = project("value", memory, attention_kernel_init)
        drop = self.dropout_rate > 0 and not deterministic
        attended = dot_product_attention(
            query, key, value, bias, mask, self.dropout_rate, self.make_rng("dropout") if drop else None
        )
        attended = attended.reshape(*x.shape[:-1], self.num_heads * self.head_dim)
        return Dense(x.shape[-1], ("joined_kv", "embed"), self.dtype, attention_kernel_init, name="out")(attended)
