"""optax chains by name, each acting on one layer at a time also where layers lie stacked.

Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) by T5X's rule, AdamW with steps scaled by the
parameter's root mean square (nanoT5, arXiv:2309.02373), and AdamW (arXiv:1711.05101).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from limba.config import ConfigError, OptimizerConfig, ScheduleConfig

Tree = Any


def make_optimizer(config: OptimizerConfig, train_steps: int) -> optax.GradientTransformation:
    """Returns the chain: clip the gradient, take the rule's direction, scale by the schedule, keep what is frozen."""
    chain = _unfrozen(config, train_steps)
    if not config.frozen:
        return chain
    return optax.chain(chain, optax.masked(optax.set_to_zero(), functools.partial(_is_frozen, config.frozen)))


def _is_frozen(patterns: tuple[str, ...], params: Tree) -> Tree:
    """True at parameters whose name begins with a match of a pattern; ConfigError for one that matches none."""
    names = _names(params)
    for pattern in patterns:
        if not any(re.match(pattern, name) for name in names):
            raise ConfigError(
                "OptimizerConfig.frozen",
                f"holds {pattern!r}, which no parameter's name begins with; names are such as"
                f" {names[0]} and {names[-1]}.",
            )
    marks = [any(re.match(pattern, name) for pattern in patterns) for name in names]
    return jax.tree.structure(params).unflatten(marks)


def _unfrozen(config: OptimizerConfig, train_steps: int) -> optax.GradientTransformation:
    schedule = make_schedule(config.schedule, train_steps)
    steps = [] if config.clip_global_norm is None else [optax.clip_by_global_norm(config.clip_global_norm)]
    if config.name == "adafactor":
        steps += [_adafactor_direction(config), optax.scale_by_learning_rate(schedule)]
        if config.momentum is not None:
            steps.append(optax.ema(config.momentum, debias=False, accumulator_dtype=jnp.float32))
        if config.weight_decay:  # by T5X's rule it is a share per step, whatever the learning rate
            steps.append(optax.add_decayed_weights(-config.weight_decay, mask=_is_decayed))
        return optax.chain(*steps)
    steps.append(optax.scale_by_adam(config.beta1, config.beta2, config.epsilon))
    if config.name == "adamw_rms":
        steps.append(per_layer(scale_by_parameter_rms(config.epsilon2)))
    if config.weight_decay:
        steps.append(optax.add_decayed_weights(config.weight_decay, mask=_is_decayed))
    return optax.chain(*steps, optax.scale_by_learning_rate(schedule))


