"""Optimizers: each rule against its formula in float64, stacked layers against single ones, and their states."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from limba.config import (
    ConfigError,
    DataConfig,
    EvaluationConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.config.optimizer import RULES
from limba.formats.names import flatten, unflatten, unstack_layers
from limba.model import Network
from limba.training.optimizer import (
    AverageState,
    LossScale,
    make_optimizer,
    optimizer_of,
)
from limba.training.rules import TRANSFORMATIONS, decay_and_rate, per_layer, scale_by_parameter_rms
from tests import tiny

SHALLOW = tiny.model(num_encoder_layers=1, num_decoder_layers=1)
STACKED = tiny.model(num_encoder_layers=1, num_decoder_layers=2)


@pytest.mark.parametrize("name", [*RULES, "muon+adafactor"])
@pytest.mark.slow
def test_stacked_layers_update_like_single_ones(name: str) -> None:
    rule, _, others = name.partition("+")
    choices = {"muon_dtype": "float32", "muon_by_parameter_scale": True} if rule == "muon" else {}
    choices |= {"muon_others": others} if others else {}
    config = optimizer_config(rule, ScheduleConfig(base_learning_rate=0.5), weight_decay=0.01, **choices)
    params = tiny.parameters(STACKED)
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
        lambda key: make_optimizer(optimizer_config(), 1).init(Network(tiny.MODEL).init(key)), jax.random.key(0)
    )
    shapes = {jax.tree_util.keystr(p, simple=True, separator="/"): s.shape for p, s in jax.tree.leaves_with_path(state)}
    (rows,) = [s for n, s in shapes.items() if "v_row" in n and "encoder/layers/attention/query" in n]
    (whole,) = [s for n, s in shapes.items() if n.split("/")[-1] == "scale" and "/v/" in n and "encoder_norm" in n]
    assert rows == (2, 128) and whole == (128,)


@pytest.mark.slow
def test_muon_with_adafactor_has_the_updates_of_both() -> None:
    """Embeddings, head, norms and positions move as under Adafactor alone, the layers' matrices as under Muon."""
    schedule = ScheduleConfig("factors", 0.5, "constant", 0)
    params = tiny.parameters(tiny.MODEL)
    configs = {
        "both": optimizer_config("muon", schedule, muon_by_parameter_scale=True, muon_others="adafactor"),
        "muon": optimizer_config("muon", schedule, muon_by_parameter_scale=True),
        "adafactor": optimizer_config("adafactor", schedule),
    }
    rules = {name: make_optimizer(config, 1) for name, config in configs.items()}
    states = {name: rule.init(params) for name, rule in rules.items()}
    updates = {}
    for seed in range(2):
        random = np.random.default_rng(seed)
        grads = jax.tree.map(lambda p, random=random: random.standard_normal(p.shape, np.float32), params)
        for name, rule in rules.items():
            updates[name], states[name] = jax.jit(rule.update)(grads, states[name], params)
    by_rule = {name: flatten(jax.device_get(tree)) for name, tree in updates.items()}
    for path, update in by_rule["both"].items():
        by = "muon" if path.endswith("/kernel") and "layers" in path else "adafactor"
        np.testing.assert_allclose(update, by_rule[by][path], rtol=1e-6, atol=1e-9, err_msg=path)
    sizes = {name: sum(leaf.size for leaf in jax.tree.leaves(state)) for name, state in states.items()}
    matrices = sum(
        array.size for path, array in flatten(params).items() if path.endswith("/kernel") and "layers" in path
    )
    assert matrices <= sizes["both"] < matrices + sizes["adafactor"] < sizes["muon"]


