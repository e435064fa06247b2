"""Lines of text or JSON in, as many out in the same order; a run broken off goes on behind its last line."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from limba.config import ConfigError

STANDARD = ("-", "stdin", "stdout")
Record = dict[str, Any]


def records(path: str, fields: Sequence[str]) -> Iterator[Record]:
    """Yields a record per line: of .jsonl (also .gz) the object, else {first field: line}; ConfigError if bad."""
    if path in STANDARD:
        yield from _records(sys.stdin, "stdin", fields, is_json=False)
        return
    if not Path(path).is_file():
        raise ConfigError(f"--input={path} is not there; give a .txt or .jsonl file (also .gz), or stdin.")
    plain = path.removesuffix(".gz")
    with (gzip.open if plain != path else open)(path, "rt", encoding="utf-8") as file:
        yield from _records(file, path, fields, plain.endswith((".jsonl", ".json")))


def _records(file: TextIO, place: str, fields: Sequence[str], is_json: bool) -> Iterator[Record]:
    if len(fields) > 1 and not is_json:
        raise ConfigError(f"{place} has no fields {', '.join(fields)}; give a .jsonl file.")
    try:
        for number, line in enumerate(file, 1):
            if not is_json:
                yield {fields[0]: line.rstrip("\r\n")}
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{place} line {number} is not JSON ({error}); mend the line.") from None
            for field in fields:
                if not isinstance(record, Mapping) or not isinstance(record.get(field), str):
                    raise ConfigError(f"{place} line {number} has no text in field {field!r}; name another one.")
            yield dict(record)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place} is not UTF-8 ({error.reason}); convert it, for instance with iconv.") from None


class Output:
    """Where lines go. A file that is there is gone on with, if it was made with the same `about`, kept beside it."""

    def __init__(self, path: str, about: Mapping[str, Any], writes: bool = True):
        self.path, self.num_done, self._file = path, 0, None
        self.is_json = path.endswith((".jsonl", ".json"))
        if path in STANDARD:
            self._file = sys.stdout if writes else None
            return
        self.num_done = self._goes_on(Path(path), json.loads(json.dumps(about)), writes)
        if writes:
            self._file = open(path, "a", encoding="utf-8")

    def _goes_on(self, path: Path, about: Mapping[str, Any], writes: bool) -> int:
        beside = path.with_name(f"{path.name}.about.json")
        done = b""
        if path.exists():
            before = json.loads(beside.read_text()) if beside.exists() else None
            if before != about:
                changed = next((name for name in about if not before or before.get(name) != about[name]), "it")
                raise ConfigError(
                    f"--output={path} is there, made with another {changed}; give another path, or delete it."
                )
            content = path.read_bytes()
            done = content[: content.rfind(b"\n") + 1]
            if writes and len(done) < len(content):  # a line that was torn
                path.write_bytes(done)
        elif writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
        return done.count(b"\n")

    def write(self, record: Record, text: str) -> None:
        """Writes the record where the output is JSON lines, else the text as one line."""
        if self._file is not None:
            line = json.dumps(record, ensure_ascii=False) if self.is_json else " ".join(text.splitlines())
            self._file.write(line + "\n")

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file not in (None, sys.stdout):
            self._file.close()


def process(
    source: Iterator[Record],
    output: Output,
    window: int,
    judge: Callable[[list[Record], int], Iterator[tuple[int, Record, str]]],
    shows_progress: bool,
) -> int:
    """Writes what `judge` gives for each record; returns how many there were.

    `judge(records, number of the first)` yields (place among them, record, text) in any order, window by window: what
    is held is one window, and what a broken-off run loses is one too.
    """
    count = output.num_done
    for _ in itertools.islice(source, count):
        pass
    bar = tqdm(unit="line", initial=count, disable=not shows_progress, dynamic_ncols=True)
    with bar:
        while records_of_window := list(itertools.islice(source, window)):
            done: list[tuple[Record, str] | None] = [None] * len(records_of_window)
            for place, record, text in judge(records_of_window, count):
                done[place] = (record, text)
                bar.update()
            for record, text in done:
                output.write(record, text)
            output.flush()
            count += len(done)
    return count
