"""Muon: the update of a layer's matrix is its momentum, made orthogonal by Newton-Schulz iterations.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon); Liu et al. 2025 (arXiv:2502.16982) for updates of one size.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from limba.config import OptimizerConfig
from limba.sharding.tree import named_leaves

Tree = Any
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration (Jordan et al.)


def matrices_by_muon(config: OptimizerConfig, others: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns Muon's rule for the kernels of layers, and `others` for embeddings, head, norms, biases and positions.

    Each matrix of a stack is its own. A stack whose layers are sharded stays so: each device orthogonalizes its layers.
    """

    def orthogonal(updates: Tree) -> Tree:
        return jax.tree.map(
            lambda momentum: sized(orthogonalized(momentum, config.muon_steps, config.muon_dtype), config.muon_rms),
            updates,
        )

    matrices = optax.chain(
        optax.trace(config.muon_beta, nesterov=True), optax.stateless(lambda updates, _: orthogonal(updates))
    )
    return optax.partition({"matrices": matrices, "others": others}, _kinds)


def _kinds(params: Tree) -> Tree:
    """Returns for each parameter which of the two rules it has."""
    matrices = [name.endswith("/kernel") and "layers" in name for name in named_leaves(params)]
    return jax.tree.structure(params).unflatten(["matrices" if matrix else "others" for matrix in matrices])


def orthogonalized(
    x: Float[Array, "*layers n m"], steps: int = 5, dtype: str = "bfloat16"
) -> Float[Array, "*layers n m"]:
    """Returns about U V^T of each matrix's singular value decomposition U S V^T, computed in `dtype`.

    The singular values of the result are between 0.5 and 1.5 or so after 5 steps, and not 1: the coefficients are
    those that bring small ones up the fastest.
    """
    a, b, c = COEFFICIENTS
    is_tall = x.shape[-2] > x.shape[-1]
    y = jnp.swapaxes(x, -1, -2) if is_tall else x
    y = (y / (jnp.linalg.norm(y, axis=(-2, -1), keepdims=True) + 1e-8)).astype(dtype)
    for _ in range(steps):
        gram = y @ jnp.swapaxes(y, -1, -2)
        y = a * y + (b * gram + c * (gram @ gram)) @ y
    return (jnp.swapaxes(y, -1, -2) if is_tall else y).astype(x.dtype)


def sized(x: Float[Array, "*layers n m"], rms: float) -> Float[Array, "*layers n m"]:
    """Returns orthogonal matrices with this root mean square of their elements."""
    return x * (rms * max(x.shape[-2:]) ** 0.5)
