"""The task or mixture that a run names, with the run's vocabulary, files, objective and reading policy put in."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import seqio

from limba.config import ConfigError, DataConfig, InputError
from limba.data.objectives.choose import of_one_sequence, with_noise, with_objective
from limba.data.objectives.supervised import with_prefix
from limba.data.packing import FEATURES
from limba.data.sources.array_record import ArrayRecordSource
from limba.data.sources.cache import from_cache
from limba.data.sources.files import Column, DataFiles, FileSource, HubSource, UnitSource, patterns_of
from limba.data.sources.readers import ReadPolicy
from limba.data.vocabulary.load import load_vocabulary

Provider = seqio.Task | seqio.Mixture


def resolve_task(config: DataConfig) -> Provider:
    """Returns the registered task or mixture with the config's vocabulary and files put in.

    Raises ConfigError for a name that is not registered, a vocabulary that cannot be read, and
    `data_files` for a mixture, which has as many corpora as tasks.
    """
    name = config.mixture_or_task_name
    if name in seqio.TaskRegistry.names():
        return _replaced(seqio.TaskRegistry.get(name), config)
    if name in seqio.MixtureRegistry.names():
        mixture = seqio.MixtureRegistry.get(name)
        # Tasks that each read columns of their own may share a corpus: the two ways of a translation.
        have_columns = all(isinstance(getattr(task.source, "column", None), Mapping) for task in mixture.tasks)
        if config.data_files is not None and not (have_columns and config.column == "text"):
            raise InputError(
                f"{name} is a mixture and DataConfig.data_files one corpus; name a task, or leave data_files out."
            )
        # The rates are taken here: replaced tasks are others to the mixture.
        replaced = {task.name: _replaced(task, config) for task in mixture.tasks}
        if config.mixture_temperature is None:
            parts = [(replaced[task.name], _own_rate(mixture, task)) for task in mixture.tasks]
        else:
            parts = [(task, _tempered_rate(task, config)) for task in replaced.values()]
        first, *others = [part.output_features["targets"].vocabulary for part, _ in parts]
        if any(other != first for other in others):
            raise InputError(
                f"The tasks of mixture {name} have different vocabularies; set DataConfig.vocabulary, which "
                "replaces them all."
            )
        return seqio.Mixture(name, parts)
    known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
    close = difflib.get_close_matches(name, known, n=3) or known[:10]
    raise InputError(
        f"No task or mixture is called {name!r}; "
        f"did you mean {', '.join(close) or 'one of a module that is not imported'}? "
        "The name must be registered by a module of tasks/ that the gin file imports, or --module names."
    )


def _replaced(task: seqio.Task, config: DataConfig) -> seqio.Task:
    missing = [feature for feature in FEATURES if feature not in task.output_features]
    if missing:
        raise InputError(f"Task {task.name} has no feature {missing[0]!r}; register it with 'inputs' and 'targets'.")
    if config.vocabulary is not None:
        vocabulary = load_vocabulary(config.vocabulary, config.extra_ids)
        features = {
            name: seqio.Feature(
                vocabulary, add_eos=feature.add_eos, required=feature.required, dtype=feature.dtype, rank=feature.rank
            )
            for name, feature in task.output_features.items()
        }
        task = task.replace(output_features=features)
    if config.cache_dir is not None:
        task = from_cache(task, config.cache_dir)
    if config.prefix is not None:
        task = with_prefix(task, config.prefix)
    if config.objective is not None:
        task = with_objective(task, config.objective)
    task = with_noise(task, noise_density=config.noise_density, mean_noise_span_length=config.mean_noise_span_length)
    if config.sequence_length is not None:
        task = of_one_sequence(task, config.pack)
    if config.data_files is not None:
        column = _column_of(task, config)
        task = task.replace(source=source_of_files(config.data_files, column, config.validation_percent))
    if isinstance(task.source, UnitSource):
        task.source.read_by(ReadPolicy(config.read_timeout_seconds, config.read_attempts, config.on_read_failure))
    return task


def _column_of(task: seqio.Task, config: DataConfig) -> Column:
    """Returns the config's column of data_files, or, where it names none, the task's own columns."""
    own = getattr(task.source, "column", "text")
    if not isinstance(own, Mapping):
        if isinstance(config.column, Mapping):
            raise ConfigError(
                "DataConfig.column", f"is {dict(config.column)!r}, and task {task.name} reads one column; name one."
            )
        return config.column
    if config.column == "text":
        return own
    if not isinstance(config.column, Mapping) or set(config.column) != set(own):
        raise ConfigError(
            "DataConfig.column",
            f"is {config.column!r}, and task {task.name} reads {len(own)} columns; give a dictionary such as"
            f" {dict(own)!r}.",
        )
    return {name: config.column[name] for name in own}


def source_of_files(data_files: DataFiles, column: Column = "text", validation_percent: float = 1.0) -> UnitSource:
    """Returns the source that reads these files: ArrayRecord has one of its own."""
    paths = [path for several in patterns_of(data_files).values() for path in several]
    kind = ArrayRecordSource if any(path.endswith(".array_record") for path in paths) else FileSource
    return kind(data_files, column, validation_percent)


def _own_rate(mixture: seqio.Mixture, task: seqio.Task) -> float:
    try:
        return mixture.get_rate(task)
    except (TypeError, ValueError) as error:  # seqio's functions of num_examples: nobody has counted these
        raise InputError(
            f"The rate of {task.name} in mixture {mixture.name} cannot be had ({error}): its examples are not counted;"
            " set DataConfig.mixture_temperature, which goes by bytes, or register numbers."
        ) from error


def _tempered_rate(task: seqio.Task, config: DataConfig) -> float:
    """Returns size^(1/T), the corpus's size in bytes (Xue et al. 2021, arXiv:2010.11934, section 3.2: T = 1/0.3)."""
    if not isinstance(task.source, UnitSource):
        raise InputError(
            f"Task {task.name} does not tell its corpus's size, which mixture_temperature goes by; "
            "leave mixture_temperature out and register the mixture with rates."
        )
    return task.source.num_bytes(config.train_split) ** (1.0 / config.mixture_temperature)


