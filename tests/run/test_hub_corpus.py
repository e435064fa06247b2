"""A data set of the hub as a run's corpus, by its id, read from a server that speaks the hub's protocol."""

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest
from huggingface_hub import constants

import tasks.demo
import tasks.en_ms
import tasks.ro_diacritics
import tasks.t5_mlm
import tasks.text_to_text  # noqa: F401  they register the tasks
from limba.cli.main import main
from limba.config import (
    CheckpointConfig,
    ConfigError,
    DataConfig,
    EvaluationConfig,
    InputError,
    MeshConfig,
    RunConfig,
    ScheduleConfig,
    StorageError,
    optimizer_config,
)
from limba.data.registry import Task
from limba.data.sources.hub_data import HubSource
from limba.data.tasks import hub_datasets, resolve_task, source_of_files
from limba.formats import hub_models as models
from limba.run import train
from limba.tools.corpus import new
from limba.training.start import plan_of_run
from tests import tiny
from tests.http_server import DataHubHandler, FileServer, Handler, as_hub, serving, status
from tests.hub_server import CONVERTED, HubHandler, write_data_set
from tests.run.logged import losses_of


def write_set(folder: Path, words: str) -> None:
    folder.mkdir(parents=True)
    for split, count in (("train", 300), ("validation", 40), ("test", 20)):
        rows = ({"text": f"{words} {split} {i}, the parser reads it", "up": f"UP {i}"} for i in range(count))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A hub of this machine's with one data set, which the libraries ask instead of their own."""
    write_set(tmp_path / "hub" / "me" / "set" / "main", "new")
    write_set(tmp_path / "hub" / "me" / "set" / "v1", "old")
    for name in ("gated-set", "private-set"):
        shutil.copytree(tmp_path / "hub" / "me" / "set", tmp_path / "hub" / "me" / name)
    with asked(tmp_path, DataHubHandler, monkeypatch) as server:
        yield server


