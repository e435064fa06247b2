"""Packed rows hold every example whole, cost what the examples cost alone, and go on exactly after a restart."""

import dataclasses
import json
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.config import DataConfig, InputError, LossConfig
from limba.data import run_data as validation
from limba.data.dataset import TEXT, TOKENS, Elements, Spec
from limba.data.packing import batched, model_features, pack
from limba.data.sources import FileSource
from limba.data.stream import streams
from limba.data.tasks import resolve_task
from limba.model import Network
from limba.training.step import loss_sums
from tests import tiny
from tests.data.test_streams import opened, taken
from tests.data.text_files import write

LENGTHS = {"inputs": 48, "targets": 24}


def examples(count: int, seed: int = 0) -> list[dict[str, list[int]]]:
    random = np.random.default_rng(seed)
    sizes = zip(random.integers(1, 30, count), random.integers(1, 12, count), strict=True)
    return [
        {"inputs": random.integers(2, 250, i).tolist(), "targets": random.integers(2, 250, t).tolist()}
        for i, t in sizes
    ]


def dataset(made: Sequence[Mapping[str, Sequence[int]]]) -> Elements:
    elements = [{name: np.array(tokens, np.int32) for name, tokens in one.items()} for one in made]
    return Elements(elements, dict.fromkeys(elements[0] if elements else LENGTHS, TOKENS))


def segments(row: dict[str, np.ndarray]) -> list[dict[str, list[int]]]:
    numbers = range(1, row["inputs_segment_ids"].max() + 1)
    return [{name: row[name][row[f"{name}_segment_ids"] == n].tolist() for name in LENGTHS} for n in numbers]


@pytest.mark.core
def test_every_example_comes_once_and_whole():
    made = examples(500)
    rows = list(pack(dataset(made), LENGTHS))
    kept = [segment for row in rows for segment in segments(row)]
    assert sorted(map(str, kept)) == sorted(map(str, made))
    for row in rows:
        for name, length in LENGTHS.items():
            tokens = row[name]
            numbers = row[f"{name}_segment_ids"]
            assert tokens.shape == numbers.shape == (length,)
            assert ((tokens > 0) == (numbers > 0)).all()
            used = int((numbers > 0).sum())
            assert (np.diff(numbers[:used]) >= 0).all()
            assert not numbers[used:].any()
    # Either side may fill a row first; they share at least nine tenths.
    assert max(np.mean([(row[name] > 0).mean() for row in rows]) for name in LENGTHS) > 0.9


def packed_one_by_one(made: list[dict[str, list[int]]], num_open: int) -> list[list[dict[str, list[int]]]]:
    """The rule of `pack` in words: the first open row with room, else the fullest one makes place; at the end all."""
    rows = [[] for _ in range(num_open)]
    done = []

    def used(row: list, name: str) -> int:
        return sum(len(one[name]) for one in row)

    for one in made:
        fits = [n for n, row in enumerate(rows) if all(used(row, k) + len(one[k]) <= w for k, w in LENGTHS.items())]
        if not fits:
            fits = [max(range(num_open), key=lambda n: sum(used(rows[n], name) for name in LENGTHS))]
            done.append(rows[fits[0]])
            rows[fits[0]] = []
        rows[fits[0]].append(one)
    return done + [row for row in rows if row]


@pytest.mark.core
def test_rows_are_those_of_the_rule_with_sixteen_open():
    made = examples(230, seed=1)
    made[7] = {"inputs": [9] * 48, "targets": [8] * 24}  # as long as a row: no room for it in any that is begun
    rows = list(pack(dataset(made), LENGTHS))
    assert list(map(segments, rows)) == packed_one_by_one(made, 16)


