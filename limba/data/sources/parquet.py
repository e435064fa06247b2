"""Parquet files: each footer is read once, and of a row group only the requested columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from limba.config import InputError, reason_of
from limba.data.sources.json_documents import TOKENS, flat, not_text, numbers_as_text, stored_name
from limba.data.sources.remote import ReadError, ReadPolicy, open_file

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch
    from pyarrow.parquet import FileMetaData, RowGroupMetaData

PAGE_BYTES = 1 << 18  # bytes per read; else the whole column of a row group is read
Footers: TypeAlias = "Callable[[str, ReadPolicy], tuple[int, FileMetaData]]"  # `read_footer`, or with a cache


class UnitError(InputError):
    """Only one unit is damaged or unreadable, so a run may skip it."""


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


def _column(batch: RecordBatch, name: str) -> Array:
    """Returns a column of a batch; `translation.en` is the field `en` of `translation`."""
    import pyarrow.compute

    name = stored_name(name)
    if name in batch.schema.names or "." not in name:
        return batch.column(name)
    first, *fields = name.split(".")
    return pyarrow.compute.struct_field(batch.column(first), fields)  # pyright: ignore[reportAttributeAccessIssue]


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
