"""The guard: finds steps that are not finite or spike, and keeps their batches out of the run.

Batch n is always the batch of step n. A batch that is dropped or passed over leaves its step's number unused: the
parameters and the optimizer state stay as they are, and only the number advances. Passing over suspect batches is the
remedy of PaLM (Chowdhery et al. 2022, arXiv:2204.02311, section 5.1).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from limba.config import GuardConfig, LossConfig, NonFiniteError, RunConfig
from limba.formats.limba_checkpoint import GuardNotes, Notes
from limba.model import Batch, Network
from limba.model.trees import Parameters
from limba.sharding.mesh import num_batch_groups
from limba.training.ledger import Entry, Ledger, RowEntry
from limba.training.losses import at_predicted, cross_entropy
from limba.training.metrics.figures import RecentSteps
from limba.training.reading import RowReader, ShardRows
from limba.training.state import TrainState, gather_parameters
from limba.training.step import Limits, microbatches

LAG = 8  # a step's limits come from steps at least this many before it, so that devices need not wait for the host
MIN_STEPS = 20  # good steps before anything but a number that is not finite is a spike
MAX_IN_A_ROW = 20  # spiking steps in a row: then it is no spike, but a new level
MAX_REWINDS = 3  # to one checkpoint
# The least deviations that count: those of a window can be near zero. Of the loss as a share of its median; of the
# log gradient norm, which in ordinary runs rises by a factor of 3 within a window.
LEAST_OF_LOSS, LEAST_OF_LOG_NORM = 0.02, 0.2
LEAST_OF_ROWS = 0.05  # as LEAST_OF_LOSS, of single rows of a batch
Place = Callable[[ShardRows], Batch]  # from one process's rows of a batch to the global batch
CHECKED = ("loss", "gradient_norm", "update_norm")


def upper_limit(values: Sequence[float], threshold: float, least: float) -> float:
    """Returns median + threshold x max(1.4826 x MAD, least); MAD is the median absolute deviation from the median.

    A value above it has a robust z-score above `threshold` (Iglewicz & Hoaglin 1993, "How to Detect and Handle
    Outliers"; Rousseeuw & Croux 1993). Spikes hardly change a median; a mean and a standard deviation they would.
    For values of a normal distribution 1.4826 x MAD is the standard deviation.

    >>> round(upper_limit([1.0, 2.0, 3.0, 4.0, 500.0], threshold=2.0, least=0.0), 4)
    5.9652
    """
    median = float(np.median(values))
    deviation = 1.4826 * float(np.median(np.abs(np.asarray(values) - median)))
    return median + threshold * max(deviation, least)


class Window:
    """The loss and the log gradient norm of recent good steps, and the limits that they give for a later step.

    The limits change every LAG steps. They depend on the good steps up to the last change but one, and on nothing
    else, so a resumed run has the same ones. Before there are MIN_STEPS of them the limits are infinite.
    """

    def __init__(self, config: GuardConfig):
        self._config = config
        self._steps: deque[tuple[int, float, float]] = deque(maxlen=config.window + 2 * LAG)
        self._last: tuple[int, np.ndarray] = (-1, np.zeros(2))  # a bound on the known steps, and its limits

    def add(self, step: int, loss: float, gradient_norm: float) -> None:
        """Adds a good step."""
        self._steps.append((step, loss, math.log(max(gradient_norm, 1e-30))))

    def limits(self, step: int) -> np.ndarray:
        """Returns the largest ordinary loss and gradient norm of a step, float32 [2]."""
        if self._last[0] != (bound := _bound(step)):
            self._last = bound, self._computed(step)
        return self._last[1]

    def _computed(self, step: int) -> np.ndarray:
        threshold, known = self._config.threshold, self._known(step)
        if len(known) < min(MIN_STEPS, self._config.window):
            return np.full(2, np.inf, np.float32)
        losses, norms = np.transpose(known)
        loss = upper_limit(losses, threshold, LEAST_OF_LOSS * abs(float(np.median(losses))))
        norm = upper_limit(norms, threshold, LEAST_OF_LOG_NORM)
        return np.array([loss, math.exp(min(norm, 80.0))], np.float32)  # exp(80) is finite in float32

    def typical_loss(self, step: int) -> float:
        """Returns the median loss of the steps that the limits come from; infinite if there is none."""
        known = self._known(step)
        return float(np.median([loss for loss, _ in known])) if known else math.inf

    def _known(self, step: int) -> list[list[float]]:
        return [values for number, *values in self._steps if number <= _bound(step)][-self._config.window :]

    def notes(self) -> list[list[float]]:
        """Returns the steps as JSON can hold them; `restore` takes them."""
        return [list(values) for values in self._steps]

    def restore(self, notes: Sequence[Sequence[float]]) -> None:
        self._steps.clear()
        self._last = (-1, np.zeros(2))
        self._steps.extend((int(step), loss, norm) for step, loss, norm in notes)


def _bound(step: int) -> int:
    """Returns the last step that a step's limits may come from.

    >>> [_bound(step) for step in (15, 16, 23, 24)]
    [0, 8, 8, 16]
    """
    return (step // LAG - 1) * LAG


class Spike(NamedTuple):
    """A step that is not finite or above its limits."""

    step: int
    rows: ShardRows  # this process's rows of its batch
    values: Mapping[str, float]  # loss, gradient_norm, update_norm
    reason: str  # begins with "its"
    typical_loss: float = math.inf  # the median of the good steps before it
    number: int = 1  # of the spikes in a row

    @classmethod
    def of(cls, step: int, rows: ShardRows, values: Mapping[str, float], limits: np.ndarray) -> Spike | None:
        """Returns the spike, or None for a good step; `jit_train_step` drops by the same comparison."""
        broken = [name for name in CHECKED if not math.isfinite(values[name])]
        over = [(name, limit) for name, limit in zip(CHECKED, limits.tolist(), strict=False) if values[name] > limit]
        if broken:
            reason = f"its {broken[0].replace('_', ' ')} is {values[broken[0]]}"
        elif over:
            name, limit = over[0]
            reason = f"its {name.replace('_', ' ')} {values[name]:.4g} is above {limit:.4g}, the limit"
            reason += " that the good steps before it give"
        else:
            return None
        return cls(step, rows, values, reason)


class Guard:
    """Judges the steps of one run, lagging behind the devices, and says and writes what it does about a spike."""

    def __init__(self, config: RunConfig, model: Network, ledger: Ledger, recent: RecentSteps, place: Place):
        self.action, self.ledger, self._config = config.guard.action, ledger, config
        self._recent, self._metrics, self._place = recent, recent.metrics, place
        self._model, self._window = model, Window(config.guard)
        self._pending: deque[tuple[int, ShardRows, Mapping[str, Array], np.ndarray | None]] = deque()
        self._in_a_row, self._rewinds, self._data_start = 0, dict[int | None, int](), 0
        self._row_losses: Callable[[Parameters, Batch], Array] | None = None

    def begin(self, start: int, notes: Notes | None) -> None:
        """Starts with what a checkpoint at step `start` has kept; None: the data are read from their beginning."""
        self._pending.clear()
        kept: GuardNotes = {"data_start": start} if notes is None else notes.get("guard", {})
        self._data_start = kept.get("data_start", 0)
        self._window.restore(kept.get("window", ()))

    def notes(self) -> Notes:
        """Returns what a checkpoint keeps for `begin`; all steps so far must have been judged."""
        self.ledger.write()
        return {"guard": {"data_start": self._data_start, "window": self._window.notes()}}

    def before(self, step: int, state: TrainState) -> Limits | None:
        """Returns the last arguments of a step's `train_step`: with 'skip' its limits; None: its batch is passed over.

        With 'skip' the steps up to LAG before it are judged first, and those that the devices have dropped written
        down; `state` is the one before the step.
        """
        if step in self.ledger:
            return None
        if self.action != "skip":
            return ()
        self._write_dropped(step - LAG, state)
        return (self._window.limits(step),)

    def after(self, step: int, rows: ShardRows, metrics: Mapping[str, Array], limits: Limits) -> None:
        """Takes a step; its metrics may still be computing on the devices."""
        if self.action == "off":
            return
        if self.action == "skip":  # these are fetched at every step, LAG steps later
            for name in CHECKED:
                metrics[name].copy_to_host_async()
        self._pending.append((step, rows, {name: metrics[name] for name in CHECKED}, limits[0] if limits else None))

    def judge(self, upto: int, state: TrainState) -> Spike | None:
        """Judges the steps up to `upto`, the step of `state`; returns a spike for which the run must rewind."""
        if self.action == "skip":
            self._write_dropped(upto, state)
        elif spikes := self.spikes(upto):
            if self.action == "rewind":
                return spikes[0]
            self.warn(spikes)
        return None

    def rewind(self, spike: Spike, reader: RowReader) -> TrainState:
        """Returns the state of the last good checkpoint, where `reader` is then too; later ones are set aside."""
        state, notes = reader.go_back(self.target(spike, reader.checkpoints.steps()))
        self.begin(int(state.step), notes)
        self._write_rewound(spike, state)
        return state

    def spikes(self, upto: int) -> list[Spike]:
        """Waits for the devices, and returns the spikes among the steps up to `upto` that have not been judged."""
        spikes = []
        ready = []
        while self._pending and self._pending[0][0] <= upto:
            ready.append(self._pending.popleft())
        fetched = jax.device_get([metrics for _, _, metrics, _ in ready])
        for (step, rows, _, limits), values in zip(ready, fetched, strict=True):
            values = {name: float(value) for name, value in values.items()}
            spike = Spike.of(step, rows, values, self._window.limits(step) if limits is None else limits)
            self._in_a_row = self._in_a_row + 1 if spike else 0
            if spike is None:
                self._window.add(step, values["loss"], values["gradient_norm"])
            else:
                typical = self._window.typical_loss(step)
                spikes.append(spike._replace(typical_loss=typical, number=self._in_a_row))
                if self._in_a_row == MAX_IN_A_ROW and self.action == "warn":
                    self._window.restore(())
        return spikes

    def warn(self, spikes: Sequence[Spike]) -> None:
        """Says one sentence about the spikes since the last logged line, and writes an event for each."""
        found = [spike for spike in spikes if all(map(math.isfinite, spike.values.values()))]  # others end the run
        for spike in found:
            self._event(spike, "warn")
        if found:
            more = f"; {len(found) - 1} more up to step {found[-1].step:,}" if len(found) > 1 else ""
            self._metrics.say(f"Step {found[0].step:,} spikes: {found[0].reason}{more}. Nothing is done about it.")

    def _write_dropped(self, upto: int, state: TrainState) -> None:
        """Leaves the steps whose updates were dropped out of the figures, and writes them down."""
        for spike in self.spikes(upto):
            self._recent.forget(spike.step)
            self.drop(spike, state)

    def drop(self, spike: Spike, state: TrainState) -> None:
        """Writes down a batch whose update the devices have dropped; `state` is one of a few steps later, at most.

        Raises NonFiniteError after MAX_IN_A_ROW dropped steps in a row.
        """
        rows = self._rows_that_stand_out(spike, state)
        self.ledger.append([self._entry(spike.step, "skip", spike.reason, spike, rows)])
        self._event(spike, "skip")
        named = _in_words(rows)
        self._metrics.say(
            f"Step {spike.step:,} is dropped: {spike.reason}. {named} {self.ledger.path} lists its batch."
        )
        if spike.number >= MAX_IN_A_ROW:
            raise NonFiniteError(
                f"The updates of {MAX_IN_A_ROW} steps in a row up to step {spike.step:,} were dropped, so it is not"
                " the text of one batch: lower ScheduleConfig.base_learning_rate, or raise GuardConfig.threshold."
                f" {self.ledger.path} lists their batches; remove the lines of those that the run should read."
            )

    def target(self, spike: Spike, steps: Sequence[int]) -> int | None:
        """Returns the checkpoint to return to; None: the start of the run.

        It is the newest before the batches around the spike, or if all are later the oldest one before the spike.
        Raises NonFiniteError after MAX_REWINDS to the same one.
        """
        earlier = [step for step in steps if step < spike.step]
        before = [step for step in earlier if step < spike.step - self._config.guard.batches_around]
        target = max(before) if before else min(earlier, default=None)
        number = self._rewinds[target] = self._rewinds.get(target, 0) + 1
        if number > MAX_REWINDS:
            where = "the start" if target is None else f"step {target:,}"
            raise NonFiniteError(
                f"Step {spike.step:,} spikes, {spike.reason}, and the run has returned to {where} {MAX_REWINDS} times:"
                " lower ScheduleConfig.base_learning_rate, or raise GuardConfig.threshold or"
                f" GuardConfig.batches_around. {self.ledger.path} lists the batches that were passed over."
            )
        return target

    def _write_rewound(self, spike: Spike, state: TrainState) -> None:
        """Writes down the batches around a spike; `state` is the one that the run has returned to."""
        here, around = int(state.step), self._config.guard.batches_around
        first, last = max(here + 1, spike.step - around), spike.step + around
        rows = self._rows_that_stand_out(spike, state)
        entries = [
            self._entry(batch, "rewind", spike.reason, spike, rows)
            if batch == spike.step
            else self._entry(batch, "rewind", f"it is beside batch {spike.step}, which spikes", None, [])
            for batch in range(first, last + 1)
        ]
        self.ledger.append([entry for entry in entries if entry["batch"] not in self.ledger])
        self._event(spike, "rewind", returned_to=here)
        which = f"batches {first:,} to {last:,}" if around else f"batch {first:,}"
        self._metrics.say(
            f"Step {spike.step:,} spikes: {spike.reason}. {_in_words(rows)} The run has returned to step {here:,} and"
            f" passes over {which}, which {self.ledger.path} lists."
        )

    def _event(self, spike: Spike, action: str, **more: int) -> None:
        values = {**{name: _number(spike.values[name]) for name in ("loss", "gradient_norm")}, **more}
        self._metrics.record("event", spike.step, {"action": action, "reason": spike.reason, **values})

    def _entry(self, batch: int, action: str, reason: str, spike: Spike | None, rows: list[RowEntry]) -> Entry:
        """Returns a batch's line of the ledger; `data_batch` counts batches from the beginning of the data."""
        values = {} if spike is None else spike.values
        return {
            "batch": batch, "data_batch": batch - self._data_start, "action": action, "reason": reason,
            "loss": _number(values.get("loss", math.nan)),
            "gradient_norm": _number(values.get("gradient_norm", math.nan)), "rows": rows,
        }  # fmt: skip

    def _rows_that_stand_out(self, spike: Spike, state: TrainState) -> list[RowEntry]:
        if self._row_losses is None:
            self._row_losses = jit_row_losses(self._model, self._config.loss)
        params = gather_parameters(self._model, state.params)
        losses = np.asarray(self._row_losses(params, self._place(spike.rows)))
        size = self._config.data.rows_per_shard
        return [
            {"shard": int(row) // size, "row": int(row) % size, "loss": _number(losses[row])}
            for row in rows_standing_out(losses, self._config.guard.threshold, spike.typical_loss)
        ]


def rows_standing_out(losses: np.ndarray, threshold: float, typical: float) -> list[int]:
    """Returns the rows of a batch whose loss is not finite, or far above an ordinary row's; -inf is a row without text.

    An ordinary row is one below the batch's median and `typical`, the median loss of good steps: so the rows that
    stand out may be most of the batch.

    >>> rows_standing_out(np.array([3.0, 3.1, 9.0, np.inf, 2.9]), threshold=8.0, typical=3.2)
    [2, 3]
    >>> rows_standing_out(np.array([9.0, 9.1, 8.8, 3.0]), threshold=8.0, typical=3.2)
    [0, 1, 2]
    """
    finite = losses[np.isfinite(losses)]
    limit = -np.inf
    if finite.size:
        center = min(float(np.median(finite)), typical)
        below = finite[finite <= center]
        deviation = 1.4826 * float(np.median(center - below)) if below.size > 2 else 0.0
        limit = center + threshold * max(deviation, LEAST_OF_ROWS * abs(center))
    return [row for row, loss in enumerate(losses.tolist()) if not loss <= limit]


def jit_row_losses(model: Network, loss: LossConfig) -> Callable[[Parameters, Batch], Float[Array, " B"]]:
    """Returns a jitted function from parameters and a batch to the mean loss of each row's tokens, without dropout.

    Each group of devices computes one row at a time, since a training step has no room for all logits either. Rows
    without target tokens have loss -inf.
    """
    groups = 1 if model.mesh is None else num_batch_groups(model.mesh)

    def one_part(params: Parameters, part: Batch) -> Float[Array, " R"]:
        targets, weights = part["decoder_target_tokens"], part["decoder_loss_weights"].astype(jnp.float32)
        targets, weights = at_predicted(part, targets, weights)
        trained, _, _ = cross_entropy(model.apply(params, part, None), targets, loss)
        sums, tokens = jnp.sum(jnp.where(weights > 0, trained * weights, 0.0), 1), jnp.sum(weights, 1)
        return jnp.where(tokens > 0, sums / jnp.maximum(tokens, 1.0), -jnp.inf)

    def row_losses(params: Parameters, batch: Batch) -> Float[Array, " B"]:
        parts = microbatches(batch, len(batch["decoder_target_tokens"]) // groups)
        by_part = jax.lax.map(lambda part: one_part(params, part), parts)
        return jnp.swapaxes(by_part, 0, 1).reshape(-1)

    whole = None if model.mesh is None else NamedSharding(model.mesh, PartitionSpec())
    return jax.jit(row_losses, out_shardings=whole)


def _number(value: float) -> float | None:
    """Returns a number as JSON can hold it; None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def _in_words(rows: Sequence[RowEntry]) -> str:
    """Returns a sentence that names the rows by shard.

    >>> _in_words([{"shard": 1, "row": 0}, {"shard": 1, "row": 3}, {"shard": 4, "row": 2}])
    'What stands out: rows 0, 3 of shard 1; row 2 of shard 4.'
    """
    by_shard: dict[int, list[str]] = {}
    for each in rows:
        by_shard.setdefault(each["shard"], []).append(str(each["row"]))
    named = [
        f"row{'s' * (len(numbers) > 1)} {', '.join(numbers)} of shard {shard}" for shard, numbers in by_shard.items()
    ]
    more = [f"rows of {len(named) - 3} more shards"] if len(named) > 3 else []
    return f"What stands out: {'; '.join([*named[:3], *more])}." if rows else "No row of its batch stands out."
