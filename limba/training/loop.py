"""The training loop: steps, and at intervals a logged line, an evaluation and a checkpoint."""

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
from etils import epath

from limba.config import InputError, NonFiniteError, RestartError, RunConfig, StorageError
from limba.config.errors import NOT_WRITABLE, reason_of
from limba.model import Network
from limba.model.trees import Parameters
from limba.sharding import watchdog
from limba.sharding.agreement import together
from limba.sharding.preemption import stop_requests
from limba.storage.failures import kind_of
from limba.storage.files import try_to_write
from limba.training.best import Best
from limba.training.checks import is_out_of_memory, memory_sentence
from limba.training.dispatch_limit import DispatchLimit
from limba.training.guard import Guard, Spike
from limba.training.metrics.advice import advice_on
from limba.training.metrics.recent_steps import RecentSteps
from limba.training.optimizer import evaluated_weights
from limba.training.row_reader import RowReader, ShardRows
from limba.training.start import Plan, is_due
from limba.training.state import TrainState, gather_parameters
from limba.training.step import Limits, StepMetrics, without_update
from limba.training.trace import Trace

Figures = Mapping[str, float]
# From the state, this process's rows of the batch and the guard's limits to the next state and the step's metrics.
Update = Callable[[TrainState, ShardRows, Limits], tuple[TrainState, StepMetrics]]


@dataclass(frozen=True)
class Evaluations:
    """Functions of the parameters that are called at intervals; None for those that the run lacks."""

    loss: Callable[[Parameters], Figures] | None  # on the validation split
    samples: Callable[[Parameters], Mapping[str, Sequence[str]]] | None  # the texts generated for each prompt
    text: Callable[[Parameters, int], Figures] | None  # metrics of text generated for validation examples, at a step
    hidden: Mapping[str, Sequence[str]]  # for prompts from validation text: the words that were in their gaps
    copied: Figures  # the metrics of copying the inputs, which generated text should beat


class Due(NamedTuple):
    """What is due after a step."""

    log: bool = False
    evaluate: bool = False
    save: bool = False
    stops: bool = False  # the run was asked to stop, or cannot read on
    ends: bool = False  # the run ends here
    reason: str = ""  # why it ends before its last step, as a sentence


class Events:
    """Decides what is due at a step, and why a run ends.

    | event    | at each period                | at the end of the run         | where it is asked to stop     |
    | -------- | ----------------------------- | ----------------------------- | ----------------------------- |
    | save     | CheckpointConfig.every_steps  | unless the step is saved      | unless the step is saved      |
    | evaluate | EvaluationConfig.every_steps  | unless the step is evaluated  | no                            |
    | log      | RunConfig.log_every_steps, the first step, and with the others                                |
    """

    def __init__(self, config: RunConfig, plan: Plan, start: int):
        self._config = config
        self._plan = plan
        self._start = start
        self.saved = start  # the step that was saved or restored last
        self.evaluated = start  # the step that was evaluated or restored last

    def after(self, step: int, has_ended: bool, stops: bool) -> Due:
        """Returns what is due; `has_ended` is true if there are no more rows, `stops` if the run is to stop."""
        reason = self._reason(step, has_ended, stops)
        ends = reason != "" or step == self._plan.most_steps
        save = step != self.saved and (ends or is_due(step, self._plan.saving))
        if stops:
            evaluate = False  # there may be seconds left
        elif ends:
            evaluate = step != self.evaluated
        else:
            evaluate = is_due(step, self._plan.evaluation)
        is_first = step == self._start + 1
        log = is_first or save or evaluate or is_due(step, self._config.log_every_steps)
        return Due(log, evaluate, save, stops, ends, reason)

    def rewound(self, step: int, due: Due, saved_steps: Sequence[int]) -> Due:
        """Returns what is due after the guard has returned to a step: a run that is asked to stop does so there."""
        self.saved = step
        self.evaluated = step
        if not due.stops:
            return Due()
        reason = self._reason(step, has_ended=False, stops=True)
        return Due(save=step not in saved_steps, stops=True, ends=True, reason=reason)

    def _reason(self, step: int, has_ended: bool, stops: bool) -> str:
        """Returns why the run ends at a step that need not be its last one; "" if it does not."""
        if stops:
            return f"Asked to stop: step {step:,} is saved. The same command resumes from it."
        if has_ended:
            passes = self._config.data.num_epochs
            return f"The corpus has been read {passes} time(s): the run ends at step {step:,}."
        return ""


