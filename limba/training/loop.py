"""The training loop: steps, and at intervals a logged line, an evaluation and a checkpoint."""

import dataclasses
import json
import math
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
from etils import epath

from limba.config import InputError, NonFiniteError, RestartError, RunConfig, StorageError, plain
from limba.config.errors import NOT_WRITABLE, reason_of
from limba.data.vocabulary.files import copies_in
from limba.model import Network
from limba.model.trees import Parameters
from limba.sharding import watchdog
from limba.sharding.agreement import together
from limba.sharding.preemption import stop_requests
from limba.storage import manifest
from limba.storage.files import read_text, try_to_write, write_whole
from limba.training.checkpoints.directory import Checkpoints, Positions
from limba.training.checks import is_out_of_memory, memory_sentence
from limba.training.guard import Guard, Spike
from limba.training.metrics.figures import RecentSteps, advice_on
from limba.training.optimizer import evaluated_weights
from limba.training.reading import RowReader, ShardRows
from limba.training.start import Plan, is_due
from limba.training.state import TrainState, gather_parameters
from limba.training.step import Limits, StepMetrics, without_update

Figures = Mapping[str, float]
# From the state, this process's rows of the batch and the guard's limits to the next state and the step's metrics.
Update = Callable[[TrainState, ShardRows, Limits], tuple[TrainState, StepMetrics]]

COPIED_TO_BEST = ("config.gin", plain.FILE, "vocabulary.model")  # model_dir/best is then read like a run
FIRST_TRACED = 3  # of a start's steps: the first compiles, the second may still wait for data
SECONDS_AHEAD = 1.0  # of steps that have begun and not ended: a stop is carried out after them
FEWEST, MOST = 2, 32  # steps; with two the devices need not wait for the host


