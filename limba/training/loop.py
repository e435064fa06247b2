"""The training loop: steps, and at intervals a logged line, an evaluation and a checkpoint."""

from __future__ import annotations

import functools
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from etils import epath

from limba.config import InputError, NonFiniteError, RestartError, RunConfig, StorageError
from limba.config.errors import NOT_WRITABLE, reason_of
from limba.data.stream.protocol import Stream
from limba.data.stream.shard import Rows
from limba.model import Network
from limba.sharding import watchdog
from limba.sharding.agreement import together
from limba.sharding.preemption import stop_requests
from limba.storage.files import try_to_write
from limba.training.ahead import Ahead
from limba.training.checkpoints.best import Best
from limba.training.checkpoints.directory import Checkpoints, Restored
from limba.training.checks import is_out_of_memory, memory_sentence
from limba.training.epochs import Plan, is_due
from limba.training.guard import LAG, Guard, Spike
from limba.training.metrics.figures import RecentSteps, advice_on
from limba.training.metrics.logging import Metrics
from limba.training.metrics.tracing import Trace
from limba.training.reading import RowReader
from limba.training.state import TrainState, gather_parameters
from limba.training.step import without_update
from limba.training.updates.average import evaluated_weights

Figures = Mapping[str, float]
Place = Callable[[Any], Any]  # from one process's rows of a batch to the global batch
# From a function that restores a checkpoint to the state, a new stream there, and the checkpoint's notes.
Begin = Callable[[Callable[..., Restored | None]], tuple[TrainState, Stream, Mapping[str, Any] | None]]


@dataclass(frozen=True)
class Evaluations:
    """Functions of the parameters that are called at intervals; None for those that the run lacks."""

    loss: Callable[[Any], Figures] | None  # on the validation split
    samples: Callable[[Any], Mapping[str, Sequence[str]]] | None  # the texts generated for each prompt
    text: Callable[[Any, int], Figures] | None  # metrics of the text generated for validation examples, at a step


