"""Multi-head attention without the factor 1/sqrt(C), which is in the query's initial values instead (T5X)."""

from __future__ import annotations

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from limba.config import ModelConfig
from limba.model.kernels.choose import AttentionKernel
from limba.model.layers import Initializer, Kernel, attention_init
from limba.model.masks import Mask


def query_init(head_dim: int) -> Initializer:
    """Returns the initializer of a query's matrix: the values of `attention_init`, divided by sqrt(C)."""
    return lambda *choices: attention_init(*choices) / math.sqrt(head_dim)


class Attention(nn.Module):
    """Projects, attends, projects back. Queries come from `x`, keys and values from `memory`.

    `memory` is `x` itself or the encoder's output. `attend` is chosen for these shapes (`kernels/choose.py`). Its
    `project` gives [B, L, H, C] for an einsum and [B, N, H, C, L] for a TPU's kernel, which alone reads them; `bias`
    has the layout that the kernel's own `bias` gives.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q D"],
        memory: Float[Array, "B K D"],
        attend: AttentionKernel,
        bias: Array | None,
        mask: Mask,
        deterministic: bool,
    ) -> Float[Array, "B Q D"]:
        config = self.config
        dtype = jnp.dtype(config.dtype)
        width = x.shape[-1]
        joined = config.num_heads * config.head_dim  # H * C
        into_heads = functools.partial(Kernel, (width, joined), ("embed", "joined_kv"), dtype)
        # Matrices [D, H * C], and back [H * C, D].
        query = into_heads(query_init(config.head_dim), name="query")()
        key = into_heads(attention_init, name="key")()
        value = into_heads(attention_init, name="value")()
        out = Kernel((joined, width), ("joined_kv", "embed"), dtype, attention_init, name="out")()
        # The queries of `x`, and the keys and values of `memory`.
        heads = attend.project(x, memory, (query, key, value))
        if config.dropout_rate > 0 and not deterministic:
            # T5 shares the dropout of attention weights over the queries of a head, which equals dropout of values.
            keep_rate = 1 - config.dropout_rate
            shape = (*memory.shape[:2], config.num_heads, 1)  # one number for all C entries of a value
            kept = jax.random.bernoulli(self.make_rng("dropout"), keep_rate, shape)
            heads = attend.drop_values(heads, kept, keep_rate)
        return attend.join(attend(heads, bias, mask), out)
