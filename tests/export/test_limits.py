"""No wait at the end of a run is without a limit: the export's process, an upload, Weights & Biases."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from limba.config import DataConfig, RunConfig
from limba.export import end_of_run
from limba.training.metrics import weights_and_biases
from limba.training.metrics.weights_and_biases import WeightsAndBiases
from tests import tiny


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(tiny.model(), DataConfig("any", {"inputs": 64}, batch_size=8), str(tmp_path), train_steps=10)


def test_an_export_that_stands_still_is_ended(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_of_run, "HOURS_TO_WRITE", 1e-5)
    with pytest.raises(OSError, match=r"it has not ended after 1e-05 hours"):
        end_of_run.written(config, 5, tmp_path)


def test_an_upload_that_stands_still_is_left(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(end_of_run, "LAST_SECONDS", 0.05)
    standing = threading.Event()
    monkeypatch.setattr(end_of_run, "_upload", lambda *_: standing.wait(60))
    run = dataclasses.replace(config, hub_model_id="me/model", hub_strategy="every_save")
    with end_of_run.uploading(run):
        pass
    standing.set()
    assert [record.getMessage() for record in caplog.records] == [
        "The upload to me/model has not ended after 0 s, and is abandoned."
    ]


def test_figures_that_are_not_taken_are_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(weights_and_biases, "FINISH_SECONDS", 0.05)
    standing = threading.Event()
    there = object.__new__(WeightsAndBiases)
    there._run = SimpleNamespace(finish=lambda: standing.wait(60))
    there.close()
    standing.set()
    (record,) = caplog.records
    assert record.getMessage().startswith("Weights & Biases may lack the last figures (its upload has not ended")