RATE = 0.05
DECAY = 0.1
CONSTANT = ScheduleConfig("factors", RATE, "constant", 0)
SHAPES = {  # two layers in a stack; the last parameter is frozen
    "encoder": {"layers": {"mlp": {"kernel": (2, 6, 5)}, "norm": {"scale": (2, 5)}}},
    "decoder": {"logits": {"kernel": (5, 7), "bias": (7,)}, "frozen": {"kernel": (4, 3)}},
}
Update = Callable[..., np.ndarray]


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def average(state: dict[str, Any], name: str, new: np.ndarray, decay: float) -> np.ndarray:
    state[name] = decay * state.get(name, 0.0) + (1 - decay) * new
    return state[name]


def decays(parameter: np.ndarray) -> bool:
    return parameter.ndim > 1  # here; norms' scales and biases have one axis in each layer


def of_adafactor(
    state: dict[str, Any],
    gradient: np.ndarray,
    parameter: np.ndarray,
    t: int,
    in_layers: bool,
    momentum: float = 0.0,
    min_dim_size_to_factor: int = 128,
) -> np.ndarray:
    """arXiv:1804.04235, algorithms 4 and 5; t is 1 at the first step. T5X's decay is not times the rate."""
    decay = 1 - t**-0.8
    squares = gradient**2 + 1e-30
    if squares.ndim == 2 and min(squares.shape) >= min_dim_size_to_factor:
        rows = average(state, "rows", squares.mean(1), decay)
        columns = average(state, "columns", squares.mean(0), decay)
        second = np.outer(rows, columns) / rows.mean()
    else:
        second = average(state, "second", squares, decay)
    update = gradient / np.sqrt(second)
    update /= max(1.0, rms(update) / 1.0)
    update *= max(rms(parameter), 1e-3) * -RATE
    return average(state, "momentum", update, momentum) - (parameter * DECAY if decays(parameter) else 0)


def adam(
    state: dict[str, Any], gradient: np.ndarray, t: int, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> np.ndarray:
    """arXiv:1412.6980, algorithm 1."""
    first = average(state, "first", gradient, beta1)
    second = average(state, "second", gradient**2, beta2)
    return first / (1 - beta1**t) / (np.sqrt(second / (1 - beta2**t)) + epsilon)


def decayed(update: np.ndarray, parameter: np.ndarray) -> np.ndarray:
    return -RATE * (update + (DECAY * parameter if decays(parameter) else 0))


def of_adamw(
    state: dict[str, Any], gradient: np.ndarray, parameter: np.ndarray, t: int, in_layers: bool, **betas: float
) -> np.ndarray:
    """arXiv:1711.05101, algorithm 2: the decay is beside the direction, and both are times the rate."""
    return decayed(adam(state, gradient, t, **betas), parameter)


def of_muon(
    state: dict[str, Any],
    gradient: np.ndarray,
    parameter: np.ndarray,
    t: int,
    in_layers: bool,
    muon_beta: float = 0.95,
    muon_rms: float = 0.2,
    **betas: float,
) -> np.ndarray:
    """Jordan et al.: Nesterov's momentum through the quintic iteration; embeddings, head and vectors by Adam."""
    if not (in_layers and gradient.ndim == 2):
        return decayed(adam(state, gradient, t, **betas), parameter)
    state["momentum"] = gradient + muon_beta * state.get("momentum", 0.0)
    x = gradient + muon_beta * state["momentum"]
    x /= np.linalg.norm(x)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return decayed(muon_rms * np.sqrt(max(x.shape)) * x, parameter)


OF_ADAM = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3}
FACTORED = {"min_dim_size_to_factor": 5}
# In float64; and the fields that are tried. A field that is not given is OptimizerConfig's, and the formula's, own.
FORMULAS: dict[str, tuple[Update, list[dict[str, float]]]] = {
    "adafactor": (of_adafactor, [FACTORED, {**FACTORED, "momentum": 0.6}]),
    "adamw": (of_adamw, [{}, OF_ADAM]),
    "muon": (of_muon, [{**OF_ADAM, "muon_beta": 0.9, "muon_rms": 0.3}]),
}
CASES = [(name, fields) for name, (_, tried) in FORMULAS.items() for fields in tried]


