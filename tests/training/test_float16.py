"""Float16 with dynamic loss scaling: the losses of float32, no step lost to an overflow, exact resumption."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import (
    CheckpointConfig,
    DataConfig,
    LossConfig,
    MeshConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.model import Network
from limba.sharding.mesh import named_leaves
from limba.training import optimizer as loss_scale
from limba.training.checkpoints.directory import Checkpoints
from limba.training.optimizer import make_optimizer
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, state_shardings
from limba.training.step import Gradient, jit_train_step
from tests import tiny

ADAM = optimizer_config("adamw", ScheduleConfig("linear", 1e-3, warmup_steps=5), clip_global_norm=1.0)
CONFIG = tiny.model(num_encoder_layers=1, num_decoder_layers=1, emb_dim=64, mlp_dim=64, num_heads=2, head_dim=16)


@functools.cache
def traced(dtype, optimizer_config, microbatches, devices, logits):
    """Returns what makes a state, and the step; a new one with the same choices would be traced again."""
    config = dataclasses.replace(CONFIG, dtype=dtype)
    loss = LossConfig(logits=logits)
    mesh = tiny.mesh_of(MeshConfig(), devices)
    network = Network(config, mesh)
    optimizer = make_optimizer(optimizer_config, 100, dtype)
    shardings = state_shardings(network, optimizer, mesh)
    step = jit_train_step(
        Gradient(network, loss, microbatches), optimizer, make_schedule(optimizer_config.schedule, 100), shardings
    )
    return functools.partial(tiny.state, network, optimizer, mesh, 0), step


def trained(dtype, steps, optimizer_config=ADAM, doublings=0, microbatches=1, devices=1, logits="auto", state=None):
    """Returns the metrics of the steps, and the last state."""
    begin, step = traced(dtype, optimizer_config, microbatches, devices, logits)
    if state is None:
        state = begin()
        if dtype == "float16":
            *others, scale = state.opt_state
            start = jax.device_put(np.int32(doublings), scale.loss_scale_doublings.sharding)
            state = TrainState(state.step, state.params, (*others, scale._replace(loss_scale_doublings=start)))
    records = []
    for i in range(int(state.step), steps):
        state, metrics = step(state, tiny.batch(seed=i % 3), jax.random.key(7))
        records.append({name: float(value) for name, value in metrics.items()})
    return records, state


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("adafactor", marks=pytest.mark.night)])
def test_the_losses_of_float16_are_those_of_float32(optimizer) -> None:
    choice = ADAM if optimizer == "adamw" else dataclasses.replace(tiny.OPTIMIZER, schedule=ADAM.schedule)
    whole, _ = trained("float32", 30, choice)
    half, state = trained("float16", 30, choice)
    np.testing.assert_allclose([m["loss"] for m in half], [m["loss"] for m in whole], rtol=0.01)
    assert whole[-1]["loss"] < whole[0]["loss"] - 0.3  # they learn
    assert all(np.isfinite(list(m.values())).all() for m in half)
    assert int(state.opt_state[-1].loss_scale_steps) == 30


@pytest.mark.slow
def test_a_scale_that_overflows_is_halved_and_no_step_is_lost() -> None:
    whole, _ = trained("float32", 6)
    half, state = trained("float16", 6, doublings=24)  # far too large
    doublings, steps = (int(x) for x in state.opt_state[-1])
    assert 0 <= doublings < 24 and steps >= 1
    np.testing.assert_allclose([m["loss"] for m in half], [m["loss"] for m in whole], rtol=0.01)
    assert all(np.isfinite(m["gradient_norm"]) for m in half)
    counts = [leaf for name, leaf in named_leaves(state.opt_state).items() if name.endswith("count")]
    assert int(state.step) == 6 and [int(c) for c in counts] == [6] * len(counts)


@pytest.mark.slow
def test_a_resumed_run_has_the_scale_bit_for_bit(tmp_path) -> None:
    """Saved in the middle of good steps, after a halving; the next losses equal a run's that never stopped."""
    whole, end = trained("float16", 6, doublings=24)
    _, state = trained("float16", 3, doublings=24)
    halved = [int(x) for x in state.opt_state[-1]]
    assert halved[0] < 24 and halved[1] > 0
    data = DataConfig("imported", {"inputs": 1}, batch_size=1)
    with Checkpoints(str(tmp_path), CheckpointConfig(), data) as checkpoints:
        checkpoints.save(3, state, {})
        checkpoints.wait()
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        restored = checkpoints.restore_step(3, abstract).state
    assert [int(x) for x in restored.opt_state[-1]] == halved
    resumed, again = trained("float16", 6, state=restored)
    assert resumed == whole[3:]
    for now, wanted in zip(jax.tree.leaves(again), jax.tree.leaves(end), strict=True):
        assert np.asarray(now).tobytes() == np.asarray(wanted).tobytes()


