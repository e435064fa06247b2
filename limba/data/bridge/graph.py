"""One traced graph for all data shards of a task in TensorFlow.

TensorFlow traces every function of a chain of preprocessors anew for each data set, which takes about a second. With
sixteen shards that was most of the time before the first batch. Here the chain is traced once, as a function of the
shard's number and seeds.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

# From [the shard's number, a seed for each group of preprocessors before] to the shard's data set.
Make = Callable[["tf.Tensor"], "tf.data.Dataset"]
TRACING = threading.RLock()  # while methods of tf.data are others


class SharedGraph:
    """Makes the data set of each shard by one traced function, `make`, and the graphs that go on from it."""

    def __init__(self, make: Make, num_seeds: int = 0):
        import tensorflow as tf

        self.make = make
        self.num_seeds = num_seeds
        self._made: list[tf.data.Dataset] = []  # its functions and tables in Python live as long as this
        signature = [tf.TensorSpec([1 + num_seeds], tf.int64)]
        self._traced = tf.function(self._kept, input_signature=signature, autograph=False)
        self._next: dict[Hashable, SharedGraph | None] = {}

    def _kept(self, numbers: tf.Tensor) -> tf.data.Dataset:
        dataset = self.make(numbers)
        self._made.append(dataset)
        return dataset

    def dataset(self, shard: int, seeds: Sequence[int]) -> tf.data.Dataset:
        """Returns the data set of a shard; `seeds` has one for each group of preprocessors."""
        return self._traced(np.array([shard, *seeds], np.int64))

    def followed(
        self, steps: Sequence[object], apply: Callable[[tf.data.Dataset], tf.data.Dataset]
    ) -> SharedGraph | None:
        """Returns the graph after more preprocessors, which `apply` calls; None where these cannot be traced once.

        These may look at the data set itself, which has no elements while it is traced: then each shard has its own.
        """
        key = tuple(map(id, steps))
        if key not in self._next:
            graph = SharedGraph(
                lambda numbers: graph._applied(self.make(numbers[:-1]), numbers[-1], apply), self.num_seeds + 1
            )
            try:
                with maps_in_turn():
                    graph._traced.get_concrete_function()
            except Exception:  # noqa: BLE001  of the user's code; called for one shard, it says what is wrong
                self._next[key] = None
            else:
                self._next[key] = graph
        return self._next[key]

    @functools.cached_property
    def calls_python(self) -> bool:
        """True if a step calls Python of its user's, which may keep something of its own for each shard."""
        definition = self._traced.get_concrete_function().graph.as_graph_def()
        nodes = [*definition.node, *(node for part in definition.library.function for node in part.node_def)]
        return any(node.op in ("PyFunc", "EagerPyFunc") for node in nodes)

    def _applied(
        self, dataset: tf.data.Dataset, seed: tf.Tensor, apply: Callable[[tf.data.Dataset], tf.data.Dataset]
    ) -> tf.data.Dataset:
        import seqio

        # seqio 0.0.20 has no public access to its next seed, and does not restore it after an error: what is traced
        # later would then read a tensor of this graph.
        before = seqio.utils._NEXT_MAP_SEED
        try:
            with seqio.map_seed_manager(_Seed(seed)):
                dataset = apply(dataset)
        finally:
            seqio.utils._NEXT_MAP_SEED = before
        return dataset


@contextlib.contextmanager
def maps_in_turn() -> Iterator[None]:
    """Lets tf.data's `map` call its function for one element after the other, also if parallel calls are asked for.

    Elements and their order stay the same. A `map` with parallel calls has a thread of its own that reads ahead, and
    t5's span corruption has five in a chain. Sixteen shards would then read three times the documents that their first
    batch needs, and hand each one from thread to thread. The shards themselves are read in parallel.
    """
    import tensorflow as tf

    def in_turn(
        dataset: tf.data.Dataset,
        map_func: Callable,
        num_parallel_calls: object = None,
        deterministic: object = None,
        **choices: Any,
    ) -> tf.data.Dataset:
        del num_parallel_calls, deterministic
        return as_written(dataset, map_func, **choices)

    of_tensorflow: Any = tf.data.Dataset
    with TRACING:
        as_written = of_tensorflow.map
        of_tensorflow.map = functools.wraps(as_written)(in_turn)
        try:
            yield
        finally:
            of_tensorflow.map = as_written


class _Seed:
    """A seed that is a tensor, and seqio's next ones after it: it takes `numpy.arange` of them, TensorFlow `% n`."""

    def __init__(self, first: tf.Tensor, number: int = 0):
        self.first = first
        self.number = number

    def __add__(self, number: int) -> _Seed:
        return _Seed(self.first, self.number + number)

    def __sub__(self, other: _Seed) -> int:
        return self.number - other.number

    def __mod__(self, divisor: int) -> tf.Tensor:
        import tensorflow as tf

        return tf.math.floormod(self.first + self.number, divisor)
