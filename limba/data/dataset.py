"""Data sets in Python and numpy: sequences of elements, read once and in order, whose place can be saved and restored.

They have tf.data's operations, as far as they are used here, with the same results: the same seeds give the same
order. A state is JSON with numpy arrays in it. It names what is read again, not its content, except for the elements
in a shuffle's buffer and the rows of a packer.
"""

from __future__ import annotations

import abc
import copy
import functools
import importlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np

from limba.data import philox

# An element is {feature: value}: text is bytes, tokens are int32 [n]. Between two operations it may be anything else.
T = TypeVar("T")
U = TypeVar("U")
State = Any  # JSON with numpy arrays in it
Step = Callable[..., Any]  # a preprocessor: (data set, …) -> data set
# (first element, number of elements) -> a pair of seeds for each, int64 [n, 2]
Pairs = Callable[[int, int], np.ndarray]

DRAWN = 1024  # random numbers at once: a call costs as much as hundreds of them


class Spec(NamedTuple):
    """What a feature of the elements is, as in tf.TensorSpec: 'string' or numpy's name, and a shape."""

    dtype: str
    shape: tuple[int | None, ...] = ()


TEXT, TOKENS = Spec("string"), Spec("int32", (None,))


class Dataset(Iterator[T]):
    """A finite or endless sequence of elements, read once. After its end it stays at its end.

    `spec` says the features of an element. `next_seed` is the seed of the next step that draws random numbers: as
    seqio's preprocessors do, each takes two numbers. None draws others in each run; a function returns the pairs of
    seeds itself. `cardinality` is the number of elements, as tf.data's: None where it is not known beforehand.
    `progress` is that of `passed`, set where documents begin.
    """

    progress: Callable[[], Mapping[str, float]] | None = None

    def __init__(
        self,
        spec: Mapping[str, Spec],
        next_seed: int | Callable[[], Pairs] | None = None,
        cardinality: int | None = None,
    ):
        self.spec, self.next_seed, self.cardinality = dict(spec), next_seed, cardinality

    @abc.abstractmethod
    def state(self) -> State:
        """Returns where the data set is; it stays valid when the data set moves on. After an error there is none."""

    @abc.abstractmethod
    def restore(self, state: State) -> None:
        """Sets a data set, made as the one that was saved, to its place."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Sets what changes in reading to the beginning, with new objects: a copy shares none of them."""

    def anew(self) -> Self:
        """Returns the same data set at its beginning, to be read beside this one: nothing of either moves the other."""
        other = copy.copy(self)
        other._begin()
        return other

    def take_seeds(self) -> Pairs:
        """Returns the pairs of seeds of a step that draws random numbers."""
        if callable(self.next_seed):
            return self.next_seed()
        seed = random.randrange(2**31) if self.next_seed is None else self.next_seed
        self.next_seed = seed + 2
        return functools.partial(_pairs, seed)

    def map(self, function: Callable[[T], U], spec: Mapping[str, Spec] | None = None) -> Dataset[U]:
        """Returns a data set of the function's results."""
        return _Mapped(self, function, spec)

    def flat_map(self, function: Callable[[T, int], Sequence[U]], spec: Mapping[str, Spec] | None = None) -> Dataset[U]:
        """Returns a data set of the results of (element, number of the element), one after another."""
        return _FlatMapped(self, function, spec)

    def batch(self, size: int, drop_remainder: bool = False, first: int | None = None) -> Dataset[list[T]]:
        """Returns a data set of lists of so many elements; the last one may be shorter.

        The first list, from the beginning or from a restored state on, has `first` elements if that is given.
        """
        return _Batched(self, size, drop_remainder, first)

    def passed(self) -> Mapping[str, float]:
        """Returns task name -> the epochs of its text that the elements given so far hold.

        What has been read of a source, and waits in a buffer, does not count. A task is missing where nobody knows.
        """
        return {} if self.progress is None else self.progress()

    def rebatch(self, size: int) -> Dataset:
        """Returns a data set of vectors of this size, of one of vectors; the last one may be shorter."""
        return _Rebatched(self, size)

    def shuffle(self, size: int, seed: int) -> Dataset[T]:
        """Returns the elements in the order of tf.data's `shuffle`, by a buffer of this size."""
        return _Shuffled(self, size, seed)


