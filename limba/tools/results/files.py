"""Readers of the files that tasks are published as: JSON, parquet, TSV, CSV, CoNLL-U and its relatives; .gz, .zip.

A file is local, or `hub:user/name/path`: of a data set of the hub, in the cache of the hub's own library.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.api import records, text_lines
from limba.config import InputError, kinds, untrusted_files

Row = tuple[str, Mapping[str, object]]  # where it stands, and its columns
DOCUMENT = "document"  # the column that says which rows belong together
TABLES = (".tsv", ".csv")
OBJECTS = (".json", ".parquet")  # how the layouts begin whose rows are objects
LAYOUTS = (".json", ".jsonl", ".parquet", *TABLES)
COPY = "copy it again"
MOST_UNPACKED = 1 << 32  # bytes of a file in an archive, which is held in memory
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(\w[\w./-]*))?")  # of a model
HUB = re.compile(r"(hub:([\w.-]+/[\w.-]+)(?:@((?:refs/\w+/)?[\w.-]+))?/(.+))")


class HubFile(NamedTuple):
    """A file of a data set of the hub: its address, user/name, the revision (None: the newest), and the path there."""

    address: str
    name: str
    revision: str | None
    path: str

    @property
    def download(self) -> str:
        """The command that brings it to this machine."""
        revision = f" --revision={self.revision}" if self.revision else ""
        return f"hf download {self.name} {self.path} --repo-type=dataset{revision}"


class Sentence(NamedTuple):
    """A sentence of a treebank: where it begins, the wanted columns of its tokens, and its document."""

    where: str
    cells: list[list[str]]
    document: str


def hub_id(name: str) -> tuple[str, str | None] | None:
    """Returns the id and the revision of a name that may be a model of the hub's; None for any other.

    >>> hub_id("google/mt5-small@v1"), hub_id("gpt2"), hub_id("runs/ro/export")
    (('google/mt5-small', 'v1'), ('gpt2', None), None)
    """
    match = HUB_ID.fullmatch(name)
    return None if match is None else (match[1], match[2])


def on_hub(folder: str, name: str) -> HubFile | None:
    """Returns the hub's file of a name, or of a local name in a data set; None if it is local.

    >>> on_hub("hub:me/set@v1", "a/b.parquet"), on_hub("data", "b.parquet")
    (HubFile(address='hub:me/set@v1/a/b.parquet', name='me/set', revision='v1', path='a/b.parquet'), None)
    """
    whole = name
    if folder.startswith("hub:") and not name.startswith(("hub:", "/", "~")):
        whole = f"{folder}/{name}"
    match = HUB.fullmatch(whole)
    if match is None and whole.startswith("hub:"):
        raise InputError(
            f"{whole} is not a file of a data set; write hub:user/name/path, or hub:user/name@revision/path."
        )
    return match and HubFile(*match.groups())


def found_at(folder: str, name: str) -> Path | None:
    """Returns where a task's file is on this machine, None if it is not: of the hub's, in its library's cache."""
    kinds.check_local(name, "The task's file")
    if file := on_hub(folder, name):
        import huggingface_hub

        find = huggingface_hub.try_to_load_from_cache
        cached = find(file.name, file.path, revision=file.revision, repo_type="dataset")
        return Path(cached) if isinstance(cached, str) else None
    path = Path(folder).expanduser() / Path(name).expanduser()
    return path if path.is_file() else None


def place_of(folder: str, name: str) -> Path:
    """Returns the path of a task's file; InputError if it is not there."""
    if path := found_at(folder, name):
        return path
    if file := on_hub(folder, name):
        raise InputError(f"{file.address} is not on this machine yet; run {file.download}.")
    path = Path(folder).expanduser() / Path(name).expanduser()
    if path.exists():
        raise InputError(f"{path} is not a regular file; name the folder of the suite's files as --data=FOLDER.")
    raise InputError(f"{path} does not exist; name the folder of the suite's files as --data=FOLDER.")


