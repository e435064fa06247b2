"""The guard: finds steps that are not finite or spike, and keeps their batches out of the run.

Batch n is always the batch of step n. A batch that is dropped or passed over leaves its step's number unused: the
parameters and the optimizer state stay as they are, and only the number advances. Passing over suspect batches is the
remedy of PaLM (Chowdhery et al. 2022, arXiv:2204.02311, section 5.1).
"""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from limba.config import InputError, NonFiniteError, RunConfig
from limba.data.stream.names import NO_DOCUMENTS, BatchDocuments, in_parentheses, short_name
from limba.formats.limba_checkpoint import GuardNotes, Notes
from limba.model import Batch, Network
from limba.model.trees import Parameters
from limba.sharding.agreement import gather_bytes
from limba.training.metrics.recent_steps import MOST_BYTES, MOST_NAMED, RecentSteps
from limba.training.row_losses import jit_row_losses, rows_standing_out
from limba.training.row_reader import RowReader, ShardRows
from limba.training.skipped_batches import DocumentEntry, Entry, RowEntry, SkippedBatches
from limba.training.spikes import CHECKED, LAG, Spike, Window
from limba.training.state import TrainState, gather_parameters
from limba.training.step import Limits

logger = logging.getLogger(__name__)

MAX_IN_A_ROW = 20  # spiking steps in a row: then it is not a spike, but a new level
MAX_REWINDS = 3  # to one checkpoint
# From one process's rows of a batch to the global batch.
PlaceBatch = Callable[[ShardRows], Batch]


class Pending(NamedTuple):
    """A step that may still be computing."""

    step: int
    rows: ShardRows
    documents: BatchDocuments
    metrics: Mapping[str, Array]
    limits: np.ndarray | None  # with which the devices compared the metrics


