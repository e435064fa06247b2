"""One update: recorded T5X runs, micro-batches, meshes, layers stacked or not, collectives."""

import dataclasses
import functools
import re
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from benchmarks.replay import replay
from limba.config import LossConfig, MeshConfig, ModelConfig, ScheduleConfig, optimizer_config
from limba.config.optimizer import RULES, foreign_fields
from limba.model import Network
from limba.sharding.mesh import batch_sharding
from limba.sharding.shard_keys import shard_key
from limba.tools.preflight.compiled.program import costs_of_program
from limba.training.optimizer import make_optimizer
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, abstract_state, create_state, state_shardings
from limba.training.step import Gradient, gradients, jit_train_step
from tests import tiny

CURVE = str(Path(__file__).parent.parent / "golden" / "curve_t5_1_1")


def on_devices(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a replay take so many devices, not all: each of them costs as much in each step."""
    monkeypatch.setattr("benchmarks.replay.make_mesh", lambda config: tiny.mesh_of(config, number))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scan_layers", "attention", "logits"),
    [(True, "auto", "auto"), (False, "memory_efficient", "chunked")],
)
def test_replays_a_recorded_t5x_run(
    scan_layers: bool, attention: str, logits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_devices(4, monkeypatch)
    parts = 1 if scan_layers else 2
    result = replay(CURVE, scan_layers, parts, MeshConfig(fsdp=2), attention, logits)
    assert result["max_relative_difference_first_10"] < 2e-5
    assert result["max_relative_difference"] < 1e-4
    assert result["final_rms_max_relative_difference"] < 1e-4


@pytest.mark.slow
def test_replays_a_packed_t5x_run_whose_loss_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """T5X's default: rows of unequal length then weigh differently in Adafactor's averages (7e-4 if divided)."""
    on_devices(2, monkeypatch)
    result = replay(CURVE.replace("curve_t5_1_1", "curve_packed_factored"))
    assert result["max_relative_difference"] < 2e-5
    assert result["final_rms_max_relative_difference"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("axes", [MeshConfig(2, 2, 2), pytest.param(MeshConfig(8, 1, 1), marks=pytest.mark.night)])
def test_every_mesh_trains_like_one_device(axes: MeshConfig) -> None:
    def create(
        network: Network, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int, shard_update: bool
    ) -> TrainState:
        shardings = state_shardings(network, optimizer, mesh, shard_update)
        return create_state(network, optimizer, shardings, seed)

    sharded, _ = tiny.train(mesh_config=axes, num_devices=8, create=create)
    alone, _ = tiny.train(create=create)
    np.testing.assert_allclose(sharded, alone, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("adafactor", (4,)),
        ("muon", (4,)),
        pytest.param("adafactor", (1, 2), marks=pytest.mark.night),
        *(
            pytest.param(name, (4,), marks=pytest.mark.night)
            for name in (*RULES, "muon+adafactor")
            if name not in ("adafactor", "muon")
        ),
    ],
)
def test_shares_of_the_update_and_microbatches_do_not_change_it(name: str, counts: tuple[int, ...]) -> None:
    """Of 2 encoder and 3 decoder layers 2 devices cut the former's stack by layers, the latter's within a layer."""
    schedule = ScheduleConfig("linear", base_learning_rate=1e-2, warmup_steps=0)
    rule, _, others = name.partition("+")
    choices = {"epsilon": 1e-4, "muon_dtype": "float32", "muon_others": others or "adamw"}
    config = optimizer_config(rule, schedule, **{k: v for k, v in choices.items() if not foreign_fields(rule, [k])})
    losses, state = tiny.train(
        optimizer_config=config, mesh_config=MeshConfig(2, 1, 1), num_devices=2, shard_update=False
    )
    for parts in counts:
        other_losses, other = tiny.train(
            optimizer_config=config, mesh_config=MeshConfig(2, 1, 1), num_devices=2, num_microbatches=parts
        )
        np.testing.assert_allclose(other_losses, losses, rtol=1e-5)
        for a, b in zip(jax.tree.leaves(other.params), jax.tree.leaves(state.params), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)


SHALLOW = tiny.model(num_encoder_layers=1, num_decoder_layers=1)


def lowered_step(
    mesh_config: MeshConfig, rows: int, num_microbatches: int = 1, shard_update: bool = True, **choices: str
) -> jax.stages.Lowered:
    mesh = tiny.mesh_of(mesh_config, 4)
    model = Network(SHALLOW, mesh)
    optimizer = make_optimizer(tiny.OPTIMIZER, 1)
    state = abstract_state(model, optimizer, mesh, shard_update)
    sharding = batch_sharding(mesh)
    batch = {n: jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype, sharding=sharding) for n, a in tiny.batch().items()}
    shardings = state_shardings(model, optimizer, mesh, shard_update)
    schedule = make_schedule(ScheduleConfig(), 1)
    gradient = Gradient(model, LossConfig(), num_microbatches, **choices)
    step = jit_train_step(gradient, optimizer, schedule, shardings)
    return step.lower(state, batch, jax.random.key(0))


def collective_bytes(lowered: jax.stages.Lowered) -> tuple[dict[str, int], int]:
    """Returns the collectives' bytes in the compiled step, and the bytes of the parameters."""
    parameters = jax.tree.leaves(jax.eval_shape(Network(SHALLOW).init, jax.random.key(0)))
    return costs_of_program(lowered.compile().as_text()).collective_bytes, sum(4 * leaf.size for leaf in parameters)


@pytest.mark.slow
def test_data_parallelism_reduces_each_gradient_once_also_with_microbatches() -> None:
    bytes_by_kind, parameters = collective_bytes(lowered_step(MeshConfig(), 16, 2, shard_update=False))
    assert set(bytes_by_kind) == {"all-reduce"}
    assert 0 <= bytes_by_kind["all-reduce"] - parameters < 100


@pytest.mark.slow
def test_shares_of_the_update_are_gathered_once_and_their_gradients_reduced_once() -> None:
    bytes_by_kind, parameters = collective_bytes(lowered_step(MeshConfig(), 16, 2))
    assert set(bytes_by_kind) == {"all-reduce", "all-gather", "reduce-scatter"}
    assert 0.99 * parameters < bytes_by_kind["all-gather"] < 1.01 * parameters
    assert 0.99 * parameters < bytes_by_kind["reduce-scatter"] < 1.01 * parameters
    assert bytes_by_kind["all-reduce"] < 0.02 * parameters


@pytest.mark.slow
def test_devices_that_share_parameters_have_rows_of_their_own() -> None:
    """They exchange parameters and gradients; one array of activations of 128 rows would be nearly as much."""
    bytes_by_kind, parameters = collective_bytes(lowered_step(MeshConfig(fsdp=4), 128))
    assert 4 * 128 * 24 * SHALLOW.emb_dim > parameters / 2
    assert bytes_by_kind["all-reduce"] < 2 * parameters and bytes_by_kind["all-gather"] < 2 * parameters


@pytest.mark.slow
def test_gradients_are_added_up_between_devices_in_the_dtype_that_is_chosen() -> None:
    reduced = re.compile(r"all_reduce.*?-> tensor<((?:\d+x)*)(\w+)>", re.DOTALL)
    for dtype, short in (("float32", "f32"), ("bfloat16", "bf16")):
        text = lowered_step(MeshConfig(), 16, reduce_dtype=dtype).as_text()
        assert {kind for sizes, kind in reduced.findall(text) if sizes} == {short}
    model = Network(SHALLOW, tiny.mesh_of(MeshConfig(), 2))
    params = tiny.parameters(SHALLOW)
    exact, rounded = (
        jax.jit(lambda p, b, choice=choice: gradients(Gradient(model, LossConfig(), 1, choice), p, b, None)[0])(
            params, tiny.batch()
        )
        for choice in ("auto", "bfloat16")
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2**-7 * np.abs(b).max()), rounded, exact)


