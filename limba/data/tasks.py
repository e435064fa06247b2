"""The task or mixture of a run, with the run's vocabulary, files, objective and read policy.

Tasks that were written for T5X fit too, by the tool `migrate`: sources that are functions, caches, features that only
the objective makes.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Collection, Iterable, Mapping

from limba import tool_registry
from limba.config import ConfigError, DataConfig, InputError, StorageError, extras, without_credentials
from limba.data import user_code
from limba.data.objectives.choice import of_one_sequence, with_noise, with_objective
from limba.data.objectives.supervised import is_supervised, prefix_of, with_prefix
from limba.data.packing import FEATURES
from limba.data.registry import Mixture, MixtureRegistry, Task, TaskRegistry
from limba.data.registry import Provider as Provider
from limba.data.registry import parts_of as parts_of
from limba.data.sources.array_record import ArrayRecordSource
from limba.data.sources.hub_data import HubSource, hub_corpus
from limba.data.sources.remote import ReadPolicy
from limba.data.sources.splits import Column
from limba.data.sources.units import DataFiles, FileSource, UnitSource, patterns_of
from limba.data.vocabulary.addresses import address_of, of_run
from limba.data.vocabulary.files import check_there, directory_of, keep, place_of
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.shifted import StreamVocabulary
from limba.data.vocabulary.special_ids import as_stream

logger = logging.getLogger(__name__)

REPLAY = "_replay"  # ends the name of a task on the text of DataConfig.replay_files


def advice_on(task: Task) -> str:
    """Returns what to do where the code of a task fails: for some sources also another one."""
    if any(kind.__name__ == "TfdsDataSource" for kind in type(task.source).__mro__):
        return "correct the task, or give it TfdsSource of limba.data.sources, which reads TFDS's ArrayRecord too"
    migrate = tool_registry.find("migrate")
    form = migrate.resumable_form(task) if migrate else None
    return f"correct it, or register the task with {form}" if form else "correct it"


def failure_of_code(task: Task, error: BaseException) -> InputError | None:
    """Returns the sentence on an error of a task's own code, its source or preprocessors, also as TensorFlow has it."""
    return user_code.failure_of(task, error, advice_on(task))


def resolve_task(config: DataConfig, directory: str | None = None) -> Provider:
    """Returns the registered task or mixture with the replacements of the config.

    Vocabularies are read from the copies in a run's `directory`, where that has them.

    Raises ConfigError for a name that is not registered, and for `data_files` with a mixture, which has one corpus
    per task; InputError for a vocabulary that cannot be read.
    """
    config = config.of_stages[0]
    name = config.mixture_or_task_name
    if name in TaskRegistry.names():
        num_tasks = 1 if config.replay_files is None else 2
        task = _replaced(TaskRegistry.get(name), config, directory, num_tasks)
        return task if config.replay_files is None else _with_replay(task, config)
    if name in MixtureRegistry.names():
        mixture = MixtureRegistry.get(name)
        if config.replay_files is not None:
            raise ConfigError(
                "DataConfig.replay_files",
                f"is mixed into the text of one task, and {name} is a mixture of several; register a mixture with that"
                " text too, or name a task in DataConfig.mixture_or_task_name.",
            )
        # Tasks that read different columns may share a corpus, such as the two directions of a translation.
        have_columns = all(isinstance(getattr(task.source, "column", None), Mapping) for task in mixture.tasks)
        if config.data_files is not None and not (have_columns and config.column == "text"):
            raise ConfigError(
                "DataConfig.data_files",
                f"is one corpus, and {name} is a mixture of several; set DataConfig.mixture_or_task_name to a task, or"
                " leave DataConfig.data_files out.",
            )
        # The rates are read here, because the mixture does not know the replaced tasks.
        num_tasks = len(mixture.tasks)
        replaced = {task.name: _replaced(task, config, directory, num_tasks) for task in mixture.tasks}
        if config.mixture_temperature is None:
            parts = [(replaced[task.name], _own_rate(mixture, task)) for task in mixture.tasks]
        else:
            temperature = config.mixture_temperature
            parts = [(task, _tempered_rate(task, config.train_split, temperature)) for task in replaced.values()]
        first, *others = [part.output_features["targets"].vocabulary for part, _ in parts]
        if any(other != first for other in others):
            raise ConfigError(
                "DataConfig.vocabulary",
                f"is not set, and the tasks of mixture {name} have different vocabularies; set it to one for all.",
            )
        return Mixture(name, parts)
    known = sorted({*TaskRegistry.names(), *MixtureRegistry.names()})
    close = difflib.get_close_matches(name, known, n=3) or known[:10]
    raise ConfigError(
        "DataConfig.mixture_or_task_name",
        f"is {name!r}, and no task or mixture has that name; did you mean"
        f" {', '.join(close) or 'one of a module that is not imported'}? A module of tasks/ that the run imports must"
        " register it.",
        ("DataConfig.mixture_or_task_name", close[0]) if close else None,
    )


