"""Data sets in Python give what tf.data gives, can be read from each place, and name the documents of each element."""

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.data import packing
from limba.data.bridge import datasets
from limba.data.dataset import TEXT, TOKENS, Dataset, Document, Elements, Item, Mixed
from limba.data.draws import Draws
from limba.data.objectives import causal_lm, masked_lm, prefix_lm, span_corruption, tokenize_documents, ul2
from limba.data.objectives.choice import examples_of
from limba.data.packing import batched, pack
from limba.data.registry import Feature
from limba.data.sources import FileSource, readers
from limba.data.sources.order import Reading
from limba.data.vocabulary.load import load_vocabulary
from tests.data.text_files import write

FEATURES = {name: seqio.Feature(seqio.ByteVocabulary(200), dtype=tf.int32) for name in ("inputs", "targets")}
LENGTHS = {"inputs": 64, "targets": 64}
NUMBER = 60  # of elements, after each of which a data set is read again


class Named(Elements):
    """Elements each of which is a document: its row is its number."""

    def read(self, place: Any = None) -> Any:
        for item in super().read(place):
            yield item._replace(documents=[Document(0, 0, 0, item.place - 1, 0, item.place / len(self._elements))])


def texts(count: int = 400) -> Elements:
    random = np.random.RandomState(0)
    return Named([{"text": b"w" * random.randint(0, 60)} for _ in range(count)], {"text": TEXT})


def tokens(count: int = 400) -> Elements:
    """Vectors of 1 to 19 tokens, each of which is the number of its document."""
    random = np.random.RandomState(1)
    made = [np.full(random.randint(1, 20), n + 1, np.int32) for n in range(count)]
    return Named([{"targets": vector, "name": str(n).encode()} for n, vector in enumerate(made)],
                 {"targets": TOKENS, "name": TEXT})  # fmt: skip


def of_objective(step: Callable[..., Any], **choices: Any) -> Dataset:
    return step(tokenize_documents(texts(4_000), FEATURES, **choices), LENGTHS, FEATURES)


def foreign(dataset: Any) -> Any:
    return dataset.map(lambda example: {"text": tf.strings.join([example["text"], "."])}, num_parallel_calls=4)


def of_tensorflow(step: Callable[..., Any] = tokenize_documents) -> Dataset:
    task = seqio.Task("foreign", None, FEATURES, [foreign, step, span_corruption])
    return examples_of(task, LENGTHS, texts(4_000), Draws(seed=3))


