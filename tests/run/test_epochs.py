"""Epochs of a run: its steps, schedule, saves and figures; and what is saved when its corpus cannot be read."""

import dataclasses
import json
from pathlib import Path

import pytest

import tasks.text_to_text  # noqa: F401  registers the task
from limba.config import (
    CheckpointConfig,
    ConfigError,
    DataConfig,
    EvaluationConfig,
    InputError,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.data.objectives import derive_lengths
from limba.data.tasks import resolve_task
from limba.run import train
from limba.training.metrics.logging import read_metrics
from limba.training.schedule import make_schedule
from limba.training.start import plan_of_run
from tests import tiny


def pairs(path: Path, number: int, letters: int) -> str:
    lines = [json.dumps({"inputs": f"{n} " + chr(97 + n % 26) * letters, "targets": f"{n}"}) for n in range(number)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    files = {"train": pairs(tmp_path / "train.jsonl", 50, 5), "validation": pairs(tmp_path / "some.jsonl", 8, 5)}
    data = DataConfig(
        "text_to_text",
        {"inputs": 16, "targets": 8},
        batch_size=8,
        vocabulary="byte",
        data_files=files,
        num_data_shards=4,
        num_epochs=2,
    )
    small = {"vocab_size": 384, "emb_dim": 32, "num_heads": 2, "head_dim": 8, "mlp_dim": 32}
    return RunConfig(
        tiny.model(**small, num_encoder_layers=1, num_decoder_layers=1),
        data,
        str(tmp_path / "run"),
        train_steps=None,
        optimizer=optimizer_config("adamw", ScheduleConfig("linear", 0.01, warmup_steps=0)),
        checkpoint=CheckpointConfig(every_steps="epoch"),
        evaluation=EvaluationConfig(every_steps="epoch", num_batches=1),
        log_every_steps=1,
    )


def changed(config: RunConfig, **data: object) -> RunConfig:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data))


@pytest.mark.slow
def test_steps_schedule_saves_and_figures_follow_the_epochs(
    config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(config)["step"] == 13
    out = capsys.readouterr().out
    assert "50 examples an epoch, 6.25 steps of 8" in out and "up to step 13" in out and "step 13/13" in out
    assert "read 2 time(s): the run ends at step 13" in out
    lines = {record["step"]: record for record in read_metrics(config.model_dir) if record["kind"] == "train"}
    for step, epochs in ((1, 0.16), (7, 1.12), (13, 2.0)):
        assert lines[step]["epochs/text_to_text"] == pytest.approx(epochs)
        assert lines[step]["learning_rate"] == pytest.approx(0.01 * (1 - (step - 1) / 13), rel=1e-4)
    evaluated = [record["step"] for record in read_metrics(config.model_dir) if record["kind"] == "validation"]
    saved = sorted(int(path.name) for path in (Path(config.model_dir) / "checkpoints").iterdir() if path.name.isdigit())
    assert evaluated == saved == [7, 13]
    counts = (Path(config.model_dir) / "rows.json").stat().st_mtime_ns
    assert train(config)["step"] == 13  # nothing is left
    assert (Path(config.model_dir) / "rows.json").stat().st_mtime_ns == counts


@pytest.mark.parametrize("name", ["linear", "cosine", "warmup_stable_decay"])
def test_each_schedule_falls_to_0_where_the_epochs_end(config: RunConfig, name: str) -> None:
    optimizer = optimizer_config("adamw", ScheduleConfig(name, 0.01, warmup_steps=2))
    config = dataclasses.replace(config, optimizer=optimizer)
    task = resolve_task(config.data)
    planned = plan_of_run(config, task, derive_lengths(task, config.data.task_feature_lengths)).planned
    rate = make_schedule(planned.optimizer.schedule, planned.train_steps)
    rates = [float(rate(step)) for step in range(14)]
    assert planned.train_steps == 13 and max(rates) == pytest.approx(0.01)
    assert rates[12] > 1e-5 and rates[13] == pytest.approx(0, abs=1e-9)


def test_steps_are_asked_for_where_rows_are_not_known(config: RunConfig) -> None:
    packed = changed(config, pack=True)
    with pytest.raises(ConfigError, match=r"train_steps is None, and the linear schedule needs .* DataConfig.pack"):
        train(packed)
    for schedule in (ScheduleConfig(warmup_steps=0.02), ScheduleConfig("cosine", warmup_steps=0, decay_steps=0.7)):
        rule = optimizer_config("adamw", schedule)
        with pytest.raises(ConfigError, match=r"train_steps is None, and the \w+ schedule needs"):
            train(dataclasses.replace(packed, optimizer=rule))
    with pytest.raises(
        ConfigError, match=r"CheckpointConfig.every_steps is 'epoch', and the rows .* a number of steps"
    ):
        train(dataclasses.replace(packed, train_steps=5))
    with pytest.raises(ConfigError, match=r"train_steps is None, and so is DataConfig.num_epochs"):
        changed(config, num_epochs=None)
    with pytest.raises(ConfigError, match=r"every_steps is 'epochs'; give a whole number or 'epoch'"):
        CheckpointConfig(every_steps="epochs")  # pyright: ignore[reportArgumentType]


# The damaged place, as a part of the file, comes after what the first step has prefetched, and before step 110.
@pytest.mark.night
@pytest.mark.parametrize(("is_counted", "share"), [(True, 0.77), (False, 0.585)])
def test_what_was_trained_is_saved_when_reading_fails(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_counted: bool, share: float
) -> None:
    monkeypatch.setattr("limba.data.sources.splits.BYTES_CHECKED", 1)
    if not is_counted:
        monkeypatch.setattr("limba.data.sources.splits.COUNTED_BYTES", 0)
    path = tmp_path / "long.jsonl"
    files = {"train": pairs(path, 1500, 2000), "validation": str(tmp_path / "some.jsonl")}
    config = dataclasses.replace(
        config, train_steps=110, checkpoint=CheckpointConfig(every_steps=100), evaluation=EvaluationConfig(100, 1)
    )
    config = changed(config, data_files=files, shuffle=False, num_data_shards=2, num_epochs=None)
    train(dataclasses.replace(config, model_dir=str(tmp_path / "whole")))
    train(dataclasses.replace(config, train_steps=1))

    good = path.read_bytes()
    bad = good.index(b"{", int(share * len(good)))
    path.write_bytes(good[:bad] + b"?" + good[bad + 1 :])
    with pytest.raises(InputError, match=r"is not JSON .*What was trained, up to step \d+, is saved\."):
        train(config)
    saved = max(int(entry.name) for entry in (tmp_path / "run" / "checkpoints").iterdir() if entry.name.isdigit())
    assert 1 < saved < 110
    path.write_bytes(good)
    train(config)
    whole, losses_now = (
        {
            record["step"]: (record["loss"], record["gradient_norm"])
            for record in read_metrics(run)
            if record["kind"] == "train"
        }
        for run in (str(tmp_path / "whole"), config.model_dir)
    )
    assert {step: losses_now[step] for step in range(2, 111)} == {step: whole[step] for step in range(2, 111)}
