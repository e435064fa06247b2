"""Outcomes that are kept: each under what decides it, so that nothing is computed twice, and a change is seen."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from limba.config import untrusted_files
from limba.tools.results.files import checksum, place_of
from limba.tools.results.outcome import Outcome

if TYPE_CHECKING:
    from limba.api import Progress
    from limba.tools.results.protocol import Protocol
    from limba.tools.results.suites import Task

# Whose versions decide a figure: of a model as it is, and of one that is fine-tuned.
PACKAGES = ("jax", "jaxlib", "numpy", "optax", "sentencepiece", "limba")
OF_TRAINING = ("accelerate", "limba", "numpy", "tokenizers", "torch", "transformers")


def digest(value: object) -> str:
    """Returns the SHA-256 of what JSON writes of a value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


class OutcomeCache:
    """The outcomes in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder / "outcomes"
        self.versions = {name: _version(name) for name in sorted({*PACKAGES, *OF_TRAINING})}
        self.num_computed = 0

    def rules(self, task: Task, data: str, protocol: Protocol) -> Mapping[str, object]:
        """Returns what two figures must share to be compared: the task's fields, its files and the protocol."""
        names = {name: _without_folder(name) for name in task.files}
        fields = {key: _renamed(value, names) for key, value in dataclasses.asdict(task).items() if key != "address"}
        return {
            "kind": type(task).__name__,
            "task": fields,
            "files": [[new, checksum(place_of(data, name))] for name, new in names.items()],
            "protocol": dataclasses.asdict(protocol),
        }

    def facts(self, rules: Mapping[str, object], packages: Sequence[str] = PACKAGES) -> Mapping[str, object]:
        """Returns what decides a task's outcomes beside the model: the rules, and the versions of packages."""
        return {**rules, "versions": {name: self.versions[name] for name in packages}}

    def get(
        self, name: str, facts: Mapping[str, object], compute: Callable[[], Outcome], progress: Progress
    ) -> Outcome:
        """Returns the outcome that is kept under these facts, or computes and keeps it."""
        from limba.api import write_whole

        path = self.folder / f"{name}-{digest(facts)[:16]}.json"
        if path.exists():
            progress.update(is_new=False)
            return _read(path)
        outcome = compute()
        self.num_computed += 1
        fields = dataclasses.asdict(outcome)
        kept = {"facts": facts, "outcome": fields, "sha256": digest(fields)}
        write_whole(str(path), json.dumps(kept, indent=1, default=str) + "\n")
        progress.update()
        return outcome


def _read(path: Path) -> Outcome:
    with untrusted_files.reading(path, "remove it, and it is computed again"):
        kept = json.loads(untrusted_files.text_of(path))
        if kept["sha256"] != digest(kept["outcome"]):
            raise ValueError("it is not as it was written")
        outcome = Outcome(**kept["outcome"])
        numbers = [*outcome.figures.values(), *outcome.parts.values(), *outcome.notes.values()]
        numbers += [end for ends in outcome.intervals.values() for end in ends]
        numbers += [number for entry in outcome.curve for number in entry.values()]
        if not outcome.figures or not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
            raise ValueError("a figure is missing or not finite")
        return outcome


def _without_folder(name: str) -> str:
    """Returns a file's name; without its folder where that is this machine's alone, as a first row's is."""
    path = Path(name)
    return path.name if path.is_absolute() else name


def _renamed(value: object, names: Mapping[str, str]) -> object:
    """Returns a field's value with other names of files."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, tuple):
        return tuple(_renamed(part, names) for part in value)
    return value


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
