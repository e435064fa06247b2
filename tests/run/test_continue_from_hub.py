"""Continued pretraining of a model of the hub by its id alone: from the hub, without it, and its export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants

from limba import load
from limba.cli.gin import continued, read_run
from limba.cli.main import main
from limba.config import InputError
from limba.formats.limba_checkpoint import LimbaCheckpoint
from tests import published
from tests.http_server import FileServer, ModelHubHandler, as_hub, serving
from tests.hub_server import hub
from tests.run.test_own_vocabulary import limba

FAMILIES = {"t5": "unigram", "eurobert": "roberta", "llama": "llama"}  # a model of each, and its style of tokenizer
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def write_text(folder: Path) -> Path:
    texts = [" ".join(published.CORPUS[(n + k) % len(published.CORPUS)] for k in range(6)) for n in range(200)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder / "text.jsonl"


def arguments(kind: str, model: str, corpus: Path, directory: Path) -> list[str]:
    lengths = {"inputs": 48} if kind == "t5" else {"targets": 64}
    values = [
        f"INITIAL_CHECKPOINT_PATH={model}", f"CORPUS={corpus}", f"MODEL_DIR={directory}", "BATCH_SIZE=8",
        f"TASK_FEATURE_LENGTHS={lengths}", "DTYPE=float32", "LOG_PERIOD=1", "CHECKPOINT_PERIOD=2", "TRAIN_STEPS=4",
        "EVAL_STEPS=1", "config.DataConfig.num_data_shards=2",
    ]  # fmt: skip
    if kind == "llama":  # a run that is told to end earlier has the same rates
        values.append("config.ScheduleConfig.decay_steps=4")
    return ["gin/continue.gin", *(f"--gin.{value}" for value in values)]


def ids_with_a_role(folder: Path) -> dict[str, object]:
    settings = json.loads((folder / "config.json").read_text())
    return {key: value for key, value in settings.items() if key.endswith("_token_id")}


@pytest.mark.night
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_hub_id_is_continued_resumed_and_exported(kind: str, tmp_path: Path) -> None:
    """The hub is asked by the first command alone; each command is a process of its own."""
    folder = tmp_path / "served" / "me" / "model" / "main"
    published.saved(folder, kind, published.generic(FAMILIES[kind]))
    corpus = write_text(tmp_path)
    of_hub = arguments(kind, "me/model", corpus, tmp_path / "run")
    with hub(tmp_path / "served") as (server, environment):
        first = limba(environment, "train", *of_hub, "--gin.TRAIN_STEPS=2")
        assert first.returncode == 0, first.stderr[-3000:]
        sent = {name.rpartition("/")[2]: size for (_, name), size in server.bytes_sent.items()}
    assert "Continues from me/model: " in first.stdout and "Vocabulary: me/model, " in first.stdout
    assert sent["model.safetensors"] == (folder / "model.safetensors").stat().st_size, "it was downloaded once"

    # The hub does not answer any more, and nothing is in its cache.
    environment["HF_HOME"] = str(tmp_path / "empty")
    resumed = limba(environment, "train", *of_hub)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    assert "The network and the vocabulary are taken from the run in" in resumed.stdout + resumed.stderr
    of_folder = limba(environment, "train", *arguments(kind, str(folder), corpus, tmp_path / "whole"))
    assert of_folder.returncode == 0, of_folder.stderr[-3000:]
    whole, again = (LimbaCheckpoint(tmp_path / name / "checkpoints" / "4") for name in ("whole", "run"))
    assert set(whole) == set(again) and all(np.array_equal(whole[name], again[name]) for name in whole)

    moved = shutil.move(tmp_path / "run", tmp_path / "elsewhere")
    converted = limba(environment, "convert", str(moved), str(tmp_path / "exported"))
    assert converted.returncode == 0, converted.stderr[-3000:]
    (exported,) = (tmp_path / "exported").glob("step_4")
    for name in TOKENIZER:
        assert (folder / name).exists() == (exported / name).exists(), name
        assert not (folder / name).exists() or (folder / name).read_bytes() == (exported / name).read_bytes(), name
    assert ids_with_a_role(exported) == ids_with_a_role(folder)
    assert published.ids_of(exported) == published.ids_of(folder)
    assert "| begun from | `me/model` |" in (exported / "README.md").read_text()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A hub of this machine's with one model, a GPT-2, which was a Llama in its revision v1."""
    of_model = tmp_path / "served" / "me" / "model"
    published.saved(of_model / "main", "gpt2", published.generic("endoftext"))
    published.saved(of_model / "v1", "llama", published.generic("llama"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(tmp_path / "served", handler=ModelHubHandler) as server:
        as_hub(server, tmp_path / "cache", monkeypatch)
        yield server


def test_the_files_of_a_commit_are_asked_for_once(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes on the hub is another commit."""
    download = huggingface_hub.snapshot_download
    asked: list[str] = []

    def recorded(name: str, **options: Any) -> str:
        if not options.get("local_files_only"):
            asked.append(name)
        return download(name, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", recorded)

    def opened(name: str) -> tuple[str, bool]:
        """Returns what tells the two models apart, and whether the hub was asked for files."""
        asked.clear()
        positions = load(name).network.config.positions
        return positions, bool(asked)

    assert opened("me/model") == ("learned", True)
    assert opened("me/model") == ("learned", False)
    assert opened("me/model@v1") == ("rotary", True)
    assert opened("me/model") == ("learned", False)
    server.branches["me/model/main"] = "v1"
    assert opened("me/model") == ("rotary", True)
    assert opened("me/model") == ("rotary", False)


def test_without_a_network_the_copy_is_used_and_this_is_said_once(
    server: FileServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load("me/model")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for _ in range(2):
        assert load("me/model").network.config.positions == "learned"
    assert caplog.text.count("The hub cannot be reached for me/model (") == 1
    with pytest.raises(InputError, match="cannot be opened .the hub cannot be reached: ") as error:
        load("me/model@v1")
    assert error.value.exit_status == InputError.exit_status  # what the user has chosen does not pass


def test_gin_and_errors_name_the_id(server: FileServer, tmp_path: Path) -> None:
    corpus = write_text(tmp_path)
    file, *values = arguments("llama", "me/model@v1", corpus, tmp_path / "run")
    run = read_run([file], [value.removeprefix("--gin.") for value in values])
    assert run.continued is not None and run.config.data.vocabulary == "me/model@v1"
    first, second, *_ = continued.lines(run.continued, run.config)
    assert first == "Continues from me/model@v1: a decoder-only model of 2 layers, width 32, 512 rows."
    assert second.startswith("Vocabulary: me/model@v1, ") and second.endswith("text is read as <s> text </s>.")
    for name, sentence in {
        "me/absent": "the hub has no model of that name, or it is private",
        "me/model@v2": "has no revision v2",
    }.items():
        with_name = arguments("llama", name, corpus, tmp_path / "run")[1:]
        with pytest.raises(InputError, match=sentence):
            read_run([file], [value.removeprefix("--gin.") for value in with_name])


def test_a_hub_id_is_trimmed_as_its_folder_is(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_text(tmp_path)
    folder = tmp_path / "served" / "me" / "model" / "main"
    for model, output in (("me/model", "of_id"), (str(folder), "of_folder")):
        argv = ["vocabulary", "trim", model, f"--keep={corpus}", "--coverage=0.9", f"--output={tmp_path / output}"]
        assert main(argv) == 0, capsys.readouterr().err
    names = {path.name for path in (tmp_path / "of_folder").iterdir()}
    assert names == {path.name for path in (tmp_path / "of_id").iterdir()} and "model.safetensors" in names
    for name in names - {"README.md", "trimmed.json"}:  # these say where it comes from
        one, other = ((tmp_path / output / name).read_bytes() for output in ("of_id", "of_folder"))
        assert one == other, name
    assert json.loads((tmp_path / "of_id" / "trimmed.json").read_text())["from"] == "me/model"
    assert "me/model" in (tmp_path / "of_id" / "README.md").read_text()
