"""A source of TensorFlow that cannot be divided, such as a function or a streamed data set, for many data shards.

It is opened once a process, and its documents are dealt to the shards: document n of an epoch goes to shard
n % num_shards, as `tf.data.Dataset.shard` has it. Without this, each shard would read the whole source and throw nearly
all of it away.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from limba.config import DataConfig, InputError, reason_of
from limba.data.bridge.datasets import Failure, OfShard, OfTensorflow
from limba.data.bridge.graph import SharedGraph
from limba.data.dataset import Document
from limba.data.registry import Task
from limba.data.sources.first_example import FirstExample
from limba.data.sources.order import fewer_shards

if TYPE_CHECKING:
    import tensorflow as tf

logger = logging.getLogger(__name__)

Row = tuple[bytes, ...]  # a document: each tensor of it as bytes
Mark = tuple[int, int]  # the number of documents that a shard has taken, and a checksum of them

DOCUMENTS_A_BLOCK = 32  # that a shard takes at once, since each call of Python from TensorFlow costs as much
BYTES_A_BLOCK = 1 << 18  # at which a block of long documents ends
MOST_WAITING_BYTES = 1 << 28  # of documents that wait for their shard in memory; what is more waits in files
BYTES_A_FILE = 1 << 26
BYTES_CHECKED = 64  # of each part of a document, and its length
BYTES_A_ROW = 120  # of Python's own, about
MOST_BLOCKS_NAMED = 32  # of which documents are remembered until somebody asks which they were
DOCUMENTS_A_CHECK = 1024  # of a source that no reading in Python deals
MOST_OPENINGS = 16  # at once; preprocessors that read their data set at several places need several


class Undivided:
    """A tf.data.Dataset whose documents are dealt to `num_shards` shards, repeated for `num_epochs` or endlessly.

    All shards that `documents` was called for share one reading, and take from it at about the same pace. Where one is
    far ahead, the documents of the others wait, beyond some memory in temporary files. A preprocessor that reads its
    data set again, or at two places, makes one more reading, which the shards share too.
    """

    def __init__(self, name: str, source: tf.data.Dataset, config: DataConfig, failure: Failure, number: int = 0):
        self.name = name
        self.number = number  # of the task in its mixture
        self.num_shards = config.num_shards
        self.num_epochs = config.num_epochs
        self._failure_of = failure
        self._refuses_others = config.on_changed_corpus == "refuse"
        # shard -> number of documents -> their checksum, of what it had taken at the position that it resumes from
        self._expected: dict[int, dict[int, int]] = {}
        self._num_same: dict[int, int] = {}  # shard -> the documents that were the same as before
        self.taken: dict[int, deque[range]] = {}  # shard -> indices of its documents that nobody has asked for yet
        self.marks: dict[int, tuple[Mark, ...]] = {}  # shard -> what it has taken: the first 1, 2, 4, …, and all
        self._graph = SharedGraph(self._dataset)
        self._first_examples: dict[int, FirstExample] = {}  # of the shards
        self.ends: list[list[int]] = [[] for _ in range(self.num_shards)]  # documents of a shard up to each epoch's end
        self._spec = source.element_spec
        self._kinds = [tensor_spec for tensor_spec in _flat(self._spec) if tensor_spec is not None]
        # Texts are passed on as they are: a function of TensorFlow's for each document costs more than all else here.
        self._are_texts = all(tensor_spec is not None and _is_text(tensor_spec) for tensor_spec in _flat(self._spec))
        rows = source if self._are_texts else source.map(self._row_of)
        self.rounds = rows.batch(self.num_shards)  # a document for each shard; fewer at the end
        self._shards = set[int]()
        self._openings: list[_Opening] = []  # the last call's opening comes last
        self._lock = threading.Lock()
        self.failure: Exception | None = None  # with which the source has failed: it cannot be read on

    @staticmethod
    def deals(source: tf.data.Dataset) -> bool:
        """Returns whether the documents of a source can wait as bytes; data sets of data sets cannot."""
        import tensorflow as tf

        kinds = [tensor_spec for tensor_spec in _flat(source.element_spec) if tensor_spec is not None]
        handles = (tf.variant, tf.resource)
        return bool(kinds) and all(isinstance(kind, tf.TensorSpec) and kind.dtype not in handles for kind in kinds)

    def documents(self, shard: int, first: FirstExample | None = None) -> OfTensorflow:
        """Returns the documents of one shard, as the source has them; an endless reading asks for a first example."""
        self._shards.add(shard)
        if first is not None and self.num_epochs is None:
            self._first_examples[shard] = first
        shared = OfShard(self._graph, shard)
        return OfTensorflow(
            shared.dataset(),
            failure=lambda error: self.failure or self._failure_of(error),
            shared=shared,
            numbered=_Numbers(self, shard),
        )

    def expect(self, shard: int, marks: Mapping[int, int]) -> None:
        """Has the documents of a shard compared with those that it took before it was stopped: number -> checksum."""
        self._expected[shard] = dict(marks)

    def end_epoch(self, number: int, size: int) -> None:
        """Notes how many documents an epoch has, of all shards; `number` counts from 1."""
        for shard, ends in enumerate(self.ends):
            if number > len(ends):
                before = ends[-1] if ends else 0
                ends.append(before + len(range(shard, size, self.num_shards)))

    def note_taken(self, shard: int, first: int, stop: int) -> None:
        """Takes the indices of the documents that a shard has been given."""
        self.taken.setdefault(shard, deque(maxlen=MOST_BLOCKS_NAMED)).append(range(first, stop))

    def check_first_example(self, shard: int, num_taken: int) -> None:
        """Raises InputError if a shard has taken too many documents without an example."""
        first = self._first_examples.get(shard)
        if first is not None and not first.is_there:
            first.check(num_taken, bisect.bisect_right(self.ends[shard], num_taken))

    def compare(self, shard: int, mark: Mark) -> None:
        """Notes what a shard has taken; InputError if they are other documents than it took before."""
        number, checksum = mark
        noted = self.marks.get(shard, ())
        if not noted or number > noted[-1][0]:
            self.marks[shard] = (*noted[: (number - 1).bit_length()], mark)
        expected = self._expected.get(shard, {}).pop(number, None)
        if expected is None:
            return
        if checksum == expected:
            self._num_same[shard] = number
            return
        del self._expected[shard]  # all that follow differ too
        sentence = (
            f"The source of task {self.name} gives other documents than this run has read: the first other one is among"
            f" documents {self._num_same.get(shard, 0) + 1:,} to {number:,} of data shard {shard}, which takes one in"
            f" {self.num_shards}"
        )
        if self._refuses_others:
            raise InputError(
                f"{sentence}. A run is resumed with a source that gives the same documents each time, such as one"
                " with a seed for its shuffle; set DataConfig.on_changed_corpus to 'new_epoch' to read on with the"
                " present documents.",
                fix=("DataConfig.on_changed_corpus", "new_epoch"),
            )
        logger.warning("%s. The run reads on with the present documents.", sentence)

    def _dataset(self, shard: tf.Tensor) -> tf.data.Dataset:
        """Returns the documents of the shard with this number [1]."""
        import tensorflow as tf

        num_parts = len(self._kinds)

        def block(shard: np.ndarray, number: np.int64) -> np.ndarray:
            rows = self._block(int(shard[0]), int(number))
            return np.array(rows, object) if rows else np.zeros([0, num_parts], object)

        def in_graph(number: tf.Tensor) -> tf.Tensor:
            rows = tf.numpy_function(block, [shard, number], tf.string, stateful=False)
            return tf.ensure_shape(rows, [None, num_parts])

        blocks: Any = tf.data.Dataset.range(2**62).map(in_graph)
        filled = blocks.take_while(lambda rows: tf.shape(rows)[0] > 0)
        if self._are_texts:
            columns = filled.map(lambda rows: tf.nest.pack_sequence_as(self._spec, tf.unstack(rows, num_parts, 1)))
            return columns.unbatch()
        return filled.unbatch().map(self._document_of)

    def _row_of(self, *document: object) -> tf.Tensor:
        """Returns the tensors of a document as strings [number of tensors]."""
        import tensorflow as tf

        tensors = [tensor for tensor in _flat(document) if tensor is not None]
        pairs = zip(tensors, self._kinds, strict=True)
        return tf.stack([tensor if _is_text(kind) else tf.io.serialize_tensor(tensor) for tensor, kind in pairs])

    def _document_of(self, row: tf.Tensor) -> Any:
        import tensorflow as tf

        tensors = []
        for number, kind in enumerate(self._kinds):
            tensor = row[number] if _is_text(kind) else tf.io.parse_tensor(row[number], kind.dtype)
            tensors.append(tf.ensure_shape(tensor, kind.shape))
        return tf.nest.pack_sequence_as(self._spec, tensors, expand_composites=True)

    def _block(self, shard: int, number: int) -> list[Row]:
        """Returns a block of a shard's documents; an empty one at the end."""
        with self._lock:
            if self.failure is not None:
                raise self.failure
            try:
                return self._opening_at(shard, number).take(shard)
            except Exception as error:
                self.failure = error
                raise

    def _opening_at(self, shard: int, number: int) -> _Opening:
        """Returns a reading in which this block is the shard's next one."""
        for opening in self._openings:
            if opening.next_block.get(shard) == number:
                self._openings.remove(opening)
                break
        else:
            # One that begins is for all shards, which will ask for it too. Another one makes up for a reading that is
            # closed already, and nobody else needs it.
            opening = _Opening(self, self._shards if number == 0 else {shard})
            for _ in range(number):
                opening.take(shard)
        self._openings.append(opening)
        if len(self._openings) > MOST_OPENINGS:
            self._openings.pop(0).close()
        return opening


