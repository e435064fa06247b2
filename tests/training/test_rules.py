"""Each optimizer's steps against its formula in float64: decay, clipping, momentum and frozen parameters included."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np
import optax
import pytest

from limba.config import OptimizerConfig, ScheduleConfig
from limba.training.optimizer import make_optimizer

pytestmark = pytest.mark.core
RATE, DECAY, CLIP = 0.05, 0.03, 2.0
CONSTANT = ScheduleConfig("factors", RATE, "constant", 0)
SHAPES = {"head": {"kernel": (6, 5)}, "norm": {"scale": (5,)}, "still": {"kernel": (4, 3)}}
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


def adamw_rms(gradient: np.ndarray, parameter: np.ndarray, kept: dict, step: int) -> np.ndarray:
    direction = adam(gradient, parameter, kept, step) * max(rms(parameter), 1e-3)
    return -RATE * (direction + DECAY * kept["decayed"] * parameter)


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
        (OptimizerConfig("adamw"), adamw),
        (OptimizerConfig("adamw_rms"), adamw_rms),
        (OptimizerConfig("adafactor", min_dim_size_to_factor=4), adafactor),
        (OptimizerConfig("adafactor", min_dim_size_to_factor=4, momentum=0.7), adafactor_with_momentum),
    ],
    ids=["adamw", "adamw_rms", "adafactor", "adafactor with momentum"],
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