def test_every_rule_has_a_formula() -> None:
    assert set(FORMULAS) == set(RULES), "write the rule's update in numpy, and its fields, into FORMULAS"


@pytest.mark.core
@pytest.mark.parametrize(("name", "fields"), CASES, ids=[f"{name}-{len(fields)}" for name, fields in CASES])
def test_updates_are_the_formulas(name: str, fields: dict[str, float]) -> None:
    """Six steps: clipping, the rule layer by layer, decay of matrices alone, nothing for what is frozen."""
    formula, _ = FORMULAS[name]
    schedule = ScheduleConfig("factors", RATE, "constant", warmup_steps=0, planned_steps=4)
    exact: dict[str, Any] = {"muon_dtype": "float32"} if name == "muon" else {}
    config = optimizer_config(name, schedule, DECAY, 2.0, ("decoder/frozen",), **fields, **exact)
    rule = make_optimizer(config, 6)
    random = np.random.default_rng(0)
    params = jax.tree.map(lambda shape: random.standard_normal(shape, np.float32) * 0.3, SHAPES, is_leaf=_is_shape)
    state = rule.init(params)
    step = jax.jit(rule.update)
    states: dict[str, list[dict[str, Any]]] = {path: [{}, {}] for path in flatten(params)}
    for t in range(1, 7):
        scale = 0.02 if t == 3 else 1.0  # below the threshold of the gradient's norm, which is about 11 otherwise
        grads = jax.tree.map(lambda p, scale=scale: random.standard_normal(p.shape, np.float32) * scale, params)
        updates, state = step(grads, state, params)
        norm = np.sqrt(sum(np.sum(np.float64(leaf) ** 2) for leaf in jax.tree.leaves(grads)))
        for path, update in flatten(jax.device_get(updates)).items():
            in_layers = "/layers/" in path
            gradient_and_value = (
                np.float64(flatten(grads)[path]) * min(1.0, 2.0 / norm),
                np.float64(flatten(params)[path]),
            )
            layers = zip(*gradient_and_value, strict=True) if in_layers else [gradient_and_value]
            wanted = [
                formula(*of_layer, t, in_layers, **fields)
                for of_layer in zip(states[path], *zip(*layers, strict=True), strict=False)
            ]
            wanted = np.zeros_like(update) if "frozen" in path else np.reshape(wanted, update.shape)
            rtol = 2e-4 if name == "muon" else 2e-5
            np.testing.assert_allclose(update, wanted, rtol=rtol, atol=2e-6, err_msg=f"{path}, step {t}")
        params = jax.tree.map(np.add, params, jax.device_get(updates))


def _is_shape(node: object) -> bool:
    return isinstance(node, tuple)


def test_every_rule_has_transformations() -> None:
    assert set(TRANSFORMATIONS) == set(RULES)