@dataclass(frozen=True)
class Evaluations:
    """Functions of the parameters that are called at intervals; None for those that the run lacks."""

    loss: Callable[[Parameters], Figures] | None  # on the validation split
    samples: Callable[[Parameters], Mapping[str, Sequence[str]]] | None  # the texts generated for each prompt
    text: Callable[[Parameters, int], Figures] | None  # metrics of text generated for validation examples, at a step
    hidden: Mapping[str, Sequence[str]]  # the words that stood in the gaps of a prompt, of those of validation text
    copied: Figures  # the metrics of inputs that are copied, which generated text has to beat


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
    | evaluate | EvaluationConfig.every_steps  | if it is saved then           | no                            |
    | log      | RunConfig.log_every_steps, the first step, and with the others                                |
    """

    def __init__(self, config: RunConfig, plan: Plan, start: int):
        self._config = config
        self._plan = plan
        self._start = start
        self.saved = start  # the step that was saved or restored last

    def after(self, step: int, has_ended: bool, stops: bool) -> Due:
        """Returns what is due; `has_ended` is true if there are no more rows, `stops` if the run is to stop."""
        reason = self._reason(step, has_ended, stops)
        ends = reason != "" or step == self._plan.most_steps
        save = step != self.saved and (ends or is_due(step, self._plan.saving))
        if stops:
            evaluate = False  # there may be seconds left
        elif ends:
            evaluate = save  # a step that was saved before was evaluated too
        else:
            evaluate = is_due(step, self._plan.evaluation)
        is_first = step == self._start + 1
        log = is_first or save or evaluate or is_due(step, self._config.log_every_steps)
        return Due(log, evaluate, save, stops, ends, reason)

    def rewound(self, step: int, due: Due, saved_steps: Sequence[int]) -> Due:
        """Returns what is due after the guard has returned to a step: a run that is asked to stop does so there."""
        self.saved = step
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
        self.config, self.plan, self.model, self.reader, self.evaluations = config, plan, model, reader, evaluations
        self.recent, self.guard, self.metrics, self.checkpoints = recent, guard, recent.metrics, reader.checkpoints
        self.best, self.ahead = Best(config) if config.checkpoint.best_metric else None, Ahead()
        self.turn = 0  # passes of the loop; a rewind changes only the step
        self.figures: dict[Literal["train", "validation", "text"], Figures] = {"train": {}, "validation": {}}
        self.has_advised = False

    def run(self, state: TrainState, update: Update) -> dict[str, object]:
        """Runs the steps up to `train_steps` and returns what `limba.run.train` returns.

        A run ends early on SIGTERM, at the end of its corpus, or by `EvaluationConfig.patience`.
        """
        step = start = self.turn = int(state.step)
        events, trace = Events(self.config, self.plan, start), Trace(self.config, start, self.metrics.say)
        due = Due(ends=start >= self.plan.most_steps)
        with stop_requests(self.turn) as stop_requested:
            self.recent.restart()
            while not due.ends:
                with self.recent.waiting():
                    rows = self.reader.next_rows()
                if rows is not None:
                    step, self.turn = step + 1, self.turn + 1
                    trace.before(self.turn)
                    state = self._update(step, rows, state, update)
                stops = self.reader.must_stop(rows, lambda: stop_requested(self.turn) or self.metrics.must_stop)
                due = events.after(step, rows is None, stops)
                if due.stops:
                    self.checkpoints.stop()
                trace.after(self.turn, state, is_last=due.ends)
                if due.log and (spike := self._log(step, state)) is not None:
                    del state  # makes room for the one that is restored
                    state = self._rewind(spike)
                    step = int(state.step)
                    due = events.rewound(step, due, self.checkpoints.steps())
                if due.evaluate and (reason := self._evaluate(step, state)):
                    due = due._replace(save=True, ends=True, reason=due.reason or reason)
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
            self.recent.add(step, rows, metrics)
            self.guard.after(step, rows, metrics, limits)
            self.ahead.add(metrics["loss"])
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
        if (spike := self.guard.judge(step, state)) is not None:
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
            metrics.samples(step, evaluations.samples(params), evaluations.hidden)
        if evaluations.text is not None:
            found["text"] = evaluations.text(params, step)
            metrics.text_line(step, found["text"], evaluations.copied)
        ending, figures = "", {**found["validation"], **found.get("text", {})}
        metrics.evaluated(step, figures)
        if self.best is not None:
            ending = self.best.judge(step, figures, state, self.reader.stream.positions)
        self.recent.restart()
        return ending

    @watchdog.phase("The saving of a checkpoint")
    def _save(self, step: int, state: TrainState) -> None:
        """Starts saving the state and the data position, and lists what could not be read; see `_report_saves`."""
        self.checkpoints.check_lease()
        if skipped := self.reader.stream.skipped():
            path = epath.Path(self.config.model_dir) / f"skipped_units_process_{jax.process_index()}.json"
            try_to_write(path, json.dumps(skipped, indent=1) + "\n")
        self.metrics.upload()
        self.checkpoints.save(step, state, self.reader.positions(), self.guard.notes())
        self.recent.restart()

    def _report_saves(self, wait: bool = False) -> None:
        """Says which saves are committed, in all processes; StorageError if one has failed for good."""
        if wait:
            self.checkpoints.wait()
        for step in self.checkpoints.poll():
            self.metrics.saved(step, self.checkpoints.place(step))


class Ahead:
    """Holds the host back while more than a second's steps have begun and not ended, at least two.

    jax returns from a step before it is computed, and lets a program begin 32: with steps of two seconds a request to
    stop would be carried out a minute later, when a preempted machine is gone.
    """

    def __init__(self) -> None:
        self._begun: deque[Any] = deque()  # an array of each step that may not have ended
        self._seconds = deque([math.inf] * 4, maxlen=4)  # of the last steps waited for; the longest counts
        self._waited: float | None = None  # until when, for the step that began before the oldest one

    def add(self, result: Any) -> None:
        """Takes an array with which the step that has just begun ends; returns when another step may begin."""
        self._begun.append(result)
        most = min(max(FEWEST, int(SECONDS_AHEAD / max(*self._seconds, 1e-6))), MOST)
        while self._begun and (self._begun[0].is_ready() or len(self._begun) > most):
            oldest = self._begun.popleft()
            if oldest.is_ready():
                self._waited = None
                continue
            jax.block_until_ready(oldest)
            now = time.monotonic()
            if self._waited is not None:
                self._seconds.append(now - self._waited)
            self._waited = now


class Trace:
    """Traces `RunConfig.profile_steps` steps of a start into model_dir/profile; `say` prints the result."""

    def __init__(self, config: RunConfig, start: int, say: Callable[[str], None]):
        self._directory = self._local = f"{config.model_dir.rstrip('/')}/profile"
        if config.profile_steps and "://" in self._directory:  # jax writes only to local folders
            self._local = tempfile.mkdtemp(prefix="limba-profile-")
        self._num_steps, self._say = config.profile_steps, say
        self._first = start + FIRST_TRACED
        self._is_running = False

    def _succeeds(self, call: Callable[[], object]) -> bool:
        """Calls a function of the profiler; says what fails, as on a full disk: a trace is not worth a run."""
        try:
            call()
        except Exception as error:  # noqa: BLE001
            self._say(f"The steps are not traced: {self._local} cannot be written ({reason_of(error)}).")
            return False
        return True

    def _upload(self) -> bool:
        try:
            for files in sorted(Path(self._local).glob("plugins/profile/*")) if self._local != self._directory else ():
                manifest.upload(files, f"{self._directory}/{files.relative_to(self._local)}")
        except (InputError, StorageError) as error:
            self._say(f"The trace stays in {self._local}: {error}")
            return False
        return True

    def before(self, step: int) -> None:
        """Starts the trace before its first step."""
        if self._num_steps and step == self._first:
            self._is_running = self._succeeds(lambda: jax.profiler.start_trace(self._local))

    def after(self, step: int, state: TrainState, is_last: bool) -> None:
        """Ends the trace after its last step, or the run's; waits for the devices first."""
        if self._is_running and (is_last or step == self._first + self._num_steps - 1):
            jax.block_until_ready(state)
            self._is_running = False
            if self._succeeds(jax.profiler.stop_trace) and self._upload():
                self._say(f"Traced {step - self._first + 1} step(s) into {self._directory}")

    def close(self, step: int, state: TrainState) -> None:
        """Ends the trace if the run ends before it; reports if nothing was traced."""
        self.after(step, state, is_last=True)
        if self._num_steps and step < self._first:
            self._say(f"Nothing was traced: tracing starts at step {self._first}, and the run ended at step {step}.")


