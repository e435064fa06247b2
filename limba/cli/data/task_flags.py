"""Flags that name a task and what is read in its place, for the programs that look at data and prepare it.

--task=NAME --module=tasks.ro --files='data/*.jsonl' --column=text --vocabulary=PATH|byte --split=train
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from limba.config import DataConfig, InputError, environment

# What a run's gin files call what is a flag here; longer names first.
FLAGS = {
    "train_split or validation_split": "--split",
    "DataConfig.validation_percent": "--validation_percent",
    "DataConfig.extra_ids": "--extra_ids",
    "DataConfig.data_files": "--files",
    "DataConfig.column": "--column",
    "train_split": "--split",
    "VOCABULARY": "--vocabulary",
    "EXTRA_IDS": "--extra_ids",
    "OBJECTIVE": "--objective",
    "COLUMN": "--column",
    "CORPUS": "--files",
}
FILES_TASK = "demo_span_corruption"  # of --files alone: span corruption, of bytes where no vocabulary is named


class Parser(argparse.ArgumentParser):
    """Says what is wrong with an argument as a ConfigError, one sentence, and not with the whole usage."""

    def __init__(self, program: str, about: str, package: str = "launch"):
        super().__init__(
            prog=f"python -m {package}.{program}",
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[:1].upper()}{message[1:]}; --help lists what there is.")


@dataclass(frozen=True)
class TaskRecipe:
    """The task that the flags name; called, it imports and returns it. Worker processes are sent this."""

    task: str | None
    module: str | None
    files: str | None
    column: str  # of several columns the text of a dictionary
    vocabulary: str | None
    validation_percent: float
    inputs: int = 512
    objective: str | None = None
    sequence: int | None = None  # length of a decoder-only model's rows, instead of the inputs'
    extra_ids: int = 100

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
            extra_ids=self.extra_ids,
            objective=self.objective,
            data_files=self.files,
            column=parse_column(self.column),
            validation_percent=self.validation_percent,
        )


def add_to(parser: argparse.ArgumentParser, vocabulary: bool = True) -> None:
    """Adds the flags of this module."""
    group = parser.add_argument_group("what is read")
    group.add_argument("--task", metavar="NAME", help="a registered task, such as rlm_span_corruption_stream")
    group.add_argument("--module", metavar="tasks.ro", help="module that registers it; all of tasks/ when left out")
    group.add_argument("--files", metavar="'data/*.jsonl'", help="read instead of the task's source, or without a task")
    group.add_argument(
        "--column",
        default="text",
        help="column or key of --files that holds the text; or {'inputs': 'en', 'targets': 'ms'}",
    )
    group.add_argument("--split", default="train")
    group.add_argument(
        "--validation_percent", type=float, default=1.0, metavar="1.0", help="held out of --files without that split"
    )
    if vocabulary:
        group.add_argument("--vocabulary", metavar="PATH|byte", help="instead of the task's own")
        group.add_argument("--extra_ids", type=int, metavar="100", help="sentinels above the pieces of --vocabulary")


def recipe(arguments: argparse.Namespace, inputs: int = 512) -> TaskRecipe:
    """Returns the task's recipe; ConfigError where neither a task nor files are named."""
    if not arguments.task and not arguments.files:
        raise InputError("Nothing to read is named; give --task=NAME, --files='data/*.jsonl', or both.")
    if arguments.column != "text" and not arguments.files:
        raise InputError(f"--column={arguments.column} is a column of --files; give --files too.")
    extra_ids = getattr(arguments, "extra_ids", None)
    if extra_ids is not None and not arguments.vocabulary:
        raise InputError(f"--extra_ids={extra_ids} are put above the pieces of --vocabulary; give --vocabulary too.")
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
        extra_ids=TaskRecipe.extra_ids if extra_ids is None else extra_ids,
    )
    found.data_config()  # bad values show before anything slow is imported
    return found


def parse_column(text: str) -> str | Mapping[str, str]:
    """Returns a column's name as it is, and {feature: column} of the text of a dictionary; ConfigError."""
    if not text.startswith("{"):
        return text
    try:
        columns = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        columns = None
    if (
        not columns
        or not isinstance(columns, dict)
        or not all(isinstance(x, str) for pair in columns.items() for x in pair)
    ):
        raise InputError(f"--column={text} is no dictionary; write --column=\"{{'inputs': 'en', 'targets': 'ms'}}\".")
    return columns


def says_flags(program: Callable[[Sequence[str]], None]) -> Callable[[Sequence[str]], None]:
    """Has the messages of a program with these flags name them, where a run's gin files have names of their own."""
    names = re.compile(rf"(?<![\w./])({'|'.join(map(re.escape, FLAGS))})(?![\w/])")

    @functools.wraps(program)
    def run(argv: Sequence[str]) -> None:
        try:
            program(argv)
        except InputError as error:
            raise InputError(names.sub(lambda match: FLAGS[match[1]], str(error))) from error

    return run


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
                raise InputError(f"The module {name} imports {error.name}, which is not installed.") from error
            raise InputError(f"There is no module {name}; --module takes one such as tasks.ro.") from None
