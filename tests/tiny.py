"""One tiny configuration and one tiny batch for all tests."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh

from limba.config import (
    DataConfig,
    LossConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.formats.names import flatten, unflatten
from limba.model import Network
from limba.training.optimizer import make_optimizer
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, state_shardings
from limba.training.step import Gradient, gradients, jit_train_step

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
LANGUAGE_MODEL = dataclasses.replace(
    MODEL,
    num_encoder_layers=0,
    positions="rotary",
    mlp_activations=("silu", "linear"),
    num_kv_heads=2,
)
ENCODER = dataclasses.replace(LANGUAGE_MODEL, attention_mask="bidirectional")
MODERN = dataclasses.replace(
    ENCODER,
    num_decoder_layers=4,
    num_kv_heads=None,
    mlp_activations=("gelu_exact", "linear"),
    rotary_base=160_000.0,
    local_attention=(8, 3, 500.0),
    norm="layer_scale",
    biases=("logits",),
    logits_via_embedding=True,
)
OPTIMIZER = optimizer_config(schedule=ScheduleConfig(base_learning_rate=1.0, warmup_steps=10_000))


def model(**changes: object) -> ModelConfig:
    return dataclasses.replace(MODEL, **changes)


def language_model(**changes: object) -> ModelConfig:
    return dataclasses.replace(LANGUAGE_MODEL, **changes)


def demo_data(corpus: Path, vocabulary: Path, length: int = 48, batch_size: int = 16) -> DataConfig:
    """The demo's task on a corpus, in four shards; whoever uses it imports tasks.demo."""
    return DataConfig(
        "demo_span_corruption",
        {"inputs": length},
        batch_size=batch_size,
        vocabulary=str(vocabulary),
        data_files=str(corpus),
        validation_percent=5.0,
        num_data_shards=4,
    )


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


def masked_batch(rows: int = 2, length: int = 16, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows for an encoder, of which some tokens are another one, as a mask is."""
    random = np.random.default_rng(seed)
    targets = random.integers(2, 250, (rows, length)).astype(np.int32)
    return {
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.where(random.random(targets.shape) < 0.2, 251, targets),
    }


def mesh_of(config: MeshConfig, num_devices: int) -> Mesh:
    """A mesh over the first devices; fewer of them compile sooner."""
    devices = np.array(jax.devices()[:num_devices]).reshape(config.sizes(num_devices))
    return Mesh(devices, ("data", "fsdp", "model"), axis_types=(AxisType.Auto,) * 3)


def parameters(config: ModelConfig, seed: int = 0, network: Network | None = None) -> dict[str, Any]:
    """Random parameters of about the initial ones' size, without compiling what makes those."""
    network = network or Network(config)
    random = np.random.default_rng(seed)

    def array(name: str, shape: tuple[int, ...]) -> np.ndarray:
        values = random.standard_normal(shape, np.float32)
        if name.endswith(("scale", "bias")):
            return values / 10 + name.endswith("scale")
        if name.endswith("token_embedder/embedding"):
            return values * (config.emb_dim**-0.5 if config.is_decoder_only else 1)
        return values * (shape[-2] * (config.head_dim if name.endswith("query/kernel") else 1)) ** -0.5

    shapes = flatten(jax.eval_shape(network.init, jax.random.key(0)))
    return unflatten({name: jnp.asarray(array(name, leaf.shape)) for name, leaf in shapes.items()})


@functools.cache
def noisy_parameters(config: ModelConfig) -> dict[str, Any]:
    """Random parameters with more noise: a bias or a scale that is left out shows."""
    random = np.random.default_rng(3)
    return jax.tree.map(
        lambda x: jnp.asarray(x + 0.1 * random.standard_normal(x.shape, np.float32)),
        jax.tree.map(np.asarray, parameters(config)),
    )


def state(
    network: Network, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int, shard_update: bool = True
) -> TrainState:
    """As `create_state`, of `parameters`."""
    shardings = state_shardings(network, optimizer, mesh, shard_update)
    params = jax.device_put(parameters(network.config, seed, network), shardings.params)
    opt_state = jax.jit(optimizer.init, out_shardings=shardings.opt_state)(params)
    return TrainState(jax.device_put(np.int32(0), shardings.step), params, opt_state)


def train(
    config: ModelConfig = MODEL,
    optimizer_config: OptimizerConfig = OPTIMIZER,
    mesh_config: MeshConfig | None = None,
    *,
    num_microbatches: int = 1,
    steps: int = 3,
    loss: LossConfig | None = None,
    num_devices: int = 1,
    shard_update: bool = True,
    create: Callable[..., TrainState] = state,
) -> tuple[list[float], TrainState]:
    """Returns the losses of some steps from a fresh state, and the last state."""
    mesh = mesh_of(mesh_config or MeshConfig(), num_devices)
    network = Network(config, mesh)
    optimizer = make_optimizer(optimizer_config, steps)
    schedule = make_schedule(optimizer_config.schedule, steps)
    state = create(network, optimizer, mesh, 0, shard_update)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    gradient = Gradient(network, loss or LossConfig(), num_microbatches)
    step = jit_train_step(gradient, optimizer, schedule, shardings)
    losses = []
    for i in range(steps):
        state, metrics = step(state, batch(seed=i), jax.random.key(7))
        losses.append(float(metrics["loss"]))
    return losses, state


def assert_same_gradients(
    one: tuple[ModelConfig, MeshConfig, LossConfig], *others: tuple, features: Mapping[str, np.ndarray] | None = None
) -> None:
    """Compares loss sums, and gradients beside their largest value, from the same parameters, batch and dropout."""
    params = parameters(one[0])
    wanted = None
    for config, axes, loss in (one, *others):
        network = Network(config, mesh_of(axes, axes.data * axes.fsdp * axes.model))
        key = jax.random.key(7) if config.dropout_rate else None
        of = Gradient(network, loss)
        gradient, sums = jax.jit(lambda *xs, of=of, k=key: gradients(of, *xs, k))(params, features or batch())
        gradient = jax.tree.map(np.asarray, gradient)
        if wanted is None:
            wanted = gradient
            wanted_sums = sums
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), sums, wanted_sums)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max()), gradient, wanted
        )


def stack_layers(tree: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns Limba's tree from T5X's. ValueError if a layer's number is missing."""
    result: dict[str, np.ndarray] = {}
    layers: dict[str, dict[int, np.ndarray]] = defaultdict(dict)
    for name, array in tree.items():
        match = re.search(r"(^|/)layers_(\d+)/", name)
        if match is None:
            result[name] = array
        else:
            layers[re.sub(r"(^|/)layers_\d+/", r"\g<1>layers/", name)][int(match.group(2))] = array
    for name, arrays in layers.items():
        if sorted(arrays) != list(range(len(arrays))):
            raise ValueError(f"{name} has layers {sorted(arrays)}; all layers from 0 on are required.")
        result[name] = np.stack([arrays[i] for i in range(len(arrays))])
    return result
