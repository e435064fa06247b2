"""How many steps the host lets begin before those that have begun have ended."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from limba.training.dispatch_limit import MOST, DispatchLimit


def step_of(seconds: float) -> Callable[[jax.Array], jax.Array]:
    """Returns a compiled step of matrix products that takes at least about that long, even on idle cores."""

    def products(count: int) -> Callable[[jax.Array], jax.Array]:
        return jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda _, y: (y @ x) / 256, x))

    def timed(step: Callable[[jax.Array], jax.Array]) -> float:
        began = time.monotonic()
        jax.block_until_ready(step(jnp.ones((256, 256))))
        return time.monotonic() - began

    count = 1
    while True:
        step = products(count)
        timed(step)  # compiles it
        if (took := min(timed(step) for _ in range(2))) >= seconds:
            return step
        count = max(2 * count, int(1.2 * count * seconds / took))


@pytest.mark.parametrize(
    ("seconds", "fewest", "most"), [pytest.param(0.6, 1, 2, marks=pytest.mark.slow), (0.01, 3, MOST)]
)
@pytest.mark.slow
def test_a_second_s_steps_have_begun_and_not_ended(seconds: float, fewest: int, most: int) -> None:
    step = step_of(seconds)
    limit = DispatchLimit()
    x = jnp.ones((256, 256))
    counts = []
    begun = []
    for _ in range(6 if seconds > 0.1 else 3 * MOST):
        x = step(x)
        begun.append(x)
        limit.add(x)
        counts.append(sum(not loss.is_ready() for loss in begun))
    assert fewest <= max(counts) <= most
