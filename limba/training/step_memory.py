"""A run's training step by its shapes alone, and the memory of a device that it needs."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from limba.config import RunConfig
from limba.model import Network
from limba.sharding.mesh import batch_sharding
from limba.training.optimizer import optimizer_of
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, abstract_state, shardings_of
from limba.training.step import Gradient, jit_train_step


def abstract_step(
    config: RunConfig, mesh: Mesh, feature_shapes: Mapping[str, tuple[int, int]]
) -> tuple[Any, tuple[PyTree, ...]]:
    """Returns the run's jitted training step and its arguments' shapes, the state first; nothing is compiled.

    The mesh's devices need not be on this machine.
    """
    model = Network(config.model, mesh)
    optimizer = optimizer_of(config, model)
    schedule = make_schedule(config.optimizer.schedule, config.train_steps)
    state = abstract_state(model, optimizer, mesh, config.mesh.shard_update)
    rows = batch_sharding(mesh)
    shardings = shardings_of(state)
    batch = {name: jax.ShapeDtypeStruct(shape, np.int32, sharding=rows) for name, shape in feature_shapes.items()}
    key = jax.eval_shape(lambda: jax.random.key(0, impl=config.random_bits))
    drops = config.guard.action == "skip"
    gradient = Gradient(model, config.loss, config.num_microbatches, config.gradient_reduce_dtype)
    step = jit_train_step(gradient, optimizer, schedule, shardings, drops)
    arguments = (state, batch, key)
    if drops:
        arguments += (jax.ShapeDtypeStruct((2,), np.float32),)  # the guard's limits
    return step, arguments


def live_bytes(compiled: jax.stages.Compiled) -> int:
    """Returns the bytes of a device while a compiled step runs: arguments, outputs and temporaries."""
    memory = compiled.memory_analysis()
    assert memory is not None  # as on all platforms that jax compiles for
    size = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return size - memory.alias_size_in_bytes


def bytes_of(state: TrainState) -> int:
    """Returns the bytes of a state on one device."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(state))
