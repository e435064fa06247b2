"""Span corruption: t5's numbers exactly, nothing lost, exact lengths."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.config import ConfigError
from limba.data import objectives
from limba.data.sources import FileSource
from limba.data.vocabulary import load_vocabulary

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "span_corruption.json").read_text())


class GoldenVocabulary(seqio.PassThroughVocabulary):
    extra_ids = GOLDEN["extra_ids"]
    vocab_size = GOLDEN["vocab_size"]


def features(vocabulary: seqio.Vocabulary) -> dict[str, seqio.Feature]:
    return {name: seqio.Feature(vocabulary, dtype=tf.int32) for name in ("inputs", "targets")}


def stream(vectors: list[list[int]]) -> tf.data.Dataset:
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(vectors, tf.int32, row_splits_dtype=tf.int64))
    return ragged.map(lambda tokens: {"targets": tokens})


def corrupted(tokens: int, lengths: dict[str, int], **choices: object) -> list[dict[str, np.ndarray]]:
    vector = (np.arange(tokens) % 256 + 3).tolist()
    with seqio.map_seed_manager(1):
        dataset = objectives.span_corruption(
            stream([vector[:100], vector[100:]]), lengths, features(seqio.ByteVocabulary(100)), **choices
        )
    return list(dataset.as_numpy_iterator())


def test_masks_are_t5s():
    for case in GOLDEN["noise_mask"]:
        length, density, mean = case["length"], case["noise_density"], case["mean_noise_span_length"]
        draws = objectives.draws_of_row(length, tf.constant(case["seeds"]), density)
        mask = objectives.random_spans_noise_mask(length, [draw[None] for draw in draws], density, mean)
        assert mask[0].numpy().astype(int).tolist() == case["mask"]


def test_single_rows_are_t5s():
    for case in GOLDEN["single_example_denoise"]:
        tokens, choices = case["tokens"], (case["noise_density"], case["mean_noise_span_length"])
        draws = objectives.draws_of_row(len(tokens), objectives.mask_seeds(tf.constant(case["seed"])), choices[0])
        row = objectives.corrupt_spans(tf.constant([tokens]), [draw[None] for draw in draws], 125, None, *choices)
        assert row["inputs"][0].numpy().tolist() == case["inputs"]
        assert row["targets"][0].numpy().tolist() == case["targets"]


def test_lengths_are_t5s():
    for case in GOLDEN["random_spans_helper"]:
        choices = (case["inputs_length"], case["noise_density"], case["mean_noise_span_length"])
        assert objectives.span_corruption_lengths(*choices) == (case["tokens_length"], case["targets_length"])


def test_stream_is_t5s():
    for case in GOLDEN["span_corruption_pipeline"]:
        # t5 draws two pairs of seeds, for chunks and for splitting, before those of the masks.
        with seqio.map_seed_manager(case["map_seed"] + 4):
            dataset = objectives.span_corruption(
                stream(GOLDEN["docs"]), case["sequence_length"], features(GoldenVocabulary(26, 1)), append_eos=False
            )
        examples = list(dataset.as_numpy_iterator())
        assert len(examples) == case["n"]
        for example, expected in zip(examples, case["examples"], strict=False):
            assert {name: value.tolist() for name, value in example.items()} == expected


@pytest.mark.parametrize(
    ("inputs", "raw", "targets"), [(512, 568, 114), (256, 284, 58), (128, 141, 29), (1024, 1137, 229)]
)
def test_published_lengths(inputs, raw, targets):
    assert objectives.span_corruption_lengths(inputs) == (raw, targets)


def test_graph_gives_the_derived_lengths_for_all_inputs():
    for inputs in range(16, 2049):
        raw, targets = objectives.span_corruption_lengths(inputs)
        noise, spans = objectives.num_noise(raw, 0.15, 3.0)
        assert raw - noise + spans + 1 <= inputs
        assert noise + spans + 1 == targets


@pytest.mark.parametrize("tokens", [1, 2, 140, 141, 141 * 32, 141 * 32 + 1, 141 * 70 + 77])
def test_joining_gives_the_text_back(tokens):
    examples = corrupted(tokens, {"inputs": 128, "targets": 29})
    top, joined = 358, []
    for example in examples:
        inputs, targets = example["inputs"].tolist(), example["targets"].tolist()
        assert inputs[-1] == targets[-1] == 1
        spans = {}
        for token in targets[:-1]:
            if token > top - 100:
                spans[token] = []
                last = token
            else:
                spans[last].append(token)
        assert list(spans) == [top - number for number in range(len(spans))]
        for token in inputs[:-1]:
            joined += spans[token] if token > top - 100 else [token]
    assert joined == (np.arange(tokens) % 256 + 3).tolist()
    assert all(len(example["inputs"]) == 128 and len(example["targets"]) == 29 for example in examples[: tokens // 141])
    assert len(examples) == -(-tokens // 141)


def test_lengths_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match=r"'targets' 28.*needs 29"):
        corrupted(200, {"inputs": 128, "targets": 28})
    with pytest.raises(ConfigError, match="too short"):
        objectives.span_corruption_lengths(4)
    with pytest.raises(ConfigError, match="sentinels"):
        corrupted(200, {"inputs": 4096, "targets": 1000})
    with pytest.raises(ConfigError, match="density"):
        objectives.span_corruption_lengths(128, noise_density=0.0)


def task(*steps: object) -> seqio.Task:
    return seqio.Task(
        "lengths_of_a_task",
        FileSource("none.txt"),
        features(seqio.ByteVocabulary(100)),
        list(steps),
        shuffle_buffer_size=None,
    )


def test_targets_follow_from_the_tasks_objective(caplog):
    steps = (objectives.tokenize_documents, objectives.span_corruption)
    assert objectives.derive_lengths(task(*steps), {"inputs": 512}) == {"inputs": 512, "targets": 114}
    assert objectives.derive_lengths(task(*steps), {"inputs": 512, "targets": 114})["targets"] == 114
    assert not caplog.records
    assert objectives.derive_lengths(task(*steps), {"inputs": 512, "targets": 256})["targets"] == 256
    assert "55 %" in caplog.text
    longer = functools.partial(objectives.span_corruption, mean_noise_span_length=8.0)
    assert objectives.derive_lengths(task(steps[0], longer), {"inputs": 512})["targets"] == 100
    with pytest.raises(ConfigError, match="needs 114"):
        objectives.derive_lengths(task(*steps), {"inputs": 512, "targets": 64})
    with pytest.raises(ConfigError, match="add 'targets'"):
        objectives.derive_lengths(task(), {"inputs": 512})
    assert objectives.derive_lengths(task(), {"inputs": 8, "targets": 9}) == {"inputs": 8, "targets": 9}


@pytest.mark.parametrize("kind", ["byte", "sentencepiece"])
def test_tokens_are_the_vocabularys(kind, vocabulary):
    loaded = load_vocabulary("byte" if kind == "byte" else str(vocabulary), 100)
    texts = [f"Document {number}, naïve ☃" for number in range(70)]
    dataset = tf.data.Dataset.from_tensor_slices({"text": texts})
    vectors = list(objectives.tokenize_documents(dataset, features(loaded)).as_numpy_iterator())
    assert len(vectors) == 3
    expected = [token for text in texts for token in loaded.encode(text)]
    assert np.concatenate([vector["targets"] for vector in vectors]).tolist() == expected
