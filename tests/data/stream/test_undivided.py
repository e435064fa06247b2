"""A source of TensorFlow that cannot be divided: opened once a process, and dealt as `tf.data.Dataset.shard` does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.config import DataConfig, InputError
from limba.data.bridge import dealt as undivided
from limba.data.bridge.dealt import Undivided
from limba.data.bridge.graph import SharedGraph
from limba.data.dataset import Dataset, preprocessor
from limba.data.sources import first_example
from limba.data.stream import shard as shard_rows
from limba.data.stream.stages import open_stream
from limba.data.stream.streams import TrainStream

NUM_SHARDS = 4
NUM_TEXTS = 1001
LENGTHS = {"inputs": 24, "targets": 24}


class Function:
    """A function as users of T5X stream a corpus by, which counts how often it is opened, and what is drawn of it."""

    def __init__(self, num_texts: int | None = NUM_TEXTS, fails_at: int | None = None):
        self.num_texts = num_texts
        self.fails_at = fails_at
        self.opened = self.drawn = 0

    def texts(self) -> Iterator[str]:
        self.opened += 1
        for number in itertools.islice(itertools.count(), self.num_texts):
            if number == self.fails_at:
                raise RuntimeError("the mirror is away")
            self.drawn += 1
            yield f"text {number} " + "word " * (number % 7)

    def __call__(self, split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(self.texts, output_signature=tf.TensorSpec((), tf.string))


def pairs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The bytes of a text as the ids of both sides, as ByteVocabulary has them."""

    def of_text(text: tf.Tensor) -> dict[str, tf.Tensor]:
        ids = tf.cast(tf.io.decode_raw(text, tf.uint8), tf.int32) + 3
        return {"inputs": ids, "targets": ids}

    return dataset.map(of_text)


def task_of(function: Callable, *more: Callable, name: str = "streamed") -> seqio.Task:
    feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=False)
    source = seqio.FunctionDataSource(function, splits=("train",))
    return seqio.Task(name, source, dict.fromkeys(LENGTHS, feature), [pairs, *more], shuffle_buffer_size=40)


def config_of(**choices: Any) -> DataConfig:
    return DataConfig("streamed", LENGTHS, **{"batch_size": 16, "num_data_shards": NUM_SHARDS, **choices})


def batches(stream: Any, count: int) -> list[dict[int, Mapping[str, np.ndarray]]]:
    return [next(stream) for _ in range(count)]


def assert_same(made: list[dict[int, Any]], expected: list[dict[int, Any]]) -> None:
    for one, other in zip(made, expected, strict=True):
        assert one.keys() == other.keys()
        for shard, rows in one.items():
            for name, values in rows.items():
                np.testing.assert_array_equal(values, other[shard][name])


def test_each_shard_has_its_documents_and_the_source_is_opened_once() -> None:
    """Eight shards opened it eight times, and drew eight times as many documents."""
    function = Function(num_texts=None)
    stream = open_stream(task_of(function), LENGTHS, config_of(shuffle=False), range(NUM_SHARDS))
    all_batches = batches(stream, 40)
    assert function.opened == 1
    assert function.drawn < 5 * 40 * 16  # with what is read ahead
    stream.close()
    for shard in range(NUM_SHARDS):
        rows = [row for batch in all_batches for row in batch[shard]["targets"]]
        for number, row in enumerate(rows):
            document = number * NUM_SHARDS + shard
            expected = seqio.ByteVocabulary().encode(f"text {document} " + "word " * (document % 7))[:24]
            assert np.trim_zeros(row).tolist() == expected


@pytest.mark.slow
def test_rows_do_not_depend_on_the_number_of_hosts_and_a_resumed_run_goes_on() -> None:
    function = Function()
    one = open_stream(task_of(function), LENGTHS, config_of(), range(NUM_SHARDS))
    expected = batches(one, 70)
    positions = one.positions()
    after = batches(one, 10)
    one.close()
    for shards in (range(2), range(2, NUM_SHARDS)):
        function = Function()
        host = open_stream(task_of(function), LENGTHS, config_of(), shards)
        assert_same(batches(host, 70), [{shard: batch[shard] for shard in shards} for batch in expected])
        assert function.opened <= function.drawn // NUM_TEXTS + 1  # once in each epoch
        host.close()
    function = Function()
    resumed = open_stream(task_of(function), LENGTHS, config_of(), range(NUM_SHARDS))
    resumed.begin(70, positions)
    assert_same(batches(resumed, 10), after)
    assert function.opened <= function.drawn // NUM_TEXTS + 1
    resumed.close()


