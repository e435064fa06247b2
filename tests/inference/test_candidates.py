"""The likeliest ids and draws from them, beside a sorted vocabulary."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from limba.config import GenerationConfig
from limba.inference import candidates
from limba.inference import generate as infer
from limba.model import Network
from tests import tiny

VOCABULARY = 5 * candidates.BLOCK - 7  # the last block is not full


def few_values(rows: int, num_ids: int) -> np.ndarray:
    """Values of which many are equal, and some are minus infinity."""
    random = np.random.default_rng(num_ids)
    values = random.integers(0, 40, (rows, num_ids)).astype(np.float32)
    values[random.random(values.shape) < 0.3] = -np.inf
    values[0] = 3.0
    values[1] = -np.inf
    values[2, -1] = 90.0  # beside the padding
    return values


@pytest.mark.core
@pytest.mark.parametrize("num_ids", [6, candidates.BLOCK, VOCABULARY, 9 * candidates.BLOCK])
@pytest.mark.parametrize("num", [1, 3, 4, 6])
def test_the_best_are_those_of_the_sorted_ids(num_ids: int, num: int) -> None:
    values = few_values(7, num_ids)
    largest, ids = jax.jit(candidates.best, static_argnums=1)(values, num)
    for row, of_row in enumerate(values):
        order = sorted(range(num_ids), key=lambda number: (-of_row[number], number))[:num]
        assert ids[row].tolist() == order
        np.testing.assert_array_equal(largest[row], of_row[order])


@pytest.mark.core
def test_ids_of_equal_probability_stay_together() -> None:
    """Where the k-th or the last one within top_p has equals, all of them may come."""
    keys = jax.random.split(jax.random.key(0), 400)
    logits = jnp.broadcast_to(jnp.log(jnp.array([0.4, 0.2, 0.2, 0.1, 0.1])), (400, 5))
    cases: tuple[tuple[dict[str, Any], set[int]], ...] = (
        ({"top_k": 2}, {0, 1, 2}),
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.3}, {0}),
        ({"top_p": 0.45}, {0, 1, 2}),
        ({"top_p": 0.7}, {0, 1, 2}),
        ({"top_p": 0.85}, {0, 1, 2, 3, 4}),
        ({"top_p": 1.0}, {0, 1, 2, 3, 4}),
        ({"top_k": 3, "top_p": 0.45}, {0}),  # the likeliest has 0.5 of the remaining mass
    )
    for choices, wanted in cases:
        drawn = candidates.draw(logits, keys, GenerationConfig(max_tokens=1, sample=True, **choices))
        assert set(np.unique(drawn).tolist()) == wanted, choices


@pytest.mark.core
@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0, 60.0])
def test_the_least_within_top_p_is_a_sorted_sum_s(top_p: float, spread: float) -> None:
    """With a spread of 60 most probabilities are below float32's normal numbers, or 0."""
    logits = np.random.default_rng(1).normal(0, spread, (6, VOCABULARY)).astype(np.float32)
    logits[0, 1:] = -np.inf
    logits[1] = 2.0
    probabilities = np.asarray(jax.nn.softmax(logits, axis=-1))
    least = np.asarray(jax.jit(candidates.least_within, static_argnums=1)(probabilities, top_p))
    kept = probabilities >= least
    for row, of_row in zip(kept, probabilities.astype(np.float64), strict=True):
        inside = of_row[row].sum()
        last = of_row[row].min()
        assert inside >= top_p - 1e-5
        assert inside - (of_row == last)[row].sum() * last < top_p + 1e-5  # without its least ones it is too little
        assert last > of_row[~row].max(initial=-1.0)


@pytest.mark.parametrize(
    ("choices", "ranks"),
    [({"top_k": 20}, True), ({"top_p": 0.9}, False), ({"top_k": 20, "top_p": 0.9}, True), ({"num_beams": 3}, True)],
)
def test_no_program_sorts_a_vocabulary(choices: dict[str, Any], ranks: bool) -> None:
    """On a CPU that takes longer than the decode step."""
    model = Network(tiny.model(vocab_size=5120))
    params = jax.eval_shape(model.init, jax.random.key(0))
    plan = infer.Plan(model, GenerationConfig(max_tokens=3, sample="num_beams" not in choices, **choices))
    free = jnp.zeros(model.config.vocab_size, bool)
    inputs = infer.ProgramInputs(jnp.ones((2, 7), jnp.int32), free, jax.random.split(jax.random.key(0), 2))
    lengths = list(sorted_lengths(infer.generate.trace(plan, params, inputs).jaxpr.jaxpr))
    assert bool(lengths) == ranks
    assert max(lengths, default=0) < model.config.vocab_size


def sorted_lengths(jaxpr: Any) -> Iterator[int]:
    """Yields the lengths that are sorted, or of which the largest are taken."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("sort", "top_k"):
            yield equation.invars[0].aval.shape[-1]
        for inner in jaxprs_in_params(equation.params):
            yield from sorted_lengths(inner)
