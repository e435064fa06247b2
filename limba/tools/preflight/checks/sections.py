"""The sections of a preflight in their order, each made when it is asked for; what compiles comes last."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from limba.api import Mixture, NewVocabulary, PieceTable, PlannedRun, RunData, Task
from limba.config import DataConfig, InputError, RunConfig, SentenceError
from limba.config.errors import ELSEWHERE
from limba.tools.preflight.checks import cost, data, estimate, objective, vocabulary
from limba.tools.preflight.checks.environment import environment
from limba.tools.preflight.checks.findings import after_changes, error_line, logged, reached_by
from limba.tools.preflight.checks.storage import storage
from limba.tools.preflight.checks.verdict import Line, Section
from limba.tools.preflight.compiled.topologies import Topology

LEARNED_BYTES = 1_000_000  # of text, for a vocabulary that stands for the one that the first start trains


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A run's task. Where its vocabulary cannot be used, `of_vocabulary` says why, and the task has bytes instead.

    With `is_learned` the vocabulary will be trained by the first start, and the task has one of a sample of the text.
    """

    task: Task | Mixture | None
    lengths: Mapping[str, int] | None = None
    of_vocabulary: Line | None = None
    of_data: Line | None = None
    is_learned: bool = False


def resolved(config: RunConfig) -> Resolved:
    """Returns the task of a run, as far as it can be had; raises nothing for wrong input."""
    given = config.data
    in_bytes = dataclasses.replace(given, vocabulary="byte", new_vocabulary_size=None, extra_ids=100)
    try:
        task = RunData(given).task
        PieceTable(task.output_features["targets"].vocabulary).read()
        lacking = vocabulary.without_sentinels(config, task)
        task = task if lacking is None else RunData(in_bytes).task
    except (SentenceError, OSError) as error:  # also a bucket that does not answer
        line, absent = error_line(error), isinstance(error.__cause__, FileNotFoundError)
        # Of the run's own directory, where a vocabulary is trained, Storage says it.
        unreached = line.fix == ELSEWHERE and f"{given.vocabulary}".startswith(f"{config.model_dir.rstrip('/')}/")
        line = reached_by(line, "DataConfig.vocabulary")
        try:
            task = RunData(in_bytes).task
        except (SentenceError, OSError):
            of_data = error_line(error)
            return Resolved(None, of_vocabulary=None if of_data.text == line.text else line, of_data=of_data)
        if given.new_vocabulary_size is not None and (absent or unreached):
            text = f"The vocabulary is trained at the first start, with {given.new_vocabulary_size:,} ids."
            line, learned = Line("ok", text), _learned(given, task)
            if learned is not None:
                return Resolved(learned, _lengths(learned, config), of_vocabulary=line, is_learned=True)
        elif absent:
            line = vocabulary.missing(config, line)
        return Resolved(task, _lengths(task, config), of_vocabulary=line)
    return Resolved(task, _lengths(task, config), of_vocabulary=lacking)


def _learned(given: DataConfig, task: Task | Mixture) -> Task | Mixture | None:
    """Returns the task with a vocabulary that is trained on a sample of its text; None if none can be made."""
    size, masks = (given.new_vocabulary_size or 0) - given.extra_ids, given.is_masked or bool(given.head)
    coverage = given.new_vocabulary_coverage
    with contextlib.suppress(SentenceError, OSError), logged(), tempfile.TemporaryDirectory() as folder:
        new = NewVocabulary(f"{folder}/sample.model")
        documents, _ = new.sample(task, given.train_split, LEARNED_BYTES)
        new.train(documents, size, masks, character_coverage=coverage)
        found = RunData(dataclasses.replace(given, vocabulary=new.path, new_vocabulary_size=None)).task
        PieceTable(found.output_features["targets"].vocabulary).read()  # whose file goes
        return found
    return None


def labeled(config: RunConfig) -> tuple[RunConfig, Line | None]:
    """Returns the run with the labels of its text, where its head has some, or the line that says what is wrong."""
    try:
        return PlannedRun(config).with_labels(), None
    except (SentenceError, OSError) as error:
        return config, error_line(error)


def _lengths(task: Task | Mixture | None, config: RunConfig) -> Mapping[str, int] | None:
    """Returns a row's lengths; None if they are wrong, which the section about them says."""
    try:
        with logged():
            return RunData(config.data, task).lengths()
    except InputError:
        return None


def sections(
    config: RunConfig,
    configuration: Section,
    chips: Topology | None = None,
    compiling: Sequence[Callable[[RunConfig], Section]] = (),
    terms: cost.Terms = cost.Terms(),  # noqa: B008  it is frozen
) -> Iterator[Section]:
    """Yields the sections, `configuration` first; `compiling` only if none before has an error; costs come last."""
    config, unlabeled = labeled(config)
    found = resolved(config)
    if unlabeled is not None and found.of_vocabulary is None:  # whose error is the same
        found = dataclasses.replace(found, lengths=None, of_data=found.of_data or unlabeled)
    made = [configuration]
    yield configuration
    for make in (
        lambda: _data(config, found, chips),
        lambda: _vocabulary(config, found),
        lambda: objective.objective_and_schedule(config, found.task),
        lambda: storage(config),
        lambda: environment(config),
        *([] if chips is None else [lambda: estimate.estimate(config, chips, bool(compiling))]),
    ):
        made.append(after_changes(make(), made))
        yield made[-1]
    if compiling and any(line.level == "error" for section in made for line in section.lines):
        compiling = [lambda _: Section("Memory and speed", [Line("ok", "Not compiled: the errors come first.")])]
    for make in compiling:
        try:
            made.append(make(config))
        except InputError as error:
            made.append(Section("Memory and speed", [error_line(error)]))
        yield made[-1]
    yield cost.time_and_cost(config, chips, made, terms)


def _data(config: RunConfig, found: Resolved, chips: Topology | None) -> Section:
    if found.task is None or found.of_data is not None:
        return Section(data.TITLE, [found.of_data] if found.of_data is not None else [])
    has_vocabulary = found.of_vocabulary is None or found.is_learned
    return data.data_of_run(config, found.task, found.lengths, chips, has_vocabulary, found.is_learned)


def _vocabulary(config: RunConfig, found: Resolved) -> Section:
    if found.of_vocabulary is not None:
        return Section(vocabulary.TITLE, [found.of_vocabulary])
    if found.task is None:
        return Section(vocabulary.TITLE, [Line("ok", "Not checked: the task is not known.")])
    return vocabulary.vocabulary(config, found.task, dict(found.lengths) if found.lengths else None)
