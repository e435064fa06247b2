"""A run as the page shows it: its configuration, its history, and what else its directory holds."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from etils import epath

from limba.api import RunDirectory, Standing, evenly, flops_per_sequence, matching
from limba.config import InputError, RunConfig, reason_of, untrusted_files

AXES = ("step", "tokens", "hours", "flop")  # what a line can be drawn over
EVALUATED = re.compile(r"(?P<task>.+)-(?P<step>\d+)\.jsonl", re.ASCII)  # of model_dir/evaluations
STEP_INSIDE = re.compile(r"-\d+(?=-)", re.ASCII)  # of a name: `limba evaluate` writes <task>-<step>-<split>-2.jsonl
MOST_EVALUATED = 24  # evaluations whose texts are read
MOST_EXAMPLES = 4  # of an evaluation
EXAMPLE_FIELDS = ("input", "target", "prediction")  # by which it differs from the file's line of figures


class Run:
    """A run's directory; `name` is what the page calls it. `update` looks at it again.

    With `keeps_config` the configuration is one that somebody gave, and is never read from the directory.
    """

    def __init__(self, name: str, run_directory: RunDirectory, config: RunConfig, keeps_config: bool = False):
        self.name = name
        self.run_directory = run_directory
        self.directory = run_directory.path
        self.config = config
        self._keeps_config = keeps_config
        self.history = run_directory.history
        self.holder = ""  # who trains it, in words
        self.standing: Standing | None = None  # None while it trains
        self.problems = list[str]()
        self._num_starts: int | None = None  # that `config` is of; None before the first look
        self._examples: dict[str, tuple[object, list[dict[str, str]]]] = {}  # file's name -> size and time, examples

    def update(self) -> bool:
        """Reads what is new; returns whether there is anything. InputError if the directory cannot be read."""
        path = f"{self.directory}/metrics.jsonl"
        try:
            has_changed = self.history.update()
            path = str(self.directory)
            self.holder = self.run_directory.holder()
            self.standing = self.run_directory.standing()
            self._update_config()
            if has_changed:
                self.problems = list(self._problems())
        except Exception as error:  # a bucket's client has errors of its own
            raise InputError(
                f"{path} cannot be read ({reason_of(error)}); check the path, your rights and the network."
            ) from error
        return has_changed

    def _update_config(self) -> None:
        """Reads the configuration again where the run has started again, maybe with another one."""
        num_starts = sum(note["kind"] == "start" for note in self.history.notes)
        has_restarted = self._num_starts is not None and num_starts != self._num_starts
        if has_restarted and not self._keeps_config:
            self.config = self.run_directory.run() or self.config
        self._num_starts = num_starts

    @property
    def train(self) -> Any:
        """The figures of the logged lines."""
        return self.history.tables["train"]

    def axes(self, kind: str = "train") -> dict[str, np.ndarray]:
        """Returns the AXES of a kind's records that are known: step, tokens, hours in steps, FLOP."""
        return self.at(self.history.tables[kind].steps)

    def at(self, steps: Sequence[float] | np.ndarray) -> dict[str, np.ndarray]:
        """Returns the AXES at any steps, between two logged lines by interpolation; all but the steps are its own.

        They are 0 before the run's first step, where a branch has events of the run that it comes from.
        """
        axes = {"step": np.asarray(steps, np.float64)}
        first = self.history.first_step
        if len(self.train):
            for name, totals in self._totals().items():
                axes[name] = np.interp(axes["step"], [first, *self.train.steps], [0.0, *totals])
        flops = self.flops_per_step()
        if flops is not None:
            axes["flop"] = np.maximum(axes["step"] - first, 0.0) * flops
        return axes

    def _totals(self) -> dict[str, np.ndarray]:
        """Returns the tokens read and the hours spent in steps up to each logged line."""
        if "seconds_per_step" not in self.train:
            return {}
        seconds = np.nan_to_num(self.train["seconds_per_step"]) * self.history.steps_per_line()
        totals = {"hours": np.cumsum(seconds) / 3600}
        if "tokens_per_second" in self.train:
            totals["tokens"] = np.cumsum(np.nan_to_num(self.train["tokens_per_second"]) * seconds)
        return totals

    def hours_by_devices(self) -> dict[str, float]:
        """Returns "8 x TPU v4" -> hours in steps on these devices; {} where devices or hours are not known."""
        hours = self._totals().get("hours")
        starts = list[tuple[int, str]]()  # step, devices: each start trains the lines behind it, up to the next one
        for note in self.history.notes:
            environment = note.get("environment")
            devices = str(environment.get("devices", "")) if isinstance(environment, dict) else ""
            if note["kind"] != "start" or not devices.partition(" x ")[0].isdecimal():
                continue
            while starts and starts[-1][0] >= note["step"]:  # what it has trained is undone
                starts.pop()
            starts.append((note["step"], devices))
        if hours is None or not starts:
            return {}
        by_devices: dict[str, float] = {}
        places = np.searchsorted([step for step, _ in starts], self.train.steps) - 1
        for place, hours_of_line in zip(np.maximum(places, 0), np.diff(hours, prepend=0.0), strict=True):
            devices = starts[place][1]
            by_devices[devices] = by_devices.get(devices, 0.0) + float(hours_of_line)
        return by_devices

    def lengths(self) -> tuple[int, int] | None:
        """Returns the lengths of the encoder's and the decoder's rows, in tokens; None if they are not known."""
        start = self.history.start
        inputs = start.get("inputs_length")
        targets = start.get("targets_length")
        if isinstance(inputs, int) and isinstance(targets, int):
            return inputs, targets
        length = self.config.data.sequence_length
        if length is not None:  # a decoder-only model reads one sequence
            return 0, length
        configured = self.config.data.task_feature_lengths
        if "inputs" in configured and "targets" in configured:
            return configured["inputs"], configured["targets"]
        return None

    def flops_per_step(self) -> float | None:
        """Returns the FLOPs of a step, as MFU counts them; None if the rows' lengths are not known."""
        recorded = self.history.start.get("flops_per_step")
        if isinstance(recorded, float) and 0 < recorded < math.inf:
            return recorded
        lengths = self.lengths()
        if lengths is None:
            return None
        data = self.config.data
        return flops_per_sequence(self.config.model, *lengths, data.num_predicted) * data.batch_size

    def padding(self) -> np.ndarray | None:
        """Returns the share of positions in rows that have no token, 0 to 1 by logged line; None if not known."""
        lengths = self.lengths()
        if lengths is None or not {"tokens_per_second", "seconds_per_step"} <= set(self.train.names):
            return None
        tokens = self.train["tokens_per_second"] * self.train["seconds_per_step"]
        return np.clip(1 - tokens / (self.config.data.batch_size * sum(lengths)), 0.0, 1.0).round(6)

    def evaluations(self) -> dict[str, dict[int, list[dict[str, str]]]]:
        """Returns task -> step -> examples {"input", "target", "prediction"}, of some steps from first to last.

        Of steps that the run has recorded: a run that resumed has files of steps that it has undone.
        """
        folder = self.directory / "evaluations"
        if not folder.is_dir():
            return {}
        recorded = set(self.history.tables["text"].steps.tolist())
        files: dict[str, dict[int, epath.Path]] = {}
        for path in sorted(folder.iterdir(), key=str):
            match = EVALUATED.fullmatch(path.name)
            if match:
                files.setdefault(match["task"], {})[int(match["step"])] = path
        known = self._tasks()
        known |= {name for name in files if not STEP_INSIDE.search(name)}  # a mixture's only task with metrics
        examples: dict[str, dict[int, list[dict[str, str]]]] = {}
        for task, by_step in files.items():
            steps = sorted(recorded & by_step.keys())
            if not steps or _is_of_command(task, known):
                continue
            shown = [steps[i] for i in evenly(len(steps), MOST_EVALUATED)]
            examples[task] = {step: self._examples_in(by_step[step]) for step in shown}
        return examples

    def _tasks(self) -> set[str]:
        """Returns the names of tasks and mixtures in the configuration, and in the columns of metrics of texts."""
        names = {self.config.data.mixture_or_task_name}
        names |= {stage[1] for stage in self.config.data.stages}
        names |= {column.partition("/")[0] for column in self.history.tables["text"].names if "/" in column}
        return names

    def _examples_in(self, path: epath.Path) -> list[dict[str, str]]:
        try:
            stat = path.stat()
            state = stat.length, stat.mtime  # a run that resumes writes the file of a step again
        except OSError:  # it was removed since, or is a link to nothing
            return []
        known = self._examples.get(path.name)
        if known is None or known[0] != state:
            examples = (
                {name: str(record[name]) for name in EXAMPLE_FIELDS} for record in _records(path, *EXAMPLE_FIELDS)
            )
            known = state, list(itertools.islice(examples, MOST_EXAMPLES))
            self._examples[path.name] = known
        return known[1]

    def _problems(self) -> Iterator[str]:
        """Yields sentences on what could not be read, here and by the run itself."""
        damaged = self.history.num_damaged
        if damaged:
            lines = "1 line" if damaged == 1 else f"{damaged:,} lines"
            yield (
                f"{lines} of metrics.jsonl cannot be read and are left out, the first is line"
                f" {self.history.first_damaged:,}: a run that is killed may leave one cut."
            )
        for path in matching(self.directory, "skipped_units_process_*.json"):
            try:
                number = f"{len(json.loads(own_bytes(self.directory, path) or b'')):,}"
            except (ValueError, TypeError, RecursionError):
                number = "an unknown number of"
            yield f"{number} part(s) of the corpus could not be read and were skipped; {path.name} lists them."

    def skipped(self) -> list[dict[str, Any]]:
        """Returns the batches that the run has dropped or passed over, as its ledger has them."""
        return list(_records(self.directory / "skipped_batches.jsonl", "batch"))

    def skipped_documents(self) -> dict[int, list[str]]:
        """Returns batch -> the documents of its rows that stood out ("SOURCE, UNIT, row N"), as the ledger has them."""
        documents: dict[int, dict[str, None]] = {}  # a dict for a set that keeps its order: each document once
        for entry in self.skipped():
            try:
                places = list[dict[str, Any]]()
                for row in entry["rows"]:
                    places += row.get("documents", ())
                names = [f"{place['source']}, {place['unit']}, row {int(place['document']):,}" for place in places]
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                continue  # a line of another kind
            documents.setdefault(entry["batch"], {}).update(dict.fromkeys(names))
        return {batch: list(names) for batch, names in documents.items()}