@pytest.mark.slow
def test_a_new_rule_trains_with_its_class_and_its_transformations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sign of the gradient, which no rule of Limba has: parameters move by the rate, and shrink by the decay."""

    @dataclasses.dataclass(frozen=True)
    class Sign(OptimizerConfig):
        name: str = "sign"
        sharpness: float = 2.0

    def sign(config: Sign, rate: optax.GradientTransformation, _: object) -> list[optax.GradientTransformation]:
        signs = optax.stateless(lambda updates, _: jax.tree.map(lambda u: config.sharpness * jnp.sign(u), updates))
        return [per_layer(signs), *decay_and_rate(config, rate)]

    monkeypatch.setitem(RULES, "sign", Sign)
    monkeypatch.setitem(TRANSFORMATIONS, "sign", sign)
    schedule = ScheduleConfig("factors", 0.01, "constant", warmup_steps=0)
    config = optimizer_config("sign", schedule, weight_decay=0.5, frozen=("token_embedder",), sharpness=3.0)
    losses, state = tiny.train(SHALLOW, config, steps=1)
    before = flatten(jax.device_get(tiny.parameters(SHALLOW)))
    after = flatten(jax.device_get(state.params))
    assert np.isfinite(losses).all()
    np.testing.assert_array_equal(after["token_embedder/embedding"], before["token_embedder/embedding"])
    path = "encoder/layers/mlp/wo/kernel"
    moved = np.abs(after[path] - before[path] * (1 - 0.01 * 0.5)) / (0.01 * 3.0)
    np.testing.assert_allclose(moved, np.round(moved), atol=1e-4)
    assert set(np.unique(np.round(moved))) <= {0.0, 1.0} and moved.mean() > 0.5


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


@pytest.mark.core
def test_the_optimizer_of_a_run_is_that_of_its_fields() -> None:
    """With its number of steps, its average, and the loss's scale where activations are float16."""
    data = DataConfig("task", {"inputs": 8, "targets": 4}, batch_size=2)
    config = optimizer_config("adamw", ScheduleConfig("linear", 0.01, "constant", 2))
    evaluation = EvaluationConfig(average=0.9)
    for dtype in ("float32", "float16"):
        model = dataclasses.replace(SHALLOW, dtype=dtype)
        run = RunConfig(model, data, "out", 8, optimizer=config, evaluation=evaluation)
        ours = optimizer_of(run, Network(model))
        plain = make_optimizer(config, 8, dtype, average=0.9)
        params = {"head": {"kernel": np.ones((3, 2), np.float32)}}
        states = [rule.init(params) for rule in (ours, plain)]
        assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
        assert isinstance(states[0][-1], LossScale) == (dtype == "float16")
        assert isinstance(states[0][-1 - (dtype == "float16")], AverageState)


@pytest.mark.core
def test_a_state_has_one_entry_for_each_stack() -> None:
    """Its keys are a format on disk."""
    shapes = {
        "encoder": {"layers": {"mlp": {"kernel": (2, 4, 3)}}, "norm": {"scale": (4,)}},
        "head": {"kernel": (4, 3)},
    }
    params = jax.tree.map(lambda shape: np.ones(shape, np.float32), shapes, is_leaf=_is_shape)
    state = per_layer(optax.scale_by_rms()).init(params)
    keys = {stack: sorted(entry.nu) for stack, entry in state.items()}
    assert keys == {"encoder": ["encoder/layers/mlp/kernel"], "": ["encoder/norm/scale", "head/kernel"]}


def test_names_without_weight_decay_are_checked() -> None:
    """A pattern begins at a name's start: 'relpos_bias' means no parameter, and would be decayed all the same."""
    data = DataConfig("t", {"inputs": 8, "targets": 8}, 4)
    run = RunConfig(
        tiny.MODEL, data, "run", 10, optimizer=optimizer_config("adamw", weight_decay=0.1, undecayed=("relpos_bias",))
    )
    with pytest.raises(ConfigError, match="undecayed holds 'relpos_bias', and no parameter's name begins with it"):
        optimizer_of(run, Network(tiny.MODEL))
    named = dataclasses.replace(
        run, optimizer=optimizer_config("adamw", weight_decay=0.1, undecayed=(".*relpos_bias",))
    )
    optimizer_of(named, Network(tiny.MODEL))


@pytest.mark.core
def test_frozen_names_are_checked() -> None:
    params = {"encoder": {"kernel": np.ones(2)}, "decoder": {"kernel": np.ones(2)}}
    for frozen, words in ((("enc", "other"), "holds 'other', and no parameter"), ((".*",), "nothing would be trained")):
        with pytest.raises(ConfigError, match=words):
            make_optimizer(optimizer_config("adamw", frozen=frozen), 10).init(params)
    optimizer = make_optimizer(optimizer_config("adamw", CONSTANT, frozen=("enc",)), 10)
    updates, _ = optimizer.update(jax.tree.map(np.ones_like, params), optimizer.init(params), params)
    assert not np.any(updates["encoder"]["kernel"]) and np.all(updates["decoder"]["kernel"])
