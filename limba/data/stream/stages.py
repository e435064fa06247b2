"""The stages of a run's data: tasks or mixtures that follow one another, each from a step on, as one stream.

Batch n, from 0, is of the last stage that begins at n or before. A stage has a stream of its own, which starts at the
beginning of its data with the stage's first batch and ends with its last one. So a data position belongs to one stage's
stream; a file in it says what the stages before gave of each corpus.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from limba.config import ConfigError, DataConfig
from limba.data.deal import WHOLE_UNITS, Deal
from limba.data.registry import Mixture
from limba.data.stream.names import NO_DOCUMENTS, BatchDocuments
from limba.data.stream.positions import Position, Saved, opened
from limba.data.stream.processes import Opening, ReaderProcesses
from limba.data.stream.shard import Recipe, Rows
from limba.data.stream.streams import Stream, TrainStream, feature_shapes
from limba.data.tasks import (
    Provider,
    copies_of,
    has_exact_positions,
    parts_of,
    pinned_revisions,
    resolve_task,
    unit_sources,
)
from limba.data.vocabulary.addresses import content_name

logger = logging.getLogger(__name__)

PREFIX = "stage_"  # of the tokens of one stage: "stage_80000/ro_clean"
Positions = Mapping[int, Position]


@dataclass(frozen=True)
class Stage:
    """A task or mixture that is read from batch `begins` on; `config` is its own choice of data."""

    begins: int
    task: Provider
    config: DataConfig
    deal: Deal

    @property
    def counts_rows(self) -> bool:
        """True if all tokens are of one task, so that they are counted in the rows."""
        return not isinstance(self.task, Mixture)


def open_stream(
    task: Provider, lengths: Mapping[str, int], config: DataConfig, shards: Sequence[int], deal: Deal = WHOLE_UNITS
) -> Stream:
    """Returns the stream of these shards, read here or by `config.num_reader_processes` processes."""
    is_exact = has_exact_positions(task)
    if not is_exact:
        logger.warning(
            "%s reads a source that cannot save its data position: a resumed run reads it again from the beginning. "
            "Set DataConfig.data_files to its files, or use a source of limba.data.sources.",
            task.name,
        )
    num_processes = min(config.num_reader_processes, len(shards))
    if num_processes == 1:
        return TrainStream(task, lengths, config, shards, deal=deal)
    listings = {name: source.listed_files(config.train_split) for name, source in unit_sources(task).items()}
    opening = Opening(
        config, dict(lengths), pinned_revisions(task), tuple(shards), num_processes, deal, copies_of(task), is_exact
    )
    return ReaderProcesses(opening, Recipe(task, dict(lengths), config, deal), listings)


class StagedStream(Stream):
    """The stream of several stages; a stage's own is opened at its first batch, when the one before is closed."""

    def __init__(self, stages: Sequence[Stage], lengths: Mapping[str, int], shards: Sequence[int]):
        self._stages = stages
        self._lengths = dict(lengths)
        self._shards = tuple(shards)
        self._stream: Stream | None = None
        self._number = 0  # of the stage
        self._batch = 0  # the next one
        self._ended: dict[int, list[dict[str, object]]] = {shard: [] for shard in shards}  # what earlier stages gave
        self._tokens: dict[int, int | None] = dict.fromkeys(shards, 0)  # of a stage of one task; None: not known
        self._last: dict[int, Position] = {}  # the positions where the stage before ended

    @property
    def _stage(self) -> Stage:
        return self._stages[self._number]

    def _open(self, number: int) -> Stream:
        """Returns the stream of a stage, opened unless it is the current one."""
        if self._stream is None or self._number != number:
            self.close()
            stage = self._stages[number]
            self._number = number
            self._stream = open_stream(stage.task, self._lengths, stage.config, self._shards, stage.deal)
        return self._stream

    def check(self, positions: Positions) -> None:
        self._open(self._number_of(positions)).check(positions)

    def begin(self, step: int, positions: Positions | None = None) -> None:
        """As `Stream.begin`; positions of all shards that were saved with a stage's last batch begin the next one."""
        self._batch = step
        wanted = max(number for number, stage in enumerate(self._stages) if stage.begins <= step)
        if positions is None:
            self._open(wanted).begin(0)
            return
        number = self._number_of(positions)
        mine = {shard: positions[shard] for shard in self._shards if shard in positions}
        for shard, saved in _opened(mine).items():
            self._ended[shard] = list(saved.stage.get("ended", []))
            self._tokens[shard] = saved.stage.get("tokens")
        if number == wanted:
            self._open(number).begin(step, positions)
            return
        self._number = number
        self._end_stage(mine)
        self._open(wanted)

    def _number_of(self, positions: Positions) -> int:
        """Returns the stage that positions belong to; the first one if they name no stage, which `check` refuses.

        Raises ConfigError if the stages that were read before it differ from the current ones.
        """
        if not positions:
            return 0
        shard = min(positions)
        saved = opened(positions[shard], shard)
        for number, stage in enumerate(self._stages):
            if (saved.about.get("task"), saved.about.get("seed")) == (stage.task.name, stage.config.seed):
                read = [(entry["begins"], entry["task"]) for entry in saved.stage.get("ended", ())]
                since = read[0][0] if read else stage.begins
                before = [earlier for earlier in self._stages[:number] if earlier.begins >= since]
                now = [(earlier.begins, earlier.task.name) for earlier in before]
                if read != now:
                    raise ConfigError(
                        "DataConfig.stages",
                        f"has {now!r} (first step, name) before the stage of {stage.task.name}, and the run has read"
                        f" {read!r}; leave the stages that have been read as they were.",
                    )
                return number
        return 0

    def _end_stage(self, positions: Positions) -> None:
        """Notes what the current stage has given, by its last positions, and closes its stream."""
        for shard, saved in _opened(positions).items():
            tokens: Mapping[str, int] | None = None
            if self._stage.counts_rows:
                shard_tokens = self._tokens[shard]
                tokens = None if shard_tokens is None else {self._stage.task.name: shard_tokens}
            else:
                tokens = dict(saved.place.tokens)
            entry = {"begins": self._stage.begins, "task": self._stage.task.name, "tokens": tokens}
            entry |= {"epochs": dict(saved.place.epochs)}
            entry |= {"dealing": saved.about["dealing"], "read_again": bool(saved.place.first_epochs)}
            entry |= {"files": saved.about["files"], "end_bytes": saved.about["end_bytes"]}
            self._ended[shard].append(entry)
            self._tokens[shard] = 0
        self._last = dict(positions)
        self.close()

    def __next__(self) -> dict[int, Rows]:
        following = self._stages[self._number + 1 : self._number + 2]
        if following and following[0].begins == self._batch:
            if self._stream is not None:
                self._end_stage(self.positions())
            self._open(self._number + 1)
        rows = next(self._open(self._number))
        self._batch += 1
        if self._stage.counts_rows:
            for shard, part in rows.items():
                before = self._tokens[shard]
                if before is not None:
                    self._tokens[shard] = before + sum(int(np.count_nonzero(part[name])) for name in self._lengths)
        return rows

    def positions(self) -> dict[int, Position]:
        """Returns each shard's data position after the batches so far; between two stages the first one's."""
        if self._stream is None or (self._last and self._batch == self._stage.begins):
            return dict(self._last)
        begins = self._stage.begins
        positions = self._stream.positions()
        said = {s: {"begins": begins, "ended": list(self._ended[s]), "tokens": self._tokens[s]} for s in positions}
        return {shard: {**position, "stage": said[shard]} for shard, position in positions.items()}

    def tokens(self) -> dict[str, float]:
        """Returns the tokens trained of each task, and of each task in each stage: "ro_clean", "stage_80000/ro_clean".

        They are all shards', if these are like the others. A count that is not known is left out.
        """
        by_stage = self._mean("tokens")
        scale = self._stage.config.num_shards
        by_begin = {begins: {name: scale * mean for name, mean in means.items()} for begins, means in by_stage.items()}
        if not self._stage.counts_rows:
            by_begin[self._stage.begins] = {} if self._stream is None else self._stream.tokens()
        elif None not in self._tokens.values():
            counts = [count or 0 for count in self._tokens.values()]
            by_begin[self._stage.begins] = {self._stage.task.name: float(np.mean(counts)) * scale}
        totals: dict[str, float] = {}
        for by_task in by_begin.values():
            for name, number in by_task.items():
                totals[name] = totals.get(name, 0.0) + number
        staged = {}
        for begins, by_task in by_begin.items():
            for name, number in by_task.items():
                staged[f"{PREFIX}{begins}/{name}"] = number
        return totals | staged

    def epochs(self) -> dict[str, float]:
        totals = {} if self._stream is None else dict(self._stream.epochs())
        for means in self._mean("epochs").values():
            for name, mean in means.items():
                totals[name] = totals.get(name, 0.0) + mean
        return totals

    def _mean(self, kind: str) -> dict[int, dict[str, float]]:
        """Returns (first batch of a stage that has ended) -> task -> the mean over this host's shards."""
        means = {}
        for entries in zip(*self._ended.values(), strict=True):
            of_shards = [entry[kind] for entry in entries]
            names = [] if any(part is None for part in of_shards) else list(of_shards[0])
            means[entries[0]["begins"]] = {name: float(np.mean([part[name] for part in of_shards])) for name in names}
        return means

    def empty(self) -> dict[int, Rows]:
        return self._open(self._number).empty()

    def documents(self) -> BatchDocuments:
        return NO_DOCUMENTS if self._stream is None else self._stream.documents()

    def skipped(self) -> list[tuple[str, str]]:
        """Returns (unit, reason) of each unit of the current stage that this host skipped."""
        return [] if self._stream is None else self._stream.skipped()

    def failure(self) -> BaseException | None:
        return None if self._stream is None else self._stream.failure()

    def close(self) -> None:
        stream = self._stream
        self._stream = None
        if stream is not None:
            stream.close()


