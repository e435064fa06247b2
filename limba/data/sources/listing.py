"""The files of a corpus, and the units that they are divided into.

A unit is a byte range of a text or JSON lines file, a row group of a parquet file, or a whole file that can only be
read from its beginning (csv, anything compressed).
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

from limba.config import InputError, reason_of, untrusted_files, without_credentials
from limba.data.sources import json_documents
from limba.data.sources.failures import UnitError, of_request
from limba.data.sources.fingerprints import File, version_of
from limba.data.sources.parquet import Footers, read_footer, row_group_of
from limba.data.sources.remote import COMPRESSIONS, PATIENT, ReadError, ReadPolicy, ask, open_file
from limba.storage import servers
from limba.storage.files import is_local

SMALLEST_UNIT = 1 << 16  # bytes of a range of lines
# (bytes, units): a corpus with more units gets larger ones, up to this size. These are enough units for many shards,
# and few enough to list and open cheaply.
LARGER_UNITS = ((1 << 18, 256), (1 << 20, 4096))
REQUESTS_AT_ONCE = 16
FORMATS = {".txt": "text", ".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "tsv"}
FORMATS |= {".parquet": "parquet", ".array_record": "array_record"}


@dataclass(frozen=True, order=True)
class Unit:
    """Part of a file: bytes [start, stop) of lines, row group `start` of parquet, or all of it (stop None)."""

    path: str
    start: int = 0
    stop: int | None = None

    @property
    def name(self) -> str:
        path = without_credentials(self.path)
        return path if self.stop is None else f"{path}[{self.start}:{self.stop}]"

    def overlaps(self, other: Unit) -> bool:
        """Returns whether two units of one file have a part in common.

        >>> Unit("a.txt", 0, 5).overlaps(Unit("a.txt", 5, 9)), Unit("a.txt").overlaps(Unit("a.txt", 5, 9))
        (False, True)
        """
        begins_before_end = other.stop is None or self.start < other.stop
        return begins_before_end and (self.stop is None or other.start < self.stop)

    @property
    def place(self) -> str:
        """The name of the unit in messages."""
        if self.stop is None:
            return self.path
        if file_format(self.path)[0] == "parquet":
            return f"{self.path}, row group {self.start},"
        return f"{self.path}, bytes {self.start} to {self.stop},"


def file_format(path: str) -> tuple[str, str]:
    """Returns (format, '.gz', '.zst', '.bz2', '.xz' or '') by suffix; InputError for an unknown suffix.

    >>> file_format("web/part-0.JSONL.gz"), file_format("hf://datasets/a/b/0.parquet")
    (('json', '.gz'), ('parquet', ''))
    """
    plain = _without_query(path).lower()
    packed = next((suffix for suffix in COMPRESSIONS if plain.endswith(suffix)), "")
    plain = plain.removesuffix(packed)
    for suffix, name in FORMATS.items():
        if plain.endswith(suffix) and not (packed and name in ("parquet", "array_record")):
            return name, packed
    raise InputError(
        f"{path} has an unknown suffix; "
        "give .txt, .jsonl, .json, .csv or .tsv files, each also with .gz, .zst, .bz2 or .xz, .parquet or"
        " .array_record."
    )


def list_files(patterns: Sequence[str], policy: ReadPolicy = PATIENT) -> list[File]:
    """Returns the files of all patterns, sorted by path, each once; InputError for a pattern that matches nothing.

    Credentials in addresses do not change the order. A listing that fails is never skipped: a different list of files
    would be a different corpus.
    """
    files: dict[str, File] = {}
    for pattern in patterns:
        try:
            matches = _matches(pattern, policy)
        except InputError:
            raise
        except (OSError, ValueError, ImportError) as error:
            fact = f"The corpus {pattern} cannot be listed ({reason_of(error)})"
            raise of_request(fact, error, "check the path, and the token if it is private") from error
        if not matches:
            raise InputError(
                f"The corpus path {pattern} matches no file; check the path, and the directory that it starts in."
            )
        for file in matches:
            files.setdefault(_one_spelling(file.path), file)
    for file in files.values():
        file_format(file.path)
    return sorted(files.values(), key=lambda file: (without_credentials(file.path), file.path))


def _one_spelling(path: str) -> str:
    """Returns a local path without what changes nothing in it: `//`, `/./` and `a/../`.

    Links stay as they are, but for those above a `..`.

    >>> _one_spelling("/corpus//a.txt"), _one_spelling("/corpus/./a.txt"), _one_spelling("gs://bucket//a.txt")
    ('/corpus/a.txt', '/corpus/a.txt', 'gs://bucket//a.txt')
    """
    if "://" in path:
        return path
    upwards, above, name = path.rpartition("/../")
    if above:
        path = f"{os.path.realpath(f'{upwards}/..')}/{name}"  # `a` may be a link to another folder
    return os.path.normpath(path)


def _matches(pattern: str, policy: ReadPolicy) -> list[File]:
    servers.check(pattern)
    servers.check_name(pattern)
    if pattern.startswith("hf://"):
        servers.check_hub()
    system, path = fsspec.core.url_to_fs(pattern)
    if not is_local(system):
        return _remote_matches(pattern, system, path, policy)
    if any(letter in path for letter in "*?[") and not system.exists(path):
        entries = [details | {"name": name} for name, details in system.glob(path, detail=True).items()]
        entries = [entry for entry in entries if not _is_hidden(str(entry["name"]), path)]
    elif system.exists(path):
        entries = [system.info(path)]
        if entries[0]["type"] == "directory":
            raise _is_directory(pattern)
    else:
        entries = []
    entries = [entry for entry in entries if entry["type"] != "directory"]
    for entry in entries:
        untrusted_files.check_regular(entry["name"])
    return [File(str(entry["name"]), entry.get("size")) for entry in entries]


def _is_hidden(path: str, pattern: str) -> bool:
    """Returns whether a path has a name with a dot in front that its pattern does not ask for, as in Python's glob.

    >>> _is_hidden("/corpus/._a.txt", "/corpus/*.txt"), _is_hidden("/corpus/.git/a.txt", "/corpus/**/*.txt")
    (True, True)
    >>> _is_hidden("/corpus/.a.txt", "/corpus/.*.txt"), _is_hidden("/.corpus/a.txt", "/.corpus/*.txt")
    (False, False)
    """
    asked = [part for part in pattern.split("/") if part.startswith(".")]
    for part in path.split("/"):
        if not part.startswith(".") or part in (".", ".."):
            continue
        if not any(fnmatch.fnmatchcase(part, own) for own in asked):
            return True
    return False


def _is_directory(pattern: str) -> InputError:
    return InputError(
        f"The corpus path {pattern} is a directory; give a pattern such as {pattern.rstrip('/')}/*.jsonl."
    )


def _remote_matches(pattern: str, system: AbstractFileSystem, path: str, policy: ReadPolicy) -> list[File]:
    def answer(method: str, *arguments: str, **options: object) -> Any:
        try:
            return ask(system, policy, method, *arguments, **options)
        except ReadError as error:
            if error.missing:
                return None
            raise

    web = "http" in system.protocol
    magic = [path.index(letter) for letter in ("*[" if web else "*?[") if letter in path]
    if magic:
        listing = answer("glob", path, detail=True, **({"on_error": "raise"} if web else {})) or {}
        entries = [details | {"name": name} for name, details in listing.items() if not _is_hidden(name, path)]
        if not entries and not web:  # some libraries list an unreachable server as an empty directory
            answer("ls", path[: min(magic)].rpartition("/")[0], detail=False)
    else:
        details = answer("info", path)
        if details is not None and details["type"] == "directory":
            raise _is_directory(pattern)
        entries = [] if details is None else [details | {"name": path}]
    entries = [entry for entry in entries if entry["type"] != "directory"]
    if web and magic:  # a page of links has no sizes
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            details = list(pool.map(lambda entry: answer("info", entry["name"]) or {}, entries))
        entries = [entry | {"name": listed["name"]} for listed, entry in zip(entries, details, strict=True)]
    return [File(system.unstrip_protocol(entry["name"]), entry.get("size"), version_of(entry)) for entry in entries]


def list_units(files: Sequence[File], policy: ReadPolicy = PATIENT, footers: Footers = read_footer) -> list[Unit]:
    """Returns the units of the files in order; reads only the footers of parquet files.

    A footer that cannot be fetched is an InputError even if the policy is 'skip', since another list of units is
    another order of the corpus. With that policy a file that is not parquet is one unit, skipped when it is read.
    """
    total = sum(file.size or 0 for file in files)
    size = SMALLEST_UNIT
    for largest, num_units in LARGER_UNITS:
        while size < largest and size * num_units < total:
            size *= 2
    parquets = [file.path for file in files if file_format(file.path)[0] == "parquet"]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        counts = pool.map(lambda path: _num_row_groups(path, policy, footers), parquets)
        num_groups = dict(zip(parquets, counts, strict=True))
        may_be_arrays = [file.path for file in files if is_json(file.path) and file.size is not None]
        answers = pool.map(lambda path: _is_one_value(path, policy), may_be_arrays)
        arrays = {path for path, is_one in zip(may_be_arrays, answers, strict=True) if is_one}
    units = []
    for file in files:
        form, packed = file_format(file.path)
        if form == "array_record":
            raise InputError(
                f"{file.path} is ArrayRecord, which cannot be mixed with other formats; give only such files."
            )
        if form == "parquet":
            units += [Unit(file.path, group, group + 1) for group in range(num_groups[file.path])]
        elif form in ("csv", "tsv") or packed or file.size is None or file.path in arrays:
            units.append(Unit(file.path))
        else:
            units += [Unit(file.path, start, min(start + size, file.size)) for start in range(0, file.size, size)]
    return units


def group_rows(units: Sequence[Unit], policy: ReadPolicy, footers: Footers) -> list[int]:
    """Returns the rows of each row group, as the files' footers say; InputError for a footer that cannot be read."""
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        paths = list(dict.fromkeys(unit.path for unit in units))
        metadata = dict(zip(paths, pool.map(lambda path: footers(path, policy)[1], paths), strict=True))
    return [row_group_of(unit.path, metadata[unit.path], unit.start).num_rows for unit in units]


