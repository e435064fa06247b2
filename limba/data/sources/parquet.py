"""Parquet files: each footer is read once, and of a row group only the requested columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from limba.config import InputError, reason_of
from limba.data.sources.columns import check_names, no_column
from limba.data.sources.failures import RecordError, UnitError
from limba.data.sources.json_documents import are_ids, flat, is_document, not_document, numbers_as_text, stored_name
from limba.data.sources.remote import ReadError, ReadPolicy, open_file

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch, Schema
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
    ranges = [_column_range(row_group, column, size) for column in columns]
    start = min(start for start, _ in ranges)
    stop = max(stop for _, stop in ranges)
    location = f"{path}, row group {group},"
    try:
        with open_file(path, policy, start, stop, size) as file:
            parquet = pyarrow.parquet.ParquetFile(
                file, metadata=metadata, buffer_size=PAGE_BYTES, pre_buffer=False, page_checksum_verification=True
            )
            for batch in parquet.iter_batches(
                64, row_groups=[group], columns=[stored_name(name) for name in columns], use_threads=False
            ):
                for row in zip(*(_texts(path, _column(batch, name), name, columns) for name in columns), strict=True):
                    if None not in row:
                        yield row
                    elif policy.keep_blank:
                        yield tuple("" if value is None else value for value in row)
    except ReadError:
        raise
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise UnitError(f"{location} cannot be read as parquet ({reason_of(error)}); check the file.") from error


def parquet_rows(path: str, group: int, policy: ReadPolicy, size: int, metadata: FileMetaData) -> Iterator[dict]:
    """Yields the rows of a row group with all their columns; bytes that are UTF-8 as text. UnitError for damage."""
    import pyarrow
    import pyarrow.parquet

    check_names(path, metadata.schema.to_arrow_schema().names)
    try:
        with open_file(path, policy, 0, size, size) as file:
            parquet = pyarrow.parquet.ParquetFile(file, metadata=metadata, page_checksum_verification=True)
            for batch in parquet.iter_batches(64, row_groups=[group], use_threads=False):
                for row in batch.to_pylist():
                    yield {name: as_text(value) if isinstance(value, bytes) else value for name, value in row.items()}
    except ReadError:
        raise
    except (OSError, pyarrow.ArrowException, ValueError) as error:
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
    texts = [flat(numbers_as_text(value) if is_pair else value, holds_ids) for value in values.to_pylist()]
    if not holds_ids:
        texts = [as_text(value) if isinstance(value, bytes) else value for value in texts]
    for value in texts:
        if isinstance(value, bytes) and not holds_ids:
            raise RecordError(
                f"{path} holds bytes in column {column!r} that are not text in UTF-8; set DataConfig.column to another"
                " one, or write the texts as UTF-8."
            )
        if not is_document(value, holds_ids):
            raise not_document(path, value, column, holds_ids)
    return texts


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


def _column_range(group: RowGroupMetaData, column: str, size: int) -> tuple[int, int]:
    """Returns the byte range [start, stop) of a row group's column."""
    starts = []
    stops = []
    column = stored_name(column)
    for index in range(group.num_columns):
        chunk = group.column(index)
        if chunk.path_in_schema == column or chunk.path_in_schema.startswith(f"{column}."):
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            starts.append(start)
            stops.append(start + chunk.total_compressed_size)
    return min(starts, default=0), min(max(stops, default=size), size)
