"""Parquet files: each footer is read once, and of a row group only the requested columns."""

from __future__ import annotations

import array
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from limba.config import InputError, reason_of
from limba.data.sources.remote import ReadError, ReadPolicy, open_file

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch
    from pyarrow.parquet import FileMetaData, RowGroupMetaData

TOKENS = "tokens"  # a column of documents tokenized beforehand: int32 ids as bytes
MAGIC = b"PAR1"
PAGE_BYTES = 1 << 18  # bytes per read; else the whole column of a row group is read
FOOTER_BYTES = 1 << 16  # bytes read first, at most 1/256 of the file, to find the footer


class UnitError(InputError):
    """Only one unit is damaged or unreadable, so a run may skip it."""


class Footers:
    """Returns (size of the file, pyarrow's metadata) of a path; caches up to 32 MB of them.

    Raises UnitError for a file that is not parquet, OSError for one that cannot be read.
    """

    MOST_BYTES = 1 << 25

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, tuple[int, FileMetaData]] = OrderedDict()
        self._num_bytes = 0

    def __call__(self, path: str, policy: ReadPolicy) -> tuple[int, FileMetaData]:
        with self._lock:
            if path in self._cache:
                self._cache.move_to_end(path)
                return self._cache[path]
        found = _read_footer(path, policy)
        with self._lock:
            if path not in self._cache:
                self._cache[path] = found
                self._num_bytes += found[1].serialized_size
            while self._num_bytes > self.MOST_BYTES and len(self._cache) > 1:
                _, (_, metadata) = self._cache.popitem(last=False)
                self._num_bytes -= metadata.serialized_size
        return found


def _read_footer(path: str, policy: ReadPolicy) -> tuple[int, FileMetaData]:
    import pyarrow
    import pyarrow.parquet

    def damaged(reason: str) -> UnitError:
        return UnitError(f"{path} cannot be read as parquet ({reason}); check the file.")

    with open_file(path, policy) as file:
        size = file.seek(0, 2)
        if size < 12:
            raise damaged(f"{size} bytes are too few")

        def last(count: int) -> bytes:
            file.seek(size - count)
            return file.read(count)

        tail = last(min(size, max(8, min(FOOTER_BYTES, size >> 8))))
        if tail[-4:] != MAGIC:
            raise damaged("it does not end with PAR1")
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > size:
            raise damaged("its footer is longer than the file")
        if length > len(tail):
            tail = last(length)
    try:
        return size, pyarrow.parquet.read_metadata(pyarrow.BufferReader(MAGIC + tail[-length:]))
    except (OSError, pyarrow.ArrowException) as error:
        raise damaged(reason_of(error)) from error


def parquet_values(
    path: str, group: int, columns: Sequence[str], policy: ReadPolicy, size: int, metadata: FileMetaData
) -> Iterator[tuple[str | bytes, ...]]:
    """Yields the texts of some columns of a row group, row by row; rows with a null are left out.

    Raises UnitError for damaged pages, InputError for a column that does not hold text.
    """
    import pyarrow
    import pyarrow.parquet

    ranges = [_column_range(metadata.row_group(group), column, size) for column in columns]
    start, stop = min(start for start, _ in ranges), max(stop for _, stop in ranges)
    place = f"{path}, row group {group},"
    try:
        with open_file(path, policy, start, stop, size) as file:
            parquet = pyarrow.parquet.ParquetFile(
                file, metadata=metadata, buffer_size=PAGE_BYTES, pre_buffer=False, page_checksum_verification=True
            )
            for batch in parquet.iter_batches(
                64, row_groups=[group], columns=[stored_name(name) for name in columns], use_threads=False
            ):
                is_pair = len(columns) > 1
                for row in zip(*(_texts(path, _column(batch, name), name, is_pair) for name in columns), strict=True):
                    if None not in row:
                        yield row
    except ReadError:
        raise
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise UnitError(f"{place} cannot be read as parquet ({reason_of(error)}); check the file.") from error


def _texts(path: str, values: Array, column: str, is_pair: bool) -> list[str | bytes | None]:
    import pyarrow

    if isinstance(values, pyarrow.DictionaryArray):
        values = values.dictionary_decode()
    texts = [flat(numbers_as_text(value) if is_pair else value, column) for value in values.to_pylist()]
    for value in texts:
        if value is not None and not isinstance(value, bytes if column == TOKENS else str):
            raise not_text(path, value, column)
    return texts


def stored_name(column: str) -> str:
    """Returns a column's name in the file: `words[]` are the words of the column `words`, as one text."""
    return column.removesuffix("[]")


def numbers_as_text(value: object) -> object:
    """Returns a number, or a list of them, as text: so labels and scores are often stored beside a text.

    >>> numbers_as_text(4.5), numbers_as_text([1, 0]), numbers_as_text("a")
    ('4.5', '1 0', 'a')
    """
    numbers = value if isinstance(value, list) else [value]
    if all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        return " ".join(map(str, numbers))
    return value


def flat(value: Any, column: str) -> Any:
    r"""Returns a list of words as text with spaces between, and ids in the column `tokens` as int32 bytes.

    >>> flat(["to", "be"], "words"), flat([5, 1], "tokens"), flat(["to", "be"], "tokens[]"), flat([1], "text")
    ('to be', b'\x05\x00\x00\x00\x01\x00\x00\x00', 'to be', [1])
    """
    if not isinstance(value, list) or not value:
        return "" if value == [] else value
    if column != TOKENS and all(isinstance(word, str) for word in value):
        return " ".join(value)
    if column == TOKENS and all(isinstance(number, int) and not isinstance(number, bool) for number in value):
        return array.array("i", value).tobytes()
    return value


def _column(batch: RecordBatch, name: str) -> Array:
    """Returns a column of a batch; `translation.en` is the field `en` of `translation`."""
    import pyarrow.compute

    name = stored_name(name)
    if name in batch.schema.names or "." not in name:
        return batch.column(name)
    first, *fields = name.split(".")
    return pyarrow.compute.struct_field(batch.column(first), fields)  # pyright: ignore[reportAttributeAccessIssue]


def not_text(place: str, value: object, column: str, kind: type[InputError] = InputError) -> InputError:
    """Returns the error for a value that is not text."""
    found, better = f"{type(value).__name__} in column {column!r}, not text", "another one"
    if column == TOKENS and isinstance(value, list):
        found, better = f"words in column {column!r}, a name for ids", f"'{column}[]'"
    return kind(f"{place} holds {found}; set DataConfig.column to {better}.", field="DataConfig.column")


def _column_range(group: RowGroupMetaData, column: str, size: int) -> tuple[int, int]:
    """Returns the byte range [start, stop) of a row group's column."""
    starts, stops, column = [], [], stored_name(column)
    for index in range(group.num_columns):
        chunk = group.column(index)
        if chunk.path_in_schema == column or chunk.path_in_schema.startswith(f"{column}."):
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            starts.append(start)
            stops.append(start + chunk.total_compressed_size)
    return min(starts, default=0), min(max(stops, default=size), size)
