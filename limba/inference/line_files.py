"""Reads lines of text or JSON and writes one line for each, in order; a stopped command resumes after its last line.

Beside the output stands a digest of the input lines that it was made from, so that lines of another text are never
continued.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import fsspec
import zstandard
from tqdm import tqdm

from limba.config import InputError, StorageError
from limba.config.errors import reason_of
from limba.data.sources import remote
from limba.data.sources.compression import COMPRESSIONS, unpacked
from limba.inference.load import whole_letters
from limba.storage import lease
from limba.storage.files import write_whole
from limba.training.metrics.records import duration

POLICY = remote.ReadPolicy()
STANDARD = ("-", "stdin", "stdout")
DONE = "done"  # in PATH.about.json: the lines written, and the digest of their input lines
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


def num_lines(path: str) -> int | None:
    """Returns the number of lines of a local file, packed or not; None for others, and for what cannot be read."""
    if path in STANDARD or "://" in path:
        return None
    suffix = next((ending for ending in COMPRESSIONS if path.endswith(ending)), "")
    try:
        with open(path, "rb") as packed, unpacked(packed, suffix) as file:
            count, last = 0, b"\n"
            while block := file.read(1 << 20):
                count, last = count + block.count(b"\n"), block[-1:]
            return count + (last != b"\n")
    except (OSError, EOFError, ImportError, ValueError, zlib.error, zstandard.ZstdError):
        return None  # `records` says it


@contextlib.contextmanager
def alone(path: str) -> Iterator[Callable[[], None]]:
    """Holds the lease of an output for the time of the context, so that no other command writes lines to it.

    Yields a function to call before lines are written; it raises RestartError if another command has taken over.
    Raises InputError if another one writes to it now, or if it cannot be written.
    """
    if path in STANDARD:
        yield lambda: None
        return
    with contextlib.ExitStack() as stack:
        try:
            mine = stack.enter_context(lease.held(path, "writes lines to", beside=True))
        except StorageError as error:
            raise _unwritable(path, error) from error
        yield mine.check


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
            except (ValueError, RecursionError) as error:
                raise InputError(f"{place} line {number} is not JSON ({reason_of(error)}); correct the line.") from None
            for field in fields:
                if not isinstance(record, Mapping) or not isinstance(record.get(field), str):
                    raise InputError(f"{place} line {number} has no text in field {field!r}; name another field.")
            yield dict(record)
    except UnicodeDecodeError as error:
        raise InputError(f"{place} is not UTF-8 ({error.reason}); convert it, for instance with iconv.") from None


class Output:
    """The output file. An existing file is resumed if it was made with the same `about`, which is saved beside it.

    `path` is local or an address. In a bucket every `flush` writes an object into PATH.parts, and `close` joins them
    into one. With `writes=False` lines are only counted. `digest` is that of the input lines of the `num_done` lines
    that are there, or None if no window is finished. Raises InputError if the file cannot be opened, and
    StorageError if it cannot be written any more.
    """

    def __init__(self, path: str, about: Mapping[str, object], writes: bool = True):
        self.path, self.num_done, self._file, self._parts = path, 0, None, None
        self.writes, self.digest, self._about, self._num_lines = writes, None, dict(about), 0
        self.is_json = path.endswith((".jsonl", ".json"))
        if path in STANDARD:
            self._file = sys.stdout if writes else None
            return
        about = json.loads(json.dumps(about))
        try:
            system, place = fsspec.core.url_to_fs(path)
            if remote.is_local(system):
                self._place = Path(place)
                self.num_done = self._num_lines = self._resumed(self._place, about, writes)
                self._file = open(place, "a", encoding="utf-8") if writes else None
            else:
                parts = _Parts(system, place)
                self.num_done = parts.resumed(path, about, writes)
                self.digest = parts.digest
                self._parts = parts if writes else None
        except InputError:
            raise
        except (OSError, ImportError, ValueError) as error:
            raise _unwritable(path, error) from error

    def _resumed(self, path: Path, about: Mapping[str, object], writes: bool) -> int:
        """Returns the number of complete lines in the file."""
        beside = _beside(path)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not path.exists():
            if writes:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(beside, _about_file(about))
            return 0
        lines, self.digest = _check_about(self.path, beside.read_bytes() if beside.exists() else None, about)
        content = path.read_bytes()
        done = content[: content.rfind(b"\n") + 1]
        rows = done.split(b"\n")
        if len(rows) - 1 < lines:
            raise InputError(
                f"The output {self.path} has {len(rows) - 1} lines, and {lines} were written to it; give another"
                " path, or delete it."
            )
        done = b"".join(row + b"\n" for row in rows[:lines])  # those after it are of a window that was not finished
        if writes and len(done) < len(content):  # an incomplete line
            os.truncate(path, len(done))
        return done.count(b"\n")

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes the file; after an error what is there stays, to be resumed."""
        if kind is None:
            self.close()
        elif self._file not in (None, sys.stdout):
            with contextlib.suppress(OSError):  # the error that ends the program is another one
                self._file.close()

    def check(self, digest: str, num_read: int) -> None:
        """Raises InputError unless these are the digest and the number of the input lines of the lines written."""
        if num_read < self.num_done or self.digest not in (None, digest):
            source = self._about.get("input", "the input")
            raise InputError(
                f"The output {self.path} has {self.num_done} lines of another text: {source} has changed since; give"
                " another path, or delete it."
            )

    def write(self, record: Record, text: str) -> None:
        """Writes the record if the output is JSON lines, else the text as one line."""
        line = json.dumps(record, ensure_ascii=False) if self.is_json else " ".join(text.splitlines())
        line = whole_letters(line)
        self._num_lines += 1
        with self._failures():
            if self._file is not None:
                self._file.write(line + "\n")
            elif self._parts is not None:
                self._parts.pending.append(line + "\n")

    def show(self) -> None:
        """Shows the lines so far, if the output is the standard one."""
        if self._file is not None and self._file is sys.stdout:
            self._file.flush()

    def flush(self, digest: str | None = None) -> None:
        """Writes what is held; `digest` is that of all input lines whose lines are written now."""
        with self._failures():
            if self._file is not None:
                self._file.flush()
                if digest is not None and self._file is not sys.stdout:
                    os.fsync(self._file.fileno())  # the digest must not come to the disk before its lines
                    about = _about_file({**self._about, DONE: [self._num_lines, digest]})
                    write_whole(str(_beside(self._place)), about)
            elif self._parts is not None:
                self._parts.flush(digest)

    def close(self) -> None:
        self.flush()
        with self._failures():
            if self._file not in (None, sys.stdout):
                self._file.close()
            if self._parts is not None:
                self._parts.join(self._about)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StorageError(
                f"The output {self.path} cannot be written any more ({reason_of(error)}); make room or correct the"
                " path, and the same command resumes it."
            ) from error


