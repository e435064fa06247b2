"""Batches are the same after a restart and on any number of hosts; shards differ; what cannot work is refused."""

import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import seqio
import tensorflow as tf
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sentencepiece import sentencepiece_model_pb2

import tasks.demo  # noqa: F401  registers demo_span_corruption
from limba.config import DataConfig, InputError
from limba.data import run_data as validation
from limba.data.deal import deal_of
from limba.data.objectives import (
    SUPERVISED,
    derive_lengths,
    restore_diacritics,
    span_corruption,
    tokenize_documents,
)
from limba.data.registry import Feature, Task
from limba.data.sources import FileSource, HubSource, readers
from limba.data.sources.fingerprints import File
from limba.data.stream import shard as shards
from limba.data.stream import streams
from limba.data.stream.stages import open_stream
from limba.data.tasks import check_sources, pinned, resolve_task, revisions
from limba.data.vocabulary import ByteVocabulary
from limba.training import placement
from tests.data.text_files import write

ROOT = Path(__file__).parent.parent.parent
FEATURES = {name: Feature(ByteVocabulary(100)) for name in ("inputs", "targets")}


@pytest.fixture
def config(corpus, vocabulary) -> DataConfig:
    return DataConfig(
        "demo_span_corruption",
        {"inputs": 64},
        batch_size=8,
        num_data_shards=4,
        vocabulary=str(vocabulary),
        data_files=str(corpus),
        validation_percent=5.0,
        seed=1,
    )


def opened(config: DataConfig, shards=range(4)) -> tuple[seqio.Task, dict[str, int], streams.TrainStream]:
    task = resolve_task(config)
    lengths = derive_lengths(task, config.task_feature_lengths)
    return task, lengths, streams.TrainStream(task, lengths, config, shards)


def flat(rows: dict[int, dict[str, np.ndarray]]) -> np.ndarray:
    return np.concatenate([np.concatenate(list(rows[shard].values()), 1) for shard in sorted(rows)])


def taken(stream: streams.TrainStream, count: int) -> np.ndarray:
    return np.stack([flat(next(stream)) for _ in range(count)])


IN_A_FRESH_PROCESS = """
import json, sys, numpy as np
from limba.config import DataConfig
from tests.data.test_streams import opened, taken
config, path = DataConfig(**json.loads(sys.argv[1])), sys.argv[2]
with open(path + "/positions.json") as file:
    positions = {int(shard): position for shard, position in json.load(file).items()}
_, _, stream = opened(config)
stream.begin(0, positions)
np.save(path + "/again.npy", taken(stream, 60))
stream.close()
"""


@pytest.mark.slow
def test_a_fresh_process_resumes_bit_for_bit(config, tmp_path):
    """Over several epochs, with shuffling, interleaving, and batches made ahead."""
    _, lengths, stream = opened(config)
    assert lengths == {"inputs": 64, "targets": 14}
    taken(stream, 200)
    positions = stream.positions()
    expected = taken(stream, 60)
    stream.close()
    assert all(len(json.dumps(position)) < 5_000 for position in positions.values())
    (tmp_path / "positions.json").write_text(json.dumps(positions))
    choices = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, json.dumps(choices), str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "again.npy"), expected)


@pytest.mark.parametrize("in_tensorflow", [False, True])
def test_preprocessors_that_make_no_row_are_one_sentence(in_tensorflow, tmp_path, monkeypatch):
    """An endless reading of Greek for letters of Romanian; no row is waited for after so many documents."""

    def none(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.filter(lambda _: False)

    steps = [none] if in_tensorflow else []
    path = write(tmp_path / "greek.txt", ["Καλημέρα κόσμε"] * 200)
    task = Task(
        "greek",
        FileSource(str(path), validation_percent=0.0),
        FEATURES,
        [*steps, restore_diacritics("ro"), *SUPERVISED],
    )
    data = DataConfig("greek", {"inputs": 32, "targets": 32}, 2, num_data_shards=1)
    monkeypatch.setattr(shards, "MOST_IN_TENSORFLOW", 1000)
    monkeypatch.setattr(shards, "MOST_WITHOUT_ROW", 1000)
    deal = deal_of(task, data.task_feature_lengths, data, wants_epochs=False)
    stream = streams.TrainStream(task, data.task_feature_lengths, data, [0], deal=deal)
    with contextlib.closing(stream), pytest.raises(InputError) as refusal:
        next(stream)
    assert str(refusal.value) == (
        f"The corpus {path} gives no row: the preprocessors of task greek have made none of the 1,000 documents that"
        " data shard 0 has read of it, in 5 epoch(s); give text that they keep, or other preprocessors."
    )


def test_a_row_may_need_more_epochs_of_a_small_text_than_documents_are_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "MOST_WITHOUT_ROW", 10)
    path = write(tmp_path / "small.txt", ["a", "b"])
    source = FileSource(str(path), validation_percent=0.0)
    task = Task("small", source, FEATURES, [tokenize_documents, span_corruption])
    data = DataConfig("small", {"inputs": 32}, 2, num_data_shards=1)
    stream = streams.TrainStream(task, derive_lengths(task, data.task_feature_lengths), data, [0])
    with contextlib.closing(stream):
        assert next(stream)[0]["inputs"].shape == (2, 32)


