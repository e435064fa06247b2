"""One tiny configuration and one tiny batch for all tests."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from limba.config import LossConfig, MeshConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from limba.model import Model
from limba.optimizer import make_optimizer, make_schedule
from limba.state import TrainState, create_state, state_shardings
from limba.train_step import compile_ready_step

MODEL = ModelConfig(
    vocab_size=256,
    emb_dim=128,
    num_heads=4,
    head_dim=32,
    mlp_dim=192,
    num_encoder_layers=2,
    num_decoder_layers=3,
    dtype="float32",
)
OPTIMIZER = OptimizerConfig(schedule=ScheduleConfig(base_learning_rate=1.0, warmup_steps=10_000))


def model(**changes: object) -> ModelConfig:
    return dataclasses.replace(MODEL, **changes)


def batch(rows: int = 8, inputs: int = 24, targets: int = 10, seed: int = 0) -> dict[str, np.ndarray]:
    """Random tokens; every other row ends in padding."""
    random = np.random.default_rng(seed)
    encoder = random.integers(2, 250, (rows, inputs)).astype(np.int32)
    decoder = random.integers(2, 250, (rows, targets)).astype(np.int32)
    encoder[::2, -5:] = 0
    decoder[::2, -3:] = 0
    return {
        "encoder_input_tokens": encoder,
        "decoder_input_tokens": np.pad(decoder[:, :-1], ((0, 0), (1, 0))),
        "decoder_target_tokens": decoder,
        "decoder_loss_weights": (decoder > 0).astype(np.int32),
    }


def mesh_of(config: MeshConfig, num_devices: int) -> Mesh:
    """A mesh over the first devices; fewer of them compile sooner."""
    devices = np.array(jax.devices()[:num_devices]).reshape(config.sizes(num_devices))
    return Mesh(devices, ("data", "fsdp", "model"), axis_types=(AxisType.Auto,) * 3)


def train(
    config: ModelConfig = MODEL,
    optimizer_config: OptimizerConfig = OPTIMIZER,
    mesh_config: MeshConfig | None = None,
    *,
    num_microbatches: int = 1,
    steps: int = 3,
    loss: LossConfig | None = None,
    num_devices: int = 1,
) -> tuple[list[float], TrainState]:
    """Returns the losses of some steps from a fresh state, and the last state."""
    mesh = mesh_of(mesh_config or MeshConfig(), num_devices)
    network = Model(config, mesh)
    optimizer = make_optimizer(optimizer_config, steps)
    schedule = make_schedule(optimizer_config.schedule, steps)
    split = mesh_config is not None and mesh_config.split_update
    state = create_state(network, optimizer, mesh, 0, split)
    shardings = state_shardings(network, optimizer, mesh, split)
    step = compile_ready_step(network, optimizer, schedule, loss or LossConfig(), num_microbatches, shardings, split)
    losses = []
    for i in range(steps):
        state, metrics = step(state, batch(seed=i), jax.random.key(7))
        losses.append(float(metrics["loss"]))
    return losses, state
