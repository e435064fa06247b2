"""An evaluation after the run says where it reads other text than the run held out."""

import dataclasses
import json
import logging
import os
import shutil
from pathlib import Path

import pytest

import tasks.demo  # noqa: F401  registers demo_span_corruption
from limba.cli import main
from limba.config import CheckpointConfig, DataConfig, EvaluationConfig, RunConfig
from limba.evaluation.own_text import change_of_text
from limba.inference.load import load
from limba.run import train
from tests import tiny
from tests.data.text_files import write

SAID = "The figures below are of this other text"
TEXTS = [f"{number} " + "word " * (number % 23) for number in range(400)]
OTHER_TEXTS = [f"{number} " + "other words " * (number % 17) for number in range(400)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with runs of two steps: `carved` of data/*.jsonl, and `apart` with validation files of its own."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "data").mkdir()
    write(folder / "data" / "a.jsonl", TEXTS)
    write(folder / "held_out.jsonl", TEXTS[::7])
    before = Path.cwd()
    os.chdir(folder)  # a relative pattern is the point
    try:
        for name, files in (
            ("carved", "data/*.jsonl"),
            ("apart", {"train": "data/*.jsonl", "validation": "held_out.jsonl"}),
        ):
            data = DataConfig(
                "demo_span_corruption",
                {"inputs": 48},
                batch_size=8,
                vocabulary="byte",
                data_files=files,
                validation_percent=20.0,
                num_data_shards=2,
            )
            config = RunConfig(
                model=tiny.model(vocab_size=384, num_encoder_layers=1, num_decoder_layers=1),
                data=data,
                model_dir=name,
                train_steps=2,
                checkpoint=CheckpointConfig(every_steps=2),
                evaluation=EvaluationConfig(every_steps=100),
            )
            train(config)
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory: a copy of that directory."""
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    monkeypatch.chdir(copy)
    return copy


def change_said(caplog: pytest.LogCaptureFixture, run: str, *argv: str) -> str | None:
    """Evaluates a run; returns what its document says has changed, which a warning says too."""
    caplog.clear()
    assert not main.main(["evaluate", run, "--num_gaps=0", "--num_examples=1", *argv])
    files = Path(run, "evaluations").glob("evaluation-*.json")
    change = json.loads(max(files, key=lambda file: file.stat().st_mtime_ns).read_text())["text_changed"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    said = [sentence.partition(f". {SAID}")[0] for sentence in warnings if SAID in sentence]
    assert said == ([] if change is None else [change])
    return change


@pytest.mark.slow
def test_other_files_than_the_runs_are_said(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert change_said(caplog, "carved") is None  # the same files in another directory
    write(here / "data" / "b.jsonl", OTHER_TEXTS)
    change = change_said(caplog, "carved")
    assert change == f"The corpus has changed since step 2: 1 file appeared: {here}/data/b.jsonl"
    (here / "data" / "b.jsonl").rename(here / "data" / "a.jsonl")
    change = change_said(caplog, "carved", "--split=train")
    assert change is not None
    assert f"{here}/data/a.jsonl has changed since step 2: " in change


@pytest.mark.slow
def test_text_that_the_caller_chose_is_not_compared(here: Path) -> None:
    write(here / "data" / "b.jsonl", OTHER_TEXTS)
    config = load("carved").config
    assert isinstance(config, RunConfig)
    assert change_of_text(load("carved", config=config), "validation")
    chosen = dataclasses.replace(config, data=dataclasses.replace(config.data, data_files="data/b.jsonl"))
    assert change_of_text(load("carved", config=chosen), "validation") == ""


@pytest.mark.slow
def test_new_training_files_leave_validation_files_as_they_are(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(here / "data" / "b.jsonl", OTHER_TEXTS)
    assert change_said(caplog, "apart") is None
    change = change_said(caplog, "apart", "--split=train")
    assert change == f"The corpus has changed since step 2: 1 file appeared: {here}/data/b.jsonl"
