"""The learning rate of each step against formulas in numpy: T5X's factors, the other shapes, and branches."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from limba.config import ScheduleConfig
from limba.config.schedule import SCHEDULE_FACTORS
from limba.training.schedule import make_schedule

pytestmark = pytest.mark.core
WARMUP = 6
DECAY = 0.04
EVERY = 4
CYCLE = 9
BASE = 0.3
# t5x/utils.py, create_learning_rate_scheduler, as formulas of the step.
FACTORS = {
    "constant": lambda step: BASE + 0 * step,
    "linear_warmup": lambda step: np.minimum(1.0, step / WARMUP),
    "linear_decay": lambda step: BASE * np.minimum(step / WARMUP, 1.0 + DECAY * (WARMUP - step)),
    "rsqrt_decay": lambda step: 1 / np.sqrt(np.maximum(step, WARMUP)),
    "rsqrt_normalized_decay": lambda step: np.sqrt(WARMUP) / np.sqrt(np.maximum(step, WARMUP)),
    "decay_every": lambda step: DECAY ** (step // EVERY),
    "cosine_decay": lambda step: (1 + np.cos(np.pi * (np.maximum(0.0, step - WARMUP) / CYCLE % 1.0))) / 2,
}


def rates(config: ScheduleConfig, train_steps: int | None, steps: np.ndarray) -> np.ndarray:
    return np.asarray(jax.vmap(make_schedule(config, train_steps))(steps))


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("factors", [*SCHEDULE_FACTORS, "constant * linear_warmup * cosine_decay"])
def test_rates_of_thirty_steps_are_those_of_the_formula(factors: str, offset: int) -> None:
    least = 1e-3
    config = ScheduleConfig(
        "factors", BASE, factors, WARMUP, decay_factor=DECAY, steps_per_decay=EVERY, steps_per_cycle=CYCLE,
        step_offset=offset, final_learning_rate=least,
    )  # fmt: skip
    steps = np.arange(30)
    moved = np.maximum(0.0, steps - offset)
    wanted = np.maximum(np.prod([FACTORS[name](moved) for name in factors.split(" * ")], axis=0), least)
    rates_now = make_schedule(config, 100)(steps)
    np.testing.assert_allclose(rates_now, wanted, rtol=2e-6)
    if factors == "decay_every":
        assert (wanted == least).any()


@pytest.mark.parametrize("warmup", [0, 1])
def test_factors_without_a_warm_up_begin_with_the_first_step(warmup: int) -> None:
    steps = np.arange(4)
    for factor, wanted in (
        ("linear_warmup", np.minimum(1.0, steps)),
        ("rsqrt_decay", 1 / np.sqrt(np.maximum(1, steps))),
        ("rsqrt_normalized_decay", 1 / np.sqrt(np.maximum(1, steps))),
        ("linear_decay", np.minimum(steps, 1 + DECAY * (warmup - steps))),
    ):
        rates_now = rates(ScheduleConfig("factors", 1.0, factor, warmup, decay_factor=DECAY), None, steps)
        np.testing.assert_allclose(rates_now, np.maximum(wanted, 1e-8), rtol=2e-6, err_msg=factor)


PEAK = 0.3
FINAL = 0.06
RUN = 24  # numbers of steps are whole, and the last one is decay_steps' where it is given


def shape(name: str, step: float, warmup: int, first: int, last: int) -> float:
    """The rate that rises to the peak at `warmup`, and falls from `first` to `last`."""
    if step < warmup:
        return PEAK * step / warmup
    part = min(max(step - first, 0) / (last - first), 1.0)
    return FINAL + (PEAK - FINAL) * ((1 + np.cos(np.pi * part)) / 2 if name == "cosine" else 1 - part)


@pytest.mark.parametrize("warmup", [0, 1, 5])
@pytest.mark.parametrize(
    ("name", "decay"),
    [*itertools.product(("linear", "cosine"), (None, 6, 17)), *itertools.product(["warmup_stable_decay"], (None, 7))],
)
def test_other_shapes_rise_and_fall_between_their_steps(name: str, decay: int | None, warmup: int) -> None:
    config = ScheduleConfig(name, PEAK, "constant", warmup, decay, FINAL)
    last = RUN if name == "warmup_stable_decay" else decay or RUN
    first = RUN - (decay or 2) if name == "warmup_stable_decay" else warmup
    steps = np.arange(RUN + 6)
    wanted = [shape(name, step, warmup, first, last) for step in steps.tolist()]
    np.testing.assert_allclose(rates(config, RUN, steps), wanted, rtol=3e-6, atol=1e-8)
    planned = dataclasses.replace(config, planned_steps=RUN)  # of the run, whatever this one's number of steps
    np.testing.assert_allclose(rates(planned, 2 * RUN, steps), wanted, rtol=3e-6, atol=1e-8)


def test_a_fall_in_one_step_or_after_the_warm_up_is_still_a_fall() -> None:
    for name in ("linear", "cosine"):
        rates_now = rates(ScheduleConfig(name, PEAK, "constant", 5, 6, FINAL), RUN, np.array([4, 5, 6, 7]))
        np.testing.assert_allclose(rates_now, [PEAK * 4 / 5, PEAK, FINAL, FINAL], rtol=3e-6)
        rates_now = rates(ScheduleConfig(name, PEAK, "constant", 5, 3, FINAL), RUN, np.array([4, 5, 6, 7]))
        np.testing.assert_allclose(rates_now, [PEAK * 4 / 5, PEAK, FINAL, FINAL], rtol=3e-6, err_msg=name)
    rates_now = rates(
        ScheduleConfig("warmup_stable_decay", PEAK, "constant", 20, 10, FINAL), RUN, np.array([19, 20, 25, 30])
    )
    np.testing.assert_allclose(rates_now, [PEAK * 19 / 20, PEAK, (PEAK + FINAL) / 2, FINAL], rtol=3e-6)


@pytest.mark.parametrize("kind", ["linear", "1-sqrt", "cosine"])
def test_a_branch_falls_to_zero_from_the_rate_where_it_begins(kind: str) -> None:
    start = 9
    length = 8
    steps = np.arange(22)
    config = ScheduleConfig("linear", PEAK, "constant", 3, None, FINAL, planned_steps=RUN)
    branch = dataclasses.replace(config, branch_step=start, branch_steps=length, branch_shape=kind)
    part = np.clip((steps - start) / length, 0, 1)
    left = {"linear": 1 - part, "1-sqrt": 1 - np.sqrt(part), "cosine": (1 + np.cos(np.pi * part)) / 2}[kind]
    before = [shape("linear", min(step, start), 3, 3, RUN) for step in steps.tolist()]
    np.testing.assert_allclose(rates(branch, start + length, steps), before * left, rtol=1e-5, atol=1e-8)
    goes_on = dataclasses.replace(branch, branch_shape="constant")
    np.testing.assert_array_equal(rates(goes_on, start + length, steps), rates(config, RUN, steps))


@pytest.mark.parametrize("name", ["factors", "linear", "cosine", "warmup_stable_decay"])
def test_rates_are_never_below_zero(name: str) -> None:
    """As after the planned end of a run whose rows were estimated; 1 - 63 x (1 / 63), as compilers divide, is below."""
    config = ScheduleConfig(name, 1e-3, "constant * linear_decay", 3, decay_factor=1 / 60)
    rates_now = np.asarray(jax.jit(jax.vmap(make_schedule(config, 63)))(np.arange(60, 80)))
    assert (rates_now >= 0).all() and rates_now[-1] == pytest.approx(0, abs=2e-8)


def test_the_published_schedule_is_flat_then_falls_with_the_root_of_the_steps() -> None:
    rates_now = rates(ScheduleConfig(), 2_000_000, np.array([0, 9_999, 1_000_000]))
    np.testing.assert_allclose(rates_now, [0.01, 0.01, 0.001], rtol=1e-6)


@pytest.mark.parametrize(("steps", "rate"), [(20, 0.14), (400, 0.11), (10_000, 0.022), (1_000_000, 0.0022)])
def test_the_rate_auto_falls_with_the_root_of_the_steps(steps: int, rate: float) -> None:
    config = ScheduleConfig("warmup_stable_decay", "auto", warmup_steps=0.1, decay_steps=0.5)
    assert config.in_steps(steps).base_learning_rate == pytest.approx(rate)
    assert rates(config, steps, np.arange(steps // 10, steps // 2)) == pytest.approx(rate, rel=1e-6)
    branch = dataclasses.replace(config, branch_step=steps // 4, branch_steps=5, planned_steps=steps)
    assert rates(branch, steps // 4 + 5, np.array([steps // 8])) == pytest.approx(rate, rel=1e-6)
