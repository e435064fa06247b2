"""What a corpus holds, before a run is planned: its columns, documents, bytes, letters and scripts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import fsspec

from limba.api import UnitSource, records, source_of_files
from limba.config import InputError, untrusted_files

BYTES_READ = 1 << 26  # of text; this much of a larger corpus is read, in units all over it, and the rest estimated
MOST_UNITS = 256  # of a large corpus that are read
LETTERS_SEEN = 1 << 21  # from which the letters of a byte are counted
TABLES = ("csv", "tsv", "json", "jsonl", "ndjson")
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
USUAL_COLUMN = "text"


class Survey(NamedTuple):
    """A corpus's figures; `documents` and `bytes` (of text) are estimated from a part of it unless `is_whole`."""

    column: str
    columns: Sequence[str]  # those that hold text, in the first file, and `column`; () where that is not known
    files: int
    documents: int
    bytes: int
    letters: int  # and spaces
    is_whole: bool
    has_spaces: bool = True  # between its words

    @property
    def validation_percent(self) -> float:
        """The share of documents that are not trained on: some at least, of a small corpus too."""
        if self.documents >= 10_000:
            return 1.0
        return 5.0 if self.documents >= 200 else 20.0


def survey(corpus: str, column: str | None = None, progress: Callable[[int], object] | None = None) -> Survey:
    """Returns the figures of files or of a data set of the hub; reads at most BYTES_READ of its text.

    Without `column` it is `text`, or else the only one with text. `progress` is called with the bytes read so far.
    Raises InputError for a corpus that cannot be read, a column that it lacks, and one without a document.
    """
    source = source_of_files(corpus, USUAL_COLUMN)
    files = source.listed("train")
    columns = text_columns(files[0].path)
    chosen = column or _chosen(columns, files[0].path)
    source = source_of_files(corpus, chosen)
    counted = _counted(source, progress)
    if not counted.documents:
        raise InputError(f"{source.name} holds no document with text; give files with text in them.")
    if columns and chosen not in columns:  # a nested field, a list of texts, or one that the first record lacks
        columns = (*columns, chosen)
    return counted._replace(column=chosen, columns=columns, files=len(files))


def _chosen(columns: Sequence[str], path: str) -> str:
    if not columns or USUAL_COLUMN in columns:
        return USUAL_COLUMN
    if len(columns) == 1:
        return columns[0]
    raise InputError(f"{path} has no column {USUAL_COLUMN!r}, and several with text; set DataConfig.column to one of"
                     f" {', '.join(map(repr, columns))}.")  # fmt: skip


def _counted(source: UnitSource, progress: Callable[[int], object] | None) -> Survey:
    """Returns the documents, bytes and letters of a source, estimated from the units that are read."""
    units = source.units("train")
    step = max(1, -(-len(units) // MOST_UNITS))
    # Every 16th of these first, so that a corpus which is not read to its end is still read all over.
    order = sorted(range(0, len(units), step), key=lambda unit: (unit // step % 16, unit))
    num_documents = 0
    num_bytes = 0
    num_letters = 0
    bytes_of_letters = 0  # in which these letters are counted
    num_read = 0  # units
    for unit in order:
        if num_bytes >= BYTES_READ and num_read:
            break
        for chunk in itertools.count():
            documents = source.read_whole("train", units[unit], chunk)
            if documents is None:
                num_read += 1
                break
            num_documents += len(documents)
            num_bytes += sum(map(len, documents))
            if num_letters < LETTERS_SEEN:
                num_letters += len(b"".join(documents).decode(errors="replace"))
                bytes_of_letters = num_bytes
            if progress is not None:
                progress(num_bytes)
    factor = len(units) / max(num_read, 1)
    total_bytes = round(num_bytes * factor)
    letters_per_byte = num_letters / max(bytes_of_letters, 1)
    return Survey(
        column="",
        columns=(),
        files=0,
        documents=round(num_documents * factor),
        bytes=total_bytes,
        letters=round(total_bytes * letters_per_byte),
        is_whole=num_read == len(units),
    )


def text_columns(path: str) -> tuple[str, ...]:
    """Returns the names of a file's columns that hold text in its first record; () for a file without columns.

    Raises InputError for a file that cannot be read.
    """
    name = path.split("?")[0].lower()  # without the query of a URL
    compression = next((ending for ending in COMPRESSIONS if name.endswith(ending)), "")
    name = name.removesuffix(compression)
    file_format = name.rpartition(".")[2]
    if file_format != "parquet" and file_format not in TABLES:
        return ()
    with untrusted_files.reading(path, "check the file"):
        if file_format == "parquet":
            return _parquet_columns(path)
        _, record = next(records(path), ("", {}))
    return tuple(name for name, value in record.items() if isinstance(value, str))


def _parquet_columns(path: str) -> tuple[str, ...]:
    import pyarrow.parquet

    with fsspec.open(path, "rb") as file:  # only the schema is read
        schema = pyarrow.parquet.ParquetFile(file).schema_arrow
    names = []
    for field in schema:
        kind = field.type
        if pyarrow.types.is_dictionary(kind):
            kind = kind.value_type
        if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
            names.append(field.name)
    return tuple(names)