def _num_row_groups(path: str, policy: ReadPolicy, footers: Footers) -> int:
    try:
        return footers(path, policy)[1].num_row_groups
    except UnitError:
        if policy.on_failure == "stop":
            raise
        return 1
    except OSError as error:
        fact = f"The footer of {path} cannot be read ({reason_of(error)})"
        raise of_request(fact, error, "check the file and its permissions") from error


def _is_one_value(path: str, policy: ReadPolicy) -> bool:
    """Returns whether a file begins as an array, or as an object over several lines: it cannot be cut into ranges."""
    try:
        with open_file(path, policy, 0, json_documents.HEAD_BYTES) as file:
            head = file.read(json_documents.HEAD_BYTES)
            return json_documents.is_array(head) or json_documents.is_over_lines(head)
    except OSError as error:
        fact = f"{path} cannot be read ({reason_of(error)})"
        raise of_request(fact, error, "check the file and its permissions") from error


def may_be_one_value(path: str) -> bool:
    """Returns whether a file, packed or not, may be one array or object of JSON: by its name a .json, and no .jsonl."""
    path = _without_query(path).lower()
    return is_json(path.removesuffix(next((suffix for suffix in COMPRESSIONS if path.endswith(suffix)), "")))


def is_json(path: str) -> bool:
    """Returns whether a file may be one array or object: a plain .json, and no .jsonl."""
    return _without_query(path).lower().endswith(".json")


def _without_query(path: str) -> str:
    """Returns an address without what follows a question mark, which may stand in the name of a local file."""
    return path.split("?")[0] if "://" in path else path
