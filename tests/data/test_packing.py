"""Packed rows hold every example whole, cost what the examples cost alone, and go on exactly after a restart."""

import dataclasses

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.config import DataConfig, InputError, LossConfig
from limba.data import validation_split as validation
from limba.data.packing import batched, model_features, pack
from limba.data.sources import FileSource
from limba.data.stream import streams
from limba.data.tasks import resolve_task
from limba.model import Network
from limba.training.step import loss_sums
from tests import tiny
from tests.data.sources.test_readers import write
from tests.data.test_streams import opened, taken

LENGTHS = {"inputs": 48, "targets": 24}


def examples(count: int, seed: int = 0) -> list[dict[str, list[int]]]:
    random = np.random.default_rng(seed)
    sizes = zip(random.integers(1, 30, count), random.integers(1, 12, count), strict=True)
    return [
        {"inputs": random.integers(2, 250, i).tolist(), "targets": random.integers(2, 250, t).tolist()}
        for i, t in sizes
    ]


def dataset(made: list[dict[str, list[int]]]) -> tf.data.Dataset:
    columns = {name: tf.ragged.constant([one[name] for one in made], tf.int32) for name in LENGTHS}
    return tf.data.Dataset.from_tensor_slices(columns).map(dict)


def segments(row: dict[str, np.ndarray]) -> list[dict[str, list[int]]]:
    numbers = range(1, row["inputs_segment_ids"].max() + 1)
    return [{name: row[name][row[f"{name}_segment_ids"] == n].tolist() for name in LENGTHS} for n in numbers]


@pytest.mark.core
def test_every_example_comes_once_and_whole():
    made = examples(500)
    rows = list(pack(dataset(made), LENGTHS).as_numpy_iterator())
    found = [segment for row in rows for segment in segments(row)]
    assert sorted(map(str, found)) == sorted(map(str, made))
    for row in rows:
        for name, length in LENGTHS.items():
            tokens, numbers = row[name], row[f"{name}_segment_ids"]
            assert tokens.shape == numbers.shape == (length,)
            assert ((tokens > 0) == (numbers > 0)).all()
            used = int((numbers > 0).sum())
            assert (np.diff(numbers[:used]) >= 0).all()
            assert not numbers[used:].any()
    # Either side may fill a row first; what they have in common is no worse than nine tenths.
    assert max(np.mean([(row[name] > 0).mean() for row in rows]) for name in LENGTHS) > 0.9


@pytest.mark.core
def test_long_examples_are_cut_and_empty_ones_left_out():
    made = [{"inputs": [5] * 60, "targets": [6] * 3}, {"inputs": [], "targets": []}, {"inputs": [7], "targets": [8]}]
    columns = {name: tf.ragged.constant([one[name] for one in made], tf.int32) for name in LENGTHS}
    rows = list(pack(tf.data.Dataset.from_tensor_slices(columns).map(dict), LENGTHS).as_numpy_iterator())
    assert sorted(len(segments(row)) for row in rows) == [1, 1]
    assert sorted(int((row["inputs"] > 0).sum()) for row in rows) == [1, 48]
    assert list(pack(tf.data.Dataset.from_tensor_slices(columns).map(dict).take(0), LENGTHS)) == []
    with pytest.raises(InputError, match="return no tokens 'targets'"):
        batched(tf.data.Dataset.from_tensors({"inputs": [1]}), LENGTHS, 2, whole=True, packed=True)


@pytest.mark.core
def test_features_shift_inside_each_segment():
    rows = {
        "inputs": np.array([[5, 1, 6, 1, 0]]),
        "inputs_segment_ids": np.array([[1, 1, 2, 2, 0]]),
        "targets": np.array([[7, 8, 1, 9, 1, 0]]),
        "targets_segment_ids": np.array([[1, 1, 1, 2, 2, 0]]),
    }
    features = model_features(rows)
    assert features["decoder_input_tokens"].tolist() == [[0, 7, 8, 0, 9, 0]]
    assert features["decoder_loss_weights"].tolist() == [[1, 1, 1, 1, 1, 0]]
    assert features["encoder_segment_ids"].tolist() == [[1, 1, 2, 2, 0]]
    assert features["decoder_segment_ids"].tolist() == [[1, 1, 1, 2, 2, 0]]
    assert {value.dtype for value in features.values()} == {np.dtype(np.int32)}