def _is_of_command(name: str, tasks: Collection[str]) -> bool:
    """Returns whether `<name>-2.jsonl` is the second file of `limba evaluate` for a split of one of these tasks.

    >>> _is_of_command("ro-2024-300-test", ["ro-2024"]), _is_of_command("wmt-14-ende", ["ro"])
    (True, False)
    >>> _is_of_command("wmt-14-ende", ["wmt", "wmt-14-ende"])
    False
    """
    if name in tasks:
        return False
    return any(name[: step.start()] in tasks for step in STEP_INSIDE.finditer(name))


def _records(path: epath.Path, *names: str) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON-lines file that have these fields; nothing without the file.

    `batch` is a whole number, also where the file has 3.0.
    """
    for line in (own_bytes(path.parent, path) or b"").splitlines():
        try:
            record = json.loads(line)
            wanted = {name: record[name] for name in names}
            numbers = {name: int(record[name]) for name in ("batch",) if name in names}
            record = {**wanted, **record, **numbers}
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            continue  # the line was cut, or is of another kind
        yield record


def own_bytes(folder: epath.Path, path: epath.Path) -> bytes | None:
    """Returns the content of a run's file; None if it is missing, cannot be read, or is a link out of the folder."""
    try:
        if "://" in os.fspath(path):
            return path.read_bytes() if path.exists() else None
        return untrusted_files.bytes_of(path) if untrusted_files.is_inside(path, folder) else None
    except (OSError, ValueError):
        return None
