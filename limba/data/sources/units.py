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
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba.config import InputError
from limba.data.sources.chunks import ChunkReader
from limba.data.sources.parquet import TOKENS
from limba.data.sources.readers import FIELD_SEPARATOR, Unit, list_files, list_units
from limba.data.sources.remote import ReadPolicy

logger = logging.getLogger(__name__)

INTERLEAVED_UNITS = 16  # with 16 shards and chunks of 300 documents, neighbours are 75,000 documents apart
BYTES_CHECKED = 1 << 25  # of local files before a run; about a second
ENDLESS = 2**62
# A longer document is cut, at a space if possible: a saved data position may hold the tokens of 32 pieces, and must
# stay small for a corpus of books.
PIECE_BYTES = 1 << 14

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
        self._lock = threading.RLock()
        self._units: dict[tuple[str, ...], list[Unit]] = {}

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

    def list_units(self, patterns: Sequence[str]) -> list[Unit]:
        """Returns the units of a split, in order."""
        return list_units(list_files(patterns, self._policy), self._policy, self._read.footers)

    def num_bytes(self, split: str) -> int:
        """Returns the bytes of the split's files, for a mixture's temperature; InputError if they are not known."""
        sizes = [file.size or 0 for file in list_files(self.patterns_of_split(split), self._policy)]
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
        pieces = []
        if len(self.keys) > 1:  # the texts of a row belong together
            return [text]
        while len(text) > PIECE_BYTES:
            stop = PIECE_BYTES
            if self.keys == ("text",):
                space = max(text.rfind(b" ", 1, stop + 1), text.rfind(b"\n", 1, stop + 1))
                while space < 0 and text[stop] & 0xC0 == 0x80:  # inside a character
                    stop -= 1
                stop = space if space > 0 else stop
            pieces.append(text[:stop])
            text = text[stop:].lstrip() if self.keys == ("text",) else text[stop:]
        return [*pieces, text] if text else pieces

    def texts(self, split: str) -> Iterator[str]:
        """Yields the split's documents once, in order, without TensorFlow; for vocabularies and counts."""
        if self.keys != ("text",):
            raise InputError(f"{self.name} does not hold plain text; give files of one text column.")
        for unit in self.units(split):
            for documents in self.chunks(split, unit):
                yield from (text.decode() for text in documents)

    def check(self, split: str, may_be_empty: bool = False) -> None:
        """Reads the beginning of the split (all of it if it is local and small), to find bad files at once.

        Raises InputError for files that do not exist, cannot be read, lack the column, or hold no document
        (unless `may_be_empty`: a carved split of a small corpus may be empty).
        """
        units, found, num_bytes = self.units(split), 0, 0
        if may_be_empty and self.is_carved(split):
            return  # it has the files of `train`
        remote = any("://" in unit.path for unit in units[:1])
        for unit in units:
            for documents in self.chunks(split, unit):
                found += len(documents)
                num_bytes += sum(map(len, documents))
                if num_bytes >= BYTES_CHECKED or (remote and (found or may_be_empty)):
                    return
        if not found and not may_be_empty:
            raise InputError(f"{self.name} holds no document in split {split!r}; give files with text in them.")

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

    def documents(
        self,
        split: str,
        *,
        shard: int = 0,
        num_shards: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        num_epochs: int | None = None,
    ) -> tf.data.Dataset:
        """Returns {"text": string} documents of one shard, endlessly if `num_epochs` is None.

        From a column `tokens` they are {"tokens": string}, from several columns {feature: string}.
        Units are divided among the shards; if there are fewer units than shards, every shard reads all of them and
        takes its own rows. In an epoch each document comes once, in exactly one shard.
        """
        self.begin(split, shard)
        part = _ShardUnits(self, split, shard, num_shards, seed, shuffle, endless=num_epochs is None)
        if part.divides_rows and num_shards > 1:
            _warn_once(
                f"{self.name} has {len(part.units)} unit(s) in split {split!r} and {num_shards} data shards: every "
                "shard reads all of them and takes its own documents. With more or larger files each shard would read"
                " only its own units."
            )
        if part.count == 0:
            if num_epochs is None:
                raise InputError(f"{self.name} holds no document in split {split!r}; give files with text in them.")
            return self.elements(tf.zeros([0], tf.string))

        def of_unit(epoch: tf.Tensor, index: tf.Tensor) -> tf.data.Dataset:
            chunks = tf.data.Dataset.range(ENDLESS)
            chunks = chunks.take_while(lambda chunk: call_numpy(part.has_chunk, tf.bool, [], epoch, index, chunk))
            # flat_map saves its argument, the chunk's number, and reads the chunk again when it is restored.
            return chunks.flat_map(
                lambda chunk: self.elements(call_numpy(part.documents, tf.string, [None], epoch, index, chunk))
            )

        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            width = min(INTERLEAVED_UNITS, part.count) if shuffle else 1
            return tf.data.Dataset.range(part.count).interleave(
                lambda index: of_unit(epoch, index), cycle_length=width, block_length=1
            )

        return tf.data.Dataset.range(ENDLESS if num_epochs is None else num_epochs).flat_map(of_epoch)

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

    def __init__(
        self, source: UnitSource, split: str, shard: int, num_shards: int, seed: int, shuffle: bool, endless: bool
    ):
        self.units = source.units(split)
        self.divides_rows = len(self.units) < num_shards
        self.count = len(self.units) if self.divides_rows else len(range(shard, len(self.units), num_shards))
        self._source, self._split, self._shard, self._num_shards = source, split, shard, num_shards
        self._seed, self._shuffle, self._endless = seed, shuffle, endless
        self._opened = 0  # units opened since the last document, to notice an endless data set without any

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
                if self._endless and self._opened > 2 * self.count + INTERLEAVED_UNITS:
                    raise InputError(
                        f"{source.name} has no document for data shard {self._shard} of {self._num_shards} in split "
                        f"{self._split!r}; set DataConfig.num_data_shards lower, or give more documents."
                    )
            exists = source.read_whole(self._split, unit, int(chunk)) is not None
            if not exists:  # units end roughly in the order of opening
                source.note_progress(self._split, self._shard, int(epoch) + (int(index) + 1) / self.count)
            return np.bool_(exists)

    def documents(self, epoch: int, index: int, chunk: int) -> np.ndarray:
        """Returns the shard's documents of a chunk, bytes [n], permuted, long ones in pieces."""
        source = self._source
        with source.failures():
            number, unit = self._unit_at(epoch, index)
            rows = source.read(self._split, unit, int(chunk)) or []
            ended = max(0, int(index) - INTERLEAVED_UNITS)  # a lower bound, known right after a restore
            source.note_progress(self._split, self._shard, int(epoch) + ended / self.count)
            if self.divides_rows:
                rows = [t for row, t in enumerate(rows) if (row + number + chunk) % self._num_shards == self._shard]
            if rows:
                self._opened = 0
            if self._shuffle:
                order = random_generator("rows", self._seed, int(epoch), number, int(chunk)).permutation(len(rows))
                rows = [rows[row] for row in order]
            return np.array(list(itertools.chain.from_iterable(map(source.pieces, rows))), dtype=object)


def call_numpy(function: Callable, dtype: tf.DType, shape: list, *arguments: tf.Tensor) -> tf.Tensor:
    """Calls a Python function inside a graph; its result must depend only on its arguments."""
    # Declared stateless, so that tf.data can save and restore the iterator.
    result = tf.numpy_function(function, arguments, dtype, stateful=False)
    result.set_shape(shape)
    return result


def random_generator(purpose: str, *numbers: int) -> np.random.RandomState:
    """Returns a random generator that depends only on the purpose and the numbers."""
    # RandomState, whose numbers numpy promises never to change: an upgrade must not change a run's order.
    digest = hashlib.blake2b(repr((purpose, *numbers)).encode(), digest_size=16).digest()
    return np.random.RandomState(np.frombuffer(digest, "<u4"))


@functools.lru_cache(maxsize=16)
def unit_order(seed: int, epoch: int, num_units: int) -> np.ndarray:
    """Returns the permutation of the units in this epoch, int64 [num_units]."""
    return random_generator("units", seed, epoch).permutation(num_units)


def _is_validation(text: bytes, percent: float) -> bool:
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return number % 1_000_000 < percent * 10_000


@functools.lru_cache(maxsize=64)
def _warn_once(message: str) -> None:
    logger.warning(message)