@pytest.mark.slow
def test_a_dropped_step_keeps_the_scale_and_limits_see_the_unscaled_norm() -> None:
    """The guard's limits are of the loss and the gradient themselves, also when a batch is computed again."""
    mesh = tiny.mesh_of(MeshConfig(), 1)
    network = Network(dataclasses.replace(CONFIG, dtype="float16"), mesh)
    optimizer = make_optimizer(ADAM, 100, "float16")
    schedule = make_schedule(ADAM.schedule, 100)
    shardings = state_shardings(network, optimizer, mesh)
    step = jit_train_step(Gradient(network, LossConfig()), optimizer, schedule, shardings, drops=True)
    state = tiny.state(network, optimizer, mesh, 0)
    key = jax.random.key(7)
    *others, scale = state.opt_state
    far = jax.device_put(np.int32(24), scale.loss_scale_doublings.sharding)  # overflows, so it is halved
    state = TrainState(state.step, state.params, (*others, scale._replace(loss_scale_doublings=far)))
    whole, _ = trained("float32", 1)
    loss = whole[0]["loss"]
    norm = whole[0]["gradient_norm"]
    before = [np.array(leaf) for leaf in jax.tree.leaves((state.params, state.opt_state))]
    for number, limits in enumerate(([loss * 0.9, np.inf], [np.inf, norm * 0.9]), 1):
        state, figures = step(state, tiny.batch(seed=0), key, np.array(limits, np.float32))
        np.testing.assert_allclose([figures["loss"], figures["gradient_norm"]], [loss, norm], rtol=0.02)
        assert int(state.step) == number
        for now, then in zip(jax.tree.leaves((state.params, state.opt_state)), before, strict=True):
            np.testing.assert_array_equal(now, then)
    state, _ = step(state, tiny.batch(seed=0), key, np.array([loss * 1.1, norm * 1.1], np.float32))
    doublings, good = (int(x) for x in state.opt_state[-1])
    assert doublings < 24 and good == 0  # the update was taken, the next scale with it


@pytest.mark.night
def test_the_scale_grows_after_good_steps(monkeypatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    traced.cache_clear()  # which have the other number
    _, state = trained("float16", 7)
    traced.cache_clear()
    assert [int(x) for x in state.opt_state[-1]] == [2, 1]


@pytest.mark.night
def test_micro_batches_devices_and_chunks_agree() -> None:
    one, _ = trained("float16", 4)
    for choices in ({"devices": 2, "microbatches": 2}, {"logits": "chunked"}):
        several, _ = trained("float16", 4, **choices)
        np.testing.assert_allclose([m["loss"] for m in several], [m["loss"] for m in one], rtol=2e-3, err_msg=choices)


def test_a_batch_that_is_not_finite_keeps_its_scale() -> None:
    scale = loss_scale.LossScale(jnp.int32(3), jnp.int32(5))

    def compute(factor=1.0):
        return {"w": jnp.full((2,), jnp.nan) * factor}, {"loss": jnp.float32(1)}

    grads, _, (after,) = jax.jit(lambda s: loss_scale.scaled_gradients(compute, (s,), 10))(scale)
    assert np.isnan(grads["w"]).all() and [int(x) for x in after] == [3, 5]


@pytest.mark.slow
def test_a_network_in_float16_is_near_float32_and_does_not_overflow_where_t5_does() -> None:
    config = dataclasses.replace(CONFIG, dtype="float32")
    params = tiny.parameters(config)
    batch = jax.tree.map(jnp.asarray, tiny.batch())
    params["encoder"]["layers"]["mlp"]["wo"]["kernel"] *= 3e4  # the sum over layers then leaves float16
    whole = Network(config).apply(params, batch)
    half = Network(dataclasses.replace(config, dtype="float16")).apply(params, batch)
    assert np.isfinite(half).all()
    np.testing.assert_allclose(half, whole, atol=0.05 * np.abs(whole).max())
