"""A small training state with every kind of array, and its checkpoints."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from limba.config import CheckpointConfig, DataConfig, MeshConfig
from limba.training.checkpoints.directory import Checkpoints
from limba.training.state import TrainState
from tests import tiny

DATA = DataConfig("t", {"inputs": 1}, batch_size=1)
CONFIG = CheckpointConfig(save_timeout_seconds=60.0)


def abstract(devices: int = 2) -> TrainState:
    """Shapes and shardings: scalars, a matrix in pieces, one that is in no pieces, a stack of layers, bfloat16."""
    mesh = tiny.mesh_of(MeshConfig(), devices)

    def leaf(shape: tuple[int, ...], *spec: str | None, dtype: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(dtype), sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    params = {
        "encoder": {"layers": {"kernel": leaf((4, 16, 48), "data")}, "norm": {"scale": leaf((32,))}},
        "embedding": leaf((64, 32), None, "data"),
    }
    moments = ({"count": leaf((), dtype="int32")}, {"v": {"embedding": leaf((64, 32), "data", dtype="bfloat16")}})
    return TrainState(leaf((), dtype="int32"), params, moments)


def state(step: int, devices: int = 2) -> TrainState:
    """A state whose numbers follow from its step."""
    random = np.random.default_rng(step)

    def array(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        values = np.full(leaf.shape, step) if leaf.dtype == np.int32 else random.standard_normal(leaf.shape)
        values = values.astype(leaf.dtype)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])

    return jax.tree.map(array, abstract(devices))


def save(directory: object, *steps: int, config: CheckpointConfig = CONFIG) -> None:
    """Saves these steps, one after the other."""
    with Checkpoints(str(directory), config, DATA) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step), {0: {"about": {}, "batch": step}}, {"step": step})
            checkpoints.wait()
            assert checkpoints.poll() == [step]


def assert_is(restored: object, step: int) -> None:
    """Checks every number of a restored checkpoint."""
    jax.tree.map(np.testing.assert_array_equal, restored.state, state(step))
    assert restored.positions == {0: {"about": {}, "batch": step}} and restored.notes == {"step": step}
