"""Documents of ArrayRecord files, shuffled over all records.

ArrayRecord reads any record directly, so an epoch is one pseudo-random permutation of all records, and a
data position in it is one number. Records are tf.train.Examples with a bytes feature: text, or `tokens`, the
little-endian int32 ids of a document; or with one feature per column.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from limba.config import ConfigError, InputError, without_credentials
from limba.data.draws import Purpose
from limba.data.sources.columns import joined, not_utf8, say_of_list
from limba.data.sources.documents import Chosen, Dealt, Part, Share
from limba.data.sources.json_documents import (
    are_ids,
    flat,
    is_document,
    not_document,
    numbers_as_text,
    shortest,
    stored_name,
)
from limba.data.sources.listing import Unit
from limba.data.sources.order import Counts, Reading, fewer_shards
from limba.data.sources.remote import ReadPolicy
from limba.data.sources.units import FileSource

RECORDS_PER_UNIT = 1024
RECORDS_PER_READ = 64
FEISTEL_ROUNDS = 6
SUFFIX = ".array_record"
KINDS = {"bytes_list": "TYPE_BYTES", "float_list": "TYPE_FLOAT", "int64_list": "TYPE_INT64"}  # of tf.train.Examples


def permuted(positions: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Applies a pseudo-random permutation of range(size), chosen by some keys uint64, to these positions, int64.

    A Feistel network over the next power of 4, walked until it falls below `size` (Black & Rogaway 2002,
    "Ciphers with arbitrary finite domains"): no table of the corpus's size is made.

    >>> sorted(permuted(np.arange(7), 7, np.array([8, 1, 5, 2, 9, 3], np.uint64)).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    places = np.asarray(positions, np.uint64).copy()
    walking = np.ones(places.shape, bool)
    while walking.any():
        left = places[walking] >> half
        right = places[walking] & mask
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


@functools.cache
def example_class() -> Any:
    """Returns protobuf's class of tensorflow/core/example/example.proto, under another name than TensorFlow's own."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="limba/example.proto", package="limba", syntax="proto3")
    kinds = {}
    for name in ("Example", "Features", "Feature"):
        kinds[name] = file.message_type.add(name=name)
    of_field = descriptor_pb2.FieldDescriptorProto

    def add(kind: Any, name: str, number: int, type_name: str, label: str = "LABEL_OPTIONAL", **more: Any) -> None:
        kind.field.add(
            name=name, number=number, label=getattr(of_field, label), type=of_field.TYPE_MESSAGE,
            type_name=f".limba.{type_name}", **more,
        )  # fmt: skip

    kinds["Feature"].oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(KINDS.items(), 1):
        values = file.message_type.add(name=name)
        values.field.add(name="value", number=1, label=of_field.LABEL_REPEATED, type=getattr(of_field, kind))
        add(kinds["Feature"], name, number, name, oneof_index=0)
    entry = kinds["Features"].nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=of_field.LABEL_OPTIONAL, type=of_field.TYPE_STRING)
    add(entry, "value", 2, "Feature")
    add(kinds["Features"], "feature", 1, "Features.FeatureEntry", "LABEL_REPEATED")
    add(kinds["Example"], "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("limba.Example"))


def features_of(record: bytes) -> Mapping[str, Any]:
    """Returns the features of a record; protobuf's error where it is not a tf.train.Example."""
    return example_class().FromString(record).features.feature


class _Records:
    """All records of some ArrayRecord files by number, for many threads."""

    def __init__(self, paths: Sequence[str], columns: Sequence[str]):
        from array_record.python.array_record_module import ArrayRecordReader

        self._columns = columns
        self._holds_ids = are_ids(columns)
        self._readers = []
        self._locks = [threading.Lock() for _ in paths]
        for path in paths:
            try:
                # Without the library's prefetching: records are read at random.
                reader = ArrayRecordReader(path, options="readahead_buffer_size:0")
                if not reader.ok():
                    raise ValueError("its footer is damaged")
            except (OSError, RuntimeError, ValueError) as error:
                raise InputError(f"{path} cannot be read as ArrayRecord ({error}); write it again.") from error
            self._readers.append(reader)
        self.paths = list(paths)
        self.counts = [reader.num_records() for reader in self._readers]
        self._ends = np.cumsum(self.counts)
        self.total = int(self._ends[-1]) if self.counts else 0

    def place(self, number: int) -> tuple[str, int]:
        """Returns the file of a record, and its number there."""
        file = int(np.searchsorted(self._ends, number, side="right"))
        return without_credentials(self.paths[file]), int(number - self._ends[file] + self.counts[file])

    def __getitem__(self, numbers: np.ndarray) -> list[bytes | None]:
        """Returns the documents of these records, None or b"" for one without a value in a column."""
        files = np.searchsorted(self._ends, numbers, side="right")
        documents: list[bytes | None] = [None] * len(numbers)
        for file in np.unique(files):
            places = np.flatnonzero(files == file)
            inside = [int(numbers[index] - self._ends[file] + self.counts[file]) for index in places]
            try:
                with self._locks[file]:
                    records = self._readers[file].read(inside)
            except (OSError, RuntimeError, ValueError, IndexError) as error:
                raise InputError(
                    f"{self.paths[file]} cannot be read at record {inside[0]} ({error}); write it again."
                ) from error
            for index, number, record in zip(places, inside, records, strict=True):
                documents[index] = self._document(record, self.paths[file], number)
        return documents

    def _document(self, record: bytes, path: str, number: int) -> bytes | None:
        try:
            features = features_of(record)
        except Exception as error:  # protobuf's own error class depends on how it was built
            raise InputError(f"{path} holds a record that is not a tf.train.Example; write it again.") from error
        names = [stored_name(column, features) for column in self._columns]
        for name, column in zip(names, self._columns, strict=True):
            if name not in features:
                raise ConfigError(
                    "DataConfig.column",
                    f"is {column!r}, and {path} has {', '.join(map(repr, sorted(features))) or 'none'}; give one of"
                    " these.",
                )
        values = list[str | bytes]()
        for name, column in zip(names, self._columns, strict=True):
            value = self._value(features[name], column, path, number)
            if value is None:
                return None
            values.append(value)
        return joined(values)

    def _value(self, feature: Any, column: str, path: str, number: int) -> str | bytes | None:
        """Returns the text or the ids of a record's feature, None where it is empty; InputError for anything else."""
        kind = feature.WhichOneof("kind")
        values = getattr(feature, kind).value if kind else ()
        if not values:
            return None
        if kind == "bytes_list" and not self._holds_ids:
            try:
                if len(values) == 1:  # as in nearly every record: it is checked and stays bytes
                    value = values[0]
                    value.decode("utf-8")
                    return value
                texts = [value.decode("utf-8") for value in values]
            except UnicodeDecodeError:
                raise not_utf8(_location(path, number), column) from None
            if not column.endswith("[]"):
                say_of_list(path, column)
            return flat(texts)
        if kind == "bytes_list" and len(values) == 1:
            return values[0]
        held: Any = list(values)
        if kind == "float_list":
            held = [shortest(value, np.float32) for value in values]
        if len(values) == 1 and not self._holds_ids:
            held = held[0]
        value = flat(numbers_as_text(held) if len(self._columns) > 1 else held, self._holds_ids)
        if not is_document(value, self._holds_ids):
            raise not_document(_location(path, number), value, column, self._holds_ids)
        return value


def _location(path: str, number: int) -> str:
    return f"{without_credentials(path)} record {number}"


def _has_text(document: bytes | None) -> TypeGuard[bytes]:
    return bool(document) and not document.isspace()


class ArrayRecordSource(FileSource):
    """Documents of ArrayRecord files; each epoch is a new permutation of all of them.

    `data_files` as in FileSource, on a local or mounted disk or in a bucket of Google's: a record of gs:// is one
    request. With column `tokens` the elements are {"tokens": string}, which `tokenize_documents` accepts.
    """

    @functools.cache  # noqa: B019  sources live as long as their process
    def _records_of(self, split: str) -> _Records:
        paths = [file.path for file in self._listed(self.patterns_of_split(split))]
        other = next((path for path in paths if not path.endswith(SUFFIX)), None)
        if other:
            raise InputError(f"{other} is not a {SUFFIX} file, as the others are; give only {SUFFIX} files.")
        remote = next((path for path in paths if "://" in path and not path.startswith("gs://")), None)
        if remote:
            raise InputError(
                f"{without_credentials(remote)} cannot be read at random: ArrayRecord's library knows local files and"
                " gs:// only; copy the files to one of these, or write them as parquet."
            )
        return _Records(paths, self.columns)

    def units(self, split: str) -> list[Unit]:
        """Returns ranges of 1,024 records, for reading in order."""
        records = self._records_of(split)
        units: list[Unit] = []
        for path, count in zip(records.paths, records.counts, strict=True):
            for start in range(0, count, RECORDS_PER_UNIT):
                units.append(Unit(path, start, min(start + RECORDS_PER_UNIT, count)))
        return units

    def count(self, split: str, most: int | None = None) -> Counts | None:
        """Returns which records are left out, if that is known or quickly read."""
        total = self._records_of(split).total
        is_small = self.is_small(split)
        if most is None and not is_small:
            if self.carved_percent(split):
                return None
            return Counts((total,), is_exact=False) if total else None  # unread, no record counts as empty
        left_out = list[int]()
        kept = 0
        num_pieces = 0
        blocks = (np.arange(first, min(first + RECORDS_PER_UNIT, total)) for first in range(0, total, RECORDS_PER_UNIT))
        for number, text in itertools.chain.from_iterable(self.records_at(split, block) for block in blocks):
            if kept == most:
                break
            if _has_text(text) and self.filtered(split, [text]):
                kept += 1
                num_pieces += len(self.pieces(text))
            else:
                left_out.append(number)
        return Counts((kept,), left_out=tuple(left_out), num_pieces=num_pieces) if kept else None

    def read_whole(self, split: str, unit: Unit, chunk: int) -> list[bytes] | None:
        if chunk > 0:
            return None
        records = self._records_of(split)
        file = records.paths.index(unit.path)
        documents = records[sum(records.counts[:file]) + np.arange(unit.start, unit.stop)]
        return [text for text in documents if _has_text(text)]

    def first_rows(self, unit: Unit, column: str, policy: ReadPolicy) -> list[bytes]:
        stop = min(unit.stop or 0, unit.start + RECORDS_PER_READ)  # of a bucket each is a request
        return [text or b"" for text in _Records([unit.path], (column,))[np.arange(unit.start, stop)]]

    def records_at(self, split: str, numbers: np.ndarray) -> Iterator[tuple[int, bytes | None]]:
        """Yields (number, document) of some records; None or b"" for one without a value in a column."""
        yield from zip(map(int, numbers), self._records_of(split)[numbers], strict=True)

    def document(self, split: str, unit: int, chunk: int, row: int) -> tuple[str, int, bytes]:
        del unit, chunk
        records = self._records_of(split)
        if row >= records.total:
            raise InputError(f"{self.name} has fewer records than when it was read; restore the original files.")
        (text,) = records[np.array([row])]
        return *records.place(row), text or b""

    def share(self, reading: Reading, counts: Counts | None, offset: int) -> Share:
        total = self._records_of(reading.split).total
        if counts is None and reading.is_endless and total <= reading.shard:
            raise InputError(
                f"{self.name} has {total} records in split {reading.split!r}, none for data shard {reading.shard} of"
                f" {reading.num_shards}; set DataConfig.num_data_shards lower, or give more documents.",
                fix=fewer_shards(reading.shard),
            )
        return _ShardRecords(self, reading, total, counts, offset)


class _ShardRecords(Share):
    """One shard's records: every epoch is one permutation of all of them, of which it reads every num_shards-th.

    A part has RECORDS_PER_READ of them, which are one chunk.
    """

    def __init__(self, source: ArrayRecordSource, reading: Reading, total: int, counts: Counts | None, offset: int):
        super().__init__(source, reading)
        self.width = 1
        self._records = source
        self._offset = offset
        self._total = total if counts is None else counts.total
        self._dealt = None if counts is None else Dealt(reading, counts)
        left_out = np.array(() if counts is None else counts.left_out, np.int64)
        self._gaps = left_out - np.arange(len(left_out))  # of each one, the records before it that are read
        self._num_parts = -(-len(self._places(reading.first_epoch)) // RECORDS_PER_READ)  # of any epoch, but for one
        self.most_empty = self._num_parts + 1

    def _places(self, epoch: int) -> range:
        """Returns the shard's places in an epoch's order; of a deal those whose number in all epochs is its own."""
        shard = self.reading.shard
        num_shards = self.reading.num_shards
        first = shard
        if self._dealt is not None:
            first = (shard - self._offset - epoch * self._total) % num_shards
        return range(first, self._total, num_shards)

    def parts(self, epoch: int) -> Sequence[Part]:
        count = len(self._places(epoch))
        return [Part(0, start, min(start + RECORDS_PER_READ, count)) for start in range(0, count, RECORDS_PER_READ)]

    def chosen(self, epoch: int, part: Part, chunk: int) -> Chosen | None:
        if chunk > 0:
            return None
        source = self._records
        reading = self.reading
        places = self._places(epoch)[part.start : part.stop]
        order = np.arange(places.start, places.stop, places.step)
        if reading.shuffle:
            keys = reading.words(Purpose.RECORDS, epoch).raw(FEISTEL_ROUNDS)
            order = permuted(order, self._total, keys)
        numbers = order + np.searchsorted(self._gaps, order, side="right")
        chosen = []
        for number, text in source.records_at(reading.split, numbers):
            if _has_text(text) and source.filtered(reading.split, [text]):
                chosen.append((number, text))
        return chosen

    def epochs(self, epoch: int, num_read: int, num_ended: int) -> float:
        if self._dealt is not None:
            return self._dealt.epochs(num_read)
        return epoch + num_ended / max(self._num_parts, 1)

    def no_document(self) -> InputError:
        return InputError(
            f"{self.source.name} holds no document in split {self.reading.split!r}; give files with text in them."
        )
