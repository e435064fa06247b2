"""One logical shard: the pipeline from its documents to its rows of each batch, and how far it has read."""

from __future__ import annotations

import abc
import functools
import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, Self, cast

import numpy as np

from limba.config import DataConfig, InputError
from limba.data import bridge
from limba.data.dataset import TOKENS, Dataset, Mixed, State
from limba.data.deal import WHOLE_UNITS, Deal, marked, unmarked
from limba.data.objectives.choice import examples_of
from limba.data.packing import batched
from limba.data.registry import Mixture, Task
from limba.data.sources.order import Reading
from limba.data.sources.units import UnitSource
from limba.data.stream.prefetch import Prefetch
from limba.data.tasks import Provider, failure_of_function, parts_of, unit_sources

# {"inputs": int32 [B, Li], "targets": int32 [B, Lt]}, zero where padded; segment ids beside them when packed
Rows = dict[str, np.ndarray]
# task -> the epoch with which its first pass over the current files begins; empty unless the corpus has changed
FirstEpochs = Mapping[str, int]
Point = tuple[float, float]  # rows that a shard has made, and epochs that it has read for them
# (task, lengths, documents, seed) -> examples
Follow = Callable[[Task, Mapping[str, int], Dataset, int], Dataset]

FETCHED_ROWS = 32  # rows that are made at once
PREFETCHED_ROWS = 64  # prefetched rows per shard, at least a batch; a saved data position holds them
ROWS_MEASURED = 4 * FETCHED_ROWS  # for which a shard has read on, before they tell the rows of an epoch
BUFFERS_MEASURED = 4  # times what was read at first that has been read since
STATE_SECONDS = 2.0  # between two states that are kept for the case that reading fails: some hold a buffer


def _seed(*parts: object) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFF_FFFF


def _seqio_documents(
    task: Task, split: str, index: int, num_shards: int, seed: int, shuffle: bool, num_epochs: int | None
) -> Dataset:
    """Returns the epochs of a shard from a seqio source, divided by files or, if these are too few, by rows."""
    import seqio

    shard = seqio.ShardInfo(index, num_shards)
    try:
        by_source = len(task.source.list_shards(split)) >= num_shards or task.source.supports_arbitrary_sharding
        documents = task.source.get_dataset(split, shuffle=shuffle, seed=seed, shard_info=shard if by_source else None)
    except (ValueError, NotImplementedError) as error:
        raise InputError(
            f"Task {task.name} cannot be read ({str(error).strip().rstrip('.')}); correct the task, or give it a"
            " source of limba.data.sources (TfdsSource reads TFDS's ArrayRecord)."
        ) from error
    own = documents if by_source else documents.shard(num_shards, index)
    return bridge.OfTensorflow(own.repeat(num_epochs), failure=lambda error: failure_of_function(task, error))


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
    def is_mixture(self) -> bool:
        return isinstance(self.task, Mixture)

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
        return batched(dataset, self.lengths, self.rows_per_fetch, whole=config.num_epochs is None, packed=config.pack)

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
        else:
            documents = _seqio_documents(part, *order, config.num_epochs)
            buffered = buffered or part.shuffle_buffer_size
        examples = (follow or examples_of)(part, self.lengths, documents, own_seed)
        return examples.shuffle(buffered, own_seed) if config.shuffle and buffered else examples


def row_shapes(dataset: Dataset) -> dict[str, list[int]]:
    """Returns the shapes of one row's features, without the axis of rows."""
    return {name: [size or 0 for size in part.shape[1:]] for name, part in dataset.spec.items()}


def padded_rows(rows: Rows, num_rows: int) -> Rows:
    """Returns the rows, padded with rows of zeros to `num_rows`."""
    if all(len(value) == num_rows for value in rows.values()):
        return rows
    return {name: np.pad(value, [(0, num_rows - len(value)), (0, 0)]) for name, value in rows.items()}