class Best:
    """model_dir/best: a checkpoint, and best.json with the record, which a resumed run continues."""

    def __init__(self, config: RunConfig):
        self._config, self._run = config, epath.Path(config.model_dir)
        self.directory = self._run / "best"
        self._path = self.directory / "best.json"
        self._checkpoints: Checkpoints | None = None
        self._record = _record_of(self._path) if self._path.exists() else {}

    def judge(
        self, step: int, figures: Mapping[str, float], state: TrainState, positions: Callable[[], Positions]
    ) -> str:
        """Saves the state if its `best_metric` has improved; returns the reason to end the run, or "".

        `positions` returns the data position, which is saved with the state. A figure that is missing, or not finite,
        is no improvement.
        """
        name, patience = self._config.checkpoint.best_metric, self._config.evaluation.patience
        if name is None or not figures:
            return ""
        value, record = figures.get(name, math.nan), self._record
        sign = 1 if self._config.checkpoint.best_mode == "max" else -1
        if step > record.get("last_step", 0):
            if math.isfinite(value) and ("value" not in record or sign * value > sign * record["value"]):
                self._save(step, state, positions())
                record |= {"metric": name, "value": value, "step": step, "figures": dict(figures), "since": 0}
            else:
                record["since"] = record.get("since", 0) + 1
            record["last_step"] = step
            if jax.process_index() == 0:
                for file in (self._run / each for each in (*COPIED_TO_BEST, *copies_in(self._run))):
                    if file.exists():
                        write_whole(self.directory / file.name, file.read_bytes())
                write_whole(self._path, json.dumps(record, indent=1) + "\n")
        if patience is not None and record.get("since", 0) >= patience:
            if "value" not in record:
                return f"{name} has not been a finite number for {record['since']} evaluations: the run ends here."
            return (
                f"{name} has not been better than {record['value']:.4g} of step {record['step']:,} for"
                f" {record['since']} evaluations: the run ends here, and its best step is in {self.directory}."
            )
        return ""

    def _save(self, step: int, state: TrainState, positions: Positions) -> None:
        """Saves the state, and waits for the commit: the record names only steps that are there."""
        if self._checkpoints is None:
            config = dataclasses.replace(self._config.checkpoint, keep=1)
            self._checkpoints = Checkpoints(str(self.directory), config, self._config.data)
        self._checkpoints.save(step, state, positions)
        self._checkpoints.wait()
        self._checkpoints.poll()


def _record_of(path: epath.Path) -> dict[str, Any]:
    """Returns the record; InputError, before anything is compiled, if it is damaged."""
    try:
        record = json.loads(read_text(path))
        numbers = {name: record[name] for name in ("last_step", "since") if name in record}
        if "value" in record:
            numbers |= {"value": record["value"], "step": record["step"]}
        if isinstance(record, dict) and all(isinstance(number, int | float) for number in numbers.values()):
            return record
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
    raise InputError(
        f"{path} is not the record of a best step; restore it from a copy, or move {path.parent} away, and the best"
        " step is looked for again."
    )
