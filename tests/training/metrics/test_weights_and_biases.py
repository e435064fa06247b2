"""Figures for Weights & Biases: with the library itself, offline, where it is installed; its records are read back."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from limba.config import ConfigError, DataConfig, RunConfig
from limba.training.metrics import weights_and_biases
from limba.training.metrics.logging import Metrics
from tests import tiny
from tests.waiting import wait_until

# LevelDB's log: blocks of records, each with a head of checksum, length and kind.
BLOCK = 32_768
HEAD = 7


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    (tmp_path / "run").mkdir()
    data = DataConfig("demo_span_corruption", {"inputs": 48}, batch_size=8)
    return RunConfig(tiny.model(), data, str(tmp_path / "run"), train_steps=9, report_to="tensorboard,wandb")


def test_what_is_asked_for_must_be_installed(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"report_to is 'tensorboard,wandb', and Weights & Biases is not installed"):
        weights_and_biases.check(run.reports)
    weights_and_biases.check(dataclasses.replace(run, report_to="tensorboard").reports)
    with pytest.raises(ConfigError, match="is 'mlflow'; give tensorboard, wandb, several with commas, or none"):
        dataclasses.replace(run, report_to="mlflow")


@pytest.mark.parametrize(("reports", "has_board"), [("tensorboard", True), ("none", False)])
def test_the_library_is_not_imported_unless_it_is_asked_for(
    reports: str, has_board: bool, run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with Metrics(run.model_dir, 0, 9, True, run=dataclasses.replace(run, report_to=reports)) as metrics:
        metrics.write("train", 1, {"loss": 2.0})
        metrics.samples(1, {"a": ["a b"]})
    folder = Path(run.model_dir)
    assert (folder / "tensorboard").exists() is has_board and not (folder / "wandb.json").exists()
    kinds = [json.loads(line)["kind"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert kinds == ["train", "samples", "end"]


def records_of(path: Path) -> list[Any]:
    """Returns the records of a .wandb file, without the library's own reader."""
    from wandb.proto import wandb_internal_pb2 as messages  # pyright: ignore[reportMissingImports]

    data = path.read_bytes()
    records = []
    parts = b""
    offset = HEAD
    while offset + HEAD <= len(data):
        if BLOCK - offset % BLOCK < HEAD:
            offset += BLOCK - offset % BLOCK
            continue
        length = int.from_bytes(data[offset + 4 : offset + 6], "little")
        kind = data[offset + 6]
        parts += data[offset + HEAD : offset + HEAD + length]
        offset += HEAD + length
        if offset > len(data):  # not written to its end yet
            break
        if kind in (1, 4):  # whole, or the last part
            records.append(messages.Record.FromString(parts))
            parts = b""
    return records


@pytest.mark.slow
def test_a_resumed_run_continues_the_same_run_there(
    run: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Needs the package wandb: offline it writes what it would send. Figures, texts and the configuration are there."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    weights_and_biases.check(run.reports)
    for start in (0, 4):  # the second start repeats steps 5 and 6
        with Metrics(run.model_dir, start, 9, True, run=run) as metrics:
            for step in range(start + 1, start + 7):
                metrics.write("train", step, {"loss": 10.0 - step})
            metrics.write("validation", start + 6, {"loss": 7.5})
            metrics.samples(start + 6, {"The": ["The parser"]})
    known = json.loads((Path(run.model_dir) / "wandb.json").read_text())
    assert capsys.readouterr().out.count(f"Weights & Biases: run {known['id']} (") == 2
    files = sorted((Path(run.model_dir) / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2 and {file.name for file in files} == {f"run-{known['id']}.wandb"}
    seen: list[dict[str, Any]] = []
    for file in files:
        # Its service writes the file to its end after `finish` has returned.
        wait_until(lambda file=file: any(r.HasField("exit") for r in records_of(file)), lambda file=file: file)
        records = records_of(file)
        configured = {item.key: json.loads(item.value_json) for r in records for item in r.run.config.update}
        assert configured["data"]["batch_size"] == 8 and {r.run.project for r in records} >= {"limba"}
        for record in records:
            if record.history.item:
                items = record.history.item
                seen.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
    losses = [(line["step"], line["train/loss"]) for line in seen if "train/loss" in line]
    assert losses == [(step, 10.0 - step) for step in (*range(1, 7), *range(5, 11))]
    assert [line["step"] for line in seen if "validation/loss" in line] == [6, 10]
    assert [line["step"] for line in seen if any(name.startswith("samples/") for name in line)] == [6, 10]


@pytest.mark.slow
def test_without_a_key_the_run_is_refused_at_once(run: RunConfig, tmp_path: Path) -> None:
    """Needs the package wandb."""
    pytest.importorskip("wandb")
    code = f"from limba.training.metrics.weights_and_biases import check; check({run.reports!r})"
    variables = {"HOME": str(tmp_path), "WANDB_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "nobody is logged in to Weights & Biases" in ended.stderr and "WANDB_MODE=offline" in ended.stderr


def test_a_failing_report_ends_nothing(run: RunConfig, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def log(self, values: dict) -> None:
            raise RuntimeError("the service has ended")

        finish = log

    reports = weights_and_biases.WeightsAndBiases.__new__(weights_and_biases.WeightsAndBiases)
    reports._run = Broken()
    reports.add("train", 1, {"loss": 1.0})
    reports.add("train", 2, {"loss": 1.0})
    reports.close()
    assert caplog.text.count("gets no more figures of this start (the service has ended)") == 1
