"""Prepared shards hold the corpus, each document once, whoever writes them and however often it is interrupted."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import fsspec
import numpy as np
import pyarrow.parquet
import pytest
import tensorflow as tf
from array_record.python import array_record_module

from limba.config import InputError
from limba.data.sources import TfdsSource
from limba.data.vocabulary.load import load_vocabulary
from limba.storage import lease
from limba.tools.corpus import prepare as launch_prepare
from limba.tools.corpus.preparation import prepare as prepare_module
from limba.tools.corpus.preparation.folder import SETTINGS_FILE, OutputFolder
from limba.tools.corpus.preparation.prepare import Settings, prepare
from limba.tools.corpus.preparation.tfds import prepare_tfds
from limba.tools.corpus.task_flags import TaskRecipe
from tasks import cc100
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


def recipe_of(files, vocabulary="byte"):
    return TaskRecipe(None, None, str(files), "text", vocabulary and str(vocabulary), 1.0)


def texts_of(corpus):
    return [json.loads(line)["text"] for line in corpus.read_text().splitlines()]


def records_of(path, column="text"):
    reader = array_record_module.ArrayRecordReader(str(path))
    assert reader.writer_options_string().startswith("group_size:1,")
    examples = [tf.train.Example.FromString(reader.read([index])[0]) for index in range(reader.num_records())]
    reader.close()
    assert all(list(example.features.feature) == [column] for example in examples)
    return [example.features.feature[column].bytes_list.value[0] for example in examples]


def all_records(folder, column="text"):
    return [record for path in sorted(folder.glob("*.array_record")) for record in records_of(path, column)]


def test_shards_are_the_corpus_and_equal_in_size(corpus, tmp_path):
    output = tmp_path / "train"
    found = prepare(recipe_of(corpus), Settings(num_shards=4), str(output))
    prepare(recipe_of(corpus), Settings(split="validation", num_shards=1), str(tmp_path / "validation"))
    names = sorted(path.name for path in output.iterdir())
    assert names == ["prepared.json", *(f"train-{shard:05d}-of-00004.array_record" for shard in range(4))]
    train, validation = all_records(output), all_records(tmp_path / "validation")
    assert sorted([*train, *validation]) == sorted(text.encode() for text in texts_of(corpus))
    assert validation
    assert (found.documents, found.bytes) == (len(train), sum(map(len, train)))
    counts = [len(records_of(path)) for path in output.glob("*.array_record")]
    assert min(counts) > 0.7 * np.mean(counts)
    first = records_of(output / "train-00000-of-00004.array_record")
    order = [text.encode() for text in texts_of(corpus)]
    places = [order.index(record) for record in first]
    assert places != sorted(places)


def test_parquet_holds_strings_in_groups_of_a_thousand(tmp_path):
    corpus = tmp_path / "lines.txt"
    corpus.write_text("".join(f"ligne numéro {number} ☃\n" for number in range(3_000)))
    prepare(recipe_of(corpus), Settings(num_shards=1, format="parquet"), str(tmp_path / "out"))
    file = pyarrow.parquet.ParquetFile(tmp_path / "out" / "train-00000-of-00001.parquet")
    table = file.read()
    assert table.schema.names == ["text"]
    assert str(table.schema.field(0).type) == "string"
    assert file.metadata.row_group(0).num_rows == 1_000
    assert set(table["text"].to_pylist()) <= set(corpus.read_text().splitlines())
    assert 2_900 < table.num_rows < 3_000  # without the validation documents


@pytest.mark.parametrize("form", ["array_record", "parquet"])
def test_tokens_are_the_tasks_own(corpus, vocabulary, tmp_path, form):
    prepare(recipe_of(corpus, vocabulary), Settings(num_shards=2, tokenize=True, format=form), str(tmp_path / "ids"))
    if form == "parquet":
        tables = [pyarrow.parquet.read_table(path) for path in (tmp_path / "ids").glob("*.parquet")]
        assert str(tables[0].schema.field("tokens").type) == "binary"
        records = [record for table in tables for record in table["tokens"].to_pylist()]
    else:
        records = all_records(tmp_path / "ids", "tokens")
    loaded = load_vocabulary(str(vocabulary))
    expected = {tuple(loaded.encode(text)) for text in texts_of(corpus)}
    assert {tuple(np.frombuffer(record, "<i4").tolist()) for record in records} <= expected
    assert len(records) > 0.95 * len(expected)
    assert json.loads((tmp_path / "ids" / SETTINGS_FILE).read_text())["vocabulary"].startswith("sentencepiece ")


@pytest.fixture(scope="module")
def large_corpus(corpus, tmp_path_factory):
    """A second of work: 16,000 different documents, 100 units."""
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    texts = texts_of(corpus)
    with path.open("w") as file:
        for number in range(16_000):
            file.write(json.dumps({"text": f"{number} {texts[number % len(texts)][:400]}"}) + "\n")
    return path


def _killed_when(command, is_time):
    """Starts the command and kills it, as a lost machine would, as soon as `is_time()`."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or is_time(), every=0.001)
        assert process.poll() is None, "finished before it was to be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_killed_and_run_again_gives_each_document_once(large_corpus, tmp_path):
    output = tmp_path / "out"
    flags = [f"--files={large_corpus}", f"--output={output}", "--num_shards=16", "--workers=1"]
    command = [sys.executable, "-m", "limba", "prepare", *flags]
    _killed_when(command, lambda: len(list(output.glob("unfinished/*.arrow"))) >= 5)
    assert not list(output.glob("*.array_record"))
    read_before = {path.name: path.stat().st_mtime_ns for path in output.glob("unfinished/*.arrow")}
    _killed_when(command, lambda: len(list(output.glob("*.array_record"))) >= 3)
    read_after = {path.name: path.stat().st_mtime_ns for path in output.glob("unfinished/*.arrow")}
    assert {name: read_after[name] for name in read_before} == read_before
    written = {path.name: path.stat().st_mtime_ns for path in output.glob("*.array_record")}
    assert 3 <= len(written) < 16
    assert json.loads((output / SETTINGS_FILE).read_text())["finished"] is False

    found = prepare(recipe_of(large_corpus, None), Settings(num_shards=16), str(output))
    assert not found.was_finished
    assert {name: (output / name).stat().st_mtime_ns for name in written} == written
    assert not (output / "unfinished").exists()
    prepare(recipe_of(large_corpus, None), Settings(num_shards=16), str(tmp_path / "whole"))
    for path in (tmp_path / "whole").iterdir():
        assert (output / path.name).read_bytes() == path.read_bytes()
    records = all_records(output)
    assert len(records) == len(set(records)) == found.documents
    source = recipe_of(large_corpus)().source
    assert sorted(records) == sorted(text.encode() for text in source.texts("train"))


