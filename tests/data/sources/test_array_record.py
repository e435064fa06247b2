"""ArrayRecord and TFDS: every record once an epoch in one shard, in an order over all of them; exact positions."""

import itertools
import json
import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds

import tasks.cc100
import tasks.lm1b
import tasks.wiki40b  # noqa: F401  each registers its tasks
from limba.config import DataConfig, InputError
from limba.data.draws import Draws, Purpose
from limba.data.objectives import derive_lengths, span_corruption, tokenize_documents
from limba.data.sources import ArrayRecordSource, FileSource, TfdsSource, array_record
from limba.data.sources.array_record import permuted
from limba.data.sources.splits import PIECE_BYTES
from limba.data.sources.tfds import masked
from limba.data.stream import streams
from limba.data.tasks import resolve_task, source_of_files
from limba.data.vocabulary.load import load_vocabulary
from tests.data.text_files import TEXTS, write, write_examples, write_records, write_three_records

NO_VALIDATION = 0.0


@pytest.fixture
def records(tmp_path):
    return ArrayRecordSource(f"{write_three_records(tmp_path)}/*.array_record", validation_percent=NO_VALIDATION)


def texts(dataset, count=None):
    return [example["text"].decode() for example in itertools.islice(dataset, count)]


@pytest.mark.parametrize("size", [1, 2, 7, 64, 65, 1000])
def test_permuted_is_a_permutation_that_the_key_chooses(size):
    keys = [Draws(3, era=epoch).words(Purpose.RECORDS).raw(6) for epoch in range(3)]
    orders = [tuple(permuted(np.arange(size), size, key)) for key in keys]
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert size < 64 or len(set(orders)) == 3
    assert permuted(np.array([size - 1]), size, keys[1])[0] == orders[1][-1]  # a place does not need the others


def test_order_is_drawn_over_all_files(records):
    order = texts(records.documents("train", seed=1, num_epochs=1))
    places = np.array([TEXTS.index(text) for text in order])
    assert np.abs(np.diff(places)).mean() > 0.8 * len(TEXTS) / 3
    assert texts(records.documents("train", shuffle=False, num_epochs=1)) == TEXTS == list(records.texts("train"))


def test_records_train_as_a_corpus_and_tokens_are_taken_as_they_are(tmp_path, vocabulary):
    """The same documents as text and as tokens give the same rows."""
    loaded = load_vocabulary(str(vocabulary))
    write_records(tmp_path / "text.array_record", [text.encode() for text in TEXTS])
    tokens = [np.array(loaded.encode(text), "<i4").tobytes() for text in TEXTS]
    write_records(tmp_path / "tokens.array_record", tokens, "tokens")
    seqio.TaskRegistry.add(
        "records",
        source=FileSource("nowhere.jsonl"),
        preprocessors=[tokenize_documents, span_corruption],
        output_features={name: seqio.Feature(loaded, dtype=tf.int32) for name in ("inputs", "targets")},
        shuffle_buffer_size=None,
    )
    try:
        rows = []
        for column in ("text", "tokens"):
            config = DataConfig(
                "records",
                {"inputs": 64},
                batch_size=4,
                num_data_shards=2,
                data_files=dict.fromkeys(("train", "validation"), f"{tmp_path}/{column}.array_record"),
                column=column,
            )
            task = resolve_task(config)
            lengths = derive_lengths(task, config.task_feature_lengths)
            stream = streams.TrainStream(task, lengths, config, range(2))
            rows.append([next(stream) for _ in range(5)])
            assert stream.epochs() == {"records": 0.0}  # they are noted part by part, and this is the first
            stream.close()
        rows = [[part[name] for batch in some for part in batch.values() for name in part] for some in rows]
        for ours, others in zip(*rows, strict=True):
            np.testing.assert_array_equal(ours, others)
    finally:
        seqio.TaskRegistry.remove("records")