def test_positions_of_other_data_are_refused(config):
    _, _, stream = opened(config, [0, 1])
    positions = stream.positions()
    with pytest.raises(InputError, match="shard 1"):
        stream.begin(0, {0: positions[0]})
    with pytest.raises(InputError, match="shard"):
        stream.begin(0, {0: positions[1], 1: positions[0]})
    stream.close()
    changes = [("task_feature_lengths", {"inputs": 32}), ("validation_percent", 30.0), ("shuffle_buffer", 5)]
    for name, value in [*changes, ("train_split", "validation")]:
        _, _, other = opened(dataclasses.replace(config, **{name: value}), [0])
        with pytest.raises(InputError, match=name):
            other.begin(0, positions)
        other.close()


def test_positions_of_another_column_or_vocabulary_are_refused(config, tmp_path, vocabulary):
    rows = [json.dumps({"en": f"one {number} " * 20, "id": f"satu {number} " * 20}) for number in range(60)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    english = dataclasses.replace(config, data_files=str(tmp_path / "pairs.jsonl"), column="en")
    _, _, stream = opened(english, [0])
    positions = stream.positions()
    stream.close()
    _, _, other = opened(dataclasses.replace(english, column="id"), [0])
    with pytest.raises(InputError, match=r"column \['en'\] and this run has \['id'\]"):
        other.begin(0, positions)
    other.close()
    proto = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.read_bytes())
    proto.pieces[-1].piece, proto.pieces[-2].piece = proto.pieces[-2].piece, proto.pieces[-1].piece
    (tmp_path / "other.model").write_bytes(proto.SerializeToString())
    _, _, other = opened(dataclasses.replace(english, vocabulary=str(tmp_path / "other.model")), [0])
    with pytest.raises(InputError, match="vocabulary 'sentencepiece"):
        other.begin(0, positions)
    other.close()


def test_a_shuffle_buffer_mixes_the_rows_once_more_and_is_part_of_the_position(config):
    _, _, plain = opened(config)
    buffered = dataclasses.replace(config, shuffle_buffer=40)
    _, _, stream = opened(buffered)
    first = taken(plain, 5)
    there = taken(stream, 5)
    plain.close()
    assert not np.array_equal(first, there)
    positions = stream.positions()
    epochs = stream.epochs()
    expected = taken(stream, 20)
    stream.close()
    assert max(len(json.dumps(position)) for position in positions.values()) < 5_000
    _, _, again = opened(buffered)
    again.begin(0, positions)
    np.testing.assert_equal(again.epochs(), epochs)
    np.testing.assert_array_equal(taken(again, 20), expected)
    again.close()


def test_rows_fill_their_lengths_and_shards_do_not_share_masks(config):
    task, _, stream = opened(config)
    rows = next(stream)
    stream.close()
    top = task.output_features["inputs"].vocabulary.vocab_size - 1
    masks = set()
    for shard in range(4):
        assert rows[shard]["inputs"].shape == (2, 64)
        assert rows[shard]["targets"].shape == (2, 14)
        assert rows[shard]["inputs"].dtype == np.int32
        assert rows[shard]["inputs"].all()
        assert rows[shard]["targets"].all()
        masks |= {tuple(np.flatnonzero(row > top - 100)) for row in rows[shard]["inputs"]}
    assert len(masks) == 8


@pytest.mark.parametrize(("hosts", "num_shards"), [(2, 4), (4, 4), (8, 8)])
def test_a_batch_is_the_same_on_any_number_of_hosts(config, hosts, num_shards):
    """Hosts are played by streams over part of the shards; 8 devices share a batch of 8 rows."""
    config = dataclasses.replace(config, num_data_shards=num_shards)
    _, _, whole = opened(config, range(num_shards))
    per_host = num_shards // hosts
    parts = [opened(config, range(host * per_host, (host + 1) * per_host))[2] for host in range(hosts)]
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    assert placement.shards_of_this_process(sharding, config) == list(range(num_shards))
    for _ in range(3):
        rows = next(whole)
        together = {shard: part for stream in parts for shard, part in next(stream).items()}
        np.testing.assert_array_equal(flat(rows), flat(together))
        batch = placement.global_batch(rows, sharding, config)
        expected = np.concatenate([rows[shard]["targets"] for shard in range(num_shards)])
        np.testing.assert_array_equal(batch["decoder_target_tokens"], expected)
        assert batch["encoder_input_tokens"].sharding == sharding
    for stream in (whole, *parts):
        stream.close()