class Loop:
    """Runs the steps from one start of a run to its end or stop."""

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        model: Network,
        reader: RowReader,
        evaluations: Evaluations,
        recent: RecentSteps,
        guard: Guard,
    ):
        self.config = config
        self.plan = plan
        self.model = model
        self.reader = reader
        self.evaluations = evaluations
        self.recent = recent
        self.guard = guard
        self.metrics = recent.metrics
        self.checkpoints = reader.checkpoints
        self.best = Best(config, self.checkpoints.may_commit) if config.checkpoint.best_metric else None
        self.dispatch_limit = DispatchLimit()
        self.turn = 0  # passes of the loop; a rewind changes only the step
        self.figures: dict[Literal["train", "validation", "text"], Figures] = {
            "train": {},
            "validation": {},
            "text": {},
        }
        self.has_advised = False

    def run(self, state: TrainState, update: Update) -> dict[str, object]:
        """Runs the steps up to `train_steps` and returns what `limba.run.train` returns.

        A run ends early on SIGTERM, at the end of its corpus, or by `EvaluationConfig.patience`.
        """
        step = start = self.turn = int(state.step)
        events = Events(self.config, self.plan, start)
        trace = Trace(self.config, start, self.metrics.say)
        # A run that its patience has ended stays so until it has more.
        ended = "" if self.best is None else self.best.ended(start)
        due = Due(ends=start >= self.plan.most_steps or ended != "", reason=ended)
        with stop_requests(self.turn) as stop_requested:
            self.recent.restart()
            while not due.ends:
                # One step. The corpus may end before the last one: then there are no rows, and the step stays.
                with self.recent.waiting():
                    rows = self.reader.next_rows()
                if rows is not None:
                    step += 1
                    self.turn += 1
                    trace.before(self.turn)
                    state = self._update(step, rows, state, update)
                # What is due after it: all processes agree, since each would wait for the others in an evaluation.
                stops = self.reader.must_stop(rows, lambda: stop_requested(self.turn) or self.metrics.must_stop)
                due = events.after(step, rows is None, stops)
                if due.stops:
                    self.checkpoints.stop()
                trace.after(self.turn, state, is_last=due.ends)
                # The line comes first: a spike that it shows is neither evaluated nor saved.
                spike = self._log(step, state) if due.log else None
                if spike is not None:
                    del state  # makes room for the one that is restored
                    state = self._rewind(spike)
                    step = int(state.step)
                    due = events.rewound(step, due, self.checkpoints.steps())
                # An evaluation may end the run, and what it ends with is saved.
                reason_to_end = ""
                if due.evaluate:
                    reason_to_end = self._evaluate(step, state)
                    events.evaluated = step
                if reason_to_end:
                    due = due._replace(save=True, ends=True, reason=due.reason or reason_to_end)
                if due.save:
                    self._save(step, state)
                    events.saved = step
            if due.stops:
                self._report_saves(wait=True)
                self.reader.end(step, step > start)
            if due.reason:
                self.metrics.end(due.reason, due.stops)
        trace.close(self.turn, state)
        self._report_saves(wait=True)
        self.metrics.check_callbacks()
        return {"step": step, "interrupted": due.stops, **self.figures}

    def _update(self, step: int, rows: ShardRows, state: TrainState, update: Update) -> TrainState:
        """Returns the state after a step; for a batch that the guard passes over only the step's number advances."""
        limits = self.guard.before(step, state)
        if limits is None:
            state = without_update(state)
        else:
            state, metrics = update(state, rows, limits)
            watchdog.beat(step, metrics["loss"])
            documents = self.reader.stream.documents()
            self.recent.add(step, rows, metrics, documents)
            self.guard.after(step, rows, metrics, limits, documents)
            self.dispatch_limit.add(metrics["loss"])
        self.checkpoints.check_lease()
        self.metrics.advance(step)
        self._report_saves()
        return state

    def _rewind(self, spike: Spike) -> TrainState:
        self._report_saves(wait=True)
        state = self.guard.rewind(spike, self.reader)
        self.recent.restart()
        return state

    def _log(self, step: int, state: TrainState) -> Spike | None:
        """Logs the steps since the last logged line; returns a spike for which the run must rewind."""
        spike = self.guard.judge(step, state)
        if spike is not None:
            return spike
        if not len(self.recent):  # all were dropped or passed over
            self.recent.restart()
            return None
        stream = self.reader.stream
        figures = self.recent.figures(stream.epochs(), self.checkpoints.steps(), stream.tokens())
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
        """Evaluates, and saves the best step; returns the reason to end the run, or "".

        An error of an evaluation is raised after what was trained is saved: StorageError for what passes.
        """
        try:
            with together():
                figures = self._evaluated(step, state)
        except (NonFiniteError, RestartError):
            raise
        except Exception as error:
            self._save(step, state)
            self._report_saves(wait=True)
            if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
                raise
            saved = f"What was trained, up to step {step:,}, is saved."
            raise kind_of(error)(f"{self._reason(error)} {saved}") from error
        reason_to_end = ""
        if self.best is not None:
            reason_to_end = self.best.judge(step, figures, state, self.reader.positions)
        self.recent.restart()  # an evaluation's time must not count as a step's
        return reason_to_end

    def _reason(self, error: Exception) -> str:
        """Returns one sentence for an error of an evaluation, which may be the error of a metric of the user."""
        if isinstance(error, InputError | StorageError):
            return str(error)
        if is_out_of_memory(error):
            return memory_sentence(self.config, error)
        where = traceback.extract_tb(error.__traceback__)[-1]
        if kind_of(error) is StorageError:
            advice = "start the same command again when the storage or server answers"
        else:
            advice = "correct that"
        return (
            f"The evaluation raises {type(error).__name__} ({reason_of(error)}) in {where.filename}, line"
            f" {where.lineno}; {advice}."
        )

    def _evaluated(self, step: int, state: TrainState) -> Figures:
        """Evaluates, and logs the figures; returns the figures of all evaluations."""
        params = gather_parameters(self.model, evaluated_weights(state.params, state.opt_state))
        evaluations = self.evaluations
        metrics = self.metrics
        if evaluations.loss is not None:
            self.figures["validation"] = evaluations.loss(params)
            metrics.validation_line(step, self.figures["validation"])
        if evaluations.samples is not None:
            metrics.samples(step, evaluations.samples(params), evaluations.hidden)
        if evaluations.text is not None:
            self.figures["text"] = evaluations.text(params, step)
            metrics.text_line(step, self.figures["text"], evaluations.copied)
        figures = {**self.figures["validation"], **self.figures["text"]}
        metrics.evaluated(step, figures)
        return figures

    @watchdog.phase("The saving of a checkpoint")
    def _save(self, step: int, state: TrainState) -> None:
        """Starts saving the state and the data position, and lists what could not be read; see `_report_saves`."""
        self.checkpoints.check_lease()
        if skipped := self.reader.stream.skipped():
            path = epath.Path(self.config.model_dir) / f"skipped_units_process_{jax.process_index()}.json"
            try_to_write(path, json.dumps(skipped, indent=1) + "\n")
        self.metrics.upload()
        self.checkpoints.save(step, state, self.reader.positions(), self.guard.notes())
        self.reader.history.write(step)
        self.recent.restart()

    def _report_saves(self, wait: bool = False) -> None:
        """Says which saves are committed, in all processes; StorageError if one has failed for good.

        Then, and where it waits, the record of the best step is written if it could not be before.
        """
        if wait:
            self.checkpoints.wait()
        saved = self.checkpoints.poll()
        for step in saved:
            self.metrics.saved(step, self.checkpoints.directory)
        if (wait or saved) and self.best is not None:
            self.best.write()  # what a resume from the saved step reads
