"""Sources of examples kept as records: ArrayRecord files, shuffled globally, and TensorFlow Datasets.

ArrayRecord gives any record at once, so an epoch is one pseudo-random permutation of all of them and a
position in it one number. Records are tf.train.Examples with a bytes feature: text, or `tokens`, the
little-endian int32 ids that `launch.prepare` made of a document; or with one for each column of a row.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from limba.config import InputError
from limba.data.sources.files import (
    ENDLESS,
    Column,
    DataFiles,
    Rewrite,
    UnitSource,
    call_numpy,
    patterns_of,
    random_generator,
)
from limba.data.sources.readers import ChunkReader, ReadPolicy, Unit, joined, list_files

RECORDS_PER_UNIT = 1024
OPTIONAL = ("validation", "test")  # splits that a data set need not have
RECORDS_PER_READ = 64
FEISTEL_ROUNDS = 6
SUFFIX = ".array_record"


def permuted(positions: np.ndarray, size: int, *key: int) -> np.ndarray:
    """Returns where a pseudo-random permutation of range(size), chosen by the key, puts these positions, int64.

    A Feistel network over the next power of 4, walked until it falls below `size` (Black & Rogaway 2002,
    "Ciphers with arbitrary finite domains"): no table of the corpus's size is made.

    >>> sorted(permuted(np.arange(7), 7, 1, 2).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    keys = random_generator("records", *key).randint(0, 2**63 - 1, FEISTEL_ROUNDS, np.int64).astype(np.uint64)
    places = np.asarray(positions, np.uint64).copy()
    walking = np.ones(places.shape, bool)
    while walking.any():
        left, right = places[walking] >> half, places[walking] & mask
        for round_key in keys:
            left, right = right, left ^ (_mixed(right ^ round_key) & mask)
        places[walking] = (left << half) | right
        walking[walking] = places[walking] >= size
    return places.astype(np.int64)


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele et al. 2014), modulo 2^64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class _Records:
    """All records of some ArrayRecord files, by their number; for many threads."""

    def __init__(self, paths: Sequence[str], columns: Sequence[str]):
        from array_record.python.array_record_module import ArrayRecordReader

        self._columns = columns
        self._readers, self._locks = [], [threading.Lock() for _ in paths]
        for path in paths:
            try:
                # Without read-ahead: records are asked for at random.
                reader = ArrayRecordReader(path, options="readahead_buffer_size:0")
                if not reader.ok():
                    raise ValueError("its footer is damaged")
            except (OSError, RuntimeError, ValueError) as error:
                raise InputError(f"{path} cannot be read as ArrayRecord ({error}); write it anew.") from error
            self._readers.append(reader)
        self.paths = list(paths)
        self.counts = [reader.num_records() for reader in self._readers]
        self._ends = np.cumsum(self.counts)
        self.total = int(self._ends[-1]) if self.counts else 0

    def __getitem__(self, numbers: np.ndarray) -> list[bytes | None]:
        """Returns the documents of these records, None or nothing where one has no value in a column."""
        files = np.searchsorted(self._ends, numbers, side="right")
        found: list[bytes | None] = [None] * len(numbers)
        for file in np.unique(files):
            places = np.flatnonzero(files == file)
            inside = [int(numbers[place] - self._ends[file] + self.counts[file]) for place in places]
            try:
                with self._locks[file]:
                    records = self._readers[file].read(inside)
            except (OSError, RuntimeError, ValueError, IndexError) as error:
                raise InputError(
                    f"{self.paths[file]} cannot be read at record {inside[0]} ({error}); write it anew."
                ) from error
            for place, record in zip(places, records, strict=True):
                found[place] = self._document(record, self.paths[file])
        return found

    def _document(self, record: bytes, path: str) -> bytes | None:
        try:
            features = tf.train.Example.FromString(record).features.feature
        except Exception as error:  # protobuf's own error class depends on how it was built
            raise InputError(f"{path} holds a record that is no tf.train.Example; write it anew.") from error
        for column in self._columns:
            if column not in features:
                there = ", ".join(map(repr, sorted(features))) or "none"
                raise InputError(f"{path} has no feature {column!r}; it has {there}: set DataConfig.column to one.")
        values = [features[column].bytes_list.value for column in self._columns]
        return joined([value[0] for value in values]) if all(values) else None


