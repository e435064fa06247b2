"""The tokens of each corpus of a mixture are counted as they are trained: in any kind of rows, and when resumed."""

import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.config import DataConfig
from limba.data.deal import Deal, deal_of
from limba.data.objectives import derive_lengths, span_corruption, tokenize_documents
from limba.data.sources import FileSource
from limba.data.stream.streams import TrainStream
from limba.data.tasks import resolve_task
from tests.data.text_files import write

LETTERS = "ab"  # of the two corpora: all text of one is a's, of the other b's
CONFIG = DataConfig(
    "tokens", {"inputs": 32}, batch_size=8, vocabulary="byte", num_data_shards=2, seed=3, validation_percent=0.0
)


def _pairs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    def pair(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens = tf.cast(tf.io.decode_raw(example["text"], tf.uint8), tf.int32) + 3
        return {"inputs": tokens, "targets": tokens[: tf.size(tokens) // 3 + 1]}

    return dataset.map(pair)


@pytest.fixture(params=["spans", "pairs", "packed pairs"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DataConfig]:
    """A mixture of two corpora, 3 to 1, of full rows, short rows or packed ones."""
    draw = random.Random(1)
    features = dict[str, seqio.Feature]()
    for side in ("inputs", "targets"):
        features[side] = seqio.Feature(seqio.ByteVocabulary(100), dtype=tf.int32)
    steps = [tokenize_documents, span_corruption] if request.param == "spans" else [_pairs]
    for letter in LETTERS:
        texts = [letter * draw.randint(3, 20) for _ in range(300)]
        source = FileSource(str(write(tmp_path / f"{letter}.txt", texts)), validation_percent=0.0)
        seqio.TaskRegistry.add(
            f"tokens_{letter}",
            source=source,
            preprocessors=steps,
            output_features=features,
            shuffle_buffer_size=None,
        )
    seqio.MixtureRegistry.add("tokens", [("tokens_a", 3.0), ("tokens_b", 1.0)])
    lengths = {"inputs": 32} if request.param == "spans" else {"inputs": 32, "targets": 16}
    yield dataclasses.replace(CONFIG, task_feature_lengths=lengths, pack=request.param == "packed pairs")
    seqio.MixtureRegistry.remove("tokens")
    for letter in LETTERS:
        seqio.TaskRegistry.remove(f"tokens_{letter}")


@contextlib.contextmanager
def opened(config: DataConfig, shards: Sequence[int] = (0, 1)) -> Iterator[TrainStream]:
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)
    deal = deal_of(task, lengths, config, False)
    assert Deal.of_text(deal.to_text()) == deal
    with contextlib.closing(TrainStream(task, lengths, config, shards, deal=deal)) as stream:
        yield stream


def add(counts: Counter[str], rows: Mapping[int, Mapping[str, np.ndarray]]) -> None:
    """Adds the tokens of a batch to each task's count; an example's corpus is known by its letters."""
    for part in rows.values():
        for number in range(len(part["inputs"])):
            ids = {side: part.get(f"{side}_segment_ids", part[side] != 0)[number] for side in ("inputs", "targets")}
            for segment in range(1, int(max(map(np.max, ids.values()))) + 1):
                tokens = np.concatenate([part[side][number][ids[side] == segment] for side in ids])
                letters = {chr(token - 3) for token in tokens if 3 + ord("a") <= token <= 3 + ord("b")}
                assert len(letters) == 1
                counts[f"tokens_{letters.pop()}"] += len(tokens)


def taken(stream: Any, number: int, counts: Counter[str]) -> list[np.ndarray]:
    arrays = []
    for _ in range(number):
        rows = next(stream)
        add(counts, rows)
        arrays += [part[name] for part in rows.values() for name in sorted(part)]
    return arrays


@pytest.mark.night
def test_tokens_are_those_of_the_rows_and_a_resumed_run_counts_on(config: DataConfig) -> None:
    counts: Counter[str] = Counter()
    with opened(config) as stream:
        assert stream.tokens() == {"tokens_a": 0.0, "tokens_b": 0.0}
        taken(stream, 7, counts)
        assert stream.tokens() == counts and counts["tokens_a"] > counts["tokens_b"] > 0
        positions = stream.positions()
        rest = taken(stream, 5, counts)
    after = dict(counts)
    with opened(config) as again:
        again.begin(0, positions)
        assert sum(again.tokens().values()) < sum(after.values())
        for one, other in zip(taken(again, 5, Counter()), rest, strict=True):
            np.testing.assert_array_equal(one, other)
        assert again.tokens() == after


@pytest.mark.night
def test_two_hosts_together_have_the_tokens_of_one_and_epochs_end(config: DataConfig) -> None:
    config = dataclasses.replace(config, num_epochs=1)
    counts: Counter[str] = Counter()
    with opened(config) as stream:
        for rows in stream:
            add(counts, rows)
        assert stream.tokens() == counts
    parts: Counter[str] = Counter()
    for shard in (0, 1):
        with opened(config, shards=[shard]) as stream:
            for _ in stream:
                pass
            parts.update({name: tokens / 2 for name, tokens in stream.tokens().items()})  # it speaks for both
    assert parts == counts


def test_a_task_alone_has_no_tokens_by_corpus(config: DataConfig) -> None:
    with opened(dataclasses.replace(config, mixture_or_task_name="tokens_a")) as stream:
        taken(stream, 2, Counter())
        assert stream.tokens() == {}
