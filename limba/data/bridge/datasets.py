"""Between these data sets and tf.data's: for preprocessors and sources in TensorFlow, and for seqio's own calls.

It imports TensorFlow when it is first used.
"""

from __future__ import annotations

import atexit
import base64
import itertools
import logging
import random
import tempfile
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from limba.config import InputError, reason_of
from limba.data.bridge.graph import TRACING, SharedGraph, maps_in_turn
from limba.data.bridge.tokens import by_our_encoder, noticed_ignore_errors
from limba.data.dataset import Dataset, Document, Item, Place, Spec, Step
from limba.data.draws import Draws

if TYPE_CHECKING:
    import tensorflow as tf

    from limba.data.registry import Provider

logger = logging.getLogger(__name__)

CHECKPOINT = "position"  # the prefix of tf.data's files
CHECKPOINT_SECONDS = 2.0  # between two checkpoints of tf.data's; 5 ms each
TEXTS_A_BLOCK = 32  # as documents are tokenized at once
EXAMPLES_A_BLOCK = 8  # which leave at once; a first batch waits for no more
BLOCKS_A_PLACE = 2  # between two places that are kept of what tf.data reads
MOST_HANDED = 1024  # documents that are remembered until somebody asks which they were
MOST_GRAPHS = 64  # of tasks whose shards share one
SEEDS_OF_A_STEP = 2  # that seqio counts for a step that draws
MOST_READINGS = 64  # of one data set at once; another iterator of tf.data reads again up to its place
_OPEN: weakref.WeakSet[_OfTensorflow] = weakref.WeakSet()
Failure = Callable[[Exception], Exception | None]  # from TensorFlow's error to the one that caused it, if it is known


class OfShard(NamedTuple):
    """A shard, and the graph from which its data set is made with a seed for each group of preprocessors so far."""

    graph: SharedGraph
    shard: int
    seeds: tuple[int, ...] = ()

    def dataset(self) -> tf.data.Dataset:
        return self.graph.dataset(self.shard, self.seeds)


class NumberedDocuments(Protocol):
    """The documents of a shard, by their index in it over all epochs."""

    def document(self, index: int) -> Document:
        """Returns which document a shard has at an index that was read."""
        ...

    def take_handed(self) -> list[Document]:
        """Returns the documents that were read since the last call; of many, the last ones."""
        ...


class OfTensorflow(Dataset):
    """The elements of a tf.data.Dataset, `source`.

    A place has a checkpoint of tf.data's, which is made from time to time, and counts the elements since; one that the
    installed TensorFlow cannot read, or that has none, is read again from the beginning. `entered` are the documents
    that the source reads; an element's own documents are not known exactly. `shared` is the graph that has made the
    source for a shard with its seeds. `numbered` are the documents of a source of others, which the elements are, or
    (`is_made`) are made of.

    Examples leave TensorFlow in blocks, since each call of its iterator takes a third of a millisecond.
    """

    def __init__(
        self,
        source: tf.data.Dataset,
        failure: Failure | None = None,
        entered: Numbered | None = None,
        shared: OfShard | None = None,
        numbered: NumberedDocuments | None = None,
        is_made: bool = False,
    ):
        spec = source.element_spec if isinstance(source.element_spec, Mapping) else {}
        size = int(source.cardinality())
        super().__init__({n: _spec(tensor_spec) for n, tensor_spec in spec.items()}, None if size < 0 else size)
        self.source = source
        self.failure = failure or (lambda error: None)
        self.entered = entered
        self.shared = shared
        self.numbered = numbered
        self._is_made = is_made
        self.leaves_in_blocks = bool(spec) and all(map(_can_be_padded, spec.values()))

    def read(self, place: Place = None) -> Iterator[Item]:
        """Yields the elements; their documents are those that were handed in for the last two readings.

        The elements of a source are documents themselves.
        """
        reading = _OfTensorflow(self, place)
        documents: list[list[Document]] = [[], []]
        num_done = 0 if place is None else place["elements"]
        while block := reading.next_block():
            handed = self._take_handed()
            if handed:
                documents = [documents[1], handed]
            first = reading.number - len(block)
            for number, element in enumerate(block, first + 1):
                if number > num_done:
                    of_element = documents[0] + documents[1]
                    if self.numbered is not None and not self._is_made:
                        of_element = [self.numbered.document(number - 1)]
                    yield Item(element, of_element, {"elements": number, "kept": reading.kept})

    def _take_handed(self) -> list[Document]:
        """Returns the documents that preprocessors have been given since the last call."""
        if self.entered is not None:
            return self.entered.take_handed()
        if self.numbered is not None and self._is_made:
            return self.numbered.take_handed()
        return []


