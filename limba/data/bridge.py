"""Between these data sets and tf.data's: for preprocessors and sources in TensorFlow, and for seqio's own calls.

The only module of `data/` that imports TensorFlow; it does so when it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.config import InputError
from limba.data.dataset import Dataset, Pairs, Spec, State

Failure = Callable[[Exception], Exception | None]  # from TensorFlow's error to the one that caused it, if it is known


class OfTensorflow(Dataset):
    """The elements of a tf.data.Dataset, `source`. It is restored by reading it again up to its place."""

    def __init__(self, dataset: Any, next_seed: Any = None, failure: Failure | None = None):
        spec = dataset.element_spec if isinstance(dataset.element_spec, Mapping) else {}
        cardinality = int(dataset.cardinality())
        super().__init__(
            {name: _spec(each) for name, each in spec.items()}, next_seed, None if cardinality < 0 else cardinality
        )
        self.source, self.failure, self._number = dataset, failure or (lambda error: None), 0
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        import tensorflow as tf

        if self._iterator is None:
            self._iterator = iter(_single_threaded(self.source).as_numpy_iterator())
        try:
            element = next(self._iterator)
        except tf.errors.OpError as error:
            failure = self.failure(error)
            if failure is None:
                raise
            raise failure from None
        self._number += 1
        return element

    def state(self) -> State:
        return self._number

    def restore(self, state: State) -> None:
        self._iterator, self._number = None, 0
        while self._number < state:
            next(self)


def of_seqio(
    task: Any, lengths: Mapping[str, int], split: str, seed: int, failure: Failure | None = None
) -> OfTensorflow:
    """Returns the examples of a task, whatever its source, once and in order, as seqio's `get_dataset` does."""
    from limba.data.seqio_tasks import as_seqio

    choices = {"shuffle": False, "seed": seed, "num_epochs": 1, "try_in_mem_cache": False}
    return OfTensorflow(as_seqio(task).get_dataset(lengths, split, **choices), failure=failure)


def to_tensorflow(make: Callable[[], Dataset]) -> Any:
    """Returns a tf.data.Dataset of the data sets that `make` returns, a new one for each time that it is read."""
    return _generated(make().spec, make)


def in_tensorflow(dataset: Any, function: Callable[[Dataset], Dataset]) -> Any:
    """Returns a function's result for a tf.data.Dataset, as one; seeds are seqio's next ones."""
    import seqio
    import tensorflow as tf

    taken: list[Any] = []  # data sets of seeds, in the order in which they are asked for

    def make() -> Dataset:
        number = iter(range(len(taken) + 1))

        def take() -> Pairs:
            place = next(number)
            if place == len(taken):
                draw = seqio.map_over_dataset(lambda _, seed: tf.stack(seed), num_seeds=1)
                taken.append(draw(tf.data.Dataset.range(2**62)))
            drawn = taken[place].as_numpy_iterator()
            return lambda start, count: np.stack([next(drawn) for _ in range(count)])  # asked for in order

        plain = OfTensorflow(dataset)
        plain.next_seed = take
        return function(plain)

    return to_tensorflow(make)


def applied(steps: Sequence[Callable[..., Any]], dataset: Dataset, arguments: Mapping[str, Any]) -> Dataset:
    """Returns the data set after preprocessors in TensorFlow, which get these arguments as seqio gives them."""
    import seqio
    import tensorflow as tf

    from limba.data.seqio_tasks import feature_as_seqio

    features = {name: feature_as_seqio(feature) for name, feature in arguments["output_features"].items()}
    beginning, failures = dataset.state(), list[Exception]()

    def from_beginning() -> Iterator[Any]:
        dataset.restore(beginning)
        try:
            yield from dataset
        except InputError as error:
            failures.append(error)
            raise

    if isinstance(dataset, OfTensorflow):
        found, failure = dataset.source, dataset.failure
    else:
        found, failure = _generated(dataset.spec, from_beginning), lambda error: failures[-1] if failures else None
        if dataset.cardinality is not None:
            found = found.apply(tf.data.experimental.assert_cardinality(dataset.cardinality))
    with seqio.map_seed_manager(dataset.next_seed):
        for step in steps:
            found = seqio.utils.add_kwargs_to_transform(step, **{**arguments, "output_features": features})(found)
        next_seed = seqio.utils._NEXT_MAP_SEED  # seqio 0.0.20 has no public access to it
    return OfTensorflow(found, next_seed, failure)


def _generated(spec: Mapping[str, Spec], elements: Callable[[], Iterator[Any]]) -> Any:
    import tensorflow as tf

    signature = {name: tf.TensorSpec(each.shape, tf.as_dtype(each.dtype)) for name, each in spec.items()}
    return tf.data.Dataset.from_generator(elements, output_signature=signature)


def _spec(each: Any) -> Spec:
    shape = getattr(each, "shape", None)
    return Spec(each.dtype.name, tuple(shape) if shape is not None and shape.rank is not None else (None,))


def _single_threaded(dataset: Any) -> Any:
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
