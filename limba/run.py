"""READ ME FIRST. One training run, from a frozen configuration to a saved model, as a straight line.

The path of a batch: tasks/<corpus>.py -> limba/data/stream/streams.py -> here -> limba/training/loop.py ->
limba/training/step.py -> limba/model/t5.py.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from limba.config import InputError, RunConfig
from limba.data import run_data
from limba.data.objectives.choice import reads_prefix
from limba.data.stream import placement
from limba.data.stream.stages import open_stages
from limba.data.vocabulary.stream import row_ids_of
from limba.evaluation import hidden_words
from limba.evaluation.text import TextEvaluation, sampler
from limba.evaluation.validation import loss_evaluation
from limba.export import at_end
from limba.model import Network
from limba.sharding.agreement import (
    check_alike,
    compiled_together,
    entered_by_first,
    facts_of_run,
    is_first,
    together,
)
from limba.sharding.mesh import batch_sharding, keep_compiled_programs, make_mesh
from limba.sharding.watchdog import watching
from limba.storage import lease
from limba.training import checks
from limba.training.checkpoints.directory import Checkpoints
from limba.training.guard import Guard
from limba.training.ledger import Ledger
from limba.training.loop import Evaluations, Loop
from limba.training.metrics.figures import RecentSteps, details, facts, introduction
from limba.training.metrics.logging import Metrics
from limba.training.metrics.records import Callbacks
from limba.training.optimizer import optimizer_of
from limba.training.reading import RowReader, ShardRows
from limba.training.schedule import make_schedule
from limba.training.start import first_state, plan_of_run, task_of_run, write_config
from limba.training.state import TrainState, abstract_state, count_parameters, state_shardings
from limba.training.step import Gradient, Limits, StepMetrics, jit_train_step


def train(config: RunConfig, gin_text: str = "", callbacks: Callbacks | None = None) -> Mapping[str, Any]:
    """Trains until `train_steps` or a signal to stop; resumes from model_dir's newest checkpoint if there is one.

    Returns {"step", "interrupted", "train": the last figures, "validation", "text", "exports": places that got the
    model, "failed_exports": sentences}. `gin_text` is kept as model_dir/config.gin, beside config.json. `callbacks` get
    the figures, and may stop the run.

    Raises InputError for an invalid configuration, before anything is compiled; NonFiniteError if the loss or the
    gradient is not finite; StorageError if model_dir cannot be written any more; RestartError if the same command
    resumes the run.
    """
    if not isinstance(config, RunConfig):
        raise InputError(
            f"train takes a RunConfig, and {config!r} is none; read it by limba.read_gin, as in"
            " limba.train(limba.read_gin('my.gin'))."
        )
    keep_compiled_programs()
    # Check what needs no data. What differs between the processes, or is wrong in one, ends all of them.
    check_alike(lambda: facts_of_run(config, config.data.task_modules))
    with together():
        mesh = make_mesh(config.mesh)
        checks.check_run(config, mesh)
        at_end.check(config)
        checks.check_num_shards(placement.shards_of_this_process(batch_sharding(mesh), config.data), config)
    checks.check_shared(config.model_dir)
    # This run, with all its processes, is the only one in model_dir until it ends.
    with entered_by_first(lease.held(config.model_dir, "trains in")) as mine:
        with at_end.uploading(config):
            seconds = config.checkpoint.save_timeout_seconds  # for which the directory may be gone
            result = _train(config, gin_text, callbacks, mesh, lambda: mine.check(seconds) if mine else None)
        return at_end.deliver_all(config, result)


def _train(
    config: RunConfig, gin_text: str, callbacks: Callbacks | None, mesh: Mesh, check_lease: Callable[[], None]
) -> Mapping[str, object]:
    with together():
        ledger = Ledger(config)
    task, lengths = task_of_run(config)
    plan = plan_of_run(config, task, lengths)  # how rows are dealt, and where that lets the run end

    # The mesh: batches, parameters and optimizer state are sharded over it.
    sharding, shard_update = batch_sharding(mesh), config.mesh.shard_update
    shards = placement.shards_of_this_process(sharding, config.data)

    # The network, and what updates it.
    model = Network(config.model, mesh)
    optimizer = optimizer_of(plan.planned, model)
    schedule = make_schedule(config.optimizer.schedule, plan.planned.train_steps)
    abstract = abstract_state(model, optimizer, mesh, shard_update)

    # What is evaluated.
    with together():
        text = TextEvaluation(config, task, lengths, model, mesh)
        loss = loss_evaluation(config, task, lengths, model, sharding)
        targets = task.output_features["targets"].vocabulary
        if is_first():
            at_end.check_vocabulary(config, targets)
        hidden = hidden_words.sentences(config, task)
        prompts = (*config.evaluation.prompts, *(sentence.masked for sentence in hidden))
        sampling = dataclasses.replace(config.evaluation, prompts=prompts)
        samples = sampler(model, mesh, targets, sampling, reads_prefix(task, config.data.task_feature_lengths))
        words = {sentence.masked: sentence.words for sentence in hidden}
        copied: Mapping[str, float] = {}
        with contextlib.suppress(InputError):  # of a metric that takes no such text: it is a figure to compare with
            copied = text.copied()
        evaluations = Evaluations(loss, samples, text if text.tasks else None, words, copied)
        checks.check_best_metric(config, (*getattr(loss, "names", ()), *text.names))

    checkpoints = Checkpoints(config.model_dir, config.checkpoint, config.data, check_lease)
    # Where it begins: resumed, initialized from an existing checkpoint, or new. The guard may return to an earlier one.
    open_stream = functools.partial(open_stages, plan.stages, lengths, shards)
    new_state = functools.partial(first_state, config, model, optimizer, abstract)
    reader = RowReader(checkpoints, abstract, open_stream, new_state, config.data.num_epochs is not None)
    with watching(config), checkpoints, contextlib.closing(reader):
        checks.check_steps(config, max(checkpoints.steps(), default=0))
        checkpoints.check_space(abstract)

        state, notes = reader.begin(checkpoints.restore_latest)
        start = int(state.step)
        checks.check_steps(config, start, is_new=notes is None)
        checkpoints.reserve_memory(abstract)

        # The loop: a compiled step, logging.
        shardings = state_shardings(model, optimizer, mesh, shard_update)
        gradient = Gradient(model, config.loss, config.num_microbatches, config.gradient_reduce_dtype)
        train_step = jit_train_step(gradient, optimizer, schedule, shardings, config.guard.action == "skip")
        end, writes = plan.planned.train_steps, jax.process_index() == 0
        with Metrics(config.model_dir, start, end, writes, config, callbacks) as metrics, checks.memory_advice(config):
            if metrics.writes:
                write_config(config, gin_text, [stage.task for stage in plan.stages])
                for sentence, is_any_cut in run_data.truncation(task, lengths, config.data).items():
                    show = metrics.say if is_any_cut else metrics.detail
                    show(sentence)
            num_parameters = count_parameters(abstract.params)
            for sentence in (*plan.notes, *introduction(plan.planned, num_parameters, start)):
                metrics.say(sentence)
            for line in details(plan.planned, lengths, start):
                metrics.detail(line)
            metrics.record("start", start, facts(config, num_parameters, lengths, mesh.size))
            recent = RecentSteps(config, lengths, mesh.size, metrics)
            # The time of the first step begins when it is compiled.
            train_step = compiled_together(train_step, "the training step", config.step_timeout_seconds, recent.restart)
            place = functools.partial(
                placement.global_batch, sharding=sharding, config=config.data, row_ids=row_ids_of(targets)
            )
            key = jax.random.key(config.random_seed + 1, impl=config.random_bits)

            def update(state: TrainState, rows: ShardRows, limits: Limits) -> tuple[TrainState, StepMetrics]:
                return train_step(state, place(rows), key, *limits)

            guard = Guard(config, model, ledger, recent, place)
            guard.begin(start, notes)
            return Loop(config, plan, model, reader, evaluations, recent, guard).run(state, update)
