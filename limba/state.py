"""What training changes: step, parameters, optimizer state; made already sharded."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Int

from limba.mesh import parameter_shardings, replicated, split_over_data
from limba.model import Model

Tree = Any


@flax.struct.dataclass
class TrainState:
    """`step` counts finished updates. The random key is not here: a step derives it from its number."""

    step: Int[Array, ""]
    params: Tree
    opt_state: Tree


def init_state(model: Model, optimizer: optax.GradientTransformation, key: Array) -> TrainState:
    """Returns a fresh state; trace it under `jax.jit` or `jax.eval_shape`."""
    params = model.init(key)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def state_shardings(
    model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, split_update: bool = False
) -> TrainState:
    """Returns a NamedSharding per array of the state.

    Optimizer arrays with a parameter's name and shape lie like that parameter (Adam's moments,
    Adafactor's unfactored second moments), or, with `split_update`, like the part of it that a device
    updates; the rest, rows and columns of factored ones, are small and whole on every device.
    """
    shapes = jax.eval_shape(lambda key: init_state(model, optimizer, key), jax.random.key(0))
    params = parameter_shardings(mesh, model.logical_axes(), shapes.params)
    updated = split_over_data(params, shapes.params) if split_update else params
    by_name = {
        _name(path): (shape.shape, sharding)
        for (path, shape), sharding in zip(
            jax.tree.leaves_with_path(shapes.params), jax.tree.leaves(updated), strict=True
        )
    }
    whole = replicated(mesh)

    def like_parameter(path: tuple, leaf: jax.ShapeDtypeStruct) -> Any:
        name = _name(path)
        for start in range(name.count("/") + 1):
            shape, sharding = by_name.get(name.split("/", start)[-1], (None, None))
            if shape == leaf.shape:
                return sharding
        return whole

    opt_state = jax.tree.map_with_path(like_parameter, shapes.opt_state)
    return TrainState(whole, params, opt_state)


def abstract_state(
    model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, split_update: bool = False
) -> TrainState:
    """Returns the state's shapes, dtypes and shardings, without its arrays."""
    shapes = jax.eval_shape(lambda key: init_state(model, optimizer, key), jax.random.key(0))
    shardings = state_shardings(model, optimizer, mesh, split_update)
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes, shardings
    )


def create_state(
    model: Model, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int, split_update: bool = False
) -> TrainState:
    """Returns a fresh state, every array created in its place: no host ever holds the whole model."""
    shardings = state_shardings(model, optimizer, mesh, split_update)
    make = jax.jit(lambda key: init_state(model, optimizer, key), out_shardings=shardings)
    return make(jax.random.key(seed))


def count_parameters(params: Tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
