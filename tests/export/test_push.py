"""A run's model on the hub: at its end and at each save, resumed after a failure, refused early, never fatal."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from limba.cli import flags
from limba.config import InputError, RunConfig
from limba.export import end_of_run
from limba.export.destinations import HubDestination, push
from tests.http_server import FileServer, status
from tests.hub_server import hub
from tests.waiting import wait_until

GOLDEN = Path(__file__).parents[1] / "golden" / "run" / "run"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A hub of this machine's, which the library asks instead of its own, with the token that it accepts."""
    with hub(tmp_path / "served") as (server, environment):
        (tmp_path / "served").mkdir()
        endpoint = environment["HF_ENDPOINT"]
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "good")
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "step_7"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "t5"}')
    (path / "model.safetensors").write_bytes(b"weights" * 100)
    return path


def test_the_folder_is_uploaded_to_a_name_with_or_without_an_owner(server, folder, tmp_path) -> None:
    for name in ("me/mine", "mine"):
        destination = HubDestination(name)
        destination.check()
        assert destination.deliver(folder, 7).endswith("/me/mine")
    assert server.created and not any(map(is_private, server.created))
    stored = tmp_path / "served" / "me" / "mine" / "main"
    assert (stored / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def written(folder: Path, *names: str) -> Path:
    """A folder with these files; the name of the folder is in each."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{folder.name}, {name}")
    return folder


def test_a_branch_holds_the_newest_upload_alone_and_the_files_of_others(server, tmp_path) -> None:
    """transformers would read an old model.safetensors before the index of several files."""
    of_encoder = ("encoder/config.json", "encoder/model.safetensors", "encoder/1_Pooling/config.json")
    first = ("README.md", "config.json", "conversion.json", "model.safetensors", "flax_model.msgpack", "loss.png")
    parts = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    second = ("README.md", "config.json", *parts, "model.safetensors.index.json", "tokenizer.json")
    theirs = ("model-q4.gguf", "LICENSE", "chat_template.jinja", "modules.json", "encoder/notes.md", "onnx/config.json")
    destination = HubDestination("me/mine")
    stored = tmp_path / "served" / "me" / "mine" / "main"

    def there() -> dict[str, str]:
        files = [path for path in stored.rglob("*") if path.is_file()]
        return {str(path.relative_to(stored)): path.read_text().partition(",")[0] for path in files}

    destination.deliver(written(tmp_path / "step_7", *first, "spiece.model", *of_encoder), 7)
    written(stored, *theirs)
    assert set(there()) == {*first, "spiece.model", *of_encoder, *theirs}
    commits = server.requests["POST", "/api/models/me/mine/commit/main"]
    destination.deliver(written(tmp_path / "step_8", *second), 8)
    assert there() == {**dict.fromkeys(second, "step_8"), **dict.fromkeys(theirs, "main")}
    assert server.requests["POST", "/api/models/me/mine/commit/main"] == commits + 1
    destination.deliver(written(tmp_path / "step_9", *first), 9)  # several files, then one
    kept = {**dict.fromkeys(theirs, "main"), "tokenizer.json": "step_8"}  # a model without one may get it by hand
    assert there() == {**dict.fromkeys(first, "step_9"), **kept}


def test_a_dry_run_names_each_file_of_each_folder(tmp_path, capsys) -> None:
    folder = written(tmp_path / "step_7", "config.json", "encoder/config.json", "encoder/1_Pooling/config.json")
    push("me/mine", {7: folder}, dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" to ")[0] for line in lines] == [
        f"would upload {name} ({len(f'step_7, {name}')} bytes)"
        for name in ("config.json", "encoder/1_Pooling/config.json", "encoder/config.json")
    ]


def is_private(asked: dict) -> bool:
    return asked.get("visibility") == "private" or asked.get("private") is True  # huggingface_hub 2, and 1


def test_the_hub_is_asked_for_a_private_model(server, folder, tmp_path) -> None:
    """`hub_private_repo` of the scripts, HUB_PRIVATE of gin: what the run's end and each save deliver to."""
    argv = ["--gin.HUB_MODEL_ID=me/mine", "--gin.HUB_PRIVATE=True", f"--gin.MODEL_DIR={tmp_path / 'run'}"]
    (destination,) = end_of_run.destinations(flags.parse_args(["gin/demo.gin", *argv]).config)
    destination.deliver(folder, 7)
    (asked,) = server.created
    assert asked["name"] == "mine" and is_private(asked)


def test_a_failed_upload_is_repeated_then_said(server, folder, monkeypatch, capsys) -> None:
    monkeypatch.setattr(end_of_run, "PAUSES", (0.0, 0.0))
    pauses: list[float] = []  # the hub library's pauses, a minute in all
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=pauses.append))
    destination = HubDestination("me/mine")
    server.fail("/api/models/me/mine/commit/main", *[status(500)] * 20, methods=("POST",))
    delivered, reason = end_of_run._repeated(lambda: destination.deliver(folder, 7))
    assert delivered is None and "the upload to me/mine failed" in reason and len(pauses) == 15
    assert capsys.readouterr().out.count("it is tried again") == 2
    server.mend()
    assert destination.deliver(folder, 7).endswith("/me/mine")
    server.fail("/api/models/me/mine/commit/main", status(403), methods=("POST",))
    (folder / "config.json").write_text('{"model_type": "mt5"}')
    with pytest.raises(InputError, match="the hub refuses the upload to me/mine with HTTP 403, asked with the token"):
        destination.deliver(folder, 8)


def test_a_token_that_is_missing_or_refused_is_said_before_the_training(server, monkeypatch, caplog) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    with pytest.raises(
        InputError, match="does not accept this upload .asked with the token in HF_TOKEN: HTTP 401"
    ) as bad:
        HubDestination("me/mine").check()
    assert "hf_bad" not in str(bad.value)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(InputError, match="needs a token: set HF_TOKEN"):
        HubDestination("me/mine").check()
    monkeypatch.setenv("HF_TOKEN", "good")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    HubDestination("me/mine").check()  # a hub that does not answer now may answer when the run ends
    assert "The hub cannot be reached now" in caplog.text


@pytest.mark.night
def test_each_save_is_uploaded_beside_the_training(server, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(end_of_run, "LOOK_SECONDS", 0.2)
    run = tmp_path / "run"
    shutil.copytree(GOLDEN, run)
    checkpoints = run / "checkpoints"
    shutil.move(checkpoints / "10", tmp_path / "10")
    config = run_config(run)
    with end_of_run.uploading(config):
        shutil.move(tmp_path / "10", checkpoints / "10")  # a save has ended
        wait_until((tmp_path / "served" / "me" / "saves" / "main" / "model.safetensors").exists)
    assert "step 10: the model is in http" in capsys.readouterr().out
    assert (tmp_path / "served" / "me" / "saves" / "main" / "model.safetensors").exists()
    assert {path.name for path in run.iterdir()} >= {"checkpoints", "config.json"}


def run_config(run: Path) -> RunConfig:
    from limba.config import saved_config

    config = saved_config.from_text((run / "config.json").read_text(), str(run))
    assert isinstance(config, RunConfig)
    choices = {"model_dir": str(run), "train_steps": 100, "hub_model_id": "me/saves", "hub_strategy": "every_save"}
    return dataclasses.replace(config, **choices)
