"""What a run makes before its first step: its task, its plan, its first state, and the description of itself.

The plan says what epochs mean for the run: how its rows are dealt, and the steps at which it ends, saves and evaluates.
"""

import dataclasses
import functools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jax
import optax
from etils import epath

from limba.config import ConfigError, RunConfig, ScheduleConfig, saved_config, without_credentials
from limba.config.schedule import AUTO
from limba.data import tasks as data_tasks
from limba.data.deal import Deal, corpora_of, deal_of, said
from limba.data.objectives import derive_lengths
from limba.data.stream.positions import of_another_order, opened
from limba.data.stream.stages import Stage, check_rows_of_stage, task_of_stage
from limba.data.tasks import Provider
from limba.data.vocabulary.addresses import address_of
from limba.data.vocabulary.load import check_vocabulary
from limba.data.vocabulary.published import text_read_otherwise
from limba.data.vocabulary.sentinels import byte_extra_ids
from limba.data.vocabulary.shifted import StreamVocabulary
from limba.data.vocabulary.special_ids import check_family
from limba.data.vocabulary.train import HOURS_WAITED, ensure_vocabulary
from limba.formats import limba_checkpoint
from limba.model import Network
from limba.sharding.agreement import is_first, of_first, together
from limba.sharding.consistency import check_alike
from limba.storage.files import read_text, resolved, write_whole
from limba.training.checkpoints.initial import check_initial, check_length, load_initial
from limba.training.checks import check_prefix_of_new_run, check_steps, facts_of_data
from limba.training.data_revisions import pinned_for_run
from limba.training.state import TrainState, create_state, shardings_of

FILE = "rows.json"  # in the run's directory: the counts of its corpora, made once
STAGES = "stages"  # the key of FILE that holds the later stages' counts, by their first batches
COUNTING_SECONDS = 3600.0  # for which the others wait while the first process counts
MOST_STEPS = 2**31 - 1  # a step is an int32
NOT_COUNTED = "its documents were not counted when the run began"
EPOCH = "epoch"  # a period that ends with each epoch

logger = logging.getLogger(__name__)


def task_of_run(config: RunConfig) -> tuple[Provider, dict[str, int]]:
    """Returns the task and its lengths, the same in all processes; trains the vocabulary first if it is missing.

    Raises InputError, in all processes alike, for a task, vocabulary or corpus that cannot be used, and for the
    checkpoint of a new run that is not there.
    """
    first = jax.process_index() == 0
    data = config.data
    if data.new_vocabulary_size is not None:
        with together(HOURS_WAITED * 3600):  # the others wait while the first process trains it, and for its errors
            if first:
                ensure_vocabulary(data, trains=True, num_rows=config.model.vocab_size)
        with together():
            ensure_vocabulary(data, trains=first)
    with together():
        check_prefix_of_new_run(config)
        task = data_tasks.resolve_task_of_run(data, config.model_dir)
    task = pinned_for_run(task, config.model_dir)
    with together():
        lengths = _checked(task, config)
    if config.initial_checkpoint_path:
        with together(HOURS_WAITED * 3600):  # a model of the hub is downloaded here
            if not limba_checkpoint.checkpoints_of(resolved(config.model_dir)):
                _check_initial(config, config.initial_checkpoint_path, task)
    check_alike(lambda: facts_of_data(task, data))
    return task, lengths


def _check_initial(config: RunConfig, path: str, task: Provider) -> None:
    """Raises InputError if a new run cannot begin from the checkpoint at `path`."""
    vocabulary = task.output_features["targets"].vocabulary
    learns_gaps = data_tasks.needs_sentinels(task) and not config.model.is_decoder_only
    extra_ids = byte_extra_ids(vocabulary) if learns_gaps else None
    reads_folder = isinstance(vocabulary, StreamVocabulary)
    check_initial(path, extra_ids, reads_folder)
    check_length(config)


