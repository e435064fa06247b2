"""The splits of a corpus: their files, cut into units that are read chunk by chunk; no TensorFlow."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import itertools
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from limba.config import ConfigError, InputError
from limba.data.sources import columns, listing, readers
from limba.data.sources.chunk_reader import ChunkReader
from limba.data.sources.corpus import WHILE_READ, changed_while_read, changes
from limba.data.sources.fingerprints import File, Mark, begins_as, end_bytes_for, mark_of, marks_of
from limba.data.sources.json_documents import TOKENS
from limba.data.sources.order import Counts, fewer_shards, shard_of_row
from limba.data.sources.remote import COMPRESSIONS, ReadPolicy

logger = logging.getLogger(__name__)

BYTES_CHECKED = 1 << 25  # of local files before a run; about a second
MOST_BYTES_CHECKED = 8 * BYTES_CHECKED  # of a corpus of few documents, to see that every data shard has one
COUNTED_BYTES = 1 << 29  # of local files that are read to be counted: some ten seconds; compressed ones weigh fivefold
UNITS_OF_BLANK = 8  # whose first rows are looked at for those without text
CHOSEN_BYTES = 1 << 32  # of text that is read at most to find a run's first documents
# A longer document is cut, at a space if possible: a saved data position may hold the tokens of 32 pieces, and must
# stay small for a corpus of books.
PIECE_BYTES = 1 << 14
# At least between two comparisons of a file of which only the time of change is another: on a network disk it may be
# another one each time.
COMPARED_SECONDS = 1.0
_NOT_SPACE = re.compile(rb"\S")

# A column's name, or {feature: column}: then an element has these features, of one row.
Column = str | Mapping[str, str]
# Turns a row's text into any number of documents.
Rewrite = Callable[[bytes], Sequence[bytes]]


class Listing(NamedTuple):
    """The patterns of a corpus's splits, and the files of one of them, as one process has found them."""

    patterns: Mapping[str, Sequence[str]]
    files: Sequence[File]


class Known(NamedTuple):
    """What a local file is known by while it is read."""

    mark: Mark
    end_bytes: int  # at each end of the file, which the mark covers
    # As the file was when its content was last compared, and when that was.
    size: int | None
    time: int | None
    inode: int | None = None
    compared: float = -math.inf