def open_stages(stages: Sequence[Stage], lengths: Mapping[str, int], shards: Sequence[int]) -> Stream:
    """Returns the stream of a run: of its only stage, or of all of them."""
    if len(stages) > 1:
        return StagedStream(stages, lengths, shards)
    (only,) = stages
    return open_stream(only.task, lengths, only.config, shards, only.deal)


def task_of_stage(begins: int, first: Provider, lengths: Mapping[str, int], config: DataConfig) -> Provider:
    """Returns the task of a later stage; ConfigError if it is not registered, or its rows differ from `first`'s."""
    task_name = config.of_stages[begins]
    try:
        task = resolve_task(task_name, copies_of(first))
    except ConfigError as error:
        if error.field != "DataConfig.mixture_or_task_name":
            raise
        raise ConfigError("DataConfig.stages", f"names, from step {begins:,} on, what {error.sentence}") from None
    for side in ("inputs", "targets"):
        names = {content_name(part.output_features[side].vocabulary) for part in (*parts_of(task), *parts_of(first))}
        if len(names) > 1:
            raise ConfigError(
                "DataConfig.stages",
                f"names {task.name} from step {begins:,} on, whose {side} have another vocabulary than the {side} of"
                f" {first.name}; set DataConfig.vocabulary to one for all.",
            )
    return task


def check_rows_of_stage(
    begins: int,
    task: Provider,
    own_lengths: Mapping[str, int],
    first: Provider,
    lengths: Mapping[str, int],
    config: DataConfig,
) -> None:
    """Raises ConfigError if the batches of a later stage have other features or lengths than the first stage's."""
    shapes = {} if own_lengths != lengths else feature_shapes(task, lengths, config)
    if own_lengths != lengths or shapes != feature_shapes(first, lengths, config):
        raise ConfigError(
            "DataConfig.stages",
            f"names {task.name} from step {begins:,} on, whose rows of {dict(own_lengths)} tokens differ from those in"
            f" {first.name}, {dict(lengths)}; give both lengths in DataConfig.task_feature_lengths, or another task.",
        )


def _opened(positions: Positions) -> dict[int, Saved]:
    return {shard: opened(position, shard) for shard, position in positions.items()}
