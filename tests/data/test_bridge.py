"""What TensorFlow reads of these data sets: again, at several places, and while its process ends."""

import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.data.bridge import Numbered, OfTensorflow, datasets, tokens
from limba.data.bridge.graph import SharedGraph
from limba.data.bridge.seqio_objects import vocabulary_as_seqio
from limba.data.dataset import TEXT, TOKENS, Dataset, Elements, Spec
from limba.data.draws import Draws
from limba.data.objectives.choice import examples_of
from limba.data.sources import FileSource
from limba.data.vocabulary.load import load_vocabulary
from tests.shipped import ROOT

# Reads one batch of a task as T5X's users register it, twice, and ends while TensorFlow still reads ahead.
PROGRAM = """
import sys
import seqio
from limba.config import DataConfig
from limba.data.objectives import derive_lengths
from limba.data.sources import FileSource
from limba.data.vocabulary.load import load_vocabulary
from limba.data.stream.stages import open_stream
from limba.data.tasks import resolve_task
from t5.data import preprocessors
features = {name: seqio.Feature(seqio.ByteVocabulary(125)) for name in ("inputs", "targets")}
steps = [
    lambda dataset: dataset.map(lambda example: {"inputs": "", "targets": example["text"]}),
    seqio.preprocessors.tokenize,
    preprocessors.span_corruption,
    seqio.preprocessors.append_eos_after_trim,
]
source = FileSource(sys.argv[1], validation_percent=0.0)
seqio.TaskRegistry.add("theirs", source=source, preprocessors=steps, output_features=features)
config = DataConfig("theirs", {"inputs": 64, "targets": 32}, batch_size=16, num_data_shards=16, validation_percent=0.0)
task = resolve_task(config)
lengths = derive_lengths(task, config.task_feature_lengths)
streams = [open_stream(task, lengths, config, range(16)) for _ in range(2)]
for stream in streams:
    next(stream)
print("read")
"""


@pytest.mark.slow
def test_a_process_ends_while_tensorflow_reads_ahead(tmp_path: Path) -> None:
    """It hung each time until it closed its iterators: TensorFlow's threads wait for the interpreter that ends."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{number} {'word ' * 20}\n" for number in range(3000)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(corpus)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr[-3000:]


@pytest.mark.parametrize("kind", [TEXT, TOKENS])
def test_elements_are_read_again_and_at_two_places(kind: Spec) -> None:
    values = [b"%d" % n if kind == TEXT else np.full(n % 5, n, np.int32) for n in range(150)]
    dataset = Numbered(Elements([{"text": value} for value in values], {"text": kind})).in_tensorflow()

    def plain(elements: Iterable) -> list:
        return [element["text"] if kind == TEXT else element["text"].tolist() for element in elements]

    expected = plain({"text": value} for value in values)
    assert plain(dataset.as_numpy_iterator()) == expected
    first = dataset.as_numpy_iterator()
    second = dataset.skip(100).as_numpy_iterator()
    pairs = [(next(first), next(second)) for _ in range(50)]
    assert plain(one for one, _ in pairs) == expected[:50] and plain(other for _, other in pairs) == expected[100:]


NUM_TEXTS = 1000


def _pairs(first: tf.data.Dataset, second: tf.data.Dataset) -> tf.data.Dataset:
    def joined(one: Mapping[str, tf.Tensor], other: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"targets": tf.concat([one["targets"], other["targets"]], 0)}

    return tf.data.Dataset.zip((first, second)).map(joined)


def _two_kinds(dataset: tf.data.Dataset) -> tf.data.Dataset:
    even = dataset.filter(lambda example: example["targets"][0] % 2 == 0)
    odd = dataset.filter(lambda example: example["targets"][0] % 2 == 1)
    return tf.data.Dataset.sample_from_datasets([even, odd], [0.3, 0.7], seed=5)


def _windows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Each of the first texts followed by the first three again: many more readings than are kept open."""
    return dataset.take(100).flat_map(
        lambda example: tf.data.Dataset.from_tensors(example).concatenate(dataset.take(3))
    )


