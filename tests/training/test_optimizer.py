"""Optimizers over stacked layers, and their schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from limba.config import OptimizerConfig, ScheduleConfig
from limba.formats.names import flatten, unflatten, unstack_layers
from limba.model import Network
from limba.training.optimizer import make_optimizer, make_schedule, scale_by_parameter_rms
from tests import tiny

ALL_OPTIMIZERS = ("adafactor", "adamw_rms", "adamw", "muon", "ademamix")


@pytest.mark.parametrize(("name", "others"), [*((name, "adamw") for name in ALL_OPTIMIZERS), ("muon", "adafactor")])
def test_stacked_layers_update_like_single_ones(name: str, others: str) -> None:
    schedule = ScheduleConfig(base_learning_rate=0.5)
    config = OptimizerConfig(
        name, schedule, weight_decay=0.01, muon_dtype="float32", muon_by_parameter_scale=True, muon_others=others
    )
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


@pytest.mark.core
def test_adafactor_factors_matrices_from_128_on() -> None:
    state = jax.eval_shape(
        lambda key: make_optimizer(OptimizerConfig(), 1).init(Network(tiny.MODEL).init(key)), jax.random.key(0)
    )
    shapes = {jax.tree_util.keystr(p, simple=True, separator="/"): s.shape for p, s in jax.tree.leaves_with_path(state)}
    (rows,) = [s for n, s in shapes.items() if "v_row" in n and "encoder/layers/attention/query" in n]
    (whole,) = [s for n, s in shapes.items() if n.split("/")[-1] == "scale" and "/v/" in n and "encoder_norm" in n]
    assert rows == (2, 128) and whole == (128,)


def test_muon_with_adafactor_has_the_updates_of_both() -> None:
    """Embeddings, head, norms and positions move as under Adafactor alone, the layers' matrices as under Muon."""
    schedule, params = ScheduleConfig("factors", 0.5, "constant", 0), tiny.parameters(tiny.MODEL)
    configs = {
        "both": OptimizerConfig("muon", schedule, muon_by_parameter_scale=True, muon_others="adafactor"),
        "muon": OptimizerConfig("muon", schedule, muon_by_parameter_scale=True),
        "adafactor": OptimizerConfig("adafactor", schedule),
    }
    rules = {name: make_optimizer(config, 1) for name, config in configs.items()}
    states, updates = {name: rule.init(params) for name, rule in rules.items()}, {}
    for seed in range(2):
        random = np.random.default_rng(seed)
        grads = jax.tree.map(lambda p, random=random: random.standard_normal(p.shape, np.float32), params)
        for name, rule in rules.items():
            updates[name], states[name] = jax.jit(rule.update)(grads, states[name], params)
    found = {name: flatten(jax.device_get(each)) for name, each in updates.items()}
    for path, update in found["both"].items():
        by = "muon" if path.endswith("/kernel") and "layers" in path else "adafactor"
        np.testing.assert_allclose(update, found[by][path], rtol=1e-6, atol=1e-9, err_msg=path)
    sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(state)) for name, state in states.items()}
    matrices = sum(
        array.size for path, array in flatten(params).items() if path.endswith("/kernel") and "layers" in path
    )
    assert matrices <= sizes["both"] < matrices + sizes["adafactor"] < sizes["muon"]


@pytest.mark.core
def test_ademamix_is_its_paper_s() -> None:
    """Equations 1 to 3, and the schedules of alpha and beta3 of appendix A.1, in float64."""
    config = OptimizerConfig("ademamix", ScheduleConfig("factors", 1.0, "constant", 0), beta3=0.99, ademamix_alpha=4.0)
    rule, random = make_optimizer(config, 8), np.random.default_rng(0)
    params = {"kernel": jnp.zeros((3, 5))}
    state, step = rule.init(params), jax.jit(rule.update)
    fast, slow, squares = np.zeros((3, 3, 5))
    for t in range(12):  # the first update has the number 1, and the schedules' step 0
        gradient = random.standard_normal((3, 5)).astype(np.float32)
        updates, state = step({"kernel": gradient}, state, params)
        share = min(t / 8, 1.0)
        decay = np.exp(np.log(0.9) * np.log(0.99) / ((1 - share) * np.log(0.99) + share * np.log(0.9)))
        fast, slow = 0.9 * fast + 0.1 * gradient, decay * slow + (1 - decay) * gradient
        squares = 0.999 * squares + 0.001 * np.float64(gradient) ** 2
        root = np.sqrt(squares / (1 - 0.999 ** (t + 1))) + 1e-8
        wanted = -(fast / (1 - 0.9 ** (t + 1)) + 4.0 * share * slow) / root
        np.testing.assert_allclose(updates["kernel"], wanted, rtol=2e-4, atol=1e-5)


@pytest.mark.core
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


@pytest.mark.parametrize("name", ["factors", "linear", "cosine", "warmup_stable_decay"])
def test_schedules_rise_to_the_peak_and_end_low(name: str) -> None:
    factors = "constant * linear_warmup * rsqrt_normalized_decay"
    schedule = make_schedule(ScheduleConfig(name, 0.3, factors, warmup_steps=10), 100)
    rates = np.array([float(schedule(step)) for step in range(101)])
    assert rates.argmax() == 10 and abs(rates[10] - 0.3) < 1e-6 and rates[1] < 0.05
    assert abs(rates[100] - (0.3 * np.sqrt(10 / 100) if name == "factors" else 0.0)) < 1e-6


@pytest.mark.parametrize("name", ["factors", "linear", "cosine", "warmup_stable_decay"])
def test_rates_are_never_negative_where_a_run_goes_on_after_its_planned_end(name: str) -> None:
    """As one does whose rows were estimated; 1 - 63 x (1 / 63), as compilers divide, is below 0."""
    rate = jax.jit(make_schedule(ScheduleConfig(name, 1e-3, "constant * linear_decay", 3, decay_factor=1 / 60), 63))
    assert min(float(rate(step)) for step in range(60, 80)) >= 0.0


@pytest.mark.core
def test_published_schedule_is_flat_then_rsqrt() -> None:
    schedule = make_schedule(ScheduleConfig(), 2_000_000)
    np.testing.assert_allclose([schedule(0), schedule(9_999), schedule(1_000_000)], [0.01, 0.01, 0.001], rtol=1e-6)
