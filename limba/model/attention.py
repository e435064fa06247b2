"""Multi-head attention without 1/sqrt(C): that factor lies in the query's initial values (T5X)."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from limba.model.kernels.memory_efficient import HIDDEN_SCORE, memory_efficient_attention
from limba.model.layers import Dense, attention_kernel_init

CACHE_BYTES = 8 << 20  # of scores; above it a CPU reads and writes them from memory


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
) -> Float[Array, "B Q H C"]:
    """Returns softmax(q k^T + bias) v; scores and softmax in float32, products in the inputs' dtype."""
    scores = jnp.einsum("bqhc,bkhc->bhqk", query, key, preferred_element_type=jnp.float32)
    if bias is not None:
        scores = scores + bias[None]
    if mask is not None:
        scores = jnp.where(mask[:, None], scores, HIDDEN_SCORE)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bhqk,bkhc->bqhc", weights.astype(value.dtype), value)


def _fastest(query: Float[Array, "B Q H C"], key: Float[Array, "B K H C"]) -> str:
    """Returns the name of what is fastest here, as measured in benchmarks/README.md."""
    # Examples one by one would have to be gathered from the devices that share the batch.
    alone_on_cpu = jax.default_backend() == "cpu" and jax.device_count() == 1
    batch, queries, heads, _ = query.shape
    in_cache = 4 * batch * heads * queries * key.shape[1] <= CACHE_BYTES
    return "memory_efficient" if alone_on_cpu and not in_cache else "einsum"


IMPLEMENTATIONS = {"einsum": dot_product_attention, "memory_efficient": memory_efficient_attention}


def attend(
    implementation: str,
    query: Float[Array, "B Q H C"],
    key: Float[Array, "B K H C"],
    value: Float[Array, "B K H C"],
    bias: Float[Array, "H Q K"] | None,
    mask: Bool[Array, "B Q K"] | None,
) -> Float[Array, "B Q H C"]:
    """Returns softmax(q k^T + bias) v by the implementation of that name, or by the fastest ('auto')."""
    name = _fastest(query, key) if implementation == "auto" else implementation
    return IMPLEMENTATIONS[name](query, key, value, bias, mask)


class Attention(nn.Module):
    """Projects, attends, projects back. `x` asks; `memory` (x itself, or the encoder's output) answers."""

    num_heads: int
    head_dim: int
    dropout_rate: float
    dtype: jnp.dtype
    implementation: str = "auto"

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
        if self.dropout_rate > 0 and not deterministic:
            # T5 drops an attention weight for all queries of a head alike: that is to drop the value it picks.
            kept = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.dropout_rate, (*value.shape[:-1], 1))
            value = jnp.where(kept, value / (1 - self.dropout_rate), 0)
        attended = attend(self.implementation, query, key, value, bias, mask)
        attended = attended.reshape(*x.shape[:-1], self.num_heads * self.head_dim)
        return Dense(x.shape[-1], ("joined_kv", "embed"), self.dtype, attention_kernel_init, name="out")(attended)
