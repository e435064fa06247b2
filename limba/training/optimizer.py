"""The optimizer of a run as one optax chain around its rule (`limba/training/rules.py`).

What a run's state holds besides the rule's own arrays ends the chain: the average of the weights, and float16's scale.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from limba.config import ConfigError, OptimizerConfig, RunConfig
from limba.model import Network
from limba.sharding.mesh import named_leaves
from limba.training.rules import transformations
from limba.training.schedule import make_schedule
from limba.training.state import trained_shardings

# The scale of the mean loss in float16. Powers of 2, so that scaling rounds nothing.
FIRST_SCALE = 2.0**15
LEAST_SCALE = 2.0**-8
LARGEST_SCALE = 2.0**24
GROWTH_STEPS = 1000  # good steps in a row, after which the scale is doubled


def optimizer_of(run: RunConfig, model: Network) -> optax.GradientTransformation:
    """Returns the optimizer of a run, for the parameters of its network as its mesh shards them in training.

    Raises ConfigError for a pattern of names that none of them has.
    """
    if run.optimizer.undecayed and run.optimizer.weight_decay:
        names = list(named_leaves(jax.eval_shape(model.init, jax.random.key(0))))
        _check_patterns("OptimizerConfig.undecayed", run.optimizer.undecayed, names)
    shardings = None if model.mesh is None else trained_shardings(model, model.mesh, run.mesh.shard_update)
    average = run.evaluation.average
    return make_optimizer(run.optimizer, run.train_steps, run.model.dtype, shardings=shardings, average=average)


def make_optimizer(
    config: OptimizerConfig,
    train_steps: int | None,
    dtype: str = "float32",
    *,
    shardings: PyTree = None,
    average: float | None = None,
) -> optax.GradientTransformation:
    """Returns the optimizer chain: clip the gradient, apply the rule, scale by the schedule, skip frozen parameters.

    `dtype` is the activations' dtype: for float16 the state also holds the loss's scale. `shardings` are of the
    parameters in training, by which Muon shares its work; None: there is one device. With the decay `average` the state
    also holds the average of the weights.
    """
    chain = _unfrozen(config, train_steps, shardings)
    if config.frozen:  # behind the rule, which may decay weights without a gradient too
        is_frozen = functools.partial(_is_frozen, config.frozen)
        chain = optax.chain(chain, optax.masked(optax.set_to_zero(), is_frozen))
    return with_loss_scale(with_average(chain, average), dtype)


def _is_frozen(patterns: tuple[str, ...], params: PyTree) -> PyTree:
    """Returns True at parameters whose name begins with a match of a pattern; ConfigError if a pattern has none.

    Also raises ConfigError if all parameters are frozen.
    """
    names = list(named_leaves(params))
    _check_patterns("OptimizerConfig.frozen", patterns, names)
    marks = [any(re.match(pattern, name) for pattern in patterns) for name in names]
    if all(marks):
        raise ConfigError(
            "OptimizerConfig.frozen",
            f"is {patterns}, which all parameters' names begin with, so nothing would be trained; leave out those that"
            " match too much.",
        )
    return jax.tree.structure(params).unflatten(marks)


def _check_patterns(field: str, patterns: tuple[str, ...], names: Sequence[str]) -> None:
    """Raises ConfigError for a pattern that no parameter's name begins with."""
    for pattern in patterns:
        if not any(re.match(pattern, name) for name in names):
            raise ConfigError(
                field,
                f"holds {pattern!r}, and no parameter's name begins with it; use names such as"
                f" {names[0]} and {names[-1]}.",
            )


def _unfrozen(config: OptimizerConfig, train_steps: int | None, shardings: PyTree) -> optax.GradientTransformation:
    """Returns the rule behind the clipping of the gradient, for all parameters."""
    rate = optax.scale_by_learning_rate(make_schedule(config.schedule, train_steps))
    rule = transformations(config, rate, shardings)
    if config.clip_global_norm is None:
        return optax.chain(*rule)
    return optax.chain(optax.clip_by_global_norm(config.clip_global_norm), *rule)


