"""Data sets of TFDS and vocabularies in an emulated bucket, without TensorFlow's file system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import seqio
import tensorflow_datasets as tfds

from limba.config import InputError, StorageError
from limba.data.bridge.seqio_objects import vocabulary_as_seqio
from limba.data.sources.remote import ReadPolicy
from limba.data.sources.tfds import TfdsSource
from limba.data.vocabulary.addresses import of_run
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.train import train_vocabulary
from limba.storage import manifest
from tests.bucket_server import BucketServer, emulated
from tests.google_proxy import serving_google

TEXTS = [f"Textul {number} este scurt, dar este al nostru." for number in range(50)]


class BucketText(tfds.core.GeneratorBasedBuilder):
    """A data set with code of its own, like the data sets in TFDS' catalogue."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator:
        yield from enumerate({"text": text} for text in TEXTS)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BucketServer]:
    monkeypatch.setattr(manifest, "CACHE", str(tmp_path / "cache"))
    with emulated(monkeypatch) as bucket_server:
        yield bucket_server


def texts(name: str, data_dir: str | None = "gs://bucket/tfds") -> list[str]:
    source = TfdsSource(name, {"train": "train"}, data_dir=data_dir)
    assert source.num_bytes("train") > 1000
    return sorted(row["text"].decode() for row in source.documents("train", num_epochs=1))


# As the guide in Japanese has it, which prepares lm1b and wiki40b/ja so: a data set of our own has no network to need.
BUILDER = """
import json, sys
import tensorflow_datasets as tfds

class LoadedText(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict({"text": tfds.features.Text()}))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield from enumerate({"text": text} for text in json.loads(sys.argv[1]))
"""
LOAD = """
import tensorflow_datasets as tfds
import own_data.loaded_text

tfds.load('loaded_text', data_dir="gs://bucket/tfds")
"""


@pytest.mark.slow
def test_tfds_load_writes_to_a_bucket_and_a_run_reads_it(server: BucketServer, tmp_path: Path) -> None:
    """TensorFlow's own file system writes it, which knows no other address than Google's."""
    with serving_google(server, tmp_path) as google:
        variables = {**os.environ, **server.environment(), **google.environment(), "TF_CPP_MIN_LOG_LEVEL": "3"}
        package = tmp_path / "own_data"  # TFDS asks for the folder of a builder
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "loaded_text.py").write_text(BUILDER)
        command = [sys.executable, "-c", LOAD, json.dumps(TEXTS)]
        ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    folder = "tfds/loaded_text/1.0.0"
    assert f"{folder}/loaded_text-train.tfrecord-00000-of-00001" in server.names(folder)
    source = TfdsSource("loaded_text", {"train": "train"}, data_dir="gs://bucket/tfds")
    assert sorted(row["text"].decode() for row in source.documents("train", num_epochs=1)) == sorted(TEXTS)


@pytest.mark.filterwarnings("ignore")
def test_tfrecords_are_read_and_a_changed_byte_is_noticed(
    server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = BucketText(data_dir=str(tmp_path), file_format="tfrecord")
    builder.download_and_prepare()
    manifest.upload(builder.data_path, "gs://bucket/tfds/bucket_text/1.0.0")
    assert texts("bucket_text") == sorted(TEXTS)
    for directory in (str(tmp_path), "gs://bucket/tfds"):
        monkeypatch.setenv("TFDS_DATA_DIR", directory)
        assert texts("bucket_text", data_dir=None) == sorted(TEXTS)
    (name,) = (name for name in server.names() if "tfrecord" in name)
    data = bytearray(server.data(name))
    data[200] ^= 1
    server.put("bucket", name, bytes(data))
    with pytest.raises(InputError, match=r"gs://bucket/.*cannot be read \(a record.* is damaged\)") as error:
        texts("bucket_text")
    assert error.value.exit_status == InputError.exit_status


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("asked", ["a file's size", "a file"])
def test_a_data_set_whose_bucket_is_away_is_no_wrong_input(
    asked: str, server: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = BucketText(data_dir=str(tmp_path), file_format="tfrecord")
    builder.download_and_prepare()
    manifest.upload(builder.data_path, "gs://bucket/tfds/bucket_text/1.0.0")
    quick = ReadPolicy(0.5, 1)
    for module in ("splits", "tfds"):
        monkeypatch.setattr(f"limba.data.sources.{module}.ReadPolicy", lambda: quick)
    source = TfdsSource("bucket_text", {"train": "train"}, data_dir="gs://bucket/tfds")
    (unit,) = source.list_units(["train"])  # the builder is known
    server.is_away = True
    with pytest.raises(InputError, match=r"gs://bucket/.* cannot be read \(.*\); try again later") as error:
        source.list_files(["train"]) if asked == "a file's size" else source.first_rows(unit, "text", quick)
    assert error.value.exit_status == StorageError.exit_status


def test_a_vocabulary_in_a_bucket_is_the_same_one(server: BucketServer, tmp_path: Path) -> None:
    path = tmp_path / "v.model"
    train_vocabulary(TEXTS, 320, str(path))
    server.put("bucket", "v.model", path.read_bytes())
    local = load_vocabulary(str(path))
    loaded = load_vocabulary("gs://bucket/v.model")
    of_task = of_run(seqio.SentencePieceVocabulary("gs://bucket/v.model", extra_ids=100), None)
    assert of_task == loaded and of_run(local, None) is local
    for vocabulary in (loaded, of_task):
        assert vocabulary.encode(TEXTS[0]) == local.encode(TEXTS[0]) and vocabulary.vocab_size == local.vocab_size
        assert vocabulary_as_seqio(vocabulary).encode_tf(TEXTS[0]).numpy().tolist() == local.encode(TEXTS[0])
    with pytest.raises(InputError, match="gs://bucket/none.model does not exist"):
        load_vocabulary("gs://bucket/none.model")
    server.is_away = True
    with pytest.raises(InputError, match=r"gs://bucket/v.model cannot be read \(.*\); try again later") as error:
        load_vocabulary("gs://bucket/v.model")
    assert error.value.exit_status == StorageError.exit_status