def test_the_tokens_of_a_mixture_are_counted_once_in_a_resumed_run() -> None:
    """Though its text is read again from the beginning, since the source has no place."""

    def mixture_of(*functions: Function) -> seqio.Mixture:
        for number, function in enumerate(functions):
            seqio.TaskRegistry.remove(f"counted_{number}")
            seqio.TaskRegistry.add_provider(f"counted_{number}", task_of(function, name=f"counted_{number}"))
        seqio.MixtureRegistry.remove("counted")
        return seqio.MixtureRegistry.add("counted", [("counted_0", 1.0), ("counted_1", 3.0)])

    config = config_of(num_data_shards=1, batch_size=8)
    stream = open_stream(mixture_of(Function(), Function()), LENGTHS, config, [0])
    batches(stream, 9)
    positions = stream.positions()
    batches(stream, 4)
    expected = stream.tokens()
    stream.close()
    stream = open_stream(mixture_of(Function(), Function()), LENGTHS, config, [0])
    stream.begin(9, positions)
    batches(stream, 4)
    assert stream.tokens() == expected
    assert min(expected.values()) > 100
    stream.close()


class Another(Function):
    """The same function with one other text."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number

    def texts(self) -> Iterator[str]:
        for number, text in enumerate(super().texts()):
            yield f"{text}!" if number == self.number else text


@pytest.mark.parametrize("policy", ["refuse", "new_epoch"])
@pytest.mark.slow
def test_other_documents_the_second_time_are_one_sentence(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    """Before the first step, where the run has taken them; those behind it are nothing that it has read."""
    config = config_of(on_changed_corpus=policy)
    stream = open_stream(task_of(Function()), LENGTHS, config, range(NUM_SHARDS))
    batches(stream, 10)
    positions = json.loads(json.dumps(stream.positions()))
    positions = {int(shard): position for shard, position in positions.items()}
    stream.close()
    taken = {position["place"]["marks"]["streamed"][-2] for position in positions.values()}
    assert max(taken) < NUM_TEXTS // NUM_SHARDS
    changed = 3 + NUM_SHARDS * 5
    stream = open_stream(task_of(Another(changed)), LENGTHS, config, range(NUM_SHARDS))
    # The first 1, 2, 4, 8, … documents of a shard are compared, and the changed one is the sixth of shard 3.
    sentence = "The source of task streamed gives other documents than this run has read: the first other one is among"
    sentence = f"{sentence} documents 5 to 8 of data shard 3, which takes one in {NUM_SHARDS}"
    if policy == "refuse":
        with pytest.raises(InputError, match=f"{sentence}. A run is resumed with a source"):
            stream.begin(10, positions)
    else:
        stream.begin(10, positions)
        next(stream)
        assert caplog.text.count(sentence) == 1
    stream.close()
    # What the run has not taken may be another text.
    stream = open_stream(task_of(Another(NUM_TEXTS - 1)), LENGTHS, config_of(), range(NUM_SHARDS))
    stream.begin(10, positions)
    next(stream)
    stream.close()


@pytest.mark.slow
def test_epochs_begin_anew_at_the_first_shard() -> None:
    """As `shard`, then `repeat`: 1,001 documents are 251 of the first shard and 250 of the others, in each epoch."""
    function = Function()
    stream = open_stream(task_of(function), LENGTHS, config_of(num_epochs=2, shuffle=False), range(NUM_SHARDS))
    all_batches = list(stream)
    counts = [
        sum(int((batch[shard]["targets"][:, 0] != 0).sum()) for batch in all_batches) for shard in range(NUM_SHARDS)
    ]
    assert counts == [2 * 251, *[2 * 250] * (NUM_SHARDS - 1)] and function.opened == 2
    stream.close()


@pytest.mark.slow
def test_a_preprocessor_reads_it_at_two_places() -> None:
    def negatives(dataset: tf.data.Dataset) -> tf.data.Dataset:
        joined = lambda one, other: {"inputs": one["inputs"], "targets": other["targets"]}
        return tf.data.Dataset.zip((dataset, dataset.skip(50))).map(joined)

    function = Function()
    config = config_of(num_epochs=1, shuffle=False)
    stream = open_stream(task_of(function, negatives), LENGTHS, config, range(NUM_SHARDS))
    all_batches = list(stream)
    stream.close()
    assert function.opened == 2
    decode = lambda row: int(seqio.ByteVocabulary().decode(row.tolist()).split()[1])
    pairs_found = [
        (decode(one), decode(other))
        for batch in all_batches
        for one, other in zip(batch[3]["inputs"], batch[3]["targets"], strict=True)
        if one.any()
    ]
    assert pairs_found == [(4 * n + 3, 4 * (n + 50) + 3) for n in range(250 - 50)]


@seqio.map_over_dataset(num_seeds=2)
def noised(pair: Mapping[str, tf.Tensor], seeds: Any) -> dict[str, tf.Tensor]:
    """Adds a random number to each side, by a seed of its own."""
    return {
        name: pair[name] + tf.random.stateless_uniform([], seed, 0, 100, tf.int32)
        for name, seed in zip(pair, seeds, strict=True)
    }


@pytest.mark.parametrize("steps", [[noised], [noised, seqio.CacheDatasetPlaceholder(), noised]], ids=["one", "cached"])
@pytest.mark.slow
def test_preprocessors_are_traced_once_and_draw_as_if_traced_for_each_shard(
    steps: list[Callable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen shards waited for their first batch sixteen times as long as one."""
    calls = 0

    def counted(dataset: tf.data.Dataset) -> tf.data.Dataset:
        nonlocal calls
        calls += 1
        return dataset

    def rows() -> list[dict[int, Mapping[str, np.ndarray]]]:
        stream = open_stream(task_of(Function(), *steps, counted), LENGTHS, config_of(), range(NUM_SHARDS))
        all_batches = batches(stream, 10)
        stream.close()
        return all_batches

    shared = rows()
    assert calls == 1
    monkeypatch.setattr(SharedGraph, "followed", lambda *_: None)
    assert_same(rows(), shared)
    assert calls == 1 + NUM_SHARDS
    assert not np.array_equal(shared[0][0]["targets"], shared[0][1]["targets"])


