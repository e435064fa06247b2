"""Reads lines of text or JSON and writes one line for each, in order; a stopped command resumes after its last line."""

from __future__ import annotations

import io
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import fsspec
import zstandard
from tqdm import tqdm

from limba.config import InputError
from limba.config.errors import reason_of
from limba.data.sources import remote
from limba.data.sources.compression import COMPRESSIONS, unpacked
from limba.inference.load import whole_letters

POLICY = remote.ReadPolicy()
STANDARD = ("-", "stdin", "stdout")
Record = dict[str, Any]


def records(path: str, fields: Sequence[str]) -> Iterator[Record]:
    """Yields one record per line: the object of a .jsonl line (also .gz, .zst), else {first field: line}.

    `path` is local or an address, such as gs://. InputError for what cannot be read, or has no text in a field.
    """
    if path in STANDARD:
        yield from _records(sys.stdin, "stdin", fields, is_json=False)
        return
    suffix = next((ending for ending in COMPRESSIONS if path.endswith(ending)), "")
    is_json = path.removesuffix(suffix).endswith((".jsonl", ".json"))
    try:
        with (
            remote.open_file(path, POLICY) as packed,
            io.TextIOWrapper(unpacked(packed, suffix), encoding="utf-8") as file,
        ):
            yield from _records(file, path, fields, is_json)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"The input {path} does not exist; give a .txt or .jsonl file (also .gz), or stdin.") from None
    except (OSError, EOFError, ImportError, ValueError, zlib.error, zstandard.ZstdError) as error:
        raise InputError(f"The input {path} cannot be read ({reason_of(error)}); check the file.") from error


def _records(file: TextIO, place: str, fields: Sequence[str], is_json: bool) -> Iterator[Record]:
    if len(fields) > 1 and not is_json:
        raise InputError(f"{place} has no fields {', '.join(fields)}; give a .jsonl file.")
    try:
        for number, line in enumerate(file, 1):
            if not is_json:
                yield {fields[0]: line.rstrip("\r\n")}
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise InputError(f"{place} line {number} is not JSON ({error}); correct the line.") from None
            for field in fields:
                if not isinstance(record, Mapping) or not isinstance(record.get(field), str):
                    raise InputError(f"{place} line {number} has no text in field {field!r}; name another field.")
            yield dict(record)
    except UnicodeDecodeError as error:
        raise InputError(f"{place} is not UTF-8 ({error.reason}); convert it, for instance with iconv.") from None


class Output:
    """The output file. An existing file is resumed if it was made with the same `about`, which is saved beside it.

    `path` is local or an address. In a bucket every `flush` writes an object into PATH.parts, and `close` joins them
    into one. With `writes=False` lines are only counted. Raises InputError if the file cannot be read or written.
    """

    def __init__(self, path: str, about: Mapping[str, Any], writes: bool = True):
        self.path, self.num_done, self._file, self._parts = path, 0, None, None
        self.is_json = path.endswith((".jsonl", ".json"))
        if path in STANDARD:
            self._file = sys.stdout if writes else None
            return
        about = json.loads(json.dumps(about))
        try:
            system, place = fsspec.core.url_to_fs(path)
            if remote.is_local(system):
                self.num_done = self._resumed(Path(place), about, writes)
                self._file = open(place, "a", encoding="utf-8") if writes else None
            else:
                parts = _Parts(system, place)
                self.num_done = parts.resumed(path, about, writes)
                self._parts = parts if writes else None
        except InputError:
            raise
        except (OSError, ImportError, ValueError) as error:
            raise _unwritable(path, error) from error

    def _resumed(self, path: Path, about: Mapping[str, Any], writes: bool) -> int:
        """Returns the number of complete lines in the file."""
        beside = path.with_name(f"{path.name}.about.json")
        done = b""
        if path.exists():
            _check_about(self.path, beside.read_bytes() if beside.exists() else None, about)
            content = path.read_bytes()
            done = content[: content.rfind(b"\n") + 1]
            if writes and len(done) < len(content):  # an incomplete line
                path.write_bytes(done)
        elif writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(_about_file(about))
        return done.count(b"\n")

    def write(self, record: Record, text: str) -> None:
        """Writes the record if the output is JSON lines, else the text as one line."""
        line = json.dumps(record, ensure_ascii=False) if self.is_json else " ".join(text.splitlines())
        line = whole_letters(line)
        if self._file is not None:
            self._file.write(line + "\n")
        elif self._parts is not None:
            self._parts.pending.append(line + "\n")

    def flush(self) -> None:
        try:
            if self._file is not None:
                self._file.flush()
            elif self._parts is not None:
                self._parts.flush()
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def close(self) -> None:
        self.flush()
        if self._file not in (None, sys.stdout):
            self._file.close()
        if self._parts is not None:
            try:
                self._parts.join()
            except OSError as error:
                raise _unwritable(self.path, error) from error