class Splits:
    """Texts of files that are listed when they are first needed, by split.

    `resolve` returns split -> patterns or addresses. If it returns no `validation`, that split is carved out of
    `train` by a hash of each document: equal texts fall on the same side, on every machine and in every later run.
    `rewrite` turns a row's text into documents. Every error is an InputError.
    """

    def __init__(
        self,
        name: str,
        resolve: Callable[[], Mapping[str, Sequence[str]]],
        splits: Sequence[str],
        column: Column = "text",
        validation_percent: float = 1.0,
        rewrite: Rewrite | None = None,
    ):
        self.splits = tuple(splits)
        # seqio refuses a task with a `CacheDatasetPlaceholder` on a source that prohibits a cache, and the published
        # tasks of t5 all have one; nothing here writes a cache.
        self.caching_permitted = True
        self.name = name
        self._rewrite = rewrite
        # The names of an element's features.
        if isinstance(column, Mapping):
            self.keys = tuple(column)
        elif column == TOKENS:
            self.keys = (TOKENS,)
        else:
            self.keys = ("text",)
        self._resolve = resolve
        self.column = column
        self._validation_percent = validation_percent
        self._policy = ReadPolicy()
        self._lock = threading.RLock()
        self._marks_lock = threading.Lock()
        self._forget_files()

    def _forget_files(self) -> None:
        self._files: dict[tuple[str, ...], list[File]] = {}
        self._units: dict[tuple[str, ...], list[listing.Unit]] = {}
        self._marks: dict[tuple[tuple[str, ...], int], list[Mark]] = {}
        self._known: dict[str, Known] = {}  # by the path of a local file

    def read_by(self, policy: ReadPolicy) -> Self:
        """Returns this source with another policy, which looks at its files anew.

        Each run of a process reads by such a copy of a registered source, and the files may change between two runs.
        """
        copied = copy.copy(self)
        copied._policy = policy
        copied.__dict__.pop("_read", None)
        copied._forget_files()
        return copied

    @functools.cached_property
    def _read(self) -> ChunkReader:
        return ChunkReader(self.columns, self._policy)

    @property
    def skips_what_cannot_be_read(self) -> bool:
        """Whether the rest of a unit is left out where it cannot be read, in place of ending the run."""
        return self._policy.on_failure == "skip"

    @property
    def num_tasks(self) -> int:
        """The number of tasks of the mixture in which this source is read."""
        return self._policy.num_tasks

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that are read, in order."""
        return tuple(self.column.values()) if isinstance(self.column, Mapping) else (self.column,)

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(unit, reason) of the units that the policy skips from an unreadable place on."""
        return self._read.skipped

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    @functools.cached_property
    def patterns(self) -> Mapping[str, Sequence[str]]:
        """Split -> the patterns or addresses of its files."""
        return self._resolve()

    def is_carved(self, split: str) -> bool:
        """True if the split is carved out of the train split's files."""
        return split in ("train", "validation") and "validation" not in self.patterns

    def carved_percent(self, split: str) -> float | None:
        """Returns the percentage of the train split that is carved out for validation; None if there is none."""
        return self._validation_percent if self.is_carved(split) else None

    def patterns_of_split(self, split: str) -> Sequence[str]:
        """Returns the patterns of the split's files; InputError for a split that the source does not have."""
        origin = "train" if self.is_carved(split) else split
        if origin not in self.patterns:
            raise InputError(
                f"{self.name} has no split {split!r}; it has {', '.join(self.patterns)}: set DataConfig.train_split or"
                " DataConfig.validation_split to one of these."
            )
        return self.patterns[origin]

    def list_files(self, patterns: Sequence[str]) -> list[File]:
        """Returns the files of a split, in order."""
        return listing.list_files(patterns, self._policy)

    def list_units(self, patterns: Sequence[str]) -> list[listing.Unit]:
        """Returns the units of a split, in order."""
        return listing.list_units(self._listed(patterns), self._policy, self._read.footers)

    def _listed(self, patterns: Sequence[str]) -> list[File]:
        with self._lock:
            key = tuple(patterns)
            if key not in self._files:
                self._files[key] = self.list_files(patterns)
            return self._files[key]

    def listed(self, split: str) -> list[File]:
        """Returns the split's files, in order."""
        return self._listed(self.patterns_of_split(split))

    def listed_files(self, split: str) -> Listing:
        """Returns the split's files for another process, which must read the same ones."""
        return Listing(self.patterns, self.listed(split))

    def read_listed(self, split: str, found: Listing) -> None:
        """Reads the files that another process has listed, and none that has appeared since."""
        self.patterns = found.patterns
        with self._lock:
            self._files[tuple(self.patterns_of_split(split))] = list(found.files)

    def sizes(self, split: str) -> list[int] | None:
        """Returns the documents of each unit, as the files say themselves; None where they do not."""
        units = self.units(split)
        if not units or any(listing.file_format(unit.path)[0] != "parquet" for unit in units):
            return None
        return listing.group_rows(units, self._policy, self._read.footers)

    def marks(self, split: str, end_bytes: int | None = None) -> list[Mark]:
        """Returns the marks of the split's files, in order, each read once; see `fingerprints`.

        `end_bytes` of a local file's head and tail count; None: as many as fit the number of files. Raises InputError
        for a file that changes or cannot be read.
        """
        patterns = tuple(self.patterns_of_split(split))
        files = self._listed(patterns)
        with self._marks_lock:  # readers need the other lock meanwhile
            key = (patterns, end_bytes or end_bytes_for(len(files)))
            if key not in self._marks:
                marks = marks_of(files, key[1])
                self._marks[key] = marks
                local = [mark for mark in marks if "://" not in mark.path]
                self._known |= {mark.path: Known(mark, key[1], mark.size, mark.time) for mark in local}
            return self._marks[key]

    def num_bytes(self, split: str) -> int | None:
        """Returns the bytes of the split's files, for a mixture's temperature; None if those of a file are unknown."""
        num_bytes = 0
        for file in self.listed(split):
            if file.size is None:
                return None
            num_bytes += file.size
        return num_bytes

    def units(self, split: str) -> list[listing.Unit]:
        """Returns the split's units in order; InputError if the split or its files do not exist."""
        with self._lock:
            patterns = tuple(self.patterns_of_split(split))
            if patterns not in self._units:
                self._units[patterns] = self.list_units(patterns)
            return self._units[patterns]

    def shared_files(self, split: str, other: str) -> list[str]:
        """Returns the files of which both splits read the same part, in order; none for splits carved out of one list.

        Raises InputError if a split or its files do not exist.
        """
        if self.is_carved(split) and self.is_carved(other):
            return []
        of_other: dict[str, list[listing.Unit]] = {}
        for unit in self.units(other):
            of_other.setdefault(unit.path, []).append(unit)
        shared: dict[str, None] = {}  # as a set with an order
        for unit in self.units(split):
            # A split of TFDS may be a slice, which begins in a file where the other one ends.
            if unit.path not in shared and any(map(unit.overlaps, of_other.get(unit.path, ()))):
                shared[unit.path] = None
        return list(shared)

    def list_shards(self, split: str) -> Sequence[str]:
        return [unit.name for unit in self.units(split)]

    def num_input_examples(self, split: str) -> int | None:
        """Returns None, as seqio allows: counting would read the corpus."""

    def read(self, split: str, unit: listing.Unit, chunk: int) -> list[bytes] | None:
        """Returns the split's documents of one chunk, or None after the unit's last one."""
        documents = self.read_whole(split, unit, chunk)
        return None if documents is None else self.filtered(split, documents)

    def chunks(self, split: str, unit: listing.Unit) -> Iterator[list[bytes]]:
        """Yields the split's documents of a unit, chunk by chunk."""
        for chunk in itertools.count():
            documents = self.read(split, unit, chunk)
            if documents is None:
                return
            yield documents

    def read_whole(self, split: str, unit: listing.Unit, chunk: int) -> list[bytes] | None:
        """Returns all documents of one chunk, including the other carved split's.

        Raises InputError if the file is not the one any more whose mark was taken.
        """
        del split
        try:
            documents = self._read(unit, chunk)
        finally:  # a file that was cut may fail as one with a bad line, which would be no help
            self._check_unchanged(unit)
        if documents is None or self._rewrite is None:
            return documents
        return [part for document in documents for part in self._rewrite(document) if part]

    def _check_unchanged(self, unit: listing.Unit) -> None:
        """Raises InputError if a unit's local file has other text than when its mark was taken, as far as a mark tells.

        It takes one stat, and a look at both ends of a file that has another size or time of change.
        """
        known = self._known.get(unit.path)
        if known is None:
            return
        try:
            status = os.stat(unit.path)
            size = status.st_size
            changed_at = status.st_mtime_ns // 1_000_000
            if (size, changed_at) == (known.size, known.time):
                return
            now = time.monotonic()
            is_time_alone = (size, status.st_ino) == (known.size, known.inode)
            if is_time_alone and now - known.compared < COMPARED_SECONDS:
                return
            found = changes({0: known.mark}, 1, [mark_of(unit.path, known.end_bytes)])
            if found and not _has_grown(unit, known):
                raise changed_while_read(found.sentence(WHILE_READ))
        except OSError:  # gone, or it cannot be opened now: neither can the next part of it
            return
        self._known[unit.path] = known._replace(size=size, time=changed_at, inode=status.st_ino, compared=now)

    def filtered(self, split: str, documents: list[bytes]) -> list[bytes]:
        """Returns the documents that belong to the split."""
        if not self.is_carved(split):
            return documents
        wanted = split == "validation"
        return [text for text in documents if _is_validation(text, self._validation_percent) is wanted]

    def pieces(self, text: bytes) -> list[bytes]:
        """Returns a document in pieces of at most PIECE_BYTES."""
        if len(self.keys) > 1:  # the texts of a row belong together
            return [text]
        if 0 < len(text) <= PIECE_BYTES:
            return [text]
        # By index: a copy of the rest after each piece would take minutes for a document of 100 MB.
        pieces = []
        start = 0
        while len(text) - start > PIECE_BYTES:
            stop = start + PIECE_BYTES
            if self.keys == ("text",):
                space = max(text.rfind(mark, start + 1, stop + 1) for mark in (b" ", b"\n"))
                while space < 0 and text[stop] & 0xC0 == 0x80:  # inside a character
                    stop -= 1
                stop = space if space > 0 else stop
            pieces.append(text[start:stop])
            start = stop
            if self.keys == ("text",):
                rest = _NOT_SPACE.search(text, stop)
                start = len(text) if rest is None else rest.start()
        return [*pieces, text[start:]] if start < len(text) else pieces

    def blank_shares(self, split: str) -> dict[str, float]:
        """Returns {feature: share of rows without text in its column} of the first rows of some units of a split."""
        units = self.units(split)
        some = units[:: len(units) // UNITS_OF_BLANK + 1]
        policy = dataclasses.replace(self._policy, keep_blank=True)
        shares = {}
        for key, column in zip(self.keys, self.columns, strict=True):
            rows: list[bytes] = []
            for unit in some:
                rows += self.first_rows(unit, column, policy)
            shares[key] = sum(not row or row.isspace() for row in rows) / max(len(rows), 1)
        return shares

    def first_rows(self, unit: listing.Unit, column: str, policy: ReadPolicy) -> list[bytes]:
        """Returns what a column has in the first rows of a unit, with a policy that keeps those without text."""
        return next(readers.read_chunks(unit, column, policy, self._read.footers), [])

    def texts(self, split: str) -> Iterator[str]:
        """Yields the split's documents once, in order, without TensorFlow; for vocabularies and counts."""
        if self.keys != ("text",):
            raise InputError(f"{self.name} does not hold plain text; give files of one text column.")
        for unit in self.units(split):
            for documents in self.chunks(split, unit):
                yield from (text.decode() for text in documents)

    def check(self, split: str, may_be_empty: bool = False, num_shards: int = 1) -> None:
        """Reads the beginning of the split (all of it if it is local and small), to find bad files at once.

        Raises InputError for files that do not exist, cannot be read, lack the column, or hold no document
        (unless `may_be_empty`: a carved split of a small corpus may be empty), and for a small local corpus in which
        one of `num_shards` data shards finds no document.
        """
        units = self.units(split)
        num_documents = 0
        num_bytes = 0
        served = set[int]()
        if may_be_empty and self.is_carved(split):
            return  # it has the files of `train`
        remote = any("://" in unit.path for unit in units[:1])
        for number, unit in enumerate(units):
            for chunk, documents in enumerate(self.chunks(split, unit)):
                if len(units) >= num_shards:  # each epoch gives a shard other units: it finds a document at some time
                    served.update(range(num_shards if documents else 0))
                elif len(served) < num_shards:
                    rows = range(min(len(documents), num_shards))
                    served.update(shard_of_row(row, number, chunk, num_shards) for row in rows)
                num_documents += len(documents)
                num_bytes += sum(map(len, documents))
                if remote and (num_documents or may_be_empty):
                    return
                enough = len(served) == num_shards or may_be_empty
                if num_bytes >= (BYTES_CHECKED if enough else MOST_BYTES_CHECKED):
                    return
        if may_be_empty:
            return
        if not num_documents:
            raise InputError(f"{self.name} holds no document in split {split!r}; {self._advice(split)}.")
        if without := set(range(num_shards)) - served:
            raise InputError(
                f"{self.name} holds {num_documents} document(s) in split {split!r}, and none for data shard"
                f" {min(without)} of {num_shards}; set DataConfig.num_data_shards lower,"
                f" or {self._advice(split)}.",
                fix=fewer_shards(min(without)),
            )

    def _advice(self, split: str) -> str:
        """Returns how a split gets more text."""
        percent = self.carved_percent(split)
        advice = "give files with more text in them"
        if split == "train" and percent is not None and percent >= 50:
            advice += " or lower DataConfig.validation_percent"
        return advice

    def count(self, split: str, most: int | None = None) -> Counts | None:
        """Returns the documents of a split, with `most` of its first so many; None if they cannot be known.

        Small local files are read, which takes seconds; large ones count only where they say their rows themselves.
        Raises InputError for a corpus that cannot be read, and ConfigError if its first documents are too much text.
        """
        if most is not None or self.is_small(split):
            return self._read_counts(split, most)
        sizes = self.sizes(split)
        if percent := self.carved_percent(split):  # by hash: an estimate
            share = 1.0 - percent / 100 if split == "train" else percent / 100
            sizes = sizes and [round(size * share) for size in sizes]
        return Counts(tuple(sizes), is_exact=False) if sizes and sum(sizes) else None

    def is_small(self, split: str) -> bool:
        """Returns whether the split's files are local, and read in seconds."""
        files = self.listed(split)
        if any("://" in file.path or file.size is None for file in files):
            return False
        weights = (5 if file.path.lower().endswith(COMPRESSIONS) else 1 for file in files)
        return sum((file.size or 0) * weight for file, weight in zip(files, weights, strict=True)) <= COUNTED_BYTES

    def _read_counts(self, split: str, most: int | None) -> Counts | None:
        """Returns the counts of the documents, all of them or the first `most`, by reading them."""
        chunks: list[tuple[int, ...]] = []
        left = most
        num_pieces = 0
        num_bytes = 0
        for unit in self.units(split):
            chunk_counts: list[int] = []
            for documents in () if left == 0 else self.chunks(split, unit):
                documents = documents if left is None else documents[:left]
                left = None if left is None else left - len(documents)
                chunk_counts.append(len(documents))
                num_pieces += sum(len(self.pieces(text)) for text in documents)
                num_bytes += sum(map(len, documents))
                if left is not None and left > 0 and num_bytes > CHOSEN_BYTES:
                    raise ConfigError(
                        "DataConfig.max_examples",
                        f"is {most:,}, and the first {(most or 0) - left:,} documents of {self.name} are"
                        f" {num_bytes >> 30} GiB of text already, which every start would read; give fewer, or files"
                        " that hold only these.",
                    )
                if left == 0:
                    break
            chunks.append(tuple(chunk_counts))
        sizes = tuple(map(sum, chunks))
        return Counts(sizes, tuple(chunks), num_pieces=num_pieces) if sum(sizes) else None

    def elements(self, text: bytes) -> list[dict[str, bytes]]:
        """Returns {feature: text} of a document's pieces."""
        key, *others = self.keys
        if others:
            return [dict(zip(self.keys, text.split(columns.FIELD_SEPARATOR), strict=True))]
        if 0 < len(text) <= PIECE_BYTES:  # nearly every document: no list of its pieces is made
            return [{key: text}]
        return [{key: piece} for piece in self.pieces(text)]

    def document(self, split: str, unit: int, chunk: int, row: int) -> tuple[str, int, bytes]:
        """Returns (name of the unit, number in it, text) of a document that `Documents` has read.

        Raises InputError where the file has no such document any more.
        """
        read_unit = self.units(split)[unit]
        before = 0
        for earlier in range(chunk):
            before += len(self.read_whole(split, read_unit, earlier) or ())
        documents = self.read_whole(split, read_unit, chunk) or []
        kept_rows = [row_number for row_number, text in enumerate(documents) if self.filtered(split, [text])]
        if row >= len(kept_rows):
            raise InputError(f"{read_unit.name} has fewer documents than when it was read; restore the original file.")
        return read_unit.name, before + kept_rows[row], documents[kept_rows[row]]


def _has_grown(unit: listing.Unit, known: Known) -> bool:
    """Returns whether a unit's file only has further lines now, behind the last unit: all units have the same text.

    A range of lines ends with the last line that begins in it. A file that is one unit is read to its end, which is
    another one now, a .json may be one object, and parquet does not end with a line.
    """
    if unit.stop is None or listing.may_be_one_value(unit.path):
        return False
    return begins_as(known.mark, known.end_bytes)


def _is_validation(text: bytes, percent: float) -> bool:
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return number % 1_000_000 < percent * 10_000