class ArrayRecordSource(UnitSource):
    """Documents of ArrayRecord files, every epoch in an order that is drawn over all of them.

    `data_files` as in FileSource, local or mounted: the library reads no buckets. With column `tokens`
    the elements are {"tokens": string}, which `tokenize_documents` takes as they are.
    """

    def __init__(self, data_files: DataFiles, column: Column = "text", validation_percent: float = 1.0):
        patterns = patterns_of(data_files)
        splits = [*patterns, *(["validation"] if "train" in patterns and "validation" not in patterns else [])]
        name = "The corpus " + ", ".join(pattern for several in patterns.values() for pattern in several)
        super().__init__(name, lambda: patterns, splits, column, validation_percent)
        self._records_of = functools.lru_cache(maxsize=None)(self._open_records)

    def _open_records(self, split: str) -> _Records:
        with self._lock:
            paths = [file.path for file in list_files(self.patterns_of_split(split))]
        other = next((path for path in paths if not path.endswith(SUFFIX)), None)
        remote = next((path for path in paths if "://" in path), None)
        if other or remote:
            reason = f"is no {SUFFIX} file, which the others are" if other else "is not on a disk"
            raise InputError(
                f"{other or remote} {reason}; give local or mounted {SUFFIX} files alone (gcsfuse mounts a bucket),"
                " or parquet."
            )
        return _Records(paths, tuple(self.column.values()) if isinstance(self.column, Mapping) else (self.column,))

    def units(self, split: str) -> list[Unit]:
        """Returns ranges of 1,024 records as units, for reading in order."""
        records = self._records_of(split)
        return [
            Unit(path, start, min(start + RECORDS_PER_UNIT, count))
            for path, count in zip(records.paths, records.counts, strict=True)
            for start in range(0, count, RECORDS_PER_UNIT)
        ]

    def read_whole(self, split: str, unit: Unit, chunk: int) -> list[bytes] | None:
        if chunk > 0:
            return None
        records = self._records_of(split)
        file = records.paths.index(unit.path)
        first = sum(records.counts[:file])
        return [text for text in records[np.arange(first + unit.start, first + unit.stop)] if text]

    def num_bytes(self, split: str) -> int:
        return sum(file.size or 0 for file in list_files(self.patterns_of_split(split)))

    def documents(
        self,
        split: str,
        *,
        shard: int = 0,
        num_shards: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        num_epochs: int | None = None,
    ) -> tf.data.Dataset:
        """Returns the documents of one shard, which takes every `num_shards`-th record of an epoch's order."""
        self.begin(split, shard)
        total = self._records_of(split).total
        count = len(range(shard, total, num_shards))
        if count == 0 and num_epochs is None:
            raise InputError(
                f"{self.name} has {total} records in split {split!r}, none for data shard {shard} of {num_shards}; "
                "set a smaller num_data_shards, or give more documents."
            )
        silent = [0]  # reads since the last document

        def texts(epoch: int, block: int) -> np.ndarray:
            with self.failures():
                self.note_progress(split, shard, int(epoch) + int(block) * RECORDS_PER_READ / count)
                first = int(block) * RECORDS_PER_READ
                places = shard + num_shards * np.arange(first, min(first + RECORDS_PER_READ, count))
                numbers = permuted(places, total, seed, int(epoch)) if shuffle else places
                rows = self.filtered(split, [text for text in self._records_of(split)[numbers] if text])
                silent[0] = 0 if rows else silent[0] + 1
                if num_epochs is None and silent[0] > -(-count // RECORDS_PER_READ):
                    raise InputError(f"{self.name} holds no document in split {split!r}; give files with text.")
                return np.array(list(itertools.chain.from_iterable(map(self.pieces, rows))), dtype=object)

        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            blocks = tf.data.Dataset.range(-(-count // RECORDS_PER_READ))
            return blocks.flat_map(
                lambda block: tf.data.Dataset.from_tensor_slices(
                    self.elements(call_numpy(texts, tf.string, [None], epoch, block))
                )
            )

        return tf.data.Dataset.range(ENDLESS if num_epochs is None else num_epochs).flat_map(of_epoch)


class TfdsSource(UnitSource):
    """Documents of a TensorFlow Datasets data set that has been prepared, under TFDS_DATA_DIR or `data_dir`.

    `splits` maps the names used here to TFDS's, slices included: {"train": "train[:98%]", "validation":
    "train[98%:]"}; without it they are TFDS's own train, validation and test, as far as they are there. Units are
    its files, or the parts of them that a slice takes.
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
        self._slices = dict(splits or {name: name for name in ("train", *OPTIONAL)})
        super().__init__(
            f"The data set {name}", lambda: self._there, list(self._slices), column, validation_percent, rewrite
        )

    def read_by(self, policy: ReadPolicy) -> None:
        self._policy = policy
        self._read = ChunkReader(self.column, policy, self._chunks)

    @functools.cached_property
    def builder(self) -> Any:
        """TFDS's builder of a data set that lies prepared; ConfigError, with the command that prepares it."""
        import tensorflow_datasets as tfds

        try:
            builder = tfds.builder(self.tfds_name, data_dir=self._data_dir)
        except (tfds.core.DatasetNotFoundError, ValueError, OSError) as error:
            reason = str(error).strip().split("\n")[0].rstrip(".")
            raise InputError(
                f"{self.name} is not known to TFDS ({reason}); check the name, and TFDS_DATA_DIR, or make it there of a"
                f" task's documents: python -m launch.prepare --task=NAME --tfds={self.tfds_name}"
            ) from error
        if not builder.info.splits:
            raise InputError(
                f"{self.name} is not prepared in {builder.data_dir}; run "
                f"python -m launch.prepare --tfds={self.tfds_name}, or set TFDS_DATA_DIR."
            )
        if self.column not in builder.info.features:
            there = ", ".join(map(repr, sorted(builder.info.features)))
            raise InputError(f"{self.name} has no feature {self.column!r}; it has {there}: name one of them.")
        return builder

    @functools.cached_property
    def _there(self) -> dict[str, Sequence[str]]:
        there = self.builder.info.splits
        wanted = {name: part for name, part in self._slices.items() if part.partition("[")[0] in there}
        missing = [name for name in self._slices if name not in wanted and name not in OPTIONAL]
        if missing:
            raise InputError(
                f"{self.name} has no split {self._slices[missing[0]]!r}; it has {', '.join(there)}: set splits."
            )
        return {name: [part] for name, part in wanted.items()}

    def list_units(self, patterns: Sequence[str]) -> list[Unit]:
        try:
            parts = self.builder.info.splits[patterns[0]].file_instructions
        except (ValueError, KeyError, AssertionError) as error:
            raise InputError(f"{self.name} cannot give the split {patterns[0]!r} ({error}); mend the slice.") from error
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
        features = self.builder.info.features
        chunk, size = [], 0
        for record in self._file_records(unit):
            text = features.deserialize_example_np(record)[self.column]
            text = text.encode() if isinstance(text, str) else bytes(text)
            if text and not text.isspace():
                chunk.append(text)
                size += len(text)
            if size >= 1 << 18 or len(chunk) >= 4096:
                yield chunk
                chunk, size = [], 0
        if chunk:
            yield chunk

    def _file_records(self, unit: Unit) -> Iterator[bytes]:
        try:
            if self.builder.info.file_format.value == "array_record":
                from array_record.python.array_record_module import ArrayRecordReader

                reader = ArrayRecordReader(unit.path)
                for start in range(unit.start, unit.stop, RECORDS_PER_UNIT):
                    yield from reader.read(list(range(start, min(start + RECORDS_PER_UNIT, unit.stop))))
            else:
                records = tf.data.TFRecordDataset(unit.path).skip(unit.start).take(unit.stop - unit.start)
                yield from records.as_numpy_iterator()
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            reason = str(error).strip().split("\n")[0]
            raise InputError(f"{unit.path} cannot be read ({reason}); prepare the data set anew.") from error
