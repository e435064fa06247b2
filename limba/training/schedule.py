"""The learning rate of each step: T5X's factors; optax's linear, cosine and warmup-stable-decay; a branch's decay."""

import jax
import jax.numpy as jnp
import optax

from limba.config import ScheduleConfig
from limba.config.schedule import LEAST_RATE


def make_schedule(config: ScheduleConfig, train_steps: int | None) -> optax.Schedule:
    """Returns a function from a step's number, 0 for the first one, to its learning rate.

    `factors` multiplies T5X's named factors. `linear`, `cosine` and `warmup_stable_decay` are optax's. The first two
    end at `decay_steps` (None: the run's last step); the third decays for `decay_steps` steps (None: a tenth of the
    run).

    In a branch all this holds up to `branch_step`, with `planned_steps` for `train_steps`; from there on the rate of
    that step is multiplied by a decay that reaches 0 after `branch_steps` steps. 1 - sqrt learned more than a linear
    decay of the same length in Haegele et al. (arXiv:2405.18392, section 4).

    >>> schedule = make_schedule(ScheduleConfig("linear", base_learning_rate=1.0, warmup_steps=10), train_steps=110)
    >>> [round(float(schedule(step)), 2) for step in (0, 5, 10, 60, 110)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    rate = _unbranched(config, config.planned_steps or train_steps or 2**31 - 1)  # without an end no factor uses it
    # 1 - n x (1 / n), as compilers divide, may be below 0.
    before = rate if config.name == "factors" else lambda count: jnp.maximum(rate(count), 0.0)
    start = config.branch_step
    length = config.branch_steps
    shape = config.branch_shape
    if start is None or length is None or shape == "constant":
        return before

    def branched(count: jax.typing.ArrayLike) -> jax.Array:
        part = jnp.clip((jnp.asarray(count) - start) / length, 0.0, 1.0)
        left = {"linear": 1 - part, "1-sqrt": 1 - jnp.sqrt(part), "cosine": 0.5 * (1 + jnp.cos(jnp.pi * part))}[shape]
        return jnp.where(jnp.asarray(count) < start, before(count), before(start) * left)

    return branched


def _unbranched(config: ScheduleConfig, train_steps: int) -> optax.Schedule:
    config = config.in_steps(train_steps)
    peak = float(config.base_learning_rate)
    final = config.final_learning_rate
    warmup = int(config.warmup_steps)
    decay = int(config.decay_steps or 0)
    line = optax.linear_schedule
    if config.name == "factors":
        return lambda count: _factors(config, jnp.asarray(count, jnp.float32))
    if config.name == "warmup_stable_decay":
        pieces = [line(0.0, peak, max(1, warmup)), optax.constant_schedule(peak), line(peak, final, decay)]
        return optax.join_schedules(pieces, [warmup, max(warmup, train_steps - decay)])
    end = decay or train_steps
    if config.name == "cosine":
        return optax.warmup_cosine_decay_schedule(0.0, peak, warmup, max(end, warmup + 1), final)
    pieces = [line(0.0, peak, max(1, warmup)), line(peak, final, max(1, end - warmup))]
    return optax.join_schedules(pieces, [warmup])


def _factors(config: ScheduleConfig, step: jax.Array) -> jax.Array:
    step = jnp.maximum(0.0, step - config.step_offset)
    base = float(config.base_learning_rate)
    warmup = float(config.warmup_steps)
    after_warmup = jnp.maximum(step, max(warmup, 1.0))
    values = {
        "constant": lambda: base,
        "linear_warmup": lambda: jnp.minimum(1.0, step / max(warmup, 1.0)),
        "linear_decay": lambda: (
            base * jnp.minimum(step / max(warmup, 1.0), 1.0 + config.decay_factor * (warmup - step))
        ),
        "rsqrt_decay": lambda: jax.lax.rsqrt(after_warmup),
        "rsqrt_normalized_decay": lambda: jnp.sqrt(max(warmup, 1.0)) * jax.lax.rsqrt(after_warmup),
        "decay_every": lambda: config.decay_factor ** (step // config.steps_per_decay),
        "cosine_decay": lambda: (
            0.5 * (1.0 + jnp.cos(jnp.pi * (jnp.maximum(0.0, step - warmup) / config.steps_per_cycle % 1.0)))
        ),
    }
    rate = jnp.float32(1.0)
    for name in config.factor_names:
        rate = rate * values[name]()
    return jnp.maximum(rate, config.final_learning_rate or LEAST_RATE).astype(jnp.float32)
