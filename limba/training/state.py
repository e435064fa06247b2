"""What training changes: step, parameters, optimizer state; made already sharded."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from limba.model import Network
from limba.sharding.mesh import is_pure_data_parallel, parameter_shardings, replicated, update_shardings

Tree = Any


@flax.struct.dataclass
class TrainState:
    """`step` counts finished updates. The random key is not here: a step derives it from its number."""

    step: Int[Array, ""]
    params: Tree
    opt_state: Tree


def init_state(model: Network, optimizer: optax.GradientTransformation, key: Array) -> TrainState:
    """Returns a fresh state; trace it under `jax.jit` or `jax.eval_shape`."""
    params = model.init(key)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def state_shardings(
    model: Network, optimizer: optax.GradientTransformation, mesh: Mesh, shard_update: bool = True
) -> TrainState:
    """Returns a NamedSharding per array of the state; `shard_update` is `MeshConfig`'s.

    Optimizer arrays with a parameter's name and shape lie like that parameter (Adam's moments,
    Adafactor's unfactored second moments). Rows and columns of factored ones are small: whole on every
    device, but where the parameter is cut for the update, for they are then worked out in shares.
    """
    shapes = jax.eval_shape(lambda key: init_state(model, optimizer, key), jax.random.key(0))
    if shard_update and is_pure_data_parallel(mesh):
        params = update_shardings(mesh, shapes.params)
    else:
        params = parameter_shardings(mesh, model.logical_axes(), shapes.params)
    by_name = {
        _name(path): (shape.shape, sharding)
        for (path, shape), sharding in zip(
            jax.tree.leaves_with_path(shapes.params), jax.tree.leaves(params), strict=True
        )
    }
    whole = replicated(mesh)

    def like_parameter(path: tuple, leaf: jax.ShapeDtypeStruct) -> Any:
        name = _name(path)
        for start in range(name.count("/") + 1):
            shape, sharding = by_name.get(name.split("/", start)[-1], (None, None))
            if shape == leaf.shape:
                return sharding
            if shape is not None and "data" in sharding.spec:
                return _of_average(name.split("/")[start - 1], leaf.shape, shape, sharding)
        return whole

    opt_state = jax.tree.map_with_path(like_parameter, shapes.opt_state)
    return TrainState(whole, params, opt_state)


def _of_average(kind: str, average: tuple[int, ...], shape: tuple[int, ...], sharding: NamedSharding) -> NamedSharding:
    """Returns the sharding of a factored average of a parameter of that shape and sharding: the axis it runs along is
    cut as the parameter's. optax's v_row runs along a matrix's shorter axis, of two equal ones the first."""
    shorter = -2 if shape[-2] <= shape[-1] else -1
    axis = shorter if kind == "v_row" else -3 - shorter
    spec = (*sharding.spec, *(None,) * (len(shape) - len(sharding.spec)))
    is_factored = average == (*shape[:-2], shape[axis])  # else one number, unused
    return NamedSharding(sharding.mesh, PartitionSpec(*spec[:-2], spec[axis]) if is_factored else PartitionSpec())


def abstract_state(
    model: Network, optimizer: optax.GradientTransformation, mesh: Mesh, shard_update: bool = True
) -> TrainState:
    """Returns the state's shapes, dtypes and shardings, without its arrays."""
    shapes = jax.eval_shape(lambda key: init_state(model, optimizer, key), jax.random.key(0))
    shardings = state_shardings(model, optimizer, mesh, shard_update)
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes, shardings
    )


def create_state(
    model: Network, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int, shard_update: bool = True
) -> TrainState:
    """Returns a fresh state, every array created in its place: no host ever holds the whole model."""
    shardings = state_shardings(model, optimizer, mesh, shard_update)
    make = jax.jit(lambda key: init_state(model, optimizer, key), out_shardings=shardings)
    return make(jax.random.key(seed))


def gather_parameters(model: Network, params: Tree) -> Tree:
    """Returns the parameters as they lie where a model is only read: those that `shard_update` cut, gathered."""
    shardings = parameter_shardings(model.mesh, model.logical_axes(), params)
    lies_so = jax.tree.map(lambda leaf, wanted: leaf.sharding.is_equivalent_to(wanted, leaf.ndim), params, shardings)
    return params if all(jax.tree.leaves(lies_so)) else jax.jit(lambda x: x, out_shardings=shardings)(params)


def count_parameters(params: Tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
