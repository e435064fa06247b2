"""A suite: the tasks that a gin file lists, each a kind with its files: `ro_pairs/MinimalPairs.file = 'pairs.tsv'`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from limba.cli.gin.statements import Macro, read
from limba.config import ConfigError, InputError
from limba.config.errors import did_you_mean
from limba.tools.results import files
from limba.tools.results.kinds import fine_tuned
from limba.tools.results.kinds.bits import BitsPerByte
from limba.tools.results.kinds.pairs import MinimalPairs
from limba.tools.results.outcome import Figures, Outcome
from limba.tools.results.protocol import PROTOCOL, Protocol

if TYPE_CHECKING:
    from limba.tools.results.scoring import Scorer

Task = MinimalPairs | BitsPerByte | fine_tuned.Learned
OF_MODELS = (MinimalPairs, BitsPerByte)  # that models are scored on as they are
TO_LEARN = (fine_tuned.Classification, fine_tuned.Similarity, fine_tuned.NamedEntities, fine_tuned.PartOfSpeech)
KINDS = {kind.__name__: kind for kind in (*OF_MODELS, *TO_LEARN)}
SUITE = "suite"  # whose fields are the suite's own


class Read(NamedTuple):
    """A task with its data."""

    task: Task
    floors: Callable[[], Mapping[str, Figures]]  # the baselines that need no model, of a task that is not learned
    measure: Callable[[Scorer], Outcome] | None  # of a model as it is; None: it is fine-tuned first
    parts: fine_tuned.Parts | None


class Suite(NamedTuple):
    """Some tasks, and the language that they are in; None: no language's."""

    name: str
    language: str | None
    tasks: tuple[Task, ...]


def read_suite(name: str) -> Suite:
    """Returns the suite of a gin file, or the one of gin/suites/ with this name; InputError if there is neither."""
    file = name if name.endswith(".gin") or "/" in name else f"suites/{name}.gin"
    language = None
    fields: dict[str, tuple[str, dict[str, object], str]] = {}
    source = read([file])
    values = {binding.owner: binding.value for binding in source.bindings if not binding.field}
    for binding in source.bindings:
        value = values.get(binding.value.name) if isinstance(binding.value, Macro) else binding.value
        if not binding.field:
            continue
        if binding.owner == SUITE:
            if binding.field != "language" or not isinstance(value, str):
                raise InputError(
                    f"{binding.location} sets {binding.name}; a suite has suite.language, a text such as 'ro'."
                )
            language = value
            continue
        if binding.owner not in KINDS:
            near = did_you_mean(binding.owner, KINDS)
            known = ", ".join(KINDS)
            raise InputError(f"{binding.location}: {binding.owner} is not a kind of task{near} The kinds are {known}.")
        if not binding.scope:
            raise InputError(f"{binding.location} names no task; write NAME/{binding.owner}.{binding.field} = …")
        names = [entry.name for entry in dataclasses.fields(KINDS[binding.owner]) if entry.name != "name"]
        if binding.field not in names:
            near = did_you_mean(binding.field, names).rstrip(".")
            raise InputError(
                f"{binding.location}: {binding.owner} has no {binding.field}{near} It has {', '.join(names)}."
            )
        kind, values_of_task, _ = fields.setdefault(binding.scope, (binding.owner, {}, binding.location))
        if kind != binding.owner:
            raise InputError(
                f"{binding.location} calls {binding.scope} {binding.owner}, and it is {kind}; give it another name."
            )
        values_of_task[binding.field] = value
    if not fields:
        raise InputError(f"{name} lists no tasks; write a line such as pairs/MinimalPairs.file = 'pairs.tsv'.")
    return Suite(Path(file).stem, language, tuple(_made(fields)))


def read_task(task: Task, folder: str, protocol: Protocol = PROTOCOL) -> Read:
    """Returns a task with its data from a folder; InputError for files that are missing or of another layout."""
    if isinstance(task, MinimalPairs):
        pairs = task.read(folder)
        measure = functools.partial(task.measure, pairs=pairs)
        floors = functools.partial(task.floors, pairs)
        return Read(task, floors, measure, None)
    if isinstance(task, BitsPerByte):
        data = task.read(folder)
        measure = functools.partial(task.measure, data=data)
        floors = functools.partial(task.floors, data)
        return Read(task, floors, measure, None)
    return Read(task, dict, None, task.read(folder, protocol))


def with_files(suite: Suite, folder: str) -> tuple[Suite, list[str]]:
    """Returns the tasks whose files are in a folder, and a sentence for each other one.

    Raises InputError where no task has its files.
    """
    there = list[Task]()
    left_out = list[str]()
    for task in suite.tasks:
        missing = [name for name in task.files if files.found_at(folder, name) is None]
        if not missing:
            there.append(task)
            continue
        left_out.append(f"{task.name} is left out: {_missing(task, folder, missing[0])}")
    if not there:
        first = suite.tasks[0]
        for name in first.files:
            files.place_of(folder, name)
    return suite._replace(tasks=tuple(there)), left_out


def _missing(task: Task, folder: str, name: str) -> str:
    """Returns where a task's file is not, and where it can be had."""
    if file := files.on_hub(folder, name):
        return f"{file.address} is not on this machine yet; run {file.download}"
    address = f"; it is published at {task.address}" if task.address else ""
    return f"{name} is not in {folder}{address}"


def check_packages(suite: Suite) -> None:
    """Imports what a suite needs besides Limba's own packages; ModuleNotFoundError where one is missing."""
    if any(isinstance(task, fine_tuned.Learned) for task in suite.tasks):
        import accelerate  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401


def _made(fields: dict[str, tuple[str, dict[str, object], str]]) -> Iterator[Task]:
    for task, (kind, values, where) in fields.items():
        missing = [
            entry.name
            for entry in dataclasses.fields(KINDS[kind])
            if entry.default is entry.default_factory is dataclasses.MISSING and entry.name not in {"name", *values}
        ]
        if missing:
            raise InputError(f"{where}: the task {task} has no {missing[0]}; add {task}/{kind}.{missing[0]} = …")
        try:
            yield KINDS[kind](name=task, **values)  # pyright: ignore[reportArgumentType]
        except ConfigError as error:
            raise InputError(f"{where}: {error}") from None
