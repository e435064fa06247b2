"""A run's metrics.jsonl as columns of numbers; `History.update` reads what was added since the last call."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from etils import epath

from limba.config import InputError, RunConfig, reason_of
from limba.formats.names import Json
from limba.storage.files import read_bytes
from limba.training.metrics.records import METRICS, NOTES

# Each record of metrics.jsonl has a "kind". Records of FIGURES become rows of a table, records of NOTES are kept as
# they are; "samples" and "row_lengths" have forms of their own (`History._add`), and other kinds are ignored.
FIGURES = ("train", "validation", "text")
NOT_FIGURES = ("kind", "step", "time")  # keys of a record of FIGURES without a column in its table
MOST_STEPS = 2**53  # steps are columns of float64, which does not hold every whole number beyond


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
        # Records, not columns: a record may lack names, and a name may first come after thousands of records. A column
        # is made when it is asked for.
        self._steps = list[int]()
        self._records = list[Mapping[str, float]]()
        self.names = dict[str, None]()  # of the columns; a dict as a set with an order

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns a column, float64; KeyError if no record has the name."""
        if name not in self.names:
            raise KeyError(name)
        return np.array([record.get(name, np.nan) for record in self._records], np.float64)

    @property
    def steps(self) -> np.ndarray:
        """The steps, float64."""
        return np.array(self._steps, np.float64)

    def last(self, name: str) -> float:
        """Returns the last record's figure; KeyError as above."""
        return float(self[name][-1])

    def add(self, step: int, values: Json) -> None:
        """Adds a record, without its non-numeric values. OverflowError for a number that float64 does not hold."""
        # `type` and not `isinstance`, to which True is an int. Names are interned: json makes a new string for each key
        # of each line, and a long run has a million lines.
        record = {sys.intern(name): float(value) for name, value in values.items() if type(value) in (int, float)}
        self.names |= dict.fromkeys(record)
        self._steps.append(step)
        self._records.append(record)

    def begins_by(self, step: int) -> bool:
        """Returns whether the first record is of this step or an earlier one."""
        return bool(self._steps) and self._steps[0] <= step

    def reaches(self, step: int) -> bool:
        """Returns whether there is a record of this step or a later one."""
        return bool(self._steps) and self._steps[-1] >= step

    def forget_from(self, step: int) -> None:
        """Removes the records of this step and later ones."""
        first = bisect_left(self._steps, step)
        del self._steps[first:]
        del self._records[first:]


class History:
    """What a run has recorded so far; `update` reads on. A run that resumes replaces what it repeats.

    `tables` has a Table for each of FIGURES. `notes` are the records of NOTES in the order in which they were written,
    `samples` the generated texts of each prompt by step, `row_lengths` how many rows of each length a side of the data
    had, as (length, rows). `num_damaged` lines were truncated or hold no record; the first is line `first_damaged`.
    """

    def __init__(self, directory: epath.Path):
        self._directory = directory
        self._begin()

    def _begin(self) -> None:
        self.tables = {kind: Table() for kind in FIGURES}
        self.samples = list[Json]()
        self.notes = list[Json]()
        self.row_lengths: Mapping[str, Sequence[Sequence[int]]] = {}
        self.last_time = ""
        self.num_damaged = 0
        self.first_damaged = 0
        self._num_lines = 0
        self._offset = 0  # bytes of the file that have been read

    def update(self) -> bool:
        """Reads what was added; returns whether there was anything. Raises the storage's own errors."""
        path = self._directory / METRICS
        before = self._offset
        size = path.stat().length if path.exists() else 0
        if size < self._offset:  # another file, such as one copied there again
            self._begin()
        # `read_bytes` reads whole files, here and in a bucket alike; a file of the same size is not read again.
        content = read_bytes(path) if size != self._offset else b""
        for line in io.BytesIO(content[self._offset :]):
            if not line.endswith(b"\n") and not _is_json_object(line):
                break  # the run is still writing it; the next update reads it whole
            self._offset += len(line)
            self._num_lines += 1
            self._take(line)
        return self._offset != before

    def _take(self, line: bytes) -> None:
        """Adds a line's record, or counts it as damaged: a report of the other lines is worth more than an error."""
        if not line.strip():
            return
        try:
            record = json.loads(line)
            kind = record["kind"]
            step = record["step"]
            if not isinstance(kind, str) or type(step) is not int or not 0 <= step < MOST_STEPS:
                raise ValueError
            self._add(kind, step, record)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self.num_damaged += 1
            if not self.first_damaged:
                self.first_damaged = self._num_lines

    def _add(self, kind: str, step: int, record: Json) -> None:
        self.last_time = str(record.get("time", self.last_time))
        if kind in FIGURES:
            values = {name: value for name, value in record.items() if name not in NOT_FIGURES}
            # A training record of a step that is there already: the run resumed from an earlier checkpoint, so all
            # that it recorded from this step on is of updates that it has undone.
            if kind == "train" and self.tables["train"].reaches(step):
                self._forget_from(step)
            self.tables[kind].forget_from(step)
            self.tables[kind].add(step, values)
        elif kind == "samples":
            self.samples = [sample for sample in self.samples if sample["step"] < step]
            self.samples.append({"step": step, "texts": dict(record["texts"])})
        elif kind in NOTES:
            if type(record.get("returned_to")) is int:  # the guard rewound the run to a checkpoint
                self._forget_from(record["returned_to"] + 1)
            self.notes.append(record)
        elif kind == "row_lengths":
            self.row_lengths = {
                side: [(int(length), int(num_rows)) for length, num_rows in pairs]
                for side, pairs in dict(record["rows"]).items()
            }

    def _forget_from(self, step: int) -> None:
        for table in self.tables.values():
            table.forget_from(step)
        self.samples = [sample for sample in self.samples if sample["step"] < step]

    @property
    def start(self) -> Json:
        """The record of the newest start, with its environment; {} if it is damaged."""
        for note in reversed(self.notes):
            if "environment" in note:
                return note
        return {}

    @property
    def first_step(self) -> int:
        """The step that the run itself began at: not 0 in a branch, and after an import that keeps its step."""
        starts = [note["step"] for note in self.notes if note["kind"] == "start"]
        # A start at the first line, or behind it, is a resume: the record of the first start was damaged.
        before_lines = [step for step in starts if not self.tables["train"].begins_by(step)]
        return min(before_lines, default=0)

    def steps_per_line(self) -> np.ndarray:
        """Returns how many steps the run has taken up to each logged line since the one before, float64."""
        return np.diff(self.tables["train"].steps, prepend=float(self.first_step))


@contextlib.contextmanager
def figures_read(directory: str) -> Iterator[None]:
    """Raises InputError, inside, where a record lacks a figure that every run writes, or has no number there."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        raise InputError(
            f"{directory}/{METRICS} has a record that no run writes ({type(error).__name__}: {reason_of(error)});"
            " restore it from a copy."
        ) from error


def _is_json_object(line: bytes) -> bool:
    """Returns whether a line without its line break is whole all the same: JSON that is cut does not parse."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def history_of(config: RunConfig) -> History:
    """Returns what the run in model_dir has recorded so far."""
    history = History(epath.Path(config.model_dir))
    history.update()
    return history