@pytest.mark.core
def test_one_side_alone_is_packed_and_padded_examples_count_by_their_tokens():
    made = [{"targets": [5] * n + [0] * (30 - n)} for n in (3, 9, 4, 8, 24, 1)]
    rows = list(pack(dataset(made), {"targets": 24}))
    assert [row["targets_segment_ids"].tolist() for row in rows] == [
        [1] * 3 + [2] * 9 + [3] * 4 + [4] * 8,
        [1] * 24,
        [1] + [0] * 23,
    ]
    assert all(((row["targets"] == 5) == (row["targets_segment_ids"] > 0)).all() for row in rows)


@pytest.mark.core
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("width", [3, 4, 5, None])
def test_rows_that_are_not_packed_are_cut_and_padded(width, dtype):
    made = [np.arange(1, 1 + (width or n), dtype=dtype) for n in (2, 6, 4)]
    spec = {"inputs": Spec(np.dtype(dtype).name, (width,)), "more": TEXT}
    for names in (["inputs"], ["inputs", "more"]):
        elements = [{"inputs": one, "more": b""} if names[1:] else {"inputs": one} for one in made]
        for whole, sizes in ((True, [2]), (False, [2, 1])):
            rows = Elements(elements, {name: spec[name] for name in names})
            batches = list(batched(rows, {"inputs": 4}, 2, whole=whole, packed=False))
            assert [list(batch) for batch in batches] == [["inputs"]] * len(sizes)
            assert [len(batch["inputs"]) for batch in batches] == sizes
            wanted = [np.pad(one[:4], (0, max(0, 4 - len(one)))).tolist() for one in made][: sum(sizes)]
            assert np.concatenate([batch["inputs"] for batch in batches]).tolist() == wanted
            assert batches[0]["inputs"].dtype == np.int32
    with pytest.raises(InputError, match="return no tokens 'more'"):
        batched(rows, {"inputs": 4, "more": 4}, 2, whole=True, packed=False)


@pytest.mark.core
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("length", [7, 9])
def test_inputs_and_targets_become_one_sequence(packed, length):
    """Against lists, token by token: a prefix is seen from everywhere in it, and only targets have a loss."""
    pairs = [[([5, 6, 1], [7, 1]), ([8], [9, 1])], [([4], [3, 2, 1])], [([], [])]]
    if not packed:
        pairs = [row[:1] for row in pairs]
    rows = {name: np.zeros((3, width), np.int64) for name, width in (("inputs", 5), ("targets", 4))}
    numbers = {f"{name}_segment_ids": np.zeros_like(array) for name, array in rows.items()}
    wanted = []
    for index, row in enumerate(pairs):
        tokens = [
            (token, number, side) for number, pair in enumerate(row, 1) for side in (0, 1) for token in pair[side]
        ]
        for side, name in enumerate(("inputs", "targets")):
            side_tokens = [(token, number) for token, number, of in tokens if of == side]
            rows[name][index, : len(side_tokens)] = [token for token, _ in side_tokens]
            numbers[f"{name}_segment_ids"][index, : len(side_tokens)] = [number for _, number in side_tokens]
        tokens = (tokens + [(0, 0, None)] * length)[:length]
        before = [(0, 0, None), *tokens[:-1]]
        same = [now[1] == then[1] for now, then in zip(tokens, before, strict=True)]
        wanted.append(
            {
                "decoder_target_tokens": [token for token, _, _ in tokens],
                "decoder_segment_ids": [number for _, number, _ in tokens],
                "decoder_input_tokens": [a[0] if b or not packed else 0 for a, b in zip(before, same, strict=True)],
                "decoder_loss_weights": [int(side == 1) for _, _, side in tokens],
                "decoder_causal_attention": [
                    int(now[2] == 0 or (then[2] == 0 and b)) for now, then, b in zip(tokens, before, same, strict=True)
                ],
            }
        )
    features = model_features({**rows, **numbers} if packed else rows, length)
    assert set(features) == {*wanted[0]} - (set() if packed else {"decoder_segment_ids"})
    for name, array in features.items():
        assert array.tolist() == [row[name] for row in wanted], name
        assert array.dtype == np.int32, name


