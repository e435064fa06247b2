"""Data sets in Python and numpy: descriptions of sequences, which are read in order from any place.

A data set has no state. `read(place)` reads it from its beginning, or from a place that came with an element. A place
is JSON: it counts what was read, and holds no text. With each element come the documents that it is made of.
"""

from __future__ import annotations

import abc
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from limba.config import InputError
from limba.data.draws import Draws, Purpose, Words

# An element is {feature: value}: text is bytes, tokens are int32 [n]. Between two operations it may be anything else.
T = TypeVar("T")
U = TypeVar("U")
Place = Any  # JSON; None: the beginning
Step = Callable[..., Any]  # a preprocessor: (data set, …) -> data set
Vector = Mapping[str, np.ndarray]  # an element with one feature, a vector of tokens

CHOICES = 1024  # of a mixture that are drawn at once
ROWS_PER_BLOCK = 32  # that are made at once
FEWER_ROWS = 8  # the same in a mixture of more than MANY_TASKS, since each task and shard holds a block
MANY_TASKS = 16
MOST_GROUPS = 32  # of documents that are tokenized in one call


def rows_per_block(num_tasks: int) -> int:
    """Returns the rows that a step makes at once, in a mixture of so many tasks."""
    return ROWS_PER_BLOCK if num_tasks <= MANY_TASKS else FEWER_ROWS


class Spec(NamedTuple):
    """What a feature of the elements is, as in tf.TensorSpec: 'string' or numpy's name, and a shape."""

    dtype: str
    shape: tuple[int | None, ...] = ()


TEXT = Spec("string")
TOKENS = Spec("int32", (None,))


class Document(NamedTuple):
    """A document that was read: where it stands, and how much of its corpus was read with it.

    `task` is the number of its task in a mixture. The source finds the document by unit, chunk and row. A long one is
    read in pieces, each of which counts as a document.
    """

    task: int
    unit: int
    chunk: int
    row: int
    piece: int
    epochs: float


class Item(NamedTuple, Generic[T]):
    """An element of a data set: its value, its documents in order, and the place after it.

    `ends` says where each document ends in a vector of tokens. `tasks` has the number of the task of each example in
    the value: of one, or of those in a packed row.
    """

    value: T
    documents: Sequence[Document]
    place: Place
    ends: np.ndarray | None = None
    tasks: Sequence[int] = (0,)


class DocumentError(InputError):
    """A document that cannot be tokenized: its index in the call, and a sentence without its subject.

    >>> str(DocumentError(2, "has the id 9, and the vocabulary ends with 8; tokenize it by that."))
    'A document has the id 9, and the vocabulary ends with 8; tokenize it by that.'
    """

    def __init__(self, number: int, sentence: str):
        super().__init__(number, sentence)
        self.number = number
        self.sentence = str(self.args[1])

    def _text(self) -> str:
        return f"A document {self.sentence}"


