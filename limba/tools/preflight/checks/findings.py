"""Sections from checks: each error becomes a line with what mends it, and the other checks go on."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from limba.config import InputError, StorageError
from limba.config.errors import SentenceError, reason_of
from limba.tools.preflight.checks.verdict import Line, Section

Check = Callable[[dict[str, Any]], Iterable[Line]]  # may add figures to the section's data
UNREACHABLE = re.compile(r"\w+://\S+ cannot be reached: ")
_FIELD = r"(\w+Config\.\w+|[A-Z][A-Z_]{3,})"  # or the name that its user typed


def gathered(title: str, *checks: Check) -> Section:
    """Returns the section of all lines of the checks, and of what is logged meanwhile, as warnings.

    A check that ends with an InputError, a StorageError or an OSError gives an error line; the next ones still run.
    """
    lines, data = list[Line](), dict[str, Any]()
    with logged() as said:
        for check in checks:
            try:
                for line in check(data):  # one by one: those before an error stay
                    lines.append(line)
            except (SentenceError, OSError) as error:
                line = error_line(error)
                lines += [] if line in lines else [line]
    lines += [Line("warning", sentence, mend_in(sentence)) for sentence in dict.fromkeys(said)]
    return Section(title, lines, data)


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """Collects what Limba logs as warnings, in place of writing it to the console."""
    said: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger = logging.getLogger("limba")
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [Collecting(logging.WARNING)], False  # also not for a collector around this
    try:
        yield said
    finally:
        logger.handlers, logger.propagate = before


def error_line(error: BaseException) -> Line:
    """Returns the line of an error: its sentence, and the choice that it advises.

    >>> error_line(InputError("DataConfig.batch_size is 0; give a whole number above 0.")).mend
    'DataConfig.batch_size = …  # a whole number above 0'
    """
    sentence = str(error) if isinstance(error, InputError | StorageError) else f"{reason_of(error)}."
    sentence = " ".join(sentence.split())
    mend = mend_in(sentence)
    if not mend and (found := re.match(rf"{_FIELD} .*; (?:give )?([^;]+)\.$", sentence)):
        mend = f"{found[1]} = …  # {found[2]}"
    return Line("error", sentence, mend)


def reached_by(line: Line, field: str) -> Line:
    """Returns a line about an address of this field that does not answer with the choice of another one.

    >>> reached_by(Line("error", "gs://a/b cannot be reached: no name."), "DataConfig.vocabulary").mend
    'DataConfig.vocabulary = …  # an address that this machine reaches'
    """
    if not UNREACHABLE.search(line.text):
        return line
    return dataclasses.replace(line, mend=f"{field} = …  # an address that this machine reaches")


def mend_in(sentence: str) -> str:
    """Returns the choice that a sentence advises, as a line of a configuration; "" if it names no value.

    >>> mend_in("The vocabulary has 359 ids and the model 100 rows; set ModelConfig.vocab_size to 384, or …")
    'ModelConfig.vocab_size = 384'
    >>> mend_in("DataConfig.mixture_or_task_name is 'a_b', and no task has that name; did you mean a_c, b_c? A module")
    "DataConfig.mixture_or_task_name = 'a_c'"
    >>> mend_in("DataConfig.batch_size is 20, which does not divide by RunConfig.num_microbatches 3; give a multiple.")
    'RunConfig.num_microbatches = 2'
    >>> mend_in("x.jsonl has no column 'text'; it has 'body', 'title': set DataConfig.column to one of these.")
    "DataConfig.column = 'body'"
    """
    if found := re.search(rf"it has '?([\w-]+).*: set {_FIELD} to one of these", sentence):
        return f"{found[2]} = {found[1]!r}"
    if UNREACHABLE.search(sentence):
        return "name an address that answers, or look from a machine whose network reaches it"
    if re.search(r"^The data set \S+ cannot be opened", sentence):
        return "DataConfig.data_files = …  # files, in place of the hub's"
    if " is not UTF-8 at byte " in sentence:
        return "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW_FILE"
    if found := re.search(rf"none for data shard (\d+) of \d+; set {_FIELD} lower", sentence):
        return f"{found[2]} = {_power_of_two(int(found[1]) // 2)}"
    if found := re.search(rf"{_FIELD} gives 'targets' \d+, and .* of (\d+) inputs needs", sentence):
        return f"{found[1]} = {{'inputs': {found[2]}}}"
    if found := re.search(rf"{_FIELD} .*did you mean ([\w./-]+)[,?]", sentence):
        return f"{found[1]} = {found[2]!r}"
    if found := re.search(rf"{_FIELD} is (\d+), which does not divide by {_FIELD} (\d+)", sentence):
        whole, parts = int(found[2]), int(found[4])
        return f"{found[3]} = {next(number for number in range(parts, 0, -1) if whole % number == 0)}"
    if found := re.search(rf"{_FIELD} (\d+) does not divide by {_FIELD} (\d+)", sentence):
        return f"{found[1]} = {-(-int(found[2]) // int(found[4])) * int(found[4])}"
    if found := re.search(
        rf"[Ss]et {_FIELD} to ('[^']*'|\"[^\"]*\"|-?\d[\d.e-]*\d|\d|True|False|None)(?![\w.])", sentence
    ):
        return f"{found[1]} = {found[2]}"
    if found := re.search(rf"to its path with {_FIELD} (\d+)(?![\w.])", sentence):
        return f"{found[1]} = {found[2]}"
    return ""


def unchecked(why: str) -> Check:
    """Returns the check of a section that cannot be made, because of what another section says."""
    return lambda data: [Line("ok", f"Not checked: {why}.")]


def _power_of_two(number: int) -> int:
    """Returns the largest power of two up to a number; 1 for 0."""
    return 1 << max(number.bit_length() - 1, 0)