class Loop:
    """Runs the steps from one start of a run to its end or stop."""

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        model: Network,
        stream: Stream,
        checkpoints: Checkpoints,
        evaluations: Evaluations,
        metrics: Metrics,
        recent: RecentSteps,
        guard: Guard,
        check_lease: Callable[[], None] = lambda: None,
    ):
        self.config, self.model, self.stream, self.checkpoints = config, model, stream, checkpoints
        self.evaluations, self.metrics, self.recent, self.best = evaluations, metrics, recent, Best(config)
        self.plan, self.guard, self.reader = plan, guard, RowReader(config.data.num_epochs is not None)
        self.ahead = Ahead()
        self.check_lease = check_lease  # RestartError if another run has taken over model_dir
        self.figures: dict[str, Any] = {"train": {}, "validation": {}}
        self.has_advised = False

    def run(self, state: TrainState, train_step: Callable, place: Place, begin: Begin) -> Mapping[str, Any]:
        """Runs the steps up to `train_steps` and returns what `limba.run.train` returns.

        `place` makes a global batch from one process's rows; `begin` is for the guard's rewind. A run ends early
        on SIGTERM, at the end of its corpus, or by `EvaluationConfig.patience`.
        """
        config, recent = self.config, self.recent
        key = jax.random.key(config.random_seed + 1, impl=config.random_bits)
        step = turn = saved = start = int(state.step)  # a turn is one pass of the loop; a rewind changes only the step
        interrupted, trace = False, Trace(config, start, self.metrics.say)
        with stop_requests() as stop_requested:
            recent.restart()
            while step < self.plan.most_steps:
                with recent.waiting():
                    rows = self.reader.next_rows(self.stream, self.checkpoints.steps())
                has_ended, interrupted = rows is None, self.reader.failure is not None
                if rows is not None:
                    step, turn = step + 1, turn + 1
                    trace.before(turn)
                    state = self._update(step, rows, state, train_step, place, key)
                    self.check_lease()
                    self.metrics.advance(step)
                    self._report_saves()
                    interrupted = stop_requested(turn) or self.reader.must_stop(self.stream)
                is_last = has_ended or interrupted or step == self.plan.most_steps
                trace.after(turn, state, is_last)
                saves = saved != step and (is_last or is_due(step, self.plan.saving))
                evaluates = not interrupted and (saves if is_last else is_due(step, self.plan.evaluation))
                if saves or evaluates or step % config.log_every_steps == 0 or step == start + 1:
                    spike = self._log(step, state, place)
                    if spike is not None:
                        del state  # makes room for the one that is restored
                        state = self._rewind(spike, place, begin)
                        step = saved = int(state.step)
                        if not interrupted:
                            continue
                        saves = step not in self.checkpoints.steps()
                ending = self._evaluate(step, state) if evaluates else ""
                if saves or ending:
                    self._save(step, state)
                    saved = step
                if interrupted:
                    self._report_saves(wait=True)
                    self.reader.end(step, step > start)
                    ending = f"Asked to stop: step {step:,} is saved. The same command resumes from it."
                elif has_ended:
                    passes = config.data.num_epochs
                    ending = f"The corpus has been read {passes} time(s): the run ends at step {step:,}."
                if ending:
                    self.metrics.end(ending)
                    break
        trace.close(turn, state)
        self._report_saves(wait=True)
        return {"step": step, "interrupted": interrupted, **self.figures}

    def _update(
        self, step: int, rows: Mapping[int, Rows], state: TrainState, train_step: Callable, place: Place, key: Any
    ) -> TrainState:
        """Returns the state after a step; for a batch of the guard's ledger only the step's number advances."""
        if step in self.guard.ledger:
            return without_update(state)
        if self.guard.action == "skip":
            self._drop(step - LAG, state, place)
        limits = self.guard.arguments(step)
        state, step_metrics = train_step(state, place(rows), key, *limits)
        watchdog.beat(step, step_metrics["loss"])
        self.recent.add(step, rows, step_metrics)
        self.guard.add(step, rows, step_metrics, limits)
        self.ahead.add(step_metrics["loss"])
        return state

    def _drop(self, upto: int, state: TrainState, place: Place) -> None:
        """Leaves the steps whose updates were dropped out of the figures, and writes them down."""
        for spike in self.guard.judge(upto):
            self.recent.forget(spike.step)
            self.guard.drop(spike, state, place)

    def _rewind(self, spike: Spike, place: Place, begin: Begin) -> TrainState:
        """Returns the state of the last good checkpoint, where the stream is then too; later ones are set aside."""
        self._report_saves(wait=True)
        target = self.guard.target(spike, self.checkpoints.steps())
        self.stream.close()
        restore = functools.partial(self.checkpoints.restore_step, target) if target is not None else lambda *_: None
        state, self.stream, notes = begin(restore)
        self.guard.begin(int(state.step), notes)
        self.guard.rewound(spike, state, place)
        self.recent.restart()
        return state

    def _log(self, step: int, state: TrainState, place: Place) -> Spike | None:
        """Logs the steps since the last logged line; returns a spike for which the run must rewind."""
        if self.guard.action == "skip":
            self._drop(step, state, place)
        elif spikes := self.guard.judge(step):
            if self.guard.action == "rewind":
                return spikes[0]
            self.guard.warn(spikes)
        if not len(self.recent):  # all were dropped or passed over
            self.recent.restart()
            return None
        figures = self.recent.figures(self.stream.epochs(), self.checkpoints.steps(), self.stream.tokens())
        advice = advice_on(self.config, len(self.recent), step, figures)
        self.recent.restart()
        self.figures["train"] = figures
        self.metrics.train_line(step, figures)
        if advice and not self.has_advised:
            self.metrics.say(advice)
            self.has_advised = True
        return None

    @watchdog.phase("An evaluation")
    def _evaluate(self, step: int, state: TrainState) -> str:
        """Evaluates; returns the reason to end the run, or "". What was trained is saved before an error of it."""
        try:
            with together():
                return self._evaluated(step, state)
        except (NonFiniteError, StorageError, RestartError):
            raise
        except Exception as error:
            self._save(step, state)
            self._report_saves(wait=True)
            if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
                raise
            raise InputError(f"{self._reason(error)} What was trained, up to step {step:,}, is saved.") from error

    def _reason(self, error: Exception) -> str:
        if isinstance(error, InputError):
            return str(error)
        if is_out_of_memory(error):
            return memory_sentence(self.config, error)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"The evaluation raises {type(error).__name__} ({reason_of(error)}) in {where.filename}, line"
            f" {where.lineno}; correct that."
        )

    def _evaluated(self, step: int, state: TrainState) -> str:
        """Evaluates, and saves the best step; returns the reason to end the run, or ""."""
        params = gather_parameters(self.model, evaluated_weights(state.params, state.opt_state))
        evaluations, metrics, found = self.evaluations, self.metrics, self.figures
        if evaluations.loss is not None:
            found["validation"] = evaluations.loss(params)
            metrics.validation_line(step, found["validation"])
        if evaluations.samples is not None:
            metrics.samples(step, evaluations.samples(params))
        if evaluations.text is not None:
            found["text"] = evaluations.text(params, step)
            metrics.text_line(step, found["text"])
        ending = self.best.judge(step, {**found["validation"], **found.get("text", {})}, state, self.stream.positions)
        self.recent.restart()
        return ending

    @watchdog.phase("The saving of a checkpoint")
    def _save(self, step: int, state: TrainState) -> None:
        """Starts saving the state and the data position, and lists what could not be read; see `_report_saves`."""
        self.check_lease()
        if skipped := self.stream.skipped():
            path = epath.Path(self.config.model_dir) / f"skipped_units_process_{jax.process_index()}.json"
            try_to_write(path, json.dumps(skipped, indent=1) + "\n")
        self.metrics.upload()
        positions = self.reader.positions(self.stream, self.checkpoints.steps())
        self.checkpoints.save(step, state, positions, self.guard.notes())
        self.recent.restart()

    def _report_saves(self, wait: bool = False) -> None:
        """Says which saves are committed, in all processes; StorageError if one has failed for good."""
        if wait:
            self.checkpoints.wait()
        for step in self.checkpoints.poll():
            self.metrics.saved(step, self.checkpoints.place(step))
