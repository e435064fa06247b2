"""Outcomes that are kept: each under what decides it, so that nothing is computed twice, and a change is seen."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from limba.config import foreign
from limba.tools.results.files import checksum, place_of
from limba.tools.results.outcome import Outcome

if TYPE_CHECKING:
    from limba.api import Progress
    from limba.tools.results.protocol import Protocol
    from limba.tools.results.suites import Task

PACKAGES = ("jax", "jaxlib", "numpy", "optax", "sentencepiece", "limba")  # whose versions decide a figure


def digest(value: object) -> str:
    """Returns the SHA-256 of what JSON writes of a value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


class Kept:
    """The outcomes in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder / "outcomes"
        self.versions = {name: _version(name) for name in PACKAGES}
        self.num_computed = 0

    def facts(self, task: Task, data: str, protocol: Protocol) -> Mapping[str, object]:
        """Returns what decides a task's outcomes beside the model: fields, files, the protocol, the versions."""
        return {
            "kind": type(task).__name__,
            "task": dataclasses.asdict(task),
            "files": {name: checksum(place_of(data, name)) for name in task.files},
            "protocol": dataclasses.asdict(protocol),
            "versions": self.versions,
        }

    def get(
        self, name: str, facts: Mapping[str, object], compute: Callable[[], Outcome], progress: Progress
    ) -> Outcome:
        """Returns the outcome that is kept under these facts, or computes and keeps it."""
        from limba.api import write_whole

        path = self.folder / f"{name}-{digest(facts)[:16]}.json"
        if path.exists():
            progress.update(is_new=False)
            return _read(path)
        found = compute()
        self.num_computed += 1
        write_whole(
            str(path), json.dumps({"facts": facts, "outcome": dataclasses.asdict(found)}, indent=1, default=str) + "\n"
        )
        progress.update()
        return found


def _read(path: Path) -> Outcome:
    with foreign.reading(path, "remove it, and it is computed again"):
        found = Outcome(**json.loads(foreign.text_of(path))["outcome"])
        numbers = [*found.figures.values(), *found.parts.values(), *found.notes.values()]
        numbers += [end for ends in found.intervals.values() for end in ends]
        if not found.figures or not all(isinstance(each, int | float) and math.isfinite(each) for each in numbers):
            raise ValueError("a figure is missing or no finite number")
        return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "clone"