@pytest.mark.night
def test_several_processes_write_the_same(corpus, tmp_path):
    for workers in (1, 2):
        prepare(recipe_of(corpus), Settings(num_shards=3), str(tmp_path / f"by{workers}"), workers=workers)
    for path in (tmp_path / "by1").iterdir():
        assert (tmp_path / "by2" / path.name).read_bytes() == path.read_bytes()


def test_finished_work_is_not_done_again(corpus, tmp_path, monkeypatch):
    first = prepare(recipe_of(corpus), Settings(num_shards=2), str(tmp_path))
    monkeypatch.setattr(prepare_module, "_read_group", None)
    second = prepare(recipe_of(corpus), Settings(num_shards=2), str(tmp_path))
    assert second.was_finished and not first.was_finished
    assert (second.documents, second.bytes) == (first.documents, first.bytes)


def test_an_address_gets_whole_shards(corpus, tmp_path):
    prepare(recipe_of(corpus), Settings(num_shards=2), "memory://bucket/out", scratch=str(tmp_path / "scratch"))
    prepare(recipe_of(corpus), Settings(num_shards=2), str(tmp_path / "local"))
    system = fsspec.filesystem("memory")
    names = sorted(Path(path).name for path in system.ls("/bucket/out", detail=False))
    assert names == sorted(path.name for path in (tmp_path / "local").iterdir())
    for name in names:
        assert system.cat_file(f"/bucket/out/{name}") == (tmp_path / "local" / name).read_bytes()
    assert not list((tmp_path / "scratch").iterdir())


