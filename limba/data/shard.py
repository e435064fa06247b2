"""One logical shard: reads and preprocesses its documents, and cuts them into its rows of each batch."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import seqio
import tensorflow as tf

from limba.config import DataConfig, InputError
from limba.data.epochs.corpora import marked, unmarked
from limba.data.epochs.deal import WHOLE_UNITS, Deal
from limba.data.epochs.even import even_documents
from limba.data.function_tasks import failure_of_function
from limba.data.packing import batched
from limba.data.prefetch import Prefetch
from limba.data.sources.order import Reading
from limba.data.sources.units import UnitSource
from limba.data.tasks import Provider, has_exact_positions, parts_of

# {"inputs": int32 [B, Li], "targets": int32 [B, Lt]}, zero where padded; segment ids beside them when packed
Rows = dict[str, np.ndarray]
# task -> the epoch with which its first pass over the files of now begins; empty unless the corpus has changed
FirstEpochs = Mapping[str, int]
Point = tuple[float, float]  # rows that a shard has made, and epochs that it has read for them
# (task, lengths, documents, seed) -> examples
Follow = Callable[[seqio.Task, Mapping[str, int], tf.data.Dataset, int], tf.data.Dataset]

FETCHED_ROWS = 32  # rows per fetch from tf.data, which costs a fixed fifth of a millisecond
PREFETCHED_ROWS = 64  # prefetched rows per shard, at least a batch; a saved data position holds them
ROWS_MEASURED = 4 * FETCHED_ROWS  # for which a shard has read on, before they tell the rows of an epoch
BUFFERS_MEASURED = 4  # times what was read at first that has been read since
STATE_SECONDS = 2.0  # between two states of an iterator that are kept for the case that reading fails; 1 ms each


def _seed(*parts: Any) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFF_FFFF


def examples_of(task: seqio.Task, lengths: Mapping[str, int], documents: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """Returns the documents after the task's preprocessors."""
    dataset = task.preprocess_precache(documents, seed=seed)
    return task.preprocess_postcache(dataset, sequence_length=lengths, seed=seed)


def _train_examples(
    task: seqio.Task,
    lengths: Mapping[str, int],
    config: DataConfig,
    shard: int,
    first_epoch: int,
    follow: Follow | None,
    deal: Deal,
) -> tf.data.Dataset:
    """Returns one task's examples in one shard, repeated for `num_epochs` or endlessly.

    All shards share the seed of the order of documents, because they divide one order. Each shard has its own seed
    for the random choices of its preprocessors, such as masks.
    """
    begun = (first_epoch,) if first_epoch else ()
    shared_seed, own_seed = _seed(config.seed, task.name), _seed(config.seed, task.name, shard, *begun)
    split, num_shards = config.train_split, config.batch_size // config.rows_per_shard
    if task.name in deal.counts:
        assert isinstance(task.source, UnitSource)
        traced, epochs = follow is not None, config.num_epochs
        reading = Reading(split, shard, num_shards, shared_seed, config.shuffle, epochs, first_epoch, traced)
        documents = even_documents(task.source, reading, deal.counts[task.name], deal.offset(task.name, epochs))
        buffered = config.shuffle_buffer
    elif isinstance(task.source, UnitSource):
        documents = task.source.documents(
            split,
            shard=shard,
            num_shards=num_shards,
            seed=shared_seed,
            shuffle=config.shuffle,
            num_epochs=config.num_epochs,
            **({"first_epoch": first_epoch} if first_epoch else {}),
            **({"traced": True} if follow else {}),
        )
        buffered = config.shuffle_buffer
    else:
        documents = _seqio_documents(task, split, config.shuffle, shared_seed, seqio.ShardInfo(shard, num_shards))
        documents = documents.repeat(config.num_epochs)
        buffered = config.shuffle_buffer or task.shuffle_buffer_size
    examples = (follow or examples_of)(task, lengths, documents, own_seed)
    return examples.shuffle(buffered, seed=own_seed) if config.shuffle and buffered else examples


def _seqio_documents(task: seqio.Task, split: str, shuffle: bool, seed: int, shard: seqio.ShardInfo) -> tf.data.Dataset:
    """Returns one epoch of a shard from a seqio source, divided by files or, if these are too few, by rows."""
    try:
        by_source = len(task.source.list_shards(split)) >= shard.num_shards or task.source.supports_arbitrary_sharding
        documents = task.source.get_dataset(split, shuffle=shuffle, seed=seed, shard_info=shard if by_source else None)
    except (ValueError, NotImplementedError) as error:
        raise InputError(
            f"Task {task.name} cannot be read ({str(error).strip().rstrip('.')}); correct the task, or give it a"
            " source of limba.data.sources (TfdsSource reads TFDS's ArrayRecord)."
        ) from error
    return documents if by_source else documents.shard(shard.num_shards, shard.index)


