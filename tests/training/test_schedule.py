"""T5X's factors of the learning rate against their formulas in numpy, alone and multiplied."""

import numpy as np
import pytest

from limba.config import ScheduleConfig
from limba.training.schedule import make_schedule

pytestmark = pytest.mark.core
WARMUP, DECAY, EVERY, CYCLE, BASE = 6, 0.04, 4, 9, 0.3
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


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("factors", [*FACTORS, "constant * linear_warmup * cosine_decay"])
def test_rates_of_thirty_steps_are_those_of_the_formula(factors: str, offset: int) -> None:
    least = 1e-3
    config = ScheduleConfig(
        "factors", BASE, factors, WARMUP, decay_factor=DECAY, steps_per_decay=EVERY, steps_per_cycle=CYCLE,
        step_offset=offset, min_learning_rate=least,
    )  # fmt: skip
    steps = np.arange(30)
    moved = np.maximum(0.0, steps - offset)
    wanted = np.maximum(np.prod([FACTORS[name](moved) for name in factors.split(" * ")], axis=0), least)
    found = make_schedule(config, 100)(steps)
    np.testing.assert_allclose(found, wanted, rtol=2e-6)
    if factors == "decay_every":
        assert (wanted == least).any()