def _adafactor_direction(config: OptimizerConfig) -> optax.GradientTransformation:
    steps = [
        optax.scale_by_factored_rms(
            decay_rate=config.decay_rate,
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
    """Scales each update by its parameter's root mean square, or `min_scale` where that is more.

    The same number and state as `optax.scale_by_param_block_rms`, which is also safe to differentiate, and for that
    reads all parameters twice: 2 % of a base model's step on a TPU.
    """

    def scale(update: jax.Array, parameter: jax.Array) -> jax.Array:
        return update * jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(parameter))), min_scale)

    def update(updates: Tree, state: optax.EmptyState, params: Tree) -> tuple[Tree, optax.EmptyState]:
        return jax.tree.map(scale, updates, params), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def per_layer(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `inner` to every layer of a stacked parameter as if it were a parameter of its own.

    Without it Adafactor would factor, clip and scale a scanned stack as one array, and train
    another way than T5X's rule, which is per layer. The state holds one entry per stack and one for
    the parameters outside of stacks; in each, arrays are keyed by the parameter's name.
    """

    def init(params: Tree) -> dict[str, Tree]:
        groups = _groups(params)
        return {stack: _over_layers(inner.init, stack)(group) for stack, group in groups.items()}

    def update(updates: Tree, state: dict[str, Tree], params: Tree) -> tuple[Tree, dict[str, Tree]]:
        groups = _groups(params)
        names, structure = _names(params), jax.tree.structure(params)
        flat, new_state = {}, {}
        for stack, group in _groups(updates).items():
            step = _over_layers(inner.update, stack)
            directions, new_state[stack] = step(group, state[stack], groups[stack])
            flat.update(directions)
        return structure.unflatten([flat[name] for name in names]), new_state

    return optax.GradientTransformation(init, update)


def _names(tree: Tree) -> list[str]:
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(tree)]


def _groups(tree: Tree) -> dict[str, dict[str, jax.Array]]:
    """Returns {stack: {name: array}}; parameters outside of stacks are the stack ""."""
    groups: dict[str, dict[str, jax.Array]] = {}
    for name, leaf in zip(_names(tree), jax.tree.leaves(tree), strict=True):
        stack = name.split("/layers/")[0] if "/layers/" in name else ""
        groups.setdefault(stack, {})[name] = leaf
    return groups


def _over_layers(function: Callable, stack: str) -> Callable:
    return jax.vmap(function) if stack else function


def _is_decayed(params: Tree) -> Tree:
    """True at what weight decay shrinks: everything but the norms' scales, and biases."""
    return jax.tree.map_with_path(lambda path, _: path[-1].key not in ("scale", "bias"), params)


def make_schedule(config: ScheduleConfig, train_steps: int) -> optax.Schedule:
    """Returns the learning rate of a step (0 for the first one).

    `factors` multiplies T5X's named factors; `linear`, `cosine` and `warmup_stable_decay` are
    optax's, ending at `decay_steps` (default: the run's end; for the last: a tenth of the run).
    """
    peak, final, warmup = config.base_learning_rate, config.final_learning_rate, config.warmup_steps
    if config.name == "factors":
        return lambda step: _factors(config, step)
    if config.name == "warmup_stable_decay":
        decay = config.decay_steps or max(1, train_steps // 10)
        pieces = [
            optax.linear_schedule(0.0, peak, max(1, warmup)),
            optax.constant_schedule(peak),
            optax.linear_schedule(peak, final, decay),
        ]
        return optax.join_schedules(pieces, [warmup, max(warmup, train_steps - decay)])
    end = config.decay_steps or train_steps
    if config.name == "cosine":
        return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(end, warmup + 1), final)
    pieces = [
        optax.linear_schedule(0.0, peak, max(1, warmup)),
        optax.linear_schedule(peak, final, max(1, end - warmup)),
    ]
    return optax.join_schedules(pieces, [warmup])


def _factors(config: ScheduleConfig, step: jax.Array | int) -> jax.Array:
    step = jnp.maximum(0.0, jnp.asarray(step, jnp.float32) - config.step_offset)
    base, warmup = config.base_learning_rate, float(config.warmup_steps)
    after_warmup = jnp.maximum(step, max(warmup, 1.0))
    values = {
        "constant": lambda: base,
        "linear_warmup": lambda: jnp.minimum(1.0, step / max(warmup, 1.0)),
        "linear_decay": lambda: (
            base * jnp.minimum(step / max(warmup, 1.0), 1.0 + config.decay_factor * (warmup - step))
        ),
        "rsqrt_decay": lambda: jax.lax.rsqrt(after_warmup),
        "rsqrt_normalized_decay": lambda: jnp.sqrt(max(warmup, 1.0)) * jax.lax.rsqrt(after_warmup),
        "decay_every": lambda: config.decay_factor ** (step // config.steps_per_decay),
        "cosine_decay": lambda: (
            0.5 * (1.0 + jnp.cos(jnp.pi * (jnp.maximum(0.0, step - warmup) / config.steps_per_cycle % 1.0)))
        ),
    }
    rate = jnp.float32(1.0)
    for name in config.factor_names:
        rate = rate * values[name]()
    return jnp.maximum(rate, config.min_learning_rate).astype(jnp.float32)
