"""One logical shard: the pipeline from its documents to its rows of each batch, and how far it has read."""

from __future__ import annotations

import abc
import contextlib
import functools
import hashlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from limba.config import DataConfig
from limba.data import bridge, user_code
from limba.data.dataset import TOKENS, Counted, Dataset, Mixed, State
from limba.data.deal import WHOLE_UNITS, Deal, marked, unmarked
from limba.data.objectives.choice import examples_of
from limba.data.packing import batched
from limba.data.registry import Mixture, Task
from limba.data.sources.order import Reading
from limba.data.sources.units import UnitSource
from limba.data.tasks import Provider, advice_on, failure_of_code, parts_of, unit_sources

# {"inputs": int32 [B, Li], "targets": int32 [B, Lt]}, zero where padded; segment ids beside them when packed
Rows = dict[str, np.ndarray]
# task -> the epoch with which its first pass over the current files begins; empty unless the corpus has changed
FirstEpochs = Mapping[str, int]
Made = tuple[Rows, Mapping[str, float]]  # a batch's rows, and task -> the epochs that were read for those up to it
# (task, lengths, documents, seed) -> examples
Follow = Callable[[Task, Mapping[str, int], Dataset, int], Dataset]

Batch = TypeVar("Batch")

FETCHED_ROWS = 32  # rows that are made at once
PREFETCHED_ROWS = 64  # prefetched rows per shard, at least a batch; a saved data position holds them
STATE_SECONDS = 2.0  # between two states that are kept for the case that reading fails: some hold a buffer


def _seed(*parts: object) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFF_FFFF


def _epochs_given(name: str, documents: Dataset, source: UnitSource, reading: Reading) -> Mapping[str, float]:
    """Returns the epochs of a task's documents that were given; of uncounted ones, those that were read."""
    if isinstance(documents, Counted):
        return {name: documents.epochs()}
    return {name: source.progress(reading.split, reading.shard)}


