"""The sizes of a call, and the layout of the kernel for TPUs: arrays whose length is their last axis."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jaxtyping import Array, Float

from limba.model.layers import ATTENDED, DENSE


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The sizes that one attention is called with, and its mesh; None is one device."""

    mesh: Mesh | None
    batch: int
    queries: int
    keys: int
    num_heads: int
    head_dim: int


class FeatureMajor(Shapes):
    """Projections [B, N, H, C, L], one for each input; the result is [B, H, C, Q].

    The length is last, since it fills a TPU's 128 lanes and a head's width of 64 does not. In self-attention N = 3
    is query, key and value; else the first array is the query, and the second is key and value. Rotated queries and
    keys come one by one (`arrange`), since to put them together would copy them.
    """

    def project(self, x: Array, memory: Array, kernels: tuple[Array, ...]) -> tuple[Array, ...]:
        """Returns the projections of `x` [B, Q, D] and `memory` [B, K, D], each with one matrix product."""
        by_head = [kernel.reshape(-1, self.num_heads, self.head_dim) for kernel in kernels]
        sources = [(x, by_head)] if x is memory else [(x, by_head[:1]), (memory, by_head[1:])]
        projections = []
        for inputs, parts in sources:
            stacked = jnp.stack(parts, axis=1)
            projected = jnp.einsum("bld,dnhc->bnhcl", inputs.astype(stacked.dtype), stacked)
            projections.append(checkpoint_name(projected, DENSE))
        return tuple(projections)

    def drop_values(self, heads: tuple[Array, ...], kept: Array, keep_rate: float) -> tuple[Array, ...]:
        """Returns the same with dropout of values: those `kept`, bool [B, K, H, 1], are scaled up, others are 0."""
        *others, last = heads
        factor = (kept / keep_rate).astype(last.dtype).transpose(0, 2, 3, 1)[:, None]
        ones = jnp.ones_like(factor)
        return *others, last * jnp.concatenate([ones] * (last.shape[1] - 1) + [factor], axis=1)

    def arrange(self, heads: tuple[Array, ...]) -> tuple[Array, ...]:
        """Returns queries, keys and values [B, L, H, C] of self-attention as this kernel reads them."""
        return tuple(array.transpose(0, 2, 3, 1)[:, None] for array in heads)

    def restore(self, attended: Float[Array, "B H C Q"]) -> Float[Array, "B Q H C"]:
        """Returns the kernel's result with the heads last."""
        return checkpoint_name(attended.transpose(0, 3, 1, 2), ATTENDED)

    def join(self, attended: Float[Array, "B H C Q"], out: Float[Array, "W D"]) -> Float[Array, "B Q D"]:
        """Returns the heads' values, projected back to the model width."""
        by_head = out.reshape(self.num_heads, self.head_dim, -1)
        return checkpoint_name(_joined(attended, by_head), DENSE)


@jax.custom_vjp
def _joined(attended: Float[Array, "B H C Q"], out: Float[Array, "H C D"]) -> Float[Array, "B Q D"]:
    """Returns the projection back to the model width.

    The array that `remat` saves gets its name only on its way to the backward pass. If the forward pass read it under
    that name too, jax would round it a second time there: a pass over memory of its own, after a kernel.
    """
    return jnp.einsum("bhcl,hcd->bld", attended, out)


def _joined_forward(attended: Array, out: Array) -> tuple[Array, tuple[Array, Array]]:
    return jnp.einsum("bhcl,hcd->bld", attended, out), (checkpoint_name(attended, ATTENDED), out)


def _joined_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    attended, out = saved
    return jnp.einsum("bld,hcd->bhcl", gradient, out), jnp.einsum("bhcl,bld->hcd", attended, gradient)


_joined.defvjp(_joined_forward, _joined_backward)