class Derived(Dataset[U], Generic[T, U]):
    """A data set made from another one, which it takes over; by default its place is the other one's."""

    def __init__(self, parent: Dataset[T], spec: Mapping[str, Spec] | None = None, cardinality: int | None = None):
        super().__init__(parent.spec if spec is None else spec, parent.next_seed, cardinality)
        self._parent = parent

    def _begin(self) -> None:
        """By default nothing of its own changes."""

    def anew(self) -> Self:
        other = copy.copy(self)
        other._parent = self._parent.anew()
        other._begin()
        return other

    def state(self) -> State:
        return self._parent.state()

    def restore(self, state: State) -> None:
        self._parent.restore(state)

    def passed(self) -> Mapping[str, float]:
        return self._parent.passed() if self.progress is None else self.progress()


class Elements(Dataset[T]):
    """A data set of some elements."""

    def __init__(self, elements: Sequence[T], spec: Mapping[str, Spec], next_seed: int | None = None):
        super().__init__(spec, next_seed, len(elements))
        self._elements = elements
        self._begin()

    def _begin(self) -> None:
        self._number = 0

    def __next__(self) -> T:
        if self._number == len(self._elements):
            raise StopIteration
        self._number += 1
        return self._elements[self._number - 1]

    def state(self) -> State:
        return self._number

    def restore(self, state: State) -> None:
        self._number = state


class Mixed(Dataset[T]):
    """Elements of several data sets, chosen by their rates as tf.data's `sample_from_datasets` does."""

    def __init__(self, datasets: Sequence[Dataset[T]], rates: Sequence[float], seed: int):
        super().__init__(datasets[0].spec)
        chosen = [(dataset, rate) for dataset, rate in zip(datasets, rates, strict=True) if rate > 0]
        self._datasets = [dataset for dataset, _ in chosen]
        self._begin()
        weights = [rate for _, rate in chosen]
        self._choice = _in_blocks(lambda start: philox.choices(seed, weights, start, DRAWN))

    def _begin(self) -> None:
        self._number, self._ended = 0, set[int]()

    def anew(self) -> Self:
        other = super().anew()
        other._datasets = [dataset.anew() for dataset in self._datasets]
        return other

    def __next__(self) -> T:
        while len(self._ended) < len(self._datasets):
            choice = self._choice(self._number) if len(self._datasets) > 1 else 0
            if choice not in self._ended:
                try:
                    element = next(self._datasets[choice])
                    self._number += 1
                    return element
                except StopIteration:
                    self._ended.add(choice)
            self._number += 1
        raise StopIteration

    def passed(self) -> Mapping[str, float]:
        return {name: epochs for dataset in self._datasets for name, epochs in dataset.passed().items()}

    def state(self) -> State:
        parts = [dataset.state() for dataset in self._datasets]
        return {"parts": parts, "number": self._number, "ended": sorted(self._ended)}

    def restore(self, state: State) -> None:
        self._number, self._ended = state["number"], set(state["ended"])
        for dataset, each in zip(self._datasets, state["parts"], strict=True):
            dataset.restore(each)


class _Mapped(Derived[T, U]):
    def __init__(self, parent: Dataset[T], function: Callable[[T], U], spec: Mapping[str, Spec] | None):
        super().__init__(parent, spec, parent.cardinality)
        self._function = function

    def __next__(self) -> U:
        return self._function(next(self._parent))


class _Batched(Derived[T, list[T]]):
    def __init__(self, parent: Dataset[T], size: int, drop_remainder: bool, first: int | None):
        super().__init__(parent)
        self._size, self._drop_remainder = size, drop_remainder
        self._first_size = size if first is None else first
        self._begin()

    def _begin(self) -> None:
        self._next_size = self._first_size

    def restore(self, state: State) -> None:
        super().restore(state)
        self._begin()

    def __next__(self) -> list[T]:
        found = []
        for element in self._parent:
            found.append(element)
            if len(found) == self._next_size:
                self._next_size = self._size
                return found
        if not found or self._drop_remainder:
            raise StopIteration
        return found


