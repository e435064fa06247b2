"""Each optimizer's steps against its formula in float64: decay, clipping, momentum and frozen parameters included."""

import dataclasses
from collections.abc import Callable

import jax
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
from limba.model import Network
from limba.training.optimizer import AverageState, LossScale, make_optimizer, optimizer_of
from limba.training.rules import per_layer, scale_by_parameter_rms
from tests import tiny

pytestmark = pytest.mark.core
RATE, DECAY, CLIP = 0.05, 0.03, 2.0
CONSTANT = ScheduleConfig("factors", RATE, "constant", 0)
SHAPES = {"head": {"kernel": (6, 5)}, "norm": {"scale": (5,)}, "still": {"kernel": (4, 3)}}
SMALL = tiny.model(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=1)
Rule = Callable[[np.ndarray, np.ndarray, dict, int], np.ndarray]


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def adam(gradient: np.ndarray, parameter: np.ndarray, kept: dict, step: int) -> np.ndarray:
    """arXiv:1412.6980, algorithm 1, with the values of OptimizerConfig."""
    kept["m"] = 0.9 * kept.get("m", 0.0) + 0.1 * gradient
    kept["v"] = 0.999 * kept.get("v", 0.0) + 0.001 * gradient**2
    return kept["m"] / (1 - 0.9**step) / (np.sqrt(kept["v"] / (1 - 0.999**step)) + 1e-8)


def adamw(gradient: np.ndarray, parameter: np.ndarray, kept: dict, step: int) -> np.ndarray:
    """arXiv:1711.05101, algorithm 2: the decay is beside the direction, and both are times the rate."""
    return -RATE * (adam(gradient, parameter, kept, step) + DECAY * kept["decayed"] * parameter)


def adafactor(gradient: np.ndarray, parameter: np.ndarray, kept: dict, step: int, momentum: float = 0.0) -> np.ndarray:
    """arXiv:1804.04235, algorithms 4 and 5, factored from 4 rows and columns on; T5X's decay is not times the rate."""
    share, squares = 1 - step**-0.8, gradient**2 + 1e-30
    if gradient.ndim == 2 and min(gradient.shape) >= 4:
        rows = kept["rows"] = share * kept.get("rows", 0.0) + (1 - share) * squares.mean(1)
        columns = kept["columns"] = share * kept.get("columns", 0.0) + (1 - share) * squares.mean(0)
        second = np.outer(rows, columns) / rows.mean()
    else:
        second = kept["v"] = share * kept.get("v", 0.0) + (1 - share) * squares
    direction = gradient / np.sqrt(second)
    update = -RATE * direction / max(1.0, rms(direction)) * max(rms(parameter), 1e-3)
    kept["m"] = momentum * kept.get("m", 0.0) + (1 - momentum) * update
    return kept["m"] - DECAY * kept["decayed"] * parameter


def adafactor_with_momentum(gradient: np.ndarray, parameter: np.ndarray, kept: dict, step: int) -> np.ndarray:
    return adafactor(gradient, parameter, kept, step, momentum=0.7)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        (optimizer_config("adamw"), adamw),
        (optimizer_config("adafactor", min_dim_size_to_factor=4), adafactor),
        (optimizer_config("adafactor", min_dim_size_to_factor=4, momentum=0.7), adafactor_with_momentum),
    ],
    ids=["adamw", "adafactor", "adafactor with momentum"],
)
def test_three_steps_are_those_of_the_formula(config: OptimizerConfig, rule: Rule) -> None:
    config = dataclasses.replace(
        config, schedule=CONSTANT, weight_decay=DECAY, clip_global_norm=CLIP, frozen=("still",)
    )
    random, optimizer = np.random.default_rng(0), make_optimizer(config, 10)
    params = jax.tree.map(lambda shape: random.standard_normal(shape, np.float32), SHAPES, is_leaf=_is_shape)
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    wanted = jax.tree.map(np.float64, params)
    kept = {"head": {"decayed": 1.0}, "norm": {"decayed": 0.0}}  # the scales of norms do not decay
    for step in range(1, 4):
        grads = jax.tree.map(lambda each: 3 * random.standard_normal(each.shape, np.float32), params)
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        size = np.sqrt(sum(np.sum(np.float64(each) ** 2) for each in jax.tree.leaves(grads)))
        assert size > CLIP
        for name, memory in kept.items():
            ((leaf, gradient),) = grads[name].items()
            clipped = np.float64(gradient) * CLIP / size
            wanted[name][leaf] = wanted[name][leaf] + rule(clipped, wanted[name][leaf], memory, step)
    jax.tree.map(lambda found, each: np.testing.assert_allclose(found, each, rtol=2e-5, atol=2e-6), params, wanted)


