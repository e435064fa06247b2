"""Span corruption: t5's numbers exactly, nothing lost, exact lengths."""

import functools
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import seqio
import tensorflow as tf

from limba.cli.flags import parse_args
from limba.config import InputError
from limba.data import objectives
from limba.data.dataset import TEXT, Elements
from limba.data.objectives import spans as span_corruption
from limba.data.objectives import token_blocks
from limba.data.sources import FileSource
from limba.data.vocabulary.load import load_vocabulary
from tests.data.t5_draws import WordsOfSeeds, vectors_under

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "span_corruption.json").read_text())


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
    return list(map(unpadded, dataset.as_numpy_iterator()))


def unpadded(row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value[value != 0] for name, value in row.items()}


@pytest.mark.core
def test_masks_are_t5s():
    for case in GOLDEN["noise_mask"]:
        length = case["length"]
        density = case["noise_density"]
        mean = case["mean_noise_span_length"]
        words = WordsOfSeeds(iter([np.array(case["seeds"])]), density)
        keys = span_corruption.keys_of_rows((1, length), words, density)
        mask = span_corruption.random_spans_noise_mask(length, keys, density, mean)
        assert mask[0].astype(int).tolist() == case["mask"]


@pytest.mark.core
def test_single_rows_are_t5s():
    for case in GOLDEN["single_example_denoise"]:
        tokens = case["tokens"]
        choices = (case["noise_density"], case["mean_noise_span_length"])
        words = WordsOfSeeds(iter([np.array(case["split_seeds"][:2])]), choices[0])
        keys = span_corruption.keys_of_rows((1, len(tokens)), words, choices[0])
        inputs, targets = span_corruption.corrupt_spans(np.array([tokens], np.int32), keys, 125, None, *choices)
        assert inputs[0].tolist() == case["inputs"]
        assert targets[0].tolist() == case["targets"]


@pytest.mark.core
def test_noise_is_counted_as_in_t5s_graph():
    """t5.data.preprocessors.random_spans_noise_mask: in single precision, half to even; at least one of each kind."""
    mean = 3.0
    lengths = np.arange(2, 2049)
    for density in (0.15, 0.3, 0.45, 0.5):
        noise = tf.cast(tf.round(tf.cast(lengths, tf.float32) * density), tf.int32)
        noise = tf.minimum(tf.maximum(noise, 1), tf.cast(lengths, tf.int32) - 1)
        spans = tf.maximum(tf.cast(tf.round(tf.cast(noise, tf.float32) / mean), tf.int32), 1)
        counts = [span_corruption.num_noise(int(length), density, mean) for length in lengths]
        np.testing.assert_array_equal(counts, np.stack([noise, spans], 1))


@pytest.mark.core
def test_lengths_are_t5s():
    for case in GOLDEN["random_spans_helper"]:
        choices = (case["inputs_length"], case["noise_density"], case["mean_noise_span_length"])
        assert span_corruption.raw_and_targets(*choices) == (case["tokens_length"], case["targets_length"])


def test_stream_is_t5s():
    for case in GOLDEN["span_corruption_pipeline"]:
        vectors = vectors_under(case["map_seed"], GOLDEN["docs"])
        dataset = objectives.span_corruption(
            vectors, case["sequence_length"], features(GoldenVocabulary(26, 1)), append_eos=False
        )
        examples = list(map(unpadded, dataset))
        assert len(examples) == case["n"]
        for example, expected in zip(examples, case["examples"], strict=False):
            assert {name: value.tolist() for name, value in example.items()} == expected


def test_graph_gives_the_derived_lengths_for_all_inputs():
    for inputs in range(16, 2049):
        raw, targets = span_corruption.raw_and_targets(inputs)
        noise, spans = span_corruption.num_noise(raw, 0.15, 3.0)
        assert raw - noise + spans + 1 <= inputs
        assert noise + spans + 1 == targets


