"""What a corpus holds, before a run is planned: its columns, documents, bytes, letters and scripts."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import zstandard

from limba.config import InputError
from limba.config.errors import reason_of
from limba.data.sources.compression import unpacked
from limba.data.sources.json_documents import HEAD_BYTES, JsonError, array_records, is_array
from limba.data.sources.parquet import Footers
from limba.data.sources.readers import PATIENT, file_format
from limba.data.sources.remote import open_file
from limba.data.sources.units import UnitSource
from limba.data.tasks import source_of_files

BYTES_READ = 1 << 26  # of text; a larger corpus is counted from as much of it, in units all over it
UNITS_AT_ONCE = 256  # of a large corpus, how many units are looked at, at most
HEAD = 1 << 20  # bytes of a csv file, for its first line
LETTERS_SEEN = 1 << 21
USUAL = "text"
# Scripts that are written without spaces: kana, Chinese characters, Thai, Lao, Burmese, Khmer.
UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")


class Survey(NamedTuple):
    """A corpus's figures; `documents` and `bytes` (of text) are estimated from a part of it unless `is_whole`."""

    column: str
    columns: Sequence[str]  # those that hold text, in the first file; () where that is not known
    files: int
    documents: int
    bytes: int
    letters: int  # and spaces
    unspaced: float  # the share of letters in scripts that are written without spaces
    is_whole: bool


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
    spread = -(-len(units) // UNITS_AT_ONCE)
    order = sorted(range(0, len(units), spread), key=lambda place: (place // spread % 16, place))  # all over the corpus
    documents = size = letters = unspaced = seen = seen_bytes = read = 0
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
                letters += sum(not each.isspace() for each in text)
                unspaced += len(UNSPACED.findall(text))
                seen_bytes = size
            if progress is not None:
                progress(size)
    factor = len(units) / max(read, 1)
    total = round(size * factor)
    per_byte = seen / max(seen_bytes, 1)
    return Survey(
        column="", columns=(), files=0, documents=round(documents * factor), bytes=total,
        letters=round(total * per_byte), unspaced=unspaced / max(letters, 1), is_whole=read == len(units),
    )  # fmt: skip


def text_columns(path: str) -> tuple[str, ...]:
    """Returns the names of a file's columns that hold text in its first record; () for a file without columns.

    Raises InputError for a file that cannot be read.
    """
    form, packed = file_format(path)
    if form in ("text", "array_record"):
        return ()
    try:
        if form == "parquet":
            return _parquet_columns(path)
        with open_file(path, PATIENT, 0, None) as raw:
            file = io.BufferedReader(unpacked(raw, packed), HEAD)  # pyright: ignore[reportArgumentType]
            if form == "csv":
                header = file.peek(HEAD).decode("utf-8-sig", "replace").splitlines()[:1]
                return tuple(next(csv.reader(header), ()))
            record = _first_record(file)
    except (OSError, EOFError, ValueError, zlib.error, zstandard.ZstdError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read ({reason_of(error)}); check the file.") from error
    return tuple(name for name, value in record.items() if isinstance(value, str))


def _first_record(file: io.BufferedReader) -> Mapping[str, object]:
    if is_array(file.peek(HEAD_BYTES)[:HEAD_BYTES]):
        try:
            record = next((record for _, record in array_records(file)), {})
        except JsonError:
            return {}  # the reader of the corpus says where
    else:
        line = next((line for line in file if line.strip()), b"{}")
        try:
            record = json.loads(line.decode("utf-8-sig", "replace"))
        except ValueError:
            return {}
    return record if isinstance(record, dict) else {}


def _parquet_columns(path: str) -> tuple[str, ...]:
    import pyarrow

    schema = Footers()(path, PATIENT)[1].schema.to_arrow_schema()
    kinds = (pyarrow.types.is_string, pyarrow.types.is_large_string)
    return tuple(field.name for field in schema if any(kind(field.type) for kind in kinds))
