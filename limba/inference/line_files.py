"""Reads lines of text or JSON and writes one line for each, in order; a stopped command resumes after its last line.

Beside the output stands a digest of the input lines that it was made from, so that lines of another text are never
continued.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

import fsspec

from limba.config import InputError, StorageError, reason_of, untrusted_files
from limba.data.sources import failures, json_documents, remote
from limba.data.sources.lines import text_lines
from limba.data.sources.listing import file_format
from limba.data.sources.records import records as read_records
from limba.data.sources.remote import COMPRESSIONS, unpacked
from limba.formats.names import Json
from limba.inference.progress import Progress
from limba.inference.texts import whole_letters
from limba.storage import lease
from limba.storage.files import write_whole

POLICY = remote.ReadPolicy()
STANDARD = ("-", "stdin", "stdout")
DONE = "done"  # in PATH.about.json: the lines written, and the digest of their input lines
JSON_LINES = (".jsonl", ".json", ".ndjson")  # endings of an output that gets each record; others get a line of text
# Endings by which a reader would take lines of text for something else.
NOT_WRITTEN = (".csv", ".tsv", ".parquet", ".array_record", ".arrow", ".xlsx", ".zip", *COMPRESSIONS)
UNREADABLE = (ImportError, *failures.UNREADABLE)
Record = Json
T = TypeVar("T")


def records(path: str, fields: Sequence[str]) -> Iterator[Record]:
    """Yields the records of a file by its suffix, as training reads it: JSON, csv, tsv, parquet; else {field: line}.

    `path` is local or an address, such as gs://, and may be compressed (.gz and so on). InputError for a file that
    cannot be read, or has no text in a field.
    """
    if path in STANDARD:
        with _readable("stdin"):
            # A program around this one may have put its own text there, which has no bytes.
            file = getattr(sys.stdin, "buffer", None) or io.BufferedReader(io.BytesIO(sys.stdin.read().encode()))
            yield from _of_lines(text_lines("stdin", file), "stdin", fields)
        return
    if not _is_text(path):
        for where, record in _existing(path, read_records(path, fields)):
            yield dict(record) | {field: _text_of(where, record, field, len(fields) > 1) for field in fields}
        return
    with _readable(path), remote.open_file(path, POLICY) as packed, unpacked(packed, _suffix(path)) as file:
        yield from _of_lines(text_lines(path, file), path, fields)


def _of_lines(lines: Iterator[str], path: str, fields: Sequence[str]) -> Iterator[Record]:
    if len(fields) > 1:
        raise InputError(f"{path} has no fields {', '.join(fields)}; give a .jsonl, .csv, .tsv or .parquet file.")
    for line in lines:
        yield {fields[0]: line}


def _text_of(where: str, record: Mapping[str, object], field: str, is_pair: bool) -> str:
    """Returns the text of a field, which may be nested, as `translation.en`; InputError if there is none.

    `where` names the file and the record for the error. Beside another field a number is text, as in training.
    """
    try:
        value = json_documents.value_at(record, field)
    except KeyError:
        names = ", ".join(map(repr, record)) or "none"
        raise InputError(f"{where} has no text in field {field!r}; it has {names}: name another field.") from None
    value = json_documents.numbers_as_text(value) if is_pair else value
    if not isinstance(value, str):
        raise InputError(f"{where} has no text in field {field!r}, but {type(value).__name__}; name another field.")
    return whole_letters(value)


def _is_text(path: str) -> bool:
    """Returns whether each line of a file is a text: by its suffix, and without one that training knows."""
    try:
        return file_format(path)[0] == "text"
    except InputError:
        return True


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"The input {path} does not exist; give a .txt or .jsonl file (also .gz), or stdin.") from None
    except UNREADABLE as error:
        raise InputError(
            f"The input {path} cannot be read ({untrusted_files.reason_for(error)}); check the file."
        ) from error


def _existing(path: str, rows: Iterator[T]) -> Iterator[T]:
    with _readable(path):
        yield from rows


def num_lines(path: str) -> int | None:
    """Returns the number of lines of a local text or JSON lines file, compressed or not; None if it is not known.

    It is for showing progress, so whatever it cannot count, damaged files too, is left to `records` to report.
    """
    if path in STANDARD or "://" in path:
        return None
    has_lines = _is_text(path) or path.lower().removesuffix(_suffix(path)).endswith((".jsonl", ".ndjson"))
    if not has_lines or not untrusted_files.is_regular(path):  # a pipe can be read only once
        return None
    try:
        with open(path, "rb") as packed, unpacked(packed, _suffix(path)) as file:
            return sum(1 for _ in file)
    except UNREADABLE:
        return None


def _suffix(path: str) -> str:
    return next((ending for ending in COMPRESSIONS if path.lower().endswith(ending)), "")


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
            mine = stack.enter_context(lease.held(path, beside=True))
        except StorageError as error:
            raise _unwritable(path, error) from error
        yield mine.check


def check_output(path: str) -> None:
    """Raises InputError for an output whose ending promises another format than lines of JSON or of text.

    >>> check_output("out.jsonl"), check_output("out.de"), check_output("stdout")
    (None, None, None)
    """
    ending = next((ending for ending in NOT_WRITTEN if path.lower().endswith(ending)), None)
    if ending is not None:
        raise InputError(
            f"The output {path} would hold lines, and {ending} promises another format; give a path that ends in"
            f" {', '.join(JSON_LINES)} for whole records, or in .txt or any other ending for a line of text each."
        )


class Output:
    """The output file. An existing file is resumed if it was made with the same `about`, which is saved beside it.

    `path` is local or an address. In a bucket, whose objects cannot be appended to, every `flush` writes an object into
    PATH.parts, named by the number of its first line, and `close` joins them into one. With `writes=False` lines are
    only counted. `num_done` lines are there, made from input lines whose digest is `digest`, or None if no window is
    finished. Raises InputError for an ending of another format and if the file cannot be opened, and StorageError if it
    cannot be written any more.
    """

    def __init__(self, path: str, settings: Mapping[str, object], writes: bool = True):
        check_output(path)
        self.path = path
        self.writes = writes
        self.is_json = path.lower().endswith(JSON_LINES)
        self._settings: Record = json.loads(json.dumps(settings))  # as it is read back: a tuple becomes a list
        self.num_done = 0
        self.digest: str | None = None
        self._file: TextIO | None = sys.stdout if path in STANDARD and writes else None
        # For an object in a bucket: the lines since the last flush, and all that was flushed before.
        self._pending: list[str] = []
        self._content: list[bytes] = []
        try:
            if path not in STANDARD:
                self._system, self._system_path = fsspec.core.url_to_fs(path)
                self._is_local = remote.is_local(self._system)
                self._resume()
        except InputError:
            raise
        except (OSError, ImportError, ValueError) as error:
            raise _unwritable(path, error) from error
        self._num_lines = self.num_done

    def _resume(self) -> None:
        """Reads the complete lines that are there, and opens a local file behind them."""
        content = self._read(self._system_path)
        parts = self._parts()
        if content is not None or parts:
            lines, self.digest = _check_settings(
                self.path, self._read(f"{self._system_path}.about.json"), self._settings
            )
            whole = content or b""
            for part in parts:
                first_line = int(part.rpartition("/")[2].partition("-")[0])
                if first_line == whole.count(b"\n"):  # else `close` was stopped after it had joined this part
                    whole += self._read(part) or b""
            rows = whole.split(b"\n")[:-1]
            if len(rows) < lines:
                raise InputError(
                    f"The output {self.path} has {len(rows)} lines, and {lines} were written to it; give another"
                    " path, or delete it."
                )
            # Rows after `lines` belong to a window that was not finished; it is made again.
            self.num_done = lines
            self._content = [row + b"\n" for row in rows[:lines]]
        elif self.writes:
            if self._is_local:
                Path(self._system_path).parent.mkdir(parents=True, exist_ok=True)
            self._put_settings({})
        if self._is_local and self.writes:
            self._file = open(self._system_path, "a", encoding="utf-8")
            os.truncate(self._system_path, sum(map(len, self._content)))

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes the file; after an error what is there stays, to be resumed."""
        if kind is None:
            self.close()
        elif self._file is not None and self._file is not sys.stdout:
            with contextlib.suppress(OSError):  # must not hide the error that ends the program
                self._file.close()

    def check(self, digest: str, num_read: int) -> None:
        """Raises InputError unless the written lines were made from the input lines of this digest and number."""
        if num_read < self.num_done or self.digest not in (None, digest):
            source = self._settings.get("input", "the input")
            raise InputError(
                f"The output {self.path} has {self.num_done} lines of another text: {source} has changed since; give"
                " another path, or delete it."
            )

    def write(self, record: Record, text: str) -> None:
        """Writes the record if the output is JSON lines, else the text as one line."""
        if self.is_json:
            line = json.dumps(record, ensure_ascii=False, default=str)  # dates and the like, of parquet
        else:
            line = in_one_line(text)
        line = whole_letters(line) + "\n"
        self._num_lines += 1
        with self._failures():
            if self._file is not None:
                self._file.write(line)
            elif self.writes:
                self._pending.append(line)

    def show(self) -> None:
        """Shows the lines so far, if the output is the standard one."""
        if self._file is sys.stdout:
            sys.stdout.flush()

    def flush(self, digest: str) -> None:
        """Writes the pending lines to the file; `digest` is of all input lines that have their lines now."""
        self.show()
        if self._file is sys.stdout or not self.writes:
            return
        with self._failures():
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())  # the digest must not come to the disk before its lines
            elif self._pending:
                data = "".join(self._pending).encode()
                self._put(f"{self._system_path}.parts/{self._num_lines - len(self._pending):012}", data)
                self._content.append(data)
                self._pending = []
            self._put_settings({DONE: [self._num_lines, digest]})

    def close(self) -> None:
        """Closes the file; of an object in a bucket, joins the parts."""
        if self._file is sys.stdout or not self.writes:
            return
        with self._failures():
            if self._file is not None:
                self._file.close()
                return
            parts = self._parts()
            if parts or not self._content:
                self._put(self._system_path, b"".join(self._content))
            if parts:
                self._ask("rm", f"{self._system_path}.parts", recursive=True)

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

    def _parts(self) -> list[str]:
        """Returns the objects that hold the lines so far, in order: each is named by its first line's number."""
        if self._is_local:
            return []
        return sorted(self._unless_missing("ls", f"{self._system_path}.parts", detail=False) or ())

    def _read(self, path: str) -> bytes | None:
        if self._is_local:
            return Path(path).read_bytes() if os.path.exists(path) else None
        # `info` first: it is the one request that reports a missing file as missing in every file system.
        return self._unless_missing("info", path) and self._ask("cat_file", path)

    def _put(self, path: str, data: bytes) -> None:
        if self._is_local:
            write_whole(path, data)
        else:
            self._ask("pipe_file", path, data)

    def _put_settings(self, more: Record) -> None:
        text = json.dumps({**self._settings, **more}, indent=1, ensure_ascii=False) + "\n"
        self._put(f"{self._system_path}.about.json", text.encode())

    def _unless_missing(self, method: str, *arguments: object, **options: object) -> Any:
        try:
            return self._ask(method, *arguments, **options)
        except remote.ReadError as error:
            if error.missing:
                return None
            raise

    def _ask(self, method: str, *arguments: object, **options: object) -> Any:
        return remote.ask(self._system, POLICY, method, *arguments, **options)


