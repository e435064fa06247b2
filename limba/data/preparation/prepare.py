"""A task's documents as alike shards of ArrayRecord or parquet, written in parallel, going on after any interruption.

Two passes. First groups of units are read (and tokenized), and each document is dealt to a shard by (seed,
unit, chunk, row); what belongs to each shard lies together in one scratch file per group. Then each
shard is written from its parts of all scratch files. Every file has another name until it is whole, so what
has its name is not made again, and since nothing depends on time or on who does it, it is what it would be.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import seqio

from limba.config import ConfigError, InputError
from limba.data.preparation.workers import Workers
from limba.data.preparation.writers import SHARD_WRITERS
from limba.data.sources.files import UnitSource
from limba.data.sources.readers import Unit
from limba.data.vocabulary.load import content_name, encoder
from limba.data.vocabulary.text_sample import check_not_empty, text_source

logger = logging.getLogger(__name__)

SETTINGS_FILE = "prepared.json"
# Scratch files: as many as units up to 128, then one for 16 units. Each shard opens each of them, which costs
# more than writing the shard where they are many and small.
FEW_GROUPS, UNITS_PER_GROUP, MOST_GROUPS = 128, 16, 4096
BLOCK_BYTES = 1 << 26  # of documents that a worker holds before it writes them to its scratch file

Recipe = Callable[[], seqio.Task]  # hashable and picklable: each worker makes the task for itself, once


@dataclass(frozen=True)
class Settings:
    """What the shards' content follows from, besides the corpus and the vocabulary."""

    split: str = "train"
    num_shards: int = 64
    format: str = "array_record"
    tokenize: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.format not in SHARD_WRITERS:
            raise InputError(f"The format {self.format!r} is not known; give {' or '.join(SHARD_WRITERS)}.")
        if not 0 < self.num_shards < 100_000:
            raise InputError(f"num_shards is {self.num_shards}; give a number from 1 to 99,999.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"The seed is {self.seed}; give a whole number from 0 to 2^32 - 1.")

    def shard_name(self, shard: int) -> str:
        return f"{self.split}-{shard:05d}-of-{self.num_shards:05d}.{self.format}"


@dataclass(frozen=True)
class Prepared:
    """What lies in the output folder now: documents, their bytes (of text, or of int32 ids), and shards."""

    documents: int
    bytes: int
    shards: int
    columns: Sequence[str]
    was_finished: bool  # before this call


@dataclass(frozen=True)
class _Plan:
    """What a worker has to know."""

    recipe: Recipe
    settings: Settings
    output: str
    scratch: Path
    num_groups: int


def prepare(
    recipe: Recipe,
    settings: Settings,
    output: str,
    *,
    workers: int = 1,
    scratch: str | None = None,
    progress: Callable[[str, int], Any] | None = None,
    preload: Callable[[], None] | None = None,
    another: str = "another --output",
) -> Prepared:
    """Writes the split's documents below `output`, a directory or an address, and returns what lies there.

    Called again after an interruption it goes on; finished already, it does nothing. `scratch` holds as much
    as the documents themselves, compressed, until the end: by default `output/unfinished`, or for an
    address a folder of the machine's temporary directory. `progress(what, total)` gives a counter with
    `update(1)` and `close()`; each worker process calls `preload()` first. Raises ConfigError where the folder
    holds something else, and says to give `another`, or is being written by another process, and for whatever the
    corpus or the vocabulary lacks.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; give 1 or more.")
    counter = progress or (lambda what, total: None)
    task = _task_of(recipe)
    source = _source(task)
    columns, units = columns_of(source, settings), source.units(settings.split)
    check_not_empty(source, settings.split)
    about = _about(task, settings, units)
    folder = _Folder(output)
    there = folder.settings()
    if there and (there.get("finished") or folder.shards()):
        _compare(there, about, output, another)
    if there and there.get("finished") and all(folder.has(settings.shard_name(i)) for i in range(settings.num_shards)):
        return Prepared(there["documents"], there["bytes"], settings.num_shards, columns, was_finished=True)
    if not there and folder.shards():
        raise InputError(f"{output} holds {folder.shards()[0]}, which has no {SETTINGS_FILE}; give an empty folder.")
    plan = _Plan(recipe, settings, output, folder.scratch(scratch), _num_groups(len(units)))
    with _sole_user(plan.scratch, output), Workers(workers, preload) as processes:
        _check_scratch(plan.scratch, about)
        folder.write(SETTINGS_FILE, _json({**about, "finished": False}))
        cut = [len(units) * group // plan.num_groups for group in range(plan.num_groups + 1)]
        jobs = [
            partial(_read_group, plan, group, cut[group], units[cut[group] : cut[group + 1]])
            for group in range(plan.num_groups)
        ]
        documents, num_bytes = np.sum(
            [[0, 0], *processes.results(jobs, counter("reading", len(jobs)))], axis=0
        ).tolist()
        if not documents:
            raise InputError(f"{source.name} holds no document in split {settings.split!r}; nothing is written.")
        jobs = [partial(_write_shard, plan, shard) for shard in range(settings.num_shards)]
        processes.results(jobs, counter("writing", len(jobs)))
        totals = {"documents": documents, "bytes": num_bytes, "finished": True}
        folder.write(SETTINGS_FILE, _json({**about, **totals}))
    shutil.rmtree(plan.scratch, ignore_errors=True)
    return Prepared(documents, num_bytes, settings.num_shards, columns, was_finished=False)


def _num_groups(num_units: int) -> int:
    """Returns how many scratch files; it follows from the corpus alone, as the shards' content has to."""
    return min(num_units, max(FEW_GROUPS, num_units // UNITS_PER_GROUP), MOST_GROUPS)


@lru_cache(maxsize=1)
def _task_of(recipe: Recipe) -> seqio.Task:
    return recipe()


def columns_of(source: UnitSource, settings: Settings) -> tuple[str, ...]:
    """Returns the columns that are written; ConfigError where rows of several are to be tokenized."""
    if isinstance(source.column, Mapping):
        if settings.tokenize:
            raise InputError(
                f"{source.name} is read by {len(source.column)} columns, and --tokenize makes ids of one; leave it out."
            )
        return tuple(source.column.values())
    return ("tokens",) if settings.tokenize else ("text",)


def source_of(recipe: Recipe) -> UnitSource:
    """Returns what the recipe's task reads; ConfigError for a mixture, and for a source without units of text."""
    return _source(_task_of(recipe))


def other_split(source: UnitSource, split: str) -> str | None:
    """Returns validation of train and train of validation, None where the source has none."""
    other = {"train": "validation", "validation": "train"}.get(split)
    with contextlib.suppress(ConfigError):
        return other and source.patterns_of_split(other) and other
    return None


def counterpart(output: str, settings: Settings, other: str) -> str:
    """Returns where the other split belongs: x/train and x/validation, x_train and x_validation, x and x_validation."""
    head = output.removesuffix(settings.split)
    if head == output or (head and head[-1] not in "/_"):
        return f"{output}_{other}"
    plain = head.removesuffix("_")
    return plain if plain != head and is_prepared(plain, replace(settings, split=other)) else head + other


def is_prepared(output: str, settings: Settings) -> bool:
    """Returns whether the folder has the whole of such a split, in such files."""
    system, path = fsspec.core.url_to_fs(output)
    if not system.exists(f"{path}/{SETTINGS_FILE}"):
        return False
    there = json.loads(system.cat_file(f"{path}/{SETTINGS_FILE}"))
    wanted = {"finished": True, **{name: getattr(settings, name) for name in ("split", "format", "tokenize")}}
    return all(there.get(name) == value for name, value in wanted.items())


def _source(task: seqio.Task) -> UnitSource:
    if isinstance(task, seqio.Mixture):
        names = ", ".join(part.name for part in task.tasks)
        raise InputError(f"{task.name} is a mixture; prepare its tasks one by one, each in its own folder: {names}.")
    return text_source(task)


def _about(task: seqio.Task, settings: Settings, units: Sequence[Unit]) -> dict[str, Any]:
    """Returns what one output folder may have one of only."""
    digest = hashlib.blake2b("\n".join(unit.name for unit in units).encode(), digest_size=16).hexdigest()
    about = {"task": task.name, **asdict(settings), "num_units": len(units), "units": digest}
    about |= {"column": task.source.column, "validation_percent": task.source.percent_held_out(settings.split)}
    vocabulary = task.output_features["targets"].vocabulary
    return {**about, "vocabulary": content_name(vocabulary) if settings.tokenize else None}


def _different(there: Mapping[str, Any], about: Mapping[str, Any]) -> str | None:
    """Returns the first entry that differs."""
    # Before these two were kept, rows of several columns became one text, and of others nothing is known.
    unknown = {"validation_percent"} if isinstance(about["column"], Mapping) else {"validation_percent", "column"}
    return next(
        (name for name in about if there.get(name) != about[name] and (name in there or name not in unknown)), None
    )


def _compare(there: Mapping[str, Any], about: Mapping[str, Any], output: str, another: str) -> None:
    name = _different(there, about)
    if name:
        raise InputError(
            f"{output} was prepared with {name} {there.get(name)!r} and this is {about[name]!r}; give {another}, "
            "or delete the folder."
        )


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


class _Folder:
    """The output: a local directory, or an address that fsspec knows."""

    def __init__(self, address: str):
        self.address = address
        with self._clear_errors():
            self._system, self._path = fsspec.core.url_to_fs(address)
            protocol = self._system.protocol
            self.is_local = "file" in (protocol if isinstance(protocol, tuple) else (protocol,))
            self._system.makedirs(self._path, exist_ok=True)

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error).strip().split("\n")[0] or type(error).__name__
            raise InputError(
                f"The folder {self.address} cannot be used ({reason}); check the path, the permissions and the space."
            ) from error

    def has(self, name: str) -> bool:
        with self._clear_errors():
            return self._system.exists(f"{self._path}/{name}")

    def shards(self) -> list[str]:
        with self._clear_errors():
            names = [Path(path).name for path in self._system.ls(self._path, detail=False)]
        return sorted(name for name in names if name.endswith(tuple(SHARD_WRITERS)))

    def settings(self) -> dict[str, Any] | None:
        if not self.has(SETTINGS_FILE):
            return None
        with self._clear_errors():
            try:
                return json.loads(self._system.cat_file(f"{self._path}/{SETTINGS_FILE}"))
            except ValueError:
                raise InputError(f"{self.address}/{SETTINGS_FILE} is damaged; delete the folder.") from None

    def write(self, name: str, content: bytes) -> None:
        with self._clear_errors():
            if self.is_local:
                unfinished = f"{self._path}/{name}.tmp"
                Path(unfinished).write_bytes(content)
                os.replace(unfinished, f"{self._path}/{name}")
            else:
                self._system.pipe_file(f"{self._path}/{name}", content)

    def take(self, file: Path, name: str) -> None:
        """Moves a finished local file in under its final name; an object store shows it once it is whole."""
        with self._clear_errors():
            if self.is_local and os.stat(file).st_dev == os.stat(self._path).st_dev:
                os.replace(file, f"{self._path}/{name}")
                return
            if self.is_local:
                shutil.copyfile(file, f"{self._path}/{name}.tmp")
                os.replace(f"{self._path}/{name}.tmp", f"{self._path}/{name}")
            else:
                self._system.put_file(str(file), f"{self._path}/{name}")
            file.unlink()

    def scratch(self, given: str | None) -> Path:
        digest = hashlib.blake2b(self._path.encode(), digest_size=8).hexdigest()
        if given:
            path = Path(given) / f"limba-prepare-{digest}"
        elif self.is_local:
            path = Path(self._path) / "unfinished"
        else:
            path = Path(tempfile.gettempdir()) / f"limba-prepare-{digest}"
        with self._clear_errors():
            path.mkdir(parents=True, exist_ok=True)
        return path


@contextlib.contextmanager
def _sole_user(scratch: Path, output: str) -> Iterator[None]:
    """Holds a lock that ends with this process, however it ends."""
    with open(scratch / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"Another process prepares {output} now; wait for it, or stop it.") from None
        yield


def _check_scratch(scratch: Path, about: Mapping[str, Any]) -> None:
    """Empties the scratch folder of half-written files, and of everything where it belongs to other settings."""
    owner = scratch / "settings.json"
    is_ours = owner.exists() and not _different(json.loads(owner.read_bytes()), about)
    for path in scratch.iterdir():
        if path.name != "lock" and (not is_ours or path.name.endswith(".tmp")):
            path.unlink()
    _write_whole(owner, _json(about))


def _write_whole(path: Path, content: bytes) -> None:
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def _read_group(plan: _Plan, group: int, first: int, units: Sequence[Unit]) -> tuple[int, int]:
    """Writes one scratch file: in each block, the documents of shard 0, of shard 1, …; returns (documents, bytes)."""
    import pyarrow as pa

    finished, counted = plan.scratch / f"{group:05d}.arrow", plan.scratch / f"{group:05d}.json"
    if finished.exists() and counted.exists():
        return tuple(json.loads(counted.read_text()))
    task, settings = _task_of(plan.recipe), plan.settings
    source = _source(task)
    encode = encoder(task.output_features["targets"].vocabulary) if settings.tokenize else None
    schema = pa.schema([("record", pa.large_binary())])
    unfinished = plan.scratch / f"{group:05d}.arrow.tmp"
    documents = num_bytes = 0
    with (
        _scratch_errors(plan),
        pa.ipc.new_file(str(unfinished), schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as file,
    ):

        def write(block: list[list[bytes]]) -> None:
            for records in block:
                file.write_batch(pa.record_batch([pa.array(records, pa.large_binary())], schema=schema))

        block, held = [[] for _ in range(settings.num_shards)], 0
        for number, unit in enumerate(units, first):
            chunk = 0
            while (texts := source.read(settings.split, unit, chunk)) is not None:
                draws = np.random.RandomState([settings.seed, number, chunk]).randint(
                    settings.num_shards, size=len(texts)
                )
                for shard, text in zip(draws.tolist(), texts, strict=True):
                    record = text if encode is None else encode(text).astype("<i4").tobytes()
                    if not record:  # signs that the vocabulary's normalization drops
                        continue
                    block[shard].append(record)
                    documents += 1
                    num_bytes += len(record)
                    held += len(record)
                chunk += 1
                if held >= BLOCK_BYTES:
                    write(block)
                    block, held = [[] for _ in range(settings.num_shards)], 0
        write(block)
    _write_whole(counted, json.dumps([documents, num_bytes]).encode())
    unfinished.replace(finished)
    return documents, num_bytes


@contextlib.contextmanager
def _scratch_errors(plan: _Plan) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"The scratch folder {plan.scratch} cannot be written or read ({error.strerror or error}); "
            "give another as --scratch."
        ) from error


def _write_shard(plan: _Plan, shard: int) -> None:
    """Writes one shard from its parts of all scratch files, in an order of its own, unless it is there."""
    folder, settings = _Folder(plan.output), plan.settings
    name = settings.shard_name(shard)
    if folder.has(name):
        return
    unfinished = plan.scratch / f"{name}.tmp"
    with _scratch_errors(plan):
        columns = columns_of(source_of(plan.recipe), settings)
        with contextlib.closing(SHARD_WRITERS[settings.format](str(unfinished), columns)) as writer:
            for record in _records(plan, shard):
                writer.write(record)
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