def tokenized_in_tensorflow(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A user's step that calls one of these: tf.data has no checkpoint of it."""
    return tokenize_documents(dataset, FEATURES)


def halves(tokens: np.ndarray, ends: Any, number: int) -> list[tuple[dict[str, np.ndarray], int]]:
    middle = len(tokens) // 2
    return [({"targets": tokens[:middle]}, middle), ({"targets": tokens[middle:]}, len(tokens))]


CASES: dict[str, Callable[[], Dataset]] = {
    "flat_map": lambda: tokens().flat_map(lambda element, number: [element] * (number % 4)),
    "batch": lambda: tokens().batch(3),
    "map_groups": lambda: tokens().map_groups(
        7, lambda group, number: [{**element, "group": number} for element in group]
    ),
    "blocks": lambda: tokens().blocks(37),
    "cut": lambda: tokens().blocks(37).cut(halves, {"targets": TOKENS}),
    "shuffle": lambda: tokens().shuffle(16, Draws(9)),
    "shuffle of flat_map": lambda: tokens(90).flat_map(lambda element, number: [element] * 3).shuffle(40, Draws(1)),
    "mixed": lambda: Mixed([tokens(30), tokens(70), tokens()], [0.2, 0.3, 0.5], Draws(4)),
    "pack": lambda: pack(tokens(), {"targets": 24}),
    "pack of mixed": lambda: pack(Mixed([tokens(900), tokens(700)], [0.3, 0.7], Draws(4)), {"targets": 64}),
    "padded": lambda: batched(tokens(), {"targets": 12}, 4, whole=False, packed=False),
    "span_corruption": lambda: of_objective(span_corruption),
    "ul2": lambda: of_objective(ul2),
    "prefix_lm": lambda: of_objective(prefix_lm),
    "causal_lm": lambda: of_objective(causal_lm, append_eos=True),
    "of TensorFlow": of_tensorflow,
    "of Python in TensorFlow": lambda: of_tensorflow(tokenized_in_tensorflow),
}


def plain(item: Item) -> Any:
    """What is read: the value, and beyond TensorFlow, where they are known about, the documents."""
    as_list = lambda value: value.tolist() if hasattr(value, "tolist") else str(value)
    return json.loads(json.dumps([item.value, item.documents], default=as_list))


@pytest.mark.core
@pytest.mark.parametrize("name", CASES)
def test_each_place_is_read_from(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "CHECKPOINT_SECONDS", 0.0)
    is_foreign = "TensorFlow" in name
    shown = (lambda item: plain(item)[0]) if is_foreign else plain
    items = list(itertools.islice(CASES[name]().read(), NUMBER + 12))
    whole = [shown(item) for item in items]
    assert len(whole) > 20
    for number in range(0, min(NUMBER, len(whole)), 5 if is_foreign else 1):  # TensorFlow takes longer to begin
        place = json.loads(json.dumps(items[number].place))
        following = [shown(item) for item in itertools.islice(CASES[name]().read(place), 12)]
        assert following == whole[number + 1 : number + 13], number


@pytest.mark.core
def test_a_packed_row_is_given_when_its_first_example_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a place is not far before the last example: one that is nearly as long as a row has no room for another."""
    monkeypatch.setattr(packing, "MOST_EXAMPLES", 40)
    made = [{"targets": np.full(23 if number == 0 else 12, number + 1, np.int32)} for number in range(200)]
    rows = list(pack(Named(made, {"targets": TOKENS}), {"targets": 24}).read())
    numbers = [row for row, item in enumerate(rows) if item.value["targets"][0] == 1]
    assert numbers == [5]  # 15 rows of two examples each are full by then, and 5 were given
    assert all(item.place["given"] - item.place["first"] <= 40 for item in rows)
    packed_tokens = np.concatenate([item.value["targets"] for item in rows])
    assert sorted(packed_tokens[packed_tokens > 0]) == sorted(np.concatenate([example["targets"] for example in made]))


@pytest.mark.core
def test_a_packed_row_that_goes_for_its_age_as_another_one_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """One example then gives two rows: from the place of the first one, the second one is the next."""
    monkeypatch.setattr(packing, "MOST_EXAMPLES", 40)
    spec = {"inputs": TOKENS, "targets": TOKENS}
    random = np.random.default_rng(7)
    made = []
    for number in range(100):
        sizes = (int(random.integers(1, 30)), int(random.integers(1, 12)))
        if number % 37 == 0:
            sizes = (47, 1)  # no other example has room beside it, and others are fuller on both sides together
        pair = zip(spec, sizes, strict=True)
        made.append({name: np.full(size, number + 1, np.int32) for name, size in pair})

    def rows_from(place: Any) -> list[Item]:
        return list(pack(Named(made, spec), {"inputs": 48, "targets": 48}).read(place))

    items = rows_from(None)
    whole = [plain(item) for item in items]
    ages = [item.place["given"] for item in items]
    assert any(one == other < len(made) for one, other in itertools.pairwise(ages))  # two rows of one example
    for number, item in enumerate(items):
        assert [plain(row) for row in rows_from(item.place)] == whole[number + 1 :], number


@pytest.mark.core
@pytest.mark.parametrize("name", ["blocks", "cut", "flat_map", "map_groups", "shuffle", "mixed", "pack", "padded"])
def test_the_documents_of_an_element_are_those_of_its_tokens(name: str) -> None:
    for item in CASES[name]().read():
        values = item.value if isinstance(item.value, Mapping) else {}
        held = {int(token) - 1 for token in np.unique(values["targets"]) if token > 0}
        assert [document.row for document in item.documents] == sorted(
            (document.row for document in item.documents), key=[d.row for d in item.documents].index
        )
        assert {document.row for document in item.documents} == held


@pytest.mark.core
@pytest.mark.parametrize("objective", [span_corruption, ul2, prefix_lm, causal_lm, masked_lm])
def test_documents_are_those_whose_bytes_a_row_has(
    objective: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents of one letter each; the source finds their text again, in chunks that are read in any order."""
    monkeypatch.setattr(readers, "CHUNK_BYTES", 100)
    letters = [chr(ord("a") + number) for number in range(26)]
    lines = [letters[number % 26] * (3 + 7 * number % 40) for number in range(300)]
    source = FileSource(str(write(tmp_path / "a.txt", lines)), validation_percent=0.0)
    documents = source.dataset(Reading("train", 0, 1, 3, True, None, 0))
    lengths = {"inputs": 64} if objective not in (causal_lm, masked_lm) else {"targets": 64}
    choices = {"mask_share": 1.0} if objective is masked_lm else {}
    features = {name: Feature(load_vocabulary("byte", 200)) for name in FEATURES}
    rows = objective(tokenize_documents(documents, features), lengths, features, **choices)
    for item in itertools.islice(rows.read(), 60):
        held = set()
        for values in item.value.values():
            held |= {chr(token - 3) for token in (values % packing.CAUSAL).tolist() if token > 3} & set(letters)
        named = {source.document("train", *document[1:4])[2].decode()[0] for document in item.documents}
        assert named == held
        numbers = [source.document("train", *document[1:4])[1] for document in item.documents]
        assert all(lines[number][0] in held for number in numbers)


@pytest.mark.core
@pytest.mark.parametrize(("size", "count"), [(1, 9), (7, 3), (7, 100), (50, 400), (50, 403)])
def test_a_shuffle_gives_windows_in_random_order(size: int, count: int) -> None:
    """Each element once, a window's before the next window's, and other orders in other windows."""
    elements = [{"n": n} for n in range(count)]
    order = [element["n"] for element in Elements(elements, {}).shuffle(size, Draws(3))]
    windows = [order[start : start + size] for start in range(0, count, size)]
    assert [sorted(window) for window in windows] == [
        list(range(start, min(start + size, count))) for start in range(0, count, size)
    ]
    if size == 50:
        orders = {tuple(number % size for number in window) for window in windows}
        assert len(orders) == len(windows) and windows[0] != sorted(windows[0])
        assert order != [element["n"] for element in Elements(elements, {}).shuffle(size, Draws(4))]


@pytest.mark.core
def test_a_shuffle_reads_a_window_and_then_one_element_for_each() -> None:
    read = itertools.count()
    counted = Elements([{"n": n} for n in range(100)], {}).map(lambda element: {"n": next(read)})
    items = counted.shuffle(20, Draws(3)).read()
    for number in range(70):
        next(items)
        assert next(read) == 20 + number + 1 + number  # with the numbers that this test has taken itself
    del items


@pytest.mark.core
def test_documents_that_are_tokenized_at_once_give_the_same_vectors_and_places() -> None:
    calls: list[int] = []

    def tokenize(documents: list[dict[str, bytes]]) -> list[np.ndarray]:
        calls.append(len(documents))
        return [np.frombuffer(document["text"], np.uint8).astype(np.int32) for document in documents]

    def vectors(tokens_at_once: int) -> Dataset:
        documents = texts(200)  # of 30 tokens each, about
        documents.tokens_at_once = tokens_at_once
        return documents.tokens(tokenize, 4)

    whole = list(vectors(0).read())
    assert calls == [4] * 50
    calls.clear()
    at_once = list(vectors(1_000).read())
    # Twice as many until they are half of the tokens that are wanted, and fewer after a call that makes more.
    assert calls[:4] == [4, 8, 16, 32] and max(calls) == 32 and sum(calls) == 200
    assert [plain(item) for item in at_once] == [plain(item) for item in whole]
    assert [item.place for item in at_once] == [item.place for item in whole]
    for number in (0, 1, 4, 30):
        following = [plain(item) for item in vectors(1_000).read(at_once[number].place)]
        assert following == [plain(item) for item in whole[number + 1 :]]


@pytest.mark.core
def test_what_was_read_before_a_failure_is_given_before_its_error() -> None:
    class Failing(Elements):
        def read(self, place: Any = None) -> Any:
            yield from itertools.islice(super().read(place), 41)
            raise OSError("the disk is gone")

    documents = Failing([{"text": b"abc"}] * 50, {"text": TEXT})
    documents.tokens_at_once = 1_000
    tokenized = documents.tokens(lambda texts: [np.ones(3, np.int32) for _ in texts], 4).read()
    num_tokens = 0
    with pytest.raises(OSError, match="the disk is gone"):
        for item in tokenized:
            num_tokens += len(item.value["targets"])
    assert num_tokens == 41 * 3


@pytest.mark.core
def test_a_mixture_gives_all_of_its_parts() -> None:
    """As many of each as it has, in order; its choices are by the rates as long as none has ended."""
    sizes = (3, 0, 4000, 800)
    rates = (0.4, 0.1, 0.3, 0.2)
    parts = [Elements([(number, n) for n in range(size)], {}) for number, size in enumerate(sizes)]
    items = list(Mixed(parts, rates, Draws(11)).read())
    for number, size in enumerate(sizes):
        assert [item.value[1] for item in items if item.value[0] == number] == list(range(size))
    assert all(item.tasks == (item.value[0],) for item in items)
    first = [item.value[0] for item in items[10:1500]]
    assert first.count(2) / len(first) == pytest.approx(0.6, abs=0.04)  # of those two that go on


@pytest.mark.core
def test_each_part_of_a_mixture_goes_on_at_its_own_place_with_other_rates() -> None:
    """Also where other parts have no rate now: no part is read on from the place of another one."""
    parts = [Elements([(number, n) for n in range(60)], {}) for number in range(3)]
    items = list(itertools.islice(Mixed(parts, [0.0, 0.5, 0.5], Draws(11)).read(), 40))
    following = [item.value for item in Mixed(parts, [0.4, 0.0, 0.6], Draws(11)).read(items[-1].place)]
    read = sum(item.value[0] == 2 for item in items)
    assert [n for number, n in following if number == 0] == list(range(60))
    assert [n for number, n in following if number == 2] == list(range(read, 60))


def test_a_position_that_tensorflow_cannot_read_is_read_again(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(datasets, "CHECKPOINT_SECONDS", 0.0)
    items = list(itertools.islice(of_tensorflow().read(), 60))
    place = json.loads(json.dumps(items[49].place))
    files = place_of_tensorflow(place)["kept"]["files"]
    for name in files:
        files[name] = files[name][:12]
    values = [plain(item)[0] for item in itertools.islice(of_tensorflow().read(place), 9)]
    assert "is read again" in caplog.text
    assert values == [plain(item)[0] for item in items[50:59]]


def place_of_tensorflow(place: Any) -> Any:
    """Returns the part of a place that is of a data set of TensorFlow."""
    while "kept" not in place:
        place = place["before"]
    return place
