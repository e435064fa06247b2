"""A run as the page shows it: its configuration, its history, what happened, and what else its directory holds."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from limba.api import RunDirectory, Standing, evenly, flops_per_sequence
from limba.config import InputError, RunConfig, foreign, reason_of

AXES = ("step", "tokens", "hours", "flop")  # what a line can be drawn over
EVALUATED = re.compile(r"(?P<task>.+)-(?P<step>\d+)\.jsonl")  # of model_dir/evaluations
MOST_EVALUATED = 24  # evaluations whose texts are read
MOST_EXAMPLES = 4  # of an evaluation


class Run:
    """A run's directory; `name` is what the page calls it. `update` looks at it again."""

    def __init__(self, name: str, found: RunDirectory, config: RunConfig):
        self.name, self.found, self.directory, self.config = name, found, found.path, config
        self.history = found.history
        self._evaluated: dict[str, list[dict[str, str]]] = {}
        self.holder = ""
        self.standing: Standing | None = None  # None while it trains
        self.problems = list[str]()

    def update(self) -> bool:
        """Reads what is new; returns whether there is anything. InputError if the directory cannot be read."""
        place = f"{self.directory}/metrics.jsonl"
        try:
            has_changed = self.history.update()
            place = str(self.directory)
            self.holder = self.found.holder()
            self.standing = self.found.standing()
            if has_changed:
                self.problems = list(self._problems())
        except Exception as error:  # a bucket's client has errors of its own
            raise InputError(
                f"{place} cannot be read ({reason_of(error)}); check the path, your rights and the network."
            ) from error
        return has_changed

    @property
    def train(self) -> Any:
        """The figures of the logged lines."""
        return self.history.tables["train"]

    def axes(self, kind: str = "train") -> dict[str, np.ndarray]:
        """Returns the AXES of a kind's records that are known: step, tokens, hours in steps, FLOP."""
        return self.at(self.history.tables[kind].steps)

    def at(self, steps: Sequence[float] | np.ndarray) -> dict[str, np.ndarray]:
        """Returns the same for any steps."""
        found = {"step": np.asarray(steps, np.float64)}
        for name, values in self._totals().items() if len(self.train) else ():
            found[name] = np.interp(found["step"], [0.0, *self.train.steps], [0.0, *values])
        if (flops := self.flops_per_step()) is not None:
            found["flop"] = found["step"] * flops
        return found

    def _totals(self) -> dict[str, np.ndarray]:
        """Returns the tokens read and the hours spent in steps up to each logged line."""
        if "seconds_per_step" not in self.train:
            return {}
        seconds = np.nan_to_num(self.train["seconds_per_step"]) * np.diff(self.train.steps, prepend=0.0)
        found = {"hours": np.cumsum(seconds) / 3600}
        if "tokens_per_second" in self.train:
            found["tokens"] = np.cumsum(np.nan_to_num(self.train["tokens_per_second"]) * seconds)
        return found

    def lengths(self) -> tuple[int, int] | None:
        """Returns the lengths of the encoder's and the decoder's rows; None if neither start nor config says them."""
        start, given = self.history.start, self.config.data.task_feature_lengths
        inputs, targets = start.get("inputs_length"), start.get("targets_length")
        if isinstance(inputs, int) and isinstance(targets, int):
            return inputs, targets
        if (length := self.config.data.sequence_length) is not None:
            return 0, length
        return (given["inputs"], given["targets"]) if {"inputs", "targets"} <= set(given) else None

    def flops_per_step(self) -> float | None:
        """Returns the FLOPs of a step, as MFU counts them; None if the rows' lengths are not known."""
        if isinstance(self.history.start.get("flops_per_step"), float):
            return self.history.start["flops_per_step"]
        lengths = self.lengths()
        data = self.config.data
        if lengths is None:
            return None
        return flops_per_sequence(self.config.model, *lengths, data.num_predicted) * data.batch_size

    def padding(self) -> np.ndarray | None:
        """Returns the share of the rows' places that hold no token, by logged line; None if that is not known."""
        lengths = self.lengths()
        if lengths is None or not {"tokens_per_second", "seconds_per_step"} <= set(self.train.names):
            return None
        tokens = self.train["tokens_per_second"] * self.train["seconds_per_step"]
        return np.clip(1 - tokens / (self.config.data.batch_size * sum(lengths)), 0.0, 1.0).round(6)

    def evaluations(self) -> dict[str, dict[int, list[dict[str, str]]]]:
        """Returns task -> step -> examples {"input", "target", "prediction"}, of some steps from first to last."""
        folder = self.directory / "evaluations"
        by_task: dict[str, dict[int, epath.Path]] = {}
        for path in sorted(folder.iterdir(), key=str) if folder.is_dir() else ():
            if match := EVALUATED.fullmatch(path.name):
                by_task.setdefault(match["task"], {})[int(match["step"])] = path
        found = {}
        for task, paths in by_task.items():
            steps = sorted(paths)
            for place in evenly(len(steps), MOST_EVALUATED):
                found.setdefault(task, {})[steps[place]] = self._examples(paths[steps[place]])
        return found

    def _examples(self, path: epath.Path) -> list[dict[str, str]]:
        if path.name not in self._evaluated:  # it is written once
            names = ("input", "target", "prediction")  # which the line of figures has not
            found = ({name: str(each[name]) for name in names} for each in _records(path, *names))
            self._evaluated[path.name] = list(itertools.islice(found, MOST_EXAMPLES))
        return self._evaluated[path.name]

    def _problems(self) -> Sequence[str]:
        """Returns sentences on what could not be read, here and by the run itself."""
        found = []
        if number := self.history.num_damaged:
            lines = "1 line" if number == 1 else f"{number:,} lines"
            found.append(
                f"{lines} of metrics.jsonl cannot be read and are left out, the first is line"
                f" {self.history.first_damaged:,}: a run that is killed may leave one cut."
            )
        for path in sorted(self.directory.glob("skipped_units_process_*.json"), key=str):
            try:
                number = f"{len(json.loads(own_bytes(self.directory, path) or b'')):,}"
            except (ValueError, TypeError, RecursionError):
                number = "an unknown number of"
            found.append(f"{number} part(s) of the corpus could not be read and were skipped; {path.name} lists them.")
        return found

    def skipped(self) -> list[dict[str, Any]]:
        """Returns the batches that the run has dropped or passed over, as its ledger has them."""
        return list(_records(self.directory / "skipped_batches.jsonl", "batch"))

    def skipped_documents(self) -> dict[int, list[str]]:
        """Returns batch -> the places of its documents (source, unit, row), where somebody has looked for them."""
        found: dict[int, dict[str, None]] = {}  # each place once
        for each in _records(self.directory / "skipped_documents.jsonl", "batch", "document", "source", "unit"):
            place = f"{each['source']}, {each['unit']}, row {each['document']:,}"
            found.setdefault(each["batch"], {})[place] = None
        return {batch: list(places) for batch, places in found.items()}


