"""The flags for a task, or for files instead of its corpus, of inspect and vocabulary.

'data/*.jsonl' --task=NAME --module=tasks.ro --column=text --vocabulary=PATH|byte --split=train
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from limba.api import Parser, import_tasks
from limba.config import DataConfig, InputError, environment
from limba.config.waiting import waiting

# What messages call a field in these commands.
NAMES = {
    "DataConfig.validation_percent": "--validation_percent",
    "DataConfig.train_split": "--split",
    "DataConfig.validation_split": "--split",
    "DataConfig.vocabulary": "--vocabulary",
    "DataConfig.extra_ids": "--extra_ids",
    "DataConfig.objective": "--objective",
    "DataConfig.data_files": "--files",
    "DataConfig.column": "--column",
    "DataConfig.new_vocabulary_size": "--size",
    "DataConfig.mixture_or_task_name": "--task",
    "DataConfig.task_feature_lengths": "--inputs/--sequence",
}
# For files without a task: span corruption, of bytes if no vocabulary is named.
FILES_TASK = "demo_span_corruption"
FILES_MODULE = "tasks.demo"


@dataclass(frozen=True)
class TaskRecipe:
    """The task that the flags name. A call imports and returns it."""

    task: str | None
    module: str | None
    files: str | None
    column: str  # for several columns, the text of a dictionary
    vocabulary: str | None
    validation_percent: float
    inputs: int = 512
    objective: str | None = None
    sequence: int | None = None  # length of a decoder-only model's rows, instead of the inputs'
    extra_ids: int = 100

    def __call__(self) -> Any:
        """Returns the task or mixture. Raises InputError."""
        with environment.quiet_imports():
            from limba.api import RunData

            import_tasks(self.module if self.task else FILES_MODULE, "--module names")
        return RunData(self.data_config()).task

    def data_config(self) -> DataConfig:
        """Returns the configuration of data by which the task is found; ConfigError for a bad value."""
        lengths = {"inputs": self.inputs} if self.sequence is None else {"targets": self.sequence}
        vocabulary = self.vocabulary
        if not vocabulary and not self.task:
            vocabulary = "byte"
        return DataConfig(
            mixture_or_task_name=self.task or FILES_TASK,
            task_feature_lengths=lengths,
            batch_size=1,
            vocabulary=vocabulary or None,
            extra_ids=self.extra_ids,
            objective=self.objective,
            data_files=self.files,
            column=parse_column(self.column),
            validation_percent=self.validation_percent,
        )


def add_to(parser: Parser, vocabulary: bool = True) -> None:
    """Adds the flags of this module."""
    parser.add_object("files", "FILES", "a path or a pattern, 'data/*.jsonl', read instead of a task's corpus")
    group = parser.add_argument_group("input")
    group.add_argument("--task", metavar="NAME", help="a registered task, such as rlm_span_corruption_stream")
    group.add_argument("--module", metavar="tasks.ro", help="module that registers the task; default: all of tasks/")
    group.add_argument(
        "--column", default="text", help="column or key of FILES with the text, or {'inputs': 'en', 'targets': 'ms'}"
    )
    group.add_argument("--split", default="train")
    group.add_argument(
        "--validation_percent",
        type=float,
        default=1.0,
        metavar="1.0",
        help="percent for validation if FILES have no split",
    )
    if vocabulary:
        group.add_argument("--vocabulary", metavar="PATH|byte", help="vocabulary that replaces the task's")
        group.add_argument("--extra_ids", type=int, metavar="100", help="number of sentinels to add to --vocabulary")


def recipe(arguments: argparse.Namespace, inputs: int = 512) -> TaskRecipe:
    """Returns the task's recipe; InputError if neither a task nor files are named."""
    if not arguments.task and not arguments.files:
        raise InputError("Nothing to read is named; give --task=NAME, files such as 'data/*.jsonl', or both.")
    if arguments.column != "text" and not arguments.files:
        raise InputError(f"--column={arguments.column} is a column of --files; give --files too.")
    extra_ids = getattr(arguments, "extra_ids", None)
    if extra_ids is not None and not arguments.vocabulary:
        raise InputError(f"--extra_ids={extra_ids} come above the pieces of --vocabulary; give --vocabulary too.")
    task_recipe = TaskRecipe(
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
    task_recipe.data_config()  # finds bad values before slow imports
    return task_recipe


@contextlib.contextmanager
def reading(what: str = "reading") -> Iterator[Callable[..., None]]:
    """Yields a function of the bytes that are read so far, and shows them: on a terminal as a bar."""
    from tqdm import tqdm

    with (
        waiting(what, shows=not sys.stderr.isatty()),
        tqdm(desc=what, unit="B", unit_scale=True, dynamic_ncols=True, disable=None, leave=False) as bar,
    ):

        def update(done: int, *_: int) -> None:
            bar.update(done - bar.n)

        yield update


def parse_column(text: str) -> str | Mapping[str, str]:
    """Returns a column's name unchanged, and the text of a dictionary as {feature: column}; raises InputError."""
    if not text.startswith("{"):
        return text
    try:
        columns = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        columns = None
    if isinstance(columns, dict) and columns and all(isinstance(name, str) for name in (*columns, *columns.values())):
        return columns
    raise InputError(f"--column={text} is not a dictionary; write --column=\"{{'inputs': 'en', 'targets': 'ms'}}\".")
