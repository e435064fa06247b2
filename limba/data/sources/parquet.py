"""Parquet files: each footer is read once, and of a row group only the requested columns."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from limba.config import InputError, reason_of
from limba.data.sources.columns import check_names, no_column, not_utf8
from limba.data.sources.failures import UnitError
from limba.data.sources.json_documents import (
    are_ids,
    flat,
    is_document,
    not_document,
    numbers_as_text,
    shortest,
    stored_name,
)
from limba.data.sources.remote import ReadError, ReadPolicy, open_file

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema
    from pyarrow.parquet import FileMetaData, RowGroupMetaData

PAGE_BYTES = 1 << 18  # bytes per read; else the whole column of a row group is read
Footers: TypeAlias = "Callable[[str, ReadPolicy], tuple[int, FileMetaData]]"  # `read_footer`, or with a cache


def read_footer(path: str, policy: ReadPolicy) -> tuple[int, FileMetaData]:
    """Returns (size of the file, pyarrow's metadata).

    Raises UnitError for a file that is not parquet, OSError for one that cannot be read.
    """
    import pyarrow
    import pyarrow.parquet

    with open_file(path, policy) as file:
        size = file.seek(0, 2)
        try:
            return size, pyarrow.parquet.read_metadata(file)
        except ReadError:
            raise
        except (OSError, pyarrow.ArrowException) as error:
            raise UnitError(f"{path} cannot be read as parquet ({reason_of(error)}); check the file.") from error


def row_group_of(path: str, metadata: FileMetaData, group: int) -> RowGroupMetaData:
    """Returns what the footer says of a row group; UnitError where the file no longer has it."""
    if group >= metadata.num_row_groups:
        raise UnitError(
            f"{path} has {metadata.num_row_groups} row groups, fewer than when the corpus was listed, so it was"
            " replaced meanwhile; restore the file, or start the same command again."
        )
    return metadata.row_group(group)


def parquet_values(
    path: str, group: int, columns: Sequence[str], policy: ReadPolicy, size: int, metadata: FileMetaData
) -> Iterator[tuple[str | bytes, ...]]:
    """Yields the texts of some columns of a row group, row by row; rows with a null are left out.

    With a policy that keeps rows without text, "" stands for a null.

    Raises UnitError for damaged pages, InputError for a column that does not hold text.
    """
    import pyarrow
    import pyarrow.parquet

    row_group = row_group_of(path, metadata, group)
    location = f"{path}, row group {group},"
    stored = [stored_name(name) for name in columns]
    try:
        _check_decrypted(metadata, group, stored, size)
        ranges = [_column_range(metadata, row_group, name, size) for name in stored]
        start = min(start for start, _ in ranges)
        stop = max(stop for _, stop in ranges)
        with open_file(path, policy, start, stop, size) as file:
            parquet = pyarrow.parquet.ParquetFile(
                file, metadata=metadata, buffer_size=PAGE_BYTES, pre_buffer=False, page_checksum_verification=True
            )
            for batch in parquet.iter_batches(64, row_groups=[group], columns=stored, use_threads=False):
                for row in zip(*(_texts(path, _column(batch, name), name, columns) for name in columns), strict=True):
                    if None not in row:
                        yield row
                    elif policy.keep_blank:
                        yield tuple("" if value is None else value for value in row)
    except ReadError:
        raise
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise UnitError(f"{location} cannot be read as parquet ({reason_of(error)}); check the file.") from error


def parquet_rows(
    path: str, group: int, columns: Sequence[str], policy: ReadPolicy, size: int, metadata: FileMetaData
) -> Iterator[dict]:
    """Yields the rows of a row group with all their columns; bytes that are UTF-8 as text. UnitError for damage.

    Numbers have the digits of `parquet_values` in some columns only: of an embedding this would take long.
    """
    import pyarrow
    import pyarrow.parquet

    check_names(path, metadata.schema.to_arrow_schema().names)
    try:
        with open_file(path, policy, 0, size, size) as file:
            parquet = pyarrow.parquet.ParquetFile(file, metadata=metadata, page_checksum_verification=True)
            for batch in parquet.iter_batches(64, row_groups=[group], use_threads=False):
                names = batch.schema.names
                wanted = {name if name in names else name.partition(".")[0] for name in map(stored_name, columns)}
                held = [
                    _values(values) if name in wanted else values.to_pylist()
                    for name, values in zip(names, batch.columns, strict=True)
                ]
                for row in zip(*held, strict=True):
                    values = (as_text(value) if isinstance(value, bytes) else value for value in row)
                    yield dict(zip(names, values, strict=True))
    except ReadError:
        raise
    except (OSError, pyarrow.ArrowException, ValueError, OverflowError) as error:
        raise UnitError(f"{path} cannot be read as parquet ({reason_of(error)}); check the file.") from error


def as_text(value: bytes) -> str | bytes:
    """Returns bytes as text if they are UTF-8: some programs write text without saying that it is text."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def check_column(path: str, schema: Schema, column: str) -> bool:
    """Raises InputError for a column that a file's schema lacks, or that has fields of its own; names those there are.

    Returns whether its values are lists of texts, which are joined.
    """
    import pyarrow.types

    name = stored_name(column)
    within = ""
    kind = None
    names = list(schema.names)
    while name not in names:
        first, _, rest = name.partition(".")
        if first not in names or not rest:
            raise no_column(path, column, [within + name for name in names])
        kind = (schema if kind is None else kind).field(first).type
        within = f"{within}{first}."
        name = rest
        if not pyarrow.types.is_struct(kind):
            raise InputError(
                f"{path} has no column {column!r}: {within.removesuffix('.')!r} holds {kind}, which has no fields; set"
                " DataConfig.column to another one.",
                field="DataConfig.column",
            )
        names = [field.name for field in kind]
    check_names(path, [other for other in names if other == name])
    kind = (schema if kind is None else kind).field(name).type
    if pyarrow.types.is_struct(kind):
        fields = [f"{within}{name}.{field.name}" for field in kind]
        raise InputError(
            f"{path} has fields in column {column!r}; set DataConfig.column to one of these:"
            f" {', '.join(map(repr, fields))}.",
            field="DataConfig.column",
            fix=("DataConfig.column", fields[0]) if fields else None,
        )
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    return is_list and any(
        is_kind(kind.value_type) for is_kind in (pyarrow.types.is_string, pyarrow.types.is_large_string)
    )


def _texts(path: str, values: Array, column: str, columns: Sequence[str]) -> list[str | bytes | None]:
    """Returns what one of some columns holds: texts, or ids as bytes; None for a null."""
    import pyarrow

    holds_ids = are_ids(columns)
    is_pair = len(columns) > 1
    if isinstance(values, pyarrow.DictionaryArray):
        values = values.dictionary_decode()
    texts = [flat(numbers_as_text(value) if is_pair else value, holds_ids) for value in _values(values)]
    if not holds_ids:
        texts = [as_text(value) if isinstance(value, bytes) else value for value in texts]
    for value in texts:
        if isinstance(value, bytes) and not holds_ids:
            raise not_utf8(path, column)
        if not is_document(value, holds_ids):
            raise not_document(path, value, column, holds_ids)
    return texts


def _values(values: Array) -> list[Any]:
    """Returns the values of a column; numbers of 16 and 32 bits, also in lists and structs, `shortest`."""
    short = _shortener(values.type)
    return [short(value) for value in values.to_pylist()] if short else values.to_pylist()


def _shortener(kind: DataType) -> Callable[[Any], Any] | None:
    """Returns what makes the numbers of 16 and 32 bits in a value of a type `shortest`; None if it holds none."""
    import numpy as np
    import pyarrow.types

    if pyarrow.types.is_float16(kind) or pyarrow.types.is_float32(kind):
        width = np.float16 if pyarrow.types.is_float16(kind) else np.float32
        return lambda number: None if number is None else shortest(number, width)
    if pyarrow.types.is_struct(kind):
        of_fields = {field.name: short for field in kind if (short := _shortener(field.type))}

        def of_struct(value: dict[str, Any] | None) -> Any:
            if value is None:
                return None
            return value | {name: short(value[name]) for name, short in of_fields.items()}

        return of_struct if of_fields else None
    of_value = _shortener(kind.value_type) if hasattr(kind, "value_type") else None
    if of_value is None:
        return None

    def of_list(value: Any) -> Any:
        return [of_value(entry) for entry in value] if isinstance(value, list) else of_value(value)

    return of_list


def _column(batch: RecordBatch, name: str) -> Array:
    """Returns a column of a batch; `translation.en` is the field `en` of `translation`."""
    import pyarrow.compute

    name = stored_name(name)
    if name in batch.schema.names or "." not in name:
        return batch.column(name)
    first, _, rest = name.partition(".")
    values = batch.column(first)
    while rest:
        names = [field.name for field in values.type]
        name = rest if rest in names else rest.partition(".")[0]  # a name may have a dot in it
        values = pyarrow.compute.struct_field(values, names.index(name))  # pyright: ignore[reportAttributeAccessIssue]
        rest = rest[len(name) + 1 :]
    return values


class _UnreadFile(io.RawIOBase):
    """A file of a size in which nothing is read: the first byte that is asked for is an _AskedError."""

    def __init__(self, size: int):
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        raise _AskedError


class _AskedError(Exception):
    pass


def _check_decrypted(metadata: FileMetaData, group: int, columns: Sequence[str], size: int) -> None:
    """Raises OSError if what the footer says of some columns of a row group is encrypted; reads nothing.

    Asking `RowGroupMetaData.column` for it ends the process: pyarrow does not catch what its C++ throws there.
    """
    import pyarrow.parquet

    parquet = pyarrow.parquet.ParquetFile(_UnreadFile(size), metadata=metadata, pre_buffer=False)
    with contextlib.suppress(_AskedError):
        next(parquet.iter_batches(1, row_groups=[group], columns=columns, use_threads=False), None)


def _column_range(metadata: FileMetaData, group: RowGroupMetaData, column: str, size: int) -> tuple[int, int]:
    """Returns the byte range [start, stop) of a row group's column, which is not encrypted."""
    starts = []
    stops = []
    for index in range(group.num_columns):
        path = metadata.schema.column(index).path
        if path == column or path.startswith(f"{column}."):
            chunk = group.column(index)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            starts.append(start)
            stops.append(start + chunk.total_compressed_size)
    return min(starts, default=0), min(max(stops, default=size), size)