class AverageState(NamedTuple):
    """The updates that the average of the weights has seen, int32 [], and the average, with the parameters' names.

    An exponential moving average that each update adds to (Polyak and Juditsky 1992 for averages of weights). Its decay
    rises from 2/11 as TensorFlow's ExponentialMovingAverage lets it, so that the first weights are forgotten. It is
    float32, sharded as the parameters are, saved and resumed with them.
    """

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
    for state in jax.tree.leaves(opt_state, is_leaf=_is_average):
        if _is_average(state):
            return state.average
    return params


def restarted(params: PyTree, opt_state: PyTree) -> PyTree:
    """Returns a new optimizer's state, whose average, if it has one, begins as these parameters."""

    def begun(state: PyTree) -> PyTree:
        if _is_average(state):
            return state._replace(average=_copied(params))
        return state

    return jax.tree.map(begun, opt_state, is_leaf=_is_average)


def _is_average(state: object) -> bool:
    return isinstance(state, AverageState)


class LossScale(NamedTuple):
    """The scale as doublings of FIRST_SCALE, int32 [], and the good steps since it changed, int32 [].

    For gradients that are computed in float16 (Micikevicius et al. 2018, arXiv:1710.03740): the loss is multiplied by
    the scale before the backward pass, so that small gradients do not become 0, and the gradients are divided by it
    afterwards. Where a gradient overflows, the usual rule (`flax.training.dynamic_scale`, torch's GradScaler) lowers
    the scale and drops the step. Here the same batch is computed again with half of the scale: no update is lost, batch
    n remains the batch of step n, and Adam's counts, the schedule and the guard know nothing of it. A batch whose
    gradient overflows at every scale is not finite for another reason, and is left to the guard.

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
    A batch has room for `num_targets` target tokens; the factor is divided by them, so that the scale is of the mean
    loss, and not of the sum, which grows with the batch.
    """
    if not _has_loss_scale(opt_state):
        return *compute(), opt_state
    *others, before = opt_state
    first = FIRST_SCALE * jnp.exp2(before.loss_scale_doublings.astype(jnp.float32))

    # Halves the scale until the gradient is finite. What goes round: gradient, sums, scale to try, and whether it was.
    def attempt(carry: tuple[PyTree, PyTree, Array, Array]) -> tuple[PyTree, PyTree, Array, Array]:
        _, _, scale, _ = carry
        factor = scale / num_targets
        grads, sums = compute(factor)
        grads = jax.tree.map(lambda g: g / factor, grads)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]))
        return grads, sums, jnp.where(finite, scale, scale / 2), finite

    def goes_on(carry: tuple[PyTree, PyTree, Array, Array]) -> Array:
        _, _, scale, finite = carry
        return ~finite & (scale >= LEAST_SCALE)

    shapes = jax.eval_shape(compute, first)
    grads, sums = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    grads, sums, scale, finite = jax.lax.while_loop(goes_on, attempt, (grads, sums, first, jnp.array(False)))
    return grads, sums, (*others, _next(before, first, scale, finite))


def _has_loss_scale(opt_state: PyTree) -> bool:
    return isinstance(opt_state, tuple) and bool(opt_state) and isinstance(opt_state[-1], LossScale)


def _next(before: LossScale, first: Array, scale: Array, finite: Array) -> LossScale:
    """Returns the LossScale after a step that began with the scale `first`; unchanged if no scale was small enough."""
    steps = jnp.where(scale == first, before.loss_scale_steps + 1, 0)
    grows = (steps >= GROWTH_STEPS) & (scale < LARGEST_SCALE)
    doublings = jnp.round(jnp.log2(scale / FIRST_SCALE)).astype(jnp.int32) + grows
    after = LossScale(doublings, jnp.where(grows, 0, steps))
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, before)