@pytest.mark.parametrize("attention", ["einsum", "memory_efficient"])
def test_packed_examples_cost_what_they_cost_alone(attention):
    made = examples(40, seed=3)
    model = Network(tiny.model(attention=attention, num_encoder_layers=1, num_decoder_layers=2))
    params = tiny.parameters(model.config)

    @jax.jit
    def costs(features: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
        return loss_sums(model, LossConfig(), params, features, None), model.apply(params, features, None)

    alone = next(batched(dataset(made), LENGTHS, 40, whole=True, packed=False).as_numpy_iterator())
    packed = next(batched(dataset(made), LENGTHS, 40, whole=False, packed=True).as_numpy_iterator())
    assert len(packed["inputs"]) < 22

    (expected, expected_logits), (found, logits) = (costs(model_features(rows)) for rows in (alone, packed))
    assert found["tokens"] == expected["tokens"]
    for name in ("loss", "nats", "correct"):
        assert float(found[name]) == pytest.approx(float(expected[name]), rel=1e-5)
    # Each token's logits, not their sum alone.
    logits, expected_logits = np.asarray(logits), np.asarray(expected_logits)
    places = {str(one): number for number, one in enumerate(made)}
    for number, row in enumerate({name: packed[name][n] for name in packed} for n in range(len(packed["inputs"]))):
        for segment, example in enumerate(segments(row), 1):
            mine = logits[number][row["targets_segment_ids"] == segment]
            np.testing.assert_allclose(mine, expected_logits[places[str(example)]][: len(mine)], atol=1e-5)
    if attention == "einsum":  # without segment ids it would cost something else
        mixed = {name: value for name, value in model_features(packed).items() if "segment" not in name}
        assert float(costs(mixed)[0]["nats"]) != pytest.approx(float(expected["nats"]), rel=1e-3)


def _halves(dataset: tf.data.Dataset, output_features: dict[str, seqio.Feature]) -> tf.data.Dataset:
    vocabulary = output_features["targets"].vocabulary

    def halved(document: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        tokens = vocabulary.encode_tf(document["text"])
        middle = 2 * tf.size(tokens) // 3
        return {"inputs": tokens[:middle], "targets": tokens[middle:]}

    return dataset.map(halved)


@pytest.fixture
def config(tmp_path) -> DataConfig:
    if "halves" not in seqio.TaskRegistry.names():
        seqio.TaskRegistry.add(
            "halves",
            source=FileSource("none.txt"),
            preprocessors=[_halves],
            output_features={n: seqio.Feature(seqio.ByteVocabulary(100), dtype=tf.int32) for n in LENGTHS},
            shuffle_buffer_size=None,
        )
    random = np.random.default_rng(0)
    texts = [f"{number} " + "word " * int(random.integers(1, 7)) for number in range(900)]
    path = write(tmp_path / "c.txt", texts)
    return DataConfig("halves", LENGTHS, 8, data_files=str(path), validation_percent=5.0, num_data_shards=2, pack=True)


def test_a_packed_stream_resumes_exactly(config):
    task, lengths, stream = opened(config, [0, 1])
    first = next(stream)[0]
    assert set(first) == {*LENGTHS, "inputs_segment_ids", "targets_segment_ids"}
    taken(stream, 30)
    positions = stream.positions()
    expected = taken(stream, 60)
    stream.close()
    assert all(len(position) < 100_000 for position in positions.values())
    again = streams.TrainStream(task, lengths, config, [0, 1])
    again.begin(0, positions)
    np.testing.assert_array_equal(taken(again, 60), expected)
    again.close()
    plain = streams.TrainStream(task, lengths, dataclasses.replace(config, pack=False), [0, 1])
    with pytest.raises(InputError, match="saved with pack True"):
        plain.begin(0, positions)
    plain.close()


def test_validation_is_packed_and_whole(config):
    task = resolve_task(config)
    batches = validation.validation_batches(task, LENGTHS, config, 100)
    plain = validation.validation_batches(task, LENGTHS, dataclasses.replace(config, pack=False), 100)
    assert all(batch["decoder_segment_ids"].shape == (8, 24) for batch in batches)
    count = [sum(int(batch["decoder_loss_weights"].sum()) for batch in several) for several in (batches, plain)]
    assert count[0] == count[1] > 0
    num_rows = [
        sum(int(batch["encoder_input_tokens"].any(1).sum()) for batch in several) for several in (batches, plain)
    ]
    assert num_rows[0] < 0.7 * num_rows[1]
