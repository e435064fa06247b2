"""Files of records: ArrayRecord, for random access, and parquet, which other programs read too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from limba.api import example_class

TOKENS = "tokens"  # the column that a run reads as ids
ROWS_PER_GROUP = 1_000  # of parquet; a unit of reading


class ShardWriter(Protocol):
    """Writes records, a value for each column, until it is closed."""

    def __init__(self, path: str, columns: Sequence[str]): ...
    def write(self, record: Sequence[bytes]) -> None: ...
    def close(self) -> None: ...


class ArrayRecordWriter:
    """Each record is a serialized tf.train.Example with one bytes feature for each column."""

    def __init__(self, path: str, columns: Sequence[str]):
        from array_record.python.array_record_module import ArrayRecordWriter as Writer

        self._columns = columns
        # Groups of one: a single record can be read, while a larger group would have to be unpacked whole.
        self._file = Writer(path, "group_size:1")

    def write(self, record: Sequence[bytes]) -> None:
        example = example_class()()
        for column, value in dict(zip(self._columns, record, strict=True)).items():
            example.features.feature[column].bytes_list.value.append(value)
        self._file.write(example.SerializeToString())

    def close(self) -> None:
        if self._file.is_open():
            self._file.close()


class ParquetWriter:
    """The column `tokens` is bytes, any other column is strings."""

    def __init__(self, path: str, columns: Sequence[str]):
        import pyarrow as pa
        import pyarrow.parquet

        self._columns = columns
        self._schema = pa.schema(
            [(column, pa.binary() if column == TOKENS else pa.string()) for column in dict.fromkeys(columns)]
        )
        self._file = pyarrow.parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, bytes]] = []

    def write(self, record: Sequence[bytes]) -> None:
        self._rows.append(dict(zip(self._columns, record, strict=True)))
        if len(self._rows) == ROWS_PER_GROUP:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        values = [
            pa.array([row[field.name] for row in self._rows], pa.binary()).cast(field.type) for field in self._schema
        ]
        self._file.write_table(pa.table(values, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        if self._rows:
            self._write_group()
        self._file.close()


SHARD_WRITERS: dict[str, type[ShardWriter]] = {"array_record": ArrayRecordWriter, "parquet": ParquetWriter}
