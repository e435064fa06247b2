"""A run's task with what it reads, for those who look at it before the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from limba.config import DataConfig
from limba.data import bridge
from limba.data.dataset import TEXT, Elements
from limba.data.deal import has_row_per_document
from limba.data.objectives.choice import derive_lengths
from limba.data.objectives.steps import examples_of
from limba.data.objectives.supervised import is_supervised
from limba.data.packing import CAUSAL, FEATURES
from limba.data.registry import Mixture, Task
from limba.data.sources.order import Counts
from limba.data.sources.units import UnitSource
from limba.data.stream.shard import Pipeline
from limba.data.stream.stages import check_rows_of_stage, task_of_stage
from limba.data.stream.streams import feature_shapes
from limba.data.tasks import Provider, check_sources, parts_of, resolve_task


class RunData:
    """A configuration of data with its task. Raises the errors of `resolve_task` where no task is given."""

    def __init__(self, config: DataConfig, task: Provider | None = None):
        self.config, self.task = config, resolve_task(config) if task is None else task
        self.parts = parts_of(self.task)

    @property
    def fills_gaps(self) -> bool:
        """True if a task has an objective with sentinels."""
        return not all(map(is_supervised, self.parts))

    @property
    def has_pairs(self) -> bool:
        """True if a task is supervised: the lengths of its rows depend on the text."""
        return any(map(is_supervised, self.parts))

    def lengths(self, given: Mapping[str, int] | None = None) -> dict[str, int]:
        """Returns the lengths of rows, by the configuration's or these; see `derive_lengths`."""
        return derive_lengths(self.task, self.config.task_feature_lengths if given is None else given)

    def check(self) -> None:
        """Reads the beginning of every corpus; InputError for what a run could not read."""
        check_sources(self.task, self.config)

    def check_stage(self, begins: int, lengths: Mapping[str, int]) -> Task | Mixture:
        """Returns the task of the stage that begins at a step; InputError unless its rows are like the first one's."""
        later = RunData(self.config, task_of_stage(begins, self.task, lengths, self.config))
        later.check()
        check_rows_of_stage(begins, later.task, later.lengths(), self.task, lengths, self.config)
        return later.task

    def build(self, lengths: Mapping[str, int]) -> None:
        """Builds the preprocessors on no text; InputError for too few sentinels, and lengths that do not fit."""
        for part in self.parts:
            if isinstance(part.source, UnitSource):
                has_row_per_document(part, lengths)

    def rows(self, lengths: Mapping[str, int]) -> Iterator[Mapping[str, np.ndarray]]:
        """Yields the first data shard's rows as training reads them, some at once; InputError as its source raises."""
        yield from Pipeline(self.task, lengths, self.config).dataset(0)

    def examples(
        self, documents: Sequence[bytes], lengths: Mapping[str, int], split: str, seed: int
    ) -> Iterator[Mapping[str, np.ndarray]]:
        """Yields the ids of a task's examples of these documents; of all documents where its source is another's.

        Masked inputs are as the network reads them, without the mark of the tokens that it predicts.
        """
        (part,) = self.parts
        if isinstance(part.source, UnitSource):
            elements = Elements(part.source.elements(documents), dict.fromkeys(part.source.keys, TEXT))
            dataset = examples_of(part, lengths, elements, seed)
        else:
            dataset = bridge.of_seqio(part, lengths, split, seed)
        names = [name for name in FEATURES if name in dataset.spec]
        return ({name: example[name] % CAUSAL for name in names} for example in dataset)

    def feature_shapes(self, lengths: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Returns the shapes of a global batch's model features; no text is read."""
        return feature_shapes(self.task, lengths, self.config)

    def documents(self, part: Task) -> Counts | None:
        """Returns the counts of the training split of one of `parts`, where they are known or quickly counted."""
        return part.source.count(self.config.train_split)