def test_the_first_batch_reads_hardly_more_than_it_needs() -> None:
    """Each `map` of AUTOTUNE read a group of documents ahead, and the first batch waited for those after it."""

    def in_groups(dataset: tf.data.Dataset) -> tf.data.Dataset:
        groups = dataset.ragged_batch(16)
        for _ in range(5):
            groups = groups.map(lambda group: group, num_parallel_calls=tf.data.AUTOTUNE)
        return groups.unbatch()

    function = Function(num_texts=None)
    stream = open_stream(task_of(function, in_groups), LENGTHS, config_of(shuffle=False), range(NUM_SHARDS))
    assert isinstance(stream, TrainStream)
    stream.wait()
    stream.close()
    # A shard has used 16 of its block; one that was ready while others were waited for may have begun a second block.
    assert function.drawn <= 2 * NUM_SHARDS * undivided.DOCUMENTS_A_BLOCK


def test_a_map_with_parallel_calls_is_as_it_was_after_tracing() -> None:
    as_written = tf.data.Dataset.map
    stream = open_stream(task_of(Function()), LENGTHS, config_of(), range(NUM_SHARDS))
    stream.close()
    assert tf.data.Dataset.map is as_written


@pytest.mark.slow
def test_a_preprocessor_that_looks_at_its_data_set_gets_that_of_each_shard(monkeypatch) -> None:
    monkeypatch.setattr(seqio.utils, "_NEXT_MAP_SEED", None)  # who has used seqio alone has left a seed there

    def after_the_first(dataset: tf.data.Dataset) -> tf.data.Dataset:
        first = next(dataset.as_numpy_iterator())["targets"]
        return dataset.filter(lambda pair: tf.reduce_any(pair["targets"][:7] != first[:7]))

    config = config_of(num_epochs=1, shuffle=False)
    stream = open_stream(task_of(Function(), after_the_first), LENGTHS, config, range(NUM_SHARDS))
    batch = next(stream)
    stream.close()
    decode = lambda row: seqio.ByteVocabulary().decode(row.tolist()).split()[1]
    assert [decode(batch[shard]["targets"][0]) for shard in range(NUM_SHARDS)] == ["4", "5", "6", "7"]
    assert seqio.utils._NEXT_MAP_SEED is None, "a trace that fails leaves no seed of its graph behind"


