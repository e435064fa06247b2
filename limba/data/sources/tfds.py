"""Documents of data sets that TensorFlow Datasets has prepared."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import tensorflow as tf

from limba.config import InputError
from limba.config.errors import reason_of
from limba.data.sources.chunks import ChunkReader
from limba.data.sources.fingerprints import File
from limba.data.sources.readers import Unit, in_chunks
from limba.data.sources.remote import ReadPolicy
from limba.data.sources.units import Rewrite, UnitSource

OPTIONAL = ("validation", "test")  # splits that a data set need not have
RECORDS_AT_ONCE = 1024


class TfdsSource(UnitSource):
    """Documents of a TensorFlow Datasets data set that has been prepared, below TFDS_DATA_DIR or `data_dir`.

    `splits` maps the names used here to TFDS's, slices included: {"train": "train[:98%]", "validation":
    "train[98%:]"}. Without it they are TFDS's train, validation and test, if they exist. Units are
    its files, or the parts of them in a slice.
    """

    def __init__(
        self,
        name: str,
        splits: Mapping[str, str] | None = None,
        column: str = "text",
        data_dir: str | None = None,
        validation_percent: float = 1.0,
        rewrite: Rewrite | None = None,
    ):
        self.tfds_name, self._data_dir = name, data_dir
        self._slices = dict(splits or {split: split for split in ("train", *OPTIONAL)})
        self._column = column
        super().__init__(
            f"The data set {name}",
            lambda: self._existing_slices,
            list(self._slices),
            column,
            validation_percent,
            rewrite,
        )

    def read_by(self, policy: ReadPolicy) -> None:
        self._policy = policy
        self._read = ChunkReader(self.columns, policy, self._chunks)

    @functools.cached_property
    def builder(self) -> Any:
        """TFDS's builder of a prepared data set; InputError if it is unknown, not prepared, or lacks the feature."""
        import tensorflow_datasets as tfds

        try:
            builder = tfds.builder(self.tfds_name, data_dir=self._data_dir)
        except (tfds.core.DatasetNotFoundError, ValueError, OSError) as error:
            raise InputError(
                f"{self.name} is not known to TFDS ({reason_of(error)}); check the name and TFDS_DATA_DIR, or prepare"
                " it there from a task's documents."
            ) from error
        if not builder.info.splits:
            raise InputError(
                f"{self.name} is not prepared in {builder.data_dir}; prepare it first, or set TFDS_DATA_DIR to its"
                " folder."
            )
        features = cast(Mapping[str, Any], builder.info.features)
        if self._column not in features:
            names = ", ".join(map(repr, sorted(features)))
            raise InputError(f"{self.name} has no feature {self._column!r}; it has {names}: name one of these.")
        return builder

    @functools.cached_property
    def _existing_slices(self) -> Mapping[str, Sequence[str]]:
        splits = self.builder.info.splits
        found = {name: [part] for name, part in self._slices.items() if part.partition("[")[0] in splits}
        missing = [name for name in self._slices if name not in found and name not in OPTIONAL]
        if missing:
            raise InputError(
                f"{self.name} has no split {self._slices[missing[0]]!r}; it has {', '.join(splits)}: correct the"
                " source's splits."
            )
        return found

    def list_files(self, patterns: Sequence[str]) -> list[File]:
        paths = sorted({unit.path for unit in self.list_units(patterns)})
        return [_file(path) for path in paths]

    def list_units(self, patterns: Sequence[str]) -> list[Unit]:
        try:
            parts = self.builder.info.splits[patterns[0]].file_instructions
        except (ValueError, KeyError, AssertionError) as error:
            raise InputError(f"{self.name} has no slice {patterns[0]!r} ({error}); correct the slice.") from error
        ends = [part.skip + part.take if part.take >= 0 else part.examples_in_shard for part in parts]  # -1: all
        return [Unit(str(part.filename), part.skip, end) for part, end in zip(parts, ends, strict=True)]

    def num_bytes(self, split: str) -> int:
        parts = self.builder.info.splits[self.patterns_of_split(split)[0]].file_instructions
        taken = [(part.take if part.take >= 0 else part.examples_in_shard - part.skip) for part in parts]
        return sum(
            tf.io.gfile.stat(str(part.filename)).length * count // part.examples_in_shard
            for part, count in zip(parts, taken, strict=True)
        )

    def _chunks(self, unit: Unit) -> Iterator[list[bytes]]:
        return in_chunks(self._file_texts(unit), self._policy)

    def _file_texts(self, unit: Unit) -> Iterator[bytes]:
        features = self.builder.info.features
        for record in self._file_records(unit):
            text = features.deserialize_example_np(record)[self._column]
            yield text.encode() if isinstance(text, str) else bytes(text)

    def _file_records(self, unit: Unit) -> Iterator[bytes]:
        assert unit.stop is not None  # as `list_units` makes them
        stop = unit.stop
        try:
            if self.builder.info.file_format.value == "array_record":
                from array_record.python.array_record_module import ArrayRecordReader

                reader = ArrayRecordReader(unit.path)
                for start in range(unit.start, stop, RECORDS_AT_ONCE):
                    yield from reader.read(list(range(start, min(start + RECORDS_AT_ONCE, stop))))
            else:
                records = tf.data.TFRecordDataset(unit.path).skip(unit.start).take(stop - unit.start)
                yield from cast(Iterator[bytes], records.as_numpy_iterator())
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            raise InputError(f"{unit.path} cannot be read ({reason_of(error)}); prepare the data set again.") from error


def _file(path: str) -> File:
    if "://" not in path:
        return File(path, None)
    status: Any = tf.io.gfile.stat(path)
    return File(path, status.length, f"mtime:{status.mtime_nsec}")