class _Parts:
    """A file in a bucket, whose objects cannot be appended to: the written lines, then one object per part.

    A part is named by the number of its first line, so that the parts of a killed command are recognized, and by the
    digest of all input lines up to its end.
    """

    def __init__(self, system: fsspec.AbstractFileSystem, path: str):
        self._system, self._path, self._folder = system, path, f"{path}.parts"
        self._content: list[bytes] = []
        self._num_lines = self._num_joined = 0
        self.digest: str | None = None
        self.pending: list[str] = []

    def resumed(self, named: str, about: Mapping[str, object], writes: bool) -> int:
        """Returns the number of lines that are written."""
        whole = self._read(self._path)
        parts = sorted(self._names())
        if whole is None and not parts:
            if writes:
                self._ask("pipe_file", f"{self._path}.about.json", _about_file(about))
            return 0
        lines, digest = _check_about(named, self._read(f"{self._path}.about.json"), about)
        self._add(whole or b"")
        self._num_joined = self._num_lines
        self.digest = digest if lines == self._num_lines else None
        for name in parts:
            first, _, digest = name.rpartition("/")[2].partition("-")
            if int(first) == self._num_lines:  # else it is in the whole already
                self._add(self._read(name) or b"")
                self.digest = digest or None
        return self._num_lines

    def flush(self, digest: str | None = None) -> None:
        if self.pending:
            data = "".join(self.pending).encode()
            name = f"{self._num_lines:012}" + (f"-{digest}" if digest else "")
            self._ask("pipe_file", f"{self._folder}/{name}", data)
            self._add(data)
            self.pending, self.digest = [], digest

    def join(self, about: Mapping[str, object]) -> None:
        if self._num_lines > self._num_joined or not self._num_lines:
            if self.digest is not None:
                done = {DONE: [self._num_lines, self.digest]}
                self._ask("pipe_file", f"{self._path}.about.json", _about_file({**about, **done}))
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

    def _ask(self, method: str, *arguments: object, **options: object) -> Any:
        return remote.ask(self._system, POLICY, method, *arguments, **options)