def _checked(task: Provider, config: RunConfig) -> dict[str, int]:
    """Returns the lengths of a task's rows; InputError for a vocabulary or corpus that cannot be used."""
    lengths = derive_lengths(task, config.data.task_feature_lengths)
    fills_gaps = data_tasks.needs_sentinels(task) and not config.model.is_decoder_only
    vocabulary = task.output_features["targets"].vocabulary
    check_family(vocabulary, config.model)
    check_vocabulary(vocabulary, config.model.vocab_size, needs_sentinels=fills_gaps)
    path = None
    other = None
    if not isinstance(vocabulary, StreamVocabulary):  # which reads a folder as transformers does
        path = address_of(vocabulary)
    if path is not None:
        other = text_read_otherwise(path, vocabulary.encode)
    if other is not None:
        logger.warning(
            "Training reads %r by %s as other ids than transformers does by the files beside it: tokens that were added"
            " are plain text here, and the rules of tokenizer.json may be others.", other, path,
        )  # fmt: skip
    data_tasks.check_sources(task, config.data)
    for part in data_tasks.parts_of(task):
        if said := data_tasks.trained_validation(part, config.data):
            logger.warning(
                "%s; move the validation files to where no pattern of the training files matches them.", said
            )
    return lengths


def tasks_of_stages(config: RunConfig, task: Provider, lengths: Mapping[str, int]) -> dict[int, Provider]:
    """Returns the task of each stage by its first batch: `task` for the first one, which is checked already.

    Raises InputError, in all processes alike, for a stage whose task or corpus cannot be used, and for one whose rows
    are not like the first one's.
    """
    tasks = {0: task}
    for begins, *_ in config.data.stages:
        with together():
            later = task_of_stage(begins, task, lengths, config.data)
        later = pinned_for_run(later, config.model_dir)
        with together():
            check_rows_of_stage(begins, later, _checked(later, config), task, lengths, config.data)
        check_alike(functools.partial(facts_of_data, later, config.data))
        tasks[begins] = later
    return tasks


@dataclass(frozen=True)
class Plan:
    """How a run goes over its corpora.

    `planned` is its configuration with the step at which it ends, as far as that is known, by which the schedule of the
    learning rate and the log go. `stages` are the stages of its data, in most runs only one. The periods are in steps;
    a fraction where an epoch is not a whole number of them.
    """

    stages: Sequence[Stage]
    planned: RunConfig
    most_steps: int
    saving: int | Fraction
    evaluation: int | Fraction
    notes: Sequence[str]


def is_due(step: int, period: int | Fraction) -> bool:
    """Returns whether a period ends with this step.

    >>> [step for step in range(1, 40) if is_due(step, Fraction(300, 32))], is_due(20, 10)
    ([10, 19, 29, 38], True)
    """
    return step // period > (step - 1) // period


def plan_of_run(config: RunConfig, task: Provider, lengths: Mapping[str, int]) -> Plan:
    """Returns the plan, the same in all processes; counts small corpora at the first start.

    Raises InputError, in all processes alike, for a corpus that cannot be read, and for a choice that needs the number
    of rows where it cannot be known.
    """
    tasks = tasks_of_stages(config, task, lengths)
    # The first process counts, and the others take its figures, so that all of them agree.
    text = ""
    with together(COUNTING_SECONDS):
        if is_first():
            texts = [deal_of_run(config, stage_task, lengths, begins).to_text() for begins, stage_task in tasks.items()]
            text = json.dumps(texts)
    deals = [Deal.of_text(deal_text) for deal_text in json.loads(of_first(text))]
    stages = []
    for (begins, stage_task), stage_deal in zip(tasks.items(), deals, strict=True):
        stages.append(Stage(begins, stage_task, config.data.of_stages[begins], stage_deal))
    deal = deals[0]  # epochs are the first stage's
    end, notes = _end(config, deal)
    return Plan(
        stages=stages,
        planned=dataclasses.replace(config, train_steps=end),
        most_steps=_most_steps(config, deal, end),
        saving=_period("CheckpointConfig", config.checkpoint.every_steps, deal, config),
        evaluation=_period("EvaluationConfig", config.evaluation.every_steps, deal, config),
        notes=(*said(deal, config.data), *notes, *_notes_of_stages(config)),
    )


