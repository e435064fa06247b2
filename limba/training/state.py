"""The state of a training run: step, parameters and optimizer state, created already sharded."""

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from limba.model import Network
from limba.sharding.mesh import (
    is_pure_data_parallel,
    leaf_name,
    named_leaves,
    parameter_shardings,
    replicated,
    update_shardings,
)


@flax.struct.dataclass
class TrainState:
    """The arrays of a run, or for each of them its shape or its sharding.

    `step`, int32 [], counts the updates made. It has no random key: a step derives its key from its number.
    """

    step: PyTree
    params: PyTree
    opt_state: PyTree


def init_state(model: Network, optimizer: optax.GradientTransformation, key: Array) -> TrainState:
    """Returns a new state at step 0; for use under `jax.jit` or `jax.eval_shape`."""
    params = model.init(key)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def trained_shardings(model: Network, mesh: Mesh, shard_update: bool = True) -> PyTree:
    """Returns a NamedSharding per parameter, as training keeps them; `shard_update` is `MeshConfig.shard_update`."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    if shard_update and is_pure_data_parallel(mesh):
        return update_shardings(mesh, shapes)
    return parameter_shardings(mesh, model.logical_axes(), shapes)


def state_shardings(
    model: Network, optimizer: optax.GradientTransformation, mesh: Mesh, shard_update: bool = True
) -> TrainState:
    """Returns a NamedSharding per array of the state; `shard_update` is `MeshConfig.shard_update`."""
    return shardings_of(abstract_state(model, optimizer, mesh, shard_update))


def shardings_of(state: TrainState) -> TrainState:
    """Returns the sharding of each array of a state, or of an abstract state."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def abstract_state(
    model: Network, optimizer: optax.GradientTransformation, mesh: Mesh, shard_update: bool = True
) -> TrainState:
    """Returns the state's shapes, dtypes and shardings, without its arrays.

    `shard_update` is `MeshConfig.shard_update`. Optimizer arrays with the name and shape of a parameter are sharded
    like it: Adam's moments, Adafactor's unfactored second moments. Adafactor's factored averages are small and
    replicated, except where the parameter is sharded for the update: each device then computes its part of them.
    """
    shapes = jax.eval_shape(lambda key: init_state(model, optimizer, key), jax.random.key(0))
    params = trained_shardings(model, mesh, shard_update)
    by_name = {
        name: (shape.shape, sharding)
        for (name, shape), sharding in zip(named_leaves(shapes.params).items(), jax.tree.leaves(params), strict=True)
    }
    whole = replicated(mesh)

    def like_parameter(path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        name = leaf_name(path)
        for start in range(name.count("/") + 1):
            shape, sharding = by_name.get(name.split("/", start)[-1], (None, None))
            if shape == leaf.shape:
                return sharding
            if shape is not None and "data" in sharding.spec:
                return _of_average(name.split("/")[start - 1], leaf.shape, shape, sharding)
        return whole

    opt_state = jax.tree.map_with_path(like_parameter, shapes.opt_state)
    shardings = TrainState(whole, params, opt_state)
    return jax.tree.map(lambda s, at: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=at), shapes, shardings)


def _of_average(kind: str, average: tuple[int, ...], shape: tuple[int, ...], sharding: NamedSharding) -> NamedSharding:
    """Returns the sharding of a factored average, from its parameter's shape and sharding.

    The average is sharded as the parameter is along the axis that both have. optax's v_row has a matrix's shorter
    axis, of two equal ones the first; v_col has the other.
    """
    shorter = -2 if shape[-2] <= shape[-1] else -1
    axis = shorter if kind == "v_row" else -3 - shorter
    spec = (*sharding.spec, *(None,) * (len(shape) - len(sharding.spec)))
    is_factored = average == (*shape[:-2], shape[axis])  # if not, optax keeps one unused number
    return NamedSharding(sharding.mesh, PartitionSpec(*spec[:-2], spec[axis]) if is_factored else PartitionSpec())


def create_state(
    model: Network, optimizer: optax.GradientTransformation, shardings: TrainState, seed: int
) -> TrainState:
    """Returns a new state, every array created on its own devices: no host ever holds the whole model."""
    make = jax.jit(lambda key: init_state(model, optimizer, key), out_shardings=shardings)
    return make(jax.random.key(seed))


def gather_parameters(model: Network, params: PyTree) -> PyTree:
    """Returns the parameters sharded as evaluation needs them: gathered where `shard_update` sharded them."""
    assert model.mesh is not None
    shardings = parameter_shardings(model.mesh, model.logical_axes(), params)
    equal = jax.tree.map(lambda leaf, wanted: leaf.sharding.is_equivalent_to(wanted, leaf.ndim), params, shardings)
    if all(jax.tree.leaves(equal)):
        return params
    return jax.jit(lambda x: x, out_shardings=shardings)(params)


def count_parameters(params: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
