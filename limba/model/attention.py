"""Multi-head attention without 1/sqrt(C): that factor lies in the query's initial values (T5X)."""

from __future__ import annotations

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.nn.initializers import Initializer
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from limba.model.kernels.memory_efficient import HIDDEN_SCORE, memory_efficient_attention
from limba.model.kernels.sharded import PallasAttention
from limba.model.layers import ATTENDED, DENSE, Dense, Kernel, attention_kernel_init
from limba.model.masks import Mask

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


IMPLEMENTATIONS = {"einsum": dot_product_attention, "memory_efficient": memory_efficient_attention}


def implementation(
    choice: str, mesh: Mesh | None, batch: int, queries: int, keys: int, heads: int, head_dim: int
) -> str:
    """Returns the name of what computes attention: `choice`, or with 'auto' what is fastest here.

    `mesh` is where it will run, which may be on devices that are only compiled for. The Pallas kernels leave to the
    einsum a batch that does not divide among the devices (an evaluation's, say), what a TPU's memory does not hold,
    heads of odd widths on a GPU, and GPUs that are too old.
    """
    kernel = PallasAttention(mesh, heads)
    platform, devices = kernel.device.platform, jax.device_count() if mesh is None else mesh.size
    if choice == "pallas" or (choice == "auto" and platform in ("tpu", "gpu")):
        return "pallas" if kernel.takes(batch, keys, head_dim) else "einsum"
    if choice != "auto":
        return choice
    # Examples one by one would have to be gathered from the devices that share the batch. As measured in
    # benchmarks/README.md.
    in_cache = 4 * batch * heads * queries * keys <= CACHE_BYTES
    return "memory_efficient" if platform == "cpu" and devices == 1 and not in_cache else "einsum"


def attend(
    choice: str,
    mesh: Mesh | None,
    query: Float[Array, "B Q H C"],
    key: Float[Array, "B K H C"],
    value: Float[Array, "B K H C"],
    mask: Bool[Array, "B Q K"],
) -> Float[Array, "B Q H C"]:
    """Returns softmax(q k^T) v by the choice's implementation, for any mask; the einsum where that is Pallas."""
    batch, queries, heads, head_dim = query.shape
    name = implementation(choice, mesh, batch, queries, key.shape[1], heads, head_dim)
    attended = IMPLEMENTATIONS.get(name, dot_product_attention)(query, key, value, None, mask)
    return checkpoint_name(attended, ATTENDED)


class Attention(nn.Module):
    """Projects, attends, projects back. `x` asks; `memory` (x itself, or the encoder's output) answers."""

    num_heads: int
    head_dim: int
    dropout_rate: float
    dtype: jnp.dtype
    choice: str = "auto"
    mesh: Mesh | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B Q D"],
        memory: Float[Array, "B K D"],
        bias: Float[Array, "H Q K"] | Float[Array, "G H K Q"] | Float[Array, "G H P"] | None,
        mask: Mask,
        deterministic: bool,
    ) -> Float[Array, "B Q D"]:
        (batch, queries, _), keys = x.shape, memory.shape[1]
        name = implementation(self.choice, self.mesh, batch, queries, keys, self.num_heads, self.head_dim)
        kernel = PallasAttention(self.mesh, self.num_heads)
        kept = None
        if self.dropout_rate > 0 and not deterministic:
            # T5 drops an attention weight for all queries of a head alike: that is to drop the value it picks.
            shape = (batch, keys, self.num_heads, 1)
            kept = jax.random.bernoulli(self.make_rng("dropout"), 1 - self.dropout_rate, shape)
        if name == "pallas" and not kernel.on_gpu:
            return self._feature_major(x, memory, bias, mask, kept)
        width = self.num_heads * self.head_dim

        def project(name: str, inputs: Array, init: Initializer) -> Array:
            flat = Dense(width, ("embed", "joined_kv"), self.dtype, init, name=name)(inputs)
            return flat.reshape(*flat.shape[:-1], self.num_heads, self.head_dim)

        query = project("query", x, query_init(self.head_dim))
        key = project("key", memory, attention_kernel_init)
        value = project("value", memory, attention_kernel_init)
        if kept is not None:
            value = jnp.where(kept, value / (1 - self.dropout_rate), 0)
        if name == "pallas":  # has its name for `remat` from there
            attended = kernel((query, key, value), bias, mask).reshape(*x.shape[:-1], width)
        else:
            attended = IMPLEMENTATIONS[name](query, key, value, bias, mask.visible())
            attended = checkpoint_name(attended.reshape(*x.shape[:-1], width), ATTENDED)
        return Dense(x.shape[-1], ("joined_kv", "embed"), self.dtype, attention_kernel_init, name="out")(attended)

    def _feature_major(
        self,
        x: Array,
        memory: Array,
        bias: Array | None,
        mask: Mask,
        kept: Array | None,
    ) -> Float[Array, "B Q D"]:
        """Returns the same by a TPU's Pallas kernel: lengths last, the projections of an input in one product."""
        features, heads, width = x.shape[-1], self.num_heads, self.head_dim

        def kernel(name: str, init: Initializer) -> Float[Array, "D H C"]:
            of = Kernel((features, heads * width), ("embed", "joined_kv"), self.dtype, init, name=name)
            return of().reshape(-1, heads, width)

        kernels = [
            kernel("query", query_init(width)),
            kernel("key", attention_kernel_init),
            kernel("value", attention_kernel_init),
        ]
        sources = [(x, kernels)] if x is memory else [(x, kernels[:1]), (memory, kernels[1:])]
        projections = []
        for inputs, parts in sources:
            stacked = jnp.stack(parts, axis=1)
            projected = jnp.einsum("bld,dnhc->bnhcl", inputs.astype(self.dtype), stacked)
            projections.append(checkpoint_name(projected, DENSE))
        if kept is not None:
            factor = (kept / (1 - self.dropout_rate)).astype(self.dtype).transpose(0, 2, 3, 1)[:, None]
            ones = jnp.ones_like(factor)
            factor = jnp.concatenate([ones] * (projections[-1].shape[1] - 1) + [factor], axis=1)
            projections[-1] = projections[-1] * factor
        attended = PallasAttention(self.mesh, heads)(tuple(projections), bias, mask)
        out = Kernel((heads * width, features), ("joined_kv", "embed"), self.dtype, attention_kernel_init, name="out")()
        return checkpoint_name(_joined(attended, out.reshape(heads, width, features)), DENSE)


@jax.custom_vjp
def _joined(attended: Float[Array, "B H C Q"], out: Float[Array, "H C D"]) -> Float[Array, "B Q D"]:
    """Returns the heads' projection back to the model's width.

    What `remat` keeps bears its name only on the way to the backward pass: jax rounds a kept array anew wherever the
    forward pass reads it too, which after a kernel is a pass over memory of its own.
    """
    return jnp.einsum("bhcl,hcd->bld", attended, out)


def _joined_forward(attended: Array, out: Array) -> tuple[Array, tuple[Array, Array]]:
    return jnp.einsum("bhcl,hcd->bld", attended, out), (checkpoint_name(attended, ATTENDED), out)


def _joined_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    attended, out = saved
    return jnp.einsum("bld,hcd->bhcl", gradient, out), jnp.einsum("bhcl,bld->hcd", attended, gradient)


_joined.defvjp(_joined_forward, _joined_backward)
