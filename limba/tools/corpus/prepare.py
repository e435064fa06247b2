"""`limba prepare`: writes a task's documents as shards of ArrayRecord or parquet."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from limba.api import Parser
from limba.config import InputError, environment, kinds, named
from limba.tools.corpus import task_flags

if TYPE_CHECKING:
    from limba.api import UnitSource
    from limba.tools.corpus.preparation.prepare import Prepared, Recipe, Settings

ABOUT = """Writes the documents of a task, as text or ids, in shards of equal size that can be read in any order.

    limba prepare 'data/*.txt' --output=prepared/train
    limba prepare --tfds=wikipedia/20230601.ro --data_dir=gs://bucket/tfds
    limba prepare --task=cc100_ja_causal_lm_stream --tfds=cc100/ja --data_dir=gs://bucket/tfds

    limba prepare 'data/*.jsonl' --output=prepared/train --executor=slurm --tasks=64 --partition=cpu

After an interruption the same command resumes. Each split needs its own folder. --executor=slurm deals the work to the
tasks of job arrays; the files are the same as without."""


def _parser() -> Parser:
    parser = Parser("prepare", ABOUT)
    task_flags.add_to(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--output", metavar="DIR|gs://...", help="folder for the shards and prepared.json")
    group.add_argument("--num_shards", type=int, default=64)
    group.add_argument("--format", default="array_record", metavar="array_record|parquet")
    group.add_argument("--tokenize", action="store_true", help="write int32 ids of the task's vocabulary, not text")
    group.add_argument("--workers", type=int, help="processes; default all cores. Of Slurm: tasks at once; default all")
    group.add_argument("--seed", type=int, default=0, help="seed that assigns documents to shards")
    group.add_argument("--scratch", metavar="DIR", help="local folder for temporary files, compressed")
    several = parser.add_argument_group("several tasks")
    several.add_argument("--executor", metavar="slurm", help="deal the work to --tasks of Slurm")
    several.add_argument("--tasks", type=int, metavar="N", help="how many tasks read, and then write")
    several.add_argument("--partition", metavar="NAME", help="of Slurm")
    several.add_argument("--time", default="24:00:00", metavar="LIMIT", help="of one task")
    several.add_argument("--sbatch", metavar="'--account=NAME --mem-per-cpu=8G'", help="more of sbatch")
    other = parser.add_argument_group("TensorFlow Datasets")
    other.add_argument(
        "--tfds", metavar="NAME[/CONFIG]", help="download this TFDS data set, or build it from --task or FILES"
    )
    other.add_argument("--data_dir", metavar="DIR", help="folder of the TFDS data set; default: $TFDS_DATA_DIR")
    return parser


@named(task_flags.NAMES)
def run(argv: Sequence[str]) -> None:
    """Prepares what the flags name and prints how to read it; raises InputError."""
    arguments = _parser().parse(argv)
    _rename(arguments)
    _check_executor(arguments)
    if arguments.scratch:
        kinds.check_local(arguments.scratch, "--scratch")
    data_dir = arguments.data_dir or os.environ.get("TFDS_DATA_DIR")
    if arguments.tfds and not (arguments.task or arguments.files):
        with environment.quiet_imports():
            from limba.tools.corpus.preparation.tfds import prepare_tfds
        print(prepare_tfds(arguments.tfds, data_dir, arguments.scratch))
        return
    if arguments.tfds:
        if arguments.output or arguments.tokenize or arguments.format != "array_record":
            raise InputError("--tfds writes ArrayRecord to --data_dir; leave out --output, --tokenize and --format.")
        with environment.quiet_imports():
            from limba.tools.corpus.preparation.tfds import describe, folder_of
        arguments.output = folder_of(arguments.tfds, data_dir)
    if arguments.scratch and os.path.exists(arguments.scratch) and not os.path.isdir(arguments.scratch):
        raise InputError(f"--scratch is {arguments.scratch}, which is not a folder; give a folder on a local disk.")
    if not arguments.output:
        raise InputError("No folder to write to is named; give --output=DIR.")
    recipe = task_flags.recipe(arguments)
    if arguments.tokenize and not arguments.task and not arguments.vocabulary:
        raise InputError("--tokenize without a task needs a vocabulary; give --vocabulary=PATH or byte.")
    with environment.quiet_imports():
        from limba.tools.corpus.preparation import prepare
    settings = prepare.Settings(
        arguments.split, arguments.num_shards, arguments.format, arguments.tokenize, arguments.seed
    )
    source = prepare.source_of(recipe)
    if arguments.tfds and prepare.columns_of(source, settings) != ("text",):
        raise InputError(
            f"--tfds takes one column of text, and the task reads {len(source.keys)}; give --output in its place."
        )
    started = time.monotonic()
    found = _prepared(arguments, recipe, settings, argv)
    if found is None:
        return
    if arguments.tfds:
        shards = [settings.shard_name(shard) for shard in range(found.shards)]
        describe(arguments.output, settings.split, shards, found.bytes)
    took = "was finished already" if found.was_finished else f"took {time.monotonic() - started:.0f} s"
    size = f"{found.bytes:,} bytes of {' and '.join(found.columns)}"
    if tuple(found.columns) == ("tokens",):
        size = f"{found.bytes // 4:,} tokens"  # int32
    print(
        f"{arguments.output}: {found.documents:,} documents, {size}, in {found.shards} shards; {took}. Read them with "
        + (f"TFDS_DATA_DIR={data_dir}" if arguments.tfds else _reading(arguments, source, settings))
    )


def _check_executor(arguments: argparse.Namespace) -> None:
    """Raises InputError for flags of executors that do not go together."""
    executor = arguments.executor
    if executor not in (None, "slurm"):
        raise InputError(f"--executor is {executor}; give slurm, or leave it out: --workers are processes here.")
    if (executor is None) != (arguments.tasks is None):
        raise InputError("--executor and --tasks go together; write --executor=slurm --tasks=8, or leave both out.")
    if not executor and (arguments.partition or arguments.sbatch):
        raise InputError("--partition and --sbatch are of Slurm; add --executor=slurm, or leave them out.")
    if executor and not arguments.partition:
        raise InputError("--executor=slurm needs --partition=NAME; sinfo lists the partitions of your cluster.")
    if executor and arguments.tfds:
        raise InputError("--tfds is made by this machine alone; leave out --executor, or give --output instead.")


def _prepared(
    arguments: argparse.Namespace, recipe: Recipe, settings: Settings, argv: Sequence[str]
) -> Prepared | None:
    """Returns the summary; None if the work was only submitted to Slurm, and printed, or if this was a part of it."""
    from limba.tools.corpus.preparation import prepare

    if not arguments.executor:
        workers = len(os.sched_getaffinity(0)) if arguments.workers is None else arguments.workers
        return prepare.prepare(recipe, settings, arguments.output, workers, arguments.scratch)
    from limba.tools.corpus.preparation import slurm

    work = prepare.Preparation(recipe, settings, arguments.output, arguments.scratch)
    if work.finished or slurm.ROUND in os.environ:
        return work.finished or slurm.done_part(work)
    options = {"partition": arguments.partition, "time": arguments.time, **_sbatch_options(arguments.sbatch or "")}
    jobs, logs = slurm.submit(work, argv, arguments.tasks, arguments.workers, options)
    said = ", ".join(f"{job} ({what})" for what, job in jobs.items())
    print(
        f"Submitted to Slurm: jobs {said}. Their logs are in {logs}. When they have ended, the same command"
        " prints the summary, or submits what is missing."
    )
    return None


def _sbatch_options(text: str) -> dict[str, str]:
    """Returns the options of a text.

    >>> _sbatch_options("--account=me --exclusive")
    {'account': 'me', 'exclusive': ''}
    """
    words = shlex.split(text)
    if wrong := [word for word in words if not word.startswith("--")]:
        raise InputError(f"--sbatch has {wrong[0]}; write each option as --name=value, as in --sbatch='--account=me'.")
    parts = [word[2:].partition("=") for word in words]
    return {name: value for name, _, value in parts}


def _rename(arguments: argparse.Namespace) -> None:
    """Replaces a name of TFDS' community builder by what makes the same text today, and says so; or InputError.

    It ran the data set's script from the hub, which the library `datasets` does no longer.
    """
    given = arguments.tfds or ""
    if not given.startswith("huggingface:") or arguments.task or arguments.files:
        return
    match = re.fullmatch(r"huggingface:cc100/(?:lang=)?([a-z]+)", given)
    if match is not None and match[1] == "ja":
        arguments.task, arguments.tfds = "cc100_ja_causal_lm_stream", "cc100/ja"
        print(
            f"{given} would run a script of the hub, which is not possible any more: the same lines are read from the"
            " hub's range3/cc100-ja and written as cc100/ja, which the task cc100_ja_causal_lm reads."
        )
        return
    raise InputError(
        f"--tfds={given} would run a script of the hub, which is not possible any more; name a data set of the hub"
        " with files of its own, as in limba prepare user/name:configuration --tfds=NAME/CONFIG."
    )


def _reading(arguments: argparse.Namespace, source: UnitSource, settings: Settings) -> str:
    """Returns the flags of a run that reads the folder, and the command for the other split if that is missing."""
    from limba.tools.corpus.preparation import prepare

    column = "tokens" if arguments.tokenize else arguments.column if len(source.keys) > 1 else "text"
    columns = "" if column == "text" else f" --gin.COLUMN={_quoted(column)}"
    folder, other = arguments.output.rstrip("/"), prepare.other_split(source, arguments.split)
    if other is None:
        return f"--gin.CORPUS='{folder}/*.{arguments.format}'{columns}"
    folders = {arguments.split: folder, other: prepare.counterpart(folder, settings, other)}
    corpus = {split: f"{folders[split]}/*.{arguments.format}" for split in ("train", "validation")}
    flags = f'--gin.CORPUS="{corpus}"{columns}'
    if prepare.is_prepared(folders[other], dataclasses.replace(settings, split=other)):
        return flags
    num_shards = _parser().get_default("num_shards") if other == "train" else 1
    command = _command(arguments, split=other, output=folders[other], num_shards=num_shards)
    return f"{flags}\nNext, prepare the {other} split: {command}"


def _command(arguments: argparse.Namespace, **changes: object) -> str:
    """Returns this command with these arguments, some of them changed."""
    given = {**vars(arguments), **changes}
    files = [_quoted(files)] if (files := given.pop("files")) else []
    flags = [
        f"--{name}" if value is True else f"--{name}={_quoted(str(value))}"
        for name, value in given.items()
        if name not in ("objects", "gin") and value != _parser().get_default(name)
    ]
    return " ".join(["limba prepare", *files, *flags])


def _quoted(text: str) -> str:
    """Returns the text as one word of a shell, a dictionary in double quotes."""
    return f'"{text}"' if text.startswith("{") and not set(text) & set('"$`\\!') else shlex.quote(text)
