"""Dynamic loss scaling, for gradients that are computed in float16 (Micikevicius et al. 2018, arXiv:1710.03740).

The loss is multiplied by a scale before the backward pass, so that small gradients do not become 0 in float16, and the
gradients are divided by it afterwards. Where a gradient overflows, the usual rule (`flax.training.dynamic_scale`,
torch's GradScaler) lowers the scale and drops the step. Here the same batch is computed again with half of the scale:
no update is lost, batch n remains the batch of step n, and Adam's counts, the schedule and the guard know nothing of
it. A batch whose gradient overflows at every scale is not finite for another reason, and is left to the guard.

The scale is a part of the optimizer's state, so a resumed run repeats exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

FIRST_SCALE = 2.0**15  # of the mean loss
LEAST_SCALE, LARGEST_SCALE = 2.0**-8, 2.0**24
GROWTH_STEPS = 1000  # good steps in a row, after which the scale is doubled


class LossScale(NamedTuple):
    """The scale as doublings of FIRST_SCALE, int32 [], and the good steps since it changed, int32 [].

    Zeros are its first value: a checkpoint of a run in another dtype holds neither, and can be resumed.
    """

    loss_scale_doublings: PyTree
    loss_scale_steps: PyTree


def with_loss_scale(optimizer: optax.GradientTransformation, dtype: str) -> optax.GradientTransformation:
    """Returns the optimizer, an optax chain; for float16 its state ends with a LossScale, which it passes on."""
    if dtype != "float16":
        return optimizer

    def init(params: PyTree) -> PyTree:
        states: PyTree = optimizer.init(params)
        return (*states, LossScale(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        *others, scale = state
        states: PyTree
        updates, states = optimizer.update(updates, tuple(others), params)
        return updates, (*states, scale)

    return optax.GradientTransformation(init, update)


def scaled_gradients(compute: Callable[..., tuple[PyTree, PyTree]], opt_state: PyTree, num_targets: int) -> tuple:
    """Returns (gradient of the summed loss, sums, optimizer state); the state's LossScale, if any, is the next one.

    `compute(factor)` returns the gradient of factor x the summed loss, and the sums; it is called under a trace, once.
    A batch has `num_targets` places for targets, so that the scale is that of the mean loss.
    """
    if not (isinstance(opt_state, tuple) and opt_state and isinstance(opt_state[-1], LossScale)):
        return *compute(), opt_state
    *others, before = opt_state
    first = FIRST_SCALE * jnp.exp2(before.loss_scale_doublings.astype(jnp.float32))

    def attempt(tried: tuple[PyTree, PyTree, Array, Array]) -> tuple[PyTree, PyTree, Array, Array]:
        factor = tried[2] / num_targets
        grads, sums = compute(factor)
        grads = jax.tree.map(lambda g: g / factor, grads)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
        return grads, sums, jnp.where(finite, tried[2], tried[2] / 2), finite

    def goes_on(tried: tuple[PyTree, PyTree, Array, Array]) -> Array:
        return ~tried[3] & (tried[2] >= LEAST_SCALE)

    shapes = jax.eval_shape(compute, first)
    grads, sums = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    grads, sums, scale, finite = jax.lax.while_loop(goes_on, attempt, (grads, sums, first, jnp.array(False)))
    return grads, sums, (*others, _next(before, first, scale, finite))


def _next(before: LossScale, first: Array, scale: Array, finite: Array) -> LossScale:
    """Returns the LossScale after a step that began with the scale `first`; unchanged if no scale was small enough."""
    steps = jnp.where(scale == first, before.loss_scale_steps + 1, 0)
    grows = (steps >= GROWTH_STEPS) & (scale < LARGEST_SCALE)
    doublings = jnp.round(jnp.log2(scale / FIRST_SCALE)).astype(jnp.int32) + grows
    after = LossScale(doublings, jnp.where(grows, 0, steps))
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)
