"""What a run makes before its first step: its task, its first state, and the description of itself."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import jax
import optax

from limba.config import RunConfig, plain
from limba.config.secrets import without_credentials
from limba.data.objectives import derive_lengths
from limba.data.stream.stages import check_rows_of_stage, task_of_stage
from limba.data.tasks import (
    Provider,
    check_sources,
    keep_vocabularies,
    needs_sentinels,
    pinned_for_run,
    resolve_task_of_run,
)
from limba.data.vocabulary.load import byte_extra_ids, check_vocabulary
from limba.data.vocabulary.train import HOURS_WAITED, ensure_vocabulary
from limba.formats import limba_checkpoint
from limba.model import Network
from limba.sharding.agreement import check_alike, together
from limba.storage.files import resolved, write_whole
from limba.training.checkpoints.initial import check_initial, load_initial
from limba.training.checks import check_steps, facts_of_data
from limba.training.state import TrainState, create_state


def task_of_run(config: RunConfig) -> tuple[Provider, dict[str, int]]:
    """Returns the task and its lengths, the same in all processes; trains the vocabulary first if it is missing.

    Raises InputError, in all processes alike, for a task, vocabulary or corpus that cannot be used, and for the
    checkpoint of a new run that is not there.
    """
    first, data = jax.process_index() == 0, config.data
    with together(HOURS_WAITED * 3600):  # the others wait here while the first process trains it, and for its errors
        if first:
            ensure_vocabulary(data, trains=True)
    with together():
        ensure_vocabulary(data, trains=first)
        task = resolve_task_of_run(data, config.model_dir)
    task = pinned_for_run(task, config.model_dir)
    with together():
        lengths = _checked(task, config)
    if config.initial_checkpoint_path:
        with together(HOURS_WAITED * 3600):  # a model of the hub is downloaded here
            if not limba_checkpoint.checkpoints_of(resolved(config.model_dir)):
                vocabulary = task.output_features["targets"].vocabulary
                learns_gaps = needs_sentinels(task) and not config.model.is_decoder_only
                check_initial(config.initial_checkpoint_path, byte_extra_ids(vocabulary) if learns_gaps else None)
    check_alike(lambda: facts_of_data(task, data))
    return task, lengths


def _checked(task: Provider, config: RunConfig) -> dict[str, int]:
    """Returns the lengths of a task's rows; InputError for a vocabulary or corpus that cannot be used."""
    lengths = derive_lengths(task, config.data.task_feature_lengths)
    fills_gaps = needs_sentinels(task) and not config.model.is_decoder_only
    vocabulary = task.output_features["targets"].vocabulary
    check_vocabulary(vocabulary, config.model.vocab_size, needs_sentinels=fills_gaps)
    check_sources(task, config.data)
    return lengths


def tasks_of_stages(config: RunConfig, task: Provider, lengths: Mapping[str, int]) -> dict[int, Provider]:
    """Returns the task of each stage by its first batch: `task` for the first one, which is checked already.

    Raises InputError, in all processes alike, for a stage whose task or corpus cannot be used, and for one whose rows
    are not like those of the first.
    """
    found = {0: task}
    for begins, _ in config.data.stages:
        with together():
            later = task_of_stage(begins, task, lengths, config.data)
        later = pinned_for_run(later, config.model_dir)
        with together():
            check_rows_of_stage(begins, later, _checked(later, config), task, lengths, config.data)
        check_alike(functools.partial(facts_of_data, later, config.data))
        found[begins] = later
    return found


def first_state(
    config: RunConfig, model: Network, optimizer: optax.GradientTransformation, abstract: TrainState
) -> TrainState:
    """Returns a new state, initialized from an existing checkpoint if the run names one."""
    assert model.mesh is not None
    state = create_state(model, optimizer, model.mesh, config.random_seed, config.mesh.shard_update)
    path, check = config.initial_checkpoint_path, functools.partial(check_steps, config)
    return load_initial(path, abstract, config.model, state, config.reset_step, check) if path else state


def write_config(config: RunConfig, gin_text: str, tasks: Iterable[Provider] = ()) -> None:
    """Writes what describes this run into model_dir: vocabularies, config.json, and config.gin where there is one."""
    keep_vocabularies(tasks, config.model_dir)
    directory = config.model_dir.rstrip("/")
    write_whole(f"{directory}/{plain.FILE}", plain.to_text(config))
    if gin_text:
        write_whole(f"{directory}/config.gin", without_credentials(gin_text))