def _about_file(about: Mapping[str, object]) -> bytes:
    return (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode()


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.about.json")


def _check_about(path: str, before: bytes | None, about: Mapping[str, object]) -> tuple[int, str | None]:
    """Returns the lines written, and the digest of their input lines, or (0, None) before the first window is finished.

    Raises InputError if what stands beside the output is not this `about`.
    """
    try:
        made = json.loads(before) if before else {}
        done = made.pop(DONE, None)
        lines, digest = done or (0, None)
        is_readable = bool(made) and isinstance(lines, int) and isinstance(digest, str | None)
    except (ValueError, TypeError, AttributeError):
        is_readable = False
    if not is_readable:
        raise InputError(
            f"The output {path} exists, and no {path}.about.json says what it was made with; give another path, or"
            " delete it."
        )
    about = dict(about)
    for each in (made, about):
        each.pop("input", None)  # where the lines were from: the digest tells whether they are the same
    if made != about:
        changed = next((name for name in about if made.get(name) != about[name]), "it")
        raise InputError(f"The output {path} was made with another {changed}; give another path, or delete it.")
    return lines, digest


def _unwritable(path: str, error: Exception) -> InputError:
    return InputError(f"The output {path} cannot be written ({reason_of(error)}); give another path.")


def process(
    source: Iterator[Record],
    output: Output,
    window: int,
    judge: Callable[[list[Record], int], Iterator[tuple[int, Record, str]]],
    shows_progress: bool,
    total: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Writes the results of `judge` for all records; returns the number of records.

    `judge(records, number of the first)` yields (index in records, record, text) in any order. It gets one window of
    records at a time: one window is held in memory, and at most one is lost when the command is stopped. A line is
    written as soon as those before it are. `total` is the number of records if it is known; `check` is called before
    a window is saved. Raises InputError if the output holds lines of another text.
    """
    count, digest = output.num_done, hashlib.blake2b(digest_size=16)
    source = _digested(source, digest)
    num_read = sum(1 for _ in itertools.islice(source, count))
    output.check(digest.hexdigest(), num_read)
    if count and output.writes:
        print(f"{count:,} lines are already written.", file=sys.stderr)
    with Progress(total, count, shows_progress) as progress:
        while records_of_window := list(itertools.islice(source, window)):
            done: dict[int, tuple[Record, str]] = {}
            place = 0
            for number, record, text in judge(records_of_window, count):
                done[number] = (record, text)
                progress.update()
                while place in done:
                    output.write(*done.pop(place))
                    place += 1
                output.show()
            check()
            output.flush(digest.hexdigest())
            count += len(records_of_window)
    return count


def _digested(source: Iterator[Record], digest: hashlib.blake2b) -> Iterator[Record]:
    """Yields the records, and adds each to the digest."""
    for record in source:
        digest.update(json.dumps(record).encode() + b"\n")
        yield record


SECONDS_BETWEEN = 30.0  # of lines where there is no terminal


class Progress:
    """Counts lines, `done` of them before the start; says how many of `total` are there, how fast and how long yet.

    Without a total no time is said. With `shows=False` it says nothing. `what` is done with other things than lines,
    `unit` each; it may stand for one of tqdm's bars.
    """

    def __init__(self, total: int | None, done: int, shows: bool = True, unit: str = "line", what: str = ""):
        self._total, self._done, self._begun, self._unit, self._what = total, done, done, unit, what
        is_terminal = sys.stderr.isatty()
        self._says = shows and not is_terminal
        self._bar = tqdm(
            total=total,
            desc=what or None,
            unit=unit,
            initial=done,
            disable=not (shows and is_terminal),
            dynamic_ncols=True,
        )
        self._start = self._said = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the bar."""
        self._bar.close()

    def update(self, number: int = 1) -> None:
        """Counts one line, or several."""
        self._done += number
        self._bar.update(number)
        now = time.monotonic()
        if self._says and now - self._said >= SECONDS_BETWEEN:
            self._said = now
            print(self.sentence(now - self._start), file=sys.stderr, flush=True)

    def sentence(self, seconds: float) -> str:
        """Returns how far it is after some seconds.

        >>> progress = Progress(500, 100, False)
        >>> for _ in range(100): progress.update()
        >>> progress.sentence(50.0)
        '200 of 500 lines, 2.0 lines/s, ETA 2 min 30 s'
        """
        speed, units = (self._done - self._begun) / max(seconds, 1e-9), f"{self._unit}s"
        what = f"{self._what}: " if self._what else ""
        if self._total is None:
            return f"{what}{self._done:,} {units}, {speed:.1f} {units}/s"
        left = duration((self._total - self._done) / max(speed, 1e-9))
        return f"{what}{self._done:,} of {self._total:,} {units}, {speed:.1f} {units}/s, ETA {left}"
