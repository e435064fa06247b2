"""Documents of files: text, JSON lines, csv and parquet, local or at any address that fsspec knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from limba.config import ConfigError
from limba.data.sources.units import Column, UnitSource

DataFiles = str | Sequence[str] | Mapping[str, str | Sequence[str]]


class FileSource(UnitSource):
    """Documents of files: .txt (a document a line), .jsonl, .csv, each also .gz or .zst, and .parquet.

    `data_files` is a path or pattern, several of them (separated by commas, or a sequence), or a mapping
    from split to these. Any address that fsspec supports is allowed: local, gs://, hf://, http://.
    """

    def __init__(self, data_files: DataFiles, column: Column = "text", validation_percent: float = 1.0):
        name, patterns, splits = corpus_of(data_files)
        super().__init__(name, lambda: patterns, splits, column, validation_percent)


def patterns_of(data_files: DataFiles) -> dict[str, tuple[str, ...]]:
    """Returns split -> patterns; ConfigError for a split without one.

    >>> patterns_of("a.jsonl, b.txt")
    {'train': ('a.jsonl', 'b.txt')}
    """
    by_split = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    found = {}
    for split, value in by_split.items():
        several = value.split(",") if isinstance(value, str) else value
        found[split] = tuple(pattern.strip() for pattern in several if pattern.strip())
        if not found[split]:
            raise ConfigError("DataConfig.data_files", f"is {value!r}; give a path or a pattern.")
    return found


def corpus_of(data_files: DataFiles) -> tuple[str, dict[str, tuple[str, ...]], list[str]]:
    """Returns the corpus's name for messages, split -> patterns, and the splits, a carved validation included.

    >>> corpus_of("a.jsonl")
    ('The corpus a.jsonl', {'train': ('a.jsonl',)}, ['train', 'validation'])
    """
    patterns = patterns_of(data_files)
    carved = ["validation"] if "train" in patterns and "validation" not in patterns else []
    name = "The corpus " + ", ".join(pattern for several in patterns.values() for pattern in several)
    return name, patterns, [*patterns, *carved]