@pytest.mark.parametrize("tokens", [1, 2, 140, 141, 141 * 32, 141 * 32 + 1, 141 * 70 + 77])
def test_joining_gives_the_text_back(tokens):
    examples = corrupted(tokens, {"inputs": 128, "targets": 29})
    top = 358
    joined = []
    for example in examples:
        inputs = example["inputs"].tolist()
        targets = example["targets"].tolist()
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
    with pytest.raises(InputError, match=r"'targets' 28.*needs 29"):
        corrupted(200, {"inputs": 128, "targets": 28})
    with pytest.raises(InputError, match="too short"):
        span_corruption.raw_and_targets(4)
    with pytest.raises(InputError, match="sentinels"):
        corrupted(200, {"inputs": 4096, "targets": 1000})
    with pytest.raises(InputError, match="density"):
        span_corruption.raw_and_targets(128, noise_density=0.0)


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
    with pytest.raises(InputError, match="needs 114"):
        objectives.derive_lengths(task(*steps), {"inputs": 512, "targets": 64})
    with pytest.raises(InputError, match="add 'targets'"):
        objectives.derive_lengths(task(), {"inputs": 512})
    assert objectives.derive_lengths(task(), {"inputs": 8, "targets": 9}) == {"inputs": 8, "targets": 9}


def test_the_objective_is_chosen_by_name():
    steps = (objectives.tokenize_documents, objectives.span_corruption)
    chosen = objectives.with_objective(task(*steps), "ul2")
    assert list(chosen.preprocessors) == [objectives.tokenize_documents, objectives.ul2]
    assert objectives.derive_lengths(chosen, {"inputs": 512}) == {"inputs": 512, "targets": 512}
    causal = objectives.with_objective(task(*steps), "causal_lm")
    assert causal.preprocessors[0].keywords == {"append_eos": True}
    assert objectives.derive_lengths(causal, {"inputs": 512}) == {"targets": 512}
    partial = functools.partial(objectives.span_corruption, mean_noise_span_length=8.0)
    again = objectives.with_objective(task(steps[0], partial), "span_corruption")
    assert objectives.derive_lengths(again, {"inputs": 512})["targets"] == 114
    with pytest.raises(InputError, match=r"did you mean lm_adaptation\? It must be one of span_corruption, whole"):
        objectives.with_objective(task(*steps), "lm_adaption")
    with pytest.raises(InputError, match="has no objectives of limba.data.objectives"):
        objectives.with_objective(task(), "ul2")


@pytest.mark.parametrize(
    ("name", "lengths", "derived"),
    [
        ("whole_word_span_corruption", {"inputs": 512}, {"inputs": 512, "targets": 121}),
        ("ul2", {"inputs": 128}, {"inputs": 128, "targets": 127}),
        ("prefix_lm", {"inputs": 128}, {"inputs": 128, "targets": 128}),
        ("lm_adaptation", {"inputs": 128}, {"inputs": 128, "targets": 128}),
        ("lm_adaptation", {"inputs": 128, "targets": 32}, {"inputs": 128, "targets": 32}),
        ("causal_lm", {"inputs": 128, "targets": 256}, {"targets": 256}),
    ],
)
def test_lengths_follow_from_each_objective(name, lengths, derived, caplog):
    chosen = objectives.with_objective(task(objectives.tokenize_documents, objectives.span_corruption), name)
    assert objectives.derive_lengths(chosen, lengths) == derived
    assert not caplog.records
    if name in ("ul2", "prefix_lm"):
        assert objectives.derive_lengths(chosen, {"inputs": 128, "targets": 256})["targets"] == 256
        assert "50 %" in caplog.text
        with pytest.raises(InputError, match=r"'targets' 64, and .* of 128 inputs needs 12"):
            objectives.derive_lengths(chosen, {"inputs": 128, "targets": 64})
    if name == "lm_adaptation":
        with pytest.raises(InputError, match="too short for a token and the end"):
            objectives.derive_lengths(chosen, {"inputs": 128, "targets": 1})


