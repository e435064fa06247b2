"""The epochs that a stream reports match the rows that were trained and what buffers hold, counted here."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5.data import preprocessors as t5_preprocessors

import tasks.demo
import tasks.text_to_text  # noqa: F401  registers text_to_text
from limba.config import DataConfig
from limba.data.deal import deal_of
from limba.data.objectives import derive_lengths
from limba.data.sources import FileSource
from limba.data.stream.stages import open_stream
from limba.data.tasks import resolve_task

NUM_SHARDS = 4
ROWS = 8  # of a batch in each shard
DATA = DataConfig(
    "demo_span_corruption", {"inputs": 32}, batch_size=NUM_SHARDS * ROWS, vocabulary="byte", extra_ids=125,
    num_data_shards=NUM_SHARDS, validation_percent=0.0, seed=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 documents of 20 to 220 bytes."""
    path = tmp_path_factory.mktemp("texts") / "train.jsonl"
    lengths = np.random.default_rng(5).integers(4, 44, 2000)
    path.write_text("".join(json.dumps({"text": f"{n:05}" + "word " * k}) + "\n" for n, k in enumerate(lengths)))
    return path


@pytest.fixture(scope="module")
def pairs(texts: Path) -> Path:
    path = texts.parent / "pairs.json"  # one array
    path.write_text(json.dumps([{"inputs": f"{n:05} " + "x" * (n % 9), "targets": f"{n}"} for n in range(2500)]))
    return path


@contextlib.contextmanager
def opened(config: DataConfig) -> Iterator[Any]:
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)
    deal = deal_of(task, lengths, config, wants_epochs=True)
    with contextlib.closing(open_stream(task, lengths, config, range(NUM_SHARDS), deal)) as stream:
        yield stream


def rows_of_epoch(config: DataConfig) -> int:
    """Reads one epoch, and counts its rows."""
    with opened(dataclasses.replace(config, num_epochs=1)) as stream:
        return sum(int(part["targets"].any(axis=1).sum()) for rows in stream for part in rows.values())


def told(config: DataConfig, upto: float, rows: int) -> list[tuple[float, float]]:
    """Returns (epochs trained, epochs told) after each batch; the stream resumes on its way."""
    number = math.ceil(upto * rows / (NUM_SHARDS * ROWS))
    history = []
    begins = [0, number // 2, number * 3 // 4]
    positions = None
    for begin, end in zip(begins, [*begins[1:], number], strict=True):
        with opened(config) as stream:
            if positions is not None:
                stream.begin(0, positions)
                if history:
                    assert list(stream.epochs().values()) == pytest.approx([history[-1][1]])
            for batch in range(begin, end):
                next(stream)
                (epochs,) = stream.epochs().values()
                history.append(((batch + 1) * NUM_SHARDS * ROWS / rows, epochs))
            positions = stream.positions()
    return history


def t5x_task(path: Path) -> str:
    """Span corruption as T5X's users register it."""
    name = "trained_t5x"
    features = seqio.ByteVocabulary(extra_ids=125)
    if name not in seqio.TaskRegistry.names():
        seqio.TaskRegistry.add(
            name,
            source=FileSource(str(path), validation_percent=0.0),
            preprocessors=[
                lambda dataset: dataset.map(lambda example: {"inputs": "", "targets": example["text"]}),
                seqio.preprocessors.tokenize,
                t5_preprocessors.span_corruption,
                seqio.preprocessors.append_eos_after_trim,
            ],
            output_features={key: seqio.Feature(features, dtype=tf.int32) for key in ("inputs", "targets")},
        )
    return name


@pytest.mark.parametrize(
    ("kind", "upto", "ahead"),  # the last one: epochs that buffers may hold
    [
        ("own", 2.0, 0.03),
        pytest.param("shuffled", 4.0, 0.2, marks=pytest.mark.night),
        pytest.param("readers", 1.5, 0.03, marks=pytest.mark.night),
        pytest.param("t5x", 3.0, 0.3, marks=pytest.mark.slow),  # t5 joins 128 documents, a quarter of a shard's epoch
        ("pairs", 2.0, 0.0),
        ("packed", 6.0, 1.0),
    ],
)
@pytest.mark.slow
def test_the_epochs_told_are_those_trained(texts: Path, pairs: Path, kind: str, upto: float, ahead: float) -> None:
    """Behind TensorFlow the figure is 0 at first; it never goes backwards."""
    changes: dict[str, Any] = {"data_files": str(texts)}
    if kind == "t5x":
        changes = {"mixture_or_task_name": t5x_task(texts), "task_feature_lengths": {"inputs": 64, "targets": 32}}
        changes |= {"vocabulary": None, "extra_ids": DataConfig.extra_ids}
    elif kind in ("pairs", "packed"):
        lengths = {"inputs": 48, "targets": 24}
        changes = {"mixture_or_task_name": "text_to_text", "task_feature_lengths": lengths, "data_files": str(pairs)}
        changes |= {"pack": kind == "packed", "validation_percent": 0.0}
    elif kind == "shuffled":
        changes |= {"shuffle_buffer": 200}
    elif kind == "readers":
        changes |= {"num_reader_processes": 2, "task_modules": ("tasks.demo",)}
    config = dataclasses.replace(DATA, **changes)
    rows = rows_of_epoch(config)
    history = told(config, upto, rows)
    assert [epochs for _, epochs in history] == sorted(epochs for _, epochs in history)
    behind = 0.1 if ahead else 0.0  # rows of the end of an epoch that were read alone are less full
    known = [(trained, epochs) for trained, epochs in history if epochs > 0]
    assert len(known) > 0.9 * len(history)
    assert all(-behind - 1e-6 <= epochs - trained <= ahead + 1e-6 for trained, epochs in known)


@pytest.mark.slow
def test_each_task_of_a_mixture_has_its_own_epochs(tmp_path: Path) -> None:
    """A row's letters tell its task; 600 documents of one byte each token, of the same length, are an epoch."""
    vocabulary = seqio.ByteVocabulary(extra_ids=125)
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name * 40}\n" for _ in range(600)))
        seqio.TaskRegistry.add(
            f"trained_{name}",
            source=FileSource(str(tmp_path / f"{name}.txt"), validation_percent=0.0),
            preprocessors=[
                lambda dataset: dataset.map(lambda example: {"inputs": example["text"], "targets": example["text"]}),
                seqio.preprocessors.tokenize,
            ],
            output_features={key: seqio.Feature(vocabulary, dtype=tf.int32) for key in ("inputs", "targets")},
        )
    seqio.MixtureRegistry.add("trained_mixture", [("trained_a", 3.0), ("trained_b", 1.0)])
    config = dataclasses.replace(
        DATA, mixture_or_task_name="trained_mixture", task_feature_lengths={"inputs": 40, "targets": 40},
        vocabulary=None, extra_ids=DataConfig.extra_ids,
    )  # fmt: skip
    counts = {"a": 0, "b": 0}
    with opened(config) as stream:
        for _ in range(200):
            for part in next(stream).values():
                for name in counts:
                    counts[name] += int((part["targets"][:, 0] == ord(name) + 3).sum())
            for name, count in counts.items():
                epochs = stream.epochs()[f"trained_{name}"]
                if epochs > 0:  # none is known before the second reading
                    assert -0.2 <= epochs - count / 600 < 0.4  # documents go in and out in blocks
    assert counts["a"] > 2000
    assert epochs > 0
