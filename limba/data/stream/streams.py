"""The iterator of global batches: resumable to the row, and the same whatever the number of hosts.

A run has a fixed number of logical shards, `num_data_shards`. Each is read separately, with its own random numbers
(`shard.py`). A global batch takes `rows_per_shard` rows from each, in the order of the shards. A host reads the
shards whose rows are on its devices (`limba/training/placement.py`), and saves their data positions (`positions.py`).

The words of this folder. A row is what the network reads at once, of one document or several. A shard is one of
`num_data_shards` sequences of rows, and each batch takes `rows_per_shard` rows of it. A place says how far a shard has
been read (`ShardPlace`). A data position is a place with the files that it belongs to, as a checkpoint keeps it
(`positions.py`). A process reads whole shards, so no row depends on the number of processes. The deal
(`limba/data/deal.py`) says how a corpus's documents are divided among the shards: in whole units, or one by one.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, Self

import numpy as np

from limba.config import ConfigError, DataConfig, InputError
from limba.data.dataset import Document
from limba.data.deal import WHOLE_UNITS, Deal
from limba.data.packing import matrices, model_features
from limba.data.registry import Mixture
from limba.data.stream.ahead import Ahead, num_threads
from limba.data.stream.memory import check_stream
from limba.data.stream.names import BatchDocuments
from limba.data.stream.positions import DataPositions, Position, Resumption
from limba.data.stream.shard import Recipe, Rows, Shard, ShardPlace
from limba.data.tasks import Provider
from limba.data.vocabulary.shifted import row_ids_of

logger = logging.getLogger(__name__)

SECONDS_TO_END = 10
_END = object()


class Stream(Iterator[dict[int, Rows]], Protocol):
    """Iterates over {shard: rows}: this host's logical shards and their rows of each global batch.

    A data position follows the batches that `next` has returned, not those made ahead. `next` and the other calls raise
    InputError if a bad part of the corpus is found during reading.
    """

    def __iter__(self) -> Self:
        return self

    @abc.abstractmethod
    def empty(self) -> dict[int, Rows]:
        """Returns rows of padding, for a host whose corpus ends before another host's."""

    @abc.abstractmethod
    def documents(self) -> BatchDocuments:
        """Returns the documents of each row of the batch that `next` returned last."""

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
        """Returns the error with which reading ahead failed: `next` raises it when the rows before it are used up."""

    @abc.abstractmethod
    def positions(self) -> dict[int, Position]:
        """Returns each shard's data position after the batches returned so far, also where reading has failed."""

    @abc.abstractmethod
    def check(self, positions: Mapping[int, Position]) -> None:
        """Opens all data positions fully, and changes nothing.

        Raises InputError as `begin` does, and PositionError, a ValueError, for damaged ones.
        """

    @abc.abstractmethod
    def begin(self, step: int, positions: Mapping[int, Position] | None = None) -> None:
        """Sets a new stream to the batch after a step: by data positions, or the beginning of the data.

        Of the positions of all shards this host's are applied. Raises InputError if one is missing or belongs to other
        data, and if the corpus has changed with `on_changed_corpus` 'refuse'; with 'new_epoch' a new pass over the
        files of now begins.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what reads."""