def pinned(task: Provider, revisions: Mapping[str, str]) -> Provider:
    """Returns the task with its hub data sets at these commits, by task name."""

    def one(part: seqio.Task) -> seqio.Task:
        revision = revisions.get(part.name)
        return part.replace(source=part.source.pinned(revision)) if revision else part

    if isinstance(task, seqio.Mixture):
        return seqio.Mixture(task.name, [(one(part), task.get_rate(part)) for part in task.tasks])
    return one(task)


def revisions(task: Provider) -> dict[str, str]:
    """Returns task name -> commit for what is read from the hub without a commit being told; asks the hub."""
    found = {
        part.name: part.source.resolved_revision
        for part in parts_of(task)
        if isinstance(part.source, HubSource) and part.source.revision is None
    }
    return {name: commit for name, commit in found.items() if commit}


def has_exact_positions(task: Provider) -> bool:
    """False where a source cannot save its position, so that a resumed run reads again what it has read."""
    return all(isinstance(part.source, UnitSource) for part in parts_of(task))


def pinned_revisions(task: Provider) -> dict[str, str]:
    """Returns task name -> commit of what is read from the hub."""
    hub = [part for part in parts_of(task) if isinstance(part.source, HubSource)]
    return {part.name: part.source.revision for part in hub if part.source.revision}


def check_sources(task: Provider, config: DataConfig) -> None:
    """Reads the beginning of every corpus, so that a wrong path, column or file costs a second; ConfigError."""
    for part in parts_of(task):
        if isinstance(part.source, UnitSource):
            part.source.check(config.train_split)
            part.source.check(config.validation_split, may_be_empty=True)
        elif config.train_split not in part.splits:
            raise InputError(
                f"Task {part.name} has no split {config.train_split!r}; "
                f"it has {', '.join(part.splits)}: set train_split."
            )


def parts_of(task: Provider) -> list[seqio.Task]:
    """Returns the tasks of a mixture, or the task itself."""
    return list(task.tasks) if isinstance(task, seqio.Mixture) else [task]