@dataclass(frozen=True)
class Pipeline:
    """What the rows of a stream are made from: a task or mixture, its features' lengths, the choice of data, its deal.

    Tasks that `deal` does not count are dealt in whole units.
    """

    task: Provider
    lengths: Mapping[str, int]
    config: DataConfig
    deal: Deal = WHOLE_UNITS

    @functools.cached_property
    def parts(self) -> list[Task]:
        return parts_of(self.task)

    @functools.cached_property
    def sources(self) -> dict[str, UnitSource]:
        """Task name -> its source, of those with a position that can be saved."""
        return unit_sources(self.task)

    @property
    def is_exact(self) -> bool:
        """True if all positions can be saved; else a resumed shard is read again from its beginning."""
        return len(self.sources) == len(self.parts)

    @property
    def rows_per_fetch(self) -> int:
        """The rows of one element of `dataset`: those of whole batches."""
        return self.config.rows_per_shard * max(1, FETCHED_ROWS // self.config.rows_per_shard)

    def dataset(self, shard: int, first_epochs: FirstEpochs | None = None, follow: Follow | None = None) -> Dataset:
        """Returns the shard's rows, in groups of several batches, or of one batch if it has many rows.

        A new pass over a changed corpus begins with `first_epochs`, and draws other masks. `follow` is called in place
        of `examples_of`, with traced documents.
        """
        first_epochs, config = first_epochs or {}, self.config
        parts = [self._examples(part, shard, first_epochs.get(part.name, 0), follow) for part in self.parts]
        dataset = parts[0]
        if isinstance(self.task, Mixture):
            spec = dict.fromkeys(self.lengths, TOKENS)
            same_features = [part.map(functools.partial(self._of_mixture, n), spec) for n, part in enumerate(parts, 1)]
            rates = np.array([self.task.get_rate(part) for part in self.parts])
            seed = _seed(config.seed, self.task.name, "mix", shard, *first_epochs.values())
            dataset = Mixed(same_features, (rates / rates.sum()).tolist(), seed)
        # The first batch of a source of others, which is slow, does not wait for those after it.
        first = None if self.is_exact else config.rows_per_shard
        is_endless = config.num_epochs is None
        return batched(dataset, self.lengths, self.rows_per_fetch, is_endless, config.pack, first)

    def _of_mixture(self, number: int, example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the features that all tasks of a mixture have, with the task's number in their tokens if counted."""
        features = {name: example[name] for name in self.lengths}
        return marked(features, number) if self.deal.marks_corpora else features

    def _examples(self, part: Task, shard: int, first_epoch: int, follow: Follow | None) -> Dataset:
        """Returns one task's examples in one shard, repeated for `num_epochs` or endlessly.

        All shards share the seed of the order of documents, because they divide one order. Each shard has its own seed
        for the random choices of its preprocessors, such as masks.
        """
        config, deal, begun = self.config, self.deal, (first_epoch,) if first_epoch else ()
        shared_seed, own_seed = _seed(config.seed, part.name), _seed(config.seed, part.name, shard, *begun)
        order = (config.train_split, shard, config.num_shards, shared_seed, config.shuffle)
        buffered = config.shuffle_buffer
        if source := self.sources.get(part.name):
            reading = Reading(*order, config.num_epochs, first_epoch, traced=follow is not None)
            counts = deal.counts.get(part.name)
            offset = deal.offset(part.name, config.num_epochs) if counts else 0
            documents = source.dataset(reading, counts, offset)
            documents.progress = functools.partial(_epochs_given, part.name, documents, source, reading)
        else:
            documents = self._foreign_documents(part, shard, shared_seed, begun)
            buffered = buffered or self._buffer_of(part, begun)
        examples = (follow or examples_of)(part, self.lengths, documents, own_seed)
        return examples.shuffle(buffered, own_seed) if config.shuffle and buffered else examples

    @functools.cached_property
    def _opened(self) -> bridge.Opened:
        """The sources that are opened once for all shards of this process."""
        return bridge.Opened()

    def _buffer_of(self, part: Task, begun: tuple[int, ...]) -> int | None:
        """Returns the size of a shard's shuffle buffer that a task of seqio asks for.

        It is meant for one reading of the source. Shards that share one divide it too: else the first batch would wait
        until num_data_shards buffers are full.
        """
        size = part.shuffle_buffer_size
        if size is None or (part.name, begun) not in self._opened:
            return size
        return -(-size // self.config.num_shards)

    def _foreign_documents(self, part: Task, shard: int, seed: int, begun: tuple[int, ...]) -> Dataset:
        """Returns a shard's documents of a source that is not ours."""
        failure = functools.partial(failure_of_code, part)
        with user_code.of_task(part, advice_on(part)):
            return self._opened.documents(part, begun, self.config, shard, seed, failure)


def row_shapes(dataset: Dataset) -> dict[str, list[int]]:
    """Returns the shapes of one row's features, without the axis of rows."""
    return {name: [size or 0 for size in part.shape[1:]] for name, part in dataset.spec.items()}


def padded_rows(rows: Rows, num_rows: int) -> Rows:
    """Returns the rows, padded with rows of zeros to `num_rows`."""
    if all(len(value) == num_rows for value in rows.values()):
        return rows
    return {name: np.pad(value, [(0, num_rows - len(value)), (0, 0)]) for name, value in rows.items()}


def num_threads(num_shards: int, num_processes: int = 1) -> int:
    """Returns the number of threads with which one reading process makes the batches of `num_shards` shards.

    Two for each core, since each waits for the interpreter.
    """
    return max(1, min(num_shards, 2 * (os.cpu_count() or 1) // num_processes))


class Prefetch(Generic[Batch]):
    """A queue of batches, which `make` returns a few at a time; the pool fills it up to `num_batches`.

    Its few threads serve all shards in turn: with one for each, sixteen on a few cores wake one another more than they
    work.

    One thread calls `request`, `take` and `paused`. An error in `make` is raised by the `take` of its batches.
    """

    def __init__(self, make: Callable[[], Sequence[Batch]], pool: ThreadPoolExecutor, num_batches: int):
        self._make, self._pool, self._num_batches = make, pool, num_batches
        self._lock = threading.Lock()  # locked while batches are made
        self._made: deque[Batch] = deque()
        self._making: Future[None] | None = None  # the last call
        self._failure: BaseException | None = None  # of the last call

    def request(self) -> None:
        """Requests more batches, unless the queue is full, a request is running, or the last one failed."""
        is_idle = self._making is None or (self._making.done() and self._making.exception() is None)
        if is_idle and len(self._made) < self._num_batches:
            self._making = self._pool.submit(self._make_some)

    def _make_some(self) -> None:
        with self._lock:
            try:
                self._made.extend(self._make())
            except BaseException as error:
                self._failure = error
                raise

    def take(self) -> Batch:
        """Returns the next batch; waits until it is ready."""
        self.wait()
        return self._made.popleft()

    def wait(self) -> None:
        """Waits until the next batch is ready; raises what `take` would raise, and takes nothing."""
        while not self._made:
            self.request()
            if self._making is not None:
                self._making.result()

    @property
    def failure(self) -> BaseException | None:
        """The error of `make` if it has failed: what it had taken from its source by then is lost."""
        return self._failure

    @contextlib.contextmanager
    def paused(self) -> Iterator[list[Batch]]:
        """Yields the batches in the queue; no batches are made inside the context."""
        with self._lock:
            yield list(self._made)

    def start_with(self, batches: Sequence[Batch]) -> None:
        """Puts batches into the queue before the first request."""
        self._made.extend(batches)


class Shard:
    """One logical shard: `take` returns its rows of the next batch, which the pool's threads prefetch.

    `num_batches` counts the batches taken, `batches_before` those of passes over other files. A data position saves the
    state of `dataset` and the prefetched batches.
    """

    def __init__(self, pipeline: Pipeline, index: int, pool: ThreadPoolExecutor):
        self._pipeline, self.index, self.num_batches, self.batches_before = pipeline, index, 0, 0
        self.first_epochs: FirstEpochs = {}
        self._epochs: Mapping[str, float] = {}  # after the last batch taken
        self._epochs_made: Mapping[str, float] = {}  # after the last batch made
        self.dataset = pipeline.dataset(index)
        self._has_ended = False
        # Task -> epochs read before the last reading, and with it, and the batches made by then.
        self._readings: dict[str, tuple[float, float, int]] = {}
        self.tokens = np.zeros(len(pipeline.parts), np.int64)  # of each task of a mixture, in the batches taken
        self._num_made = 0  # batches, as `num_batches` counts them
        # The state when so many batches were made; after a failure it is the last one.
        self.kept_state: tuple[int, State] | None = None
        self._kept_at = -STATE_SECONDS
        num_batches = max(1, PREFETCHED_ROWS // pipeline.config.rows_per_shard)
        self.prefetch: Prefetch[Made | None] = Prefetch(self._make, pool, num_batches)

    def begin_pass(self, first_epochs: FirstEpochs, batches_before: int) -> None:
        """Reads from these epochs on, after `batches_before` batches of other files."""
        self.num_batches = self._num_made = self.batches_before = batches_before
        self.first_epochs = self._epochs = self._epochs_made = first_epochs
        self.dataset = self._pipeline.dataset(self.index, first_epochs)

    def take(self) -> Rows | None:
        """Returns the next batch's rows, or None at the end of the shard."""
        made = self.prefetch.take()
        self._has_ended = made is None
        if made is None:
            return None
        rows, self._epochs = made
        self.num_batches += 1
        if self._pipeline.deal.marks_corpora:
            rows, counts = unmarked(rows, self._pipeline.lengths, len(self.tokens))
            self.tokens = self.tokens + counts
        return rows

    def progress(self, name: str) -> float:
        """Returns a task's epochs in the batches taken; where its documents are not counted, buffers count too."""
        config, deal, begun = self._pipeline.config, self._pipeline.deal, float(self.first_epochs.get(name, 0))
        if self._has_ended:
            return float(max(config.num_epochs or 0, begun + 1))
        if not isinstance(self._pipeline.task, Mixture) and deal.rows is not None and deal.is_exact:
            rows = (self.num_batches - self.batches_before) * config.rows_per_shard
            return min(begun + rows * config.num_shards / deal.rows, max(config.num_epochs or math.inf, begun + 1))
        return self._epochs.get(name, begun)

    def padding(self) -> Rows:
        """Returns a batch's rows, all zeros."""
        num_rows = self._pipeline.config.rows_per_shard
        return {name: np.zeros([num_rows, *shape], np.int32) for name, shape in row_shapes(self.dataset).items()}

    def _make(self) -> Sequence[Made | None]:
        self._keep_state()
        fetched = next(self.dataset, None)
        if fetched is None:
            return [None]
        batches = self.cut(fetched)
        self._num_made += len(batches)
        return list(zip(batches, self._advanced(len(batches)), strict=True))

    def _advanced(self, count: int) -> list[Mapping[str, float]]:
        """Returns the epochs after each of so many batches, which are the last ones that were made."""
        before, passed = self._epochs_made, self.dataset.passed()
        found = dict[str, float]()
        for name, source in self._pipeline.sources.items():
            epochs = passed.get(name)
            if epochs is None:  # beyond a preprocessor in TensorFlow
                read = source.progress(self._pipeline.config.train_split, self.index)
                epochs = self._estimated(name, read, count)
            found[name] = max(epochs, before.get(name, 0.0))
        self._epochs_made = found
        steps = [(name, before.get(name, 0.0), epochs) for name, epochs in found.items()]
        return [{name: first + n / count * (last - first) for name, first, last in steps} for n in range(1, count + 1)]

    def _estimated(self, name: str, read: float, count: int) -> float:
        """Returns the epochs in the batches made, of a task of which `read` epochs were read; 0.0: not known yet.

        A preprocessor reads many documents at once and makes rows of them until it reads again. Before a reading, the
        rows hold about what had been read by then; after it, they go on as before. The last `count` batches were made
        after the reading.
        """
        before, last, number = self._readings.get(name, (self._epochs_made.get(name, 0.0), 0.0, 0))
        if read > last:
            before, last, number = max(last, before), read, self._num_made - count
            self._readings[name] = (before, last, number)
        each = before / number if number > 0 else 0.0
        return min(before + each * (self._num_made - number), last)

    def _keep_state(self) -> None:
        if self._pipeline.is_exact and time.monotonic() > self._kept_at + STATE_SECONDS:
            self.kept_state, self._kept_at = (self._num_made, self.dataset.state()), time.monotonic()

    def cut(self, rows: Rows) -> list[Rows]:
        """Returns the rows as this shard's parts of batches, the last one padded."""
        size = self._pipeline.config.rows_per_shard
        return [
            padded_rows({name: value[start : start + size] for name, value in rows.items()}, size)
            for start in range(0, max(map(len, rows.values()), default=0), size)
        ]

    def skip(self, num_batches: int, epochs: Mapping[str, float]) -> Iterator[None]:
        """Reads a new shard from its beginning, without the first batches, as `resume`; `epochs` are those in them."""
        return self.resume(num_batches, num_batches - self.batches_before, {}, epochs)

    def resume(self, num_batches: int, num_passed: int, rows: Rows, epochs: Mapping[str, float]) -> Iterator[None]:
        """Sets where the data set is: `rows` come before it, and `num_passed` batches after it are left out.

        `epochs` are those after the `num_batches` that were taken. The iterator does the work, and stops after each
        read: shards that share a source must go on together.
        """
        self.num_batches, self._epochs, self._epochs_made = num_batches, epochs, epochs
        parts = self.cut(rows)
        queue: list[Made | None] = list(zip(parts, self._advanced(len(parts)), strict=True))
        self._num_made = num_batches - num_passed + len(queue)
        while num_passed > 0 and (made := self._make()) != [None]:
            queue = [*made[num_passed:]]
            num_passed -= len(made)
            yield
        self.prefetch.start_with(queue)


class Stream(Iterator[dict[int, Rows]], Protocol):
    """Iterates over {shard: rows}: this host's logical shards and their rows of each global batch.

    A data position follows the batches that `next` has returned, not the prefetched ones. `next` and the other calls
    raise InputError if a bad part of the corpus is found during reading.
    """

    def __iter__(self) -> Self:
        return self

    @abc.abstractmethod
    def empty(self) -> dict[int, Rows]:
        """Returns rows of padding, for a host whose corpus ends before another host's."""

    @abc.abstractmethod
    def skipped(self) -> list[tuple[str, str]]:
        """Returns (unit, reason) of each unit that this host skipped, with on_read_failure 'skip'."""

    @abc.abstractmethod
    def epochs(self) -> dict[str, float]:
        """Returns task name -> epochs read for the batches returned so far, a mean over this host's shards."""

    @abc.abstractmethod
    def tokens(self) -> dict[str, float]:
        """Returns task name -> tokens trained, of a mixture's tasks; all shards', if these are like the others."""

    @abc.abstractmethod
    def failure(self) -> BaseException | None:
        """Returns the error with which prefetching has failed: `next` raises it when the rows before it are used up."""

    @abc.abstractmethod
    def positions(self) -> dict[int, bytes]:
        """Returns each shard's data position after the batches returned so far, also where prefetching has failed."""

    @abc.abstractmethod
    def check(self, positions: Mapping[int, bytes]) -> None:
        """Opens all data positions fully, and changes nothing.

        Raises InputError as `begin` does, and PositionError, a ValueError, for damaged ones.
        """

    @abc.abstractmethod
    def begin(self, step: int, positions: Mapping[int, bytes] | None = None) -> None:
        """Sets a new stream to the batch after a step: by data positions, or the beginning of the data.

        Of the positions of all shards this host's are applied. Raises InputError if one is missing or belongs to other
        data, and if the corpus has changed with `on_changed_corpus` 'refuse'; with 'new_epoch' a new pass over the
        files of now begins.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what reads."""