# Preprocessors of pairs, negatives and mixtures, which read their data set at two places; and the rows of one epoch.
TWO_PLACES: dict[str, tuple[Callable[[tf.data.Dataset], tf.data.Dataset], int]] = {
    "repeat": (lambda ds: ds.repeat(2), 2 * NUM_TEXTS),
    "concatenate": (lambda ds: ds.concatenate(ds), 2 * NUM_TEXTS),
    "next to a later one": (lambda ds: _pairs(ds, ds.skip(500)), 500),
    "negatives": (lambda ds: _pairs(ds, ds.shuffle(800, seed=3)), NUM_TEXTS),
    "two filters": (_two_kinds, NUM_TEXTS),
    "windows": (_windows, 400),
}


def _task_of(tmp_path: Path, step: Callable) -> seqio.Task:
    """Returns a task of seqio over a source of ours: numbers are its texts, and their digits its tokens."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{number}\n" for number in range(NUM_TEXTS)))

    def tokenized(dataset: tf.data.Dataset) -> tf.data.Dataset:
        digits = lambda text: tf.strings.to_number(tf.strings.bytes_split(text), tf.int32) + 3
        return dataset.map(lambda example: {"targets": digits(example["text"])})

    features = {"targets": seqio.Feature(seqio.ByteVocabulary(), add_eos=False)}
    source = FileSource(str(corpus), validation_percent=0.0)
    return seqio.Task("two_places", source=source, preprocessors=[tokenized, step], output_features=features)


def _rows_of(task: seqio.Task, num_epochs: int | None) -> Dataset:
    """Returns the examples as a run's shard reads them, in the order of the file."""
    documents = task.source.documents("train", shuffle=False, num_epochs=num_epochs)
    return examples_of(task, {"targets": 16}, documents, Draws(seed=0))


def _targets(examples: Iterable[Mapping[str, np.ndarray]]) -> list[list[int]]:
    return [example["targets"].tolist() for example in examples]


