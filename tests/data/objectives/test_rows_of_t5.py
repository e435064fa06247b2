"""Rows beside t5's and seqio's own code, row by row: a user's tasks as the stream reads them, and our span corruption.

Other tests compare one kind each on small text; here is enough of each kind to be counted.
"""

# pyright: reportMissingImports=false, reportArgumentType=false

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5.data import preprocessors

from limba.config import DataConfig
from limba.data import objectives
from limba.data.draws import Draws
from limba.data.stream.stages import open_stream
from limba.data.tasks import resolve_task
from tests.data.t5_draws import vectors_under

pytestmark = pytest.mark.night
NUM_SHARDS = 2
NUM_DOCUMENTS = 480
SEED = 3
BYTES = seqio.ByteVocabulary(200)
LENGTHS = {"inputs": 128, "targets": 96}
Row = dict[str, list[int]]


def documents(number: int) -> list[str]:
    """Returns the texts of a file: of one to eighty words."""
    random = np.random.default_rng(number)
    return [
        " ".join(map(str, random.integers(100, 999, random.integers(1, 80))))
        for _ in range(NUM_DOCUMENTS // NUM_SHARDS)
    ]


@pytest.fixture
def registered(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Registers a task of seqio that reads two files, one for each data shard."""
    names = []

    def register(kind: str, *steps: Callable) -> str:
        paths = []
        for number in range(NUM_SHARDS):
            path = tmp_path / f"{number}.txt"
            path.write_text("".join(f"{text}\n" for text in documents(number)))
            paths.append(str(path))
        feature = seqio.Feature(BYTES, required=False)
        features = {"inputs": feature, "targets": seqio.Feature(BYTES)}
        source = seqio.TextLineDataSource({"train": paths})
        name = f"rows_of_t5_{kind}"
        seqio.TaskRegistry.add(name, source=source, preprocessors=list(steps), output_features=features)
        names.append(name)
        return name

    yield register
    for name in names:
        seqio.TaskRegistry.remove(name)


def text_alone(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda text: {"targets": text})


def halves(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Pairs of the first half of a text and the second one."""

    def halved(text: tf.Tensor) -> dict[str, tf.Tensor]:
        middle = tf.strings.length(text) // 2
        return {"inputs": tf.strings.substr(text, 0, middle), "targets": tf.strings.substr(text, middle, -1)}

    return dataset.map(halved)


TOKENIZED = (text_alone, seqio.preprocessors.tokenize)
ENDED = seqio.preprocessors.append_eos_after_trim
# kind -> (the preprocessors of a user's task, the rows that it makes here)
KINDS: dict[str, tuple[Sequence[Callable], int]] = {
    "span_corruption": ((*TOKENIZED, preprocessors.span_corruption, ENDED), 553),
    "iid_denoising": ((*TOKENIZED, preprocessors.iid_denoising, ENDED), 613),
    "prefix_lm": ((*TOKENIZED, preprocessors.prefix_lm, ENDED), 874),
    "pairs": ((halves, seqio.preprocessors.tokenize, ENDED), NUM_DOCUMENTS),
}


def unpadded(row: Mapping[str, np.ndarray]) -> Row:
    return {name: row[name][row[name] != 0].tolist() for name in LENGTHS}


def rows_of_limba(config: DataConfig) -> list[list[Row]]:
    """Returns the rows of each shard, as a run reads them."""
    rows: list[list[Row]] = [[] for _ in range(NUM_SHARDS)]
    task = resolve_task(config)
    with contextlib.closing(open_stream(task, LENGTHS, config, range(NUM_SHARDS))) as stream:
        for batch in stream:
            for shard, made in batch.items():
                for inputs, targets in zip(made["inputs"], made["targets"], strict=True):
                    if targets.any():  # the others fill the last batch
                        rows[shard].append(unpadded({"inputs": inputs, "targets": targets}))
    return rows


def rows_of_seqio(name: str, shard: int) -> list[Row]:
    seed = Draws(SEED, name, shard).seed_of_seqio()
    choices: dict[str, Any] = {"shuffle": False, "seed": seed, "num_epochs": 1, "try_in_mem_cache": False}
    task = seqio.get_mixture_or_task(name)
    rows = task.get_dataset(LENGTHS, "train", shard_info=seqio.ShardInfo(shard, NUM_SHARDS), **choices)
    return [unpadded(row) for row in rows.as_numpy_iterator()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_users_tasks_make_the_rows_of_t5_and_seqio(kind: str, registered: Callable[..., str]) -> None:
    steps, num_rows = KINDS[kind]
    name = registered(kind, *steps)
    config = DataConfig(
        name, LENGTHS, batch_size=8, num_data_shards=NUM_SHARDS, num_epochs=1, shuffle=False, pack=False, seed=SEED
    )
    made = rows_of_limba(config)
    expected = [rows_of_seqio(name, shard) for shard in range(NUM_SHARDS)]
    assert [len(rows) for rows in made] == [len(rows) for rows in expected]
    assert made == expected
    assert sum(map(len, made)) == num_rows


def test_the_kinds_have_as_many_rows_as_were_compared_by_hand() -> None:
    assert sum(num_rows for _, num_rows in KINDS.values()) >= 2_460


@pytest.mark.parametrize(
    ("length", "density", "num_rows"), [(128, 0.15, 1_187), (128, 0.5, 881), (512, 0.15, 295), (512, 0.5, 219)]
)
def test_our_span_corruption_makes_t5s_rows_of_t5s_draws(length: int, density: float, num_rows: int) -> None:
    """t5 draws two pairs of seeds before the seeds of the masks, and begins a row anew after 128 documents."""
    lengths = dict.fromkeys(LENGTHS, length)
    features = {name: seqio.Feature(BYTES, dtype=tf.int32) for name in lengths}
    long = [" ".join(texts) for texts in zip(*map(documents, range(8)), strict=True)]
    vectors = [BYTES.encode(text) for text in long[:128]]
    ours = objectives.span_corruption(
        vectors_under(SEED, vectors, density), lengths, features, noise_density=density, append_eos=False
    )
    ragged = tf.ragged.constant(vectors, tf.int32, row_splits_dtype=tf.int64)
    of_t5 = tf.data.Dataset.from_tensor_slices(ragged).map(lambda tokens: {"targets": tokens})
    with seqio.map_seed_manager(SEED):
        theirs = functools.partial(preprocessors.span_corruption, noise_density=density)(of_t5, lengths, features)
    made = [unpadded(row) for row in ours]
    assert made == [unpadded(row) for row in theirs.as_numpy_iterator()]
    assert len(made) == num_rows
