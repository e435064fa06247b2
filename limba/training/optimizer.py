"""The optimizers as optax chains; each treats the layers of a stack as separate parameters.

Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) by T5X's rule; AdamW whose steps are scaled by the parameter's
root mean square (nanoT5, arXiv:2309.02373); AdamW (arXiv:1711.05101); and Muon, in `limba/training/muon.py`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from limba.config import ConfigError, OptimizerConfig
from limba.sharding.tree import named_leaves
from limba.training.muon import matrices_by_muon
from limba.training.precision.loss_scale import with_loss_scale
from limba.training.schedule import make_schedule

Tree = Any


def make_optimizer(
    config: OptimizerConfig, train_steps: int | None, dtype: str = "float32"
) -> optax.GradientTransformation:
    """Returns the optimizer chain: clip the gradient, apply the rule, scale by the schedule, skip frozen parameters.

    `dtype` is that of the activations: for float16 the state also holds the loss's scale.
    """
    chain = _unfrozen(config, train_steps)
    if config.frozen:
        chain = optax.chain(chain, optax.masked(optax.set_to_zero(), functools.partial(_is_frozen, config.frozen)))
    return with_loss_scale(chain, dtype)


def _is_frozen(patterns: tuple[str, ...], params: Tree) -> Tree:
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


def _unfrozen(config: OptimizerConfig, train_steps: int | None) -> optax.GradientTransformation:
    schedule = make_schedule(config.schedule, train_steps)
    steps = [] if config.clip_global_norm is None else [optax.clip_by_global_norm(config.clip_global_norm)]
    if config.name == "adafactor":
        steps += [_adafactor_direction(config), optax.scale_by_learning_rate(schedule)]
        if config.momentum is not None:
            steps.append(optax.ema(config.momentum, debias=False, accumulator_dtype=jnp.float32))
        if config.weight_decay:  # in T5X not multiplied by the learning rate
            steps.append(optax.add_decayed_weights(-config.weight_decay, mask=_is_decayed))
        return optax.chain(*steps)
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)
    steps.append(matrices_by_muon(config, adam) if config.name == "muon" else adam)
    if config.name == "adamw_rms":
        steps.append(per_layer(scale_by_parameter_rms(config.epsilon2)))
    if config.weight_decay:
        steps.append(optax.add_decayed_weights(config.weight_decay, mask=_is_decayed))
    return optax.chain(*steps, optax.scale_by_learning_rate(schedule))


def _adafactor_direction(config: OptimizerConfig) -> optax.GradientTransformation:
    steps = [
        optax.scale_by_factored_rms(
            decay_rate=config.decay_rate,
            step_offset=config.step_offset,
            min_dim_size_to_factor=config.min_dim_size_to_factor,
            epsilon=config.epsilon1,
        )
    ]
    if config.clipping_threshold is not None:
        steps.append(optax.clip_by_block_rms(config.clipping_threshold))
    if config.multiply_by_parameter_scale:
        steps.append(scale_by_parameter_rms(config.epsilon2))
    return per_layer(optax.chain(*steps))


def scale_by_parameter_rms(min_scale: float) -> optax.GradientTransformation:
    """Scales each update by its parameter's root mean square, and by `min_scale` at least.

    Numbers and state equal those of `optax.scale_by_param_block_rms`. That one can also be differentiated, and
    therefore reads all parameters twice: 2 % of a base model's step on a TPU.
    """

    def scale(update: jax.Array, parameter: jax.Array) -> jax.Array:
        return update * jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(parameter))), min_scale)

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        return jax.tree.map(scale, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def per_layer(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `inner` to each layer of a stacked parameter as to a separate parameter.

    T5X's rule is per layer; without this, Adafactor would factor, clip and scale a whole stack as one array. The
    state holds one entry per stack, and one for the parameters outside of stacks; in each, arrays are keyed by the
    parameter's name.
    """

    def init(params: Tree) -> dict[str, Tree]:
        groups = _groups(params)
        return {stack: _over_layers(inner.init, stack)(group) for stack, group in groups.items()}

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        groups = _groups(params)
        names, structure = named_leaves(params), jax.tree.structure(params)
        flat, new_state = {}, {}
        for stack, group in _groups(updates).items():
            step = _over_layers(inner.update, stack)
            directions, new_state[stack] = step(group, state[stack], groups[stack])
            flat.update(directions)
        return structure.unflatten([flat[name] for name in names]), new_state

    return optax.GradientTransformation(init, update)


def _groups(tree: Tree) -> dict[str, dict[str, jax.Array]]:
    """Returns {stack: {name: array}}; parameters outside of stacks are the stack ""."""
    groups: dict[str, dict[str, jax.Array]] = {}
    for name, leaf in named_leaves(tree).items():
        stack = name.split("/layers/")[0] if "/layers/" in name else ""
        groups.setdefault(stack, {})[name] = leaf
    return groups


def _over_layers(function: Callable, stack: str) -> Callable:
    return jax.vmap(function) if stack else function


def _is_decayed(params: Tree) -> Tree:
    """Returns True at parameters with weight decay: all but the scales of norms and biases."""
    return jax.tree.map_with_path(lambda path, _: path[-1].key not in ("scale", "bias"), params)