def _notes_of_stages(config: RunConfig) -> Iterator[str]:
    for step, name in config.data.named_stages[1:]:
        sentence = f"From step {step:,} on the text is read from {name}"
        if config.train_steps is not None and step >= config.train_steps:
            sentence += f": after the run's last step, {config.train_steps:,}, so it is never read"
        yield f"{sentence}."


def deal_of_run(config: RunConfig, task: Provider, lengths: Mapping[str, int], begins: int = 0) -> Deal:
    """Returns the deal with which a run has begun, or begins; the counts of its corpora are made once.

    `begins` is the first batch of the stage whose task it is.
    """
    data = config.data.of_stages[begins]
    has_begun, dealing = _dealing(config, task, data.seed)
    if has_begun and dealing is None:
        return Deal(reason=NOT_COUNTED)
    path = epath.Path(config.model_dir) / FILE
    corpora = corpora_of(task, data)
    names = None if dealing is None else dealing["tasks"]
    written: dict[str, Any] = {}
    known = None
    if path.exists():
        try:
            written = json.loads(path.read_text())
            entry = written.get(STAGES, {}).get(str(begins)) if begins else written
            if entry is not None and entry["corpora"] == corpora:
                known = Deal.of_text(json.dumps(entry["deal"])).counts
        except (ValueError, KeyError, TypeError):
            logger.warning("%s cannot be read: the rows are counted again.", path)
    # The counts are only good for the tasks by which the run's rows are dealt.
    if known is not None and names is not None and set(known) != set(names):
        known = None
    periods = (config.checkpoint.every_steps, config.evaluation.every_steps)
    wants_epochs = names is not None or config.data.num_epochs is not None or EPOCH in periods
    deal = deal_of(task, lengths, data, wants_epochs, names, known)
    if known is None and deal.counts:
        counted = {"corpora": corpora, "deal": json.loads(deal.to_text())}
        # The first stage's counts are at the top of the file, and the later stages' below a key.
        later = written.get(STAGES, {}) if config.data.stages else {}
        if begins:
            content = {**written, STAGES: {**later, str(begins): counted}}
        elif later:
            content = {**counted, STAGES: later}
        else:
            content = counted
        write_whole(path, json.dumps(content) + "\n")
    return deal


def _dealing(config: RunConfig, task: Provider, seed: int) -> tuple[bool, Mapping[str, Any] | None]:
    """Returns (whether a checkpoint has read a stage, how its rows are dealt by the newest readable checkpoint).

    A stage is identified by its task and its seed. In a run of only one stage all checkpoints belong to it.
    """
    checkpoints = limba_checkpoint.steps_in(epath.Path(config.model_dir) / "checkpoints")
    for step in sorted(checkpoints, reverse=True):
        try:
            # All shards of a checkpoint say the same about the stages, so any of them will do.
            shard, position = next(iter(limba_checkpoint.positions_in(checkpoints[step]).items()))
            if of_another_order({shard: position}, step):
                return False, None  # its text begins anew
            saved = opened(position, shard)
        except Exception:
            logger.debug("The data position of %s cannot be read:", checkpoints[step], exc_info=True)
            continue
        if not config.data.stages or (saved.about.get("task"), saved.about.get("seed")) == (task.name, seed):
            return True, saved.about.get("dealing")
        for ended in saved.stage.get("ended", ()):
            if (ended["task"], config.data.seed + ended["begins"]) == (task.name, seed):
                return True, ended["dealing"]
        return False, None
    return False, None