def checksum(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    untrusted_files.check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_of(path: Path) -> bytes:
    """Returns the content of a file, unpacked from .gz, or from .zip as its first file.

    Raises InputError for a damaged archive.
    """
    with untrusted_files.reading(path, COPY):
        packed = untrusted_files.bytes_of(path)
        if path.suffix == ".gz":
            return gzip.decompress(packed)
        if path.suffix != ".zip":
            return packed
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            names = [member for member in archive.infolist() if not member.is_dir()]
            if not names:
                raise InputError(f"{path} is an empty archive; copy it again.")
            if names[0].file_size > MOST_UNPACKED:
                raise InputError(f"{path} holds {names[0].file_size:,} bytes in {names[0].filename}; unpack it first.")
            return archive.read(names[0])


def text_of(path: Path) -> str:
    """Returns the text of a file as `bytes_of`, without a byte order mark; InputError if it is not UTF-8."""
    data = bytes_of(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(f"{path} line {line} is not text in UTF-8; convert the file.") from None


def lines_of(path: Path) -> list[str]:
    r"""Returns the lines of a file. They end with \n or \r\n alone, not with what else Unicode calls a line's end."""
    return list(text_lines(str(path), io.BufferedReader(io.BytesIO(text_of(path).encode()))))


def letters(text: str) -> str:
    """Returns a text without its spaces, however it is cut into tokens."""
    return "".join(text.split())


def prose_of(path: Path, column: str = "text") -> str:
    """Returns the text of a file: the sentences of a treebank, a column of JSON or parquet, or the file as it is."""
    layout = layout_of(path)
    if layout.startswith(OBJECTS):
        return "\n".join(text_in(where, row, column) for where, row in rows(path, [column]))
    if layout in (".conllu", ".conllup"):
        said = [line.partition("=")[2].strip() for line in lines_of(path) if line.startswith("# text =")]
        return "\n".join(said or (" ".join(cell[0] for cell in sentence.cells) for sentence in sentences(path, 1)))
    return "\n".join(lines_of(path))


def layout_of(path: Path) -> str:
    """Returns the ending that says how a file is laid out: '.tsv' of pairs.tsv.gz."""
    endings = [suffix for suffix in path.suffixes if suffix not in (".gz", ".zip")]
    return endings[-1].lower() if endings else ""


def rows(path: Path, columns: Sequence[str | int]) -> Iterator[Row]:
    """Yields the rows of a table, or the objects of a JSON file, as training reads them.

    A column that is a number, from 0, belongs to a table without a header. InputError for a file that lacks a column.
    """
    layout = layout_of(path)
    if layout not in LAYOUTS:
        raise InputError(f"{path} has an unsupported file type; give one of {', '.join(LAYOUTS)}.")
    has_header = layout not in TABLES or not any(isinstance(column, int) for column in columns)
    names = [str(column) for column in columns]
    name = str(path)
    content = None
    if path.suffix == ".zip":
        name = name.removesuffix(".zip")
        content = bytes_of(path)
    if content is None:
        untrusted_files.check_regular(path)
    with untrusted_files.reading(path, COPY):
        for where, row in records(name, names, has_header=has_header, content=content):
            yield _checked(where, row, names)


def documents(path: Path, columns: Sequence[str | int]) -> Iterator[tuple[str, Mapping[str, object], str]]:
    """Yields (where, row, document) as `rows`; the document is in the column `document`, else a row is one."""
    has_names = layout_of(path) not in TABLES or not any(isinstance(column, int) for column in columns)
    first = next(rows(path, ()), ("", {}))[1] if has_names else {}
    wanted = [*columns, DOCUMENT] if DOCUMENT in first else columns
    for where, row in rows(path, wanted):
        yield where, row, label_in(where, row, DOCUMENT) if DOCUMENT in first else where


def _checked(where: str, row: Mapping[str, object], columns: Sequence[str]) -> Row:
    for column in columns:
        if column not in row:
            raise InputError(f"{where} has no column {column}; it has {', '.join(map(str, row))}.")
    return where, row


def text_in(where: str, row: Mapping[str, object], column: str | int) -> str:
    """Returns the text in a column of a row; InputError for null, a number and other types."""
    return text(where, row[str(column)], f"the column {column}")


def text(where: str, value: object, what: str) -> str:
    """Returns a value if it is a text, with a question mark for half a letter, which JSON can hold and UTF-8 cannot."""
    if not isinstance(value, str):
        in_words = "null" if value is None else f"{value!r}, of type {type(value).__name__}"
        raise InputError(f"{where}: {what} holds {in_words[:200]}, not a text; correct it.")
    return value.encode("utf-8", "replace").decode()


def label_in(where: str, row: Mapping[str, object], column: str | int) -> str:
    """Returns the label in a column of a row, a text or a whole number; InputError for anything else."""
    value = row[str(column)]
    if isinstance(value, int):  # True and False too
        return str(value)
    label = text(where, value, f"the column {column}").strip()
    if not label:
        raise InputError(f"{where}: the column {column} is empty; give its label.")
    return label


def number_in(where: str, row: Mapping[str, object], column: str | int) -> float:
    """Returns the finite number in a column of a row; InputError for anything else, such as null and NaN."""
    value = row[str(column)]
    number = math.nan
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise InputError(f"{where}: the column {column} is not a finite number; correct it.")
    return number


def sentences(path: Path, *columns: str | int) -> Iterator[Sentence]:
    """Yields the sentences of a CoNLL-U file or a relative of it.

    A column is its number from 0 (-1: the last), or its name in the line `# global.columns`. Empty nodes and the
    ranges of multiword tokens are left out, where the first column is not asked for. A document begins at a line
    `# newdoc`; without one, each sentence is one.
    InputError for a line that lacks a column.
    """
    names: list[str] = []
    rows_of_sentence: list[list[str]] = []
    begins = 1
    document = ""
    has_id = 0 not in columns  # else the first cell of a line may be a word such as 2-1, 3.5 and #
    for number, line in enumerate([*lines_of(path), ""], 1):
        if line.startswith("# global.columns"):
            names = line.partition("=")[2].split()
            has_id = not any(column in (0, *names[:1]) for column in columns)
        elif line.startswith("#") and "\t" not in line and (has_id or not rows_of_sentence):
            if line.removeprefix("#").split()[:1] == ["newdoc"]:
                document = f"{path} line {number}"
        elif not line.strip():
            if rows_of_sentence:
                where = f"{path} line {begins}"
                yield Sentence(where, rows_of_sentence, document or where)
            rows_of_sentence = []
        else:
            begins = begins if rows_of_sentence else number
            cells = line.split("\t") if "\t" in line else line.split(" ")
            if not has_id or cells[0].isdecimal() or not cells[0].replace("-", "").replace(".", "").isdecimal():
                rows_of_sentence.append([_cell(cells, column, names, f"{path} line {number}") for column in columns])


def _cell(cells: Sequence[str], column: str | int, names: Sequence[str], where: str) -> str:
    if isinstance(column, str):
        if column not in names:
            raise InputError(
                f"{where}: the file has no column {column}; its first line names {', '.join(names) or 'none'}."
            )
        column = names.index(column)
    if not -len(cells) <= column < len(cells):
        raise InputError(f"{where} has {len(cells)} columns and no column {column}; name a file of another layout.")
    return cells[column]