class _Numbers(NamedTuple):
    """The documents of a shard by their index in it."""

    source: Undivided
    shard: int

    def document(self, index: int) -> Document:
        """Returns the document at an index, which its epoch and its number there name."""
        ends = self.source.ends[self.shard]
        epoch = bisect.bisect_right(ends, index)
        before = ends[epoch - 1] if epoch else 0
        row = (index - before) * self.source.num_shards + self.shard
        return Document(self.source.number, epoch, chunk=0, row=row, piece=0, epochs=0.0)

    def take_handed(self) -> list[Document]:
        taken = self.source.taken.get(self.shard, deque())
        documents = []
        while taken:
            documents += [self.document(index) for index in taken.popleft()]
        return documents


class Opened:
    """The sources of seqio's that this process reads: those that cannot be divided are opened once for all shards."""

    def __init__(self) -> None:
        self._undivided: dict[str, Undivided] = {}  # by the name of the task

    def __contains__(self, task: str) -> bool:
        """Returns whether the source of a task is open, and is dealt to the shards."""
        return task in self._undivided

    def marks(self, shard: int) -> dict[str, list[int]]:
        """Returns task -> the marks of what a shard has taken, one after another, of the sources that are dealt."""
        return {
            name: [*itertools.chain.from_iterable(source.marks[shard])]
            for name, source in self._undivided.items()
            if shard in source.marks
        }

    def expect(self, shard: int, marks: Mapping[str, Sequence[int]]) -> None:
        """Has the documents of a shard compared with these marks."""
        for name, undivided in self._undivided.items():
            if name in marks:
                numbers = marks[name][::2]
                checksums = marks[name][1::2]
                undivided.expect(shard, dict(zip(numbers, checksums, strict=True)))

    def documents(
        self,
        task: Task,
        config: DataConfig,
        shard: int,
        seed: int,
        failure: Failure,
        first: FirstExample,
        number: int,
    ) -> OfTensorflow:
        """Returns a shard's documents of a task's source: by the source's own shards where it has enough of them.

        `seed` is the seed of the source's order, and `number` is the task's in its mixture. An endless reading asks for
        a `first` example.
        """
        import seqio

        known = self._undivided.get(task.name)
        if known is not None:
            return known.documents(shard, first)
        split = config.train_split
        num_shards = config.num_shards
        source = task.source
        by_source = len(source.list_shards(split)) >= num_shards or source.supports_arbitrary_sharding
        shard_info = seqio.ShardInfo(shard, num_shards) if by_source else None
        documents = source.get_dataset(split, shuffle=config.shuffle, seed=seed, shard_info=shard_info)
        if by_source:
            return _repeated(documents, config.num_epochs, failure, first)
        if not Undivided.deals(documents):
            return _repeated(documents.shard(num_shards, shard), config.num_epochs, failure, first)
        undivided = Undivided(task.name, documents, config, failure, number)
        self._undivided[task.name] = undivided
        return undivided.documents(shard, first)