def test_one_folder_has_one_setting(corpus, vocabulary, tmp_path):
    output = str(tmp_path / "out")
    prepare(recipe_of(corpus), Settings(num_shards=2), output)
    for settings in (Settings(num_shards=3), Settings("validation", 2), Settings(num_shards=2, seed=1)):
        with pytest.raises(InputError, match="was prepared with .* give another folder"):
            prepare(recipe_of(corpus), settings, output)
    with pytest.raises(InputError, match="prepared with format 'array_record' and this is 'parquet'"):
        prepare(recipe_of(corpus), Settings(num_shards=2, format="parquet"), output)
    other = tmp_path / "other.jsonl"
    other.write_text(corpus.read_text() * 2)
    with pytest.raises(InputError, match="prepared with num_units"):
        prepare(recipe_of(other), Settings(num_shards=2), output)
    with pytest.raises(InputError, match=r"prepared with validation_percent 1.0 and this is 2.0"):
        prepare(TaskRecipe(None, None, str(corpus), "text", "byte", 2.0), Settings(num_shards=2), output)
    titled = tmp_path / "titled.jsonl"
    titled.write_text('{"text": "a", "title": "b"}\n')
    few = Settings(num_shards=1)
    prepare(recipe_of(titled), few, str(tmp_path / "titled"))
    by_title = TaskRecipe(None, None, str(titled), "title", "byte", 1.0)
    with pytest.raises(InputError, match="prepared with column 'text' and this is 'title'"):
        prepare(by_title, few, str(tmp_path / "titled"))
    ids = Settings(num_shards=1, tokenize=True)
    prepare(recipe_of(corpus, vocabulary), ids, str(tmp_path / "ids"))
    with pytest.raises(InputError, match="prepared with vocabulary 'sentencepiece"):
        prepare(recipe_of(corpus, "byte"), ids, str(tmp_path / "ids"))
    began = tmp_path / "began"  # without a shard: nothing is there that could be mixed
    began.mkdir()
    (began / SETTINGS_FILE).write_text(json.dumps({"num_shards": 9, "finished": False}))
    assert prepare(recipe_of(corpus), Settings(num_shards=2), str(began)).documents > 0
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "train-0.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"holds train-0.parquet, which has no prepared.json"):
        prepare(recipe_of(corpus), Settings(), str(tmp_path / "foreign"))