@pytest.mark.parametrize(
    ("column", "files", "message"),
    [
        ("text", "{}/none*.array_record", "matches no file"),
        ("body", "{}/*.array_record", "is 'body', and .* has 'text'; give one"),
        ("text", "{}/torn.array_record", "cannot be read as ArrayRecord"),
        ("text", "memory://x/a.array_record", "local files and gs:// only"),
    ],
)
def test_bad_records_are_refused(records, tmp_path, column, files, message):
    if "torn" in files:
        (tmp_path / "torn.array_record").write_bytes(b"no records here" * 100)
    if "memory" in files:
        import fsspec

        fsspec.filesystem("memory").pipe("/x/a.array_record", b"there")
    with pytest.raises(InputError, match=message):
        ArrayRecordSource(files.format(tmp_path), column=column).check("train")


def test_each_kind_of_feature_is_read_as_in_other_formats_or_refused(tmp_path, caplog):
    path = tmp_path / "c.array_record"

    def of(column, *examples):
        write_examples(path, examples)
        source = ArrayRecordSource(str(path), column, validation_percent=NO_VALIDATION)
        documents = source.documents("train", shuffle=False, num_epochs=1)
        return [tuple(value.decode() for value in document.values()) for document in documents]

    pair = {"inputs": "q", "targets": "a"}
    several = [{"text": [b"one", b"two"]}, {"text": []}, {"text": [b" \n"]}, {"text": [b"three"]}]
    assert of("text", *several) == [("one two",), ("three",)]
    assert "lists of texts in column 'text'" in caplog.text
    numbers = [{"q": [b"a"], "a": [1]}, {"q": [b"b"], "a": [3.8]}, {"q": [b"c"], "a": [math.nan]}]
    assert of(pair, *numbers, {"q": [b"d"], "a": [b"yes"]}) == [("a", "1"), ("b", "3.8"), ("d", "yes")]
    assert (
        of("tokens", {"tokens": [5, 6]}) == of("tokens", {"tokens": [b"\5\0\0\0\6\0\0\0"]}) == [("\5\0\0\0\6\0\0\0",)]
    )
    for column, example, said in (
        ("text", {"text": [1]}, "record 1 holds int in column 'text', not text"),
        ("text", {"text": [b"caf\xe9"]}, "record 1 holds bytes in column 'text' that are not text in UTF-8"),
        (pair, {"q": [b"a"], "a": [math.inf]}, "record 1 holds float in column 'a', not text"),
        ("tokens", {"tokens": [1 << 40]}, "record 1 holds a number in column 'tokens' that is not an int32 id"),
        ("tokens", {"tokens": [b"\1\0\0\0", b"\1\0\0\0"]}, "record 1 holds list in column 'tokens', not ids"),
    ):
        good = {"text": [b"a"], "q": [b"a"], "a": [b"b"], "tokens": [1]}
        with pytest.raises(InputError, match=said):
            of(column, good, example)


@pytest.mark.parametrize(("column", "value"), [("text", "cuvânt".encode()), ("tokens", b"\5\0\0\0")])
def test_a_usual_record_makes_nothing_of_an_error(tmp_path, monkeypatch, column, value):
    """The words of an error took longer than the value of a record."""
    write_records(tmp_path / "c.array_record", [value, b""], column)
    source = ArrayRecordSource(str(tmp_path / "c.array_record"), column, validation_percent=NO_VALIDATION)
    wanted = [(0, value), (1, b"")]
    assert list(source.records_at("train", np.arange(2))) == wanted
    for name in ("without_credentials", "are_ids"):
        monkeypatch.delattr(array_record, name)
    assert list(source.records_at("train", np.arange(2))) == wanted


def test_long_documents_come_in_pieces_and_whole(tmp_path):
    long = " ".join(f"cuvânt{number}" for number in range(20_000))
    unbroken = "日本語" * 10_000
    source = FileSource(str(write(tmp_path / "c.jsonl", [long, unbroken, "short"])), validation_percent=NO_VALIDATION)
    pieces = texts(source.documents("train", shuffle=False, num_epochs=1))
    assert max(len(piece.encode()) for piece in pieces) <= PIECE_BYTES
    assert " ".join(pieces).replace("語 日", "語日").startswith(long + " 日本語")
    assert "".join(piece for piece in pieces if "日" in piece) == unbroken
    assert list(source.texts("train")) == [long, unbroken, "short"]