def known_end(config: RunConfig) -> int | None:
    """Returns the step at which a run that has begun ends, as far as its directory tells; see `Plan.planned`."""
    path = resolved(config.model_dir) / FILE
    if config.data.num_epochs is None or not path.exists():
        return config.train_steps
    deal = Deal.of_text(json.dumps(json.loads(read_text(path))["deal"]))
    if deal.rows is None:
        return config.train_steps
    end, _ = _end(config, deal)
    return end


def _most_steps(config: RunConfig, deal: Deal, end: int | None) -> int:
    """Returns the last step of a run: where the rate has fallen to its end, if the rows of its epochs are estimated.

    Another step would change nothing, and the log would count beyond the run's own number.
    """
    falls = config.optimizer.schedule.name in ("linear", "cosine", "warmup_stable_decay")
    if end is not None and not deal.is_exact and falls:
        return end
    return config.train_steps or MOST_STEPS


def _end(config: RunConfig, deal: Deal) -> tuple[int | None, list[str]]:
    """Returns (the step at which the run ends as far as known, what to print about it)."""
    epochs = config.data.num_epochs
    steps_of_config = config.train_steps
    schedule = config.optimizer.schedule
    if epochs is None:
        return steps_of_config, []
    if deal.rows is not None:
        steps = math.ceil(Fraction(epochs * deal.rows, config.data.batch_size))
        return min(steps, steps_of_config or steps), []
    if not _needs_end(schedule):
        return steps_of_config, []
    if steps_of_config is None:
        raise ConfigError(
            "RunConfig.train_steps",
            f"is None, and the {schedule.name} schedule needs the step at which DataConfig.num_epochs {epochs} end,"
            f" which is not known beforehand: {deal.reason}; give epochs x rows / {config.data.batch_size}.",
        )
    return steps_of_config, [
        f"The learning rate falls up to step {steps_of_config:,} (RunConfig.train_steps), wherever"
        f" DataConfig.num_epochs {epochs} end: that is not known beforehand, since {deal.reason}."
    ]


def _needs_end(schedule: ScheduleConfig) -> bool:
    """Returns whether a learning rate cannot be computed without the step at which the run ends."""
    if schedule.name == "warmup_stable_decay" or schedule.base_learning_rate == AUTO:
        return True
    if 0 < schedule.warmup_steps < 1:  # a share of the run
        return True
    if schedule.name not in ("linear", "cosine"):
        return False
    return schedule.decay_steps is None or schedule.decay_steps < 1  # the whole run, or a share of it


def _period(owner: str, every_steps: int | str, deal: Deal, config: RunConfig) -> int | Fraction:
    if not isinstance(every_steps, str):
        return every_steps
    if deal.rows is None:
        raise ConfigError(
            f"{owner}.every_steps",
            f"is {every_steps!r}, and the rows of an epoch are not known beforehand: {deal.reason}; give a number of"
            " steps.",
        )
    return Fraction(deal.rows, config.data.batch_size)


def first_state(
    config: RunConfig, model: Network, optimizer: optax.GradientTransformation, abstract: TrainState
) -> TrainState:
    """Returns a new state, initialized from an existing checkpoint if the run names one."""
    state = create_state(model, optimizer, shardings_of(abstract), config.random_seed)
    if not config.initial_checkpoint_path:
        return state
    check = functools.partial(check_steps, config)
    return load_initial(config.initial_checkpoint_path, abstract, config.model, state, config.reset_step, check)


def write_config(config: RunConfig, gin_text: str, tasks: Iterable[Provider] = ()) -> None:
    """Writes what describes this run into model_dir: vocabularies, config.json, and config.gin where there is one."""
    data_tasks.keep_vocabularies(tasks, config.model_dir)
    directory = config.model_dir.rstrip("/")
    write_whole(f"{directory}/{saved_config.FILE}", saved_config.to_text(config))
    if gin_text:
        write_whole(f"{directory}/config.gin", without_credentials(gin_text))
