"""What TensorFlow reads of these data sets: again, at several places, and while its process ends."""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.data.bridge import Numbered, datasets
from limba.data.dataset import TEXT, TOKENS, Dataset, Elements, Spec
from limba.data.objectives.choice import examples_of
from limba.data.sources import FileSource
from tests.shipped import ROOT

# Reads one batch of a task as T5X's users register it, twice, and ends while TensorFlow still reads ahead.
PROGRAM = """
import sys
import seqio
from limba.config import DataConfig
from limba.data.objectives import derive_lengths
from limba.data.sources import FileSource
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
    """Without `datasets._close` it hung each time, since TensorFlow's threads wait for the interpreter that ends."""
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
        return [each["text"] if kind == TEXT else each["text"].tolist() for each in elements]

    expected = plain({"text": value} for value in values)
    assert plain(dataset.as_numpy_iterator()) == expected
    first, second = dataset.as_numpy_iterator(), dataset.skip(100).as_numpy_iterator()
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
    return examples_of(task, {"targets": 16}, documents, seed=0)


def _targets(examples: Iterable[Mapping[str, np.ndarray]]) -> list[list[int]]:
    return [example["targets"].tolist() for example in examples]


@pytest.mark.parametrize("name", TWO_PLACES)
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
    running = _rows_of(task, None)
    assert _targets(itertools.islice(running, count - 250)) == endless[: count - 250]
    state = running.state()
    assert state["kept"] is not None
    resumed = _rows_of(task, None)
    resumed.restore(state)
    assert _targets(itertools.islice(resumed, 250)) == endless[count - 250 :]
    # The one that was saved moves on as if nothing had happened.
    assert _targets(itertools.islice(running, 250)) == endless[count - 250 :]
