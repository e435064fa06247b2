"""The records of a run's metrics.jsonl as columns of numbers: read line by line, and later only what is new."""

from __future__ import annotations

import contextlib
import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from limba.config import InputError
from limba.config.errors import reason_of
from limba.storage import files
from limba.training.metrics.records import METRICS, files_of

FIGURES = ("train", "validation", "text")  # kinds whose records are numbers
NOTES = ("event", "start", "saved", "end")
NOT_FIGURES = ("kind", "step", "time")
MOST_STEPS = 2**53  # beyond, float64 does not hold every whole number


class Table:
    """Figures at growing steps: a column of float64 for each name, NaN where a record lacks it.

    >>> table = Table()
    >>> for step, loss in ((10, 5.0), (20, 4.0), (30, 3.5), (20, 4.5)):  # a run that resumed from step 10
    ...     table.forget_from(step)
    ...     table.add(step, {"loss": loss})
    >>> table.steps.tolist(), table["loss"].tolist()
    ([10.0, 20.0], [5.0, 4.5])
    """

    def __init__(self) -> None:
        self._steps, self._columns = array("d"), dict[str, array]()

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns a column, float64; KeyError if no record has the name."""
        return np.array(self._columns[name])

    @property
    def names(self) -> list[str]:
        """The columns' names, as the records have them."""
        return list(self._columns)

    @property
    def steps(self) -> np.ndarray:
        """The steps, float64."""
        return np.array(self._steps)

    def last(self, name: str) -> float:
        """Returns the last record's figure; KeyError as above."""
        return self._columns[name][-1]

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds a record; what is no number is left out. OverflowError for a number that float64 does not hold."""
        numbers = {name: float(value) for name, value in values.items() if type(value) in (int, float)}
        before = len(self._steps)
        for name, value in numbers.items():
            if name not in self._columns:
                self._columns[name] = array("d", [float("nan")]) * before
            self._columns[name].append(value)
        self._steps.append(step)
        if len(numbers) < len(self._columns):
            for column in self._columns.values():
                if len(column) == before:
                    column.append(float("nan"))

    def reaches(self, step: int) -> bool:
        """Returns whether there is a record of this step or a later one."""
        return bool(self._steps) and self._steps[-1] >= step

    def forget_from(self, step: int) -> None:
        """Removes the records of this step and later ones."""
        if self.reaches(step):
            place = bisect_left(self._steps, step)
            for column in (self._steps, *self._columns.values()):
                del column[place:]


class History:
    """What a run has recorded so far; `update` reads on. A run that resumes replaces what it repeats.

    `notes` are the records of NOTES in the order in which they were written, `samples` those of generated texts.
    `num_damaged` lines were cut or are no record, the first of them in line `first_damaged`.
    """

    def __init__(self, directory: epath.Path):
        self._directory = directory
        self._begin()

    def _begin(self) -> None:
        self.tables = {kind: Table() for kind in FIGURES}
        self.samples, self.notes = list[dict[str, Any]](), list[dict[str, Any]]()
        self.row_lengths: Mapping[str, Sequence[Sequence[int]]] = {}
        self.last_time = ""
        self.num_damaged, self.first_damaged, self._num_lines, self._offset = 0, 0, 0, 0

    def update(self) -> bool:
        """Reads what was added; returns whether there was anything. The storage's own errors if it cannot be read."""
        size, before = self._size(), self._offset
        if size < self._offset:  # another file, such as one copied there again
            self._begin()
        for line in self._lines():
            if not line.endswith(b"\n") and not _is_whole(line):
                break  # it is being written
            self._offset += len(line)
            self._num_lines += 1
            self._take(line)
        return self._offset != before

    def _size(self) -> int:
        return sum(path.stat().length for path in files_of(self._directory))

    def _lines(self) -> Iterator[bytes]:
        """Yields the lines behind the offset, each with its end."""
        paths = files_of(self._directory)
        if "://" not in str(self._directory) and [path.name for path in paths] == [METRICS]:
            with open(paths[0], "rb") as file:
                file.seek(self._offset)
                yield from file
            return
        # An object of a bucket may have grown by its tail since, so the bytes of all are one text.
        whole = b""
        for path in paths:
            joint = b"\n" if whole and not whole.endswith(b"\n") and not path.name.endswith(files.TAIL) else b""
            whole += joint + path.read_bytes()
        yield from whole[self._offset :].splitlines(keepends=True)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            record = json.loads(line)
            kind, step = record["kind"], record["step"]
            if not isinstance(kind, str) or type(step) is not int or not 0 <= step < MOST_STEPS:
                raise ValueError
            self._add(kind, step, record)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self.num_damaged += 1
            self.first_damaged = self.first_damaged or self._num_lines

    def _add(self, kind: str, step: int, record: dict[str, Any]) -> None:
        self.last_time = str(record.get("time", self.last_time))
        if kind in FIGURES:
            values = {name: value for name, value in record.items() if name not in NOT_FIGURES}
            if kind == "train" and self.tables["train"].reaches(step):
                self._forget_from(step)
            self.tables[kind].forget_from(step)
            self.tables[kind].add(step, values)
        elif kind == "samples":
            self.samples = [each for each in self.samples if each["step"] < step]
            self.samples.append({"step": step, "texts": dict(record["texts"])})
        elif kind in NOTES:
            if type(record.get("returned_to")) is int:
                self._forget_from(record["returned_to"] + 1)
            self.notes.append(record)
        elif kind == "row_lengths":
            counted = dict(record["rows"])
            self.row_lengths = {side: [(int(n), int(rows)) for n, rows in pairs] for side, pairs in counted.items()}

    def _forget_from(self, step: int) -> None:
        for table in self.tables.values():
            table.forget_from(step)
        self.samples = [each for each in self.samples if each["step"] < step]

    @property
    def start(self) -> Mapping[str, Any]:
        """The facts of the newest start; nothing where its record is damaged."""
        return next((note for note in reversed(self.notes) if "environment" in note), {})


@contextlib.contextmanager
def figures_read(directory: str) -> Iterator[None]:
    """Raises InputError, inside, for a figure that each record of a run has, and that is missing or no number."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        raise InputError(
            f"{directory}/{METRICS} has a record that no run writes ({type(error).__name__}: {reason_of(error)});"
            " restore it from a copy."
        ) from error


def _is_whole(line: bytes) -> bool:
    """Returns whether a line without an end is a whole object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