def _repeated(
    documents: tf.data.Dataset, num_epochs: int | None, failure: Failure, first: FirstExample
) -> OfTensorflow:
    """Returns the documents for some epochs, or endlessly: then `first` is asked from time to time.

    The first and only data set is chosen for each document, which costs far less than a function for each.
    """
    import tensorflow as tf

    repeated = documents.repeat(num_epochs)
    if num_epochs is not None:
        return OfTensorflow(repeated, failure=failure)
    epoch_size = int(documents.cardinality())  # negative where it is not known
    refusal: InputError | None = None

    def check(num_read: np.int64) -> np.int64:
        nonlocal refusal
        num_epochs = int(num_read) // epoch_size if epoch_size > 0 else 0
        try:
            first.check(int(num_read), num_epochs)
        except InputError as error:
            refusal = error
            raise
        return np.int64(0)

    def choices(check_number: tf.Tensor) -> tf.data.Dataset:
        checked = tf.numpy_function(check, [check_number * DOCUMENTS_A_CHECK], tf.int64)
        return tf.data.Dataset.from_tensors(tf.ensure_shape(checked, [])).repeat(DOCUMENTS_A_CHECK)

    choice = tf.data.Dataset.range(2**62).flat_map(choices)
    watched = tf.data.Dataset.choose_from_datasets([repeated], choice)
    return OfTensorflow(watched, failure=lambda error: refusal or failure(error))


