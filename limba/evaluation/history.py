"""A run's metrics.jsonl as columns of numbers, read on as it grows; its summary in lines of text, and its picture."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from etils import epath

from limba.config import InputError, RunConfig, reason_of
from limba.formats.names import Json
from limba.storage.files import read_bytes, write_whole
from limba.training.metrics.records import METRICS, bits_per_byte_by_set, duration, markdown_table

FIGURES = ("train", "validation", "text")  # kinds whose records are numbers
NOTES = ("event", "start", "saved", "end")
NOT_FIGURES = ("kind", "step", "time")
MOST_STEPS = 2**53  # beyond, float64 does not hold every whole number
NUM_SAMPLED = 10  # evaluations whose samples are shown
MOST_POINTS = 4_000  # of a line of the picture


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
        self._steps, self._records = list[int](), list[Mapping[str, float]]()
        self.names = dict[str, None]()  # of the columns, as the records have them

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
        """Adds a record; what is no number is left out. OverflowError for a number that float64 does not hold."""
        record = {sys.intern(name): float(value) for name, value in values.items() if type(value) in (int, float)}
        self.names |= dict.fromkeys(record)
        self._steps.append(step)
        self._records.append(record)

    def reaches(self, step: int) -> bool:
        """Returns whether there is a record of this step or a later one."""
        return bool(self._steps) and self._steps[-1] >= step

    def forget_from(self, step: int) -> None:
        """Removes the records of this step and later ones."""
        place = bisect_left(self._steps, step)
        del self._steps[place:], self._records[place:]


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
        self.samples, self.notes = list[Json](), list[Json]()
        self.row_lengths: Mapping[str, Sequence[Sequence[int]]] = {}
        self.last_time = ""
        self.num_damaged, self.first_damaged, self._num_lines, self._offset = 0, 0, 0, 0

    def update(self) -> bool:
        """Reads what was added; returns whether there was anything. The storage's own errors if it cannot be read."""
        path, before = self._directory / METRICS, self._offset
        size = path.stat().length if path.exists() else 0
        if size < self._offset:  # another file, such as one copied there again
            self._begin()
        whole = read_bytes(path) if size != self._offset else b""
        for line in io.BytesIO(whole[self._offset :]):
            if not line.endswith(b"\n") and not _is_whole(line):
                break  # it is being written
            self._offset += len(line)
            self._num_lines += 1
            self._take(line)
        return self._offset != before

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

    def _add(self, kind: str, step: int, record: Json) -> None:
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
    def start(self) -> Json:
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