def single_threaded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Sets one thread and no tuning: many shards share a process, and order must not depend on timing."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)


def shard_dataset(
    task: Provider,
    lengths: Mapping[str, int],
    config: DataConfig,
    shard: int,
    first_epochs: FirstEpochs | None = None,
    follow: Follow | None = None,
    deal: Deal = WHOLE_UNITS,
) -> tf.data.Dataset:
    """Returns the shard's rows, in groups of several batches, or of one batch if it has many rows.

    A new pass over a changed corpus begins with `first_epochs`, and draws other masks. `follow` is called in place of
    `examples_of`, with traced documents. Tasks that `deal` does not count are dealt in whole units.
    """
    first_epochs = first_epochs or {}
    parts = [
        _train_examples(part, lengths, config, shard, first_epochs.get(part.name, 0), follow, deal)
        for part in parts_of(task)
    ]
    dataset = parts[0]
    if isinstance(task, seqio.Mixture):
        same_features = [
            part.map(functools.partial(_of_mixture, lengths, number if deal.marks_corpora else None))
            for number, part in enumerate(parts, 1)
        ]
        rates = np.array([task.get_rate(part) for part in parts_of(task)])
        dataset = tf.data.Dataset.sample_from_datasets(
            same_features,
            (rates / rates.sum()).tolist(),
            seed=_seed(config.seed, task.name, "mix", shard, *first_epochs.values()),
        )
    rows = rows_per_fetch(config)
    return single_threaded(batched(dataset, lengths, rows, whole=config.num_epochs is None, packed=config.pack))