class _OfTensorflow:
    """One reading of a data set of TensorFlow."""

    def __init__(self, dataset: OfTensorflow, place: Place):
        self._dataset = dataset
        self._entered = dataset.entered
        self.iterator: Iterator | None = None
        self.number = 0  # elements that have left TensorFlow
        self.kept: Place = None  # a checkpoint before a block
        self._kept_at = time.monotonic()
        _OPEN.add(self)
        if place is not None and place["kept"] is not None and self._entered is not None:
            self._restore(place["kept"], self._entered)

    def next_block(self) -> Sequence[object]:
        """Returns the next elements; none at the end."""
        import tensorflow as tf

        self._keep_from_time_to_time()
        if self.iterator is None:
            self.iterator = self._new_iterator()
        try:
            block: Any = tf.nest.map_structure(lambda tensor: tensor.numpy(), next(self.iterator))
        except StopIteration:
            return []
        except tf.errors.OpError as error:
            failure = self._dataset.failure(error)
            if failure is None:
                raise
            raise failure from None
        elements = _examples_of(*block) if self._dataset.leaves_in_blocks else [block]
        self.number += len(elements)
        return elements

    def _new_iterator(self) -> Iterator:
        source = self._dataset.source
        return iter(_single_threaded(_in_blocks(source) if self._dataset.leaves_in_blocks else source))

    def _keep_from_time_to_time(self) -> None:
        """Makes a checkpoint of what has been read so far, if the last one is old."""
        import tensorflow as tf

        if self.iterator is None or self._entered is None:
            return
        if time.monotonic() <= self._kept_at + CHECKPOINT_SECONDS:
            return
        documents = self._entered.kept  # not later than what the checkpoint has read
        try:
            self.kept = {"elements": self.number, "documents": documents, "files": self._checkpoint()}
        except tf.errors.FailedPreconditionError:  # a step calls Python, as by `in_tensorflow`
            self._entered = None
        self._kept_at = time.monotonic()

    def _checkpoint(self) -> dict[str, str]:
        import tensorflow as tf

        with tempfile.TemporaryDirectory() as folder:
            tf.train.Checkpoint(iterator=self.iterator).write(f"{folder}/{CHECKPOINT}")
            files = sorted(Path(folder).iterdir())
            return {path.name: base64.b64encode(path.read_bytes()).decode() for path in files}

    def _restore(self, kept: Place, entered: Numbered) -> None:
        import tensorflow as tf

        iterator = self._new_iterator()
        try:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in kept["files"].items():
                    (Path(folder) / Path(name).name).write_bytes(base64.b64decode(content))
                tf.train.Checkpoint(iterator=iterator).read(f"{folder}/{CHECKPOINT}").assert_consumed()
        except (AssertionError, tf.errors.OpError) as error:
            logger.warning(
                "TensorFlow %s cannot read its own part of the data position (%s): the text before it is read again.",
                tf.__version__,
                reason_of(error),
            )
            return
        self.iterator = iterator
        self.number = kept["elements"]
        self.kept = kept
        entered.restore(kept["documents"])


def _can_be_padded(spec: Any) -> bool:
    """Returns whether examples with such a feature fit into one array: not ragged, sparse or nested ones."""
    import tensorflow as tf

    is_content = isinstance(spec, tf.TensorSpec) and spec.dtype not in (tf.variant, tf.resource)
    return is_content and spec.shape.rank is not None


