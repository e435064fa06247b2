"""The online average of the weights: an exponential moving average that each update adds to.

Polyak and Juditsky 1992 for averages of weights; the decay rises from 2/11 as TensorFlow's ExponentialMovingAverage
lets it, so that the first weights are forgotten. The average is a part of the optimizer's state: float32, sharded as
the parameters are, saved and resumed with them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree


class AverageState(NamedTuple):
    """The updates that the average has seen, int32 [], and the average itself, with the parameters' names."""

    average_updates: PyTree
    average: PyTree


def with_average(optimizer: optax.GradientTransformation, decay: float | None) -> optax.GradientTransformation:
    """Returns the optimizer, an optax chain; with a `decay` its state ends with an AverageState.

    After update t, counted from the average's first, the average is d x itself + (1 - d) x the new parameters, with
    d = min(decay, (1 + t) / (10 + t)). It begins as the parameters.
    """
    if decay is None:
        return optimizer

    def init(params: PyTree) -> PyTree:
        states: PyTree = optimizer.init(params)
        return (*states, AverageState(jnp.zeros((), jnp.int32), _copied(params)))

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        *others, before = state
        states: PyTree
        updates, states = optimizer.update(updates, tuple(others), params)
        number = before.average_updates + 1
        rest = jnp.maximum(1 - decay, 9 / (10 + number))  # 1 - d, without what float32 loses of a d near 1
        average = jax.tree.map(
            lambda average, new: average + rest * (new.astype(jnp.float32) - average),
            before.average,
            optax.apply_updates(params, updates),
        )
        return updates, (*states, AverageState(number, average))

    return optax.GradientTransformation(init, update)


def _copied(params: PyTree) -> PyTree:
    """Returns the parameters in arrays of their own: a step donates both."""
    return jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), params)


def evaluated_weights(params: PyTree, opt_state: PyTree) -> PyTree:
    """Returns what a run evaluates: the average of its weights if its optimizer's state has one, else `params`."""
    found = filter(_is_average, jax.tree.leaves(opt_state, is_leaf=_is_average))
    return next((state.average for state in found), params)


def restarted(params: PyTree, opt_state: PyTree) -> PyTree:
    """Returns a new optimizer's state, whose average, if it has one, begins as these parameters."""
    begun = lambda state: state._replace(average=_copied(params)) if _is_average(state) else state
    return jax.tree.map(begun, opt_state, is_leaf=_is_average)


def _is_average(state: object) -> bool:
    return isinstance(state, AverageState)
