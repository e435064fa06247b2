"""One shard: its rows of each batch, and a place after each, from which it is read on."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from limba.config import DataConfig
from limba.data import bridge, user_code
from limba.data.dataset import TOKENS, Dataset, Document, Item, Mixed, Place, rows_per_block
from limba.data.deal import WHOLE_UNITS, Deal
from limba.data.draws import Draws
from limba.data.objectives.choice import examples_of, is_without_tensorflow
from limba.data.objectives.supervised import is_supervised
from limba.data.packing import matrices, rows_of
from limba.data.registry import Mixture, Task
from limba.data.sources.first_example import FirstExample
from limba.data.sources.order import Reading
from limba.data.sources.units import UnitSource
from limba.data.tasks import Provider, advice_on, failure_of_code, parts_of, unit_sources

# {"inputs": int32 [B, Li], "targets": int32 [B, Lt]}, zero where padded; segment ids beside them when packed
Rows = dict[str, np.ndarray]
# task -> the epoch with which its first pass over the current files begins; empty unless the corpus has changed
FirstEpochs = Mapping[str, int]

FETCHED_ROWS = 32  # rows that are made at once
ROWS_AHEAD = 64  # of a shard, at least a batch
MOST_WITHOUT_ROW = 10_000  # documents of which preprocessors make none
MOST_IN_TENSORFLOW = 100_000  # the same in TensorFlow, whose preprocessors may hold examples back to shuffle them
# Tokens that one call of the tokenizer makes for a shard. Each call finds the tokenizer's tables out of the processor's
# cache, and many tokens of many shards fill it: so a call makes those of the next rows, and more where shards are few,
# but not so many that a step waits for it.
MOST_TOKENS_OF_ROWS = 1 << 17
TOKENS_OF_ALL_SHARDS = 1 << 18
MOST_TIMES_THE_ROWS = 4


class ShardPlace(NamedTuple):
    """Where a shard is: the batches given so far, what was read for them, and the place of its rows.

    `batches_before` and `tokens_before` come from passes over other files than now. `epochs` and `tokens` are by
    task; tokens are counted in a mixture. `marks` are, of each source of others that is dealt, numbers of documents
    that were taken and their checksums, in turn.
    """

    batch: int
    batches_before: int
    first_epochs: FirstEpochs
    epochs: Mapping[str, float]
    tokens: Mapping[str, int]
    rows: Place
    marks: Mapping[str, Sequence[int]] = {}
    tokens_before: Mapping[str, int] = {}

    @staticmethod
    def beginning() -> ShardPlace:
        return ShardPlace(0, 0, {}, {}, {}, None)

    @staticmethod
    def of_pass(first_epochs: FirstEpochs, before: ShardPlace) -> ShardPlace:
        """Returns the beginning of a pass over other files, from these epochs on."""
        return ShardPlace(
            batch=before.batch,
            batches_before=before.batch,
            first_epochs=first_epochs,
            epochs=first_epochs,
            tokens=before.tokens,
            rows=None,
            tokens_before=before.tokens,
        )

    def begun(self) -> ShardPlace:
        """Returns the beginning of the pass, for a shard that is read again up to this place."""
        return self._replace(batch=self.batches_before, tokens=self.tokens_before, rows=None)


class Made(NamedTuple):
    """A shard's rows of one batch: the documents of each row, and the place after them."""

    rows: Rows
    documents: list[Sequence[Document]]
    place: ShardPlace