def _in_blocks(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns blocks of examples: (features, padded to the block's longest; the shapes that they had)."""
    import tensorflow as tf

    def with_shapes(example: Mapping[str, tf.Tensor]) -> tuple[Mapping[str, tf.Tensor], dict[str, tf.Tensor]]:
        return example, {name: tf.shape(value) for name, value in example.items()}

    return dataset.map(with_shapes).padded_batch(EXAMPLES_A_BLOCK)


def _examples_of(features: Mapping[str, np.ndarray], shapes: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Returns the examples of a block, without its padding."""
    lengths = {name: of_feature.tolist() for name, of_feature in shapes.items()}
    num_examples = len(next(iter(lengths.values())))
    examples = []
    for number in range(num_examples):
        example = dict[str, Any]()
        for name, values in features.items():
            value = values[number]
            if lengths[name][number]:
                # A copy, since a shuffle buffer may keep one example of many blocks.
                value = value[tuple(map(slice, lengths[name][number]))].copy()
            example[name] = value
        examples.append(example)
    return examples


@atexit.register
def _close() -> None:
    """Ends the iterators: TensorFlow's threads that call Python would wait for its lock for ever as Python ends."""
    for reading in list(_OPEN):
        reading.iterator = None


class _Reading:
    """One reading of a data set by blocks: the block that is next, and a place before one of the last blocks."""

    def __init__(self, dataset: Dataset, number: int, place: Place):
        self.items = dataset.read(place)
        self.place = place
        self.next_block = number
        self.kept = [number, place]

    def block(self, size: int) -> list[Item]:
        items = list(itertools.islice(self.items, size))
        if items:
            self.place = items[-1].place
        self.next_block += 1
        return items


class Numbered:
    """The elements of a data set in blocks with numbers, so that tf.data can begin at any of them, and several times.

    A preprocessor may read its data set at several places at once: each iterator of tf.data asks for the blocks in
    order, and each has a reading of its own here. A block has several texts, since a
    call of Python from TensorFlow costs as much as reading them.
    """

    def __init__(self, dataset: Dataset):
        self._dataset = dataset
        self._size = 1 if any(tensor_spec.shape for tensor_spec in dataset.spec.values()) else TEXTS_A_BLOCK
        self._readings: list[_Reading] = []  # the last call's reading comes last
        self._restored: list[list[Place]] = []  # what `kept` was at the place that is read from
        self._handed: deque[Document] = deque(maxlen=MOST_HANDED)
        self._lock = threading.Lock()
        self.failure: Exception | None = None

    @property
    def kept(self) -> list[list[Place]]:
        """Pairs of a block's number and the place before it, one of each reading, from which all readings can go on."""
        with self._lock:
            return [list(reading.kept) for reading in self._readings]

    def take_handed(self) -> list[Document]:
        """Returns the documents that TensorFlow has been given since the last call."""
        with self._lock:
            handed = list(self._handed)
            self._handed.clear()
        return handed

    def restore(self, kept: Sequence[Sequence[Place]]) -> None:
        """Lets new readings go on from the pairs of `kept`."""
        with self._lock:
            self._readings.clear()
            self._restored = [list(pair) for pair in kept]

    def __call__(self, number: int) -> list[Mapping[str, object]]:
        """Returns a block; an empty one at the end."""
        with self._lock:
            try:
                reading = self._reading_at(number)
                if number >= reading.kept[0] + BLOCKS_A_PLACE:
                    reading.kept = [number, reading.place]
                items = reading.block(self._size)
            except InputError as error:
                self.failure = error
                raise
            if not items:  # its iterator asks for no more
                self._readings.remove(reading)
            self._handed.extend(document for item in items for document in item.documents)
            return [item.value for item in items]

    def _reading_at(self, number: int) -> _Reading:
        """Returns a reading whose next block is the wanted one.

        Which one does not matter where several have it next: they give the same blocks.
        """
        for reading in reversed(self._readings):
            if reading.next_block == number:
                self._readings.remove(reading)
                break
        else:
            reading = self._new_reading(number)
        self._readings.append(reading)
        if len(self._readings) > MOST_READINGS:
            del self._readings[0]
        return reading

    def _new_reading(self, number: int) -> _Reading:
        """Returns another reading, from the last known place before a block up to that block."""
        pairs = [*self._restored, *(reading.kept for reading in self._readings)]
        before = [pair for pair in pairs if pair[0] <= number]
        start, place = max(before, key=lambda pair: pair[0], default=(0, None))
        reading = _Reading(self._dataset, start, place)
        while reading.next_block < number:
            reading.block(self._size)
        return reading

    def in_tensorflow(self) -> tf.data.Dataset:
        """Returns a tf.data.Dataset of the elements, whose iterator can be saved."""
        return _elements(self._dataset.spec, self)


def _elements(
    spec: Mapping[str, Spec], block_at: Callable[..., list[Mapping[str, object]]], *first: tf.Tensor
) -> tf.data.Dataset:
    """Returns a data set of the elements in `block_at(*first, number)`, from number 0 to the first empty block."""
    import tensorflow as tf

    def block(*numbers: np.int64) -> list[np.ndarray]:
        elements = block_at(*map(int, numbers))
        return [_stacked([element[name] for element in elements], tensor_spec) for name, tensor_spec in spec.items()]

    def in_graph(number: tf.Tensor) -> dict[str, tf.Tensor]:
        # Declared stateless, so that tf.data can save and restore the iterator.
        kinds = [tf.as_dtype(tensor_spec.dtype) for tensor_spec in spec.values()]
        values = tf.numpy_function(block, [*first, number], kinds, stateful=False)
        pairs = zip(spec.items(), values, strict=True)
        return {name: tf.ensure_shape(value, [None, *tensor_spec.shape]) for (name, tensor_spec), value in pairs}

    blocks: Any = tf.data.Dataset.range(2**62).map(in_graph)
    until_empty = blocks.take_while(lambda values: tf.shape(next(iter(values.values())))[0] > 0)
    return until_empty.flat_map(tf.data.Dataset.from_tensor_slices)


class _SharedDocuments:
    """One traced graph for the documents of all shards of a task, whose preprocessors get the same arguments."""

    def __init__(self, spec: Mapping[str, Spec], kept: object):
        self._kept = kept  # what the key of this graph names by its id
        self._shards: weakref.WeakValueDictionary[int, Numbered] = weakref.WeakValueDictionary()
        self._next_number = itertools.count()
        self.graph = SharedGraph(lambda numbers: _elements(spec, self._block_at, numbers[0]))

    def _block_at(self, shard: int, number: int) -> list[Mapping[str, object]]:
        return self._shards[shard](number)

    def add(self, documents: Numbered) -> int:
        """Returns the number by which the graph reads the documents of one more shard, as long as they are held."""
        shard = next(self._next_number)
        self._shards[shard] = documents
        return shard


_SHARED: OrderedDict[Hashable, _SharedDocuments] = OrderedDict()  # the last task's comes last


def _shared_documents(
    steps: Sequence[Step], spec: Mapping[str, Spec], arguments: Mapping[str, Any]
) -> _SharedDocuments:
    """Returns the shared graph of these very preprocessors and arguments."""
    features = arguments["output_features"]
    lengths = arguments["sequence_length"]
    kept = [*steps, *(feature.vocabulary for feature in features.values())]
    choices = [(name, feature.add_eos, feature.dtype, feature.rank) for name, feature in features.items()]
    key = (*map(id, kept), repr(choices), repr(lengths), repr(spec))
    with TRACING:
        if key not in _SHARED:
            _SHARED[key] = _SharedDocuments(spec, kept)
        _SHARED.move_to_end(key)
        if len(_SHARED) > MOST_GRAPHS:
            _SHARED.popitem(last=False)
        return _SHARED[key]


def _stacked(values: Sequence[object], spec: Spec) -> np.ndarray:
    """Returns the values of a feature as one array, whose first axis is theirs."""
    dtype = object if spec.dtype == "string" else spec.dtype
    return np.array(values, dtype) if values else np.zeros([0, *(size or 0 for size in spec.shape)], dtype)


def of_seqio(
    task: Provider, lengths: Mapping[str, int], split: str, seed: int, failure: Failure | None = None
) -> OfTensorflow:
    """Returns the examples of a task, whatever its source, once and in order, as seqio's `get_dataset` does."""
    from limba.data.bridge.seqio_objects import as_seqio

    choices = {"shuffle": False, "seed": seed, "num_epochs": 1, "try_in_mem_cache": False}
    return OfTensorflow(as_seqio(task).get_dataset(lengths, split, **choices), failure=failure)


def in_tensorflow(dataset: tf.data.Dataset, function: Callable[[Dataset], Dataset]) -> tf.data.Dataset:
    """Returns a function's result for a tf.data.Dataset, as one; its draws are of seqio's next seed."""
    import seqio
    import tensorflow as tf

    seed = seqio.utils._NEXT_MAP_SEED  # seqio 0.0.20 has no public access to it
    draws = Draws(random.randrange(2**31) if seed is None else seed)

    def make() -> Dataset:
        plain = OfTensorflow(dataset)
        plain.draws = draws
        return function(plain)

    first = make()
    spec = first.spec
    if seed is not None:
        seqio.utils._NEXT_MAP_SEED = seed + SEEDS_OF_A_STEP * first.draws.step
    signature = {name: tf.TensorSpec(array.shape, tf.as_dtype(array.dtype)) for name, array in spec.items()}
    return tf.data.Dataset.from_generator(make, output_signature=signature)


def applied(steps: Sequence[Step], dataset: Dataset, arguments: Mapping[str, Any], failure: Failure) -> Dataset:
    """Returns the data set after preprocessors in TensorFlow, which get these arguments as seqio gives them.

    `failure` is asked for what they raise; what `dataset` raises stays as it is.
    """
    import seqio
    import tensorflow as tf

    from limba.data.bridge.seqio_objects import feature_as_seqio

    features = {name: feature_as_seqio(feature) for name, feature in arguments["output_features"].items()}

    def apply(stage_data: tf.data.Dataset) -> tf.data.Dataset:
        first_seed = seqio.utils._NEXT_MAP_SEED
        with noticed_ignore_errors() as ignoring:
            made = chain(stage_data, [by_our_encoder(step) for step in steps])
        if not ignoring:
            return made
        # A document that fails would take its whole block along.
        seqio.utils._NEXT_MAP_SEED = first_seed
        return chain(stage_data, steps)

    def chain(transformed: tf.data.Dataset, steps: Sequence[Step]) -> tf.data.Dataset:
        for step in steps:
            choices = {**arguments, "output_features": features}
            transformed = seqio.utils.add_kwargs_to_transform(step, **choices)(transformed)
        return transformed

    seed = dataset.take_draws().seed_of_seqio()
    if isinstance(dataset, OfTensorflow):
        if dataset.shared is not None:
            graph = dataset.shared.graph.followed(steps, apply)
            if graph is not None:
                shared = OfShard(graph, dataset.shared.shard, (*dataset.shared.seeds, seed))
                return OfTensorflow(
                    shared.dataset(), dataset.failure, shared=shared, numbered=dataset.numbered, is_made=True
                )
        documents = None
        numbered = dataset.numbered
        of_source = dataset.source
        failure_of_all = dataset.failure
    else:
        documents = Numbered(dataset)
        numbered = None
        failure_of_all = lambda error: documents.failure or failure(error)
        if dataset.cardinality is None:
            of_all = _shared_documents(steps, dataset.spec, arguments)
            graph = of_all.graph.followed(steps, apply)
            if graph is not None and not graph.calls_python:
                shared = OfShard(graph, of_all.add(documents), (seed,))
                return OfTensorflow(shared.dataset(), failure_of_all, documents, shared)
        of_source = documents.in_tensorflow()
        if dataset.cardinality is not None:
            of_source = of_source.apply(tf.data.experimental.assert_cardinality(dataset.cardinality))
    with maps_in_turn(), seqio.map_seed_manager(seed):
        of_source = apply(of_source)
    return OfTensorflow(of_source, failure_of_all, documents, numbered=numbered, is_made=True)


def _spec(tensor: Any) -> Spec:
    dtype = getattr(tensor, "dtype", None)  # None has none, and may stand for a feature that a source leaves out
    shape = getattr(tensor, "shape", None)
    lengths = (None,) if shape is None or shape.rank is None else tuple(shape)
    return Spec("object" if dtype is None else dtype.name, lengths)


def _single_threaded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Sets one thread and no tuning: many shards share a process, and order must not depend on timing."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = True
    options.experimental_optimization.map_parallelization = False  # nothing is read ahead of what is asked for
    options.experimental_optimization.inject_prefetch = False
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return dataset.with_options(options)