class Dataset(abc.ABC, Generic[T]):
    """A finite or endless sequence of elements; iterating over it gives their values from the beginning on.

    `spec` says the features of an element. `cardinality` is the number of elements, as tf.data's: None where it is not
    known beforehand. `draws` belong to the next step that draws random numbers, and `rows_per_block` is the number
    of rows that a step makes at once. `tokens_at_once` is how many tokens one call of the tokenizer may make
    ahead; with 0 no document is read before it is due.
    """

    def __init__(self, spec: Mapping[str, Spec], cardinality: int | None = None):
        self.spec = dict(spec)
        self.cardinality = cardinality
        self.draws = Draws(seed=0)
        self.rows_per_block = rows_per_block(num_tasks=1)
        self.tokens_at_once = 0

    @abc.abstractmethod
    def read(self, place: Place = None) -> Iterator[Item[T]]:
        """Yields the elements after a place that came with one of them; None: all of them."""

    def name_of(self, document: Document) -> str | None:
        """Returns where a document stands, for a message; None where that is not known."""
        del document

    def __iter__(self) -> Iterator[T]:
        return (item.value for item in self.read())

    def take_draws(self) -> Draws:
        """Returns the draws of a step; the next one gets others."""
        taken = self.draws
        self.draws = taken.next_step()
        return taken

    def take_words(self) -> Callable[[int], Words]:
        """Returns the random numbers of a step that makes blocks of rows: number of a block -> its words."""
        return functools.partial(self.take_draws().words, Purpose.ROWS)

    def map(self, function: Callable[[T], U], spec: Mapping[str, Spec] | None = None) -> Dataset[U]:
        """Returns a data set of the function's results."""
        return _Mapped(self, function, spec)

    def flat_map(self, function: Callable[[T, int], Sequence[U]], spec: Mapping[str, Spec] | None = None) -> Dataset[U]:
        """Returns a data set of the results of (element, number of the element), one after another."""
        return _FlatMapped(self, lambda item, number: _of_same_documents(item, function(item.value, number)), spec)

    def map_groups(
        self, size: int, function: Callable[[list[T], int], Sequence[U]], spec: Mapping[str, Spec] | None = None
    ) -> Dataset[U]:
        """Returns a data set of the function's results: one for each of the `size` elements that it is called with.

        The function is called with the elements and the number of their group. The last group may be smaller.
        """
        return _MappedInGroups(self, size, function, spec)

    def batch(self, size: int, drop_remainder: bool = False) -> Dataset[list[T]]:
        """Returns a data set of lists of so many elements; the last one may be shorter."""
        return _Batched(self, size, drop_remainder)

    def tokens(self, tokenize: Callable[[list[T]], Sequence[np.ndarray]], size: int) -> Dataset[Vector]:
        """Returns {"targets": the tokens of `size` documents in a row}; `tokenize` returns each document's tokens."""
        return _Tokenized(self, tokenize, size)

    def blocks(self, size: int) -> Dataset[Vector]:
        """Returns {"targets": a vector of this size}, of one of vectors of any size; the last one may be shorter."""
        return _Blocks(self, size)

    def cut(
        self,
        function: Callable[[np.ndarray, np.ndarray | None, int], Sequence[tuple[U, int]]],
        spec: Mapping[str, Spec],
    ) -> Dataset[U]:
        """Returns a data set of the results of (vector, ends of its documents, number of the vector).

        Each result is (element, the token of the vector that comes after the element's). Elements take the
        tokens in order, so each has the documents of its own.
        """

        def parts(item: Item[Any], number: int) -> list[Item[U]]:
            cuts = function(item.value["targets"], item.ends, number)
            slices = _documents_of_parts(_ends_of(item), [stop for _, stop in cuts])
            return [
                Item(value, item.documents[of_part], None, None, item.tasks)
                for (value, _), of_part in zip(cuts, slices, strict=True)
            ]

        return _FlatMapped(self, parts, spec)

    def shuffle(self, size: int, draws: Draws) -> Dataset[T]:
        """Returns the elements in random order inside windows of this size."""
        return _Shuffled(self, size, draws)


class Derived(Dataset[U], Generic[T, U]):
    """A data set made from another one."""

    def __init__(self, parent: Dataset[T], spec: Mapping[str, Spec] | None = None, cardinality: int | None = None):
        super().__init__(parent.spec if spec is None else spec, cardinality)
        self.draws = parent.draws
        self.rows_per_block = parent.rows_per_block
        self.tokens_at_once = parent.tokens_at_once
        self._parent = parent

    def name_of(self, document: Document) -> str | None:
        return self._parent.name_of(document)


class Elements(Dataset[T]):
    """A data set of some elements, whose documents are unknown.

    >>> texts = Elements([{"text": b"A"}, {"text": b"B"}], {"text": TEXT})
    >>> [item.value["text"] for item in texts.read(1)]  # from the place after the first one
    [b'B']
    """

    def __init__(self, elements: Sequence[T], spec: Mapping[str, Spec]):
        super().__init__(spec, len(elements))
        self._elements = elements

    def read(self, place: Place = None) -> Iterator[Item[T]]:
        for number in range(place or 0, len(self._elements)):
            yield Item(self._elements[number], (), number + 1)