@contextmanager
def asked(tmp_path: Path, handler: type[Handler], monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(tmp_path / "hub", handler=handler) as server:
        endpoint = as_hub(server, tmp_path / "cache", monkeypatch)
        monkeypatch.setattr("datasets.config.HF_ENDPOINT", endpoint)
        monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("datasets.config.HF_MODULES_CACHE", str(tmp_path / "modules"))
        fsspec.get_filesystem_class("hf").clear_instance_cache()
        yield server
        fsspec.get_filesystem_class("hf").clear_instance_cache()


def test_files_in_folders_of_partial_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several configurations, each with folders partial-train and partial-validation, as the hub converts them."""
    texts = {word: {split: [f"{word} {split}"] for split in ("train", "validation")} for word in ("ro", "en")}
    write_data_set(tmp_path / "hub", "me/parts", texts, CONVERTED)
    with asked(tmp_path, HubHandler, monkeypatch):
        assert first_texts("me/parts:en") == ("en train", "en validation")
        assert first_texts("me/parts:ro") == ("ro train", "ro validation")


def first_texts(corpus: str | dict[str, str]) -> tuple[str, str]:
    source = source_of_files(corpus)
    return next(source.texts("train")), next(source.texts("validation"))


def test_configuration_revision_and_split_are_in_the_name(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set's own validation split is used; with one split alone, a part of that."""
    assert [text[:9] for text in first_texts("me/set")] == ["new train", "new valid"]
    assert [text[:9] for text in first_texts("me/set:default@v1")] == ["old train", "old valid"]
    assert [text[:8] for text in first_texts({"train": "me/set#test", "validation": "me/set#train"})] == [
        "new test",
        "new trai",
    ]
    carved = source_of_files("me/set#validation", validation_percent=20.0)
    sides = [set(carved.texts(split)) for split in ("train", "validation")]
    assert all(sides) and not sides[0] & sides[1] and len(sides[0] | sides[1]) == 40
    monkeypatch.setenv("HF_TOKEN", "good")
    assert first_texts("me/private-set")[0].startswith("new train")


@pytest.mark.parametrize(
    ("corpus", "sentence"),
    [
        ("me/absent", r"no local file me/absent, and the hub has no data set of that name, or it is private"),
        ("me/private-set", r"or it is private; asked without a token, .*\); check the name, or set HF_TOKEN"),
        ("me/gated-set", r"only to those who accept its terms; .*\); accept them on its page"),
        ("me/set@no", r"it has no revision no.*\); give a branch or commit"),
        ("me/set:other", r"BuilderConfig 'other' not found"),
        ("me/set#dev", r"has no split 'dev'; it has train, validation, test"),
        ("me/set#train[:10%]", r"whole name, such as me/set#train: slices are of TensorFlow"),
        ("me/set, me/other", r"must be the only corpus"),
        ({"train": "me/set", "validation": "mine.jsonl"}, r"must be the only corpus"),
    ],
)
def test_a_name_that_the_hub_does_not_have_is_one_sentence(
    corpus: str | dict[str, str], sentence: str, hub: FileServer
) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        source_of_files(corpus).units("train")
    assert error.value.exit_status == InputError.exit_status


def test_a_hub_that_is_busy_once_is_asked_again(hub: FileServer) -> None:
    hub.fail("/api/datasets/me/set", status(503))
    assert first_texts("me/set")[0].startswith("new train")
    hub.fail("/api/datasets/me/set", status(503), status(503))
    with pytest.raises(InputError, match="the hub cannot be reached: .*503") as error:
        source_of_files("me/set").units("train")
    assert error.value.exit_status == StorageError.exit_status  # the same command works later


@pytest.mark.parametrize(("token", "asked"), [(None, "without a token"), ("hf_bad", "with the token in HF_TOKEN")])
def test_a_private_or_missing_name_says_as_whom_it_asked(
    token: str | None, asked: str, hub: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data sets and models; the token itself is never shown."""
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    for name in ("me/absent", "me/private-set"):
        for ask in (lambda name: source_of_files(name).units("train"), models.download):
            with pytest.raises(InputError) as error:
                ask(name)
            said = str(error.value)
            assert name in said and f"asked {asked}" in said and "hf_bad" not in said and "\n" not in said


def test_rows_of_json_lines_are_not_known_and_the_steps_are_asked_for(hub: FileServer, tmp_path: Path) -> None:
    data = DataConfig(
        "text_to_text", {"inputs": 16, "targets": 8}, 8, "byte", data_files="me/set",
        column={"inputs": "text", "targets": "up"}, num_epochs=2,
    )  # fmt: skip
    rule = optimizer_config("adamw", ScheduleConfig("linear", 0.01, warmup_steps=0))
    config = RunConfig(tiny.MODEL, data, str(tmp_path / "run"), None, optimizer=rule)
    task = resolve_task(data)
    with pytest.raises(ConfigError, match=r"train_steps is None, and the linear .* text_to_text are not counted"):
        plan_of_run(config, task, {"inputs": 16, "targets": 8})


def test_without_a_network_there_is_one_sentence(hub: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"the hub cannot be reached: .*refused"):
        source_of_files("me/set").units("train")


@pytest.mark.parametrize(
    ("task", "column"),
    [
        ("demo_span_corruption", "text"),
        ("t5_mlm", "text"),
        ("ro_diacritics", "text"),
        ("en_ms_translation", {"inputs": "text", "targets": "up"}),
        ("summarization", {"inputs": "text", "targets": "up"}),
    ],
)
def test_every_task_that_takes_files_takes_a_hub_id(task: str, column: str | dict[str, str], hub: FileServer) -> None:
    read_task = resolve_task(DataConfig(task, {"inputs": 32}, 8, "byte", data_files="me/set@v1", column=column))
    assert (
        isinstance(read_task, Task)
        and isinstance(read_task.source, HubSource)
        and hub_datasets(read_task) == ("me/set",)
    )
    assert len(read_task.source.read("train", read_task.source.units("train")[0], 0) or ()) == 300


@pytest.mark.night
def test_a_resumed_run_reads_the_commit_that_it_began_with(hub: FileServer, tmp_path: Path, vocabulary: Path) -> None:
    """The data set changes on the hub in between: no row differs from a run's that never stopped."""
    data = DataConfig("demo_span_corruption", {"inputs": 32}, 8, str(vocabulary), data_files="me/set@main")
    run = RunConfig(
        model=tiny.model(vocab_size=1024, emb_dim=32, num_heads=2, mlp_dim=64, num_decoder_layers=2),
        data=data,
        model_dir=str(tmp_path / "whole"),
        train_steps=6,
        mesh=MeshConfig(data=8),
        checkpoint=CheckpointConfig(every_steps=3),
        evaluation=EvaluationConfig(every_steps=100, num_batches=1),
        log_every_steps=1,
    )
    train(run)
    parted = dataclasses.replace(run, model_dir=str(tmp_path / "parted"))
    train(dataclasses.replace(parted, train_steps=3))
    (pins,) = json.loads((tmp_path / "parted" / "data_revisions.json").read_text()).items()
    assert pins[0] == "demo_span_corruption from me/set:@main" and re.fullmatch("[0-9a-f]{40}", pins[1])

    repository = tmp_path / "hub" / "me" / "set"
    (repository / "main").rename(repository / pins[1])  # reached by its commit only
    write_set(repository / "main.new", "other")
    hub.branches["me/set/main"] = "main.new"
    fsspec.get_filesystem_class("hf").clear_instance_cache()
    assert first_texts("me/set@main")[0].startswith("other")
    train(parted)
    assert losses_of(run) == losses_of(parted) and len(losses_of(run)) == 6


def test_limba_new_takes_a_data_set_of_the_hub(
    hub: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new, "LEAST_LETTERS", 1_000)
    assert main(["new", "of_hub", "--corpus=me/set:up", "--column=up"]) == 2
    assert main(["new", "of_hub", "--corpus=me/set", "--column=up", "--days=1"]) == 0
    told = capsys.readouterr().out
    assert "me/set: 1 file; columns text, up, of which 'up' is read; 300 documents" in told
    text = (tmp_path / "tasks" / "of_hub.py").read_text()
    assert 'CORPUS = "me/set"' in text and 'COLUMN = "up"' in text
