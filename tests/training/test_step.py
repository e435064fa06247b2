"""One update: recorded T5X runs, micro-batches, meshes, layers stacked or not, collectives."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.compiled_program import costs_of_program
from benchmarks.replay import replay
from limba.config import LossConfig, MeshConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from limba.formats.names import flatten, unflatten, unstack_layers
from limba.model import Network
from limba.sharding.mesh import batch_sharding
from limba.training.chunked_loss import chunked_cross_entropy
from limba.training.losses import cross_entropy
from limba.training.optimizer import make_optimizer, make_schedule, scale_by_parameter_rms
from limba.training.state import abstract_state, create_state, state_shardings
from limba.training.step import gradients, jit_train_step
from tests import tiny

CURVE = str(Path(__file__).parent.parent / "golden" / "curve_t5_1_1")
ALL_OPTIMIZERS = ("adafactor", "adamw_rms", "adamw")


@pytest.mark.parametrize(
    ("scan_layers", "attention", "logits"), [(True, "auto", "auto"), (False, "memory_efficient", "chunked")]
)
def test_replays_a_recorded_t5x_run(scan_layers: bool, attention: str, logits: str) -> None:
    parts = 1 if scan_layers else 2
    result = replay(CURVE, scan_layers, parts, MeshConfig(fsdp=2), attention, logits)
    assert result["max_relative_difference_first_10"] < 2e-5
    assert result["max_relative_difference"] < 1e-4
    assert result["final_rms_max_relative_difference"] < 1e-4


@pytest.mark.parametrize("mesh", [MeshConfig(2, 2, 2), MeshConfig(8, 1, 1)])
def test_every_mesh_trains_like_one_device(mesh: MeshConfig) -> None:
    sharded, _ = tiny.train(mesh_config=mesh, num_devices=8, create=create_state)
    alone, _ = tiny.train(create=create_state)
    np.testing.assert_allclose(sharded, alone, rtol=1e-5)


@pytest.mark.parametrize(("name", "counts"), [("adafactor", (1, 2, 4)), ("adamw_rms", (4,)), ("adamw", (4,))])
def test_shares_of_the_update_and_microbatches_do_not_change_it(name: str, counts: tuple[int, ...]) -> None:
    """Of 2 encoder and 3 decoder layers 2 devices cut the former's stack by layers, the latter's within a layer."""
    schedule = ScheduleConfig("linear", base_learning_rate=1e-2, warmup_steps=0)
    config = OptimizerConfig(name=name, schedule=schedule, epsilon=1e-4)
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


@pytest.mark.parametrize("name", ALL_OPTIMIZERS)
def test_stacked_layers_update_like_single_ones(name: str) -> None:
    config = OptimizerConfig(name=name, weight_decay=0.01, schedule=ScheduleConfig(base_learning_rate=0.5))
    params = tiny.parameters(tiny.MODEL)
    single = unflatten(unstack_layers(flatten(jax.device_get(params))))
    optimizer = make_optimizer(config, 10)
    states = {"stacked": optimizer.init(params), "single": optimizer.init(single)}
    update = jax.jit(optimizer.update)
    for seed in range(3):
        random = np.random.default_rng(seed)
        grads = jax.tree.map(lambda p, random=random: random.standard_normal(p.shape, np.float32) * 3, params)
        updates, states["stacked"] = update(grads, states["stacked"], params)
        params = optax.apply_updates(params, updates)
        grads = unflatten(unstack_layers(flatten(grads)))
        updates, states["single"] = update(grads, states["single"], single)
        single = optax.apply_updates(single, updates)
    unstacked = unstack_layers(flatten(jax.device_get(params)))
    for path, array in flatten(single).items():
        np.testing.assert_allclose(array, unstacked[path], atol=1e-6, err_msg=path)


def test_adafactor_factors_matrices_from_128_on() -> None:
    state = jax.eval_shape(
        lambda key: make_optimizer(OptimizerConfig(), 1).init(Network(tiny.MODEL).init(key)), jax.random.key(0)
    )
    shapes = {jax.tree_util.keystr(p, simple=True, separator="/"): s.shape for p, s in jax.tree.leaves_with_path(state)}
    (rows,) = [s for n, s in shapes.items() if "v_row" in n and "encoder/layers/attention/query" in n]
    (whole,) = [s for n, s in shapes.items() if n.split("/")[-1] == "scale" and "/v/" in n and "encoder_norm" in n]
    assert rows == (2, 128) and whole == (128,)


def test_parameter_scale_is_optax_s() -> None:
    params = {"normal": jax.random.normal(jax.random.key(0), (3, 5)), "zero": jnp.zeros(7), "small": jnp.full(2, 1e-4)}
    updates = jax.tree.map(jnp.ones_like, params)
    ours, theirs = (
        scale.update(updates, scale.init(params), params)
        for scale in (scale_by_parameter_rms(1e-3), optax.scale_by_param_block_rms(1e-3))
    )
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_loss_is_what_t5x_defines_with_smoothing() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 3, 50), np.float32) * 2
    targets = rng.integers(0, 50, (2, 3))
    config = LossConfig(z_loss=1e-2, label_smoothing=0.1)
    trained, plain, correct = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), config)
    z = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    log_p = logits - z[..., None]
    soft = np.full((2, 3, 50), 0.1 / 49)
    np.put_along_axis(soft, targets[..., None], 0.9, -1)
    entropy = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1 / 49))
    np.testing.assert_allclose(trained, -(soft * log_p).sum(-1) - entropy + 1e-2 * z**2, rtol=1e-5)
    np.testing.assert_array_equal(correct, logits.argmax(-1) == targets)
    np.testing.assert_allclose(plain, -np.take_along_axis(log_p, targets[..., None], -1)[..., 0], rtol=1e-5)


@pytest.mark.parametrize(("mesh", "smoothing"), [(None, 0.1), (MeshConfig(2, 1, 1), 0.0), (MeshConfig(1, 2, 2), 0.1)])
def test_loss_in_chunks_and_its_gradients_equal_whole_logits(mesh: MeshConfig | None, smoothing: float) -> None:
    random = np.random.default_rng(0)
    states, head = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in ((8, 5, 16), (16, 48)))
    targets = jnp.asarray(random.integers(0, 48, (8, 5)))
    weights = jnp.asarray(random.integers(0, 2, (8, 5)), jnp.float32)
    config = LossConfig(z_loss=1e-2, label_smoothing=smoothing)
    devices = None if mesh is None else tiny.mesh_of(mesh, mesh.data * mesh.fsdp * mesh.model)

    def whole(states: jax.Array, head: jax.Array) -> tuple:
        trained, plain, correct = cross_entropy(0.5 * states @ head, targets, config)
        return tuple(jnp.sum(x * weights) for x in (trained, plain, correct))

    def chunked(states: jax.Array, head: jax.Array) -> tuple:
        return chunked_cross_entropy(states, head, targets, weights, config, devices, scale=0.5, num_chunks=2)

    for wanted, sums in zip(whole(states, head), jax.jit(chunked)(states, head), strict=True):
        np.testing.assert_allclose(sums, wanted, rtol=1e-5)
    gradients = [
        jax.jit(jax.grad(lambda *xs, sums=sums: 3 * sums(*xs)[0], argnums=(0, 1)))(states, head)
        for sums in (whole, chunked)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *gradients)


@pytest.mark.parametrize(
    ("config", "mesh"),
    [
        (tiny.model(num_encoder_layers=1), MeshConfig(2, 1, 1)),
        (tiny.model(num_encoder_layers=1, logits_via_embedding=True), MeshConfig(2, 1, 2)),
        (tiny.language_model(logits_via_embedding=True), MeshConfig(1, 1, 1)),
    ],
    ids=["untied", "tied", "decoder alone"],
)
def test_network_has_the_same_gradients_with_its_loss_in_chunks(config: ModelConfig, mesh: MeshConfig) -> None:
    config = dataclasses.replace(config, num_decoder_layers=1)
    whole, chunked = (LossConfig(label_smoothing=0.1, logits=logits) for logits in ("whole", "chunked"))
    tiny.assert_same_gradients((config, mesh, whole), (config, mesh, chunked))


@pytest.mark.parametrize("name", ["factors", "linear", "cosine", "warmup_stable_decay"])
def test_schedules_rise_to_the_peak_and_end_low(name: str) -> None:
    factors = "constant * linear_warmup * rsqrt_normalized_decay"
    schedule = make_schedule(ScheduleConfig(name, 0.3, factors, warmup_steps=10), 100)
    rates = np.array([float(schedule(step)) for step in range(101)])
    assert rates.argmax() == 10 and abs(rates[10] - 0.3) < 1e-6 and rates[1] < 0.05
    assert abs(rates[100] - (0.3 * np.sqrt(10 / 100) if name == "factors" else 0.0)) < 1e-6


def test_published_schedule_is_flat_then_rsqrt() -> None:
    schedule = make_schedule(ScheduleConfig(), 2_000_000)
    np.testing.assert_allclose([schedule(0), schedule(9_999), schedule(1_000_000)], [0.01, 0.01, 0.001], rtol=1e-6)


SHALLOW = tiny.model(num_encoder_layers=1, num_decoder_layers=1)


def lowered_step(
    mesh_config: MeshConfig, rows: int, num_microbatches: int = 1, shard_update: bool = True, **choices: str
) -> jax.stages.Lowered:
    mesh = tiny.mesh_of(mesh_config, 4)
    model, optimizer = Network(SHALLOW, mesh), make_optimizer(tiny.OPTIMIZER, 1)
    state, sharding = abstract_state(model, optimizer, mesh, shard_update), batch_sharding(mesh)
    batch = {n: jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype, sharding=sharding) for n, a in tiny.batch().items()}
    shardings = state_shardings(model, optimizer, mesh, shard_update)
    schedule = make_schedule(ScheduleConfig(), 1)
    step = jit_train_step(model, optimizer, schedule, LossConfig(), num_microbatches, shardings, **choices)
    return step.lower(state, batch, jax.random.key(0))


def collective_bytes(lowered: jax.stages.Lowered) -> tuple[dict[str, int], int]:
    """Returns those of the compiled step, and the parameters' own."""
    parameters = jax.tree.leaves(jax.eval_shape(Network(SHALLOW).init, jax.random.key(0)))
    return costs_of_program(lowered.compile().as_text()).collective_bytes, sum(4 * leaf.size for leaf in parameters)


