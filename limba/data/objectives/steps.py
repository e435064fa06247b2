"""Runs a task's preprocessors on documents."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping
from typing import Any

from limba.config import extras
from limba.data import bridge
from limba.data.dataset import Dataset, Step
from limba.data.objectives.supervised import own
from limba.data.objectives.token_blocks import unwrapped
from limba.data.registry import Task

SEEDS_OF_A_STEP = 42  # that seqio leaves to each step before the place of a cache


def examples_of(task: Task, lengths: Mapping[str, int], documents: Dataset, seed: int | None) -> Dataset:
    """Returns the documents after the task's preprocessors, whose random choices follow from the seed.

    As in seqio, those before the place of a cache get no lengths, and those after it have seeds of their own.
    """
    steps = list(task.preprocessors)
    place = next((n for n, step in enumerate(steps) if type(step).__name__ == "CacheDatasetPlaceholder"), None)
    if all(n == place or _is_plain(own(step)) for n, step in enumerate(steps)):  # each border to TensorFlow is slow
        steps = [own(step) for step in steps]
    dataset, documents.next_seed = documents, seed
    with extras.needed_by(f"A preprocessor in TensorFlow of task {task.name}"):
        if place is not None:
            before = {"sequence_length": None, "output_features": task.output_features}
            dataset = _applied(steps[:place], dataset, before)
            dataset.next_seed = None if seed is None else seed + SEEDS_OF_A_STEP * place
            steps = steps[place + 1 :]
        return _applied(steps, dataset, {"sequence_length": lengths, "output_features": task.output_features})


def _applied(steps: list[Step], dataset: Dataset, arguments: Mapping[str, Any]) -> Dataset:
    for is_plain, group in itertools.groupby(steps, _is_plain):
        if not is_plain:
            dataset = bridge.applied(list(group), dataset, arguments)
            continue
        for step in group:
            known = inspect.signature(step).parameters
            given = {name: value for name, value in arguments.items() if name in known}
            dataset = step(dataset, **given)
    return dataset


def _is_plain(step: Step) -> bool:
    return getattr(unwrapped(step), "is_plain", False)
