"""Global batches from seqio tasks: resumable to the row, and the same whatever the number of hosts.

A run has `num_data_shards` logical shards for life. Each is its own pipeline with its own seed; a
global batch takes `batch_size / num_data_shards` rows from each, in the order of the shards. A host
reads the shards whose rows lie on its devices and saves their positions.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import logging
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import seqio
import tensorflow as tf

from limba.config import ConfigError, DataConfig, InputError
from limba.data.objectives.choose import derive_lengths
from limba.data.objectives.supervised import is_supervised
from limba.data.packing import batched, model_features
from limba.data.prefetch import Prefetch, num_threads
from limba.data.sources.files import UnitSource
from limba.data.tasks import Provider, check_sources, has_exact_positions, parts_of, pinned, resolve_task, revisions
from limba.data.vocabulary.load import content_name

__all__ = [
    "Provider",
    "TrainStream",
    "check_sources",
    "derive_lengths",
    "feature_shapes",
    "global_batch",
    "model_features",
    "needs_sentinels",
    "pinned",
    "place_batch",
    "resolve_task",
    "revisions",
    "shards_of_this_process",
]

logger = logging.getLogger(__name__)

# {"inputs": int32 [B, Li], "targets": int32 [B, Lt]}, zero where padded; segment ids beside them when packed
Rows = dict[str, np.ndarray]

ROWS_AT_ONCE = 32  # fetched from tf.data, which costs a fixed fifth of a millisecond
ROWS_AHEAD = 64  # of a shard, or one batch: with fewer made, more are asked for; part of the saved position
POSITION_FORMAT = 2  # of 1, which does not tell its format, tf.data held the rows made ahead
AHEAD_FILE = "ahead.npz"  # in a position: the rows that were made and not given out


def _seed(*parts: Any) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFF_FFFF


def examples_of(task: seqio.Task, lengths: Mapping[str, int], documents: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    dataset = task.preprocess_precache(documents, seed=seed)
    return task.preprocess_postcache(dataset, sequence_length=lengths, seed=seed)


def _train_examples(task: seqio.Task, lengths: Mapping[str, int], config: DataConfig, shard: int) -> tf.data.Dataset:
    """Returns one task's endless examples in one shard.

    The order of documents comes from a seed that all shards share, since they deal one order among
    them; masks and whatever else the preprocessors draw come from the shard's own.
    """
    shared_seed, own_seed = _seed(config.seed, task.name), _seed(config.seed, task.name, shard)
    split, num_shards = config.train_split, config.num_data_shards
    if isinstance(task.source, UnitSource):
        documents = task.source.documents(
            split,
            shard=shard,
            num_shards=num_shards,
            seed=shared_seed,
            shuffle=config.shuffle,
            num_epochs=config.num_epochs,
        )
        examples = examples_of(task, lengths, documents, own_seed)
        if config.shuffle and config.shuffle_buffer:
            examples = examples.shuffle(config.shuffle_buffer, seed=own_seed)
        return examples
    try:
        by_source = len(task.source.list_shards(split)) >= num_shards or task.source.supports_arbitrary_sharding
        documents = task.source.get_dataset(
            split,
            shuffle=config.shuffle,
            seed=shared_seed,
            shard_info=seqio.ShardInfo(shard, num_shards) if by_source else None,
        )
    except (ValueError, NotImplementedError) as error:
        raise InputError(
            f"Task {task.name} cannot be read ({str(error).strip().rstrip('.')}); mend the task, or give it a source of"
            " limba.data.sources or records (TfdsSource reads TFDS's ArrayRecord)."
        ) from error
    documents = (documents if by_source else documents.shard(num_shards, shard)).repeat(config.num_epochs)
    examples = examples_of(task, lengths, documents, own_seed)
    buffered = config.shuffle_buffer or task.shuffle_buffer_size
    return examples.shuffle(buffered, seed=own_seed) if config.shuffle and buffered else examples


def alone(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Sets one thread and no tuning: many shards share a process, and order must not depend on timing."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def _shard_dataset(task: Provider, lengths: Mapping[str, int], config: DataConfig, shard: int) -> tf.data.Dataset:
    parts = [_train_examples(part, lengths, config, shard) for part in parts_of(task)]
    dataset = parts[0]
    if isinstance(task, seqio.Mixture):
        keep = [part.map(lambda example: {name: example[name] for name in lengths}) for part in parts]
        rates = np.array([task.get_rate(part) for part in parts_of(task)])
        dataset = tf.data.Dataset.sample_from_datasets(
            keep, (rates / rates.sum()).tolist(), seed=_seed(config.seed, task.name, "mix", shard)
        )
    rows = config.batch_size // config.num_data_shards
    rows *= max(1, ROWS_AT_ONCE // rows)
    batches = batched(dataset, lengths, rows, whole=config.num_epochs is None, packed=config.pack)
    return alone(batches)


def feature_shapes(task: Provider, lengths: Mapping[str, int], config: DataConfig) -> dict[str, tuple[int, int]]:
    """Returns the shapes of a global batch's model features; no text is read."""
    spec = _shard_dataset(task, lengths, config, 0).element_spec
    row = {name: np.zeros([1, *part.shape[1:]], np.int32) for name, part in spec.items()}
    features = model_features(row, config.sequence_length)
    return {name: (config.batch_size, value.shape[1]) for name, value in features.items()}


