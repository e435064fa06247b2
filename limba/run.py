"""READ ME FIRST. One training run, from a frozen configuration to a saved model, as a straight line.

The path of a batch: tasks/<corpus>.py -> limba/data/streams.py -> here -> limba/training/loop.py ->
limba/training/step.py -> limba/model/t5.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
from etils import epath

from limba.config import ConfigError, RunConfig, plain
from limba.data import placement, streams, validation
from limba.data.objectives import derive_lengths
from limba.data.reader_processes import open_stream
from limba.data.tasks import check_sources, needs_sentinels, pinned_for_run, resolve_task
from limba.data.vocabulary.load import check_vocabulary
from limba.data.vocabulary.train import ensure_vocabulary
from limba.evaluation.text import TextEvaluation
from limba.evaluation.validation import loss_evaluation
from limba.inference.generate import sampler
from limba.model import Network
from limba.sharding.mesh import batch_sharding, make_mesh
from limba.training import auto_mesh
from limba.training.checkpoints.directory import Checkpoints
from limba.training.checkpoints.initial import load_initial
from limba.training.checks import check_run
from limba.training.figures import RecentSteps, introduction
from limba.training.logging import Metrics
from limba.training.loop import Evaluations, Loop
from limba.training.optimizer import make_optimizer
from limba.training.schedule import make_schedule
from limba.training.state import abstract_state, count_parameters, create_state, state_shardings
from limba.training.step import jit_train_step


def train(config: RunConfig, gin_text: str = "") -> Mapping[str, Any]:
    """Trains until `train_steps` or SIGTERM; resumes from model_dir's newest checkpoint if there is one.

    Returns {"step", "interrupted", "train": the last figures, "validation", "text"}. `gin_text` is kept as
    model_dir/config.gin, beside config.json. Raises InputError for an invalid configuration, before anything is
    compiled, and NonFiniteError if the loss or the gradient is not finite. README.md has an example.
    """
    # Check what needs no data.
    mesh, train_step = make_mesh(config.mesh), None
    check_run(config, mesh)
    placement.shards_of_this_process(batch_sharding(mesh), config.data)

    # Resolve the vocabulary, the task and its lengths.
    ensure_vocabulary(config.data, jax.process_index() == 0)
    task = pinned_for_run(resolve_task(config.data), config.model_dir)
    lengths = derive_lengths(task, config.data.task_feature_lengths)
    vocabulary = task.output_features["targets"].vocabulary
    fills_gaps = needs_sentinels(task) and not config.model.is_decoder_only
    check_vocabulary(vocabulary, config.model.vocab_size, needs_sentinels=fills_gaps)
    check_sources(task, config.data)

    # The mesh: batches, parameters and optimizer state are sharded over it.
    if config.mesh.auto:
        mesh, train_step = auto_mesh.choose(config, streams.feature_shapes(task, lengths, config.data))
    sharding, shard_update = batch_sharding(mesh), config.mesh.shard_update
    shards = placement.shards_of_this_process(sharding, config.data)

    # The network, and what updates it.
    model = Network(config.model, mesh)
    optimizer = make_optimizer(config.optimizer, config.train_steps)
    schedule = make_schedule(config.optimizer.schedule, config.train_steps)
    abstract = abstract_state(model, optimizer, mesh, shard_update)

    checkpoints = Checkpoints(config.model_dir, config.checkpoint, config.data)
    with checkpoints, contextlib.closing(open_stream(task, lengths, config.data, shards)) as stream:
        # The state: resumed, initialized from an existing checkpoint, or new.
        restored = checkpoints.restore_latest(abstract)
        if restored is not None:
            state, positions = restored
            stream.restore({shard: positions[shard] for shard in shards})
        else:
            state = create_state(model, optimizer, mesh, config.random_seed, shard_update)
            if config.initial_checkpoint_path:
                path, reset = config.initial_checkpoint_path, config.reset_step
                state = load_initial(path, abstract, config.model, state, reset)
        start = int(state.step)
        if start > config.train_steps or (restored is None and start == config.train_steps):
            raise ConfigError(
                "RunConfig.train_steps",
                f"is {config.train_steps}, and the checkpoint is at step {start}; give a larger number.",
            )

        # The loop: a compiled step, evaluations, logging.
        text = TextEvaluation(config, task, lengths, model, mesh)
        evaluations = Evaluations(
            loss=loss_evaluation(config, task, lengths, model, sharding),
            samples=sampler(model, mesh, vocabulary, config.evaluation),
            text=text if text.tasks else None,
        )
        if train_step is None:
            shardings = state_shardings(model, optimizer, mesh, shard_update)
            parts, dtype = config.num_microbatches, config.gradient_reduce_dtype
            train_step = jit_train_step(model, optimizer, schedule, config.loss, parts, shardings, dtype)
        with Metrics(config.model_dir, start, config.train_steps, writes=jax.process_index() == 0) as metrics:
            if metrics.writes:
                _write_config(config, gin_text)
                for sentence in validation.truncation(task, lengths, config.data):
                    metrics.say(sentence)
            for sentence in introduction(config, count_parameters(abstract.params), lengths, start):
                metrics.say(sentence)
            recent = RecentSteps(config, lengths, mesh.size)
            loop = Loop(config, model, stream, checkpoints, evaluations, metrics, recent)
            return loop.run(state, train_step, lambda rows: placement.global_batch(rows, sharding, config.data))


def _write_config(config: RunConfig, gin_text: str) -> None:
    """Writes what describes this run into model_dir: config.json, and config.gin where gin described it."""
    directory = epath.Path(config.model_dir)
    (directory / plain.FILE).write_text(plain.to_text(config))
    if gin_text:
        (directory / "config.gin").write_text(gin_text)