class _Opening:
    """One reading of the source: the documents that wait for each shard, and the block that each takes next."""

    def __init__(self, source: Undivided, shards: set[int]):
        self._source = source
        self._waiting = {shard: _Waiting() for shard in sorted(shards)}
        self.next_block = dict.fromkeys(sorted(shards), 0)
        self._marks: dict[int, Mark] = dict.fromkeys(sorted(shards), (0, 0))
        self._rounds: Iterator | None = None  # of the current epoch
        self._num_documents = 0  # of the current epoch so far
        self._epochs_begun = 0

    def take(self, shard: int) -> list[Row]:
        """Returns the shard's next block: its length depends on the documents alone, not on when they were read."""
        waiting = self._waiting[shard]
        first = self._marks[shard][0]
        self._source.check_first_example(shard, first)
        rows: list[Row] = []
        num_bytes = 0
        while len(rows) < DOCUMENTS_A_BLOCK and num_bytes < BYTES_A_BLOCK:
            if not waiting.num_rows and not self._read_for(shard):
                break
            row = waiting.pop()
            rows.append(row)
            num_bytes += sum(map(len, row))
            number, checksum = self._marks[shard]
            self._marks[shard] = (number + 1, _checksum(row, checksum))
            self._source.compare(shard, self._marks[shard])
        self.next_block[shard] += 1
        self._source.note_taken(shard, first, first + len(rows))
        return rows

    def _read_for(self, shard: int) -> bool:
        """Reads until a document of the shard is there; returns False at the end of all epochs."""
        while not self._waiting[shard].num_rows:
            if self._rounds is None:
                if self._epochs_begun == self._source.num_epochs:
                    return False
                self._rounds = iter(OfTensorflow(self._source.rounds, failure=self._source._failure_of))
                self._epochs_begun += 1
                self._num_documents = 0
            dealt = next(self._rounds, None)
            if dealt is None:
                self._rounds = None
                self._source.end_epoch(self._epochs_begun, self._num_documents)
                self._check_epoch(shard)
                continue
            self._deal(dealt)
        return True

    def _deal(self, dealt: Any) -> None:
        if self._source._are_texts:
            rows = list(zip(*[texts.tolist() for texts in _flat(dealt)], strict=True))
        else:
            rows = [tuple(row) for row in dealt.tolist()]
        self._num_documents += len(rows)
        for shard, waiting in self._waiting.items():
            if shard < len(rows):
                waiting.push(rows[shard])
        while sum(waiting.bytes_in_memory for waiting in self._waiting.values()) > MOST_WAITING_BYTES:
            max(self._waiting.values(), key=lambda waiting: waiting.num_bytes_last).put_away()

    def _check_epoch(self, shard: int) -> None:
        """Raises InputError at the end of an epoch without a document for a shard that never ends."""
        if self._source.num_epochs is None and self._num_documents <= shard:
            raise InputError(
                f"The source of task {self._source.name} has {self._num_documents:,} documents, none for data shard"
                f" {shard} of {self._source.num_shards}; set DataConfig.num_data_shards lower, or give more documents.",
                fix=fewer_shards(self._num_documents),
            )

    def close(self) -> None:
        """Forgets the documents that wait."""
        self._rounds = None
        for waiting in self._waiting.values():
            waiting.close()


