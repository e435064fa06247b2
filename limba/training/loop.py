"""The training loop: steps, and at intervals a logged line, an evaluation and a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from etils import epath

from limba.config import RunConfig
from limba.data.reader_processes import ReaderProcesses
from limba.data.streams import Rows, TrainStream
from limba.model import Network
from limba.sharding.multihost import any_process
from limba.sharding.preemption import stop_requests
from limba.training.checkpoints.best import Best
from limba.training.checkpoints.directory import Checkpoints
from limba.training.figures import RecentSteps, waiting_advice
from limba.training.logging import Metrics
from limba.training.state import TrainState, gather_parameters
from limba.training.tracing import Trace

Figures = Mapping[str, float]


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
        model: Network,
        stream: TrainStream | ReaderProcesses,
        checkpoints: Checkpoints,
        evaluations: Evaluations,
        metrics: Metrics,
        recent: RecentSteps,
    ):
        self.config, self.model, self.stream, self.checkpoints = config, model, stream, checkpoints
        self.evaluations, self.metrics, self.recent, self.best = evaluations, metrics, recent, Best(config)
        self.figures: dict[str, Any] = {"train": {}, "validation": {}}
        self.has_advised = False

    def run(self, state: TrainState, train_step: Callable, place: Callable[[Any], Any]) -> Mapping[str, Any]:
        """Runs the steps up to `train_steps` and returns what `limba.run.train` returns.

        `place` makes a global batch from one process's rows. A run ends early on SIGTERM, at the end of its corpus, or
        by `EvaluationConfig.patience`.
        """
        config, say, recent = self.config, self.metrics.say, self.recent
        key = jax.random.key(config.random_seed + 1, impl=config.random_bits)
        step = saved = start = int(state.step)
        interrupted, trace = False, Trace(config, start, say)
        with stop_requests() as stop_requested:
            recent.restart()
            for step in range(start + 1, config.train_steps + 1):
                with recent.waiting():
                    rows = self._next_rows()
                if rows is None:
                    step -= 1
                    say(f"The corpus has been read {config.data.num_epochs} time(s): the run ends at step {step:,}.")
                    break
                trace.before(step)
                state, step_metrics = train_step(state, place(rows), key)
                recent.add(step, rows, step_metrics)
                self.metrics.advance(step)
                interrupted = stop_requested(step)
                is_last = interrupted or step == config.train_steps
                trace.after(step, state, is_last)
                saves = is_last or step % config.checkpoint.every_steps == 0
                evaluates = not interrupted and (is_last or step % config.evaluation.every_steps == 0)
                if saves or evaluates or step % config.log_every_steps == 0 or step == start + 1:
                    self._log(step)
                ending = self._evaluate(step, state) if evaluates else ""
                if saves or ending:
                    self._save(step, state)
                    saved = step
                if interrupted:
                    ending = f"Asked to stop: step {step:,} is saved. The same command resumes from it."
                if ending:
                    say(ending)
                    break
        trace.close(step, state)
        if saved != step:  # the corpus has ended
            if len(recent):
                self._log(step)
            self._evaluate(step, state)
            self._save(step, state)
        return {"step": step, "interrupted": interrupted, **self.figures}

    def _next_rows(self) -> Mapping[int, Rows] | None:
        """Returns this process's rows of the next batch, or None if the corpus of every process has ended."""
        rows = next(self.stream, None)
        if self.config.data.num_epochs is not None and not any_process(rows is not None):
            return None
        return self.stream.empty() if rows is None else rows

    def _log(self, step: int) -> None:
        """Logs the steps since the last logged line."""
        figures = self.recent.figures(self.stream.epochs(), self.checkpoints.steps())
        advice = waiting_advice(len(self.recent), figures["data_wait"], self.config.data.num_reader_processes)
        self.recent.restart()
        self.figures["train"] = figures
        self.metrics.train_line(step, figures)
        if advice and not self.has_advised:
            self.metrics.say(advice)
            self.has_advised = True

    def _evaluate(self, step: int, state: TrainState) -> str:
        """Evaluates, and saves the best step; returns the reason to end the run, or ""."""
        params = gather_parameters(self.model, state.params)
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

    def _save(self, step: int, state: TrainState) -> None:
        """Starts saving the state and the data position, and lists what could not be read."""
        if skipped := self.stream.skipped():
            path = epath.Path(self.config.model_dir) / f"skipped_units_process_{jax.process_index()}.json"
            path.write_text(json.dumps(skipped, indent=1) + "\n")
        self.checkpoints.save(step, state, self.stream.positions())
        self.metrics.say(f"step {step:,} saved in {self.checkpoints.directory}")
        self.recent.restart()