class Mixed(Dataset[T]):
    """Elements of several data sets, each chosen by its rate; where one has ended, another is chosen.

    A data set is opened when its first element is due. Its number is the task of its elements.
    """

    def __init__(self, datasets: Sequence[Dataset[T]], rates: Sequence[float], draws: Draws):
        super().__init__(datasets[0].spec)
        self._datasets = datasets
        self._with_rate = [number for number, rate in enumerate(rates) if rate > 0]
        self._ends = np.cumsum([rates[number] for number in self._with_rate], dtype=np.float64)
        self._draws = draws

    def _choices(self, group: int) -> list[int]:
        """Returns the numbers of the data sets of CHOICES elements in a row."""
        drawn = self._draws.words(Purpose.MIXTURE, group).uniform64(CHOICES)
        chosen = np.searchsorted(self._ends[:-1], drawn * self._ends[-1], side="right")
        return np.array(self._with_rate)[chosen].tolist()

    def read(self, place: Place = None) -> Iterator[Item[T]]:
        """Yields the elements; a place has the number of the next choice, what has ended, and a place of each part.

        There is a part for each data set, also for one without a rate: another start may give it one.
        """
        begun = place or {"number": 0, "ended": [], "parts": [None] * len(self._datasets)}
        number = begun["number"]
        ended = set(begun["ended"])
        places = list(begun["parts"])
        readings: list[Iterator[Item[T]] | None] = [None] * len(self._datasets)
        choices = self._choices(number // CHOICES)
        num_left = len(set(self._with_rate) - ended)
        while num_left:
            choice = choices[number % CHOICES]
            number += 1
            if number % CHOICES == 0:
                choices = self._choices(number // CHOICES)
            if choice in ended:
                continue
            reading = readings[choice]
            if reading is None:
                reading = self._datasets[choice].read(places[choice])
                readings[choice] = reading
            item = next(reading, None)
            if item is None:
                ended.add(choice)
                num_left -= 1
                continue
            places[choice] = item.place
            after = {"number": number, "ended": sorted(ended), "parts": places.copy()}
            yield item._replace(place=after, tasks=(choice,))


class _Mapped(Derived[T, U]):
    def __init__(self, parent: Dataset[T], function: Callable[[T], U], spec: Mapping[str, Spec] | None):
        super().__init__(parent, spec, parent.cardinality)
        self._function = function

    def read(self, place: Place = None) -> Iterator[Item[U]]:
        function = self._function
        for value, documents, after, _, tasks in self._parent.read(place):
            yield Item(function(value), documents, after, None, tasks)


class _Batched(Derived[T, list[T]]):
    def __init__(self, parent: Dataset[T], size: int, drop_remainder: bool):
        super().__init__(parent)
        self._size = size
        self._drop_remainder = drop_remainder

    def read(self, place: Place = None) -> Iterator[Item[list[T]]]:
        for group in _groups(self._parent.read(place), self._size):
            if len(group) == self._size or not self._drop_remainder:
                documents = [document for item in group for document in item.documents]
                yield Item([item.value for item in group], documents, group[-1].place)


class _Tokenized(Derived[T, Vector]):
    def __init__(self, parent: Dataset[T], tokenize: Callable[[list[T]], Sequence[np.ndarray]], size: int):
        super().__init__(parent, {"targets": TOKENS})
        self._tokenize = tokenize
        self._size = size

    def read(self, place: Place = None) -> Iterator[Item[Vector]]:
        """Yields the vectors, each of one group of documents.

        Several groups are tokenized in one call, of which a place knows nothing: a call for each would find the
        tokenizer's tables out of the processor's cache. The first call is for one group, since a row waits for it.
        """
        items = self._parent.read(place)
        num_groups = 1
        failure = None
        while failure is None:
            read, failure = _taken(items, num_groups * self._size)
            if not read:
                break
            vectors = self._tokens_of(read)
            groups = [slice(start, start + self._size) for start in range(0, len(read), self._size)]
            made = [_joined(read[group], vectors[group]) for group in groups]
            num_tokens = sum(map(len, vectors))
            read.clear()  # a generator that waits keeps its variables: the texts are not needed any more
            del vectors
            made.reverse()
            while made:
                yield made.pop()
            if num_tokens < self.tokens_at_once // 2:
                num_groups = min(2 * num_groups, MOST_GROUPS)
            elif num_tokens > self.tokens_at_once:
                num_groups = max(num_groups // 2, 1)
        if failure is not None:
            raise failure

    def _tokens_of(self, items: Sequence[Item[T]]) -> Sequence[np.ndarray]:
        """Returns the tokens of each document; InputError, which names it, for one that cannot be tokenized."""
        try:
            return self._tokenize([item.value for item in items])
        except DocumentError as error:
            documents = items[error.number].documents
            name = self.name_of(documents[0]) if documents else None
            if name is None:
                raise
            raise InputError(f"{name} {error.sentence}") from error


class _FlatMapped(Derived[T, U]):
    """Gives the parts of an element one by one: a place has that before the element, and how many were given."""

    def __init__(
        self, parent: Dataset[T], opened: Callable[[Item[T], int], Sequence[Item[U]]], spec: Mapping[str, Spec] | None
    ):
        super().__init__(parent, spec)
        self._opened = opened

    def read(self, place: Place = None) -> Iterator[Item[U]]:
        begun = place or {"before": None, "number": 0, "given": 0}
        before = begun["before"]
        number = begun["number"]
        given = begun["given"]
        for item in self._parent.read(before):
            parts = self._opened(item, number)
            after = item.place
            del item  # its parts are enough, as long as they are given
            yield from _after(before, after, number, parts, given)
            before = after
            number += 1
            given = 0


class _MappedInGroups(Derived[T, U]):
    def __init__(
        self,
        parent: Dataset[T],
        size: int,
        function: Callable[[list[T], int], Sequence[U]],
        spec: Mapping[str, Spec] | None,
    ):
        super().__init__(parent, spec)
        self._size = size
        self._function = function

    def read(self, place: Place = None) -> Iterator[Item[U]]:
        begun = place or {"before": None, "number": 0, "given": 0}
        before = begun["before"]
        number = begun["number"]
        given = begun["given"]
        for group in _groups(self._parent.read(before), self._size):
            values = self._function([item.value for item in group], number)
            parts = [
                Item(value, item.documents, None, None, item.tasks) for value, item in zip(values, group, strict=True)
            ]
            yield from _after(before, group[-1].place, number, parts, given)
            before = group[-1].place
            number += 1
            given = 0


class _Blocks(Derived[Any, Vector]):
    def __init__(self, parent: Dataset[Any], size: int):
        super().__init__(parent, {"targets": TOKENS})
        self._size = size

    def read(self, place: Place = None) -> Iterator[Item[Vector]]:
        """Yields the blocks; a place has that before the vector in which the next one begins, and the tokens used."""
        begun = place or {"before": None, "used": 0}
        before = begun["before"]
        start = begun["used"]
        parts: list[np.ndarray] = []
        documents: list[Document] = []
        ends: list[np.ndarray] = []
        filled = 0  # tokens of the block
        for item in self._parent.read(before):
            vector = item.value["targets"]
            ends_here = _ends_of(item)
            while start < len(vector):
                stop = min(start + self._size - filled, len(vector))
                (of_part,) = _documents_of_parts(ends_here, [stop], start)
                parts.append(vector[start:stop])
                documents += item.documents[of_part]
                ends.append(np.minimum(ends_here[of_part], stop) - start + filled)
                filled += stop - start
                start = stop
                if filled == self._size:
                    is_used_up = stop == len(vector)
                    after = {"before": item.place if is_used_up else before, "used": 0 if is_used_up else stop}
                    yield Item({"targets": np.concatenate(parts)}, documents, after, np.concatenate(ends))
                    parts = []
                    documents = []
                    ends = []
                    filled = 0
            before = item.place
            start = 0
        if filled:
            after = {"before": before, "used": 0}
            yield Item({"targets": np.concatenate(parts)}, documents, after, np.concatenate(ends))


class _Shuffled(Derived[T, T]):
    """Gives window after window, each in random order.

    A row of the following window is read for each that is given, so there are as many rows in memory as in one window,
    and none is waited for after the first. A place has that before the window: its rows are made again.
    """

    def __init__(self, parent: Dataset[T], size: int, draws: Draws):
        super().__init__(parent)
        self._size = size
        self._draws = draws

    def read(self, place: Place = None) -> Iterator[Item[T]]:
        begun = place or {"before": None, "window": 0, "given": 0}
        before = begun["before"]
        number = begun["window"]
        given = begun["given"]
        items = self._parent.read(before)
        window = list(itertools.islice(items, self._size))
        while window:
            after = window[-1].place  # the place before the following window
            order = self._draws.words(Purpose.SHUFFLE, number).permutation(len(window))
            waiting = [window[chosen] for chosen in order[given:].tolist()]
            waiting.reverse()
            window = list(itertools.islice(items, given))  # the following one
            while waiting:
                item = waiting.pop()
                window += itertools.islice(items, 1)
                given += 1
                place = {"before": before, "window": number, "given": given}
                if not waiting:
                    place = {"before": after, "window": number + 1, "given": 0}
                yield item._replace(place=place)
            before = after
            number += 1
            given = 0


def _groups(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yields lists of `size` items; the last one may be shorter."""
    while group := list(itertools.islice(items, size)):
        yield group


def _taken(items: Iterator[T], count: int) -> tuple[list[T], Exception | None]:
    """Returns the next `count` items; fewer if they end or fail, and then the error, to be raised after them."""
    taken: list[T] = []
    try:
        for item in itertools.islice(items, count):
            taken.append(item)  # by list() they would be lost with the error
    except Exception as error:  # noqa: BLE001  raised by the caller
        return taken, error
    return taken, None


def _joined(group: Sequence[Item[Any]], vectors: Sequence[np.ndarray]) -> Item[Vector]:
    """Returns some documents' tokens in a row; `vectors` has the tokens of each."""
    documents: list[Document] = []
    sizes = []
    for item, vector in zip(group, vectors, strict=True):
        if len(vector):  # a document without tokens is in no row
            documents += item.documents
            sizes.append(len(vector))
    ends = np.cumsum(sizes, dtype=np.int64)
    return Item({"targets": np.concatenate(vectors)}, documents, group[-1].place, ends)


def _of_same_documents(item: Item[Any], values: Sequence[U]) -> list[Item[U]]:
    return [Item(value, item.documents, None, None, item.tasks) for value in values]


def _after(before: Place, after: Place, number: int, parts: Sequence[Item[U]], given: int) -> Iterator[Item[U]]:
    """Yields the parts of an element from the first one on that was not given, each with the place after it.

    `before` and `after` are the places before and after the element.
    """
    last = len(parts) - 1
    for count in range(given, len(parts)):
        place = {"before": before, "number": number, "given": count + 1}
        if count == last:
            place = {"before": after, "number": number + 1, "given": 0}
        value, documents, _, ends, tasks = parts[count]
        yield Item(value, documents, place, ends, tasks)


def _ends_of(item: Item[Any]) -> np.ndarray:
    """Returns where each document ends in a vector; where that is not known, all may be anywhere in it."""
    if item.ends is not None and len(item.ends) == len(item.documents):
        return item.ends
    return np.full(len(item.documents), len(item.value["targets"]), np.int64)


def _documents_of_parts(ends: np.ndarray, stops: Sequence[int], start: int = 0) -> list[slice]:
    """Returns which documents have tokens in each part of a vector, from `start` to before each of `stops`."""
    edges = np.array([start, *stops])
    firsts = np.searchsorted(ends, edges[:-1], side="right")
    lasts = np.searchsorted(ends, edges[1:] - 1, side="right")
    if len(ends):
        # Documents without a known end all end together.
        lasts = np.searchsorted(ends, ends[np.minimum(lasts, len(ends) - 1)], side="right") - 1
    return [slice(first, last + 1) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]


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
