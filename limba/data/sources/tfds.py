"""Documents of data sets that TensorFlow Datasets has prepared."""

from __future__ import annotations

import functools
import glob
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, cast

import fsspec
import google_crc32c

from limba.config import InputError, reason_of
from limba.data.sources import remote
from limba.data.sources.chunk_reader import ChunkReader
from limba.data.sources.columns import joined, not_utf8
from limba.data.sources.failures import RecordError, of_request
from limba.data.sources.fingerprints import File, version_of
from limba.data.sources.json_documents import TOKENS, are_ids, not_document, stored_name
from limba.data.sources.listing import Unit
from limba.data.sources.parquet import as_text
from limba.data.sources.readers import in_chunks
from limba.data.sources.remote import ReadPolicy
from limba.data.sources.splits import Column, Rewrite
from limba.data.sources.units import UnitSource

OPTIONAL = ("validation", "test")  # splits that a data set need not have
RECORDS_AT_ONCE = 1024


class TfdsSource(UnitSource):
    """Documents of a TensorFlow Datasets data set that has been prepared, below TFDS_DATA_DIR or `data_dir`.

    `splits` maps the names used here to TFDS's, slices included: {"train": "train[:98%]", "validation":
    "train[98%:]"}. Without it they are TFDS's train, validation and test, if they exist. Units are
    its files, or the parts of them in a slice. `community` is the folder that the community builder of earlier TFDS
    versions wrote the same data set to, such as huggingface__cc100/*ja*; it is read if there is no other. `instead`
    says where the same text is, for those who do not have the data set.
    """

    def __init__(
        self,
        name: str,
        splits: Mapping[str, str] | None = None,
        column: Column = "text",
        data_dir: str | None = None,
        validation_percent: float = 1.0,
        rewrite: Rewrite | None = None,
        community: str | None = None,
        instead: str | None = None,
    ):
        self.tfds_name = name
        self._data_dir = data_dir
        self.community = community
        self._instead = f", or {instead}" if instead else ""
        self.slices = dict(splits or {split: split for split in ("train", *OPTIONAL)})
        super().__init__(
            f"The data set {name}",
            lambda: self._existing_slices,
            list(self.slices),
            column,
            validation_percent,
            rewrite,
        )

    @functools.cached_property
    def _read(self) -> ChunkReader:
        return ChunkReader(self.columns, self._policy, self._chunks)

    @functools.cached_property
    def builder(self) -> Any:
        """TFDS's builder of a prepared data set; InputError if it is unknown, not prepared, or lacks the feature."""
        import tensorflow_datasets as tfds

        unknown: Exception | None = None
        try:
            builder: Any = tfds.builder(self.tfds_name, data_dir=self._folder)
            is_prepared = bool(builder.info.splits)
        except (tfds.core.DatasetNotFoundError, ValueError, OSError) as error:
            # `error` ends with its clause
            builder = None
            is_prepared = False
            unknown = error
        if not is_prepared and (folder := self._folder_of_community()):
            builder = tfds.builder_from_directory(folder)
            is_prepared = True
        if builder is None:
            said = reason_of(unknown) if unknown else "it has no code"
            raise InputError(
                f"{self.name} is not known to TFDS ({said}); check the name and TFDS_DATA_DIR{self._instead}."
            ) from unknown
        if not is_prepared:
            raise InputError(
                f"{self.name} is not prepared in {builder.data_dir}; load it once by tfds.load, set TFDS_DATA_DIR to"
                f" its folder{self._instead}."
            )
        features = cast(Mapping[str, object], builder.info.features)
        if missing := [name for name in self.columns if stored_name(name, features) not in features]:
            names = ", ".join(map(repr, sorted(features)))
            raise InputError(f"{self.name} has no feature {missing[0]!r}; it has {names}: name one of these.")
        if are_ids(self.columns) and isinstance(features[TOKENS], tfds.features.Text):
            raise not_document(self.name, "", TOKENS, holds_ids=True)
        return builder

    @property
    def _folder(self) -> str | None:
        """The data directory; TFDS reads the variable only once, when it is imported."""
        return self._data_dir or os.environ.get("TFDS_DATA_DIR")

    def _folder_of_community(self) -> str | None:
        """Returns the folder with the newest version of `community` below the data directory; None without one.

        Raises InputError for several configurations, of which nobody can know which is meant.
        """
        from etils import epath

        data_dir = self._folder
        if self.community is None or not data_dir:
            return None
        # `community` may be a pattern; the directory's own name must not be taken for one.
        files = epath.Path(glob.escape(str(data_dir))).glob(f"{self.community}/*/dataset_info.json")
        folders = sorted(path.parent for path in files)
        if len({path.parent for path in folders}) > 1:
            names = ", ".join(sorted({str(path.parent) for path in folders}))
            raise InputError(f"{self.name} is in several folders, {names}; keep one of them in TFDS_DATA_DIR.")
        return str(folders[-1]) if folders else None

    @functools.cached_property
    def _existing_slices(self) -> Mapping[str, Sequence[str]]:
        splits = self.builder.info.splits
        slices = {name: [part] for name, part in self.slices.items() if part.partition("[")[0] in splits}
        missing = [name for name in self.slices if name not in slices and name not in OPTIONAL]
        if missing:
            raise InputError(
                f"{self.name} has no split {self.slices[missing[0]]!r}; it has {', '.join(splits)}: correct the"
                " source's splits."
            )
        return slices

    def list_files(self, patterns: Sequence[str]) -> list[File]:
        paths = sorted({unit.path for unit in self.list_units(patterns)})
        return [_file(path) for path in paths]

    def list_units(self, patterns: Sequence[str]) -> list[Unit]:
        try:
            parts = self.builder.info.splits[patterns[0]].file_instructions
        except (ValueError, KeyError, AssertionError) as error:
            raise InputError(f"{self.name} has no slice {patterns[0]!r} ({error}); correct the slice.") from error
        if any(part.take < -1 for part in parts):
            raise InputError(
                f"{self.name} has the slice {patterns[0]!r}, which ends before it begins; correct the slice."
            )
        ends = [part.skip + part.take if part.take >= 0 else part.examples_in_shard for part in parts]  # -1: all
        return [Unit(str(part.filename), part.skip, end) for part, end in zip(parts, ends, strict=True)]

    def sizes(self, split: str) -> list[int]:
        return [(unit.stop or 0) - unit.start for unit in self.units(split)]

    def is_small(self, split: str) -> bool:
        return False  # its files say their documents, without being read

    def num_bytes(self, split: str) -> int | None:
        num_bytes = 0
        for part in self.builder.info.splits[self.patterns_of_split(split)[0]].file_instructions:
            size = _size(str(part.filename))
            if size is None:
                return None
            taken = part.take if part.take >= 0 else part.examples_in_shard - part.skip
            num_bytes += size * taken // part.examples_in_shard
        return num_bytes

    def _chunks(self, unit: Unit) -> Iterator[list[bytes]]:
        return in_chunks(self._file_texts(unit, self.columns), self._policy)

    def first_rows(self, unit: Unit, column: str, policy: ReadPolicy) -> list[bytes]:
        return next(in_chunks(self._file_texts(unit, (column,)), policy), [])

    def _file_texts(self, unit: Unit, columns: Sequence[str]) -> Iterator[bytes]:
        features = self.builder.info.features
        for number, record in enumerate(self._file_records(unit), unit.start):
            location = f"{unit.path} record {number}"
            try:
                row = features.deserialize_example_np(record)
            except Exception as error:  # protobuf's own error class depends on how it was built
                raise RecordError(f"{location} is not an example of the data set; load the data set again.") from error
            values = [row[stored_name(name, row)] for name in columns]
            for name, value in zip(columns, values, strict=True):
                if not isinstance(value, bytes):
                    raise not_document(unit.path, value, name, are_ids(columns))
                if not are_ids(columns) and not isinstance(as_text(value), str):
                    raise not_utf8(location, name)
            yield joined(values)

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
                with remote.open_file(unit.path, self._policy) as file:
                    num_read = unit.start
                    for record in itertools.islice(_tfrecords(file), unit.start, stop):
                        yield record
                        num_read += 1
                    if num_read < stop:
                        raise ValueError(f"it ends before record {stop}, which the data set says it has")
        except (OSError, RuntimeError, ValueError) as error:
            fact = f"{unit.path} cannot be read ({reason_of(error)})"
            raise of_request(fact, error, "load the data set again") from error