def prepare(directory: Path, file_format: str, examples: Sequence[Mapping[str, str | int]]) -> str:
    """Makes a TFDS data set of real files as TFDS's own command makes one; returns its directory."""
    kinds = {name: tf.string if isinstance(value, str) else tf.int64 for name, value in examples[0].items()}
    split = tf.data.Dataset.from_generator(
        lambda: iter(examples), output_signature={name: tf.TensorSpec([], kind) for name, kind in kinds.items()}
    )
    features = {name: tfds.features.Text() if kind is tf.string else kind for name, kind in kinds.items()}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="documents",
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={"train": split},
        data_dir=str(directory),
        file_format=file_format,
        disable_shuffling=True,
    )
    return str(directory)


def test_a_feature_called_tokens_with_text_is_read_by_its_own_name(tmp_path):
    write_records(tmp_path / "c.array_record", [b"the cat sat.", b"ab"], "tokens")
    prepare(tmp_path, "tfrecord", [{"tokens": "the cat sat.", "number": 1}, {"tokens": "ab", "number": 2}])

    def of_tfds(column: str) -> TfdsSource:
        return TfdsSource("documents", column=column, data_dir=str(tmp_path), validation_percent=NO_VALIDATION)

    records = ArrayRecordSource(f"{tmp_path}/c.array_record", "tokens[]", NO_VALIDATION)
    for source in (records, of_tfds("tokens[]")):
        assert texts(source.documents("train", shuffle=False, num_epochs=1)) == ["the cat sat.", "ab"]
    with pytest.raises(InputError, match=r"holds text in column 'tokens', a name for ids; .* 'tokens\[\]'"):
        of_tfds("tokens").check("train")
    with pytest.raises(InputError, match="holds int in column 'number', not text"):
        of_tfds("number").check("train")


@pytest.fixture(scope="module", params=["tfrecord", "array_record"])
def prepared(request, tmp_path_factory):
    examples = [{"text": text, "title": f"{number}"} for number, text in enumerate(TEXTS)]
    return prepare(tmp_path_factory.mktemp("tfds"), request.param, examples)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "array_record", "tfds"])
def test_rows_without_text_are_counted_in_every_format(kind, tmp_path):
    texts = ["a", *[None] * 9]
    pairs = {"inputs": "text", "targets": "title"}
    path = tmp_path / f"c.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text, "title": "b"}) + "\n" for text in texts))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "title": ["b"] * 10}), path)
    elif kind == "array_record":
        values = [{"text": [] if text is None else [text.encode()], "title": [b"b"]} for text in texts]
        write_examples(path, values)
    else:
        prepare(tmp_path, "tfrecord", [{"text": text or "", "title": "b"} for text in texts])
    for column, shares in (("text", {"text": 0.9}), (pairs, {"inputs": 0.9, "targets": 0.0})):
        if kind == "tfds":
            source = TfdsSource("documents", column=column, data_dir=str(tmp_path), validation_percent=NO_VALIDATION)
        else:
            source = source_of_files(str(path), column, NO_VALIDATION)
        assert source.blank_shares("train") == shares
        assert len(list(source.documents("train", num_epochs=1))) == 1


def test_tfds_slices_part_the_split(prepared):
    source = TfdsSource("documents", {"train": "train[:90%]", "validation": "train[90%:]"}, data_dir=prepared)
    train = [text for s in range(2) for text in texts(source.documents("train", shard=s, num_shards=2, num_epochs=1))]
    validation_texts = texts(source.documents("validation", num_epochs=1))
    assert Counter(train) + Counter(validation_texts) == Counter(TEXTS) and len(validation_texts) == len(TEXTS) // 10
    assert source.num_bytes("train") > 0


