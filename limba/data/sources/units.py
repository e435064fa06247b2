"""Sources that are read in units; their order is a pure function of the data position, which tf.data saves.

An epoch is a permutation of units divided among shards. A shard interleaves 16 of its units and permutes
the documents inside each chunk. All of it follows from (seed, epoch, unit, chunk): there is no
shuffle buffer, and a saved data position holds indices and not text.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba.config import InputError
from limba.config.secrets import without_credentials
from limba.data.sources.chunks import ChunkReader
from limba.data.sources.fingerprints import File, Mark, end_bytes_for, marks_of
from limba.data.sources.order import (
    ENDLESS,
    INTERLEAVED_UNITS,
    Reading,
    ShardsServed,
    fewer_shards,
    random_generator,
    shard_of_row,
    unit_order,
)
from limba.data.sources.parquet import TOKENS
from limba.data.sources.readers import FIELD_SEPARATOR, Unit, group_rows, list_files, list_units
from limba.data.sources.remote import ReadPolicy

logger = logging.getLogger(__name__)

BYTES_CHECKED = 1 << 25  # of local files before a run; about a second
MOST_EMPTY_UNITS = 10_000  # in a row, of a shard with fewer units; seconds
MOST_BYTES_CHECKED = 8 * BYTES_CHECKED  # of a corpus of few documents, to see that every data shard has one
# A longer document is cut, at a space if possible: a saved data position may hold the tokens of 32 pieces, and must
# stay small for a corpus of books.
PIECE_BYTES = 1 << 14
DOCUMENT = "limba_document"  # the feature of traced documents that says which one it is
_NOT_SPACE = re.compile(rb"\S")

# A column's name, or {feature: column}: then an element has these features, of one row.
Column = str | Mapping[str, str]
# Turns a row's text into any number of documents.
Rewrite = Callable[[bytes], Sequence[bytes]]


class UnitSource(seqio.DataSource):
    """Documents {"text": string} of files that are listed when they are first needed.

    `resolve` returns split -> patterns or addresses. If it returns no `validation`, that split is carved out of
    `train` by a hash of each document: equal texts fall on the same side, on every machine and in every later run.
    `rewrite` turns a row's text into documents. Every error is an InputError; `failure` stores the error of a reading
    thread, since TensorFlow passes on only its text.
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
        super().__init__(splits=splits, caching_permitted=False, performs_internal_shuffling=True)
        self.name, self._rewrite = name, rewrite
        self.failure: InputError | None = None
        self._progress: dict[tuple[str, int], float] = {}
        # The names of an element's features.
        self.keys = tuple(column) if isinstance(column, Mapping) else (TOKENS if column == TOKENS else "text",)
        self._resolve = resolve
        self.column = column
        self._validation_percent = validation_percent
        self.read_by(ReadPolicy())
        self._lock, self._marks_lock = threading.RLock(), threading.Lock()
        self._files: dict[tuple[str, ...], list[File]] = {}
        self._units: dict[tuple[str, ...], list[Unit]] = {}
        self._marks: dict[tuple[tuple[str, ...], int], list[Mark]] = {}

    def read_by(self, policy: ReadPolicy) -> None:
        """Sets the policy for failed reads; call it before anything is read."""
        self._policy = policy
        self._read = ChunkReader(self.columns, policy)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that are read, in order."""
        return tuple(self.column.values()) if isinstance(self.column, Mapping) else (self.column,)

    def note_progress(self, split: str, shard: int, epochs: float) -> None:
        """Records the number of epochs that a shard of a split has read."""
        self._progress[split, shard] = max(self._progress.get((split, shard), 0.0), epochs)

    def progress(self, split: str, shard: int) -> float:
        """Returns the epochs that a shard of a split has read since the last call of `documents`, counted in units."""
        return self._progress.get((split, shard), 0.0)

    def begin(self, split: str, shard: int) -> None:
        """Resets the progress of a shard that another stream of this process has read."""
        self._progress.pop((split, shard), None)

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """(unit, reason) of the units that the policy skips from an unreadable place on."""
        return self._read.skipped

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    @functools.cached_property
    def _patterns(self) -> Mapping[str, Sequence[str]]:
        return self._resolve()

    def is_carved(self, split: str) -> bool:
        """True if the split is carved out of the train split's files."""
        return split in ("train", "validation") and "validation" not in self._patterns

    def carved_percent(self, split: str) -> float | None:
        """Returns the percentage of the train split that is carved out for validation; None if there is none."""
        return self._validation_percent if self.is_carved(split) else None

    def patterns_of_split(self, split: str) -> Sequence[str]:
        """Returns the patterns of the split's files; InputError for a split that the source does not have."""
        origin = "train" if self.is_carved(split) else split
        if origin not in self._patterns:
            raise InputError(
                f"{self.name} has no split {split!r}; it has {', '.join(self._patterns)}: set DataConfig.train_split or"
                " DataConfig.validation_split to one of these."
            )
        return self._patterns[origin]

    def list_files(self, patterns: Sequence[str]) -> list[File]:
        """Returns the files of a split, in order."""
        return list_files(patterns, self._policy)

    def list_units(self, patterns: Sequence[str]) -> list[Unit]:
        """Returns the units of a split, in order."""
        return list_units(self._listed(patterns), self._policy, self._read.footers)

    def _listed(self, patterns: Sequence[str]) -> list[File]:
        with self._lock:
            key = tuple(patterns)
            if key not in self._files:
                self._files[key] = self.list_files(patterns)
            return self._files[key]

    def listed(self, split: str) -> list[File]:
        """Returns the split's files, in order."""
        return self._listed(self.patterns_of_split(split))

    def parquet_rows(self, units: Sequence[Unit]) -> list[int]:
        """Returns the rows of these row groups of parquet files, as their footers say."""
        return group_rows(units, self._policy, self._read.footers)

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
                self._marks[key] = marks_of(files, key[1])
            return self._marks[key]

    def num_bytes(self, split: str) -> int:
        """Returns the bytes of the split's files, for a mixture's temperature; InputError if they are not known."""
        sizes = [file.size or 0 for file in self.listed(split)]
        if not all(sizes):
            raise InputError(f"The size of the files of {self.name} is not known; register the mixture with rates.")
        return sum(sizes)

    def units(self, split: str) -> list[Unit]:
        """Returns the split's units in order; InputError if the split or its files do not exist."""
        with self._lock:
            patterns = tuple(self.patterns_of_split(split))
            if patterns not in self._units:
                self._units[patterns] = self.list_units(patterns)
            return self._units[patterns]

    def list_shards(self, split: str) -> Sequence[str]:
        return [unit.name for unit in self.units(split)]

    def num_input_examples(self, split: str) -> Any:
        """Returns None, as seqio allows: counting would read the corpus."""

    def read(self, split: str, unit: Unit, chunk: int) -> list[bytes] | None:
        """Returns the split's documents of one chunk, or None after the unit's last one."""
        documents = self.read_whole(split, unit, chunk)
        return None if documents is None else self.filtered(split, documents)

    def chunks(self, split: str, unit: Unit) -> Iterator[list[bytes]]:
        """Yields the split's documents of a unit, chunk by chunk."""
        for chunk in itertools.count():
            documents = self.read(split, unit, chunk)
            if documents is None:
                return
            yield documents

    def read_whole(self, split: str, unit: Unit, chunk: int) -> list[bytes] | None:
        """Returns all documents of one chunk, including those of the other carved split."""
        del split
        documents = self._read(unit, chunk)
        if documents is None or self._rewrite is None:
            return documents
        return [part for document in documents for part in self._rewrite(document) if part]

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
        # By index: a copy of the rest after each piece would take minutes for a document of 100 MB.
        pieces, start = [], 0
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
        units, num_bytes = self.units(split), 0
        if may_be_empty and self.is_carved(split):
            return  # it has the files of `train`
        remote = any("://" in unit.path for unit in units[:1])
        shards = ShardsServed(num_shards, len(units))
        for number, unit in enumerate(units):
            for chunk, documents in enumerate(self.chunks(split, unit)):
                shards.add(number, chunk, len(documents))
                num_bytes += sum(map(len, documents))
                if remote and (shards.num_documents or may_be_empty):
                    return
                if num_bytes >= (BYTES_CHECKED if shards.are_all or may_be_empty else MOST_BYTES_CHECKED):
                    return
        if may_be_empty:
            return
        if not shards.num_documents:
            raise InputError(f"{self.name} holds no document in split {split!r}; {self._advice(split)}.")
        if not shards.are_all and (first := shards.first_without) is not None:
            raise InputError(
                f"{self.name} holds {shards.num_documents} document(s) in split {split!r}, and none for data shard"
                f" {first} of {num_shards}; set DataConfig.num_data_shards lower, or {self._advice(split)}.",
                fix=fewer_shards(first),
            )

    def _advice(self, split: str) -> str:
        """Returns how a split gets more text."""
        percent = self.carved_percent(split)
        lower = "" if percent is None or split != "train" or percent < 50 else " or lower DataConfig.validation_percent"
        return f"give files with more text in them{lower}"

    def features(self, documents: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns {feature: strings [n]} of documents [n]."""
        if len(self.keys) == 1:
            return {self.keys[0]: documents}
        fields = tf.strings.split(documents, FIELD_SEPARATOR).to_tensor(shape=[None, len(self.keys)])
        return {key: fields[:, place] for place, key in enumerate(self.keys)}

    def elements(self, documents: tf.Tensor) -> tf.data.Dataset:
        """Returns the data set of {feature: string} of documents [n]."""
        features: Any = self.features(documents)  # the stub does not know dictionaries
        return tf.data.Dataset.from_tensor_slices(features)

    def traced_elements(self, documents: tf.Tensor) -> tf.data.Dataset:
        """Returns the same of documents and their names [n, 2], with the name as the feature DOCUMENT."""
        features: Any = {**self.features(documents[:, 0]), DOCUMENT: documents[:, 1]}
        return tf.data.Dataset.from_tensor_slices(features)

    def named(self, split: str, name: bytes) -> tuple[str, int, bytes]:
        """Returns (unit, number of the document in it, the document) of a traced document's name."""
        number, chunk, row = map(int, name.split())
        unit, before = self.units(split)[number], 0
        for earlier in range(chunk):
            before += len(self.read_whole(split, unit, earlier) or ())
        documents = self.read_whole(split, unit, chunk) or []
        own = [place for place, text in enumerate(documents) if self.filtered(split, [text])]
        return unit.name, before + own[row], documents[own[row]]

    def documents(
        self,
        split: str,
        *,
        shard: int = 0,
        num_shards: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        num_epochs: int | None = None,
        first_epoch: int = 0,
        traced: bool = False,
    ) -> tf.data.Dataset:
        """Returns {"text": string} documents of one shard, endlessly if `num_epochs` is None.

        From a column `tokens` they are {"tokens": string}, from several columns {feature: string}. `traced` ones have
        their names too, which `named` reads. A pass over other files than before begins with a later `first_epoch`,
        and has at least one epoch.
        Units are divided among the shards; if there are fewer units than shards, every shard reads all of them and
        takes its own rows. In an epoch each document comes once, in exactly one shard.
        """
        self.begin(split, shard)
        return self.read_in_order(Reading(split, shard, num_shards, seed, shuffle, num_epochs, first_epoch, traced))

    def read_in_order(self, reading: Reading) -> tf.data.Dataset:
        """Returns the elements of `documents`."""
        part = _ShardUnits(self, reading)
        if part.divides_rows and reading.num_shards > 1:
            _warn_once(
                f"{self.name} has {len(part.units)} unit(s) in split {reading.split!r} and {reading.num_shards} data"
                " shards: every shard reads all of them and takes its own documents. With more or larger files each"
                " shard would read only its own units."
            )
        if part.count == 0 and reading.is_endless:
            raise InputError(f"{self.name} holds no document in split {reading.split!r}; give files with text in them.")

        def of_chunk(*place: tf.Tensor) -> tf.data.Dataset:
            if reading.traced:
                return self.traced_elements(call_numpy(part.traced_documents, tf.string, [None, 2], *place))
            return self.elements(call_numpy(part.documents, tf.string, [None], *place))

        if part.count == 0:
            empty = tf.zeros([0, 2], tf.string)
            return self.traced_elements(empty) if reading.traced else self.elements(empty[:, 0])

        def of_unit(epoch: tf.Tensor, index: tf.Tensor) -> tf.data.Dataset:
            chunks = tf.data.Dataset.range(ENDLESS)
            chunks = chunks.take_while(lambda chunk: call_numpy(part.has_chunk, tf.bool, [], epoch, index, chunk))
            # flat_map saves its argument, the chunk's number, and reads the chunk again when it is restored.
            return chunks.flat_map(lambda chunk: of_chunk(epoch, index, chunk))

        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            width = min(INTERLEAVED_UNITS, part.count) if reading.shuffle else 1
            return tf.data.Dataset.range(part.count).interleave(
                lambda index: of_unit(epoch, index), cycle_length=width, block_length=1
            )

        return reading.epochs().flat_map(of_epoch)

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        *,
        sequence_length: Mapping[str, int] | None = None,
        use_cached: bool = False,
        num_epochs: int | None = 1,
    ) -> tf.data.Dataset:
        """Returns the documents, with the signature that seqio's `task.get_dataset` calls."""
        del sequence_length, use_cached
        index, num_shards = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        return self.documents(
            split, shard=index, num_shards=num_shards, seed=seed or 0, shuffle=shuffle, num_epochs=num_epochs
        )

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Stores an InputError of a reading thread in `failure`."""
        try:
            yield
        except InputError as error:
            self.failure = error
            raise


class _ShardUnits:
    """The units of one shard: pure functions of (epoch, index among the shard's units, chunk)."""

    def __init__(self, source: UnitSource, reading: Reading):
        self._source, self._split = source, reading.split
        self._shard, self._num_shards = shard, num_shards = reading.shard, reading.num_shards
        self._seed, self._shuffle, self._endless = reading.seed, reading.shuffle, reading.is_endless
        self.units = source.units(reading.split)
        self.divides_rows = len(self.units) < num_shards
        self.count = len(self.units) if self.divides_rows else len(range(shard, len(self.units), num_shards))
        # Units opened since the last document, to notice an endless data set without any. A long line makes many empty
        # units, and by chance a shard may have none but these in several epochs.
        self._opened = 0
        self._most_opened = 2 * self.count + max(INTERLEAVED_UNITS, min(64 * self.count, MOST_EMPTY_UNITS))

    def _unit_at(self, epoch: int, index: int) -> tuple[int, Unit]:
        place = int(index) if self.divides_rows else self._shard + int(index) * self._num_shards
        number = int(unit_order(self._seed, int(epoch), len(self.units))[place]) if self._shuffle else place
        return number, self.units[number]

    def has_chunk(self, epoch: int, index: int, chunk: int) -> np.bool_:
        """Returns whether the unit has this chunk."""
        source = self._source
        with source.failures():
            _, unit = self._unit_at(epoch, index)
            if chunk == 0:
                self._opened += 1
                if self._endless and self._opened > self._most_opened:
                    raise InputError(
                        f"{source.name} has no document for data shard {self._shard} of {self._num_shards} in split "
                        f"{self._split!r}; set DataConfig.num_data_shards lower, or give more documents.",
                        fix=fewer_shards(self._shard),
                    )
            exists = source.read_whole(self._split, unit, int(chunk)) is not None
            if not exists:  # units end roughly in the order of opening
                source.note_progress(self._split, self._shard, int(epoch) + (int(index) + 1) / self.count)
            return np.bool_(exists)

    def documents(self, epoch: int, index: int, chunk: int) -> np.ndarray:
        """Returns the shard's documents of a chunk, bytes [n], permuted, long ones in pieces."""
        with self._source.failures():
            _, texts, rows = self._rows(epoch, index, chunk)
            pieces = itertools.chain.from_iterable(self._source.pieces(texts[row]) for row in rows)
            return np.array(list(pieces), dtype=object)

    def traced_documents(self, epoch: int, index: int, chunk: int) -> np.ndarray:
        """Returns the same documents, each with its name for `UnitSource.named`, bytes [n, 2]."""
        with self._source.failures():
            number, texts, rows = self._rows(epoch, index, chunk)
            names = [f"{number} {chunk} {row}".encode() for row in rows]
            return with_names(self._source, (texts[row] for row in rows), names)

    def _rows(self, epoch: int, index: int, chunk: int) -> tuple[int, list[bytes], Sequence[int]]:
        """Returns (number of the unit, documents of the chunk, which of them the shard reads, in order)."""
        source = self._source
        number, unit = self._unit_at(epoch, index)
        texts = source.read(self._split, unit, int(chunk)) or []
        ended = max(0, int(index) - INTERLEAVED_UNITS)  # a lower bound, known right after a restore
        source.note_progress(self._split, self._shard, int(epoch) + ended / self.count)
        rows: Sequence[int] = range(len(texts))
        if self.divides_rows:
            rows = [row for row in rows if shard_of_row(row, number, chunk, self._num_shards) == self._shard]
        if rows:
            self._opened = 0
        if self._shuffle:
            order = random_generator("rows", self._seed, int(epoch), number, int(chunk)).permutation(len(rows))
            rows = [rows[place] for place in order]
        return number, texts, rows


def with_names(source: UnitSource, texts: Iterable[bytes], names: Iterable[bytes]) -> np.ndarray:
    """Returns the documents' pieces with their documents' names, bytes [n, 2]."""
    rows = [[piece, name] for text, name in zip(texts, names, strict=True) for piece in source.pieces(text)]
    return np.array(rows, dtype=object).reshape(-1, 2)


def call_numpy(function: Callable, dtype: tf.DType, shape: list, *arguments: tf.Tensor) -> tf.Tensor:
    """Calls a Python function inside a graph; its result must depend only on its arguments."""
    # Declared stateless, so that tf.data can save and restore the iterator.
    result = tf.numpy_function(function, arguments, dtype, stateful=False)
    result.set_shape(shape)
    return result


def _is_validation(text: bytes, percent: float) -> bool:
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return number % 1_000_000 < percent * 10_000


@functools.lru_cache(maxsize=64)
def _warn_once(message: str) -> None:
    logger.warning(without_credentials(message))
