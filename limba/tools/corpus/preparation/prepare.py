"""A task's documents as equal shards of ArrayRecord or parquet, written in parallel and resumable at any time.

There are two passes. First groups of units are read (and tokenized), and each document is assigned to a shard by
(seed, unit, chunk, row); each group has one scratch file, with the documents of each shard together. Then each
shard is written from its parts of all scratch files. A file has a temporary name until it is complete, so
a file with its final name is not written again. The content does not depend on time or workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from limba.api import Mixture, PieceTable, Progress, Task, Texts, UnitSource, held, write_whole
from limba.config import InputError, reason_of
from limba.tools.corpus.preparation import workers as processes
from limba.tools.corpus.preparation.folder import SETTINGS_FILE, OutputFolder, parsed
from limba.tools.corpus.preparation.workers import Job
from limba.tools.corpus.preparation.writers import SHARD_WRITERS

About = dict[str, Any]  # what a folder says of how it was made, as JSON

logger = logging.getLogger(__name__)

# Scratch files: one for each unit up to 128, then one for 16 units. Each shard opens each of them, which takes
# longer than writing the shard if they are many and small.
FEW_GROUPS, UNITS_PER_GROUP, MOST_GROUPS = 128, 16, 4096
BLOCK_BYTES = 1 << 26  # of documents that a worker collects before it writes them to its scratch file
JOBS_FILE = "slurm.json"  # of the scratch folder, until it is finished: the jobs of Slurm that prepare it
ANSWER_SECONDS = 60  # for squeue

Recipe = Callable[[], Task]  # hashable and picklable: each worker makes the task itself, once


@dataclass(frozen=True)
class Settings:
    """The settings that determine the shards' content, with the corpus and the vocabulary."""

    split: str = "train"
    num_shards: int = 64
    format: str = "array_record"
    tokenize: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.format not in SHARD_WRITERS:
            raise InputError(f"The format {self.format!r} is unknown; give {' or '.join(SHARD_WRITERS)}.")
        if not 0 < self.num_shards < 100_000:
            raise InputError(f"`num_shards` is {self.num_shards}; give a number from 1 to 99,999.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"The seed is {self.seed}; give a whole number from 0 to 2^32 - 1.")

    def shard_name(self, shard: int) -> str:
        return f"{self.split}-{shard:05d}-of-{self.num_shards:05d}.{self.format}"


@dataclass(frozen=True)
class Prepared:
    """The content of the output folder: number of documents, bytes (of text, or of int32 ids), and shards."""

    documents: int
    bytes: int
    shards: int
    columns: Sequence[str]
    was_finished: bool  # before this call


@dataclass(frozen=True)
class _Plan:
    """The plan that a worker gets."""

    recipe: Recipe
    settings: Settings
    output: str
    scratch: Path
    num_groups: int


def prepare(recipe: Recipe, settings: Settings, output: str, workers: int = 1, scratch: str | None = None) -> Prepared:
    """Writes the split's documents below `output`, a directory or an address; returns a summary.

    After an interruption a second call resumes; after the end it does nothing. `scratch` needs as much
    space as the documents themselves, compressed, until the end: by default it is `output/unfinished`, or for an
    address a folder of this user in the machine's temporary directory. Raises InputError if the folder has other
    content, if another process or a queued job of Slurm is writing it, and for errors in the corpus or the vocabulary.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; give 1 or more.")
    work = Preparation(recipe, settings, output, scratch)
    if work.finished:
        return work.finished
    with held(output, "prepares") as mine:
        work.begin()
        for what, unit, missing in (("reading", "part", work.reading), ("writing", "shard", work.writing)):
            jobs = missing()
            with Progress(len(jobs), 0, unit=unit, what=what) as counter:
                for _ in processes.results(jobs, workers):
                    counter.update()
            work.check_documents()
            mine.check()
        return work.finish()


class Preparation:
    """A folder to prepare: `begin`, all jobs of `reading`, all of `writing`, in any processes, then `finish`.

    `finished` is the summary of a folder that needs nothing more, else None. Errors as `prepare`.
    """

    def __init__(self, recipe: Recipe, settings: Settings, output: str, scratch: str | None = None):
        self.output, self.scratch_given = output, bool(scratch)
        task = _task_of(recipe)
        self._source, self._settings = _source(task), settings
        self._columns, self._units = columns_of(self._source, settings), self._source.units(settings.split)
        Texts(self._source).check_not_empty(settings.split)
        self._about = _about(task, self._source, settings, self._units)
        self._folder = OutputFolder(output)
        existing, shards = self._folder.settings(), self._folder.shards()
        if existing and (existing.get("finished") or shards):
            _compare(existing, self._about, output)
        self.finished: Prepared | None = None
        if existing and existing.get("finished") and self._has_all():
            self.finished = self._prepared(existing["documents"], existing["bytes"], was_finished=True)
            return
        if not existing and shards:
            raise InputError(f"{output} holds {shards[0]}, which has no {SETTINGS_FILE}; give an empty folder.")
        self.scratch = self._folder.scratch(scratch)
        self._plan = _Plan(recipe, settings, output, self.scratch, _num_groups(len(self._units)))

    def begin(self) -> None:
        """Makes the folders ready. Raises InputError if jobs of Slurm that prepare them are queued or running."""
        _check_queue(self.scratch)
        _check_scratch(self.scratch, self._about)
        self._folder.write(SETTINGS_FILE, _json({**self._about, "finished": False}))

    def reading(self, rank: int = 0, tasks: int = 1) -> list[Job]:
        """Returns the jobs that write the scratch files that are missing, each one; of several tasks those of one."""
        count = self._plan.num_groups
        cut = [len(self._units) * group // count for group in range(count + 1)]
        return [
            partial(_read_group, self._plan, group, cut[group], self._units[cut[group] : cut[group + 1]])
            for group in range(rank, count, tasks)
            if not _is_read(self.scratch, group)
        ]

    def writing(self, rank: int = 0, tasks: int = 1) -> list[Job]:
        """Returns the jobs that write the shards that are missing, as `reading`; they need all scratch files."""
        shards, name = range(rank, self._settings.num_shards, tasks), self._settings.shard_name
        return [partial(_write_shard, self._plan, shard) for shard in shards if not self._folder.has(name(shard))]

    def check_documents(self) -> tuple[int, int]:
        """Returns (documents, bytes) of all scratch files; InputError if one is missing, or if all are empty."""
        missing, totals = 0, [0, 0]
        for group in range(self._plan.num_groups):
            if not _is_read(self.scratch, group):
                missing += 1
                continue
            found = json.loads((self.scratch / f"{group:05d}.json").read_text())
            totals = [total + number for total, number in zip(totals, found, strict=True)]
        if missing:
            raise InputError(
                f"{missing} of {self._plan.num_groups} parts of {self._source.name} have not been read; start again:"
                " finished parts are not repeated."
            )
        if not totals[0]:
            split = self._settings.split
            raise InputError(f"{self._source.name} holds no document in split {split!r}; nothing is written.")
        return totals[0], totals[1]

    def finish(self) -> Prepared:
        """Writes the totals, deletes the scratch folder and returns the summary; InputError if a shard is missing."""
        documents, num_bytes = self.check_documents()
        if not self._has_all():
            raise InputError("Not all shards are written; start again: finished ones are not repeated.")
        totals = {"documents": documents, "bytes": num_bytes, "finished": True}
        self._folder.write(SETTINGS_FILE, _json({**self._about, **totals}))
        shutil.rmtree(self.scratch, ignore_errors=True)
        return self._prepared(documents, num_bytes, was_finished=False)

    def _has_all(self) -> bool:
        return all(self._folder.has(self._settings.shard_name(shard)) for shard in range(self._settings.num_shards))

    def _prepared(self, documents: int, num_bytes: int, *, was_finished: bool) -> Prepared:
        return Prepared(documents, num_bytes, self._settings.num_shards, self._columns, was_finished)


def _num_groups(num_units: int) -> int:
    """Returns the number of scratch files; like the shards' content, it must depend only on the corpus."""
    return min(num_units, max(FEW_GROUPS, num_units // UNITS_PER_GROUP), MOST_GROUPS)


@lru_cache(maxsize=1)
def _task_of(recipe: Recipe) -> Task:
    return recipe()


def columns_of(source: UnitSource, settings: Settings) -> tuple[str, ...]:
    """Returns the columns to write; InputError if rows of several columns should be tokenized."""
    if isinstance(source.column, Mapping):
        if settings.tokenize:
            raise InputError(
                f"{source.name} is read by {len(source.column)} columns, and tokenizing makes ids of one; leave it out."
            )
        return tuple(source.column.values())
    return ("tokens",) if settings.tokenize else ("text",)


def source_of(recipe: Recipe) -> UnitSource:
    """Returns the source of the recipe's task; InputError for a mixture, and for a source without units of text."""
    return _source(_task_of(recipe))


def other_split(source: UnitSource, split: str) -> str | None:
    """Returns "validation" for "train" and "train" for "validation", or None if the source lacks that split."""
    other = {"train": "validation", "validation": "train"}.get(split)
    with contextlib.suppress(InputError):
        return other if other and source.patterns_of_split(other) else None
    return None


def counterpart(output: str, settings: Settings, other: str) -> str:
    """Returns the other split's folder: x/train and x/validation, x_train and x_validation, or x and x_validation.

    >>> counterpart("x/train", Settings("train"), "validation"), counterpart("x", Settings("train"), "validation")
    ('x/validation', 'x_validation')
    """
    head = output.removesuffix(settings.split)
    if head == output or (head and head[-1] not in "/_"):
        return f"{output}_{other}"
    plain = head.removesuffix("_")
    return plain if plain != head and is_prepared(plain, replace(settings, split=other)) else head + other


def is_prepared(output: str, settings: Settings) -> bool:
    """Returns whether the folder holds the complete split with these settings."""
    system, path = fsspec.core.url_to_fs(output)
    if not system.exists(f"{path}/{SETTINGS_FILE}"):
        return False
    existing = parsed(system.cat_file(f"{path}/{SETTINGS_FILE}")) or {}
    wanted = {"finished": True, **{name: getattr(settings, name) for name in ("split", "format", "tokenize")}}
    return all(existing.get(name) == value for name, value in wanted.items())


def _source(task: Task) -> UnitSource:
    if isinstance(task, Mixture):
        names = ", ".join(part.name for part in task.tasks)
        raise InputError(f"{task.name} is a mixture; prepare its tasks one by one, each in its own folder: {names}.")
    return Texts.of_task(task).source


def _about(task: Task, source: UnitSource, settings: Settings, units: Sequence[Any]) -> About:
    """Returns the settings that must be the same for everything in one output folder."""
    digest = hashlib.blake2b("\n".join(unit.name for unit in units).encode(), digest_size=16).hexdigest()
    about = {"task": task.name, **asdict(settings), "num_units": len(units), "units": digest}
    about |= {"column": source.column, "validation_percent": source.carved_percent(settings.split)}
    vocabulary = task.output_features["targets"].vocabulary
    return {**about, "vocabulary": PieceTable(vocabulary).content_name if settings.tokenize else None}


def _different(existing: About, about: About) -> str | None:
    """Returns the first entry that differs."""
    return next((name for name in about if existing.get(name) != about[name]), None)


def _compare(existing: About, about: About, output: str) -> None:
    name = _different(existing, about)
    if name:
        raise InputError(
            f"{output} was prepared with {name} {existing.get(name)!r} and this is {about[name]!r}; give another folder"
            " (with --tfds another name), or delete it."
        )


def _json(content: About) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _check_queue(scratch: Path) -> None:
    """Raises InputError if a job of Slurm that prepares the folder is queued or running, as far as squeue tells."""
    try:
        jobs = json.loads((scratch / JOBS_FILE).read_text())
    except (FileNotFoundError, ValueError):
        return
    if living := sorted({job for job in jobs if _is_queued(job)}):
        raise InputError(
            f"Jobs of Slurm that prepare this folder are queued or running ({', '.join(living)}); wait for their end,"
            f" or scancel {' '.join(living)}, and then start again: finished parts are not repeated."
        )


def _is_queued(job: str) -> bool:
    command = ["squeue", "-h", "-j", job, "-o", "%A"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return not found.returncode and bool(found.stdout.strip())  # it fails for a job that it has forgotten


def _check_scratch(scratch: Path, about: About) -> None:
    """Deletes the incomplete files of the scratch folder, or all its files if they belong to other settings."""
    owner = scratch / "settings.json"
    is_ours = owner.exists() and not _different(parsed(owner.read_bytes()) or {"task": None}, about)
    for path in scratch.iterdir():
        if path.is_dir() and not is_ours:
            shutil.rmtree(path)
        elif not path.is_dir() and (not is_ours or path.name.endswith(".tmp")):
            path.unlink()
    write_whole(str(owner), _json(about))


def _is_read(scratch: Path, group: int) -> bool:
    return all((scratch / f"{group:05d}.{kind}").exists() for kind in ("arrow", "json"))


def _unfinished(plan: _Plan, name: str) -> Path:
    """Returns a name of this process's own: a task may be repeated while its first process still runs elsewhere."""
    return plan.scratch / f"{name}.{socket.gethostname()}-{os.getpid()}.tmp"


def _read_group(plan: _Plan, group: int, first: int, units: Sequence[Any]) -> tuple[int, int]:
    """Writes one scratch file, in blocks of the documents of shard 0, of shard 1, …; returns (documents, bytes)."""
    import pyarrow as pa

    finished, counted = plan.scratch / f"{group:05d}.arrow", plan.scratch / f"{group:05d}.json"
    if _is_read(plan.scratch, group):
        with contextlib.suppress(ValueError, TypeError):  # else it is written again
            documents, num_bytes = json.loads(counted.read_text())
            return documents, num_bytes
    task, settings = _task_of(plan.recipe), plan.settings
    source = _source(task)
    encode = PieceTable(task.output_features["targets"].vocabulary).encode if settings.tokenize else None
    schema = pa.schema([("record", pa.large_binary())])
    unfinished = _unfinished(plan, finished.name)
    documents = num_bytes = 0
    with (
        _scratch_errors(plan),
        pa.ipc.new_file(str(unfinished), schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file,
    ):

        def write(block: list[list[bytes]]) -> None:
            for records in block:
                file.write_batch(pa.record_batch([pa.array(records, pa.large_binary())], schema=schema))

        block, block_bytes = [[] for _ in range(settings.num_shards)], 0
        for number, unit in enumerate(units, first):
            for chunk, texts in enumerate(source.chunks(settings.split, unit)):
                draws = np.random.RandomState([settings.seed, number, chunk]).randint(
                    settings.num_shards, size=len(texts)
                )
                for shard, text in zip(draws.tolist(), texts, strict=True):
                    record = text if encode is None else encode(text).astype("<i4").tobytes()
                    if not record:  # characters that the vocabulary's normalization removes
                        continue
                    block[shard].append(record)
                    documents += 1
                    num_bytes += len(record)
                    block_bytes += len(record)
                if block_bytes >= BLOCK_BYTES:
                    write(block)
                    block, block_bytes = [[] for _ in range(settings.num_shards)], 0
        write(block)
    write_whole(str(counted), json.dumps([documents, num_bytes]).encode())
    unfinished.replace(finished)
    return documents, num_bytes


@contextlib.contextmanager
def _scratch_errors(plan: _Plan) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"The scratch folder {plan.scratch} cannot be written or read ({reason_of(error)}); "
            "give another scratch folder."
        ) from error


def _write_shard(plan: _Plan, shard: int) -> None:
    """Writes one shard, in a random order of its own, from its parts of all scratch files, unless it exists."""
    folder, settings = OutputFolder(plan.output), plan.settings
    name = settings.shard_name(shard)
    if folder.has(name):
        return
    unfinished = _unfinished(plan, name)
    with _scratch_errors(plan):
        source = source_of(plan.recipe)
        columns = columns_of(source, settings)
        with contextlib.closing(SHARD_WRITERS[settings.format](str(unfinished), columns)) as writer:
            for record in _records(plan, shard):
                writer.write(Texts(source).in_columns([record]) if len(columns) > 1 else [record])
        folder.take(unfinished, name)


def _records(plan: _Plan, shard: int) -> Iterator[bytes]:
    import pyarrow as pa

    num_shards, seed = plan.settings.num_shards, plan.settings.seed
    for group in np.random.RandomState([seed, shard]).permutation(plan.num_groups).tolist():
        with pa.memory_map(str(plan.scratch / f"{group:05d}.arrow")) as mapped, pa.ipc.open_file(mapped) as file:
            for block in range(file.num_record_batches // num_shards):
                records = file.get_batch(block * num_shards + shard).column(0)
                for row in np.random.RandomState([seed, group, block, shard]).permutation(len(records)).tolist():
                    yield records[row].as_py()
