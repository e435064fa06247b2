"""Data sets in Python give what tf.data gives, and go on from any place as if they had not stopped."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.data.bridge import datasets
from limba.data.dataset import TEXT, TOKENS, Dataset, Elements, Mixed
from limba.data.objectives import causal_lm, prefix_lm, span_corruption, tokenize_documents, ul2
from limba.data.objectives.choice import examples_of
from limba.data.packing import batched, pack
from limba.data.stream.positions import _plain, _whole

FEATURES = {name: seqio.Feature(seqio.ByteVocabulary(200), dtype=tf.int32) for name in ("inputs", "targets")}
LENGTHS = {"inputs": 64, "targets": 64}
NUMBER = 60  # of elements, after each of which a data set is saved


def texts(count: int = 400) -> Elements:
    random = np.random.RandomState(0)
    return Elements([{"text": b"w" * random.randint(0, 60)} for _ in range(count)], {"text": TEXT}, next_seed=5)


def tokens(count: int = 400) -> Elements:
    random = np.random.RandomState(1)
    made = [random.randint(1, 99, random.randint(1, 20)).astype(np.int32) for _ in range(count)]
    return Elements([{"targets": each, "name": str(n).encode()} for n, each in enumerate(made)],
                    {"targets": TOKENS, "name": TEXT})  # fmt: skip


def of_objective(step: Callable[..., Any], **choices: Any) -> Dataset:
    return step(tokenize_documents(texts(4_000), FEATURES, **choices), LENGTHS, FEATURES)


def foreign(dataset: Any) -> Any:
    return dataset.map(lambda example: {"text": tf.strings.join([example["text"], "."])}, num_parallel_calls=4)


def of_tensorflow(step: Callable[..., Any] = tokenize_documents) -> Dataset:
    task = seqio.Task("foreign", None, FEATURES, [foreign, step, span_corruption])
    return examples_of(task, LENGTHS, texts(4_000), seed=3)


def tokenized_in_tensorflow(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A user's step that calls one of these: tf.data has no checkpoint of it."""
    return tokenize_documents(dataset, FEATURES)


CASES: dict[str, Callable[[], Dataset]] = {
    "flat_map": lambda: tokens().flat_map(lambda element, number: [element] * (number % 4)),
    "batch": lambda: tokens().batch(3),
    "rebatch": lambda: tokens().map(lambda element: element["targets"]).rebatch(37),
    "shuffle": lambda: tokens().shuffle(16, 9),
    "shuffle of flat_map": lambda: tokens(90).flat_map(lambda element, number: [element] * 3).shuffle(40, 1),
    "mixed": lambda: Mixed([tokens(30), tokens(70), tokens()], [0.2, 0.3, 0.5], 4),
    "pack": lambda: pack(tokens(), {"targets": 24}),
    "padded": lambda: batched(tokens(), {"targets": 12}, 4, whole=False, packed=False),
    "span_corruption": lambda: of_objective(span_corruption),
    "ul2": lambda: of_objective(ul2),
    "prefix_lm": lambda: of_objective(prefix_lm),
    "causal_lm": lambda: of_objective(causal_lm, append_eos=True),
    "of TensorFlow": of_tensorflow,
    "of Python in TensorFlow": lambda: of_tensorflow(tokenized_in_tensorflow),
}


def plain(element: Any) -> Any:
    return json.loads(json.dumps(element, default=lambda each: each.tolist() if hasattr(each, "tolist") else str(each)))


@pytest.mark.core
@pytest.mark.parametrize("name", CASES)
def test_each_place_is_restored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "CHECKPOINT_SECONDS", 0.0)
    whole = [plain(element) for element, _ in zip(CASES[name](), range(NUMBER + 12), strict=False)]
    assert len(whole) > 20
    dataset, apart = CASES[name](), 5 if "TensorFlow" in name else 1  # which takes longer to begin
    for place in range(min(NUMBER, len(whole))):
        if place % apart:
            assert plain(next(dataset)) == whole[place]
            continue
        arrays: list[np.ndarray] = []
        kept = json.loads(json.dumps(_plain(dataset.state(), arrays)))
        again = CASES[name]()
        again.restore(_whole(kept, {str(number): array for number, array in enumerate(arrays)}))
        following = [plain(element) for element, _ in zip(again, range(12), strict=False)]
        assert following == whole[place : place + 12], place
        assert plain(next(dataset)) == whole[place]


@pytest.mark.core
@pytest.mark.parametrize(("size", "count"), [(1, 9), (7, 3), (7, 100), (50, 400)])
def test_a_shuffle_is_tensorflows(size: int, count: int) -> None:
    for seed in (0, 3, 2**31 - 2):
        found = [element["n"] for element in Elements([{"n": n} for n in range(count)], {}).shuffle(size, seed)]
        assert found == list(tf.data.Dataset.range(count).shuffle(size, seed=seed).as_numpy_iterator())


@pytest.mark.core
def test_a_mixture_whose_parts_end_is_tensorflows() -> None:
    sizes, rates = (3, 0, 40, 8), (0.4, 0.1, 0.3, 0.2)
    parts = [Elements([(number, n) for n in range(size)], {}) for number, size in enumerate(sizes)]
    theirs = [
        tf.data.Dataset.range(size).map(lambda n, number=number: (number, n)) for number, size in enumerate(sizes)
    ]
    mixed = tf.data.Dataset.sample_from_datasets(theirs, list(rates), seed=11)
    assert list(Mixed(parts, rates, 11)) == [tuple(map(int, each)) for each in mixed.as_numpy_iterator()]


def test_a_position_that_tensorflow_cannot_read_is_read_again(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(datasets, "CHECKPOINT_SECONDS", 0.0)
    dataset, again = of_tensorflow(), of_tensorflow()
    for _ in range(50):
        next(dataset)
    damaged: list[np.ndarray] = []
    state = _plain(dataset.state(), damaged)
    assert damaged
    again.restore(_whole(state, {str(number): array[:10] for number, array in enumerate(damaged)}))
    assert "is read again" in caplog.text
    assert [plain(next(again)) for _ in range(9)] == [plain(next(dataset)) for _ in range(9)]