def check_prefix(config: DataConfig) -> None:
    """Raises ConfigError for a prefix that replaces different prefixes of a mixture's tasks, which tell them apart."""
    name = config.mixture_or_task_name
    if not config.prefix or name in TaskRegistry.names() or name not in MixtureRegistry.names():
        return
    own = sorted({prefix_of(task) for task in MixtureRegistry.get(name).tasks})
    if len(own) > 1:
        raise ConfigError(
            "DataConfig.prefix",
            f"is one text for all inputs, and the tasks of mixture {name} have different ones"
            f" ({', '.join(map(repr, own))}); leave it None.",
            ("DataConfig.prefix", None),
        )


def resolve_task_of_run(config: DataConfig, model_dir: str) -> Provider:
    """Returns `resolve_task` with the vocabularies that are named; where these are gone, with the run's own copies."""
    try:
        task = resolve_task(config)
        for address in addresses_of(task):
            check_there(address)
        return task
    except (InputError, StorageError) as error:
        task = resolve_task(config, model_dir)
        if copies_of(task) is None:
            raise
        logger.warning("%s The run's own copy in %s is used.", error, model_dir)
        return task


def _policy_of(config: DataConfig, num_tasks: int) -> ReadPolicy:
    return ReadPolicy(config.read_timeout_seconds, config.read_attempts, config.on_read_failure, num_tasks=num_tasks)


def _replaced(task: Task, config: DataConfig, directory: str | None, num_tasks: int) -> Task:
    is_plain = isinstance(task.source, UnitSource) and set(FEATURES) <= set(task.output_features)
    migrate = None if is_plain and config.cache_dir is None else tool_registry.find("migrate")
    written = task
    path = config.vocabulary and place_of(config.vocabulary, directory)
    replacement = None if path is None else as_stream(load_vocabulary(path, config.extra_ids))
    if config.cache_dir is not None and isinstance(replacement, StreamVocabulary):
        raise ConfigError(
            "DataConfig.cache_dir",
            f"is {config.cache_dir}, whose ids come from the task's own vocabulary, and DataConfig.vocabulary is"
            f" {config.vocabulary}, a folder with ids of its own; leave DataConfig.cache_dir out.",
        )
    features = {
        name: dataclasses.replace(feature, vocabulary=replacement or of_run(feature.vocabulary, directory))
        for name, feature in task.output_features.items()
    }
    if any(feature.vocabulary is not task.output_features[name].vocabulary for name, feature in features.items()):
        task = task.replace(output_features=features)
    task = migrate.with_inputs(task) if migrate else task
    # A decoder-only model's row may be one text alone.
    needed = FEATURES if config.sequence_length is None else FEATURES[-1:]
    missing = [feature for feature in needed if feature not in task.output_features]
    if missing:
        raise InputError(f"Task {task.name} has no feature {missing[0]!r}; register it with 'inputs' and 'targets'.")
    if config.cache_dir is not None and migrate:
        from limba.data.bridge.seqio_objects import as_seqio

        task = migrate.from_cache(task, as_seqio(task), config.cache_dir)
    if config.prefix is not None:
        task = with_prefix(task, config.prefix)
    if config.objective is not None:
        task = with_objective(task, config.objective)
    choices = ("noise_density", "mean_noise_span_length", "mask_share", "causal_share")
    task = with_noise(task, **{name: getattr(config, name) for name in choices})
    if config.sequence_length is not None:
        task = of_one_sequence(task, config.pack, config.is_masked)
    if config.data_files is not None:
        column = _column_of(task, config)
        task = migrate.for_files(task, config.train_split) if migrate else task
        task = task.replace(source=source_of_files(config.data_files, column, config.validation_percent))
    elif migrate:
        migrate.warn_of_function(written)
    if isinstance(task.source, UnitSource):
        task = task.replace(source=task.source.read_by(_policy_of(config, num_tasks)))
    return task