DROPPED = dataclasses.replace(SHALLOW, dropout_rate=0.1)


@functools.cache
def steps_on_one_device(num_microbatches: int, config: ModelConfig = DROPPED) -> tuple[list[float], TrainState]:
    return tiny.train(config, LINEAR, num_microbatches=num_microbatches)


LINEAR = optimizer_config("adamw", ScheduleConfig("linear", 1e-2, warmup_steps=0), epsilon=1e-4)


@pytest.mark.slow
def test_dropout_does_something_and_repeats_with_the_key() -> None:
    first, _ = steps_on_one_device(1)
    assert first == tiny.train(DROPPED, LINEAR)[0]
    assert first != steps_on_one_device(1, SHALLOW)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "num_microbatches"),
    [
        (MeshConfig(1, 2, 1), 2),
        *(
            pytest.param(MeshConfig(*mesh), parts, marks=pytest.mark.night)
            for mesh, parts in (((2, 1, 1), 1), ((4, 1, 1), 2), ((8, 1, 1), 1), ((2, 1, 1), 4), ((2, 2, 2), 1))
        ),
    ],
)
def test_dropout_is_that_of_one_device_on_any_number_of_devices(mesh: MeshConfig, num_microbatches: int) -> None:
    """The masks are of the global batch, so that only sums are rounded otherwise."""
    wanted, alone = steps_on_one_device(num_microbatches)
    assert abs(wanted[0] - steps_on_one_device(1, SHALLOW)[0][0]) > 1e-3  # without dropout
    number = mesh.data * mesh.fsdp * mesh.model
    losses, state = tiny.train(DROPPED, LINEAR, mesh, num_devices=number, num_microbatches=num_microbatches)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(alone.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(dataclasses.replace(DROPPED, scan_layers=False, remat="full"), marks=pytest.mark.night),
        dataclasses.replace(DROPPED, attention="memory_efficient", remat="minimal"),
        pytest.param(tiny.language_model(num_decoder_layers=1, dropout_rate=0.1), marks=pytest.mark.night),
    ],
)
def test_dropout_of_each_kind_of_network_is_that_of_one_device(config: ModelConfig) -> None:
    tiny.assert_same_gradients(*((config, MeshConfig(data=number), LossConfig()) for number in (1, 2)))


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_a_shard_draws_its_rows_of_what_one_device_draws(generator: str) -> None:
    key = jax.random.key(3, impl=generator)
    for changed in (lambda k: k, lambda k: jax.random.fold_in(k, 7), lambda k: jax.random.split(k, 3)[1]):
        draw = jax.jit(lambda k, rows, change=changed: jax.random.bits(change(k), (rows, 3, 2)), static_argnums=1)
        parts = [draw(shard_key(key, jax.numpy.int32(shard), 4), 2) for shard in range(4)]
        np.testing.assert_array_equal(np.concatenate(parts), draw(key, 8))