def kept(values: np.ndarray, most: int) -> np.ndarray:
    """Returns the places of at most `most` values, in order: the first, the last, and each stretch's extremes.

    >>> kept(np.asarray([1.0, 2, 9, 2, 1, 2, -5, 2, 1, 1]), 6).tolist()
    [0, 2, 4, 5, 6, 9]
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(1, count - 1, max((most - 2) // 2, 1) + 1).astype(int)
    low = np.where(np.isnan(values), np.inf, values)
    high = np.where(np.isnan(values), -np.inf, values)
    places = {0, count - 1}
    for begin, end in itertools.pairwise(edges):
        places |= {begin + int(np.argmin(low[begin:end])), begin + int(np.argmax(high[begin:end]))}
    return np.asarray(sorted(places))


def evenly(count: int, most: int) -> list[int]:
    """Returns the places of at most `most` of `count` things, the first and the last among them.

    >>> evenly(10, 4), evenly(2, 4), evenly(0, 4)
    ([0, 3, 6, 9], [0, 1], [])
    """
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most)).tolist()}) if count else []


def history_of(config: RunConfig) -> History:
    """Returns what the run in model_dir has recorded so far."""
    history = History(epath.Path(config.model_dir))
    history.update()
    return history


def summary(config: RunConfig, history: History | None = None) -> str:
    """Returns the first and last figures of the run in model_dir, from its metrics, and its samples by step.

    KeyError if a figure that every run records is missing.
    """
    history = history or history_of(config)
    train, evaluated, written = (history.tables[kind] for kind in ("train", "validation", "text"))
    lines = []
    if len(train):
        loss, speeds = train["loss"], train["tokens_per_second"]
        first, last = (f"{step:,.0f}" for step in train.steps[[0, -1]])
        lines += [
            f"steps               {last}",
            f"training loss       {loss[0]:.3f} at step {first}, {loss[-1]:.3f} at the end",
            f"tokens per second   {np.median(speeds[1:] if len(train) > 1 else speeds):,.0f} (median of the lines"
            " after the first)",
            f"time in steps       {duration(float(np.diff(train.steps, prepend=0) @ train['seconds_per_step']))}",
        ]
    if len(evaluated):
        loss, last = evaluated["loss"], _record(evaluated, -1)
        lines += [
            f"validation loss     {loss[0]:.3f} at step {evaluated.steps[0]:,.0f}, {loss[-1]:.3f} at the end",
        ]
        if "bits_per_byte" in last:
            lines += [
                f"bits per byte       {last['bits_per_byte']:.3f} of the text that the validation targets spell",
                *(f"                    {words}" for words in bits_per_byte_by_set(last)),
            ]
        lines += [
            f"perplexity          {last['perplexity']:.2f} a token of the validation text",
            f"token accuracy      {last['accuracy']:.1%} of the validation text",
        ]
    directory = epath.Path(config.model_dir)
    lines += [f"best step           {directory / 'best'}"] if (directory / "best").exists() else []
    lines += [
        f"checkpoints         {directory / 'checkpoints'}",
        f"figures             {directory / 'metrics.jsonl'}, {directory / 'tensorboard'}",
    ]
    if len(written):
        figures = {f"step {written.steps[place]:,.0f}": _record(written, place) for place in (0, -1)}
        lines += ["", "text generated for validation examples:", "", markdown_table(figures)]
    return "\n".join([*lines, *_samples_by_step(history.samples)])


def outcome(config: RunConfig) -> str:
    """Returns what the run in model_dir came to, in a row: its losses at the beginning and the end, and its time.

    KeyError if a figure that every run records is missing.
    """
    history = history_of(config)
    train, evaluated = history.tables["train"], history.tables["validation"]
    parts = []
    if len(train):
        loss = train["loss"]
        seconds = float(np.diff(train.steps, prepend=0) @ train["seconds_per_step"])
        parts.append(f"Loss {loss[0]:.3f} to {loss[-1]:.3f} in {train.steps[-1]:,.0f} steps, {duration(seconds)}")
    if len(evaluated):
        loss = evaluated["loss"]
        since = f"{loss[0]:.3f} to " if len(loss) > 1 else ""
        parts.append(f"validation {since}{loss[-1]:.3f}")
    return "; ".join(parts) or "The run had no step to take."


def _record(table: Table, place: int) -> dict[str, float]:
    """Returns one record's figures."""
    found = {name: float(table[name][place]) for name in table.names}
    return {name: value for name, value in found.items() if not np.isnan(value)}


def _samples_by_step(records: Sequence[Json]) -> list[str]:
    """Returns how the model continued each prompt, at NUM_SAMPLED steps from the first to the last."""
    chosen = [records[place] for place in evenly(len(records), NUM_SAMPLED)]
    lines = []
    for prompt in dict.fromkeys(prompt for record in chosen for prompt in record["texts"]):
        doing = "filling" if "<extra_id_0>" in prompt else "continuing"
        lines += ["", f"samples, {doing} {prompt!r}:"]
        for record in chosen:
            texts = [" ".join(text.split()) for text in record["texts"].get(prompt, ())]
            lines += [f"step {record['step']:<14,} {text}" for text in texts]
    return lines


def plot_loss(
    config: RunConfig, folder: str | os.PathLike[str] | None = None, history: History | None = None
) -> epath.Path:
    """Draws training and validation loss over steps; returns the path, loss.png in the folder or in model_dir."""
    from matplotlib.figure import Figure

    history = history or history_of(config)
    path = epath.Path(folder or config.model_dir) / "loss.png"
    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for kind, label, style in (("train", "training", "-"), ("validation", "validation", "o--")):
        table = history.tables[kind]
        losses = table["loss"] if "loss" in table else np.empty(0)
        places = kept(losses, MOST_POINTS)
        axes.plot(table.steps[places], losses[places], style, label=label)
    axes.set(xlabel="step", ylabel="loss (nats per target token)", title=config.data.mixture_or_task_name)
    axes.grid(alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())
    return path