def _with_replay(task: Task, config: DataConfig) -> Mixture:
    """Returns the mixture of a task and the same on the other text of `replay_files`, each with its share of rows."""
    assert config.replay_files is not None
    column = _column_of(task, config)
    source = source_of_files(config.replay_files, column, config.validation_percent)
    source = source.read_by(_policy_of(config, num_tasks=2))
    replayed = task.replace(name=f"{task.name}{REPLAY}", source=source)
    return Mixture(f"{task.name}_with{REPLAY}", [(task, 1 - config.replay_share), (replayed, config.replay_share)])


def _column_of(task: Task, config: DataConfig) -> Column:
    """Returns the config's column of `data_files`, or the task's columns if the config has the default."""
    task_columns = getattr(task.source, "column", None)
    if task_columns is None:
        # A source of seqio does not say which features it gives: the config alone knows the columns of its files.
        return config.column
    if not isinstance(task_columns, Mapping):
        if isinstance(config.column, Mapping):
            raise ConfigError(
                "DataConfig.column", f"is {dict(config.column)!r}, and task {task.name} reads one column; name one."
            )
        return config.column
    if config.column == "text":
        return task_columns
    if not isinstance(config.column, Mapping) or set(config.column) != set(task_columns):
        raise ConfigError(
            "DataConfig.column",
            f"is {config.column!r}, and task {task.name} reads {len(task_columns)} columns; give a dictionary such as"
            f" {dict(task_columns)!r}.",
        )
    return {name: config.column[name] for name in task_columns}


def source_of_files(data_files: DataFiles, column: Column = "text", validation_percent: float = 1.0) -> UnitSource:
    """Returns the source that reads these files, or this data set of the hub (see `hub.HubName`).

    >>> type(source_of_files("data/*.jsonl")).__name__, type(source_of_files("user/name")).__name__
    ('FileSource', 'HubSource')
    """
    of_hub = hub_corpus(data_files, column, validation_percent)
    if of_hub is not None:
        return of_hub
    paths = [path for several in patterns_of(data_files).values() for path in several]
    kind = ArrayRecordSource if any(path.endswith(".array_record") for path in paths) else FileSource
    return kind(data_files, column, validation_percent)


def _own_rate(mixture: Mixture, task: Task) -> float:
    try:
        return mixture.get_rate(task)
    except InputError:
        raise
    except (TypeError, ValueError) as error:  # a seqio function of num_examples, which are not counted
        # A temperature needs the size of every corpus, which sources of others do not say.
        has_sizes = all(part.name in unit_sources(part) for part in mixture.tasks)
        advice = "set DataConfig.mixture_temperature, which uses bytes, or " if has_sizes else ""
        raise InputError(
            f"The rate of {task.name} in mixture {mixture.name} is not known ({error}), since its examples are not"
            f" counted; {advice}register the mixture with numbers as rates."
        ) from error


def _tempered_rate(task: Task, split: str, temperature: float) -> float:
    """Returns size^(1/T) of the corpus's size in bytes (Xue et al. 2021, arXiv:2010.11934, section 3.2: T = 1/0.3)."""
    source = unit_sources(task).get(task.name)
    num_bytes = None if source is None else source.num_bytes(split)
    if source is None or num_bytes is None:
        raise ConfigError(
            "DataConfig.mixture_temperature",
            f"is {temperature}, and the size of the corpus of task {task.name} is not known; leave it out, and register"
            " the mixture with numbers as rates.",
        )
    if num_bytes == 0:
        raise InputError(f"{source.name} holds 0 bytes in split {split!r}; give files with text in them.")
    return num_bytes ** (1.0 / temperature)


def pinned(task: Provider, revisions: Mapping[str, str]) -> Provider:
    """Returns the task with its hub data sets pinned to these commits, by task name."""

    sources = _hub_sources(task)

    def with_revision(part: Task) -> Task:
        known = part.name in revisions and part.name in sources
        return part.replace(source=sources[part.name].pinned(revisions[part.name])) if known else part

    if isinstance(task, Mixture):
        return Mixture(task.name, [(with_revision(part), task.get_rate(part)) for part in task.tasks])
    return with_revision(task)


def revisions(task: Provider, known: Collection[str] = ()) -> dict[str, str]:
    """Returns name -> current commit of each hub data set that is not pinned; queries the hub but for `known` names."""
    names = {_pin_name(name, source): source for name, source in _hub_sources(task).items() if not source.is_pinned}
    commits = {name: source.resolved_revision for name, source in names.items() if name not in known}
    return {name: commit for name, commit in commits.items() if commit}


