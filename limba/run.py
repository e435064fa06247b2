"""READ ME FIRST. One training run, from a frozen configuration to a saved model, as a straight line.

The path of a batch: tasks/<corpus>.py -> limba/data/stream/streams.py -> here -> limba/training/loop.py ->
limba/training/step.py -> limba/model/t5.py.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from limba.config import InputError, RunConfig
from limba.data.stream.stages import open_stages
from limba.data.vocabulary.shifted import row_ids_of
from limba.evaluation.evaluations import evaluations_of_run
from limba.export import end_of_run
from limba.model import Network
from limba.sharding.agreement import entered_by_first, is_first, together
from limba.sharding.consistency import check_alike, facts_of_run
from limba.sharding.mesh import batch_sharding, keep_compiled_programs, make_mesh
from limba.sharding.watchdog import watching
from limba.storage import lease
from limba.training import checks, placement
from limba.training.checkpoints.directory import Checkpoints
from limba.training.guard import Guard
from limba.training.history import History
from limba.training.introduction import introduce
from limba.training.loop import Loop
from limba.training.metrics.logging import Metrics
from limba.training.metrics.recent_steps import RecentSteps
from limba.training.metrics.records import Callbacks
from limba.training.optimizer import optimizer_of
from limba.training.row_reader import RowReader
from limba.training.skipped_batches import SkippedBatches
from limba.training.start import first_state, plan_of_run, task_of_run
from limba.training.state import abstract_state, shardings_of
from limba.training.update import update_of_run


def train(config: RunConfig, gin_text: str = "", callbacks: Callbacks | None = None) -> Mapping[str, Any]:
    """Trains until `train_steps` or a signal to stop; resumes from model_dir's newest checkpoint if there is one.

    Returns {"step", "interrupted", "train": the last figures, "validation", "text", "exports": where the model was
    exported to, "failed_exports": sentences}. `gin_text` is kept as model_dir/config.gin, beside config.json.
    `callbacks` get the figures, and may stop the run.

    Raises InputError for an invalid configuration, before anything is compiled; NonFiniteError if the loss or the
    gradient is not finite; StorageError if model_dir cannot be written any more; RestartError if the same command
    resumes the run.

    >>> train("gin/demo.gin")
    Traceback (most recent call last):
    limba.config.errors.InputError: limba.train() needs a RunConfig, got 'gin/demo.gin'; ...
    """
    if not isinstance(config, RunConfig):
        raise InputError(
            f"limba.train() needs a RunConfig, got {config!r}; read one with limba.read_gin, as in"
            " limba.train(limba.read_gin('my.gin'))."
        )
    keep_compiled_programs()
    # Check what needs no data. What differs between the processes, or is wrong in one, ends all of them.
    check_alike(lambda: facts_of_run(config, config.data.task_modules))
    with together():
        mesh = make_mesh(config.mesh)
        checks.check_run(config, mesh)
        end_of_run.check(config)
        checks.check_num_shards(placement.shards_of_this_process(batch_sharding(mesh), config.data), config)
    checks.check_shared(config.model_dir)
    # This run, with all its processes, is the only one in model_dir until it ends.
    with entered_by_first(lease.held(config.model_dir)) as held:

        def check_lease() -> None:
            """Raises RestartError if another run has taken model_dir, StorageError if that is away for too long."""
            if held:
                held.check(config.checkpoint.save_timeout_seconds)

        def may_commit() -> None:
            """Raises RestartError if another run has model_dir; asked in the saving thread before a step is named."""
            if held:
                held.confirm()

        with end_of_run.uploading(config):
            result = _train(config, gin_text, callbacks, mesh, check_lease, may_commit)
        return end_of_run.deliver_all(config, result)


def _train(
    config: RunConfig,
    gin_text: str,
    callbacks: Callbacks | None,
    mesh: Mesh,
    check_lease: Callable[[], None],
    may_commit: Callable[[], None],
) -> Mapping[str, object]:
    # Opened first, since what an interrupted save has left is put right by that: the newest says how rows are dealt.
    checkpoints = Checkpoints(config.model_dir, config.checkpoint, config.data, check_lease, may_commit)

    # What is read, how its rows are dealt to the steps, and where that lets the run end.
    with together():
        skipped_batches = SkippedBatches(config)  # the batches that the guard passes over
    task, lengths = task_of_run(config)
    plan = plan_of_run(config, task, lengths)

    # The network, and what updates it. The mesh shards batches, parameters and the optimizer's state.
    model = Network(config.model, mesh)
    optimizer = optimizer_of(plan.planned, model)
    abstract = abstract_state(model, optimizer, mesh, config.mesh.shard_update)

    # What is evaluated at intervals, and exported at the end.
    vocabulary = task.output_features["targets"].vocabulary
    with together():
        evaluations = evaluations_of_run(config, task, lengths, model)
        if is_first():
            end_of_run.check_vocabulary(config, vocabulary)

    # Where it begins: resumed, initialized from an existing checkpoint, or new. The guard may go back there.
    sharding = batch_sharding(mesh)
    shards = placement.shards_of_this_process(sharding, config.data)
    open_stream = functools.partial(open_stages, plan.stages, lengths, shards)
    new_state = functools.partial(first_state, config, model, optimizer, abstract)
    history = History(config.model_dir)
    has_epochs = config.data.num_epochs is not None
    reader = RowReader(checkpoints, abstract, open_stream, new_state, history, has_epochs)
    with watching(config), checkpoints, contextlib.closing(reader):
        newest = max(checkpoints.steps(), default=0)
        checks.check_steps(config, newest)  # before a checkpoint is read
        checkpoints.check_space(abstract)
        state, notes = reader.begin(checkpoints.restore_latest)
        start = int(state.step)
        checks.check_steps(config, start, is_new=notes is None)
        checkpoints.reserve_memory(abstract)

        # The loop: a compiled step on the rows of a batch, evaluated, saved and logged when that is due.
        end = plan.planned.train_steps
        with (
            Metrics(config.model_dir, start, end, jax.process_index() == 0, config, callbacks) as metrics,
            checks.memory_advice(config),
        ):
            introduce(metrics, config, gin_text, plan, lengths, abstract, start, mesh.size)
            recent = RecentSteps(config, lengths, mesh.size, metrics)
            place_batch = functools.partial(
                placement.global_batch, sharding=sharding, config=config.data, row_ids=row_ids_of(vocabulary)
            )
            # The time of the first step begins when it is compiled.
            shardings = shardings_of(abstract)
            update = update_of_run(config, end, model, optimizer, shardings, place_batch, ready=recent.restart)
            guard = Guard(config, model, skipped_batches, recent, place_batch)
            guard.begin(start, notes)
            return Loop(config, plan, model, reader, evaluations, recent, guard).run(state, update)