class _Reread(Derived[T, U], abc.ABC):
    """Gives away an element of its parent in parts; its state is that before the element, and what was given."""

    def __init__(self, parent: Dataset[T], spec: Mapping[str, Spec] | None = None):
        super().__init__(parent, spec)
        self._begin()

    def _begin(self) -> None:
        self._before: State = None
        self._passed_before: Mapping[str, float] = {}  # what the parent had passed on before the element
        self._number = self._used = 0  # elements of the parent that were read, and what was given of the last one
        self._part: Sequence = ()

    def _read(self) -> None:
        before, passed_before = self._parent.state(), self._parent.passed()
        part = self._opened(next(self._parent))
        self._before, self._part, self._used = before, part, 0
        self._passed_before = passed_before
        self._number += 1

    def passed(self) -> Mapping[str, float]:
        """Returns what the parent had passed on before the last element, and its share of that element."""
        after = super().passed()
        if self.progress is not None or self._used == len(self._part):
            return after
        share = self._used / len(self._part)
        before = {name: self._passed_before.get(name, epochs) for name, epochs in after.items()}
        return {name: before[name] + share * (epochs - before[name]) for name, epochs in after.items()}

    @abc.abstractmethod
    def _opened(self, element: T) -> Sequence:
        """Returns what is given of an element, in order."""

    def state(self) -> State:
        if self._used == len(self._part):
            return {"parent": self._parent.state(), "number": self._number, "used": 0}
        return {"parent": self._before, "number": self._number - 1, "used": self._used}

    def restore(self, state: State) -> None:
        self._parent.restore(state["parent"])
        self._number, self._part, self._used = state["number"], (), 0
        if state["used"]:
            self._read()
            self._used = state["used"]


class _FlatMapped(_Reread[T, U]):
    def __init__(self, parent: Dataset[T], function: Callable[[T, int], Sequence[U]], spec: Mapping[str, Spec] | None):
        super().__init__(parent, spec)
        self._function = function

    def _opened(self, element: T) -> Sequence[U]:
        return self._function(element, self._number)

    def __next__(self) -> U:
        while self._used == len(self._part):
            self._read()
        self._used += 1
        return self._part[self._used - 1]


class Counted(_FlatMapped[list, T]):
    """The elements of batches of `size`, which `function` sees, and what they are of an epoch of `of_epoch` elements.

    The first element is in epoch `first`, and none is in epoch `last`.
    """

    def __init__(
        self,
        parent: Dataset[list],
        function: Callable[[list, int], Sequence[T]],
        size: int,
        of_epoch: float,
        first: float,
        last: float,
    ):
        super().__init__(parent, function, None)
        self._size, self._of_epoch, self._first, self._last = size, of_epoch, first, last

    def epochs(self) -> float:
        """Returns the epochs that were given so far, also by the data set whose state was restored."""
        read_before = self._number - 1 if self._part else self._number  # batches; one is open where there is a part
        count = self._size * read_before + self._used
        return min(self._first + count / self._of_epoch, self._last)


class _Rebatched(_Reread[np.ndarray, np.ndarray]):
    def __init__(self, parent: Dataset, size: int):
        super().__init__(parent)
        self._size = size

    def _opened(self, element: np.ndarray) -> np.ndarray:
        return element

    def __next__(self) -> np.ndarray:
        parts, missing = [], self._size
        while missing:
            if self._used == len(self._part):
                try:
                    self._read()
                except StopIteration:
                    break
            parts.append(self._part[self._used : self._used + missing])
            self._used += len(parts[-1])
            missing -= len(parts[-1])
        if missing == self._size:
            raise StopIteration
        return np.concatenate(parts)


