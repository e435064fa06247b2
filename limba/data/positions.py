"""Data positions: how far each shard has read its corpus, as bytes that are saved with a checkpoint.

A data position is a zip file. `about.json` names its data and counts the batches taken; the other files are
tf.data's checkpoint of the shard's iterator and the prefetched rows.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from limba.config import DataConfig, InputError
from limba.data.shard import Rows, Shard, source_errors
from limba.data.sources.units import UnitSource
from limba.data.tasks import Provider, has_exact_positions, parts_of
from limba.data.vocabulary.load import content_name

FORMAT = 2  # format 1 has no entry "format", and leaves the prefetched rows to tf.data
ROWS_FILE = "ahead.npz"  # the prefetched rows


class DataPositions:
    """Saves and restores the data positions of one stream's shards."""

    def __init__(self, task: Provider, lengths: Mapping[str, int], config: DataConfig):
        self._task, self._lengths, self._config = task, lengths, config
        self.is_exact = has_exact_positions(task)
        self._sources = [part.source for part in parts_of(task) if isinstance(part.source, UnitSource)]

    def save(self, shard: Shard) -> bytes:
        """Returns the shard's position after the batches taken so far."""
        about = {**self._identity(shard.index), "num_batches": shard.num_batches, "exact": self.is_exact}
        about["epochs"] = [source.progress(self._config.train_split, shard.index) for source in self._sources]
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, tempfile.TemporaryDirectory() as directory:
            archive.writestr("about.json", json.dumps(about))
            if self.is_exact:
                with shard.prefetch.paused() as made:
                    tf.train.Checkpoint(iterator=shard.iterator).write(f"{directory}/position")
                rows: dict[str, Any] = _concatenated([batch for batch in made if batch is not None])
                np.savez(f"{directory}/{ROWS_FILE}", **rows)
                for path in sorted(Path(directory).iterdir()):
                    archive.write(path, path.name)
        return packed.getvalue()

    def check(self, shard: Shard, position: bytes) -> dict[str, Any]:
        """Returns a position's `about.json`; InputError if it belongs to the data of another stream."""
        with zipfile.ZipFile(io.BytesIO(position)) as archive:
            about = json.loads(archive.read("about.json"))
        about.setdefault("format", 1)
        for name, now in {**self._identity(shard.index), "exact": self.is_exact}.items():
            if name in about and about[name] != now:  # earlier versions did not write every entry
                raise InputError(
                    f"The data position was saved with {name} {about[name]!r} and this run has {now!r}; change it "
                    "back, or start a new RunConfig.model_dir with RunConfig.initial_checkpoint_path to read "
                    "the data from the beginning."
                )
        return about

    def restore(self, shard: Shard, about: Mapping[str, Any], position: bytes) -> None:
        """Sets a newly opened shard to its position; `about` is the result of `check`.

        If a source cannot save its position, the shard is read again from its beginning.
        """
        for source, epochs in zip(self._sources, about.get("epochs", ()), strict=False):
            source.note_progress(self._config.train_split, shard.index, epochs)
        shard.num_batches = about["num_batches"]
        if not self.is_exact:
            shard.skip(shard.num_batches)
            return
        with tempfile.TemporaryDirectory() as directory, source_errors(self._task):
            zipfile.ZipFile(io.BytesIO(position)).extractall(directory)
            tf.train.Checkpoint(iterator=shard.iterator).read(f"{directory}/position").assert_consumed()
            with np.load(f"{directory}/{ROWS_FILE}") as rows:
                shard.prefetch.start_with(shard.cut(dict(rows)))

    def _identity(self, shard: int) -> dict[str, Any]:
        """Returns all that a position depends on: with another choice the run would silently read other text.

        Names and values are a format on disk.
        """
        config, vocabulary = self._config, self._task.output_features["targets"].vocabulary
        return {
            "format": FORMAT,
            "task": self._task.name,
            "seed": config.seed,
            "shuffle": config.shuffle,
            "shard": shard,
            "num_data_shards": config.num_data_shards,
            "batch_size": config.batch_size,
            "num_epochs": config.num_epochs,
            "task_feature_lengths": self._lengths,
            "objective": config.objective,
            "noise_density": config.noise_density,
            "mean_noise_span_length": config.mean_noise_span_length,
            "prefix": config.prefix,
            "pack": config.pack or None,  # null also in positions saved by versions without packing
            "shuffle_buffer": config.shuffle_buffer,
            "train_split": config.train_split,
            "vocabulary size": vocabulary.vocab_size,
            "vocabulary": content_name(vocabulary),
            "column": [source.column for source in self._sources],
            "validation_percent": [source.carved_percent(config.train_split) for source in self._sources],
            "corpus": self._corpus,
        }

    @functools.cached_property
    def _corpus(self) -> str:
        """A digest of the files and of how they are cut into units."""
        units = [
            part.source.list_shards(self._config.train_split) if isinstance(part.source, UnitSource) else part.name
            for part in parts_of(self._task)
        ]
        return hashlib.blake2b(repr(units).encode(), digest_size=8).hexdigest()


def _concatenated(batches: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([rows[name] for rows in batches]) for name in (batches[0] if batches else ())}