class Guard:
    """Judges the steps of one run, lagging behind the devices, and reports what it does about a spike."""

    def __init__(
        self,
        config: RunConfig,
        model: Network,
        skipped_batches: SkippedBatches,
        recent: RecentSteps,
        place_batch: PlaceBatch,
    ):
        self.action = config.guard.action
        self.skipped_batches = skipped_batches
        self._config = config
        self._recent = recent
        self._metrics = recent.metrics
        self._place_batch = place_batch
        self._model = model
        self._window = Window(config.guard)
        self._pending = deque[Pending]()
        self._in_a_row = 0  # spikes
        self._rewinds = dict[int | None, int]()  # by the step of the checkpoint; None: the start of the run
        self._data_start = 0  # the step at which the data were read from their beginning
        self._row_losses: Callable[[Parameters, Batch], Array] | None = None

    def begin(self, start: int, notes: Notes | None) -> None:
        """Starts with the notes of a checkpoint at step `start`; None: the data are read from their beginning."""
        self._pending.clear()
        kept: GuardNotes = {"data_start": start} if notes is None else notes.get("guard", {})
        self._data_start = kept.get("data_start", 0)
        self._window.restore(kept.get("window", ()))

    def notes(self) -> Notes:
        """Returns the notes that a checkpoint keeps for `begin`; all steps so far must have been judged."""
        self.skipped_batches.write()
        return {"guard": {"data_start": self._data_start, "window": self._window.notes()}}

    def before(self, step: int, state: TrainState) -> Limits | None:
        """Returns the last arguments of a step's `train_step`: with 'skip' its limits; None: its batch is passed over.

        With 'skip' the steps up to LAG before it are judged first, and those that the devices have dropped written
        down; `state` is the one before the step.
        """
        if step in self.skipped_batches:
            return None
        if self.action != "skip":
            return ()
        self._write_dropped(step - LAG, state)
        return (self._window.limits(step),)

    def after(
        self,
        step: int,
        rows: ShardRows,
        metrics: Mapping[str, Array],
        limits: Limits,
        documents: BatchDocuments = NO_DOCUMENTS,
    ) -> None:
        """Takes a step, and the documents of its rows; its metrics may still be computing on the devices."""
        if self.action == "off":
            return
        if self.action == "skip":  # these are fetched at every step, LAG steps later
            for name in CHECKED:
                metrics[name].copy_to_host_async()
        checked = {name: metrics[name] for name in CHECKED}
        self._pending.append(Pending(step, rows, documents, checked, limits[0] if limits else None))

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
        ready = []
        while self._pending and self._pending[0].step <= upto:
            ready.append(self._pending.popleft())
        fetched = jax.device_get([pending.metrics for pending in ready])
        spikes = []
        for (step, rows, documents, _, limits), values in zip(ready, fetched, strict=True):
            values = {name: float(value) for name, value in values.items()}
            if limits is None:
                limits = self._window.limits(step)
            spike = Spike.of(step, rows, values, limits)
            if spike is None:
                self._in_a_row = 0
                self._window.add(step, values["loss"], values["gradient_norm"])
                continue
            self._in_a_row += 1
            typical = self._window.typical_loss(step)
            spikes.append(spike._replace(documents=documents, typical_loss=typical, number=self._in_a_row))
            if self._in_a_row == MAX_IN_A_ROW and self.action == "warn":
                self._window.restore(())  # the new level is learned; other actions end or return
        return spikes

    def warn(self, spikes: Sequence[Spike]) -> None:
        """Prints one sentence about the spikes since the last logged line, and writes an event for each.

        It names the first documents of this process's rows in the batch of the first one. Which rows stand out is not
        computed: that would take another program's memory, and all processes at once, for a sentence.
        """
        finite = [spike for spike in spikes if all(map(math.isfinite, spike.values.values()))]  # others end the run
        if not finite:
            return
        for spike in finite:
            self._event(spike, "warn")
        first = finite[0]
        more = ""
        if len(finite) > 1:
            more = f"; {len(finite) - 1} more up to step {finite[-1].step:,}"
        with self._recent.apart():
            names = in_parentheses(*first.documents.some(MOST_NAMED, MOST_BYTES))
        self._metrics.say(
            f"Step {first.step:,} spikes: {first.reason}{more}. Its batch{names} is trained on like any other."
        )

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
        self.skipped_batches.append([self._entry(spike.step, "skip", spike.reason, spike, rows)])
        self._event(spike, "skip")
        self._metrics.say(
            f"Step {spike.step:,} is dropped: {spike.reason}. {_in_words(rows)} {self.skipped_batches.path} lists its"
            " batch."
        )
        if spike.number >= MAX_IN_A_ROW:
            raise NonFiniteError(
                f"The updates of {MAX_IN_A_ROW} steps in a row up to step {spike.step:,} were dropped, so it is not"
                " the text of one batch: lower ScheduleConfig.base_learning_rate, or raise GuardConfig.threshold."
                f" {self.skipped_batches.path} lists their batches; remove the lines of those that the run should read."
            )

    def target(self, spike: Spike, steps: Sequence[int]) -> int | None:
        """Returns the checkpoint to return to; None: the start of the run.

        It is the newest before the batches around the spike, or if all are later the oldest one before the spike.
        Raises NonFiniteError after MAX_REWINDS to the same one.
        """
        earlier = [step for step in steps if step < spike.step]
        before = [step for step in earlier if step < spike.step - self._config.guard.batches_around]
        target = max(before) if before else min(earlier, default=None)
        self._rewinds[target] = self._rewinds.get(target, 0) + 1
        if self._rewinds[target] > MAX_REWINDS:
            where = "the start" if target is None else f"step {target:,}"
            raise NonFiniteError(
                f"Step {spike.step:,} spikes, {spike.reason}, and the run has returned to {where} {MAX_REWINDS} times:"
                " lower ScheduleConfig.base_learning_rate, or raise GuardConfig.threshold or"
                f" GuardConfig.batches_around. {self.skipped_batches.path} lists the batches that were passed over."
            )
        return target

    def _write_rewound(self, spike: Spike, state: TrainState) -> None:
        """Writes down the batches around a spike; `state` is the one that the run has returned to."""
        here = int(state.step)
        around = self._config.guard.batches_around
        first = max(here + 1, spike.step - around)  # batches up to `here` are trained already
        last = spike.step + around
        rows = self._rows_that_stand_out(spike, state)
        entries = []
        for batch in range(first, last + 1):
            if batch in self.skipped_batches:
                continue
            if batch == spike.step:
                entries.append(self._entry(batch, "rewind", spike.reason, spike, rows))
            else:
                reason = f"it is beside batch {spike.step}, which spikes"
                entries.append(self._entry(batch, "rewind", reason, None, []))
        self.skipped_batches.append(entries)
        self._event(spike, "rewind", returned_to=here)
        which = f"batches {first:,} to {last:,}" if around else f"batch {first:,}"
        self._metrics.say(
            f"Step {spike.step:,} spikes: {spike.reason}. {_in_words(rows)} The run has returned to step {here:,} and"
            f" passes over {which}, which {self.skipped_batches.path} lists."
        )

    def _event(self, spike: Spike, action: str, **more: int) -> None:
        values = {name: _number(spike.values[name]) for name in ("loss", "gradient_norm")}
        self._metrics.record("event", spike.step, {"action": action, "reason": spike.reason, **values, **more})

    def _entry(self, batch: int, action: str, reason: str, spike: Spike | None, rows: list[RowEntry]) -> Entry:
        """Returns a batch's line of the skipped_batches; `data_batch` counts batches from the beginning of the data."""
        values = {} if spike is None else spike.values
        return {
            "batch": batch,
            "data_batch": batch - self._data_start,
            "action": action,
            "reason": reason,
            "loss": _number(values.get("loss", math.nan)),
            "gradient_norm": _number(values.get("gradient_norm", math.nan)),
            "rows": rows,
        }

    def _rows_that_stand_out(self, spike: Spike, state: TrainState) -> list[RowEntry]:
        if self._row_losses is None:
            self._row_losses = jit_row_losses(self._model, self._config.loss)
        params = gather_parameters(self._model, state.params)
        losses = np.asarray(self._row_losses(params, self._place_batch(spike.rows)))
        size = self._config.data.rows_per_shard
        standing_out = rows_standing_out(losses, self._config.guard.threshold, spike.typical_loss)
        rows = dict[int, bytes]()
        for row in standing_out:
            documents = _documents_of(spike, int(row) // size, int(row) % size)
            if documents:
                rows[int(row)] = json.dumps(documents).encode()
        of_all_processes = gather_bytes(rows)
        entries: list[RowEntry] = []
        for row in standing_out:
            entry: RowEntry = {"shard": int(row) // size, "row": int(row) % size, "loss": _number(losses[row])}
            if int(row) in of_all_processes:
                entry["documents"] = json.loads(of_all_processes[int(row)])
            entries.append(entry)
        return entries


def _named(rows: Sequence[RowEntry]) -> str:
    """Returns the first documents of some rows in parentheses; "" where none is known."""
    names = dict[str, None]()  # a set that keeps its order
    for row in rows:
        for document in row.get("documents", ()):
            names[short_name(document["unit"], document["document"])] = None
    return in_parentheses(list(names)[:MOST_NAMED], max(0, len(names) - MOST_NAMED))


def _number(value: float) -> float | None:
    """Returns a number as JSON can hold it; None if it is not finite."""
    return float(value) if math.isfinite(value) else None


def _documents_of(spike: Spike, shard: int, row: int) -> list[DocumentEntry]:
    """Returns the names of the documents of a row; fewer where its source fails, none where another process read it."""
    entries: list[DocumentEntry] = []
    try:
        for document in spike.documents.of_row(shard, row, MOST_BYTES):
            entry: DocumentEntry = {"source": document.source, "unit": document.unit, "document": document.row}
            if not document.is_exact:
                entry["is_exact"] = False
            entries.append(entry)
    except InputError as error:
        logger.warning("Not all documents of row %d of shard %d can be named: %s", row, shard, error)
    return entries


def _in_words(rows: Sequence[RowEntry]) -> str:
    """Returns a sentence that names the rows by shard, with the documents that they were made of.

    >>> _in_words([{"shard": 1, "row": 0}, {"shard": 1, "row": 3}, {"shard": 4, "row": 2}])
    'What stands out: rows 0, 3 of shard 1; row 2 of shard 4.'
    >>> document = {"source": "ro", "unit": "data/part-07.jsonl", "document": 81204}
    >>> _in_words([{"shard": 1, "row": 3, "documents": [document]}])
    'What stands out: row 3 of shard 1 (part-07.jsonl, document 81,204).'
    """
    if not rows:
        return "No row of its batch stands out."
    by_shard: dict[int, list[RowEntry]] = {}
    for row in rows:
        by_shard.setdefault(row["shard"], []).append(row)
    parts = []
    for shard, of_shard in by_shard.items():
        noun = "row" if len(of_shard) == 1 else "rows"
        numbers = ", ".join(str(row["row"]) for row in of_shard)
        parts.append(f"{noun} {numbers} of shard {shard}{_named(of_shard)}")
    if len(parts) > 3:
        parts[3:] = [f"rows of {len(parts) - 3} more shards"]
    return f"What stands out: {'; '.join(parts)}."