def _records(path: epath.Path, *names: str) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON-lines file that have these fields, numbers in whole ones; none without the file."""
    for line in (own_bytes(path.parent, path) or b"").splitlines():
        try:
            each = json.loads(line)
            numbers = {name: int(each[name]) for name in ("batch", "document") if name in names}
            record = {**{name: each[name] for name in names}, **each, **numbers}
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            continue  # it was cut, or is another one
        yield record


def own_bytes(folder: epath.Path, path: epath.Path) -> bytes | None:
    """Returns the content of a run's file; None if it is missing, cannot be read, or is a link out of the folder."""
    try:
        if "://" in os.fspath(path):
            return path.read_bytes() if path.exists() else None
        return foreign.bytes_of(path) if foreign.is_inside(path, folder) else None
    except (OSError, ValueError):
        return None


START, RESTART, SAVE, SPIKE, FAULT, SKIPPED, END = KINDS = (
    "start", "restart", "save", "spike", "fault", "skipped", "end"
)  # fmt: skip


class Event(NamedTuple):
    """Something that happened after a step; `time` is empty where it is not known."""

    step: int
    time: str
    kind: str
    said: str


def events_of(run: Run) -> list[Event]:
    """Returns the events of a run, in the order of their steps."""
    return sorted(_events(run), key=lambda each: (each.step, each.time, KINDS.index(each.kind)))


def _events(run: Run) -> Iterator[Event]:
    notes, skipped = run.history.notes, run.skipped()
    for note in notes:
        step, time = note["step"], str(note.get("time", ""))
        if note["kind"] == "start":
            yield Event(step, time, *((RESTART, f"resumed at step {step:,}") if step else (START, "started")))
        elif note["kind"] == "saved":
            yield Event(step, time, SAVE, f"step {step:,} saved")
        elif note["kind"] == "end":
            reason = str(note.get("reason", ""))
            yield Event(step, time, FAULT if note.get("failed") else END, reason or f"ended at step {step:,}")
        else:
            yield Event(step, time, SPIKE, _spike(note))
    documents = run.skipped_documents() if skipped else {}
    for entry in skipped:
        said = f"batch {entry['batch']:,} was not trained on: {entry.get('reason')}"
        yield Event(entry["batch"], "", SKIPPED, said + _named(documents.get(entry["batch"], ())))
    for path in run.directory.glob("non_finite_step_*.npz"):
        with contextlib.suppress(ValueError):
            step = int(path.name.split("_")[3])
            yield Event(step, "", FAULT, f"step {step:,} was not finite; its rows are in {path.name}")
    for path in (run.directory / "checkpoints").glob("*.broken"):
        with contextlib.suppress(ValueError):
            step = int(path.name.split(".")[0])
            yield Event(step, "", FAULT, f"the checkpoint of step {step:,} could not be read: {path.name}")


def _spike(note: dict[str, object]) -> str:
    returned = f"; returned to step {note['returned_to']:,}" if isinstance(note.get("returned_to"), int) else ""
    return f"{note.get('reason', 'a spike')} ({note.get('action', 'warn')}{returned})"


def _named(places: Sequence[str]) -> str:
    """Returns the first of a batch's documents in words, and how many more there are.

    >>> _named(["ro, a.jsonl, row 7", "ro, b.jsonl, row 1"]), _named([])
    ('; document: ro, a.jsonl, row 7, and 1 more', '')
    """
    more = f", and {len(places) - 1:,} more" if len(places) > 1 else ""
    return f"; document: {places[0]}{more}" if places else ""


def thinned(events: Sequence[Event], most: int) -> list[Event]:
    """Returns at most about `most` events: of saves and spikes some, of the others the newest."""
    rare = [each for each in events if each.kind not in (SAVE, SPIKE)][-most // 2 :]
    often = [each for each in events if each.kind in (SAVE, SPIKE)]
    chosen = [often[place] for place in evenly(len(often), most // 2)]
    return sorted([*rare, *chosen], key=lambda each: (each.step, each.time))