def test_data_parallelism_reduces_each_gradient_once_also_with_microbatches() -> None:
    found, parameters = collective_bytes(lowered_step(MeshConfig(), 16, 2, shard_update=False))
    assert set(found) == {"all-reduce"}
    assert 0 <= found["all-reduce"] - parameters < 100


def test_shares_of_the_update_are_gathered_once_and_their_gradients_reduced_once() -> None:
    found, parameters = collective_bytes(lowered_step(MeshConfig(), 16, 2))
    assert set(found) == {"all-reduce", "all-gather", "reduce-scatter"}
    assert 0.99 * parameters < found["all-gather"] < 1.01 * parameters
    assert 0.99 * parameters < found["reduce-scatter"] < 1.01 * parameters
    assert found["all-reduce"] < 0.02 * parameters


def test_devices_that_share_parameters_have_rows_of_their_own() -> None:
    """They exchange parameters and gradients; one array of activations of 128 rows would be nearly as much."""
    found, parameters = collective_bytes(lowered_step(MeshConfig(fsdp=4), 128))
    assert 4 * 128 * 24 * SHALLOW.emb_dim > parameters / 2
    assert found["all-reduce"] < 2 * parameters and found["all-gather"] < 2 * parameters


def test_gradients_are_added_up_between_devices_in_the_dtype_that_is_chosen() -> None:
    reduced = re.compile(r"all_reduce.*?-> tensor<((?:\d+x)*)(\w+)>", re.DOTALL)
    for dtype, short in (("float32", "f32"), ("bfloat16", "bf16")):
        text = lowered_step(MeshConfig(), 16, gradient_reduce_dtype=dtype).as_text()
        assert {kind for sizes, kind in reduced.findall(text) if sizes} == {short}
    model, params = Network(SHALLOW, tiny.mesh_of(MeshConfig(), 2)), tiny.parameters(SHALLOW)
    exact, rounded = (
        jax.jit(lambda p, b, choice=choice: gradients(model, LossConfig(), p, b, None, 1, choice)[0])(
            params, tiny.batch()
        )
        for choice in ("auto", "bfloat16")
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=2**-7 * np.abs(b).max()), rounded, exact)


def test_dropout_differs_between_steps_and_repeats_with_the_key() -> None:
    config = dataclasses.replace(tiny.MODEL, dropout_rate=0.2)
    first, _ = tiny.train(config)
    second, _ = tiny.train(config)
    assert first == second
    assert first != tiny.train()[0]


def test_devices_that_add_up_their_own_gradients_draw_their_own_dropout() -> None:
    config = dataclasses.replace(SHALLOW, dropout_rate=0.2)
    params, key, batch = tiny.parameters(config), jax.random.key(7), tiny.batch()
    alone, shared = Network(config), Network(config, tiny.mesh_of(MeshConfig(), 2))
    one = jax.jit(lambda b, k: gradients(alone, LossConfig(), params, b, k, 2)[1]["loss"])
    parts = [
        one({name: array[4 * i : 4 * i + 4] for name, array in batch.items()}, jax.random.fold_in(key, i))
        for i in range(2)
    ]
    both = jax.jit(lambda b: gradients(shared, LossConfig(), params, b, key, 2)[1]["loss"])(batch)
    np.testing.assert_allclose(both, sum(parts), rtol=1e-5)
