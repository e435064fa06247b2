"""What a corpus holds, before a run is planned: its columns, documents, bytes, letters and scripts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import fsspec

from limba.api import UnitSource, records, source_of_files
from limba.config import InputError, foreign

BYTES_READ = 1 << 26  # of text; a larger corpus is counted from as much of it, in units all over it
UNITS_AT_ONCE = 256  # of a large corpus, how many units are looked at, at most
LETTERS_SEEN = 1 << 21
TABLES, PACKED = ("csv", "tsv", "json", "jsonl", "ndjson"), (".gz", ".zst", ".bz2", ".xz")
USUAL = "text"


class Survey(NamedTuple):
    """A corpus's figures; `documents` and `bytes` (of text) are estimated from a part of it unless `is_whole`."""

    column: str
    columns: Sequence[str]  # those that hold text, in the first file; () where that is not known
    files: int
    documents: int
    bytes: int
    letters: int  # and spaces
    is_whole: bool
    has_spaces: bool = True  # between its words

    @property
    def validation_percent(self) -> float:
        """The share of documents that are not trained on: some at least, of a small corpus too."""
        return 1.0 if self.documents >= 10_000 else 5.0 if self.documents >= 200 else 20.0


def survey(corpus: str, column: str | None = None, progress: Callable[[int], object] | None = None) -> Survey:
    """Returns the figures of files or of a data set of the hub; reads at most BYTES_READ of its text.

    Without `column` it is `text`, or else the only one with text. `progress` is called with the bytes read so far.
    Raises InputError for a corpus that cannot be read, a column that it lacks, and one without a document.
    """
    source = source_of_files(corpus, USUAL)
    files = source.listed("train")
    columns = text_columns(files[0].path)
    chosen = column or _chosen(columns, files[0].path)
    source = source_of_files(corpus, chosen)
    counted = _counted(source, progress)
    if not counted.documents:
        raise InputError(f"{source.name} holds no document with text; give files with text in them.")
    return counted._replace(column=chosen, columns=columns, files=len(files))


def _chosen(columns: Sequence[str], path: str) -> str:
    if not columns or USUAL in columns:
        return USUAL
    if len(columns) == 1:
        return columns[0]
    raise InputError(f"{path} has no column {USUAL!r}, and several with text; set DataConfig.column to one of"
                     f" {', '.join(map(repr, columns))}.")  # fmt: skip


def _counted(source: UnitSource, progress: Callable[[int], object] | None) -> Survey:
    units = source.units("train")
    spread = max(1, -(-len(units) // UNITS_AT_ONCE))
    order = sorted(range(0, len(units), spread), key=lambda place: (place // spread % 16, place))  # all over the corpus
    documents = size = seen = seen_bytes = read = 0
    for number in order:
        if size >= BYTES_READ and read:
            break
        for chunk in itertools.count():
            found = source.read_whole("train", units[number], chunk)
            if found is None:
                read += 1
                break
            documents += len(found)
            size += sum(map(len, found))
            if seen < LETTERS_SEEN:
                text = b"".join(found).decode(errors="replace")
                seen += len(text)
                seen_bytes = size
            if progress is not None:
                progress(size)
    factor = len(units) / max(read, 1)
    total = round(size * factor)
    per_byte = seen / max(seen_bytes, 1)
    return Survey(
        column="", columns=(), files=0, documents=round(documents * factor), bytes=total,
        letters=round(total * per_byte), is_whole=read == len(units),
    )  # fmt: skip


def text_columns(path: str) -> tuple[str, ...]:
    """Returns the names of a file's columns that hold text in its first record; () for a file without columns.

    Raises InputError for a file that cannot be read.
    """
    packed = path.split("?")[0].lower()
    form = packed.removesuffix(next((each for each in PACKED if packed.endswith(each)), "")).rpartition(".")[2]
    if form != "parquet" and form not in TABLES:
        return ()
    with foreign.reading(path, "check the file"):
        if form == "parquet":
            return _parquet_columns(path)
        _, record = next(records(path), ("", {}))
    return tuple(name for name, value in record.items() if isinstance(value, str))


def _parquet_columns(path: str) -> tuple[str, ...]:
    import pyarrow.parquet

    with fsspec.open(path, "rb") as file:  # of a row group only these names are wanted
        schema = pyarrow.parquet.ParquetFile(file).schema_arrow
    kinds = (pyarrow.types.is_string, pyarrow.types.is_large_string)
    values = {
        field.name: field.type.value_type if pyarrow.types.is_dictionary(field.type) else field.type for field in schema
    }
    return tuple(name for name, value in values.items() if any(kind(value) for kind in kinds))