class TrainStream(Stream):
    """The stream of one process, which reads its shards with threads.

    With `num_epochs` it ends with its last shard; a shard that ends earlier gives padding.
    """

    def __init__(
        self,
        task: Provider,
        lengths: Mapping[str, int],
        config: DataConfig,
        shards: Sequence[int],
        num_processes: int = 1,
        deal: Deal = WHOLE_UNITS,
    ):
        check_stream(config, lengths, len(shards))
        self._recipe = Recipe(task, dict(lengths), config, deal)
        self._positions = DataPositions(self._recipe)
        # The files as they are now, for the data positions: read beside the first batches.
        self._looking = threading.Thread(target=self._look_at_files, args=[list(shards)], daemon=True)
        self._looking.start()
        self._pool = ThreadPoolExecutor(max_workers=num_threads(len(shards), num_processes))
        self._shards = [Ahead(Shard(self._recipe, index), ShardPlace.beginning(), self._pool) for index in shards]
        self._ended = set[int]()
        self._documents: dict[int, list[Sequence[Document]]] = {}

    @property
    def batch(self) -> int:
        """The number of the batch that `next` returned last, from 1 on."""
        return max(ahead.place.batch for ahead in self._shards)

    def wait(self) -> None:
        """Waits until all shards have their next batch; an error comes before any of them has moved on."""
        self._request()
        for ahead in self._shards:
            ahead.wait()

    def __next__(self) -> dict[int, Rows]:
        self.wait()
        rows_of_shards: dict[int, Rows] = {}
        self._documents = {}
        for ahead in self._shards:
            index = ahead.shard.index
            made = ahead.take()
            if made is None:
                self._ended.add(index)
                rows_of_shards[index] = ahead.shard.padding()
            else:
                rows_of_shards[index] = made.rows
                self._documents[index] = made.documents
        if len(self._ended) == len(self._shards):
            raise StopIteration
        self._request()
        return rows_of_shards

    def next_with_documents(self) -> tuple[dict[int, Rows], dict[int, list[Sequence[Document]]]]:
        """Returns the rows of the next batch and the documents of each: what a reader process is asked for."""
        rows = next(self)
        return rows, self._documents

    def _request(self) -> None:
        for ahead in self._shards:
            ahead.request()

    def empty(self) -> dict[int, Rows]:
        return {ahead.shard.index: ahead.shard.padding() for ahead in self._shards}

    def documents(self) -> BatchDocuments:
        return BatchDocuments(self._documents, self._recipe)

    def skipped(self) -> list[tuple[str, str]]:
        skipped: list[tuple[str, str]] = []
        for source in self._recipe.sources.values():
            skipped += source.skipped
        return skipped

    def epochs(self) -> dict[str, float]:
        of_shards = []
        for ahead in self._shards:
            has_ended = ahead.shard.index in self._ended
            of_shards.append(ahead.shard.end_of(ahead.place) if has_ended else ahead.place.epochs)
        sources = self._recipe.sources
        return {name: float(np.mean([by_task.get(name, 0.0) for by_task in of_shards])) for name in sources}

    def tokens(self) -> dict[str, float]:
        if not isinstance(self._recipe.task, Mixture):
            return {}
        scale = self._recipe.config.num_shards / len(self._shards)
        names = [part.name for part in self._recipe.parts]
        return {name: scale * sum(ahead.place.tokens.get(name, 0) for ahead in self._shards) for name in names}

    def failure(self) -> BaseException | None:
        return next((ahead.failure for ahead in self._shards if ahead.failure is not None), None)

    def _look_at_files(self, shards: list[int]) -> None:
        with contextlib.suppress(InputError, RuntimeError):  # the first data position raises it again
            self._positions.look(shards)

    def positions(self) -> dict[int, Position]:
        self._looking.join()
        return {ahead.shard.index: self._positions.of_shard(ahead.shard.index, ahead.place) for ahead in self._shards}

    def check(self, positions: Mapping[int, Position]) -> None:
        self._resumption(positions)

    def _resumption(self, positions: Mapping[int, Position]) -> Resumption:
        missing = sorted({ahead.shard.index for ahead in self._shards} - set(positions))
        if missing:
            raise ConfigError(
                "DataConfig.num_data_shards",
                f"has changed: the checkpoint has no data position for shard {missing[0]}; set the earlier value.",
            )
        return self._positions.check(positions)

    def begin(self, step: int, positions: Mapping[int, Position] | None = None) -> None:
        if positions is None:
            return
        resumption = self._resumption(positions)
        if self._shards and self._shards[0].shard.index == 0:  # one host's one process logs them
            for note in resumption.notes:
                logger.warning(note)
        self._resume(resumption)

    def read_on(self, positions: Mapping[int, Position]) -> None:
        """Sets a new stream to positions of a run that has not ended; they may be of some shards only.

        Raises InputError for a corpus that has changed since the run looked at it.
        """
        self._resume(self._positions.check_unchanged(positions))

    def _resume(self, resumption: Resumption) -> None:
        aheads: list[Ahead] = []
        passing: list[Iterator[None]] = []
        for ahead in self._shards:
            shard = ahead.shard
            saved = resumption.saved[shard.index]
            place = saved.place
            skip = saved.skip
            if resumption.new_pass is not None:
                place = ShardPlace.of_pass(resumption.new_pass, place._replace(batch=saved.batch))
                skip = 0
            elif not self._recipe.is_exact:  # it is read again from the beginning
                skip = saved.batch - place.batches_before
                place = place.begun()
            following = Ahead(shard, place, self._pool)
            aheads.append(following)
            passing.append(following.pass_over(skip))
        self._shards = aheads
        while passing:
            # All shards go on by one read, so that none is far ahead of another one in a source that they share.
            has_more = self._pool.map(lambda part: next(part, _END) is None, passing)
            passing = [part for part, more in zip(passing, has_more, strict=True) if more]

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._looking.join(SECONDS_TO_END)


def feature_shapes(task: Provider, lengths: Mapping[str, int], config: DataConfig) -> dict[str, tuple[int, int]]:
    """Returns the shapes of a global batch's model features; no text is read."""
    _, widths = Recipe(task, lengths, config).rows(0)
    row = matrices([], widths, 1)
    row_ids = row_ids_of(task.output_features["targets"].vocabulary)
    features = model_features(row, config.sequence_length, config.num_predicted, row_ids)
    return {name: (config.batch_size, value.shape[1]) for name, value in features.items()}