def _pin_name(task: str, source: HubSource) -> str:
    """Returns the name that a task's commit is saved under: with the data set, if the run has named one for the task.

    So another data set in a run's configuration gets a commit of its own.
    """
    registered = _hub_sources(TaskRegistry.get(task)).get(task) if task in TaskRegistry.names() else None
    if not source.is_named or (registered is not None and registered.hub_name == source.hub_name):
        return task
    return f"{task} from {source.path}:{source.config_name or ''}@{source.revision or ''}"


def pinned_as_saved(task: Provider, saved: Mapping[str, str]) -> Provider:
    """Returns the task with its hub data sets pinned to the commits that `revisions` found at the run's first start."""
    names = {name: _pin_name(name, source) for name, source in _hub_sources(task).items()}
    return pinned(task, {name: saved[pin] for name, pin in names.items() if pin in saved})


def has_exact_positions(task: Provider) -> bool:
    """Returns whether all sources can save their data position; else a resumed run reads its data again."""
    return len(unit_sources(task)) == len(parts_of(task))


def pinned_revisions(task: Provider) -> dict[str, str]:
    """Returns task name -> commit of each hub data set that is pinned."""
    sources = _hub_sources(task).items()
    return {name: source.revision for name, source in sources if source.revision and source.is_pinned}


def trained_validation(part: Task, config: DataConfig) -> str:
    """Returns a sentence, without a period, that names a task's files of both training and validation; "" without any.

    Raises InputError if a split or its files do not exist. After `check_sources` no file is listed again.
    """
    source = unit_sources(part).get(part.name)
    if source is None or config.validation_split == config.train_split:  # who names one split for both means it
        return ""
    shared = [without_credentials(path) for path in source.shared_files(config.validation_split, config.train_split)]
    if not shared:
        return ""
    named = shared[0] if len(shared) == 1 else f"{len(shared):,} files, such as {shared[0]},"
    verb = "is" if len(shared) == 1 else "are"
    where = "in the validation split and in the training split"
    return f"{named} {verb} {where}: the run is validated on text that it trains on"


def check_sources(task: Provider, config: DataConfig) -> None:
    """Reads the beginning of every corpus, to find a wrong path, column or file early; raises InputError.

    An endless run also needs a document for each data shard.
    """
    num_shards = config.num_shards if config.num_epochs is None else 1
    sources = unit_sources(task)
    for part in parts_of(task):
        if source := sources.get(part.name):
            try:
                source.check(config.train_split, num_shards=num_shards)
                source.check(config.validation_split, may_be_empty=True)
            except ModuleNotFoundError:
                with extras.needed_by(f"{source.name} of task {part.name}"):
                    raise
        elif config.train_split not in part.splits:
            raise ConfigError(
                "DataConfig.train_split",
                f"is {config.train_split!r}, and task {part.name} has {', '.join(part.splits)}; give one of these.",
            )


def needs_sentinels(task: Provider) -> bool:
    """Returns whether any task has an objective with sentinels; supervised tasks have none."""
    return not all(is_supervised(part) for part in parts_of(task))


def hub_datasets(task: Provider) -> tuple[str, ...]:
    """Returns the names of the hub's data sets that a task reads."""
    return tuple(dict.fromkeys(source.path for source in _hub_sources(task).values()))


def addresses_of(task: Provider) -> list[str]:
    """Returns the paths and addresses of a task's vocabularies; a vocabulary of bytes has none."""
    features = [feature for part in parts_of(task) for feature in part.output_features.values()]
    return [address for feature in features if (address := address_of(feature.vocabulary)) is not None]


def copies_of(task: Provider) -> str | None:
    """Returns the directory of the run whose copies of its vocabularies a task reads; None if it reads none."""
    return next(filter(None, map(directory_of, addresses_of(task))), None)


def keep_vocabularies(tasks: Iterable[Provider], model_dir: str) -> None:
    """Writes copies of the tasks' vocabularies into the run's directory, unless they lie there."""
    keep((address for task in tasks for address in addresses_of(task)), model_dir)


def _hub_sources(task: Provider) -> dict[str, HubSource]:
    return {name: source for name, source in unit_sources(task).items() if isinstance(source, HubSource)}


def unit_sources(task: Provider) -> dict[str, UnitSource]:
    """Returns task name -> source, of the tasks whose source can be read in units, from any saved data position."""
    return {part.name: part.source for part in parts_of(task) if isinstance(part.source, UnitSource)}