def test_a_slice_or_file_of_tfds_that_has_fewer_records_than_it_says_is_refused(tmp_path):
    folder = prepare(tmp_path, "tfrecord", [{"text": text} for text in TEXTS])
    with pytest.raises(InputError, match=r"slice 'train\[50:40\]', which ends before it begins"):
        TfdsSource("documents", {"train": "train[50:40]"}, data_dir=folder).units("train")
    source = TfdsSource("documents", {"train": "train"}, data_dir=folder, validation_percent=NO_VALIDATION)
    (path,) = {unit.path for unit in source.units("train")}
    whole = Path(path).read_bytes()
    end = 0
    for _ in range(200):
        end += 16 + int.from_bytes(whole[end : end + 8], "little")
    for content in (whole[:end], b""):
        Path(path).write_bytes(content)
        with pytest.raises(InputError, match=f"it ends before record {len(TEXTS)}, which"):
            list(source.texts("train"))
    garbage = b"\xff\xff\xff garbage"
    length = len(garbage).to_bytes(8, "little")
    Path(path).write_bytes(length + masked(length) + garbage + masked(garbage))
    with pytest.raises(InputError, match="record 0 is not an example of the data set"):
        list(source.texts("train"))


def test_tfds_position_is_restored(prepared):
    source = TfdsSource("documents", {"train": "train"}, data_dir=prepared, validation_percent=5.0)
    items = list(itertools.islice(source.documents("train", seed=2).read(), 423))
    other = TfdsSource("documents", {"train": "train"}, data_dir=prepared, validation_percent=5.0)
    again = itertools.islice(other.documents("train", seed=2).read(items[122].place), 300)
    assert [item.value for item in again] == [item.value for item in items[123:]]


def test_tfds_files_are_marked(prepared):
    source = TfdsSource("documents", {"train": "train[:90%]"}, data_dir=prepared)
    marks = source.marks("train")
    assert {mark.path for mark in marks} == {unit.path for unit in source.units("train")}
    assert all(mark.size > 0 and mark.content.startswith("65536:") for mark in marks)


def test_bad_tfds_choices_are_refused(prepared):
    with pytest.raises(InputError, match="not known to TFDS"):
        TfdsSource("documants", data_dir=prepared).check("train")
    with pytest.raises(InputError, match="no feature 'body'; it has 'text', 'title'"):
        TfdsSource("documents", column="body", data_dir=prepared).check("train")
    with pytest.raises(InputError, match="no split 'test'; it has train"):
        TfdsSource("documents", {"train": "test"}, data_dir=prepared).check("train")
    with pytest.raises(
        InputError, match="wiki40b/ro is not prepared in .*; load it once by tfds.load, set TFDS_DATA_DIR"
    ):
        TfdsSource("wiki40b/ro", data_dir=prepared).check("train")


@pytest.mark.parametrize(
    ("task", "read"),
    [
        ("cc100_ja_causal_lm", "range3/cc100-ja by the task cc100_ja_causal_lm_stream"),
        ("wiki40b_ja_causal_lm", "google/wiki40b by the task wiki40b_ja_causal_lm_stream"),
        ("lm1b_causal_lm", "dvruette/lm1b by the task lm1b_causal_lm_stream"),
    ],
)
def test_a_data_set_that_is_not_there_is_said_with_what_to_read_instead(task, read, tmp_path, monkeypatch):
    """TFDS ran a script of the hub for CC-100, which is not possible any more, and needs Apache Beam for Wiki-40B."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(InputError, match=rf"or read the hub's {read}\.$"):
        seqio.TaskRegistry.get(task).source.check("train")


def test_a_folder_of_tfds_community_builder_is_read(prepared, tmp_path):
    """`huggingface:cc100/lang=ja` of TFDS 4.8 was written to huggingface__cc100; no code of TFDS knows it now."""
    (tmp_path / "huggingface__cc100").mkdir()
    shutil.copytree(Path(prepared) / "documents", tmp_path / "huggingface__cc100" / "ja-lang=ja")
    task = seqio.TaskRegistry.get("cc100_ja_causal_lm").source
    source = TfdsSource("cc100/ja", task.slices, data_dir=str(tmp_path), community=task.community)
    train = texts(source.documents("train", num_epochs=1))
    validation_texts = texts(source.documents("validation", num_epochs=1))
    assert Counter(train) + Counter(validation_texts) == Counter(TEXTS) and validation_texts
    shutil.copytree(Path(prepared) / "documents", tmp_path / "huggingface__cc100" / "ja-2")
    with pytest.raises(InputError, match="is in several folders, .*ja-2.*; keep one of them"):
        TfdsSource("cc100/ja", data_dir=str(tmp_path), community=task.community).check("train")