@pytest.mark.parametrize(
    "source",
    [
        lambda: tf.data.Dataset.from_tensor_slices({"number": np.arange(50), "vector": np.ones([50, 3], np.float32)}),
        lambda: tf.data.Dataset.range(50).map(lambda n: (tf.repeat(n, n % 4), {"text": tf.strings.as_string(n)})),
        lambda: tf.data.Dataset.range(50).map(lambda n: {"words": tf.repeat(tf.strings.as_string(n), n % 3)}),
        lambda: tf.data.Dataset.from_tensor_slices(
            tf.ragged.constant([[["a"] * (n % 2)] * (n % 4) for n in range(50)])
        ),
        lambda: tf.data.Dataset.range(50).map(lambda n: {"nothing": None, "number": n}),
    ],
    ids=["numbers and vectors", "a pair", "strings", "ragged", "with None"],
)
def test_documents_of_any_kind_stay_what_they_are(source: Callable[[], tf.data.Dataset]) -> None:
    whole = source()
    assert Undivided.deals(whole)
    dealt = Undivided("any", whole, config_of(num_epochs=1), lambda error: None)
    parts = [dealt.documents(shard).source for shard in range(4)]
    for shard in (2, 0, 1, 3):  # one after the other: the documents of the others wait
        assert parts[shard].element_spec == whole.element_spec
        documents = [repr(document) for document in parts[shard].as_numpy_iterator()]
        assert documents == [repr(document) for document in whole.shard(4, shard).as_numpy_iterator()]


def test_data_sets_of_data_sets_are_not_dealt() -> None:
    assert not Undivided.deals(tf.data.Dataset.range(8).window(2))


def test_documents_that_wait_for_a_shard_that_is_behind_are_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undivided, "MOST_WAITING_BYTES", 20_000)
    monkeypatch.setattr(undivided, "BYTES_A_FILE", 5_000)
    files = []
    temporary = tempfile.TemporaryFile

    def noted_file() -> Any:
        files.append(temporary())
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", noted_file)
    whole = tf.data.Dataset.range(3000).map(tf.strings.as_string)
    dealt = Undivided("any", whole, config_of(num_epochs=1, num_data_shards=3, batch_size=12), lambda error: None)
    parts = [dealt.documents(shard) for shard in range(3)]
    readings = [iter(part) for part in parts]
    numbers = [list(itertools.islice(readings[0], 900))]
    # What a file has of a document: four letters at most and their number, 8 bytes, behind a header of 128.
    num_in_files = sum((os.fstat(file.fileno()).st_size - 128) / 12 for file in files)
    num_in_memory = 2 * 900 - num_in_files
    assert num_in_memory * undivided.BYTES_A_ROW <= 20_000
    assert len(files) > 10
    numbers += [list(itertools.islice(readings[shard], 900)) for shard in (1, 2)]
    assert numbers == [[b"%d" % (3 * n + shard) for n in range(900)] for shard in range(3)]
    assert [len(list(reading)) for reading in readings] == [100, 100, 100]


@pytest.mark.slow
def test_a_shard_without_a_document_is_named() -> None:
    function = Function(num_texts=3)
    stream = open_stream(task_of(function), LENGTHS, config_of(), range(NUM_SHARDS))
    with pytest.raises(InputError, match=r"task streamed has 3 documents, none for data shard 3 of 4; set") as error:
        next(stream)
    assert error.value.fix == ("DataConfig.num_data_shards", 1)
    stream.close()