class Epochs:
    """The epochs of each task that one shard has read for its rows, and those that it has trained.

    They are noted as batches are made, and told as of the batches taken.
    """

    def __init__(self, pipeline: Pipeline, shard: int, first_epochs: FirstEpochs):
        self._pipeline, self._shard, self.first = pipeline, shard, dict(first_epochs)
        self._counted = [name for name in pipeline.sources if name in pipeline.deal.counts]
        # Task -> epochs, of those that are dealt evenly: after the last batch taken, and after each one made.
        self.taken: Mapping[str, float] = {}
        self._made: deque[tuple[Mapping[str, float], Mapping[str, Point]]] = deque()
        self._last_made: Mapping[str, float] = {}
        # Task -> times at which its source read on, as the rows were used up: the first one, one after a quarter to
        # half of the rows since, the next such one, the last one. Buffers that fill slowly are full by the second.
        self.pace: dict[str, tuple[Point, Point, Point, Point]] = {}
        self.shown: dict[str, float] = {}  # the epochs that were returned last: a better estimate is not below them
        self._has_read_on: set[str] = set()

    def note(self, num_batches: int, num_rows: float) -> None:
        """Notes the progress after each of so many batches made, which the source has read all at once.

        `num_rows` are about those that were made when it went on.
        """
        if not self._counted:
            return
        sources, split = self._pipeline.sources, self._pipeline.config.train_split
        read = {name: sources[name].progress(split, self._shard) for name in self._counted}
        before = {name: self._last_made.get(name, self.first.get(name, 0)) for name in read}
        went_on = {name for name in read if read[name] > before[name]}
        points = {name: (num_rows, before[name]) for name in went_on & self._has_read_on}
        self._has_read_on |= went_on
        for number in range(1, num_batches + 1):
            share = number / num_batches
            epochs = {name: before[name] + share * (read[name] - before[name]) for name in read}
            self._made.append((epochs, points if number == 1 else {}))
        self._last_made = read

    def take(self) -> None:
        """Moves on by a batch that is taken."""
        self.taken, points = self._made.popleft() if self._made else (self.taken, {})
        for name, point in points.items():
            first, early, later, _ = self.pace.get(name, (point,) * 4)
            if point[0] - first[0] >= 2 * (later[0] - first[0]):
                early, later = later, point
            self.pace[name] = first, early, later, point

    def put_back(self, before: Mapping[str, float]) -> None:
        """Undoes the last `take`, from `before`."""
        if self._counted:
            self._made.appendleft((self.taken, {}))
        self.taken = before

    def leave_out(self, num_batches: int) -> None:
        """Forgets the first batches made, which nobody takes."""
        for _ in range(min(num_batches, len(self._made))):
            self._made.popleft()

    def resume(self, epochs: Mapping[str, float], num_queued: int) -> None:
        """Sets the epochs after the batches taken, and after those that are made already."""
        self.taken = self._last_made = epochs
        self._made.extend((epochs, {}) for _ in range(num_queued))

    def read(self, name: str, rows: int, has_ended: bool) -> float:
        """Returns a task's epochs in the rows taken; where its documents are not counted, the epochs read."""
        pipeline, begun = self._pipeline, float(self.first.get(name, 0))
        if name not in self._counted:
            return pipeline.sources[name].progress(pipeline.config.train_split, self._shard)
        if has_ended:
            return float(max(pipeline.config.num_epochs or 0, begun + 1))
        if not pipeline.is_mixture and pipeline.deal.rows is not None and pipeline.deal.is_exact:
            return self.trained(name, rows, has_ended)
        return self.taken.get(name, begun)

    def trained(self, name: str, rows: int, has_ended: bool) -> float:
        """Returns a task's epochs in the rows taken; nan where they are not known.

        Documents that are read wait in buffers: of shuffles, of blocks of tokens, of rows that are packed. So where the
        rows of an epoch are not known beforehand, they are measured: between two times at which the source read on.
        """
        config, deal, begun = self._pipeline.config, self._pipeline.deal, float(self.first.get(name, 0))
        last = max(config.num_epochs or math.inf, begun + 1)
        if has_ended and config.num_epochs is not None:
            return last
        if not self._pipeline.is_mixture and deal.rows is not None:
            return min(begun + rows * config.num_shards / deal.rows, last)
        first, (made, read), _, (made_now, read_now) = self.pace.get(name, ((0.0, 0.0),) * 4)
        # The first read filled the buffers. Threads empty and fill them again, at any time: an error of this size.
        if rows and (made_now - made < ROWS_MEASURED or read_now - first[1] < BUFFERS_MEASURED * (first[1] - begun)):
            return math.nan
        found = begun + (rows and rows * (read_now - read) / (made_now - made))
        self.shown[name] = max(min(found, last), self.shown.get(name, 0.0))
        return self.shown[name]