def _check_settings(path: str, before: bytes | None, settings: Record) -> tuple[int, str | None]:
    """Returns the lines written, and the digest of their input lines, or (0, None) before the first window is finished.

    Raises InputError if the file beside the output is missing, damaged, or has other settings.
    """
    try:
        made = json.loads(before) if before else {}
        lines, digest = made.pop(DONE, None) or (0, None)
        is_readable = bool(made) and isinstance(lines, int) and isinstance(digest, str | None)
    except (ValueError, TypeError, AttributeError):
        is_readable = False
    if not is_readable:
        raise InputError(
            f"The output {path} exists, and no {path}.about.json says what it was made with; give another path, or"
            " delete it."
        )
    for name in (*settings, *made):
        # The input may have moved: the digest tells whether its lines are the same.
        if name != "input" and made.get(name) != settings.get(name):
            raise InputError(f"The output {path} was made with another {name}; give another path, or delete it.")
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
    count = output.num_done
    digest = hashlib.blake2b(digest_size=16)
    source = _digested(source, digest)
    num_read = sum(1 for _ in itertools.islice(source, count))
    output.check(digest.hexdigest(), num_read)
    if count and output.writes:
        print(f"{count:,} lines are already written.", file=sys.stderr)
    with Progress(total, count, shows_progress) as progress:
        while records_of_window := list(itertools.islice(source, window)):
            done: dict[int, tuple[Record, str]] = {}
            next_line = 0
            for number, record, text in judge(records_of_window, count):
                done[number] = (record, text)
                progress.update()
                while next_line in done:
                    output.write(*done.pop(next_line))
                    next_line += 1
                output.show()
            check()
            output.flush(digest.hexdigest())
            count += len(records_of_window)
    return count


def _digested(source: Iterator[Record], digest: hashlib.blake2b) -> Iterator[Record]:
    """Yields the records, and adds each to the digest."""
    for record in source:
        digest.update(json.dumps(record, default=str).encode() + b"\n")
        yield record


def in_one_line(text: str) -> str:
    r"""Returns a text with spaces in place of its line breaks; Unicode's other line separators stay.

    >>> in_one_line("one\r\ntwo\n"), in_one_line("one\u2028two") == "one\u2028two"
    ('one two', True)
    """
    return re.sub(r"\r\n|\n|\r", " ", re.sub(r"(\r\n|\n|\r)\Z", "", text))