class TrainStream:
    """Endless rows of the logical shards that this host reads; `next` gives {shard: rows}.

    With `num_epochs` it ends with the last of its shards; those that end before give padding. Positions are
    bytes per shard and belong to the batches that `next` has given out, not to those made ahead. Raises
    ConfigError where the corpus turns out bad while it is read. Close it before the interpreter ends:
    TensorFlow aborts when an iterator is left.
    """

    def __init__(
        self,
        task: Provider,
        lengths: Mapping[str, int],
        config: DataConfig,
        shards: Sequence[int],
        num_processes: int = 1,
    ):
        self._task, self._lengths, self._config = task, dict(lengths), config
        self._exact = has_exact_positions(task)
        self._datasets = {shard: _shard_dataset(task, lengths, config, shard) for shard in shards}
        self._num_batches = dict.fromkeys(shards, 0)
        self._pool = ThreadPoolExecutor(max_workers=num_threads(len(self._datasets), num_processes))
        iterators = self._pool.map(iter, self._datasets.values())
        self._iterators: dict[int, Any] = dict(zip(self._datasets, iterators, strict=True))
        self._rows_per_batch = config.batch_size // config.num_data_shards
        self._ahead = {
            shard: Prefetch(
                functools.partial(self._make, shard), self._pool, max(1, ROWS_AHEAD // self._rows_per_batch)
            )
            for shard in shards
        }

    def __iter__(self) -> Iterator[dict[int, Rows]]:
        return self

    def __next__(self) -> dict[int, Rows]:
        self._ask()
        with clear_errors(self._task):
            rows = {shard: ahead.take() for shard, ahead in self._ahead.items()}
        if all(part is None for part in rows.values()):
            raise StopIteration
        self._ask()
        for shard, part in rows.items():
            if part is not None:
                self._num_batches[shard] += 1
        return {shard: self._no_rows(shard) if part is None else part for shard, part in rows.items()}

    def _ask(self) -> None:
        for ahead in self._ahead.values():
            ahead.ask()

    def empty(self) -> dict[int, Rows]:
        """Returns rows of padding, for a host whose corpus has ended before another's."""
        return {shard: self._no_rows(shard) for shard in self._iterators}

    def _no_rows(self, shard: int) -> Rows:
        spec = self._datasets[shard].element_spec
        return {name: np.zeros([self._rows_per_batch, *part.shape[1:]], np.int32) for name, part in spec.items()}

    def _make(self, shard: int) -> list[Rows | None]:
        fetched = next(self._iterators[shard], None)
        if fetched is None:
            return [None]
        return self._batches({name: value.numpy() for name, value in fetched.items()})

    def _batches(self, rows: Rows) -> list[Rows]:
        """Returns the rows cut into this shard's parts of batches, the last filled up with padding."""
        size = self._rows_per_batch
        return [
            filled({name: value[start : start + size] for name, value in rows.items()}, size)
            for start in range(0, max(map(len, rows.values()), default=0), size)
        ]

    def skipped(self) -> list[tuple[str, str]]:
        """Returns (unit, reason) of what this host could not read and left out, as told."""
        return [found for part in parts_of(self._task) for found in getattr(part.source, "skipped", ())]

    def epochs(self) -> dict[str, float]:
        """Returns task name -> how often its corpus has been read, a mean over this host's shards; to the unit."""
        named = {part.name: part.source for part in parts_of(self._task) if isinstance(part.source, UnitSource)}
        return {
            name: float(np.mean([source.progress(self._config.train_split, shard) for shard in self._iterators]))
            for name, source in named.items()
        }

    def positions(self) -> dict[int, bytes]:
        """Returns each shard's position behind the batches given out so far."""
        return dict(zip(self._iterators, self._pool.map(self._position, self._iterators), strict=True))

    def _position(self, shard: int) -> bytes:
        about = {**self._identity(shard), "num_batches": self._num_batches[shard], "exact": self._exact}
        split = self._config.train_split
        about["epochs"] = [source.progress(split, shard) for source in self._sources]
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, tempfile.TemporaryDirectory() as directory:
            archive.writestr("about.json", json.dumps(about))
            if self._exact:
                with self._ahead[shard].held() as made:
                    tf.train.Checkpoint(iterator=self._iterators[shard]).write(f"{directory}/position")
                np.savez(f"{directory}/{AHEAD_FILE}", **_joined([rows for rows in made if rows is not None]))
                for path in sorted(Path(directory).iterdir()):
                    archive.write(path, path.name)
        return packed.getvalue()

    def _identity(self, shard: int) -> dict[str, Any]:
        """What a position depends on; restoring under another choice would go on with other text unnoticed."""
        return {
            "format": POSITION_FORMAT,
            "task": self._task.name,
            "seed": self._config.seed,
            "shuffle": self._config.shuffle,
            "shard": shard,
            "num_data_shards": self._config.num_data_shards,
            "batch_size": self._config.batch_size,
            "num_epochs": self._config.num_epochs,
            "task_feature_lengths": self._lengths,
            "objective": self._config.objective,
            "noise_density": self._config.noise_density,
            "mean_noise_span_length": self._config.mean_noise_span_length,
            "prefix": self._config.prefix,
            "pack": self._config.pack or None,  # None in positions from before there was packing
            "shuffle_buffer": self._config.shuffle_buffer,
            "train_split": self._config.train_split,
            "vocabulary size": self._task.output_features["targets"].vocabulary.vocab_size,
            "vocabulary": content_name(self._task.output_features["targets"].vocabulary),
            "column": [source.column for source in self._sources],
            "validation_percent": [source.percent_held_out(self._config.train_split) for source in self._sources],
            "corpus": self._corpus,
        }

    @property
    def _sources(self) -> list[UnitSource]:
        return [part.source for part in parts_of(self._task) if isinstance(part.source, UnitSource)]

    @functools.cached_property
    def _corpus(self) -> str:
        """Names the files and how they are cut, in a few letters."""
        units = [
            part.source.list_shards(self._config.train_split) if isinstance(part.source, UnitSource) else part.name
            for part in parts_of(self._task)
        ]
        return hashlib.blake2b(repr(units).encode(), digest_size=8).hexdigest()

    def restore(self, positions: Mapping[int, bytes]) -> None:
        """Goes on behind the given positions; ConfigError where one is missing or belongs to other data."""
        missing = sorted(set(self._iterators) - set(positions))
        if missing:
            raise InputError(
                f"The checkpoint holds no data position for shard {missing[0]}; set num_data_shards as it was."
            )
        about = {shard: self._about(shard, positions[shard]) for shard in self._iterators}
        self._num_batches = {shard: about[shard]["num_batches"] for shard in about}
        for shard in about:
            for source, epochs in zip(self._sources, about[shard].get("epochs", ()), strict=False):
                source.note_progress(self._config.train_split, shard, epochs)
        if self._exact:
            list(self._pool.map(lambda shard: self._read_position(shard, positions[shard]), about))
            return
        for shard in about:
            # A data set that was read before shuffles otherwise the second time, so it is made anew; one
            # after the other, since seqio hands out seeds through a global.
            anew = _shard_dataset(self._task, self._lengths, self._config, shard)
            self._iterators[shard] = iter(anew)
            left = self._num_batches[shard]
            while left > 0 and (made := self._make(shard)) != [None]:
                self._ahead[shard].put_back(made[left:])
                left -= len(made)

    def _about(self, shard: int, position: bytes) -> dict[str, Any]:
        """Returns what the position says of itself; ConfigError where it belongs to other data."""
        with zipfile.ZipFile(io.BytesIO(position)) as archive:
            about = json.loads(archive.read("about.json"))
        about.setdefault("format", 1)
        for name, now in {**self._identity(shard), "exact": self._exact}.items():
            if name in about and about[name] != now:  # what a position of before does not tell is not known
                raise InputError(
                    f"The data position was saved with {name} {about.get(name)!r} and this run has {now!r}; set it "
                    "back, or start a new RunConfig.model_dir with RunConfig.initial_checkpoint_path to begin "
                    "the data anew."
                )
        return about

    def _read_position(self, shard: int, position: bytes) -> None:
        with tempfile.TemporaryDirectory() as directory, clear_errors(self._task):
            zipfile.ZipFile(io.BytesIO(position)).extractall(directory)
            tf.train.Checkpoint(iterator=self._iterators[shard]).read(f"{directory}/position").assert_consumed()
            with np.load(f"{directory}/{AHEAD_FILE}") as made:
                self._ahead[shard].put_back(self._batches(dict(made)))

    def close(self) -> None:
        """Drops the iterators and their threads."""
        self._pool.shutdown(wait=True)
        self._iterators.clear()
        self._datasets.clear()


@contextlib.contextmanager
def clear_errors(task: Provider) -> Iterator[None]:
    """Puts the source's own sentence in place of TensorFlow's report of it."""
    try:
        yield
    except tf.errors.OpError:
        failures = (getattr(part.source, "failure", None) for part in parts_of(task))
        failure = next(filter(None, failures), None)
        if failure is None:
            raise
        raise failure from None


def needs_sentinels(task: Provider) -> bool:
    """False where every task has inputs and targets of its own."""
    return not all(is_supervised(part) for part in parts_of(task))


def _joined(batches: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([rows[name] for rows in batches]) for name in (batches[0] if batches else ())}


def filled(rows: Rows, num_rows: int) -> Rows:
    if all(len(value) == num_rows for value in rows.values()):
        return rows
    return {name: np.pad(value, [(0, num_rows - len(value)), (0, 0)]) for name, value in rows.items()}


def shards_of_this_process(sharding: jax.sharding.Sharding, config: DataConfig) -> list[int]:
    """Returns the logical shards whose rows lie on this process's devices, in order.

    Raises ConfigError where the devices cut the batch unevenly, or a shard lies on two processes.
    """
    rows = _local_rows(sharding, config.batch_size)
    rows_per_shard = config.batch_size // config.num_data_shards
    shards = sorted({row // rows_per_shard for row in rows})
    if len(rows) != len(shards) * rows_per_shard:
        starts = [row for row in rows if row - 1 not in rows]
        whole = int(np.gcd.reduce([*starts, len(rows), config.batch_size]))
        raise InputError(
            f"num_data_shards {config.num_data_shards} gives shards of {rows_per_shard} rows, which the "
            "processes' devices cut; "
            f"set DataConfig.num_data_shards to {config.batch_size // whole} or a multiple of it that divides "
            "DataConfig.batch_size."
        )
    return shards


def _local_rows(sharding: jax.sharding.Sharding, num_rows: int) -> list[int]:
    try:
        indices = sharding.addressable_devices_indices_map((num_rows, 1))
    except ValueError as error:
        raise ConfigError(
            "DataConfig.batch_size",
            f"{num_rows} does not divide over the mesh's data and fsdp axes; make it a multiple of their product.",
        ) from error
    return sorted({row for index in indices.values() for row in range(*index[0].indices(num_rows))})


def global_batch(
    rows_by_shard: Mapping[int, Rows], sharding: jax.sharding.Sharding, config: DataConfig
) -> dict[str, jax.Array]:
    """Returns the model features int32 [batch_size, L] as global arrays, from this host's shards.

    Row r belongs to shard r // (batch_size / num_data_shards), so the batch does not depend on how
    many hosts made it.
    """
    rows_per_shard = config.batch_size // config.num_data_shards
    shards = sorted(rows_by_shard)
    place_of = {shard: place for place, shard in enumerate(shards)}
    features = [model_features(rows_by_shard[shard], config.sequence_length) for shard in shards]

    def place(name: str) -> jax.Array:
        local = np.concatenate([rows[name] for rows in features])

        def part(index: tuple[slice, ...]) -> np.ndarray:
            start, stop, _ = index[0].indices(config.batch_size)
            numbers = np.arange(start, stop)
            places = np.array([place_of[shard] for shard in numbers // rows_per_shard]) * rows_per_shard
            return local[places + numbers % rows_per_shard][:, index[1]]

        return jax.make_array_from_callback((config.batch_size, local.shape[1]), sharding, part)

    return {name: place(name) for name in features[0]}


def place_batch(batch: Mapping[str, np.ndarray], sharding: jax.sharding.Sharding) -> dict[str, jax.Array]:
    """Returns a whole batch, which every host holds, as global arrays."""
    return {
        name: jax.make_array_from_callback(value.shape, sharding, lambda index, value=value: value[index])
        for name, value in batch.items()
    }