def test_bad_choices_are_sentences(corpus, tmp_path):
    with pytest.raises(InputError, match="format 'tfrecord' is unknown"):
        Settings(format="tfrecord")
    with pytest.raises(InputError, match="`num_shards` is 0"):
        Settings(num_shards=0)
    with pytest.raises(InputError, match="workers is 0"):
        prepare(recipe_of(corpus), Settings(), str(tmp_path / "out"), workers=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        prepare(recipe_of(corpus), Settings(), str(tmp_path / "file"))
    for content in ("", "\n\n"):
        (tmp_path / "empty.txt").write_text(content)
        with pytest.raises(InputError, match=r"/empty.txt holds no document in split 'train'"):
            prepare(recipe_of(tmp_path / "empty.txt"), Settings(), str(tmp_path / "none"))
        assert not (tmp_path / "none").exists()
    no_validation = TaskRecipe(None, None, str(corpus), "text", "byte", 0.0)
    with pytest.raises(InputError, match="'validation'; give more text, or set DataConfig.validation_percent above 0"):
        prepare(no_validation, Settings("validation"), str(tmp_path / "none"))


@pytest.mark.parametrize("root", ["", "memory://bucket"])
def test_one_process_prepares_a_folder(corpus, tmp_path, root, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.1)
    output = f"{root or tmp_path}/held"
    said = f"Another process prepares {output} now .process {os.getpid()} on"
    with lease.held(output, "prepares"), pytest.raises(InputError, match=said):
        prepare(recipe_of(corpus), Settings(num_shards=1), output, scratch=str(tmp_path / "scratch"))
    prepare(recipe_of(corpus), Settings(num_shards=1), output, scratch=str(tmp_path / "scratch"))
    system, path = fsspec.core.url_to_fs(output)
    names = [Path(name).name for name in system.ls(path, detail=False)]
    assert sorted(names) == [SETTINGS_FILE, "train-00000-of-00001.array_record"]


@pytest.mark.parametrize("trap", ["link", "open"])
def test_a_scratch_folder_that_others_have_made_is_refused(corpus, tmp_path, trap, monkeypatch):
    """Its name follows from the output, and everybody may write to the machine's temporary folder."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    output, settings = f"memory://bucket/{trap}", Settings(num_shards=1)
    folder = OutputFolder(output).scratch(None)
    assert folder.parent == tmp_path / "temporary" and folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "diary.txt").write_text("dear diary")
    if trap == "link":
        folder.symlink_to(mine)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(InputError, match="The scratch folder .* is not a folder of this user alone.; give another"):
        prepare(recipe_of(corpus), settings, output)
    assert [path.name for path in mine.iterdir()] == ["diary.txt"]


def test_a_tensorflow_data_set_becomes_array_record(tmp_path):
    import tensorflow_datasets as tfds

    class ThreeTexts(tfds.core.GeneratorBasedBuilder):  # registered by being written
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

        def _split_generators(self, dl_manager):
            return {"train": ((number, {"text": f"text {number}"}) for number in range(3))}

        def _generate_examples(self):
            raise AssertionError("the split has its examples")

    with pytest.raises(InputError, match="set TFDS_DATA_DIR"):
        prepare_tfds("three_texts", None)
    sentence = prepare_tfds("three_texts", str(tmp_path))
    assert "train 3" in sentence
    (file,) = (tmp_path / "three_texts").rglob("*.array_record*")
    assert array_record_module.ArrayRecordReader(str(file)).num_records() == 3
    assert prepare_tfds("three_texts", str(tmp_path)) == sentence
    with pytest.raises(InputError, match="cannot make 'no_such_data_set'"):
        prepare_tfds("no_such_data_set", str(tmp_path))
    tfds.builder("three_texts", data_dir=str(tmp_path / "old"), file_format="tfrecord").download_and_prepare()
    with pytest.raises(InputError, match="holds three_texts as tfrecord; delete it"):
        prepare_tfds("three_texts", str(tmp_path / "old"))


def test_documents_become_a_tensorflow_data_set(corpus, tmp_path):
    """As CC-100, for which TFDS has no code: one split, of which slices are read, short lines left out."""
    arguments = ["--task=cc100_ja_causal_lm_stream", "--module=tasks.cc100", f"--files={corpus}", "--tfds=cc100/ja"]
    launch_prepare.run([*arguments, f"--data_dir={tmp_path}", "--num_shards=3", "--workers=1"])
    source = TfdsSource("cc100/ja", cc100.SLICES, data_dir=str(tmp_path), rewrite=cc100.line)
    source.check("train")
    train, others = (list(source.texts(split)) for split in ("train", "validation"))
    texts = [json.loads(line)["text"].replace("\n", "").strip() for line in corpus.read_text().splitlines()]
    written = json.loads((tmp_path / "cc100/ja/1.0.0/prepared.json").read_text())["documents"]
    assert len(train) + len(others) == written and abs(len(others) - 0.02 * written) < 2
    assert set(train) | set(others) <= set(texts) and written > 0.9 * len(texts)
    with pytest.raises(InputError, match="with split 'train' and this is 'validation';.*--tfds another"):
        launch_prepare.run([*arguments, f"--data_dir={tmp_path}", "--num_shards=3", "--split=validation"])
    with pytest.raises(InputError, match="has a wiki40b/ja of its own"):
        launch_prepare.run([*arguments[:-1], "--tfds=wiki40b/ja", f"--data_dir={tmp_path}"])
    with pytest.raises(InputError, match="give small letters"):
        launch_prepare.run([*arguments[:-1], "--tfds=../x", f"--data_dir={tmp_path}"])
    with pytest.raises(InputError, match="not known to TFDS.*check the name and TFDS_DATA_DIR"):
        TfdsSource("cc100/ja", cc100.SLICES, data_dir=str(tmp_path / "none")).check("train")


def test_names_of_tfds_community_builder_say_what_differs(tmp_path, capsys):
    """huggingface:cc100/lang=ja, as TFDS 4.8 had it, is the preparation tested above; any other is one sentence."""
    given = launch_prepare._parser().parse(["--tfds=huggingface:cc100/lang=ja", f"--data_dir={tmp_path}"])
    launch_prepare._rename(given)
    assert (given.task, given.tfds) == ("cc100_ja_causal_lm_stream", "cc100/ja")
    assert "range3/cc100-ja and written as cc100/ja, which the task cc100_ja_causal_lm reads" in capsys.readouterr().out
    with pytest.raises(InputError, match="huggingface:oscar/ro would run a script of the hub, .*files of its own"):
        launch_prepare.run(["--tfds=huggingface:oscar/ro", f"--data_dir={tmp_path}"])


def test_without_a_network_a_download_is_refused_at_once(tmp_path, monkeypatch):
    """TFDS itself tries for minutes."""

    def unreachable(*arguments):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    for name in ("https_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="lm1b cannot be downloaded: the network does not reach .* on another machine"):
        prepare_tfds("lm1b", str(tmp_path))
