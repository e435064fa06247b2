"""A checkpoint is read on any mesh, whatever mesh it was saved from."""

from pathlib import Path

import jax
import numpy as np
import pytest

from limba.config import CheckpointConfig, DataConfig, MeshConfig, optimizer_config
from limba.model import Network
from limba.training.checkpoints.directory import Checkpoints
from limba.training.optimizer import make_optimizer
from limba.training.state import TrainState, abstract_state, gather_parameters
from tests import tiny


@pytest.mark.slow
def test_a_checkpoint_is_read_on_any_number_of_devices_and_with_any_sharding_of_the_update(tmp_path: Path) -> None:
    """`(4, False)` is the layout from before the update was sharded."""
    optimizer = make_optimizer(optimizer_config(), 1)
    data = DataConfig("t", {"inputs": 1}, batch_size=1)

    def laid_out(devices: int, shard_update: bool) -> TrainState:
        mesh = tiny.mesh_of(MeshConfig(), devices)
        return abstract_state(Network(tiny.MODEL, mesh), optimizer, mesh, shard_update)

    random = np.random.default_rng(0)
    arrays = jax.tree.map(lambda x: random.standard_normal(x.shape).astype(x.dtype), laid_out(1, True))
    for step, (devices, shard_update) in enumerate(((4, False), (2, True)), 1):
        there = laid_out(devices, shard_update)
        directory = str(tmp_path / str(step))
        state = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), arrays, there)
        with Checkpoints(directory, CheckpointConfig(), data) as checkpoints:
            checkpoints.save(step, state, {0: {"about": {}}})
        for here in ((1, True), (2, True), (8, True), (4, False)):
            abstract = laid_out(*here)
            with Checkpoints(directory, CheckpointConfig(), data) as checkpoints:
                restored = checkpoints.restore_latest(abstract).state
            jax.tree.map(np.testing.assert_array_equal, restored, arrays)
            assert all(jax.tree.leaves(jax.tree.map(lambda x, y: x.sharding == y.sharding, restored, abstract)))
    kernel = state.params["encoder"]["layers"]["mlp"]["wo"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 2 == kernel.size
    whole = gather_parameters(Network(tiny.MODEL, tiny.mesh_of(MeshConfig(), 2)), state.params)
    jax.tree.map(np.testing.assert_array_equal, whole, arrays.params)
    assert all(leaf.addressable_shards[0].data.size == leaf.size for leaf in jax.tree.leaves(whole))
