"""The optimizer of a run as one optax chain around its rule, which `limba/config/optimizer.py` builds of our parts."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from limba.config import ConfigError, OptimizerConfig, RunConfig
from limba.config.optimizer import Parts
from limba.model import Network
from limba.sharding.mesh import named_leaves
from limba.training.schedule import make_schedule
from limba.training.state import trained_shardings
from limba.training.updates.average import with_average
from limba.training.updates.loss_scale import with_loss_scale
from limba.training.updates.muon import matrices_by_muon


def optimizer_of(run: RunConfig, model: Network) -> optax.GradientTransformation:
    """Returns the optimizer of a run, for the parameters of its network as its mesh shards them in training."""
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

    `dtype` is that of the activations: for float16 the state also holds the loss's scale. `shardings` are those of the
    parameters in training, by which Muon shares its work; None: there is one device. With the decay `average` the state
    also holds the average of the weights.
    """
    chain = _unfrozen(config, train_steps, shardings)
    if config.frozen:
        chain = optax.chain(chain, optax.masked(optax.set_to_zero(), functools.partial(_is_frozen, config.frozen)))
    return with_loss_scale(with_average(chain, average), dtype)


def _is_frozen(patterns: tuple[str, ...], params: PyTree) -> PyTree:
    """Returns True at parameters whose name begins with a match of a pattern; ConfigError if a pattern has none.

    Also raises ConfigError if all parameters are frozen.
    """
    names = list(named_leaves(params))
    for pattern in patterns:
        if not any(re.match(pattern, name) for name in names):
            raise ConfigError(
                "OptimizerConfig.frozen",
                f"holds {pattern!r}, and no parameter's name begins with it; use names such as"
                f" {names[0]} and {names[-1]}.",
            )
    marks = [any(re.match(pattern, name) for pattern in patterns) for name in names]
    if all(marks):
        raise ConfigError(
            "OptimizerConfig.frozen",
            f"is {patterns}, which all parameters' names begin with, so nothing would be trained; leave out those that"
            " match too much.",
        )
    return jax.tree.structure(params).unflatten(marks)


def _unfrozen(config: OptimizerConfig, train_steps: int | None, shardings: PyTree) -> optax.GradientTransformation:
    clip = [] if config.clip_global_norm is None else [optax.clip_by_global_norm(config.clip_global_norm)]
    rate = optax.scale_by_learning_rate(make_schedule(config.schedule, train_steps))
    decay = functools.partial(optax.add_decayed_weights, mask=_is_decayed)
    parts = Parts(
        rate,
        [decay(config.weight_decay), rate] if config.weight_decay else [rate],
        decay,
        per_layer,
        scale_by_parameter_rms,
        functools.partial(matrices_by_muon, shardings=shardings),
        config.schedule.planned_steps or train_steps or 1,
    )
    return optax.chain(*clip, *config.build(parts))


def scale_by_parameter_rms(min_scale: float) -> optax.GradientTransformation:
    """Scales each update by its parameter's root mean square, and by `min_scale` at least.

    Numbers and state equal those of `optax.scale_by_param_block_rms`. That one can also be differentiated, and
    therefore reads all parameters twice: 2 % of a base model's step on a TPU.
    """

    def scale(update: jax.Array, parameter: jax.Array) -> jax.Array:
        return update * jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(parameter))), min_scale)

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return jax.tree.map(scale, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def per_layer(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `inner` to each layer of a stacked parameter as to a separate parameter.

    T5X's rule is per layer; without this, Adafactor would factor, clip and scale a whole stack as one array. The
    state holds one entry per stack, and one for the parameters outside of stacks; in each, arrays are keyed by the
    parameter's name.
    """

    def init(params: PyTree) -> dict[str, PyTree]:
        groups = _groups(params)
        return {stack: _over_layers(inner.init, stack)(group) for stack, group in groups.items()}

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        groups = _groups(params)
        names, structure = named_leaves(params), jax.tree.structure(params)
        flat, new_state = {}, {}
        for stack, group in _groups(updates).items():
            step = _over_layers(inner.update, stack)
            directions, new_state[stack] = step(group, state[stack], groups[stack])
            flat.update(directions)
        return structure.unflatten([flat[name] for name in names]), new_state

    return optax.GradientTransformation(init, update)


def _groups(tree: PyTree) -> dict[str, dict[str, jax.Array]]:
    """Returns {stack: {name: array}}; parameters outside of stacks are the stack ""."""
    groups: dict[str, dict[str, jax.Array]] = {}
    for name, leaf in named_leaves(tree).items():
        stack = name.split("/layers/")[0] if "/layers/" in name else ""
        groups.setdefault(stack, {})[name] = leaf
    return groups


def _over_layers(function: Callable, stack: str) -> Callable:
    return jax.vmap(function) if stack else function


def _is_decayed(params: PyTree) -> PyTree:
    """Returns True at parameters with weight decay: all but the scales of norms and biases."""
    return jax.tree.map_with_path(lambda path, _: path[-1].key not in ("scale", "bias"), params)
