"""The optimizers as optax chains; each treats the layers of a stack as separate parameters.

Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) by T5X's rule; AdamW whose steps are scaled by the parameter's
root mean square (nanoT5, arXiv:2309.02373); AdamW (arXiv:1711.05101); AdEMAMix (arXiv:2409.03137); and Muon, in
`limba/training/updates/muon.py`.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from limba.config import ConfigError, OptimizerConfig, RunConfig
from limba.model import Network
from limba.sharding.mesh import named_leaves
from limba.training.precision.loss_scale import with_loss_scale
from limba.training.schedule import make_schedule
from limba.training.state import trained_shardings
from limba.training.updates.average import with_average
from limba.training.updates.muon import matrices_by_muon

Tree = Any


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
    shardings: Tree = None,
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


def _unfrozen(config: OptimizerConfig, train_steps: int | None, shardings: Tree) -> optax.GradientTransformation:
    schedule = make_schedule(config.schedule, train_steps)
    steps = [] if config.clip_global_norm is None else [optax.clip_by_global_norm(config.clip_global_norm)]
    if config.name == "adafactor":
        steps += [_adafactor_direction(config), optax.scale_by_learning_rate(schedule)]
        if config.momentum is not None:
            steps.append(optax.ema(config.momentum, debias=False, accumulator_dtype=jnp.float32))
        if config.weight_decay:  # in T5X not multiplied by the learning rate
            steps.append(optax.add_decayed_weights(-config.weight_decay, mask=_is_decayed))
        return optax.chain(*steps)
    steps.append(_adam_direction(config, train_steps, shardings))
    if config.name == "adamw_rms" or (config.name == "muon" and config.muon_by_parameter_scale):
        steps.append(per_layer(scale_by_parameter_rms(config.epsilon2)))
    if config.weight_decay:
        steps.append(optax.add_decayed_weights(config.weight_decay, mask=_is_decayed))
    return optax.chain(*steps, optax.scale_by_learning_rate(schedule))


def _adam_direction(config: OptimizerConfig, train_steps: int | None, shardings: Tree) -> optax.GradientTransformation:
    """Returns the rule of Adam, of AdEMAMix, or of Muon with Adam's or Adafactor's."""
    if config.name == "ademamix":
        alpha, beta3 = _slow_average(config, train_steps)
        return contrib.scale_by_ademamix(config.beta1, config.beta2, beta3, alpha, config.epsilon)
    adam = optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)
    if config.name != "muon":
        return adam
    others = per_layer(optax.chain(*_factored(config))) if config.muon_others == "adafactor" else adam
    return matrices_by_muon(config, others, shardings)


def _slow_average(config: OptimizerConfig, train_steps: int | None) -> tuple[optax.Schedule, optax.Schedule]:
    """Returns AdEMAMix's alpha and beta3 by step: they rise over the run (section 3 and appendix A.1 of its paper).

    alpha rises linearly from 0. beta3 rises from beta1 so that the average's half-life, ln 0.5 / ln beta3 - 1, does so
    linearly.
    """
    over = config.ademamix_warmup_steps or config.schedule.planned_steps or train_steps or 1  # a branch keeps its run's
    first, last = math.log(config.beta1 or 1e-8), math.log(config.beta3)

    def beta3(count: Any) -> Any:
        share = jnp.minimum(count / over, 1.0)
        return jnp.exp(first * last / ((1 - share) * last + share * first))

    return optax.linear_schedule(0.0, config.ademamix_alpha, over), beta3


def _adafactor_direction(config: OptimizerConfig) -> optax.GradientTransformation:
    steps = _factored(config)
    if config.multiply_by_parameter_scale:
        steps.append(scale_by_parameter_rms(config.epsilon2))
    return per_layer(optax.chain(*steps))


def _factored(config: OptimizerConfig) -> list[optax.GradientTransformation]:
    """Returns the parts of Adafactor's rule: factored second moments, updates clipped."""
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
    return steps


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
