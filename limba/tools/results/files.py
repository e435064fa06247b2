"""Readers of the files that tasks are published as: JSON, parquet, TSV, CSV, CoNLL-U and its relatives; .gz, .zip.

A file is local, or `hub:user/name/path`: of a data set of the hub, in the cache of the hub's own library.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.config import InputError, kinds
from limba.config.errors import reason_of

Row = tuple[str, Mapping[str, object]]  # where it stands, and its columns
TABLES = {".tsv": "\t", ".csv": ","}
OBJECTS = (".json", ".parquet")  # how the layouts begin whose rows are objects
HUB = re.compile(r"(hub:([\w.-]+/[\w.-]+)(?:@((?:refs/\w+/)?[\w.-]+))?/(.+))")


class HubFile(NamedTuple):
    """A file of a data set of the hub: its address, user/name, the revision (None: the newest), and the path there."""

    address: str
    name: str
    revision: str | None
    path: str


def on_hub(folder: str, name: str) -> HubFile | None:
    """Returns the hub's file of a name, or of a local name in a data set; None if it is local.

    >>> on_hub("hub:me/set@v1", "a/b.parquet"), on_hub("data", "b.parquet")
    (HubFile(address='hub:me/set@v1/a/b.parquet', name='me/set', revision='v1', path='a/b.parquet'), None)
    """
    whole = f"{folder}/{name}" if folder.startswith("hub:") and not name.startswith(("hub:", "/", "~")) else name
    found = HUB.fullmatch(whole)
    if found is None and whole.startswith("hub:"):
        raise InputError(f"{whole} is no file of a data set; write hub:user/name/path, or hub:user/name@revision/path.")
    return found and HubFile(*found.groups())


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
        flag = f" --data={folder}" if folder.startswith("hub:") else ""
        raise InputError(f"{file.address} is not on this machine yet; download it by limba results fetch SUITE{flag}.")
    raise InputError(f"{Path(folder, name)} does not exist; name the folder of the suite's files as --data=FOLDER.")


def checksum(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_of(path: Path) -> str:
    """Returns the text of a file, unpacked from .gz, or from .zip as its first file; InputError if it is none."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                data = archive.read(archive.namelist()[0])
        else:
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(f"{path} line {line} is not text in UTF-8; convert the file.") from None
    except (OSError, EOFError, IndexError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}); copy it again.") from None


def lines_of(path: Path) -> list[str]:
    r"""Returns the lines of a file. They end with \n or \r\n alone, not with what else Unicode calls a line's end."""
    lines = text_of(path).split("\n")
    if not lines[-1]:
        lines.pop()  # behind the last line's end
    return [line.removesuffix("\r") for line in lines]


def letters(text: str) -> str:
    """Returns a text without its spaces, however it is cut into tokens."""
    return "".join(text.split())


def prose_of(path: Path, column: str = "text") -> str:
    """Returns the text of a file: the sentences of a treebank, a column of JSON or parquet, or the file as it is."""
    if (layout := layout_of(path)).startswith(OBJECTS):
        return "\n".join(str(row[column]) for _, row in rows(path, [column]))
    if layout in (".conllu", ".conllup"):
        said = [line.partition("=")[2].strip() for line in lines_of(path) if line.startswith("# text =")]
        return "\n".join(said or (" ".join(each[0] for each in cells) for _, cells in sentences(path, 1)))
    return text_of(path)


def layout_of(path: Path) -> str:
    """Returns the ending that says how a file is laid out: '.tsv' of pairs.tsv.gz."""
    endings = [each for each in path.suffixes if each not in (".gz", ".zip")]
    return endings[-1].lower() if endings else ""


def rows(path: Path, columns: Sequence[str | int]) -> Iterator[Row]:
    """Yields the rows of a table, or the objects of a JSON file; InputError for one that lacks a column.

    A column that is a number, from 0, belongs to a table without a header.
    """
    layout = layout_of(path)
    if layout in TABLES:
        yield from _table(path, TABLES[layout], columns)
        return
    if layout == ".parquet":
        yield from (_checked(f"{path} row {number}", row, columns) for number, row in enumerate(_parquet(path), 1))
        return
    if not layout.startswith(OBJECTS):
        raise InputError(f"{path} is no .json, .jsonl, .parquet, .tsv or .csv; name a file of one of these layouts.")
    text = text_of(path)
    listed = text.lstrip().startswith("[")
    objects = enumerate([text] if listed else text.split("\n"), 1)
    for number, line in objects:
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path} line {number} is not JSON ({reason_of(error)}); correct it.") from None
        for place, each in enumerate(found if listed else [found], 1):
            yield _checked(f"{path} {'entry' if listed else 'line'} {place if listed else number}", each, columns)


def _parquet(path: Path) -> list[dict[str, object]]:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}); copy it again.") from None


def _table(path: Path, separator: str, columns: Sequence[str | int]) -> Iterator[Row]:
    quoting = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    reader = csv.reader(io.StringIO(text_of(path), newline=""), delimiter=separator, quoting=quoting)
    has_header = not any(isinstance(each, int) for each in columns)
    header = next(reader, []) if has_header else []
    if has_header:
        _checked(f"{path} line 1", dict.fromkeys(header, ""), columns)
    for row in reader:
        if not row:
            continue
        where = f"{path} line {reader.line_num}"
        if has_header and len(row) != len(header):
            raise InputError(f"{where} has {len(row)} columns, and line 1 names {len(header)}; correct it.")
        names = header if has_header else [str(number) for number in range(len(row))]
        yield _checked(where, dict(zip(names, row, strict=True)), [str(each) for each in columns])


def _checked(where: str, found: object, columns: Sequence[str | int]) -> Row:
    if not isinstance(found, Mapping):
        raise InputError(f"{where} is no object with columns; name a file of another layout.")
    for column in columns:
        if str(column) not in found:
            raise InputError(f"{where} has no column {column}; it has {', '.join(map(str, found))}.")
    return where, found


def sentences(path: Path, *columns: str | int) -> Iterator[tuple[str, list[list[str]]]]:
    """Yields (where, its tokens' columns) of each sentence of a CoNLL-U file or a relative of it.

    A column is its number from 0 (-1: the last), or its name in the line `# global.columns`. Empty nodes and the
    ranges of multiword tokens are left out. InputError for a line that lacks a column.
    """
    names: list[str] = []
    found: list[list[str]] = []
    begins = 1
    for number, line in enumerate([*lines_of(path), ""], 1):
        if line.startswith("# global.columns"):
            names = line.partition("=")[2].split()
        elif line.startswith("#") and "\t" not in line:
            continue
        elif not line.strip():
            if found:
                yield f"{path} line {begins}", found
            found = []
        else:
            begins = begins if found else number
            cells = line.split("\t") if "\t" in line else line.split(" ")
            if cells[0].isdecimal() or not cells[0].replace("-", "").replace(".", "").isdecimal():
                found.append([_cell(cells, each, names, f"{path} line {number}") for each in columns])


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