def nothing(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.filter(lambda pair: tf.shape(pair["targets"])[0] > 10_000)


def of_known_size(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices([f"text {number}" for number in range(NUM_TEXTS)])


@pytest.mark.parametrize("num_shards", [1, NUM_SHARDS])
@pytest.mark.parametrize(
    "source", [Function(), Function(num_texts=None), of_known_size], ids=["ends", "endless", "size"]
)
@pytest.mark.slow
def test_a_source_of_which_preprocessors_keep_nothing_is_one_sentence(
    source: Callable, num_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read for ever: one shard by the source itself, several by what deals its documents."""
    monkeypatch.setattr(shard_rows, "MOST_IN_TENSORFLOW", 4_000)
    monkeypatch.setattr(first_example, "WITHOUT_AN_EPOCH", 2)
    is_known_to_end = source is of_known_size or (num_shards > 1 and source.num_texts is not None)
    where = r"in \d+ epoch\(s\)" if is_known_to_end else "and where its epochs end is not known"
    config = config_of(num_data_shards=num_shards)
    stream = open_stream(task_of(source, nothing), LENGTHS, config, range(num_shards))
    with contextlib.closing(stream), pytest.raises(InputError) as refusal:
        next(stream)
    said = re.fullmatch(
        "The source of task streamed gives no row: the preprocessors of task streamed have made none of the"
        rf" ([\d,]+) documents that data shard \d has read of it, {where}; give text that they keep, or other"
        " preprocessors.",
        str(refusal.value),
    )
    assert said is not None, refusal.value
    num_read = int(said[1].replace(",", ""))
    least = 4_000 if is_known_to_end else 8_000
    assert least <= num_read <= least + 1_024


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [1, NUM_SHARDS])
@pytest.mark.parametrize("source", [Function(), of_known_size], ids=["function", "size"])
def test_the_first_row_may_come_at_the_end_of_an_epoch(
    source: Callable, num_shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No epoch is given up before its end, however many documents make no row."""
    monkeypatch.setattr(shard_rows, "MOST_IN_TENSORFLOW", 150)

    def last_ones(dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Keeps the texts 991 to 999: 48 to 57 are the digits, and the ids are higher by three."""
        starts = tf.constant([9 + 51, 9 + 51])
        return dataset.filter(lambda pair: tf.reduce_all(pair["targets"][5:7] == starts))

    config = config_of(num_data_shards=num_shards, shuffle=False)
    stream = open_stream(task_of(source, last_ones), LENGTHS, config, range(num_shards))
    with contextlib.closing(stream):
        batch = next(stream)
    assert all(rows["targets"].any(axis=1).all() for rows in batch.values())


def in_python(dataset: Dataset) -> Dataset:
    return dataset.map(lambda document: document)


@pytest.mark.parametrize("num_kept", [1, 5])
@pytest.mark.parametrize("num_shards", [1, NUM_SHARDS])
@pytest.mark.parametrize("steps", [[], [preprocessor(in_python)]], ids=["tensorflow", "python after it"])
@pytest.mark.slow
def test_fewer_examples_an_epoch_than_leave_tensorflow_at_once(
    num_kept: int, num_shards: int, steps: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was refused, since the examples waited until eight of them were there."""
    monkeypatch.setattr(shard_rows, "MOST_IN_TENSORFLOW", 150)
    monkeypatch.setattr(shard_rows, "FETCHED_ROWS", 1)  # few epochs are read ahead of the batch
    num_texts = 400 * num_shards

    def numbers(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        return tf.data.Dataset.range(num_texts)

    def few(dataset: tf.data.Dataset) -> tf.data.Dataset:
        kept = dataset.filter(lambda number: number // num_shards >= 400 - num_kept)
        return kept.map(lambda number: dict.fromkeys(LENGTHS, tf.cast([number + 1], tf.int32)))

    task = task_of(numbers)
    task = seqio.Task("few", task.source, task.output_features, [few, *steps])
    config = config_of(num_data_shards=num_shards, batch_size=2 * num_shards, shuffle=False)
    with contextlib.closing(open_stream(task, LENGTHS, config, range(num_shards))) as stream:
        batch = next(stream)
    for shard in range(num_shards):
        kept = [number * num_shards + shard + 1 for number in range(400 - num_kept, 400)]
        expected = [*kept, *kept][:2]
        assert batch[shard]["targets"][:, 0].tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("drops_all", [False, True])
def test_a_run_goes_on_where_one_shard_has_an_example(drops_all: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few documents of an endless function are kept, by Python too: one shard may have none for long."""
    monkeypatch.setattr(shard_rows, "MOST_IN_TENSORFLOW", 100)
    monkeypatch.setattr(first_example, "WITHOUT_AN_EPOCH", 3)

    def numbers(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
        return tf.data.Dataset.range(2**62).map(lambda number: dict.fromkeys(LENGTHS, tf.repeat(number + 1, 1)))

    def has_example(example: Mapping[str, np.ndarray]) -> bool:
        number = int(example["targets"][0]) - 1
        first_of_shard = 200 if number % 2 == 0 else 40_000
        return not drops_all and number >= first_of_shard

    @preprocessor
    def rare(dataset: Dataset) -> Dataset:
        return dataset.flat_map(lambda example, _: [example] if has_example(example) else [])

    plain = task_of(numbers)
    task = seqio.Task("rare", plain.source, plain.output_features, [rare])
    config = config_of(num_data_shards=2, batch_size=2, shuffle=False)
    with contextlib.closing(open_stream(task, LENGTHS, config, range(2))) as stream:
        if drops_all:
            with pytest.raises(InputError, match="The source of task rare gives no row"):
                next(stream)
            return
        batch = next(stream)
    assert [batch[shard]["targets"][0, 0] for shard in range(2)] == [201, 40_002]


def test_a_function_that_fails_in_the_middle_is_one_sentence_of_all_shards() -> None:
    function = Function(fails_at=300)
    stream = open_stream(task_of(function), LENGTHS, config_of(shuffle=False), range(NUM_SHARDS))
    assert isinstance(stream, TrainStream)
    with pytest.raises(InputError) as error:
        batches(stream, 30)
    said = str(error.value)
    assert said.startswith("The code of task streamed fails: RuntimeError: the mirror is away (")
    assert f"{__file__} line " in said and ", in texts); correct it" in said
    with pytest.raises(InputError, match="the mirror is away"):
        next(stream)
    stream.close()