def _of_mixture(
    lengths: Mapping[str, int], number: int | None, example: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns the features that all tasks of a mixture have, with the task's number in their tokens if it is given."""
    features = {name: example[name] for name in lengths}
    return features if number is None else marked(features, number)


def rows_per_fetch(config: DataConfig) -> int:
    """Returns the rows of one element of `shard_dataset`: those of whole batches."""
    return config.rows_per_shard * max(1, FETCHED_ROWS // config.rows_per_shard)


def row_shapes(dataset: tf.data.Dataset) -> dict[str, list[int]]:
    """Returns the shapes of one row's features, without the axis of rows."""
    spec = cast(Mapping[str, tf.TensorSpec], dataset.element_spec)
    return {name: [int(size or 0) for size in part.shape[1:]] for name, part in spec.items()}


def padded_rows(rows: Rows, num_rows: int) -> Rows:
    """Returns the rows, padded with rows of zeros to `num_rows`."""
    if all(len(value) == num_rows for value in rows.values()):
        return rows
    return {name: np.pad(value, [(0, num_rows - len(value)), (0, 0)]) for name, value in rows.items()}


@contextlib.contextmanager
def source_errors(task: Provider) -> Iterator[None]:
    """Raises the source's own InputError in place of TensorFlow's report of it."""
    try:
        yield
    except tf.errors.OpError as error:
        failure = source_error(task, error)
        if failure is error:
            raise
        raise failure from None


def source_error(task: Provider, error: BaseException) -> BaseException:
    """Returns the source's own InputError, that of a source that is a function, or else the error itself."""
    if not isinstance(error, tf.errors.OpError):
        return error
    parts = parts_of(task)
    failures = [getattr(part.source, "failure", None) for part in parts]
    if len(parts) == 1:
        failures.append(failure_of_function(parts[0], error))
    return next((failure for failure in failures if failure is not None), error)


class Shard:
    """One logical shard: `take` returns its rows of the next batch, which the pool's threads prefetch.

    `num_batches` counts the batches taken, `batches_before` those of passes over other files. A data position saves the
    state of `iterator` (tf.data's) and the prefetched batches. Call `start` first.
    """

    def __init__(
        self,
        task: Provider,
        lengths: Mapping[str, int],
        config: DataConfig,
        index: int,
        pool: ThreadPoolExecutor,
        deal: Deal = WHOLE_UNITS,
    ):
        self._recipe, self._deal = (task, lengths, config, index), deal
        self.batches_before, self.first_epochs = 0, dict[str, int]()
        self._dataset: Any = self._new_dataset()
        self._is_exact = has_exact_positions(task)
        self._has_ended = False
        self.tokens = np.zeros(len(parts_of(task)), np.int64)  # of each task of a mixture, in the batches taken
        self._taken: tuple[Rows | None, Mapping[str, float], np.ndarray] = (None, {}, self.tokens)
        self._num_made = 0  # batches, as `num_batches` counts them
        # tf.data's state of the iterator when so many batches were made; after a failure it is the last one.
        self.kept_state: tuple[int, Any] | None = None
        self._kept_at = -STATE_SECONDS
        # Task -> epochs, of those that are dealt evenly: after the last batch taken, and after each one made.
        self.epochs: Mapping[str, float] = {}
        self._epochs_made: deque[tuple[Mapping[str, float], Mapping[str, Point]]] = deque()
        self._last_made: Mapping[str, float] = {}
        # Task -> two times at which its source read on, as the rows were used up: the first one, and the last one.
        self.pace: dict[str, tuple[Point, Point]] = {}
        self.shown: dict[str, float] = {}  # the epochs that were returned last: a better estimate is not below them
        self._has_read_on: set[str] = set()
        self.iterator: Any = None
        self._num_rows = config.rows_per_shard
        self.index, self.num_batches = index, 0
        self.prefetch: Prefetch[Rows | None] = Prefetch(self._make, pool, max(1, PREFETCHED_ROWS // self._num_rows))

    def begin_pass(self, first_epochs: FirstEpochs, batches_before: int) -> None:
        """Reads from these epochs on, after `batches_before` batches of other files; call `start` again.

        Do not call it for several shards at once: seqio hands out seeds through a global.
        """
        self.first_epochs, self.batches_before = dict(first_epochs), batches_before
        self.num_batches = self._num_made = batches_before
        self.pace, self.shown = {}, {}
        self._has_read_on.clear()
        self.iterator, self._dataset = None, self._new_dataset()

    def _new_dataset(self) -> tf.data.Dataset:
        return shard_dataset(*self._recipe, self.first_epochs, deal=self._deal)

    def start(self) -> None:
        """Opens the iterator; several shards may do so at once."""
        self.iterator = iter(self._dataset)

    def take(self) -> Rows | None:
        """Returns the next batch's rows, or None at the end of the shard."""
        rows = self.prefetch.take()
        self._has_ended, self._taken = rows is None, (rows, self.epochs, self.tokens)
        if rows is not None:
            self.num_batches += 1
            self.epochs, points = self._epochs_made.popleft() if self._epochs_made else (self.epochs, {})
            self.pace |= {name: (self.pace.get(name, (point,))[0], point) for name, point in points.items()}
            if self._deal.marks_corpora:
                rows, counts = unmarked(rows, self._recipe[1], len(self.tokens))
                self.tokens = self.tokens + counts
        return rows

    def put_back(self) -> None:
        """Undoes the last `take`."""
        rows, before, self.tokens = self._taken
        if rows is not None:
            self.num_batches -= 1
            if self._deal.counts:
                self._epochs_made.appendleft((self.epochs, {}))
            self.epochs = before
        self._has_ended = False
        self.prefetch.put_back(rows)

    def progress(self, part: seqio.Task) -> float:
        """Returns a task's epochs in the batches taken; where its documents are not counted, the epochs read."""
        task, _, config, index = self._recipe
        if part.name not in self._deal.counts:
            return cast(UnitSource, part.source).progress(config.train_split, index)
        begun = float(self.first_epochs.get(part.name, 0))
        if self._has_ended:
            return float(max(config.num_epochs or 0, begun + 1))
        if task is part and self._deal.rows is not None and self._deal.is_exact:
            return self.trained(part)
        return self.epochs.get(part.name, begun)

    def trained(self, part: seqio.Task) -> float:
        """Returns a task's epochs in the batches taken; nan where they are not known.

        Documents that are read wait in buffers: of shuffles, of blocks of tokens, of rows that are packed. So where the
        rows of an epoch are not known beforehand, they are measured: between two times at which the source read on.
        """
        task, _, config, _ = self._recipe
        begun = float(self.first_epochs.get(part.name, 0))
        rows = (self.num_batches - self.batches_before) * self._num_rows
        last = max(config.num_epochs or math.inf, begun + 1)
        if self._has_ended and config.num_epochs is not None:
            return last
        if task is part and self._deal.rows is not None:
            return min(begun + rows * (config.batch_size // self._num_rows) / self._deal.rows, last)
        (made, read), (made_now, read_now) = self.pace.get(part.name, ((0.0, 0.0), (0.0, 0.0)))
        # The first read filled the buffers. Threads empty and fill them again, at any time: an error of this size.
        if rows and (made_now - made < ROWS_MEASURED or read_now - read < BUFFERS_MEASURED * (read - begun)):
            return math.nan
        found = begun + (rows and rows * (read_now - read) / (made_now - made))
        self.shown[part.name] = max(min(found, last), self.shown.get(part.name, 0.0))
        return self.shown[part.name]

    def padding(self) -> Rows:
        """Returns a batch's rows, all zeros."""
        shapes = row_shapes(self._dataset)
        return {name: np.zeros([self._num_rows, *shape], np.int32) for name, shape in shapes.items()}

    def _make(self) -> Sequence[Rows | None]:
        self._keep_state()
        fetched = next(self.iterator, None)
        if fetched is None:
            return [None]
        batches = self.cut({name: value.numpy() for name, value in fetched.items()})
        self._num_made += len(batches)
        self._note_epochs(len(batches))
        return batches

    def _keep_state(self) -> None:
        if self._is_exact and time.monotonic() > self._kept_at + STATE_SECONDS:
            state = state_of(self.iterator)
            if self.kept_state is None or not self.has_failed:
                self.kept_state = (self._num_made, state)
            self._kept_at = time.monotonic()

    @property
    def has_failed(self) -> bool:
        """True if reading has failed: a state that tf.data gives after that may hold the error, which is read ahead."""
        sources = (part.source for part in parts_of(self._recipe[0]))
        return self.prefetch.failure is not None or any(getattr(source, "failure", None) for source in sources)

    def _note_epochs(self, num_batches: int) -> None:
        """Notes the progress of the source after each of the batches made, which it has read all at once."""
        if not self._deal.counts:
            return
        task, _, config, _ = self._recipe
        sources = {
            part.name: cast(UnitSource, part.source) for part in parts_of(task) if part.name in self._deal.counts
        }
        read = {name: source.progress(config.train_split, self.index) for name, source in sources.items()}
        before = {name: self._last_made.get(name, self.first_epochs.get(name, 0)) for name in read}
        went_on = {name for name in read if read[name] > before[name]}
        rows = (self._num_made - num_batches / 2 - self.batches_before) * self._num_rows  # about when it went on
        points = {name: (rows, before[name]) for name in went_on & self._has_read_on}
        self._has_read_on |= went_on
        for number in range(1, num_batches + 1):
            share = number / num_batches
            epochs = {name: before[name] + share * (read[name] - before[name]) for name in read}
            self._epochs_made.append((epochs, points if number == 1 else {}))
        self._last_made = read

    def cut(self, rows: Rows) -> list[Rows]:
        """Returns the rows as this shard's parts of batches, the last one padded."""
        size = self._num_rows
        return [
            padded_rows({name: value[start : start + size] for name, value in rows.items()}, size)
            for start in range(0, max(map(len, rows.values()), default=0), size)
        ]

    def skip(self, num_batches: int) -> None:
        """Reads the shard from its beginning, without the first batches; for sources that cannot save a data position.

        Do not call it for several shards at once: seqio hands out seeds through a global.
        """
        # A data set shuffles differently when it is read a second time, so a new one is made.
        self.iterator = iter(self._new_dataset())
        self.num_batches, left = num_batches, num_batches - self.batches_before
        while left > 0 and (made := self._make()) != [None]:
            self.prefetch.start_with(made[left:])
            left -= len(made)

    def resume(self, num_batches: int, num_passed: int, rows: Rows, epochs: Mapping[str, float]) -> None:
        """Sets where the restored iterator is: `rows` come before it, and `num_passed` batches after it are left out.

        `epochs` are those after the `num_batches` that were taken.
        """
        self.epochs = self._last_made = epochs
        self.num_batches, queue = num_batches, self.cut(rows)
        self._num_made = num_batches - num_passed + len(queue)
        self._epochs_made.extend((epochs, {}) for _ in queue)
        while num_passed > 0 and (made := self._make()) != [None]:
            queue = cast(list[Rows], made[num_passed:])
            for _ in made[:num_passed] if self._epochs_made else ():
                self._epochs_made.popleft()
            num_passed -= len(made)
        self.prefetch.start_with(queue)

    def close(self) -> None:
        """Drops the iterator and its data set."""
        self.iterator = self._dataset = self.kept_state = None


def state_of(iterator: Any) -> Any:
    """Returns the state of tf.data's iterator, in memory."""
    return iterator._serialize_to_tensors()["_STATE"]


class KeptState(tf.Module):
    """A state of an iterator that tf.train.Checkpoint writes in place of the iterator."""

    def __init__(self, state: Any):
        super().__init__()
        self._state = state

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {"ITERATOR_STATE": self._state}  # the name in the checkpoint of an iterator
