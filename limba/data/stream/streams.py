"""The iterator of global batches: resumable to the row, and the same whatever the number of hosts.

A run has a fixed number of logical shards, `num_data_shards`. Each is a separate pipeline with its own seed
(`shard.py`). A global batch takes `rows_per_shard` rows from each, in the order of the shards. A host reads the
shards whose rows are on its devices (`limba/training/placement.py`), and saves their data positions (`positions.py`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from limba.config import ConfigError, DataConfig, InputError
from limba.data.deal import WHOLE_UNITS, Deal
from limba.data.packing import model_features
from limba.data.stream.memory import check_stream
from limba.data.stream.positions import DataPositions, Resumption
from limba.data.stream.shard import Pipeline, Rows, Shard, Stream, num_threads, row_shapes
from limba.data.tasks import Provider
from limba.data.vocabulary.stream import row_ids_of

logger = logging.getLogger(__name__)

SECONDS_TO_END = 10
_END = object()


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
        self._pipeline = Pipeline(task, dict(lengths), config, deal)
        self._positions = DataPositions(self._pipeline)
        # The files as they are now, for the data positions: read beside the first batches.
        self._looking = threading.Thread(target=self._look_at_files, args=[list(shards)], daemon=True)
        self._looking.start()
        self._pool = ThreadPoolExecutor(max_workers=num_threads(len(shards), num_processes))
        self.shards = [Shard(self._pipeline, index, self._pool) for index in shards]

    def wait(self) -> None:
        """Waits until all shards have their next batch; an error comes before any of them has moved on."""
        self._request()
        for shard in self.shards:
            shard.prefetch.wait()

    def __next__(self) -> dict[int, Rows]:
        self.wait()
        rows = [shard.take() for shard in self.shards]
        if all(part is None for part in rows):
            raise StopIteration
        self._request()
        pairs = zip(self.shards, rows, strict=True)
        return {shard.index: shard.padding() if part is None else part for shard, part in pairs}

    def _request(self) -> None:
        for shard in self.shards:
            shard.prefetch.request()

    def empty(self) -> dict[int, Rows]:
        return {shard.index: shard.padding() for shard in self.shards}

    def skipped(self) -> list[tuple[str, str]]:
        return [found for source in self._pipeline.sources.values() for found in source.skipped]

    def epochs(self) -> dict[str, float]:
        means = ((name, np.mean([shard.progress(name) for shard in self.shards])) for name in self._pipeline.sources)
        return {name: float(mean) for name, mean in means}

    def tokens(self) -> dict[str, float]:
        pipeline = self._pipeline
        if not pipeline.deal.marks_corpora:
            return {}
        sums = np.sum([shard.tokens for shard in self.shards], axis=0) * (pipeline.config.num_shards / len(self.shards))
        return {part.name: float(tokens) for part, tokens in zip(pipeline.parts, sums, strict=True)}

    def failure(self) -> BaseException | None:
        return next((failure for shard in self.shards if (failure := shard.prefetch.failure) is not None), None)

    def _look_at_files(self, shards: list[int]) -> None:
        with contextlib.suppress(InputError, RuntimeError):  # the first data position raises it again
            self._positions.look(shards)

    def positions(self) -> dict[int, bytes]:
        indices = [shard.index for shard in self.shards]
        self._looking.join()
        return dict(zip(indices, self._pool.map(self._positions.save, self.shards), strict=True))

    def check(self, positions: Mapping[int, bytes]) -> None:
        self._resumption(positions)

    def _resumption(self, positions: Mapping[int, bytes]) -> Resumption:
        missing = sorted({shard.index for shard in self.shards} - set(positions))
        if missing:
            raise ConfigError(
                "DataConfig.num_data_shards",
                f"has changed: the checkpoint has no data position for shard {missing[0]}; set the earlier value.",
            )
        return self._positions.check(positions)

    def begin(self, step: int, positions: Mapping[int, bytes] | None = None) -> None:
        if positions is None:
            return
        resumption = self._resumption(positions)
        if self.shards and self.shards[0].index == 0:  # one host's one process logs them
            for note in resumption.notes:
                logger.warning(note)
        saved = [resumption.saved[shard.index] for shard in self.shards]
        if resumption.new_pass is not None:
            for shard, each in zip(self.shards, saved, strict=True):
                shard.begin_pass(resumption.new_pass, each.about["num_batches"])
                self._positions.note_pass(shard, each)
            return
        for shard, each in zip(self.shards, saved, strict=True):
            if each.first_epochs:
                shard.begin_pass(each.about["first_epochs"], each.about["batches_before"])
        parts = [self._positions.restore(shard, each) for shard, each in zip(self.shards, saved, strict=True)]
        while parts:
            # All shards go on by one read, so that none is far ahead of another one in a source that they share.
            has_more = self._pool.map(lambda part: next(part, _END) is None, parts)
            parts = [part for part, more in zip(parts, has_more, strict=True) if more]

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._looking.join(SECONDS_TO_END)


def feature_shapes(task: Provider, lengths: Mapping[str, int], config: DataConfig) -> dict[str, tuple[int, int]]:
    """Returns the shapes of a global batch's model features; no text is read."""
    shapes = row_shapes(Pipeline(task, lengths, config).dataset(0))
    row = {name: np.zeros([1, *shape], np.int32) for name, shape in shapes.items()}
    row_ids = row_ids_of(task.output_features["targets"].vocabulary)
    features = model_features(row, config.sequence_length, config.num_predicted, row_ids)
    return {name: (config.batch_size, value.shape[1]) for name, value in features.items()}
