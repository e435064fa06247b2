"""Sections from checks: each error becomes a line with its fix, and the other checks go on."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from limba.config import Fix, RunConfig
from limba.config.errors import ELSEWHERE, Open, SentenceError, reason_of
from limba.tools.preflight.checks.verdict import Data, Line, Section

Check = Callable[[Data], Iterable[Line]]  # may add figures to the section's data
# Code of a finding -> the fields by whose change its numbers become others.
COUNTED_ON = {
    "too-many-epochs": {"DataConfig.data_files", "DataConfig.vocabulary", "DataConfig.new_vocabulary_size"},
    "unused-rows": {"DataConfig.vocabulary", "DataConfig.new_vocabulary_size", "DataConfig.extra_ids"},
}


def gathered(title: str, *checks: Check) -> Section:
    """Returns the section with all lines of the checks, and with what is logged meanwhile, as warnings.

    A check that ends with an InputError, a StorageError or an OSError gives an error line; the next ones still run.
    """
    lines = list[Line]()
    data = Data()
    with logged() as sentences:
        for check in checks:
            try:
                for line in check(data):  # one by one: those before an error stay
                    lines.append(line)
            except (SentenceError, OSError) as error:
                line = error_line(error)
                if not any(_is_same_fault(line, other) for other in lines):
                    lines.append(line)
    lines += [Line("warning", sentence, code="logged") for sentence in dict.fromkeys(sentences)]
    return Section(title, lines, data)


def _is_same_fault(line: Line, other: Line) -> bool:
    """Returns whether two lines have one fix, or begin with the same words."""
    if other.fix is not None and line.fix == other.fix:
        return True
    return line.text.partition(";")[0] == other.text.partition(";")[0]


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collects what Limba logs as warnings, instead of writing it to the console."""
    sentences: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sentences.append(record.getMessage())

    logger = logging.getLogger("limba")
    handlers = logger.handlers
    propagate = logger.propagate
    logger.handlers = [Collecting(logging.WARNING)]
    logger.propagate = False  # so that a collector around this one does not get it too
    try:
        yield sentences
    finally:
        logger.handlers = handlers
        logger.propagate = propagate


def error_line(error: SentenceError | OSError) -> Line:
    """Returns the line of an error: its sentence, and its fix.

    >>> from limba.config import ConfigError
    >>> error_line(ConfigError("DataConfig.batch_size", "is 0", give="a whole number above 0")).fixes({})
    'config.DataConfig.batch_size = …  # a whole number above 0'
    >>> error_line(ConfigError("DataConfig.batch_size", "is 0")).code, error_line(OSError(2, "no file")).code
    ('batch-size', 'file-not-found-error')
    """
    if not isinstance(error, SentenceError):
        return Line("error", f"{reason_of(error)}.", code=_code(type(error).__name__))
    fix = error.fix or None
    if fix is None and error.field:
        fix = (error.field, Open())
    if error.field:
        field = error.field
    elif isinstance(fix, tuple):
        field = fix[0]
    else:
        field = type(error).__name__
    return Line("error", " ".join(str(error).split()), fix, _code(field.rpartition(".")[2]))


def shorter(config: RunConfig, steps: int) -> Fix | list[Fix]:
    """Returns the choices of a run of fewer steps: these, and a tenth of them for periods that would be longer.

    >>> from limba.config import DataConfig, ModelConfig
    >>> run = RunConfig(ModelConfig(384, 64, 2, 32, 128, 2, 2), DataConfig("a", {"inputs": 64}, 8), "runs/x", 9_000)
    >>> shorter(run, 205)[:2]
    [('RunConfig.train_steps', 205), ('CheckpointConfig.every_steps', 20)]
    """
    fixes: list[Fix] = [("RunConfig.train_steps", steps)]
    for owner, period in (("CheckpointConfig", config.checkpoint), ("EvaluationConfig", config.evaluation)):
        if isinstance(period.every_steps, int) and period.every_steps > steps:
            fixes.append((f"{owner}.every_steps", max(1, steps // 10)))
    return fixes if len(fixes) > 1 else fixes[0]


def after_changes(section: Section, made: Sequence[Section]) -> Section:
    """Returns a section without the numbers that only hold for a text or a vocabulary that other findings change."""
    changed = set()
    for other in (*made, section):
        for line in other.lines:
            changed.update(fix[0] for fix in _fixes(line) if not isinstance(fix, str))
    lines = [_counted_again(line, changed) for line in section.lines]
    return dataclasses.replace(section, lines=lines)


def _counted_again(line: Line, changed: Collection[str]) -> Line:
    """Returns a line without the number of its fix, if another finding's fix changes what was counted."""
    if not COUNTED_ON.get(line.code, set()) & set(changed):
        return line
    field, _ = next(fix for fix in _fixes(line) if not isinstance(fix, str))
    return dataclasses.replace(line, fix=(field, Open("counted again after the changes above")))


def _fixes(line: Line) -> list[Fix]:
    if isinstance(line.fix, list):
        return line.fix
    if line.fix is None:
        return []
    return [line.fix]


def _code(name: str) -> str:
    """Returns the name of a field or a class as a code: batch_size and BatchSize give batch-size."""
    return re.sub("(?<=[a-z])(?=[A-Z])|_", "-", name).lower()


def reached_by(line: Line, field: str) -> Line:
    """Returns a line about an address of this field that does not answer with the choice of another one.

    >>> reached_by(Line("error", "gs://a/b cannot be reached.", ELSEWHERE), "DataConfig.vocabulary").fix
    ('DataConfig.vocabulary', …  # an address that this machine reaches)
    """
    if line.fix != ELSEWHERE:
        return line
    return dataclasses.replace(line, fix=(field, Open("an address that this machine reaches")))
