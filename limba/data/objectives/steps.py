"""Runs a task's preprocessors on documents."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping

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
    if place is not None:
        dataset = _applied(task, steps[:place], dataset, None)
        dataset.next_seed = None if seed is None else seed + SEEDS_OF_A_STEP * place
        steps = steps[place + 1 :]
    return _applied(task, steps, dataset, lengths)


def _applied(task: Task, steps: list[Step], dataset: Dataset, lengths: Mapping[str, int] | None) -> Dataset:
    arguments = {"sequence_length": lengths, "output_features": task.output_features}
    for is_plain, group in itertools.groupby(steps, _is_plain):
        if not is_plain:
            with extras.needed_by(f"A preprocessor in TensorFlow of task {task.name}"):
                dataset = bridge.applied(list(group), dataset, arguments)
            continue
        for step in group:
            known = inspect.signature(step).parameters
            given = {name: value for name, value in arguments.items() if name in known}
            dataset = step(dataset, **given)
    return dataset


def _is_plain(step: Step) -> bool:
    return getattr(unwrapped(step), "is_plain", False)
