"""READ ME FIRST. One training run, from a frozen config to a saved model, as a straight line.

The path of a batch: tasks/<corpus>.py -> limba/data/streams.py -> here -> limba/training/step.py ->
limba/model/t5.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from limba.config import ConfigError, InputError, NonFiniteError, RunConfig
from limba.data import streams, validation
from limba.data.reader_processes import ReaderProcesses, open_stream
from limba.data.vocabulary.load import check_vocabulary
from limba.data.vocabulary.train import ensure_vocabulary
from limba.evaluation.text import TextEvaluation, loss_evaluation
from limba.inference.continuations import sampler
from limba.model import Network
from limba.sharding.mesh import batch_sharding, make_mesh
from limba.training import auto_mesh
from limba.training.best_checkpoint import Best
from limba.training.checkpoint import Checkpoints
from limba.training.flops import flops_per_sequence, peak_flops_per_device
from limba.training.initial_checkpoint import load_initial
from limba.training.logging import Metrics
from limba.training.optimizer import make_optimizer, make_schedule
from limba.training.state import (
    TrainState,
    abstract_state,
    count_parameters,
    create_state,
    gather_parameters,
    state_shardings,
)
from limba.training.step import jit_train_step

FIRST_TRACED = 3  # of a start's steps: the first compiles, the second may still wait for data


def train(config: RunConfig, operative_config: str = "") -> Mapping[str, Any]:
    """Trains until `train_steps` or SIGTERM, going on from model_dir's newest checkpoint if there is one.

    Returns {"step", "interrupted", "train": last figures, "validation": …, "text": …}. Raises
    ConfigError for what cannot work, before anything is compiled, and NonFiniteError.
    """
    _check_writable(config.model_dir)
    mesh, step_function = make_mesh(config.mesh), None
    _check_microbatches(config, mesh.shape["data"] * mesh.shape["fsdp"])
    _check_reductions(config, mesh)
    streams.shards_of_this_process(batch_sharding(mesh), config.data)  # for its errors
    ensure_vocabulary(config.data, jax.process_index() == 0)
    task = _pinned(streams.resolve_task(config.data), config.model_dir)
    lengths = streams.derive_lengths(task, config.data.task_feature_lengths)
    vocabulary = task.output_features["targets"].vocabulary
    fills_gaps = streams.needs_sentinels(task) and not config.model.is_decoder_only
    check_vocabulary(vocabulary, config.model.vocab_size, needs_sentinels=fills_gaps)
    streams.check_sources(task, config.data)
    if config.mesh.auto:
        mesh, step_function = auto_mesh.choose(config, streams.feature_shapes(task, lengths, config.data))
    sharding = batch_sharding(mesh)
    shards = streams.shards_of_this_process(sharding, config.data)

    model = Network(config.model, mesh)
    optimizer = make_optimizer(config.optimizer, config.train_steps)
    schedule = make_schedule(config.optimizer.schedule, config.train_steps)
    abstract = abstract_state(model, optimizer, mesh, config.mesh.shard_update)
    checkpoints = Checkpoints(config.model_dir, config.checkpoint, config.data)
    with checkpoints, contextlib.closing(open_stream(task, lengths, config.data, shards)) as stream:
        restored = checkpoints.restore_latest(abstract)
        if restored is not None:
            state, positions = restored
            stream.restore({shard: positions[shard] for shard in shards})
        elif config.initial_checkpoint_path:
            fresh = create_state(model, optimizer, mesh, config.random_seed, config.mesh.shard_update)
            state = load_initial(config.initial_checkpoint_path, abstract, config.model, fresh, config.reset_step)
            del fresh
        else:
            state = create_state(model, optimizer, mesh, config.random_seed, config.mesh.shard_update)
        start = int(state.step)
        if start > config.train_steps or (restored is None and start == config.train_steps):
            raise InputError(
                f"The checkpoint is at step {start} and RunConfig.train_steps is {config.train_steps}; set it higher."
            )

        evaluate = loss_evaluation(config, task, lengths, model, sharding)
        judge_text = TextEvaluation(config, task, lengths, model, mesh)
        if step_function is None:
            shardings = state_shardings(model, optimizer, mesh, config.mesh.shard_update)
            parts, dtype = config.num_microbatches, config.gradient_reduce_dtype
            step_function = jit_train_step(model, optimizer, schedule, config.loss, parts, shardings, dtype)
        with Metrics(config.model_dir, start, config.train_steps, jax.process_index() == 0) as metrics:
            _introduce(config, metrics, abstract, lengths, start, operative_config)
            for sentence in validation.truncation(task, lengths, config.data) if metrics.writes else ():
                metrics.say(sentence)
            sample = sampler(model, vocabulary, config.evaluation)
            loop = _Loop(config, lengths, model, metrics, checkpoints, stream, evaluate, judge_text, sample)
            return loop.run(state, start, step_function, lambda rows: streams.global_batch(rows, sharding, config.data))


class _Loop:
    """The steps of a run between its start and its end, and what happens at intervals."""

    def __init__(
        self,
        config: RunConfig,
        lengths: Mapping[str, int],
        model: Network,
        metrics: Metrics,
        checkpoints: Checkpoints,
        stream: streams.TrainStream | ReaderProcesses,
        evaluate: Callable[[Any], dict[str, float]] | None,
        judge_text: TextEvaluation,
        sample: Callable[[Any], dict[str, list[str]]] | None,
    ):
        self.judge_text, self.model = judge_text, model
        self.best = Best(config.model_dir, config.checkpoint, config.data, config.evaluation.patience)
        self.config, self.metrics, self.checkpoints = config, metrics, checkpoints
        self.stream, self.evaluate, self.sample = stream, evaluate, sample
        peak = peak_flops_per_device()
        flops = flops_per_sequence(config.model, *_sides(config, lengths))
        self.peak_seconds_per_step = flops * config.data.batch_size / (peak * model.mesh.size) if peak else None
        self.figures: dict[str, Any] = {"train": {}, "validation": {}}
        self.num_devices, self.tracing, self.has_advised = model.mesh.size, False, False

    def run(self, state: TrainState, start: int, step_function: Callable, place: Callable) -> Mapping[str, Any]:
        config, metrics = self.config, self.metrics
        key = jax.random.key(config.random_seed + 1, impl=config.random_bits)
        recent: list[tuple[int, Any, Any]] = []  # (step, rows, metrics on the device) since the last line
        interrupted, saved = False, start if start in self.checkpoints.steps() else None
        step, waited, began = start, 0.0, time.monotonic()
        with _termination() as stop_requested:
            for step in range(start + 1, config.train_steps + 1):
                asked = time.monotonic()
                rows = next(self.stream, None)
                if config.data.num_epochs is not None and not _on_any_host(rows is not None):
                    metrics.say(f"The corpus has been read {config.data.num_epochs} time(s): the run ends here.")
                    step -= 1
                    break
                rows = self.stream.empty() if rows is None else rows
                waited += time.monotonic() - asked
                self._begin_trace(step - start)
                state, step_metrics = step_function(state, place(rows), key)
                recent.append((step, rows, step_metrics))
                metrics.advance(step)
                last, interrupted = step == config.train_steps, stop_requested(step)
                self._end_trace(step - start, last or interrupted, state)
                saves = last or interrupted or step % config.checkpoint.every_steps == 0
                evaluates = not interrupted and (last or step % config.evaluation.every_steps == 0)
                if saves or evaluates or step % config.log_every_steps == 0 or step == start + 1:
                    self._log(recent, waited, began)
                    recent, waited, began = [], 0.0, time.monotonic()
                ending = ""
                if evaluates:
                    ending = self._evaluate(step, state)
                    began = time.monotonic()
                if saves or ending:
                    self._save(step, state)
                    saved, began = step, time.monotonic()
                if ending:
                    metrics.say(ending)
                    break
                if interrupted:
                    metrics.say(f"Asked to stop: saved step {step:,}. The same command goes on from there.")
                    break
        self._end_trace(step - start, True, state)
        if config.profile_steps and step - start < FIRST_TRACED:
            metrics.say(
                f"Nothing was traced: that begins at a start's step {FIRST_TRACED}, and it made {step - start}."
            )
        if saved != step and step > start:  # the corpus ended before train_steps
            if recent:
                self._log(recent, waited, began)
            self._evaluate(step, state)
            self._save(step, state)
            saved = step
        return {"step": saved, "interrupted": interrupted, **self.figures}

    def _begin_trace(self, number: int) -> None:
        if self.config.profile_steps and number == FIRST_TRACED:
            jax.profiler.start_trace(str(epath.Path(self.config.model_dir) / "profile"))
            self.tracing = True

    def _end_trace(self, number: int, is_last: bool, state: TrainState) -> None:
        if self.tracing and (is_last or number == FIRST_TRACED + self.config.profile_steps - 1):
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            self.tracing = False
            self.metrics.say(f"Traced {number - FIRST_TRACED + 1} step(s) into {self.config.model_dir}/profile")

    def _evaluate(self, step: int, state: TrainState) -> str:
        """Evaluates and keeps the best; returns why the run should end, or ""."""
        params = gather_parameters(self.model, state.params)
        if self.evaluate is not None:
            self.figures["validation"] = self.evaluate(params)
            self.metrics.validation_line(step, self.figures["validation"])
        if self.sample is not None:
            self.metrics.samples(step, self.sample(params))
        if self.judge_text.tasks:
            self.figures["text"] = self.judge_text(params, step)
            self.metrics.text_line(step, self.figures["text"])
        figures = {**self.figures["validation"], **self.figures.get("text", {})}
        if self.config.checkpoint.best_metric is None or not figures:
            return ""
        return self.best.judge(step, figures, state, self.stream.positions())

    def _save(self, step: int, state: TrainState) -> None:
        if skipped := self.stream.skipped():
            path = epath.Path(self.config.model_dir) / f"skipped_units_process_{jax.process_index()}.json"
            path.write_text(json.dumps(skipped, indent=1) + "\n")
        self.checkpoints.save(step, state, self.stream.positions())
        self.metrics.say(f"step {step:,} saved in {self.checkpoints.directory}")

    def _log(self, recent: list[tuple[int, Any, Any]], waited: float, began: float) -> None:
        """Waits for the device, checks that all is finite, and writes one line for the steps since the last."""
        fetched = jax.device_get([step_metrics for _, _, step_metrics in recent])
        seconds = time.monotonic() - began
        for (step, rows, _), values in zip(recent, fetched, strict=True):
            if not all(map(math.isfinite, (values["loss"], values["gradient_norm"], values["update_norm"]))):
                raise NonFiniteError(_write_down(self.config, step, rows, values, self.checkpoints.steps()))
        tokens = np.array([values["target_tokens"] for values in fetched])
        weights = tokens / max(tokens.sum(), 1.0)
        averaged = {
            name: float(np.dot([values[name] for values in fetched], weights))
            for name in ("loss", "cross_entropy", "accuracy")
        }
        norms = ("learning_rate", "gradient_norm", "parameter_norm", "update_norm")
        all_tokens = float(tokens.sum()) + sum(float(values["input_tokens"]) for values in fetched)
        figures = {
            **averaged,
            **{name: float(fetched[-1][name]) for name in norms},
            "seconds_per_step": seconds / len(recent),
            "tokens_per_second": all_tokens / seconds,
            "sequences_per_second_per_device": self.config.data.batch_size * len(recent) / seconds / self.num_devices,
            "data_wait": waited / seconds,
            **{f"epochs/{name}": epochs for name, epochs in self.stream.epochs().items()},
        }
        if memory := jax.local_devices()[0].memory_stats():  # a CPU keeps no account
            figures["hbm_peak_gib"] = memory["peak_bytes_in_use"] / 2**30
        if self.peak_seconds_per_step is not None:
            figures["mfu"] = self.peak_seconds_per_step / figures["seconds_per_step"]
        self.figures["train"] = figures
        self.metrics.train_line(recent[-1][0], figures)
        advice = waiting_advice(len(recent), figures["data_wait"], self.config.data.num_reader_processes)
        if advice and not self.has_advised:
            self.metrics.say(advice)
            self.has_advised = True


def waiting_advice(num_steps: int, data_wait: float, num_processes: int) -> str:
    """Returns what to do where the devices wait for text, of many enough steps, and cores are left; else "".

    >>> waiting_advice(9, 0.5, 1) or waiting_advice(100, 0.09, 1) or waiting_advice(100, 0.5, 1_000)
    ''
    """
    num_cores = os.cpu_count() or 1
    if num_steps < 10 or data_wait < 0.1 or num_processes >= num_cores:
        return ""
    return (
        f"The devices wait for text {data_wait:.0%} of the time. More processes may read it:"
        f" DataConfig.num_reader_processes is {num_processes}, and this host has {num_cores} cores."
    )


def _introduce(
    config: RunConfig, metrics: Metrics, abstract: TrainState, lengths: Mapping[str, int], start: int, operative: str
) -> None:
    """Says what this run is, and writes its operative config beside its metrics."""
    if operative and metrics.writes:
        (epath.Path(config.model_dir) / "config.gin").write_text(operative)
    devices = jax.devices()
    metrics.say(
        f"{count_parameters(abstract.params):,} parameters on {len(devices)} x {devices[0].device_kind}"
        f" in {jax.process_count()} process(es)"
    )
    inputs, targets = _sides(config, lengths)
    tokens = f"{inputs} inputs and {targets} targets" if inputs else f"{targets} tokens"
    metrics.say(
        f"{config.data.mixture_or_task_name}: {config.data.batch_size} rows of {tokens} a step,"
        f" {config.data.num_data_shards} data shards"
    )
    where = f"goes on from step {start:,}" if start else "starts"
    metrics.say(f"{config.model_dir} {where}, to step {config.train_steps:,}")
    if start < config.train_steps:
        metrics.say("Compiling the step; the first line follows it.")


def _sides(config: RunConfig, lengths: Mapping[str, int]) -> tuple[int, int]:
    """Returns the lengths that the encoder and the decoder read; a decoder alone reads one sequence."""
    length = config.data.sequence_length
    return (0, length) if length is not None else (lengths["inputs"], lengths["targets"])


def _pinned(task: streams.Provider, model_dir: str) -> streams.Provider:
    """Returns the task with its hub data sets at the commits that this run began with, kept in model_dir.

    A data set that changes during a run would otherwise change under a saved position.
    """
    path = epath.Path(model_dir) / "data_revisions.json"
    if not path.exists():
        found = streams.revisions(task)  # by all, so that a hub that cannot be asked ends all
        if found and jax.process_index() == 0:
            path.write_text(json.dumps(found, indent=1) + "\n")
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("data revisions")
    return streams.pinned(task, json.loads(path.read_text())) if path.exists() else task


def _on_any_host(here: bool) -> bool:
    return bool(np.any(multihost_utils.process_allgather(np.array(here))))


def _check_microbatches(config: RunConfig, num_groups: int) -> None:
    rows, parts = config.data.batch_size, config.num_microbatches
    if rows % (num_groups * parts):
        raise ConfigError(
            "DataConfig.batch_size",
            f"{rows} does not divide into RunConfig.num_microbatches {parts} parts over {num_groups} groups of devices"
            " (the mesh's data x fsdp); make it a multiple of their product.",
        )


def _check_reductions(config: RunConfig, mesh: Mesh) -> None:
    if config.gradient_reduce_dtype != "auto" and mesh.shape["data"] != mesh.size:
        raise ConfigError(
            "RunConfig.gradient_reduce_dtype",
            f"is {config.gradient_reduce_dtype!r}, which needs all parameters on every"
            f" device, and the mesh has fsdp {mesh.shape['fsdp']} and model {mesh.shape['model']}; set it to 'auto',"
            " or both of these to 1.",
        )


def _check_writable(model_dir: str) -> None:
    probe = epath.Path(model_dir) / f".writable-{jax.process_index()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except Exception as error:  # a bucket's client has errors of its own
        reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(
            "RunConfig.model_dir", f"{model_dir} cannot be written ({reason}); give a directory that can."
        ) from error


def _write_down(
    config: RunConfig, step: int, rows: Mapping[int, streams.Rows], values: Mapping[str, float], steps: list[int]
) -> str:
    """Saves the rows that this process fed to a bad step; returns the sentence about it."""
    left = f"the checkpoint at step {steps[-1]} is good" if steps else "nothing was saved"
    path = epath.Path(config.model_dir) / f"non_finite_step_{step}_process_{jax.process_index()}.npz"
    with path.open("wb") as file:
        np.savez(
            file, **{f"{feature}/{shard}": array for shard, part in rows.items() for feature, array in part.items()}
        )
    return (
        f"Step {step} gave loss {values['loss']:.6g}, gradient norm {values['gradient_norm']:.6g} and update norm"
        f" {values['update_norm']:.6g}; its batch is in {path}, {left}: lower the learning rate, or look at the batch."
    )


@contextlib.contextmanager
def _termination() -> Iterator[Callable[[int], bool]]:
    """Yields a function that says, after a step, whether SIGTERM asks all processes to save and stop.

    With several processes jax's preemption service carries one process's SIGTERM to all of them and
    names the step at which all stop; alone, a flag does.
    """
    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point
        return
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        yield lambda step: bool(received)
    finally:
        signal.signal(signal.SIGTERM, before)
