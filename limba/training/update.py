"""The update of a run: from this process's rows of a batch to the next state, by one program on all devices."""

from __future__ import annotations

from collections.abc import Callable

import jax
import optax

from limba.config import RunConfig
from limba.model import Batch, Network
from limba.sharding.agreement import compiled_together
from limba.training.loop import Update
from limba.training.row_reader import ShardRows
from limba.training.schedule import make_schedule
from limba.training.state import TrainState
from limba.training.step import Gradient, Limits, StepMetrics, jit_train_step


def update_of_run(
    config: RunConfig,
    train_steps: int | None,
    model: Network,
    optimizer: optax.GradientTransformation,
    shardings: TrainState,
    place_batch: Callable[[ShardRows], Batch],
    ready: Callable[[], None],
) -> Update:
    """Returns the update, which compiles the step when it is first called, in all processes together.

    `train_steps` is the step that the schedule of the learning rate goes up to, as far as it is known. `shardings` are
    the state's. `place_batch` makes the global batch of this process's rows. `ready` is called when the step is
    compiled and has not run yet.
    """
    gradient = Gradient(model, config.loss, config.num_microbatches, config.gradient_reduce_dtype)
    schedule = make_schedule(config.optimizer.schedule, train_steps)
    drops_spikes = config.guard.action == "skip"
    step = jit_train_step(gradient, optimizer, schedule, shardings, drops_spikes)
    step = compiled_together(step, "the training step", config.step_timeout_seconds, ready)
    key = jax.random.key(config.random_seed + 1, impl=config.random_bits)  # of dropout; each step folds its number in

    def update(state: TrainState, rows: ShardRows, limits: Limits) -> tuple[TrainState, StepMetrics]:
        return step(state, place_batch(rows), key, *limits)

    return update
