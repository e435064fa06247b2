"""Sources whose files are read in units, and chunk by chunk: the documents of each shard follow from the place."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from limba.config import ConfigError
from limba.data.dataset import Dataset
from limba.data.sources.documents import DealtUnits, Documents, Share, WholeUnits
from limba.data.sources.order import Counts, Reading
from limba.data.sources.splits import Column, Splits

DataFiles = str | Sequence[str] | Mapping[str, str | Sequence[str]]


class UnitSource(Splits):
    """Documents {"text": string} of some files, in an order that a saved data position continues."""

    def documents(
        self,
        split: str,
        *,
        shard: int = 0,
        num_shards: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        num_epochs: int | None = None,
    ) -> Dataset:
        """Returns {"text": bytes} documents of one shard, endlessly if `num_epochs` is None.

        From a column `tokens` they are {"tokens": bytes}, from several columns {feature: string}. Units are divided
        among the shards; if there are fewer units than shards, every shard reads all of them and takes its own rows. In
        an epoch each document comes once, in exactly one shard.
        """
        return self.dataset(Reading(split, shard, num_shards, seed, shuffle, num_epochs))

    def dataset(self, reading: Reading, counts: Counts | None = None, offset: int = 0) -> Documents:
        """Returns the elements of `documents`; counted ones are dealt evenly, one by one, not in whole units.

        `offset` is then the number of the first document of all epochs.
        """
        return Documents(self.share(reading, counts, offset))

    def share(self, reading: Reading, counts: Counts | None, offset: int) -> Share:
        """Returns what a shard reads of each epoch."""
        return WholeUnits(self, reading) if counts is None else DealtUnits(self, reading, counts, offset)

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: Any = None,
        *,
        sequence_length: Mapping[str, int] | None = None,
        use_cached: bool = False,
        num_epochs: int | None = 1,
    ) -> Any:
        """Returns the documents as a tf.data.Dataset, with the signature that seqio's `task.get_dataset` calls."""
        bridge = importlib.import_module("..bridge", __package__)  # which stands above
        del sequence_length, use_cached
        index, num_shards = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        documents = self.documents(
            split, shard=index, num_shards=num_shards, seed=seed or 0, shuffle=shuffle, num_epochs=num_epochs
        )
        return bridge.Numbered(documents).in_tensorflow()


class FileSource(UnitSource):
    """Documents of files: .txt (a document a line), .jsonl, .csv, each also .gz or .zst, and .parquet.

    `data_files` is a path or pattern, several of them (separated by commas, or a sequence), or a mapping
    from split to these. Any address that fsspec supports is allowed: local, gs://, hf://, http://.

    >>> from pathlib import Path
    >>> _ = Path("nb.txt").write_text("Ære være.\\nGod dag.\\n")
    >>> source = FileSource("nb.txt", validation_percent=0)
    >>> [document["text"].decode() for document in source.documents("train", shuffle=False, num_epochs=1)]
    ['Ære være.', 'God dag.']
    """

    def __init__(self, data_files: DataFiles, column: Column = "text", validation_percent: float = 1.0):
        patterns = patterns_of(data_files)
        carved = ["validation"] if "train" in patterns and "validation" not in patterns else []
        name = "The corpus " + ", ".join(pattern for several in patterns.values() for pattern in several)
        super().__init__(name, lambda: patterns, [*patterns, *carved], column, validation_percent)


def patterns_of(data_files: DataFiles) -> dict[str, tuple[str, ...]]:
    """Returns split -> patterns; ConfigError for a split without one.

    >>> patterns_of("a.jsonl, b.txt")
    {'train': ('a.jsonl', 'b.txt')}
    """
    by_split = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    patterns = {}
    for split, value in by_split.items():
        several = value.split(",") if isinstance(value, str) else value
        patterns[split] = tuple(pattern.strip() for pattern in several if pattern.strip())
        if not patterns[split]:
            raise ConfigError("DataConfig.data_files", f"is {value!r}; give a path or a pattern.")
    return patterns