@pytest.mark.core
def test_long_examples_are_cut_and_empty_ones_left_out():
    made = [{"inputs": [5] * 60, "targets": [6] * 3}, {"inputs": [], "targets": []}, {"inputs": [7], "targets": [8]}]
    rows = list(pack(dataset(made), LENGTHS))
    assert sorted(len(segments(row)) for row in rows) == [1, 1]
    assert sorted(int((row["inputs"] > 0).sum()) for row in rows) == [1, 48]
    assert list(pack(dataset([]), LENGTHS)) == []
    with pytest.raises(InputError, match="return no tokens 'targets'"):
        batched(dataset([{"inputs": [1]}]), LENGTHS, 2, whole=True, packed=True)


@pytest.mark.core
def test_features_shift_in_a_row_or_inside_each_segment_and_weigh_no_padding():
    alone = model_features({"inputs": np.array([[5, 1, 0]]), "targets": np.array([[7, 8, 1, 0]])})
    assert {name: array.tolist() for name, array in alone.items()} == {
        "encoder_input_tokens": [[5, 1, 0]],
        "decoder_target_tokens": [[7, 8, 1, 0]],
        "decoder_input_tokens": [[0, 7, 8, 1]],
        "decoder_loss_weights": [[1, 1, 1, 0]],
    }
    packed = model_features(
        {
            "inputs": np.array([[5, 1, 6, 1, 0]]),
            "inputs_segment_ids": np.array([[1, 1, 2, 2, 0]]),
            "targets": np.array([[7, 8, 1, 9, 1, 0]]),
            "targets_segment_ids": np.array([[1, 1, 1, 2, 2, 0]]),
        }
    )
    assert packed["decoder_input_tokens"].tolist() == [[0, 7, 8, 0, 9, 0]]
    assert packed["decoder_loss_weights"].tolist() == [[1, 1, 1, 1, 1, 0]]
    assert packed["encoder_segment_ids"].tolist() == [[1, 1, 2, 2, 0]]
    assert packed["decoder_segment_ids"].tolist() == [[1, 1, 1, 2, 2, 0]]
    assert {value.dtype for value in (*alone.values(), *packed.values())} == {np.dtype(np.int32)}


@pytest.mark.parametrize("attention", ["einsum", "memory_efficient"])
@pytest.mark.slow
def test_packed_examples_cost_what_they_cost_alone(attention):
    made = examples(40, seed=3)
    model = Network(tiny.model(attention=attention, num_encoder_layers=1, num_decoder_layers=2))
    params = tiny.parameters(model.config)

    @jax.jit
    def costs(features: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
        return loss_sums(model, LossConfig(), params, features, None), model.apply(params, features, None)

    (alone,) = batched(dataset(made), LENGTHS, 40, whole=True, packed=False)
    (packed,) = batched(dataset(made), LENGTHS, 40, whole=False, packed=True)
    assert len(packed["inputs"]) < 22

    (expected, expected_logits), (sums, logits) = (costs(model_features(rows)) for rows in (alone, packed))
    assert sums["tokens"] == expected["tokens"]
    for name in ("loss", "nats", "correct"):
        assert float(sums[name]) == pytest.approx(float(expected[name]), rel=1e-5)
    # Each token's logits, not their sum alone.
    logits = np.asarray(logits)
    expected_logits = np.asarray(expected_logits)
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


@pytest.mark.slow
def test_a_packed_stream_resumes_exactly(config):
    task, lengths, stream = opened(config, [0, 1])
    first = next(stream)[0]
    assert set(first) == {*LENGTHS, "inputs_segment_ids", "targets_segment_ids"}
    taken(stream, 30)
    positions = stream.positions()
    expected = taken(stream, 60)
    stream.close()
    assert all(len(json.dumps(position)) < 5_000 for position in positions.values())
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
