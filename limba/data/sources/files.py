"""seqio sources whose order is a pure function of position, so that tf.data can save and restore it.

An epoch is a permutation of units dealt to shards; a shard interleaves 16 of its units and permutes
the documents inside each chunk. All of it follows from (seed, epoch, unit, chunk): there is no
shuffle buffer, and a saved position holds indices and not text.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from limba.config import ConfigError, InputError
from limba.data.sources.parquet import TOKENS
from limba.data.sources.readers import FIELD_SEPARATOR, ChunkReader, ReadPolicy, Unit, list_files, list_units

logger = logging.getLogger(__name__)

INTERLEAVED_UNITS = 16  # with 16 shards and chunks of 300 documents: neighbours lie 75,000 documents apart
BYTES_CHECKED = 1 << 25  # of local files before a run; about a second
ENDLESS = 2**62
# A document longer than this is cut, at a space where there is one: a saved position may hold the tokens of 32
# pieces, and must stay small though someone trains on books.
PIECE_BYTES = 1 << 14

# A column's name, or {feature: column}: then an element has these features, of one row.
Column = str | Mapping[str, str]
# What becomes of a row's text before it is a document: several, one or none.
Rewrite = Callable[[bytes], Sequence[bytes]]
DataFiles = str | Sequence[str] | Mapping[str, str | Sequence[str]]


class UnitSource(seqio.DataSource):
    """Documents {"text": string} of files that are found when they are first asked for.

    `resolve` returns split -> patterns or addresses. Where it gives no `validation`, that split is
    carved out of `train` by a hash of each document: equal texts fall on the same side, on every
    machine and in every later run. `rewrite` makes documents of a row's text. Every error is a ConfigError;
    `failure` keeps the one that a reading thread met, since TensorFlow passes on no more than its text.
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
        # What its elements are called.
        self.keys = tuple(column) if isinstance(column, Mapping) else (TOKENS if column == TOKENS else "text",)
        self._resolve = resolve
        self.column = column
        self._validation_percent = validation_percent
        self.read_by(ReadPolicy())
        self._lock = threading.RLock()
        self._units: dict[tuple[str, ...], list[Unit]] = {}

    def read_by(self, policy: ReadPolicy) -> None:
        """Sets what is done about reads that fail; before anything is read."""
        self._policy = policy
        names = tuple(self.column.values()) if isinstance(self.column, Mapping) else self.column
        self._read = ChunkReader(names, policy)

    def note_progress(self, split: str, shard: int, epochs: float) -> None:
        """Keeps how often a shard of a split has been read."""
        self._progress[split, shard] = max(self._progress.get((split, shard), 0.0), epochs)

    def progress(self, split: str, shard: int) -> float:
        """Returns how often a shard of a split has been read since `documents` was last called for it, to the unit."""
        return self._progress.get((split, shard), 0.0)

    def begin(self, split: str, shard: int) -> None:
        """Forgets what another stream of this process has read of a shard."""
        self._progress.pop((split, shard), None)

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Units that could not be read to their end and were left, by the policy, with the reasons."""
        return self._read.skipped

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    @functools.cached_property
    def _patterns(self) -> Mapping[str, Sequence[str]]:
        return self._resolve()

    def is_carved(self, split: str) -> bool:
        """True where the split is cut out of the train split's files."""
        return split in ("train", "validation") and "validation" not in self._patterns

    def percent_held_out(self, split: str) -> float | None:
        """Returns how much of the train split's files is the carved validation split; None where nothing is carved."""
        return self._validation_percent if self.is_carved(split) else None

    def patterns_of_split(self, split: str) -> Sequence[str]:
        """Returns where the split's files are; ConfigError where it is not there."""
        origin = "train" if self.is_carved(split) else split
        if origin not in self._patterns:
            there = ", ".join(self._patterns)
            raise InputError(
                f"{self.name} has no split {split!r}; it has {there}: set train_split or validation_split."
            )
        return self._patterns[origin]

    def list_units(self, patterns: Sequence[str]) -> list[Unit]:
        """Returns the units of a split, in order."""
        return list_units(list_files(patterns, self._policy), self._policy, self._read.footers)

    def num_bytes(self, split: str) -> int:
        """Returns the size of the split's files, for a mixture's temperature; ConfigError where it is not told."""
        sizes = [file.size for file in list_files(self.patterns_of_split(split), self._policy)]
        if not all(sizes):
            raise InputError(f"{self.name} does not tell the size of its files; give the mixture rates.")
        return sum(sizes)

    def units(self, split: str) -> list[Unit]:
        """Returns the split's units in order; ConfigError where the split or its files are not there."""
        with self._lock:
            patterns = tuple(self.patterns_of_split(split))
            if patterns not in self._units:
                self._units[patterns] = self.list_units(patterns)
            return self._units[patterns]

    def list_shards(self, split: str) -> Sequence[str]:
        return [unit.name for unit in self.units(split)]

    def num_input_examples(self, split: str) -> int | None:
        return None  # counting would read the corpus

    def read(self, split: str, unit: Unit, chunk: int) -> list[bytes] | None:
        """Returns the split's documents of one chunk, or None after the unit's last one."""
        documents = self.read_whole(split, unit, chunk)
        return None if documents is None else self.filtered(split, documents)

    def read_whole(self, split: str, unit: Unit, chunk: int) -> list[bytes] | None:
        """Returns all documents of one chunk, those of the other carved split too."""
        del split
        documents = self._read(unit, chunk)
        if documents is None or self._rewrite is None:
            return documents
        return [part for document in documents for part in self._rewrite(document) if part]

    def filtered(self, split: str, documents: list[bytes]) -> list[bytes]:
        """Returns the documents that are the split's own."""
        if not self.is_carved(split):
            return documents
        wanted = split == "validation"
        return [text for text in documents if _is_held_out(text, self._validation_percent) is wanted]

    def pieces(self, text: bytes) -> list[bytes]:
        """Returns a document cut into pieces of PIECE_BYTES at most."""
        pieces = []
        if len(self.keys) > 1:  # the texts of a row belong together
            return [text]
        while len(text) > PIECE_BYTES:
            stop = PIECE_BYTES
            if self.keys == ("text",):
                space = max(text.rfind(b" ", 1, stop + 1), text.rfind(b"\n", 1, stop + 1))
                while space < 0 and text[stop] & 0xC0 == 0x80:  # within a letter
                    stop -= 1
                stop = space if space > 0 else stop
            pieces.append(text[:stop])
            text = text[stop:].lstrip() if self.keys == ("text",) else text[stop:]
        return [*pieces, text] if text else pieces

    def texts(self, split: str) -> Iterator[str]:
        """Yields the split's documents once, in order, without TensorFlow; for vocabularies and counts."""
        if self.keys != ("text",):
            raise InputError(f"{self.name} holds tokens and no text; give the files that they were made of.")
        for unit in self.units(split):
            chunk = 0
            while (documents := self.read(split, unit, chunk)) is not None:
                yield from (text.decode() for text in documents)
                chunk += 1

    def check(self, split: str, may_be_empty: bool = False) -> None:
        """Reads the beginning of the split (all of it where it is local and small), so that bad files show now.

        Raises ConfigError for files that are not there, cannot be read, lack the column, or hold no document
        (unless `may_be_empty`: a small corpus may give nothing to a carved split).
        """
        units, found, num_bytes = self.units(split), 0, 0
        if may_be_empty and self.is_carved(split):
            return  # its files are those of `train`
        remote = any("://" in unit.path for unit in units[:1])
        for unit in units:
            chunk = 0
            while (documents := self.read(split, unit, chunk)) is not None:
                found += len(documents)
                num_bytes += sum(map(len, documents))
                if num_bytes >= BYTES_CHECKED or (remote and (found or may_be_empty)):
                    return
                chunk += 1
        if not found and not may_be_empty:
            raise InputError(f"{self.name} holds no document in split {split!r}; give files with text in them.")

    def elements(self, documents: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns strings [n] by what they are called."""
        if len(self.keys) == 1:
            return {self.keys[0]: documents}
        fields = tf.strings.split(documents, FIELD_SEPARATOR).to_tensor(shape=[None, len(self.keys)])
        return {key: fields[:, place] for place, key in enumerate(self.keys)}

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
        """Returns {"text": string} documents of one shard, for ever where `num_epochs` is None.

        From a column `tokens` they are {"tokens": string}, from several {feature: string}.
        Units are dealt to shards; where there are fewer units than shards, every shard reads all of
        them and keeps its own rows. In an epoch each document comes once, in exactly one shard.
        """
        self.begin(split, shard)
        part = _Shard(self, split, shard, num_shards, seed, shuffle, endless=num_epochs is None)
        if part.dealt_by_row and num_shards > 1:
            _say_once(
                f"{self.name} has {len(part.units)} unit(s) in split {split!r} and {num_shards} data shards: every "
                "shard reads all of them and keeps its own documents. More or larger files would be dealt whole."
            )
        if part.count == 0:
            if num_epochs is None:
                raise InputError(f"{self.name} holds no document in split {split!r}; give files with text in them.")
            return tf.data.Dataset.from_tensor_slices({key: tf.zeros([0], tf.string) for key in self.keys})

        def of_unit(epoch: tf.Tensor, index: tf.Tensor) -> tf.data.Dataset:
            chunks = tf.data.Dataset.range(ENDLESS)
            chunks = chunks.take_while(lambda chunk: call_numpy(part.is_there, tf.bool, [], epoch, index, chunk))
            # flat_map saves its argument, the chunk's number, and reads again when it is restored.
            return chunks.flat_map(
                lambda chunk: tf.data.Dataset.from_tensor_slices(
                    self.elements(call_numpy(part.documents, tf.string, [None], epoch, index, chunk))
                )
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
        """Returns seqio's view of the documents, for an ordinary `task.get_dataset`."""
        del sequence_length, use_cached
        index, num_shards = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        return self.documents(
            split, shard=index, num_shards=num_shards, seed=seed or 0, shuffle=shuffle, num_epochs=num_epochs
        )

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Keeps a ConfigError of a reading thread."""
        try:
            yield
        except InputError as error:
            self.failure = error
            raise


class _Shard:
    """What one shard reads: pure functions of (epoch, index among the shard's units, chunk)."""

    def __init__(
        self, source: UnitSource, split: str, shard: int, num_shards: int, seed: int, shuffle: bool, endless: bool
    ):
        self.units = source.units(split)
        self.dealt_by_row = len(self.units) < num_shards
        self.count = len(self.units) if self.dealt_by_row else len(range(shard, len(self.units), num_shards))
        self._source, self._split, self._shard, self._num_shards = source, split, shard, num_shards
        self._seed, self._shuffle, self._endless = seed, shuffle, endless
        self._opened = 0  # units since the last document; only an endless silence needs it

    def _unit_at(self, epoch: int, index: int) -> tuple[int, Unit]:
        place = int(index) if self.dealt_by_row else self._shard + int(index) * self._num_shards
        number = int(unit_order(self._seed, int(epoch), len(self.units))[place]) if self._shuffle else place
        return number, self.units[number]

    def is_there(self, epoch: int, index: int, chunk: int) -> np.bool_:
        """Returns whether the unit has such a chunk."""
        source = self._source
        with source.failures():
            _, unit = self._unit_at(epoch, index)
            if chunk == 0:
                self._opened += 1
                if self._endless and self._opened > 2 * self.count + INTERLEAVED_UNITS:
                    raise InputError(
                        f"{source.name} has no document for data shard {self._shard} of {self._num_shards} in split "
                        f"{self._split!r}; set a smaller num_data_shards, or give more documents."
                    )
            there = source.read_whole(self._split, unit, int(chunk)) is not None
            if not there:  # units end about in the order in which they were opened
                source.note_progress(self._split, self._shard, int(epoch) + (int(index) + 1) / self.count)
            return np.bool_(there)

    def documents(self, epoch: int, index: int, chunk: int) -> np.ndarray:
        """Returns the shard's documents of a chunk, bytes [n], permuted, long ones in pieces."""
        source = self._source
        with source.failures():
            number, unit = self._unit_at(epoch, index)
            rows = source.read(self._split, unit, int(chunk)) or []
            ended = max(0, int(index) - INTERLEAVED_UNITS)  # at least; known at once after a restore
            source.note_progress(self._split, self._shard, int(epoch) + ended / self.count)
            if self.dealt_by_row:
                rows = [t for row, t in enumerate(rows) if (row + number + chunk) % self._num_shards == self._shard]
            if rows:
                self._opened = 0
            if self._shuffle:
                order = random_generator("rows", self._seed, int(epoch), number, int(chunk)).permutation(len(rows))
                rows = [rows[row] for row in order]
            return np.array(list(itertools.chain.from_iterable(map(source.pieces, rows))), dtype=object)


class FileSource(UnitSource):
    """Documents of files: .txt (a document a line), .jsonl, .csv, each also .gz or .zst, and .parquet.

    `data_files` is a path or pattern, several of them, comma separated or in a sequence, or a mapping
    from split to these; any address that fsspec knows: local, gs://, hf://, http://.
    """

    def __init__(self, data_files: DataFiles, column: Column = "text", validation_percent: float = 1.0):
        patterns = patterns_of(data_files)
        splits = [*patterns, *(["validation"] if "train" in patterns and "validation" not in patterns else [])]
        name = "The corpus " + ", ".join(pattern for several in patterns.values() for pattern in several)
        super().__init__(name, lambda: patterns, splits, column, validation_percent)


class HubSource(UnitSource):
    """Documents of a Hugging Face data set, by hub id or local directory, read where they lie.

    Nothing is downloaded whole and no script of the data set runs: its list of files is resolved
    when it is first needed, with the token in HF_TOKEN if there is one.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        revision: str | None = None,
        column: Column = "text",
        splits: Sequence[str] = ("train", "validation"),
        validation_percent: float = 1.0,
        validation_split: str = "validation",  # the data set's own name of it
        rewrite: Rewrite | None = None,
    ):
        self.path, self.config_name, self.revision = path, name, revision
        self._validation_split = validation_split
        super().__init__(f"The data set {path}", self._hub_files, splits, column, validation_percent, rewrite)

    @property
    def resolved_revision(self) -> str | None:
        """The commit that its files are read from; None for a local directory."""
        addresses = itertools.chain.from_iterable(self._patterns.values())
        found = (re.match(r"hf://datasets/[^@]+@([0-9a-f]{40})/", address) for address in addresses)
        return next((match[1] for match in found if match), None)

    def pinned(self, revision: str) -> HubSource:
        """Returns this data set at that commit."""
        source = HubSource(
            self.path,
            self.config_name,
            revision,
            self.column,
            tuple(self.splits),
            self._validation_percent,
            self._validation_split,
            self._rewrite,
        )
        source.read_by(self._policy)
        return source

    def _hub_files(self) -> Mapping[str, Sequence[str]]:
        import datasets

        try:
            builder = datasets.load_dataset_builder(
                self.path, self.config_name, revision=self.revision, token=os.environ.get("HF_TOKEN") or None
            )
        except (OSError, ValueError, RuntimeError) as error:  # the hub's own errors are among these
            reason = str(error).strip().split("\n")[0]
            raise InputError(
                f"{self.name} cannot be opened ({reason}); check the name, the network, and HF_TOKEN if it is private."
            ) from error
        files = builder.config.data_files
        if not files:
            raise InputError(f"{self.name} has no data files of its own; give its files as data_files.")
        found = {str(split): [str(address) for address in addresses] for split, addresses in files.items()}
        if self._validation_split in found:
            found["validation"] = found.pop(self._validation_split)
        return found


def patterns_of(data_files: DataFiles) -> dict[str, tuple[str, ...]]:
    """Returns split -> patterns; ConfigError where there is none."""
    by_split = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    found = {}
    for split, value in by_split.items():
        several = value.split(",") if isinstance(value, str) else value
        found[split] = tuple(pattern.strip() for pattern in several if pattern.strip())
        if not found[split]:
            raise ConfigError("DataConfig.data_files", f"is {value!r}; give a path or a pattern.")
    return found


def call_numpy(function: Callable, dtype: tf.DType, shape: list, *arguments: tf.Tensor) -> tf.Tensor:
    """Calls a Python function of the arguments alone inside of a graph."""
    # Declared stateless: what it returns follows from its arguments, so tf.data may save and restore around it.
    result = tf.numpy_function(function, arguments, dtype, stateful=False)
    result.set_shape(shape)
    return result


def random_generator(purpose: str, *numbers: int) -> np.random.RandomState:
    """Returns random numbers for a purpose, the same for ever."""
    # RandomState, whose numbers numpy promises never to change: an upgrade may not change a run's order.
    digest = hashlib.blake2b(repr((purpose, *numbers)).encode(), digest_size=16).digest()
    return np.random.RandomState(np.frombuffer(digest, "<u4"))


@functools.lru_cache(maxsize=16)
def unit_order(seed: int, epoch: int, num_units: int) -> np.ndarray:
    """Returns the permutation of the units in this epoch, int64 [num_units]."""
    return random_generator("units", seed, epoch).permutation(num_units)


def _is_held_out(text: bytes, percent: float) -> bool:
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return number % 1_000_000 < percent * 10_000


@functools.lru_cache(maxsize=64)
def _say_once(message: str) -> None:
    logger.warning(message)