class _Waiting:
    """The documents that wait for one shard, in order: the first in memory, then those in files, the last in memory."""

    def __init__(self) -> None:
        self._first = deque[Row]()
        self._files = deque[IO[bytes]]()
        self._last: list[Row] = []
        self._num_bytes_first = 0
        self.num_bytes_last = 0
        self.num_rows = 0

    @property
    def bytes_in_memory(self) -> int:
        return self._num_bytes_first + self.num_bytes_last

    def push(self, row: Row) -> None:
        self._last.append(row)
        self.num_bytes_last += _num_bytes(row)
        self.num_rows += 1

    def pop(self) -> Row:
        if not self._first:
            self._fetch()
        row = self._first.popleft()
        self._num_bytes_first -= _num_bytes(row)
        self.num_rows -= 1
        return row

    def _fetch(self) -> None:
        if not self._files:
            self._first.extend(self._last)
            self._num_bytes_first = self.num_bytes_last
            self.num_bytes_last = 0
            self._last = []
            return
        with self._files.popleft() as file:
            file.seek(0)
            self._first.extend(_rows_in(file))
        self._num_bytes_first = sum(map(_num_bytes, self._first))

    def put_away(self) -> None:
        """Writes the last documents into files without names, which vanish with this process."""
        part: list[Row] = []
        size = 0
        for row in self._last:
            part.append(row)
            size += _num_bytes(row)
            if size >= BYTES_A_FILE:
                self._files.append(_file_of(part))
                part = []
                size = 0
        if part:
            self._files.append(_file_of(part))
        self._last = []
        self.num_bytes_last = 0

    def close(self) -> None:
        for file in self._files:
            file.close()


def _file_of(rows: list[Row]) -> IO[bytes]:
    """Returns a temporary file with these documents; `_rows_in` reads it."""
    file = tempfile.TemporaryFile()
    sizes = np.array([[len(part) for part in row] for row in rows], np.int64)
    try:
        np.save(file, sizes)
        for row in rows:
            file.writelines(row)
        file.flush()
    except OSError as error:
        file.close()
        raise InputError(
            f"The documents that wait for other data shards cannot be written to {tempfile.gettempdir()}"
            f" ({reason_of(error)}); set the variable TMPDIR to a folder with room, or lower"
            " DataConfig.num_data_shards."
        ) from error
    return file


def _rows_in(file: IO[bytes]) -> list[Row]:
    file.seek(0)
    sizes = np.load(file, allow_pickle=False)
    return [tuple(file.read(size) for size in of_row) for of_row in sizes.tolist()]


def _checksum(row: Row, before: int) -> int:
    """Returns a checksum of a document and those before it, whose checksum is `before`."""
    for part in row:
        size = len(part).to_bytes(8, "little")
        before = zlib.crc32(part[:BYTES_CHECKED] + size, before)
    return before


def _num_bytes(row: Row) -> int:
    return sum(map(len, row)) + BYTES_A_ROW


def _is_text(kind: tf.TensorSpec) -> bool:
    import tensorflow as tf

    return kind.dtype == tf.string and kind.shape.rank == 0


def _flat(structure: object) -> Sequence[Any]:
    """Returns the tensors, or their specs, in a document, also the parts of ragged and sparse tensors."""
    import tensorflow as tf

    return tf.nest.flatten(structure, expand_composites=True)
