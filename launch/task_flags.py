"""Flags that name a task and what is read in its place, for the programs that look at data and prepare it.

--task=NAME --module=tasks.ro --files='data/*.jsonl' --column=text --vocabulary=PATH|byte --split=train
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from launch import environment
from limba.config import ConfigError, DataConfig

FILES_TASK = "demo_span_corruption"  # of --files alone: span corruption, of bytes where no vocabulary is named


class Parser(argparse.ArgumentParser):
    """Says what is wrong with an argument as a ConfigError, one sentence, and not with the whole usage."""

    def __init__(self, program: str, about: str):
        super().__init__(
            prog=f"python -m launch.{program}",
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[:1].upper()}{message[1:]}; --help lists what there is.")


@dataclass(frozen=True)
class TaskRecipe:
    """The task that the flags name; called, it imports and returns it. Worker processes are sent this."""

    task: str | None
    module: str | None
    files: str | None
    column: str
    vocabulary: str | None
    validation_percent: float
    inputs: int = 512
    objective: str | None = None
    sequence: int | None = None  # length of a decoder-only model's rows, instead of the inputs'

    def __call__(self) -> Any:
        """Returns the seqio task or mixture; imports TensorFlow, which takes seconds. Raises ConfigError."""
        with environment.quiet_imports():
            from limba.data import streams

            _import_tasks(self.module if self.task else "tasks.demo")
        return streams.resolve_task(self.data_config())

    def data_config(self) -> DataConfig:
        return DataConfig(
            mixture_or_task_name=self.task or FILES_TASK,
            task_feature_lengths={"targets": self.sequence} if self.sequence else {"inputs": self.inputs},
            batch_size=1,
            vocabulary=self.vocabulary or (None if self.task else "byte"),
            objective=self.objective,
            data_files=self.files,
            column=self.column,
            validation_percent=self.validation_percent,
        )


def add_to(parser: argparse.ArgumentParser, vocabulary: bool = True) -> None:
    """Adds the flags of this module."""
    group = parser.add_argument_group("what is read")
    group.add_argument("--task", metavar="NAME", help="a registered task, such as rlm_span_corruption_stream")
    group.add_argument("--module", metavar="tasks.ro", help="module that registers it; all of tasks/ when left out")
    group.add_argument("--files", metavar="'data/*.jsonl'", help="read instead of the task's source, or without a task")
    group.add_argument("--column", default="text", help="column or key of --files that holds the text")
    group.add_argument("--split", default="train")
    group.add_argument(
        "--validation_percent", type=float, default=1.0, metavar="1.0", help="held out of --files without that split"
    )
    if vocabulary:
        group.add_argument("--vocabulary", metavar="PATH|byte", help="instead of the task's own")


def recipe(arguments: argparse.Namespace, inputs: int = 512) -> TaskRecipe:
    """Returns the task's recipe; ConfigError where neither a task nor files are named."""
    if not arguments.task and not arguments.files:
        raise ConfigError("Nothing to read is named; give --task=NAME, --files='data/*.jsonl', or both.")
    if arguments.column != "text" and not arguments.files:
        raise ConfigError(f"--column={arguments.column} is a column of --files; give --files too.")
    found = TaskRecipe(
        task=arguments.task or None,
        module=arguments.module,
        files=arguments.files,
        column=arguments.column,
        vocabulary=getattr(arguments, "vocabulary", None),
        validation_percent=arguments.validation_percent,
        inputs=inputs,
        objective=getattr(arguments, "objective", None),
        sequence=getattr(arguments, "sequence", None),
    )
    found.data_config()  # bad values show before anything slow is imported
    return found


def _import_tasks(module: str | None) -> None:
    import tasks

    names: Sequence[str] = (
        [module] if module else [f"tasks.{found.name}" for found in pkgutil.iter_modules(tasks.__path__)]
    )
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise ConfigError(f"The module {name} imports {error.name}, which is not installed.") from error
            raise ConfigError(f"There is no module {name}; --module takes one such as tasks.ro.") from None