class _Shuffled(Derived[T, T]):
    def __init__(self, parent: Dataset, size: int, seed: int):
        super().__init__(parent)
        first, second = philox.sequence(seed, 0, 2).tolist()
        self._draw = _in_blocks(lambda start: philox.of_pair(first, second, start, DRAWN))
        self._size = size
        self._begin()

    def _begin(self) -> None:
        self._buffer: list[Any] = [None] * self._size
        self._start = self._end = 0  # the buffer is a ring

    def __next__(self) -> T:
        buffer, size = self._buffer, len(self._buffer)
        while self._end - self._start < size:
            element = next(self._parent, None)
            if element is None:
                break
            buffer[self._end % size] = element
            self._end += 1
        if self._start == self._end:
            raise StopIteration
        chosen = (self._start + self._draw(self._start) % (self._end - self._start)) % size
        element, buffer[chosen] = buffer[chosen], buffer[self._start % size]
        self._start += 1
        return element

    def passed(self) -> Mapping[str, float]:
        """Returns the share of what the parent has passed on that is not in the buffer."""
        share = self._start / max(self._end, 1)
        return {name: share * epochs for name, epochs in super().passed().items()}

    def state(self) -> State:
        waiting = [self._buffer[place % len(self._buffer)] for place in range(self._start, self._end)]
        columns = {name: _column([each[name] for each in waiting]) for name in waiting[0]} if waiting else {}
        return {"parent": super().state(), "start": self._start, "end": self._end, "columns": columns}

    def restore(self, state: State) -> None:
        super().restore(state["parent"])
        self._start, self._end = state["start"], state["end"]
        columns = {name: _values(column) for name, column in state["columns"].items()}
        for number, place in enumerate(range(self._start, self._end)):
            self._buffer[place % len(self._buffer)] = {name: values[number] for name, values in columns.items()}


def _column(values: Sequence[bytes | np.ndarray]) -> State:
    """Returns values of one feature, bytes or arrays of any lengths, as a state."""
    if isinstance(values[0], bytes):
        return {"texts": np.frombuffer(b"".join(values), np.uint8), "sizes": np.array([*map(len, values)])}  # pyright: ignore[reportCallIssue, reportArgumentType]
    arrays = [np.asarray(value) for value in values]
    shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), -1)
    return {"arrays": np.concatenate([array.ravel() for array in arrays]), "shapes": shapes}


def _values(column: State) -> list[bytes] | list[np.ndarray]:
    """Returns the values of `_column`."""
    if "texts" in column:
        text, ends = column["texts"].tobytes(), np.cumsum(column["sizes"]).tolist()
        return [text[end - size : end] for size, end in zip(column["sizes"].tolist(), ends, strict=True)]
    sizes = np.prod(column["shapes"], axis=1, dtype=np.int64)
    parts = np.split(column["arrays"], np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, column["shapes"].tolist(), strict=True)]


def _in_blocks(drawn: Callable[[int], np.ndarray]) -> Callable[[int], int]:
    """Returns number -> its random number, where `drawn` returns DRAWN of them from one on."""
    block = functools.lru_cache(maxsize=1)(lambda number: drawn(DRAWN * number).tolist())
    return lambda number: block(number // DRAWN)[number % DRAWN]


@functools.lru_cache(maxsize=256)
def _block_of_pairs(seed: int, number: int) -> np.ndarray:
    return np.stack([philox.sequence(seed + side, DRAWN * number, DRAWN) for side in (0, 1)], 1)


def _pairs(seed: int, start: int, count: int) -> np.ndarray:
    """Returns the pairs int64 [count, 2] that two `tf.data.Dataset.random` give, of the seed and the next one."""
    first, last = start // DRAWN, (start + count - 1) // DRAWN
    blocks = [_block_of_pairs(seed, number) for number in range(first, last + 1)]
    found = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    return found[start - DRAWN * first :][:count]


def preprocessor(function: Step) -> Step:
    """Returns a preprocessor of these data sets as one that takes, and then returns, tf.data's too.

    So seqio's own `get_dataset` can call it, between a user's preprocessors in TensorFlow.
    """

    @functools.wraps(function)
    def of_either(dataset: object, *arguments: object, **choices: object) -> object:
        if isinstance(dataset, Dataset):
            return function(dataset, *arguments, **choices)
        bridge = importlib.import_module(f"{__package__}.bridge")  # which stands above
        return bridge.in_tensorflow(dataset, lambda plain: function(plain, *arguments, **choices))

    of_either.is_plain = True  # pyright: ignore[reportAttributeAccessIssue]
    return of_either