def _is_shape(node: object) -> bool:
    return isinstance(node, tuple)


def test_the_optimizer_of_a_run_is_that_of_its_fields() -> None:
    """With its number of steps, its average, and the loss's scale where activations are float16."""
    data = DataConfig("task", {"inputs": 8, "targets": 4}, batch_size=2)
    config = optimizer_config("adamw", ScheduleConfig("linear", 0.01, "constant", 2))
    evaluation = EvaluationConfig(average=0.9)
    for dtype in ("float32", "float16"):
        model = dataclasses.replace(SMALL, dtype=dtype)
        run = RunConfig(model, data, "out", 8, optimizer=config, evaluation=evaluation)
        ours, plain = optimizer_of(run, Network(model)), make_optimizer(config, 8, dtype, average=0.9)
        params = {"head": {"kernel": np.ones((3, 2), np.float32)}}
        states = [each.init(params) for each in (ours, plain)]
        assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])
        assert isinstance(states[0][-1], LossScale) == (dtype == "float16")
        assert isinstance(states[0][-1 - (dtype == "float16")], AverageState)


def test_a_state_has_one_entry_for_each_stack() -> None:
    """Its keys are a format on disk."""
    shapes = {
        "encoder": {"layers": {"mlp": {"kernel": (2, 4, 3)}}, "norm": {"scale": (4,)}},
        "head": {"kernel": (4, 3)},
    }
    params = jax.tree.map(lambda shape: np.ones(shape, np.float32), shapes, is_leaf=_is_shape)
    state = per_layer(optax.scale_by_rms()).init(params)
    found = {stack: sorted(each.nu) for stack, each in state.items()}
    assert found == {"encoder": ["encoder/layers/mlp/kernel"], "": ["encoder/norm/scale", "head/kernel"]}


def test_frozen_names_are_checked() -> None:
    params = {"encoder": {"kernel": np.ones(2)}, "decoder": {"kernel": np.ones(2)}}
    for frozen, words in ((("enc", "other"), "holds 'other', and no parameter"), ((".*",), "nothing would be trained")):
        with pytest.raises(ConfigError, match=words):
            make_optimizer(optimizer_config("adamw", frozen=frozen), 10).init(params)
    optimizer = make_optimizer(optimizer_config("adamw", CONSTANT, frozen=("enc",)), 10)
    updates, _ = optimizer.update(jax.tree.map(np.ones_like, params), optimizer.init(params), params)
    assert not np.any(updates["encoder"]["kernel"]) and np.all(updates["decoder"]["kernel"])


def test_an_update_by_the_parameters_size_has_a_least_one() -> None:
    rule = scale_by_parameter_rms(0.5)
    params = {"large": np.array([3.0, -4.0]), "small": np.array([0.1, 0.1])}
    updates, state = rule.update(jax.tree.map(np.ones_like, params), rule.init(params), params)
    assert state == optax.EmptyState()
    np.testing.assert_allclose(updates["large"], np.full(2, np.sqrt(12.5)), rtol=1e-6)
    np.testing.assert_allclose(updates["small"], np.full(2, 0.5), rtol=1e-6)