class Sharded:
    """Stands for the sharding of one process among several: its rows of a batch."""

    def __init__(self, *rows: slice):
        self.rows = rows

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict:
        return {number: (rows, slice(None)) for number, rows in enumerate(self.rows)}


def test_shards_of_a_process(config):
    assert placement.shards_of_this_process(Sharded(slice(0, 2), slice(2, 4)), config) == [0, 1]
    assert placement.shards_of_this_process(Sharded(slice(4, 8)), config) == [2, 3]
    with pytest.raises(InputError, match="give 8, or a multiple"):
        placement.shards_of_this_process(Sharded(slice(1, 2), slice(6, 7)), config)


def test_validation_is_the_whole_split_once_in_order(config, corpus, caplog):
    task, lengths, stream = opened(config)
    stream.close()
    batches = validation.validation_batches(task, lengths, config, 100)
    again = validation.validation_batches(task, lengths, config, 2)
    assert len(again) == 2
    for batch, same in zip(batches, again, strict=False):
        assert all(np.array_equal(batch[name], same[name]) for name in batch)
    assert all(batch["decoder_target_tokens"].shape == (8, 14) for batch in batches)
    vocabulary = task.output_features["inputs"].vocabulary
    documents = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    validation_texts = list(task.source.texts("validation"))
    assert validation_texts == [text for text in documents if text in set(validation_texts)]
    num_rows = -(-sum(len(vocabulary.encode(text)) for text in validation_texts) // 70)
    assert sum(int(batch["encoder_input_tokens"].any(1).sum()) for batch in batches) == num_rows
    empty = dataclasses.replace(config, validation_percent=1e-4)
    assert validation.validation_batches(resolve_task(empty), lengths, empty, 5) == []
    assert "nothing is evaluated" in caplog.text


def test_unknown_names_and_bad_corpora_are_refused(config, tmp_path):
    with pytest.raises(InputError, match="did you mean demo_span_corruption"):
        resolve_task(dataclasses.replace(config, mixture_or_task_name="demo_span_coruption"))
    absent = dataclasses.replace(config, data_files=f"{tmp_path}/*.txt")
    with pytest.raises(InputError, match="matches no file"):
        check_sources(resolve_task(absent), absent)
    absent = dataclasses.replace(config, vocabulary=str(tmp_path / "absent.model"))
    with pytest.raises(InputError, match="does not exist"):
        resolve_task(absent)


def test_a_bad_line_met_in_training_raises_the_sources_own_error(config, tmp_path, monkeypatch):
    path = write(tmp_path / "c.jsonl", ["good text " * 20] * 500)
    with path.open("a") as file:
        file.write('{"other": 1}\n')
    bad = dataclasses.replace(config, data_files=str(path), batch_size=4, num_data_shards=1)
    _, _, stream = opened(bad, [0])
    with pytest.raises(InputError, match="no column 'text'; it has 'other'"):
        taken(stream, 3000)
    stream.close()


def _features() -> dict[str, seqio.Feature]:
    return {name: seqio.Feature(seqio.ByteVocabulary(100), dtype=tf.int32) for name in ("inputs", "targets")}


def test_mixtures_follow_their_rates_and_resume(config, tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "CHUNK_BYTES", 1000)
    for name, letter in (("mixed_a", "a"), ("mixed_b", "b")):
        seqio.TaskRegistry.add(
            name,
            source=FileSource(str(write(tmp_path / f"{letter}.txt", [letter * 40] * 200))),
            preprocessors=[tokenize_documents, span_corruption],
            output_features=_features(),
            shuffle_buffer_size=None,
        )
    seqio.MixtureRegistry.add("mixed", [("mixed_a", 3.0), ("mixed_b", 1.0)])
    mixed = dataclasses.replace(
        config, mixture_or_task_name="mixed", vocabulary="byte", data_files=None, batch_size=32, num_data_shards=2
    )
    task, lengths, stream = opened(mixed, [0, 1])
    check_sources(task, mixed)
    first = taken(stream, 20)
    share = (first[:, :, 0] == ord("a") + 3).mean()
    assert 0.68 < share < 0.82
    assert ((first[:, :, 0] == ord("a") + 3) | (first[:, :, 0] == ord("b") + 3)).all()
    positions = stream.positions()
    expected = taken(stream, 10)
    stream.close()
    again = streams.TrainStream(task, lengths, mixed, [0, 1])
    again.begin(0, positions)
    np.testing.assert_array_equal(taken(again, 10), expected)
    again.close()
    with pytest.raises(InputError, match="is a mixture"):
        resolve_task(dataclasses.replace(mixed, data_files="c.txt"))
    by_examples = functools.partial(seqio.mixing_rate_num_examples, temperature=2.0)
    seqio.MixtureRegistry.add("by_examples", ["mixed_a", "mixed_b"], default_rate=by_examples)
    uncounted = dataclasses.replace(mixed, mixture_or_task_name="by_examples")
    with pytest.raises(InputError, match="mixed_a in mixture by_examples is not known.*mixture_temperature"):
        resolve_task(uncounted)
    rates = resolve_task(dataclasses.replace(uncounted, mixture_temperature=2.0))
    assert rates.get_rate(rates.tasks[0]) == rates.get_rate(rates.tasks[1]) > 0


@pytest.mark.slow
def test_a_task_is_read_from_its_offline_cache(config, tmp_path):
    def from_nowhere(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        raise AssertionError("the source is not read where there is a cache")

    seqio.TaskRegistry.add(
        "cached",
        source=seqio.FunctionDataSource(from_nowhere, ["train", "validation"]),
        preprocessors=[seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(), span_corruption],
        output_features=_features(),
    )
    cached = dataclasses.replace(
        config, mixture_or_task_name="cached", vocabulary="byte", data_files=None, cache_dir=str(tmp_path)
    )
    with pytest.raises(InputError, match="task cached has no cache; make the cache there with seqio_cache_tasks"):
        resolve_task(cached)
    (tmp_path / "cached").mkdir()
    info = {"num_shards": 1, "features": {"targets": {"shape": [None], "dtype": "int32"}}, "seqio_version": "1.0.0"}
    for split, letter in (("train", "t"), ("validation", "v")):
        ids = [ord(letter) + 3] * 90
        example = tf.train.Example()
        example.features.feature["targets"].int64_list.value.extend(ids)
        with tf.io.TFRecordWriter(str(tmp_path / "cached" / f"{split}.tfrecord-00000-of-00001")) as writer:
            for _ in range(50):
                writer.write(example.SerializeToString())
        (tmp_path / "cached" / f"info.{split}.json").write_text(json.dumps(info))
        (tmp_path / "cached" / f"stats.{split}.json").write_text(json.dumps({"examples": 50}))
    (tmp_path / "cached" / "COMPLETED").write_text("")
    task, lengths, stream = opened(cached)
    check_sources(task, cached)
    rows = next(stream)
    stream.close()
    assert all((rows[shard]["inputs"] == ord("t") + 3).mean() > 0.7 for shard in rows)
    batches = validation.validation_batches(task, lengths, cached, 1)
    assert (batches[0]["encoder_input_tokens"] == ord("v") + 3).mean() > 0.7


def test_other_sources_train_and_resume_by_reading_again(config, caplog):
    def dataset_fn(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        del split, shuffle_files, seed
        return tf.data.Dataset.from_generator(
            lambda: ({"text": f"document {number} " * 9} for number in range(100)),
            output_signature={"text": tf.TensorSpec([], tf.string)},
        )

    seqio.TaskRegistry.add(
        "from_a_function",
        source=seqio.FunctionDataSource(dataset_fn, ["train"]),
        preprocessors=[tokenize_documents, span_corruption],
        output_features=_features(),
        shuffle_buffer_size=10,
    )
    legacy = dataclasses.replace(
        config, mixture_or_task_name="from_a_function", vocabulary="byte", data_files=None, num_data_shards=2
    )
    task, lengths, unused = opened(legacy, [0, 1])
    unused.close()
    check_sources(task, legacy)
    stream = open_stream(task, lengths, legacy, [0, 1])
    assert caplog.text.count("cannot save its data position") == 1
    taken(stream, 7)
    positions = stream.positions()
    expected = taken(stream, 5)
    stream.close()
    again = streams.TrainStream(task, lengths, legacy, [0, 1])
    again.begin(0, positions)
    np.testing.assert_array_equal(taken(again, 5), expected)
    again.close()
    assert validation.validation_batches(task, lengths, legacy, 3) == []
    with pytest.raises(InputError, match="task from_a_function has train; give one"):
        check_sources(task, dataclasses.replace(legacy, train_split="test"))


@pytest.fixture
def two_corpora(tmp_path):
    """A mixture of one corpus and another sixteen times its size."""
    for name, count in (("small", 50), ("large", 800)):
        seqio.TaskRegistry.add(
            name,
            source=FileSource(str(write(tmp_path / f"{name}.txt", [name[0] * 40] * count))),
            preprocessors=[tokenize_documents, span_corruption],
            output_features=_features(),
            shuffle_buffer_size=None,
        )
    seqio.MixtureRegistry.add("small_and_large", [("small", 1.0), ("large", 1.0)])
    yield "small_and_large"
    seqio.MixtureRegistry.remove("small_and_large")
    for name in ("small", "large"):
        seqio.TaskRegistry.remove(name)


@pytest.mark.parametrize(("temperature", "expected"), [(None, 1 / 2), (1.0, 16 / 17), (2.0, 4 / 5)])
def test_temperature_sets_a_mixtures_rates_by_size(config, two_corpora, temperature, expected):
    mixed = dataclasses.replace(
        config,
        mixture_or_task_name=two_corpora,
        vocabulary="byte",
        data_files=None,
        batch_size=64,
        num_data_shards=1,
        mixture_temperature=temperature,
    )
    _, _, stream = opened(mixed, [0])
    first = taken(stream, 12)[:, :, 0]
    stream.close()
    assert abs((first == ord("l") + 3).mean() - expected) < 0.06


def test_a_temperature_needs_the_size_of_every_file_and_an_empty_one_has_a_size(config, tmp_path, monkeypatch):
    for name, texts in (("full", ["some text"] * 9), ("blank", [])):
        write(tmp_path / f"{name}.txt", texts)

    sized = dataclasses.replace(
        config, mixture_or_task_name="sized_mix", data_files=None, vocabulary="byte", mixture_temperature=2.0
    )

    def rate(source: FileSource) -> float:
        steps = [tokenize_documents, span_corruption]
        task = seqio.TaskRegistry.add("sized", source=source, preprocessors=steps, output_features=_features())
        seqio.MixtureRegistry.add("sized_mix", [("sized", 1.0)])
        try:
            return resolve_task(sized).get_rate(task)
        finally:
            seqio.MixtureRegistry.remove("sized_mix")
            seqio.TaskRegistry.remove("sized")

    assert rate(FileSource(f"{tmp_path}/*.txt")) == 90**0.5
    with pytest.raises(InputError, match="holds 0 bytes in split 'train'; give files with text"):
        rate(FileSource(f"{tmp_path}/blank.txt"))
    unknown = FileSource(f"{tmp_path}/full.txt")
    monkeypatch.setattr(unknown, "list_files", lambda patterns: [File(f"{tmp_path}/full.txt", None)])
    with pytest.raises(InputError, match="mixture_temperature is 2.0, and the size .* is not known; leave it out"):
        rate(unknown)


@pytest.mark.parametrize("hosts", [1, 2])
def test_num_epochs_gives_every_token_so_often_and_ends(config, hosts):
    """Shards of unequal length end with padding, so that nothing of a corpus is left out."""
    twice = dataclasses.replace(config, num_epochs=2)
    task, _, _ = opened(twice)
    vocabulary = task.output_features["targets"].vocabulary
    count = 0
    for host in range(hosts):
        _, _, stream = opened(twice, range(host * 4 // hosts, (host + 1) * 4 // hosts))
        for rows in stream:
            both = np.concatenate([part[name].ravel() for part in rows.values() for name in part])
            sentinel = both >= vocabulary.vocab_size - 100
            count += int(((both > 0) & (both != vocabulary.eos_id) & ~sentinel).sum())
        assert set(stream.epochs().values()) == {2.0}
        assert not any(part[name].any() for part in stream.empty().values() for name in part)
        stream.close()
    assert count == 2 * sum(len(vocabulary.encode(text)) for text in task.source.texts("train"))


def test_a_hub_data_set_is_pinned_to_the_commit_it_began_with(config, monkeypatch):
    source = HubSource("someone/corpus")
    commit = "0123456789abcdef0123456789abcdef01234567"
    address = f"hf://datasets/someone/corpus@{commit}/data/train-0.parquet"
    monkeypatch.setattr(HubSource, "patterns", {"train": [address]})
    task = resolve_task(dataclasses.replace(config, data_files=None)).replace(source=source)
    assert revisions(task) == {task.name: commit}
    fixed = pinned(task, {task.name: commit})
    assert fixed.source.revision == commit and fixed.source.path == "someone/corpus"
    assert revisions(fixed) == {} and pinned(task, {}) is task
