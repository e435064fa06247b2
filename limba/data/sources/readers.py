"""A unit's documents, in chunks of about 256 KiB of text and in bounded memory.

Chunk k of a unit is always the same documents, so a data position is three numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from limba.config import InputError
from limba.config.errors import is_out_of_memory
from limba.config.untrusted_files import reason_for
from limba.data.sources.columns import joined, say_of_list
from limba.data.sources.failures import UNREADABLE, RecordError, UnitError, of_request
from limba.data.sources.json_documents import are_ids
from limba.data.sources.json_rows import json_texts
from limba.data.sources.lines import texts_of_lines
from limba.data.sources.listing import Unit, file_format
from limba.data.sources.parquet import Footers, check_column, parquet_values, read_footer
from limba.data.sources.remote import PATIENT, ReadError, ReadPolicy, in_place, open_file, unpacked
from limba.data.sources.table_rows import table_texts

CHUNK_BYTES = 1 << 18
LEAST_CHUNK_BYTES = 1 << 14
BYTES_OF_ALL_TASKS = 1 << 22  # of one chunk of each task of a mixture, about
CHUNK_DOCUMENTS = 4096


def read_chunks(
    unit: Unit, column: str | Sequence[str], policy: ReadPolicy = PATIENT, footers: Footers = read_footer
) -> Iterator[list[bytes]]:
    """Yields the unit's documents as UTF-8 in lists of about 256 KiB, of less in a mixture of many tasks.

    Blank ones are left out, but for a policy.

    A document of several columns has their texts in order with FIELD_SEPARATOR between them; rows with an empty text
    are skipped.

    Raises InputError, which names the file and the place, for a unit that cannot be opened, decoded or parsed,
    and for a missing column; UnitError if only this unit may be damaged.
    """
    columns = (column,) if isinstance(column, str) else tuple(column)
    with _faults(unit):
        if file_format(unit.path)[0] == "parquet":
            yield from in_chunks(_parquet(unit, columns, policy, footers), policy)
            return
        form, packed = file_format(unit.path)
        with open_file(unit.path, policy, unit.start, unit.stop) as raw:
            file = unpacked(raw, packed)
            if form in ("csv", "tsv"):
                rows = table_texts(unit, file, form, columns)
            elif form == "json":
                rows = json_texts(unit, file, columns)
            elif len(columns) > 1:
                raise InputError(
                    f"{unit.path} has no columns, and the task reads {columns}; give .jsonl, .csv, .tsv or .parquet."
                )
            elif are_ids(columns):
                raise InputError(
                    f"{unit.path} holds lines of text, and the column 'tokens' is a name for ids; leave"
                    " DataConfig.column out.",
                    field="DataConfig.column",
                )
            else:
                rows = texts_of_lines(unit, file)
            yield from in_chunks(rows, policy)


def chunk_bytes(num_tasks: int) -> int:
    """Returns the size of a chunk, about, where so many tasks are read side by side."""
    return min(CHUNK_BYTES, max(LEAST_CHUNK_BYTES, BYTES_OF_ALL_TASKS // num_tasks))


def in_chunks(rows: Iterator[bytes], policy: ReadPolicy) -> Iterator[list[bytes]]:
    """Yields lists of the documents that are not blank, of `chunk_bytes` about; the last one is shorter."""
    enough = chunk_bytes(policy.num_tasks)
    chunk = []
    size = 0
    try:
        for row in rows:
            if policy.keep_blank or (row and not row.isspace()):
                chunk.append(row)
                size += len(row)
            if size >= enough or len(chunk) >= CHUNK_DOCUMENTS:
                yield chunk
                chunk = []
                size = 0
    except RecordError:
        # The half chunk before a bad line is yielded only if the rest is skipped for good, not if the run stops until
        # the line is corrected, and not after a network failure.
        if chunk and policy.on_failure == "skip":
            yield chunk
        raise
    if chunk:
        yield chunk


def _parquet(unit: Unit, columns: Sequence[str], policy: ReadPolicy, footers: Footers) -> Iterator[bytes]:
    size, metadata = footers(unit.path, policy)
    schema = metadata.schema.to_arrow_schema()
    for column in columns:
        if check_column(unit.path, schema, column) and not column.endswith("[]"):
            say_of_list(unit.path, column)
    for values in parquet_values(unit.path, unit.start, columns, policy, size, metadata):
        yield joined(values)


@contextlib.contextmanager
def _faults(unit: Unit) -> Iterator[None]:
    """Raises UnitError, which names the unit, for what reading and unpacking it raises; see `read_chunks`."""
    try:
        yield
    except InputError:
        raise
    except ReadError as error:
        raise of_request(
            f"{unit.place} cannot be read ({error})",
            error,
            "check the file and its permissions",
            UnitError,
            ", or set DataConfig.on_read_failure to 'skip' to leave it out",
            ("DataConfig.on_read_failure", "skip"),
        ) from error
    except UNREADABLE as error:
        if is_out_of_memory(error):  # the unit is not at fault, and must not be skipped
            raise
        is_cut = isinstance(error, EOFError) and file_format(unit.path)[1] == ".gz"
        raise UnitError(
            f"{unit.place} cannot be read ({reason_for(error)}); check the file and its permissions.",
            fix=in_place(unit.path, "gzip -dc {} | sed '$d' | gzip") if is_cut else None,  # all lines that are whole
        ) from error
