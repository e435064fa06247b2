"""Each rule of the optimizer as optax transformations, from the clipped gradient to the update of the parameters.

A rule's fields are in `limba/config/optimizer.py`. `limba/training/optimizer.py` puts the rest around it:
clipping before it, frozen parameters, the average of the weights and float16's scale after it.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from limba.config import OptimizerConfig
from limba.config.optimizer import Adafactor, AdamW, Factored, Muon
from limba.sharding.mesh import named_leaves
from limba.training.muon import matrices_by_muon

Transformation = optax.GradientTransformation

# Adafactor's two constants (section 10 of arXiv:1804.04235). No recipe has others.
EPSILON = 1e-30  # added to squared gradients
LEAST_PARAMETER_SCALE = 1e-3  # updates relative to a parameter take it to be at least so large


def transformations(config: OptimizerConfig, rate: Transformation, shardings: PyTree = None) -> list[Transformation]:
    """Returns the rule of a configuration, with its weight decay.

    `rate` multiplies by minus the learning rate. `shardings` are the parameters' in training, by which Muon
    shares its work; None: there is one device.
    """
    return TRANSFORMATIONS[config.name](config, rate, shardings)


def adafactor(config: Adafactor, rate: Transformation, shardings: PyTree) -> list[Transformation]:
    """Returns Adafactor (Shazeer & Stern 2018, arXiv:1804.04235), layer by layer, as T5X has it.

    The update u of a matrix W with gradient G is G divided by the square root of r c^T / mean(r), where r and c are
    moving averages of the means of G^2 + EPSILON over rows and columns; smaller and one-dimensional arrays divide by
    the root of the whole average. Then u is divided by max(1, RMS(u) / clipping_threshold), multiplied by
    max(RMS(W), LEAST_PARAMETER_SCALE) and by minus the learning rate. Weight decay is subtracted last.
    """
    scaled = factored(config)
    if config.multiply_by_parameter_scale:
        scaled.append(scale_by_parameter_rms(LEAST_PARAMETER_SCALE))
    steps = [per_layer(optax.chain(*scaled)), rate]
    if config.momentum is not None:
        steps.append(optax.ema(config.momentum, debias=False, accumulator_dtype="float32"))
    if config.weight_decay:
        steps.append(weight_decay(config, -config.weight_decay))  # as in T5X not times the learning rate
    return steps


def adamw(config: AdamW, rate: Transformation, shardings: PyTree) -> list[Transformation]:
    """Returns AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101).

    The update of a parameter W is minus the learning rate times m / (sqrt(v) + epsilon) + weight_decay x W, where m and
    v are moving averages of the gradient and of its square, each divided by 1 - beta^t. The decay is multiplied by the
    whole learning rate, as in PyTorch; the paper multiplies it by the schedule alone, without the base rate.
    """
    return [adam(config), *decay_and_rate(config, rate)]


def muon(config: Muon, rate: Transformation, shardings: PyTree) -> list[Transformation]:
    """Returns Muon for the matrices of layers (`limba/training/muon.py`), and another rule for all other parameters.

    The update of an n x m matrix is its momentum, made orthogonal, times muon_rms x sqrt(max(n, m)): its elements then
    have the root mean square muon_rms. With `muon_by_parameter_scale` every update is multiplied by RMS(W), as in
    Adafactor. Weight decay is added, then all is multiplied by minus the learning rate.
    """
    if config.muon_others == "adamw":
        others = adam(config)
    else:
        others = per_layer(optax.chain(*factored(config)))
    steps = [matrices_by_muon(config, others, shardings)]
    if config.muon_by_parameter_scale:
        steps.append(per_layer(scale_by_parameter_rms(LEAST_PARAMETER_SCALE)))
    return [*steps, *decay_and_rate(config, rate)]


# By the name of the rule in `limba/config/optimizer.py`.
TRANSFORMATIONS: dict[str, Callable[[Any, Transformation, PyTree], list[Transformation]]] = {
    "adafactor": adafactor,
    "adamw": adamw,
    "muon": muon,
}


def factored(config: Factored) -> list[Transformation]:
    """Returns Adafactor's division by the factored second moment, and its clipping of the update."""
    rule = optax.scale_by_factored_rms(
        decay_rate=config.decay_rate,
        step_offset=config.step_offset,
        min_dim_size_to_factor=config.min_dim_size_to_factor,
        epsilon=EPSILON,
    )
    if config.clipping_threshold is None:
        return [rule]
    return [rule, optax.clip_by_block_rms(config.clipping_threshold)]


def adam(config: AdamW) -> Transformation:
    return optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)


def decay_and_rate(config: OptimizerConfig, rate: Transformation) -> list[Transformation]:
    """Returns weight decay, if there is any, and then the learning rate, which both are multiplied by."""
    if config.weight_decay:
        return [weight_decay(config, config.weight_decay), rate]
    return [rate]


def weight_decay(config: OptimizerConfig, share: float) -> Transformation:
    """Adds this share of each parameter to its update; not of norms' scales, biases and `undecayed` ones."""
    return optax.add_decayed_weights(share, mask=functools.partial(_is_decayed, config.undecayed))


def _is_decayed(patterns: tuple[str, ...], params: PyTree) -> PyTree:
    """Returns True at parameters with weight decay: all but scales of norms, biases, and names that patterns begin."""

    def is_decayed(path: tuple[Any, ...], _: object) -> bool:
        if path[-1].key in ("scale", "bias"):
            return False
        name = "/".join(str(part.key) for part in path)
        return not any(re.match(pattern, name) for pattern in patterns)

    return jax.tree.map_with_path(is_decayed, params)


def scale_by_parameter_rms(min_scale: float) -> optax.GradientTransformation:
    """Scales each update by its parameter's root mean square, and by `min_scale` at least.

    Numbers and state equal `optax.scale_by_param_block_rms`'s. optax's can also be differentiated, and
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
        return {stack: (jax.vmap(inner.init) if stack else inner.init)(group) for stack, group in groups.items()}

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        groups = _groups(params)
        names = named_leaves(params)
        structure = jax.tree.structure(params)
        flat = {}
        new_state = {}
        for stack, group in _groups(updates).items():
            step: Callable = jax.vmap(inner.update) if stack else inner.update
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