@dataclass(frozen=True)
class Recipe:
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
        """Task name -> its source, of those whose places can be saved."""
        return unit_sources(self.task)

    @property
    def is_exact(self) -> bool:
        """True if all places can be saved; else a resumed shard is read again from its beginning."""
        return len(self.sources) == len(self.parts)

    @property
    def batches_at_once(self) -> int:
        return max(1, FETCHED_ROWS // self.config.rows_per_shard)

    def rows(self, shard: int, first_epochs: FirstEpochs | None = None) -> tuple[Dataset, dict[str, int]]:
        """Returns (the shard's rows, the lengths of their features).

        A new pass over a changed corpus begins with `first_epochs`, and draws other masks.
        """
        first_epochs = first_epochs or {}
        config = self.config
        parts = [
            self._examples(number, part, shard, first_epochs.get(part.name, 0))
            for number, part in enumerate(self.parts)
        ]
        dataset = parts[0]
        if isinstance(self.task, Mixture):
            spec = dict.fromkeys(self.lengths, TOKENS)
            same_features = [part.map(self._of_mixture, spec) for part in parts]
            rates = np.array([self.task.get_rate(part) for part in self.parts])
            draws = Draws(config.seed, self.task.name, shard, max(first_epochs.values(), default=0))
            dataset = Mixed(same_features, (rates / rates.sum()).tolist(), draws)
        return rows_of(dataset, self.lengths, config.pack)

    def _of_mixture(self, example: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the features that all tasks of a mixture have."""
        return {name: example[name] for name in self.lengths}

    def _examples(self, number: int, part: Task, shard: int, first_epoch: int) -> Dataset:
        """Returns one task's examples in one shard, repeated for `num_epochs` or endlessly.

        All shards have the same draws for the order of documents, because they divide one order. Each shard has its own
        for the random choices of its preprocessors, such as masks.
        """
        config = self.config
        deal = self.deal
        draws = Draws(config.seed, part.name, shard, first_epoch)
        buffered = config.shuffle_buffer
        rows_at_once = rows_per_block(len(self.parts))
        most_documents = self._most_without_row(part, rows_at_once)
        if source := self.sources.get(part.name):
            order = (config.train_split, shard, config.num_shards, config.seed, config.shuffle)
            reading = Reading(*order, config.num_epochs, first_epoch, number, part.name)
            counts = deal.counts.get(part.name)
            offset = deal.offset(part.name, config.num_epochs) if counts else 0
            documents = source.dataset(reading, counts, offset)
            documents.tokens_at_once = self._tokens_at_once
            first = FirstExample(part.name, source.name, shard, most_documents)
            documents.first_example = first
        else:  # a source of others may be slow, or shared by the shards: no document is read before it is due
            seed = Draws(config.seed, part.name).seed_of_seqio(number=1)
            named = f"The source of task {part.name}"
            first = FirstExample(part.name, named, shard, most_documents, self._examples_made[part.name])
            documents = self._foreign_documents(part, shard, seed, first, number)
            buffered = buffered or self._buffer_of(part)
        documents.rows_per_block = rows_at_once
        examples = first.of(examples_of(part, self.lengths, documents, draws))
        return examples.shuffle(buffered, draws) if config.shuffle and buffered else examples

    def _most_without_row(self, part: Task, rows_at_once: int) -> int:
        """Returns after how many documents a task must have made a row."""
        is_plain = part.name in self.sources and is_without_tensorflow(part)
        most = MOST_WITHOUT_ROW if is_plain else MOST_IN_TENSORFLOW
        if is_supervised(part):
            return most
        # Rows are made of blocks of tokens, and a document may have one token.
        return max(most, 2 * rows_at_once * sum(self.lengths.values()))

    @property
    def _tokens_at_once(self) -> int:
        """The tokens that one call of the tokenizer makes for a task in a shard."""
        num_rows = max(ROWS_AHEAD, self.config.rows_per_shard)
        of_rows = min(num_rows * sum(self.lengths.values()), MOST_TOKENS_OF_ROWS)
        of_shard = max(of_rows, TOKENS_OF_ALL_SHARDS // self.config.num_shards)
        return min(of_shard, MOST_TIMES_THE_ROWS * of_rows) // len(self.parts)

    @functools.cached_property
    def _examples_made(self) -> defaultdict[str, threading.Event]:
        """Task with a source of others -> whether a shard of this process has an example: few may have one early."""
        return defaultdict(threading.Event)

    @functools.cached_property
    def opened(self) -> bridge.Opened:
        """The sources that are opened once for all shards of this process."""
        return bridge.Opened()

    def _buffer_of(self, part: Task) -> int | None:
        """Returns the size of a shard's shuffle buffer that a task of seqio asks for.

        It is meant for one reading of the source. Shards that share one divide it too: else the first batch would wait
        until num_data_shards buffers are full.
        """
        size = part.shuffle_buffer_size
        if size is None or part.name not in self.opened:
            return size
        return -(-size // self.config.num_shards)

    def _foreign_documents(self, part: Task, shard: int, seed: int, first: FirstExample, number: int) -> Dataset:
        """Returns a shard's documents of a source that is not ours."""
        failure = functools.partial(failure_of_code, part)
        with user_code.of_task(part, advice_on(part)):
            return self.opened.documents(part, self.config, shard, seed, failure, first, number)


class Shard:
    """One shard of a recipe. It has no state: `read` gives its batches from any place on."""

    def __init__(self, recipe: Recipe, index: int):
        self.recipe = recipe
        self.index = index
        self._dataset, self._widths = recipe.rows(index)

    def read(self, place: ShardPlace) -> Iterator[Made]:
        """Yields the shard's rows of each batch: endlessly, or up to its end, with padding in the last one."""
        recipe = self.recipe
        config = self.recipe.config
        size = config.rows_per_shard
        is_endless = config.num_epochs is None
        dataset = self._dataset
        if place.first_epochs:
            dataset, _ = recipe.rows(self.index, place.first_epochs)
        recipe.opened.expect(self.index, place.marks)
        items = dataset.read(place.rows)
        while group := list(itertools.islice(items, size)):
            if is_endless and len(group) < size:
                return
            rows = matrices([item.value for item in group], self._widths, size)
            documents = [item.documents for item in group]
            is_last = len(group) < size
            place = place._replace(
                batch=place.batch + 1,
                epochs=self.end_of(place) if is_last else self._epochs(place, documents),
                tokens=self._tokens(place, rows, group),
                rows=group[-1].place if recipe.is_exact else None,
                marks=recipe.opened.marks(self.index),
            )
            yield Made(rows, documents, place)

    def padding(self) -> Rows:
        """Returns a batch's rows, all zeros."""
        return matrices([], self._widths, self.recipe.config.rows_per_shard)

    def end_of(self, place: ShardPlace) -> dict[str, float]:
        """Returns the epochs of each task when the shard has ended."""
        num_epochs = self.recipe.config.num_epochs or 0
        return {name: float(max(num_epochs, place.first_epochs.get(name, 0) + 1)) for name in self.recipe.sources}

    def _epochs(self, before: ShardPlace, documents: Sequence[Sequence[Document]]) -> dict[str, float]:
        """Returns each task's epochs up to the last document of these rows of the next batch."""
        recipe = self.recipe
        deal = self.recipe.deal
        epochs = {name: before.epochs.get(name, float(before.first_epochs.get(name, 0))) for name in recipe.sources}
        if not isinstance(recipe.task, Mixture) and deal.rows is not None and deal.is_exact:
            num_rows = (before.batch + 1 - before.batches_before) * recipe.config.rows_per_shard
            for name in epochs:
                begun = float(before.first_epochs.get(name, 0))
                last = max(recipe.config.num_epochs or math.inf, begun + 1)
                epochs[name] = min(begun + num_rows * recipe.config.num_shards / deal.rows, last)
            return epochs
        is_of_one = not isinstance(recipe.task, Mixture) and not recipe.config.pack
        for of_row in documents:
            for document in of_row[-1:] if is_of_one else of_row:
                name = recipe.parts[document.task].name
                if name in epochs:  # a source of others has none
                    epochs[name] = max(epochs[name], document.epochs)
        return epochs

    def _tokens(self, before: ShardPlace, rows: Rows, items: Sequence[Item[Any]]) -> Mapping[str, int]:
        """Returns the tokens of each task of a mixture up to these rows of the next batch."""
        recipe = self.recipe
        if not isinstance(recipe.task, Mixture):
            return {}
        counts = np.zeros(len(recipe.parts), np.int64)
        for name in recipe.lengths:
            # The number of its example for each token, from 1; a row that is not packed has one.
            segments = rows[f"{name}_segment_ids"] if recipe.config.pack else rows[name] != 0
            for of_row, item in zip(segments, items, strict=False):
                sizes = np.bincount(of_row, minlength=len(item.tasks) + 1)[1:]
                np.add.at(counts, list(item.tasks), sizes)
        return {
            part.name: before.tokens.get(part.name, 0) + int(count)
            for part, count in zip(recipe.parts, counts, strict=True)
        }
