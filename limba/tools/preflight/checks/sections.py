"""The sections of a preflight in their order, each made when it is asked for; what compiles comes last."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping

from limba.api import Mixture, NewVocabulary, PieceTable, RunData, Task
from limba.config import ConfigError, DataConfig, InputError, RunConfig, SentenceError
from limba.config.errors import ELSEWHERE
from limba.tools.preflight.checks import compiler, cost, data, estimate, objective, vocabulary
from limba.tools.preflight.checks.environment import environment
from limba.tools.preflight.checks.findings import after_changes, error_line, logged, reached_by
from limba.tools.preflight.checks.storage import storage
from limba.tools.preflight.checks.verdict import FAILS, Line, Section, judged
from limba.tools.preflight.compiled.topologies import Topology

# Bytes of text that a vocabulary is trained on, in place of the one that the run's first start will train.
LEARNED_BYTES = 1_000_000


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


def sections(
    config: RunConfig,
    configuration: Section,
    chips: Topology | None = None,
    is_compiled: bool = True,
    terms: cost.Terms = cost.Terms(),  # noqa: B008  it is frozen
    here: Topology | None = None,
) -> Iterator[Section]:
    """Yields the sections, `configuration` first, and costs last.

    The step is compiled where chips are named that can be compiled for, and no section before has an error. `here` is
    this machine's CPU: where no chips are named, and it can do the run, its figures are given, and nothing is judged by
    them.
    """
    run = resolved(config)
    compiles = is_compiled and chips is not None and chips.can_compile
    made = [configuration]
    yield configuration
    for section in _before_compiling(config, run, chips, compiles):
        made.append(after_changes(section, made))
        yield made[-1]
    if compiles:
        assert chips is not None
        if judged(made) == FAILS:
            made.append(Section(compiler.TITLE, [Line("ok", "Not compiled: the errors come first.")]))
        else:
            made.append(compiler.compiled(config, chips))
        yield made[-1]
    costs = cost.time_and_cost(config, chips, made, terms)
    if chips is None and here is not None and judged(made) != FAILS:
        figures = estimate.on_this_cpu(config, here)
        if figures is not None:
            made.append(figures)
            yield figures
            costs = _of_this_cpu(cost.time_and_cost(config, here, made, terms), costs)
    yield costs


def _of_this_cpu(on_cpu: Section, without_chips: Section) -> Section:
    """Returns the costs on this machine's CPU, with the warnings alone that hold on any chips.

    The user has not chosen the CPU, so a run that takes long there is not a finding.
    """
    lines = [line for line in on_cpu.lines if line.level == "ok" or line in without_chips.lines]
    return dataclasses.replace(on_cpu, lines=lines)


def _before_compiling(config: RunConfig, run: Resolved, chips: Topology | None, compiles: bool) -> Iterator[Section]:
    """Yields the sections that need no compiler, each made when it is asked for."""
    yield _data(config, run, chips)
    yield _vocabulary(config, run)
    yield objective.objective_and_schedule(config, run.task)
    yield storage(config)
    yield environment(config)
    if chips is not None:
        yield estimate.estimate(config, chips, compiles)


def _data(config: RunConfig, run: Resolved, chips: Topology | None) -> Section:
    if run.of_data is not None:
        return Section(data.TITLE, [run.of_data])
    if run.task is None:
        return Section(data.TITLE, [])
    has_vocabulary = run.of_vocabulary is None or run.is_learned
    return data.data_of_run(config, run.task, run.lengths, chips, has_vocabulary, run.is_learned)


def _vocabulary(config: RunConfig, run: Resolved) -> Section:
    if run.of_vocabulary is not None:
        return Section(vocabulary.TITLE, [run.of_vocabulary])
    if run.task is None:
        return Section(vocabulary.TITLE, [Line("ok", "Not checked: the task is not known.")])
    lengths = None if run.lengths is None else dict(run.lengths)
    return vocabulary.vocabulary(config, run.task, lengths)


def resolved(config: RunConfig) -> Resolved:
    """Returns the task of a run, as far as it can be opened; raises nothing for wrong input."""
    try:
        task = RunData(config.data).task
        PieceTable(task.output_features["targets"].vocabulary).read()
        lacking = vocabulary.without_sentinels(config, task)
        if lacking is not None:
            task = RunData(_in_bytes(config.data)).task
    except (SentenceError, OSError) as error:  # also a bucket that does not answer
        return _without_vocabulary(config, error)
    return Resolved(task, _lengths(task, config), of_vocabulary=lacking)


def _without_vocabulary(config: RunConfig, error: SentenceError | OSError) -> Resolved:
    """Returns the task of a run whose vocabulary cannot be read, or whose task cannot be opened at all."""
    data = config.data
    line = reached_by(error_line(error), "DataConfig.vocabulary")
    try:
        task = RunData(_in_bytes(data)).task
    except (SentenceError, OSError) as also:
        of_data = error_line(also)
        of_vocabulary = None if of_data.text == line.text else line
        return Resolved(None, of_vocabulary=of_vocabulary, of_data=of_data)
    is_absent = isinstance(error.__cause__, FileNotFoundError)
    # The run's first start trains a vocabulary into its own directory; that this does not answer is Storage's finding.
    is_in_run = str(data.vocabulary).startswith(f"{config.model_dir.rstrip('/')}/")
    is_unreached = is_in_run and error_line(error).fix == ELSEWHERE
    if data.new_vocabulary_size is not None and (is_absent or is_unreached):
        try:
            NewVocabulary.check_rows(data, config.model.vocab_size)
        except ConfigError as too_large:
            return Resolved(task, _lengths(task, config), of_vocabulary=error_line(too_large))
        line = Line("ok", f"The vocabulary is trained at the first start, with {data.new_vocabulary_size:,} ids.")
        learned = _learned(data, task)
        if learned is not None:
            return Resolved(learned, _lengths(learned, config), of_vocabulary=line, is_learned=True)
    elif is_absent:
        line = vocabulary.missing(config, line)
    return Resolved(task, _lengths(task, config), of_vocabulary=line)


def _in_bytes(data: DataConfig) -> DataConfig:
    """Returns the data with bytes in place of a vocabulary that cannot be used."""
    return dataclasses.replace(data, vocabulary="byte", new_vocabulary_size=None, extra_ids=100)


def _learned(data: DataConfig, task: Task | Mixture) -> Task | Mixture | None:
    """Returns the task with a vocabulary that is trained on a sample of its text; None if none can be made."""
    size = (data.new_vocabulary_size or 0) - data.extra_ids
    coverage = data.new_vocabulary_coverage
    with contextlib.suppress(SentenceError, OSError), logged(), tempfile.TemporaryDirectory() as folder:
        new = NewVocabulary(f"{folder}/sample.model")
        documents, _ = new.sample(task, data.train_split, LEARNED_BYTES)
        new.train(documents, size, data.is_masked, character_coverage=coverage)
        task_with_vocabulary = RunData(dataclasses.replace(data, vocabulary=new.path, new_vocabulary_size=None)).task
        PieceTable(
            task_with_vocabulary.output_features["targets"].vocabulary
        ).read()  # now, before its folder is removed
        return task_with_vocabulary
    return None


def _lengths(task: Task | Mixture | None, config: RunConfig) -> Mapping[str, int] | None:
    """Returns a row's lengths; None if they are wrong, which is a finding of the section about the objective."""
    try:
        with logged():
            return RunData(config.data, task).lengths()
    except InputError:
        return None