class Shard:
    """One logical shard: `take` returns its rows of the next batch, which the pool's threads prefetch.

    `num_batches` counts the batches taken, `batches_before` those of passes over other files. A data position saves the
    state of `dataset` and the prefetched batches.
    """

    def __init__(self, pipeline: Pipeline, index: int, pool: ThreadPoolExecutor):
        self._pipeline, self.index, self.num_batches, self.batches_before = pipeline, index, 0, 0
        self.epochs = Epochs(pipeline, index, {})
        self.dataset = pipeline.dataset(index)
        self._has_ended = False
        self.tokens = np.zeros(len(pipeline.parts), np.int64)  # of each task of a mixture, in the batches taken
        self._taken: tuple[Rows | None, Mapping[str, float], np.ndarray] = (None, {}, self.tokens)
        self._num_made = 0  # batches, as `num_batches` counts them
        # The state when so many batches were made; after a failure it is the last one.
        self.kept_state: tuple[int, State] | None = None
        self._kept_at = -STATE_SECONDS
        num_batches = max(1, PREFETCHED_ROWS // pipeline.config.rows_per_shard)
        self.prefetch: Prefetch[Rows | None] = Prefetch(self._make, pool, num_batches)

    def begin_pass(self, first_epochs: FirstEpochs, batches_before: int) -> None:
        """Reads from these epochs on, after `batches_before` batches of other files."""
        self.num_batches = self._num_made = self.batches_before = batches_before
        self.epochs = Epochs(self._pipeline, self.index, first_epochs)
        self.dataset = self._pipeline.dataset(self.index, first_epochs)

    def take(self) -> Rows | None:
        """Returns the next batch's rows, or None at the end of the shard."""
        rows = self.prefetch.take()
        self._has_ended, self._taken = rows is None, (rows, self.epochs.taken, self.tokens)
        if rows is not None:
            self.num_batches += 1
            self.epochs.take()
            if self._pipeline.deal.marks_corpora:
                rows, counts = unmarked(rows, self._pipeline.lengths, len(self.tokens))
                self.tokens = self.tokens + counts
        return rows

    def put_back(self) -> None:
        """Undoes the last `take`."""
        rows, before, self.tokens = self._taken
        if rows is not None:
            self.num_batches -= 1
            self.epochs.put_back(before)
        self._has_ended = False
        self.prefetch.put_back(rows)

    @property
    def _rows_taken(self) -> int:
        return (self.num_batches - self.batches_before) * self._pipeline.config.rows_per_shard

    def progress(self, name: str) -> float:
        """Returns a task's epochs in the batches taken; where its documents are not counted, the epochs read."""
        return self.epochs.read(name, self._rows_taken, self._has_ended)

    def trained(self, name: str) -> float:
        """Returns a task's epochs in the batches taken; nan where they are not known."""
        return self.epochs.trained(name, self._rows_taken, self._has_ended)

    def padding(self) -> Rows:
        """Returns a batch's rows, all zeros."""
        num_rows = self._pipeline.config.rows_per_shard
        return {name: np.zeros([num_rows, *shape], np.int32) for name, shape in row_shapes(self.dataset).items()}

    def _make(self) -> Sequence[Rows | None]:
        self._keep_state()
        fetched = next(self.dataset, None)
        if fetched is None:
            return [None]
        batches = self.cut(fetched)
        self._num_made += len(batches)
        num_rows = self._pipeline.config.rows_per_shard
        self.epochs.note(len(batches), (self._num_made - len(batches) / 2 - self.batches_before) * num_rows)
        return batches

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

    def skip(self, num_batches: int, epochs: Mapping[str, float]) -> None:
        """Reads a new shard from its beginning, without the first batches; `epochs` are those in them."""
        self.resume(num_batches, num_batches - self.batches_before, {}, epochs)

    def resume(self, num_batches: int, num_passed: int, rows: Rows, epochs: Mapping[str, float]) -> None:
        """Sets where the data set is: `rows` come before it, and `num_passed` batches after it are left out.

        `epochs` are those after the `num_batches` that were taken.
        """
        self.num_batches, queue = num_batches, self.cut(rows)
        self._num_made = num_batches - num_passed + len(queue)
        self.epochs.resume(epochs, len(queue))
        while num_passed > 0 and (made := self._make()) != [None]:
            queue = cast(list[Rows], made[num_passed:])
            self.epochs.leave_out(len(made[:num_passed]))
            num_passed -= len(made)
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
        """Returns task name -> epochs trained, a mean over this host's shards; nan where they are not known."""

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