@pytest.mark.parametrize("name", TWO_PLACES)
@pytest.mark.slow
def test_a_preprocessor_reads_its_data_set_at_two_places(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tf.data reads a list of the same texts: once, in an endless run, and after a resume at any place."""
    step, num_rows = TWO_PLACES[name]
    task = _task_of(tmp_path, step)
    texts = tf.data.Dataset.from_tensor_slices({"text": [str(number) for number in range(NUM_TEXTS)]})
    in_order = lambda dataset: task.preprocess_postcache(dataset, {"targets": 16}, seed=0)
    expected = _targets(in_order(texts).as_numpy_iterator())
    assert len(expected) == num_rows
    assert _targets(_rows_of(task, 1)) == expected
    # An endless run: for these preprocessors it is enough to see what comes after the first epoch.
    count = num_rows + 300 if name != "windows" else num_rows
    endless = _targets(in_order(texts.repeat()).take(count).as_numpy_iterator())
    monkeypatch.setattr(datasets, "CHECKPOINT_SECONDS", 0.0)
    running = _rows_of(task, None).read()
    items = list(itertools.islice(running, count - 250))
    assert _targets(item.value for item in items) == endless[: count - 250]
    place = json.loads(json.dumps(items[-1].place))
    assert place["kept"] is not None
    resumed = _rows_of(task, None).read(place)
    assert _targets(item.value for item in itertools.islice(resumed, 250)) == endless[count - 250 :]
    # The one that was saved moves on as if nothing had happened.
    assert _targets(item.value for item in itertools.islice(running, 250)) == endless[count - 250 :]


# Documents as users' sources give them: empty, with bytes that are not UTF-8 or NUL, and longer than a block of them.
DOCUMENTS = [
    "",
    "ășț",
    "a\x00b",
    "  two  spaces ",
    *(f"text {number} " + "word " * (number % 9) for number in range(70)),
]


@pytest.mark.parametrize(
    "step",
    [
        seqio.preprocessors.tokenize,
        functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
        functools.partial(seqio.preprocessors.tokenize, with_eos=True),
        seqio.preprocessors.tokenize_and_append_eos,
    ],
    ids=["plain", "no copy", "ends", "append_eos"],
)
@pytest.mark.slow
def test_our_encoder_gives_what_seqio_s_tokenization_gives(
    step: Callable, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(of_vocabulary: object) -> Callable:
        encode = encoder_of(of_vocabulary)
        return lambda texts: calls.append(len(texts)) or encode(texts)

    encoder_of = tokens.encoder
    monkeypatch.setattr(tokens, "encoder", counted)
    texts = [text.encode() for text in DOCUMENTS] + [b"\xff\xfecut \xc8"]
    examples = {
        "inputs": texts[::-1],
        "targets": texts,
        "number": np.arange(len(texts)),
        "id": np.ones([len(texts), 2]),
    }
    dataset = tf.data.Dataset.from_tensor_slices(examples)
    pieces = vocabulary_as_seqio(load_vocabulary(str(vocabulary)))
    features = {"inputs": seqio.Feature(pieces, add_eos=False), "targets": seqio.Feature(pieces)}
    expected = step(dataset, output_features=features)
    ours = tokens.by_our_encoder(step)(dataset, output_features=features)
    assert ours.element_spec == expected.element_spec and int(ours.cardinality()) == len(texts)
    assert_same_examples(ours.as_numpy_iterator(), expected.as_numpy_iterator())
    assert len(calls) == 2 * -(-len(texts) // tokens.DOCUMENTS_A_BLOCK) and sum(calls) == 2 * len(texts)


def assert_same_examples(ours: Iterable, expected: Iterable) -> None:
    for one, other in zip(ours, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert np.asarray(value).dtype == np.asarray(other[name]).dtype
            np.testing.assert_array_equal(value, other[name])


def test_what_our_encoder_cannot_do_is_left_to_seqio(vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of several lengths, several texts in one, bytes, and vocabularies that are not ours."""
    monkeypatch.setattr(tokens, "encoder", lambda _: pytest.fail("our encoder was asked for"))
    pieces = vocabulary_as_seqio(load_vocabulary(str(vocabulary)))
    words = ["one", "two words"]
    of_lengths = tf.data.Dataset.range(3).map(lambda n: {"targets": "text", "times": tf.range(n)})
    cases = [
        (pieces, of_lengths),
        (pieces, tf.data.Dataset.from_tensors({"targets": words})),
        (seqio.ByteVocabulary(), tf.data.Dataset.from_tensor_slices({"targets": words})),
        (seqio.UnigramVocabulary(words), tf.data.Dataset.from_tensor_slices({"targets": words})),
    ]
    for vocabulary_of_case, dataset in cases:
        features = {"targets": seqio.Feature(vocabulary_of_case)}
        step = seqio.preprocessors.tokenize
        ours = list(tokens.by_our_encoder(step)(dataset, features))
        expected = list(step(dataset, features))
        for one, other in zip(ours, expected, strict=True):
            assert all(tf.reduce_all(one[name] == other[name]) for name in other)


def _of_texts(tmp_path: Path, vocabulary: Path, *steps: Callable) -> seqio.Task:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{number} {'word ' * (number % 9)}\n" for number in range(NUM_TEXTS)))
    pieces = vocabulary_as_seqio(load_vocabulary(str(vocabulary)))
    features = {"targets": seqio.Feature(pieces, add_eos=False)}
    as_targets = lambda dataset: dataset.map(lambda example: {"targets": example["text"]})
    source = FileSource(str(corpus), validation_percent=0.0)
    return seqio.Task("of_texts", source, features, [as_targets, *steps])


def test_a_document_that_fails_and_is_ignored_takes_no_other_along(tmp_path: Path, vocabulary: Path) -> None:
    def failing(dataset: tf.data.Dataset) -> tf.data.Dataset:
        def checked(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            is_bad = tf.strings.regex_full_match(example["targets"], "[0-9]*7 .*")
            with tf.control_dependencies([tf.debugging.assert_equal(is_bad, False)]):
                return {"targets": tf.identity(example["targets"])}

        return dataset.map(checked)

    steps = [failing, seqio.preprocessors.tokenize, lambda dataset: dataset.ignore_errors()]
    task = _of_texts(tmp_path, vocabulary, *steps)
    numbers = [example["targets_pretokenized"].split()[0] for example in _rows_of(task, 1)]
    assert numbers == [b"%d" % number for number in range(NUM_TEXTS) if number % 10 != 7]


@pytest.mark.slow
def test_the_shards_of_files_share_one_graph(tmp_path: Path, vocabulary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard's tracing took a second, and so the first batch of sixteen a quarter of a minute."""
    calls = []

    def counted(dataset: tf.data.Dataset) -> tf.data.Dataset:
        calls.append(1)
        return dataset

    @seqio.map_over_dataset(num_seeds=1)
    def noised(example: Mapping[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"targets": example["targets"] + tf.random.stateless_uniform([], seed, 0, 1000, tf.int32)}

    task = _of_texts(tmp_path, vocabulary, seqio.preprocessors.tokenize, noised, counted)

    def rows() -> list[list[list[int]]]:
        documents = [task.source.documents("train", shard=shard, num_shards=4, num_epochs=1) for shard in range(4)]
        shards = [iter(examples_of(task, {"targets": 16}, part, Draws(seed))) for seed, part in enumerate(documents)]
        # Side by side, as threads read them.
        return [[next(shard)["targets"].tolist() for shard in shards] for _ in range(100)]

    shared = rows()
    assert len(calls) == 1
    monkeypatch.setattr(SharedGraph, "followed", lambda *_: None)
    assert rows() == shared
    assert len(calls) == 1 + 4


def test_a_step_in_python_keeps_what_is_of_one_shard(tmp_path: Path, vocabulary: Path) -> None:
    def numbered(dataset: tf.data.Dataset) -> tf.data.Dataset:
        numbers = itertools.count()  # of each shard
        count = lambda targets: np.concatenate([[next(numbers)], targets]).astype(np.int32)
        step = lambda example: tf.ensure_shape(tf.numpy_function(count, [example["targets"]], tf.int32), [None])
        return dataset.map(lambda example: {"targets": step(example)})

    task = _of_texts(tmp_path, vocabulary, seqio.preprocessors.tokenize, numbered)
    for shard in range(2):
        documents = task.source.documents("train", shard=shard, num_shards=2, num_epochs=1)
        examples = itertools.islice(examples_of(task, {"targets": 16}, documents, Draws(seed=0)), 20)
        assert [example["targets"][0] for example in examples] == list(range(20))


@pytest.mark.slow
def test_examples_leave_as_they_are_and_from_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts, vectors, matrices, numbers: with their dtypes and shapes, empty ones too, after a resume at any place."""
    monkeypatch.setattr(datasets, "CHECKPOINT_SECONDS", 0.0)
    of_numbers = Elements([{"text": b"%d" % number} for number in range(30)], {"text": TEXT})

    def of_all_kinds(dataset: tf.data.Dataset) -> tf.data.Dataset:
        def of_kinds(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            number = tf.strings.to_number(example["text"], tf.int32)
            return {
                "text": example["text"],
                "vector": tf.range(number % 5),
                "matrix": tf.ones([number % 3, 2], tf.float32) * 0.5,
                "texts": tf.repeat(example["text"], number % 4),
                "number": tf.cast(number, tf.int64),
                "flag": number % 2 == 0,
                "flags": tf.repeat(number % 2 == 0, 3),
            }

        return dataset.map(of_kinds)

    expected = list(of_all_kinds(Numbered(of_numbers).in_tensorflow()).as_numpy_iterator())
    arguments = {"output_features": {}, "sequence_length": {}}

    def found() -> Dataset:
        return datasets.applied([of_all_kinds], of_numbers, arguments, lambda error: None)

    items = list(found().read())
    assert_same_examples((item.value for item in items), expected)
    for number, item in enumerate(items, 1):
        place = json.loads(json.dumps(item.place))
        resumed = found().read(place)
        assert_same_examples((item.value for item in resumed), expected[number:])
    ragged = tf.data.Dataset.range(20).map(lambda n: {"rows": tf.RaggedTensor.from_row_lengths(tf.range(n), [n, 0])})
    sizes = [sum(map(len, example["rows"])) for example in OfTensorflow(ragged)]
    assert sizes == list(range(20))