class _Parts:
    """A file in a bucket, whose objects cannot be appended to: the written lines, then one object per part.

    A part is named by the number of its first line, so that the parts of a killed command are recognized.
    """

    def __init__(self, system: Any, path: str):
        self._system, self._path, self._folder = system, path, f"{path}.parts"
        self._content: list[bytes] = []
        self._num_lines = self._num_joined = 0
        self.pending: list[str] = []

    def resumed(self, named: str, about: Mapping[str, Any], writes: bool) -> int:
        """Returns the number of lines that are written."""
        whole = self._read(self._path)
        parts = sorted(self._names())
        if whole is None and not parts:
            if writes:
                self._ask("pipe_file", f"{self._path}.about.json", _about_file(about))
            return 0
        _check_about(named, self._read(f"{self._path}.about.json"), about)
        self._add(whole or b"")
        self._num_joined = self._num_lines
        for name in parts:
            if int(name.rpartition("/")[2]) == self._num_lines:  # else it is in the whole already
                self._add(self._read(name) or b"")
        return self._num_lines

    def flush(self) -> None:
        if self.pending:
            data = "".join(self.pending).encode()
            self._ask("pipe_file", f"{self._folder}/{self._num_lines:012}", data)
            self._add(data)
            self.pending = []

    def join(self) -> None:
        if self._num_lines > self._num_joined or not self._num_lines:
            self._ask("pipe_file", self._path, b"".join(self._content))
        if self._names():
            self._ask("rm", self._folder, recursive=True)

    def _add(self, data: bytes) -> None:
        self._content.append(data)
        self._num_lines += data.count(b"\n")

    def _names(self) -> list[str]:
        try:
            return self._ask("ls", self._folder, detail=False)
        except remote.ReadError as error:
            if error.missing:
                return []
            raise

    def _read(self, path: str) -> bytes | None:
        try:
            self._ask("info", path)  # says of a missing file that it is missing in every file system
        except remote.ReadError as error:
            if error.missing:
                return None
            raise
        return self._ask("cat_file", path)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        return remote.ask(self._system, POLICY, method, *arguments, **options)


def _about_file(about: Mapping[str, Any]) -> bytes:
    return (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()


def _check_about(path: str, before: bytes | None, about: Mapping[str, Any]) -> None:
    made = json.loads(before) if before else None
    if made != about:
        changed = next((name for name in about if not made or made.get(name) != about[name]), "it")
        raise InputError(f"The output {path} was made with another {changed}; give another path, or delete it.")


def _unwritable(path: str, error: Exception) -> InputError:
    return InputError(f"The output {path} cannot be written ({reason_of(error)}); give another path.")


def process(
    source: Iterator[Record],
    output: Output,
    window: int,
    judge: Callable[[list[Record], int], Iterator[tuple[int, Record, str]]],
    shows_progress: bool,
) -> int:
    """Writes the results of `judge` for all records; returns the number of records.

    `judge(records, number of the first)` yields (index in records, record, text) in any order. It gets one window of
    records at a time: one window is held in memory, and at most one is lost when the command is stopped.
    """
    count = output.num_done
    for _ in itertools.islice(source, count):
        pass
    bar = tqdm(unit="line", initial=count, disable=not shows_progress, dynamic_ncols=True)
    with bar:
        while records_of_window := list(itertools.islice(source, window)):
            done: list[tuple[Record, str]] = [({}, "")] * len(records_of_window)
            for place, record, text in judge(records_of_window, count):
                done[place] = (record, text)
                bar.update()
            for record, text in done:
                output.write(record, text)
            output.flush()
            count += len(done)
    return count
