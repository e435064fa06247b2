"""The time of a run's training step on this machine's devices, on random tokens, before the run starts."""

from __future__ import annotations

import statistics
import time

import jax
import numpy as np
from jax.sharding import Mesh

from limba.config import RunConfig
from limba.data.packing import PREDICTED, model_features
from limba.model import Network
from limba.sharding.mesh import batch_sharding
from limba.training.optimizer import optimizer_of
from limba.training.placement import place_batch
from limba.training.schedule import make_schedule
from limba.training.state import create_state, state_shardings
from limba.training.step import Gradient, jit_train_step

STEPS_AT_ONCE = 4  # that are started before the last is waited for, as training does
LEAST_TIMINGS = 3


def seconds_of_step(config: RunConfig, mesh: Mesh, lengths: tuple[int, int], limit: float) -> float:
    """Returns the median seconds of a step on the mesh's devices, which are timed for about `limit` seconds.

    `lengths` are the lengths of the encoder's and the decoder's rows, in tokens. Compiling and the first step are not
    counted.
    """
    model = Network(config.model, mesh)
    optimizer = optimizer_of(config, model)
    schedule = make_schedule(config.optimizer.schedule, config.train_steps)
    shardings = state_shardings(model, optimizer, mesh, config.mesh.shard_update)
    state = create_state(model, optimizer, shardings, config.random_seed)
    gradient = Gradient(model, config.loss, config.num_microbatches, config.gradient_reduce_dtype)
    drops = config.guard.action == "skip"
    step = jit_train_step(gradient, optimizer, schedule, shardings, drops)
    batch = place_batch(random_features(config, lengths), batch_sharding(mesh))
    key = jax.random.key(config.random_seed, impl=config.random_bits)
    limits = (np.full(2, np.inf, np.float32),) if drops else ()
    state, metrics = step(state, batch, key, *limits)
    jax.block_until_ready((state, metrics))
    timings: list[float] = []
    while len(timings) < LEAST_TIMINGS or sum(timings) * STEPS_AT_ONCE < limit:
        began = time.perf_counter()
        for _ in range(STEPS_AT_ONCE):
            state, metrics = step(state, batch, key, *limits)
        jax.block_until_ready((state, metrics))
        timings.append((time.perf_counter() - began) / STEPS_AT_ONCE)
    return statistics.median(timings)


def random_features(config: RunConfig, lengths: tuple[int, int]) -> dict[str, np.ndarray]:
    """Returns a global batch of random tokens in rows without padding, each row one document."""
    data = config.data
    inputs, targets = lengths
    random = np.random.default_rng(config.random_seed)
    most = config.model.vocab_size
    rows = {"targets": random.integers(3, most, (data.batch_size, targets), np.int32)}
    if data.pack:
        rows["targets_segment_ids"] = np.ones_like(rows["targets"])
    if data.num_predicted is not None:
        rows["inputs"] = rows["targets"].copy()
        rows["inputs"][:, : data.num_predicted] += PREDICTED
        return model_features(rows, num_predicted=data.num_predicted)
    if inputs:
        rows["inputs"] = random.integers(3, most, (data.batch_size, inputs), np.int32)
        if data.pack:
            rows["inputs_segment_ids"] = np.ones_like(rows["inputs"])
    return model_features(rows)
