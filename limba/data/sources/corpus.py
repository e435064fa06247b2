"""The files of a run's corpora as a table in its data positions, and what has changed in them since.

Each shard's data position holds the rows of every num_data_shards-th file, so that a checkpoint holds the table once.
"""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from limba.config import InputError, without_credentials
from limba.data.sources.fingerprints import Mark
from limba.data.sources.listing import file_format

NAMED_FILES = 3  # in one sentence
WHILE_READ = "while the run reads it"


@dataclass(frozen=True)
class Corpora:
    """The marks of each task's files, in the order in which the task reads them."""

    files: Mapping[str, Sequence[Mark]]

    @functools.cached_property
    def num_files(self) -> dict[str, int]:
        return {task: len(marks) for task, marks in self.files.items()}

    @functools.cached_property
    def end_bytes(self) -> dict[str, int]:
        """Task -> the bytes at each end of a local file that its mark covers; 0 where there is no local file."""
        kinds = {task: [(mark.content or "").partition(":")[0] for mark in marks] for task, marks in self.files.items()}
        return {task: next((int(kind) for kind in names if kind.isdigit()), 0) for task, names in kinds.items()}

    @functools.cached_property
    def _names(self) -> dict[str, tuple[str, list[str]]]:
        return {task: _relative(marks) for task, marks in self.files.items()}

    @functools.cached_property
    def digest(self) -> str:
        """Returns a digest of formats, sizes and contents in order: no folder and, where content is known, no name."""
        rows = [
            (task, _kind(mark.path), mark.size, mark.content or name)
            for task, marks in self.files.items()
            for mark, name in zip(marks, self._names[task][1], strict=True)
        ]
        return hashlib.blake2b(repr(rows).encode(), digest_size=8).hexdigest()

    def packed(self, shard: int, num_shards: int) -> bytes:
        """Returns the rows of the table that one shard's data position holds, compressed."""
        table = {}
        first = 0
        for task, marks in self.files.items():
            folder, names = self._names[task]
            rows = [
                [index, name, mark.size, mark.content, mark.time]
                for index, (mark, name) in enumerate(zip(marks, names, strict=True))
                if (first + index) % num_shards == shard
            ]
            table[task] = {"folder": folder, "files": rows}
            first += len(marks)
        return zlib.compress(json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode())


def unpacked_table(data: bytes) -> dict[str, dict[int, Mark]]:
    """Returns task -> place -> mark of what `Corpora.packed` wrote; ValueError, KeyError or zlib.error for damage."""
    table = json.loads(zlib.decompress(data))
    return {
        task: {
            int(index): Mark(f"{part['folder']}/{name}" if part["folder"] else name, size, content, time)
            for index, name, size, content, time in part["files"]
        }
        for task, part in table.items()
    }


@dataclass
class Changes:
    """The files that are not as they were; pairs are (then, now)."""

    changed: list[tuple[Mark, Mark]] = field(default_factory=list)
    appeared: list[Mark] = field(default_factory=list)
    vanished: list[Mark] = field(default_factory=list)
    touched: list[Mark] = field(default_factory=list)  # another time, and what is known of the content is the same

    def __bool__(self) -> bool:
        return bool(self.changed or self.appeared or self.vanished)

    def add(self, others: Changes) -> None:
        """Adds the files of another task."""
        self.changed += others.changed
        self.appeared += others.appeared
        self.vanished += others.vanished
        self.touched += others.touched

    def sentence(self, since: str) -> str:
        """Returns what has changed, file by file, without a period; `since` is such as "since step 110".

        >>> then, now = Mark("corpus/a.jsonl.gz", 1234, "65536:ab"), Mark("corpus/a.jsonl.gz", 2345, "65536:cd")
        >>> Changes([(then, now)], appeared=[Mark("corpus/b.jsonl.gz", 5, None)]).sentence("since step 110")
        'corpus/a.jsonl.gz has changed since step 110: 1,234 bytes then, 2,345 now; 1 file appeared: corpus/b.jsonl.gz'
        """
        parts = [_change(then, now, since) for then, now in self.changed[:NAMED_FILES]]
        if len(self.changed) > NAMED_FILES:
            parts.append(f"{len(self.changed) - NAMED_FILES:,} more files have changed")
        for marks, verb in ((self.appeared, "appeared"), (self.vanished, "vanished")):
            if marks:
                names = ", ".join(without_credentials(mark.path) for mark in marks[:NAMED_FILES])
                more = ", …" if len(marks) > NAMED_FILES else ""
                parts.append(f"{len(marks):,} file{'s' if len(marks) > 1 else ''} {verb}: {names}{more}")
        if not self.changed and parts:
            parts[0] = f"The corpus has changed {since}: {parts[0]}"
        return "; ".join(parts)


def changed_while_read(sentence: str) -> InputError:
    """Returns the error for a corpus that has changed since a run looked at it; the sentence says how."""
    return InputError(
        f"{sentence}; start the same command again: with the original files restored it reads on, and with"
        " DataConfig.on_changed_corpus 'new_epoch' it begins a new pass over the current ones."
    )


def _change(then: Mark, now: Mark, since: str) -> str:
    if then.size == now.size and then.size is not None:
        sizes = f"{then.size:,} bytes as then, with other content"
    else:
        sizes = f"{_bytes(then.size)} then, {_bytes(now.size).removesuffix(' bytes')} now"
    return f"{without_credentials(now.path)} has changed {since}: {sizes}"


def _bytes(size: int | None) -> str:
    return "an unknown size" if size is None else f"{size:,} bytes"


def changes(then: Mapping[int, Mark], num_files: int, now: Sequence[Mark]) -> Changes:
    """Returns what has changed in one task's files; `then` may lack some of the `num_files`.

    Files are paired by path or, if no path is the same, by the path below their common folder: the corpus may have
    moved.
    """
    places = sorted(then)
    paths = [without_credentials(mark.path) for mark in now]
    is_same_place = not {then[index].path for index in places}.isdisjoint(paths)
    if is_same_place:
        old_names = [then[index].path for index in places]
        new_names = paths
    else:
        _, old_names = _relative(then[index] for index in places)
        _, new_names = _relative(now)
    by_name = dict(zip(new_names, now, strict=True))
    changes = Changes()
    for name, index in zip(old_names, places, strict=True):
        mark = then[index]
        other = by_name.get(name)
        if other is None:
            changes.vanished.append(mark)
        elif mark.differs(other):
            changes.changed.append((mark, other))
        elif None not in (mark.time, other.time) and mark.time != other.time and other.has_unread_middle:
            changes.touched.append(other)
    if len(then) == num_files:
        known = set(old_names)
        changes.appeared = [mark for name, mark in by_name.items() if name not in known]
    return changes


def _kind(path: str) -> tuple[str, str]:
    try:
        return file_format(path)
    except InputError:  # a data set of TFDS, whose builder knows the format
        return ("", "")


def _relative(marks: Iterable[Mark]) -> tuple[str, list[str]]:
    """Returns (the folder that has all files, their paths below it), without credentials."""
    parts = [without_credentials(mark.path).split("/") for mark in marks]
    shared = 0
    while parts and all(len(other) > shared + 1 and other[shared] == parts[0][shared] for other in parts):
        shared += 1
    return "/".join(parts[0][:shared]) if parts else "", ["/".join(other[shared:]) for other in parts]