def _tfrecords(file: IO[bytes]) -> Iterator[bytes]:
    """Yields a TFRecord file's records; ValueError for one that is damaged.

    Each is its length (64 bits), a checksum of that, the record, and a checksum of it (TensorFlow,
    lib/io/record_writer.h). TensorFlow's own reader would read a bucket with TensorFlow's file system.
    """
    while head := file.read(12):
        if len(head) < 12 or masked(head[:8]) != head[8:]:
            raise ValueError("a record's length is damaged")
        length = int.from_bytes(head[:8], "little")
        record = file.read(length)
        checksum = file.read(4)
        if len(record) < length or masked(record) != checksum:
            raise ValueError("a record is damaged")
        yield record


def masked(data: bytes) -> bytes:
    """Returns TFRecord's masked crc32c: rotated by 15 bits, plus a constant."""
    value = google_crc32c.value(data)
    return (((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def _size(path: str) -> int | None:
    return os.path.getsize(path) if "://" not in path else _file(path).size


def _file(path: str) -> File:
    if "://" not in path:
        return File(path, None)
    system, stripped = fsspec.core.url_to_fs(path)
    try:
        info = remote.ask(system, ReadPolicy(), "info", stripped)
    except remote.ReadError as error:
        raise of_request(f"{path} cannot be read ({error})", error, "load the data set again") from error
    return File(path, info["size"], version_of(info))