def test_gin_chooses_objective_and_packing():
    names = {"MIXTURE_OR_TASK_NAME": "any", "TASK_FEATURE_LENGTHS": "{'inputs': 64}", "TRAIN_STEPS": "1"}
    names |= {"MODEL_DIR": "out", "DROPOUT_RATE": "0.0", "OBJECTIVE": "ul2", "PACK": "True"}
    files = [f"--gin_file=gin/{name}.gin" for name in ("models/t5_1_1/tiny", "runs/pretrain")]

    def data(**changes: str):
        return parse_args([*files, *(f"--gin.{name}={value}" for name, value in {**names, **changes}.items())])[0].data

    assert data().objective == "ul2"
    assert data().pack is True
    assert data(OBJECTIVE="None", PACK="False").objective is None
    with pytest.raises(InputError, match=r"choose one of span_corruption, whole_word"):
        data(OBJECTIVE="ul3")
    with pytest.raises(InputError, match="the model has an encoder"):
        data(OBJECTIVE="causal_lm")


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.array([5, 359], "<i4").tobytes(), "has the id 359, and the vocabulary has 0 to 358; tokenize the corpus"),
        (np.array([-1, 5], "<i4").tobytes(), "has the id -1, and the vocabulary"),
        (b"the cat sat.", r"has the id 543,516,788, .* or set DataConfig.column to 'tokens\[\]' if it holds text"),
        (b"ab", "has 2 bytes in the column 'tokens', which are not int32 ids; tokenize"),
    ],
)
def test_ids_that_the_vocabulary_lacks_are_refused_with_their_place(wrong, message, offset, tmp_path, monkeypatch):
    monkeypatch.setattr(token_blocks, "offset_of", lambda vocabulary: offset)
    loaded = load_vocabulary("byte", 100 + offset)  # 0 to 358 are its own, as in a stream that is one higher
    rows = [np.array([5, 358], "<i4").tobytes(), b"", np.array([0], "<i4").tobytes(), wrong]
    path = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"tokens": rows}), path, row_group_size=3)
    documents = FileSource(str(path), "tokens", 0.0).documents("train", shuffle=False, num_epochs=1)
    tokens = iter(objectives.tokenize_documents(documents, features(loaded)))
    with pytest.raises(InputError, match=rf"^Document 0 of {path}\[1:2\] {message}"):
        next(tokens)
    unknown = Elements([{"tokens": row} for row in rows], {"tokens": TEXT})
    with pytest.raises(InputError, match=f"^A document {message}"):
        next(iter(objectives.tokenize_documents(unknown, features(loaded))))
    right = Elements([{"tokens": row} for row in rows[:3]], {"tokens": TEXT})
    (vector,) = objectives.tokenize_documents(right, features(loaded))
    assert vector["targets"].tolist() == [5 + offset, 358 + offset, offset]


@pytest.mark.parametrize("kind", ["byte", "sentencepiece"])
def test_documents_can_come_tokenized_and_end(kind, vocabulary):
    loaded = load_vocabulary("byte" if kind == "byte" else str(vocabulary), 100)
    texts = [f"Document {number}, naïve ☃" * (number % 5) for number in range(70)]
    ids = [loaded.encode(text) for text in texts]
    stored = [np.array(tokens, "<i4").tobytes() for tokens in ids]
    for append_eos in (False, True):
        expected = [token for tokens in ids for token in tokens + [1] * (append_eos and bool(tokens))]
        for name, values in (("text", texts), ("tokens", stored)):
            dataset = tf.data.Dataset.from_tensor_slices({name: values})
            vectors = objectives.tokenize_documents(dataset, features(loaded), append_eos=append_eos)
            assert vectors.element_spec == {"targets": tf.TensorSpec([None], tf.int32)}
            targets = [one["targets"] for one in vectors.as_numpy_iterator()]
            assert len(targets) == 3 and np.concatenate(targets).tolist() == expected
