"""Whole runs: the loss falls, a resumed run equals one that never stopped, bad checkpoints are handled."""

import dataclasses
import math
import os
import re
import shutil
import signal
import threading
from pathlib import Path

import huggingface_hub
import jax
import numpy as np
import pytest
from etils import epath

import tasks.demo  # noqa: F401  registers the task
from limba.config import (
    CardConfig,
    CheckpointConfig,
    EvaluationConfig,
    InputError,
    MeshConfig,
    NonFiniteError,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.config.saved_config import from_text, moved
from limba.evaluation import history as histories
from limba.evaluation.summary import plot_loss, summary
from limba.export.card import write_card
from limba.formats.huggingface_files import Form
from limba.inference.source import Source
from limba.run import train
from limba.training.metrics.logging import read_metrics
from tests import tiny
from tests.run.logged import losses_of
from tests.waiting import wait_until


@pytest.fixture
def config(tmp_path: Path, corpus: Path, vocabulary: Path) -> RunConfig:
    data = tiny.demo_data(corpus, vocabulary)
    return RunConfig(
        model=tiny.model(vocab_size=1024, emb_dim=64, num_heads=2, mlp_dim=128, num_decoder_layers=2),
        data=data,
        model_dir=str(tmp_path / "run"),
        train_steps=100,
        optimizer=optimizer_config(schedule=ScheduleConfig(warmup_steps=100, base_learning_rate=0.3)),
        mesh=MeshConfig(2, 2, 2),
        checkpoint=CheckpointConfig(every_steps=25, keep=3),
        evaluation=EvaluationConfig(every_steps=50, num_batches=2),
        log_every_steps=1,
    )


def check_that_the_page_of_metrics_is_complete(config: RunConfig) -> None:
    """Every kind and key that a run writes stands in docs/development/metrics.md; `epochs/demo` as `epochs/<task>`."""
    explained = set(
        re.findall(r"`([^`\n]+)`", (Path(__file__).parents[2] / "docs" / "development" / "metrics.md").read_text())
    )
    families = {name.partition("/")[0] for name in explained if "/<" in name}
    records = read_metrics(config.model_dir)
    written = {name for record in records for name in (record["kind"], *record)}
    unknown = {name for name in written - explained if name.partition("/")[0] not in families or "/" not in name}
    assert len(written) > 30 and not unknown


def changed(config: RunConfig, **changes: object) -> RunConfig:
    return dataclasses.replace(config, **changes)


@pytest.mark.slow
@pytest.mark.short_run
def test_a_resumed_run_equals_one_that_never_stopped(config: RunConfig, tmp_path: Path) -> None:
    checkpoint = CheckpointConfig(every_steps=10, keep=3)
    evaluation = EvaluationConfig(every_steps=20, num_batches=2)
    config = changed(config, train_steps=40, checkpoint=checkpoint, evaluation=evaluation)
    result = train(config)
    expected = losses_of(config)
    assert result["step"] == 40 and not result["interrupted"]
    assert abs(expected[1] - math.log(1024)) < 1 and expected[40] < expected[1] - 1.5
    assert result["validation"]["loss"] < expected[1] - 1.0
    assert 1.0 < result["validation"]["bits_per_byte"] < 8.0
    assert sorted(int(p.name) for p in (Path(config.model_dir) / "checkpoints").iterdir() if p.name.isdigit()) == [
        20,
        30,
        40,
    ]

    stopped = changed(config, model_dir=str(tmp_path / "stopped"))
    train(changed(stopped, train_steps=20))
    train(stopped)
    assert losses_of(stopped) == expected  # bit for bit, the shuffle on
    check_that_the_page_of_metrics_is_complete(stopped)
    history = histories.History(epath.Path(stopped.model_dir))
    assert history.update() and not history.num_damaged
    steps = {kind: [note["step"] for note in history.notes if note["kind"] == kind] for kind in histories.NOTES}
    assert steps == {"event": [], "start": [0, 20], "saved": [10, 20, 30, 40], "end": [20, 40]}
    assert history.start["flops_per_step"] > 1e6 and history.start["environment"]["jax"] == jax.__version__
    counted = {side: sum(rows for _, rows in pairs) for side, pairs in history.row_lengths.items()}
    assert set(counted) == {"inputs", "targets"} and counted["inputs"] % stopped.data.batch_size == 0
    assert not any(note["failed"] for note in history.notes if note["kind"] == "end")
    written_down = (Path(stopped.model_dir) / "config.json").read_text()
    assert from_text(written_down, "config.json") == stopped
    assert moved(from_text(written_down, "config.json"), config.model_dir) == config
    assert not (Path(stopped.model_dir) / "config.gin").exists()

    text = summary(config)
    assert "steps               40" in text and "bits per byte" in text
    assert len(plot_loss(config).read_bytes()) > 5_000

    run = epath.Path(config.model_dir)
    source = Source(str(run), run, {40: run / "checkpoints" / "40"}, "Limba", model=config.model, run=config)
    card_config = CardConfig("ro", "apache-2.0", "user/corpus", "2 cores", thank_trc=True)
    write_card(tmp_path, source, 40, Form(("pytorch",)), ["proved"], card_config)
    written = (tmp_path / "README.md").read_text()
    listed = huggingface_hub.ModelCard.load(tmp_path / "README.md").data  # as the hub reads it
    assert (listed.language, listed.datasets, listed.license) == (["ro"], ["user/corpus"], "apache-2.0")
    last = [record for record in read_metrics(config.model_dir) if record["kind"] == "validation"][-1]
    results = {result.metric_type: result.metric_value for result in listed.eval_results}
    assert results["loss"] == pytest.approx(last["loss"], abs=1e-4) and "bits_per_byte" in results
    for part in (
        "license: apache-2.0",
        "2 cores",
        "* proved",
        "TPU Research Cloud",
        f"{last['loss']:.3f} at step",
    ):
        assert part in written
    assert (tmp_path / "loss.png").read_bytes() == (run / "loss.png").read_bytes()


@pytest.mark.slow
def test_sigterm_saves_and_the_run_resumes(config: RunConfig) -> None:
    config = changed(config, train_steps=100_000, evaluation=EvaluationConfig(every_steps=100_000), profile_steps=1)

    def stop() -> None:
        try:
            wait_until(lambda: losses_of(config), every=0.2)
        finally:  # else it trains on for hours
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    result = train(config)
    thread.join()
    assert result["interrupted"] and result["step"] == max(losses_of(config))
    if result["step"] >= 3:
        assert list(Path(config.model_dir, "profile").rglob("*.xplane.pb"))
    again = train(changed(config, train_steps=result["step"] + 2))
    assert again["step"] == result["step"] + 2


@pytest.mark.night
def test_checkpoints_that_cannot_be_used(config: RunConfig, caplog: pytest.LogCaptureFixture) -> None:
    config = changed(config, train_steps=4, checkpoint=CheckpointConfig(every_steps=2))
    train(config)
    expected = losses_of(config)
    directory = Path(config.model_dir) / "checkpoints"

    wider = changed(config, model=dataclasses.replace(config.model, mlp_dim=256))
    with pytest.raises(
        InputError,
        match=r"a different model: decoder/layers/mlp/wi_0/kernel is .*128.* in the checkpoint and .*256.* in this run",
    ):
        train(wider)
    with pytest.raises(InputError, match=r"a different optimizer: .*absent"):
        train(changed(config, optimizer=optimizer_config("adamw", ScheduleConfig("cosine", 1e-3, warmup_steps=2))))
    with pytest.raises(InputError, match="RunConfig.train_steps is 3, and the checkpoint is at step 4"):
        train(changed(config, train_steps=3))
    assert sorted(path.name for path in directory.iterdir()) == ["2", "4"]  # all of them good, none renamed
    with pytest.raises(InputError, match="DataConfig.num_data_shards is 8, and .* was saved with 4"):
        train(changed(config, data=dataclasses.replace(config.data, num_data_shards=8)))

    for path in (directory / "4").rglob("*"):  # the newest is broken: the one before is taken
        if path.is_file():
            path.write_bytes(b"\0" * 7)
    train(config)
    assert "step 4 cannot be read" in caplog.text
    assert losses_of(config) == expected and (directory / "4.broken").is_dir() and (directory / "4").is_dir()

    for step in ("2", "4"):
        shutil.rmtree(directory / step / "state")
    with pytest.raises(InputError, match="None of the checkpoints"):
        train(config)


@pytest.mark.night
def test_starts_from_another_run_s_checkpoint(config: RunConfig, tmp_path: Path) -> None:
    short = changed(config, train_steps=2, model_dir=str(tmp_path / "2024"))  # a name like a step's
    train(short)
    on = changed(config, model_dir=str(tmp_path / "on"), initial_checkpoint_path=short.model_dir, train_steps=3)
    train(on)
    assert set(losses_of(on)) == {3}
    with pytest.raises(InputError, match="names no model: .* is not a model: looked there"):
        train(changed(on, model_dir=str(tmp_path / "new"), initial_checkpoint_path=str(tmp_path)))


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_the_run(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limba.config.schedule.MOST_RATE", 1e31)
    schedule = ScheduleConfig("linear", base_learning_rate=1e30, warmup_steps=0)
    config = changed(config, optimizer=optimizer_config(schedule=schedule), log_every_steps=10)
    with pytest.raises(NonFiniteError, match=r"Step 1 gave loss 7\..*update norm inf.*nothing was saved") as caught:
        train(config)
    (written,) = Path(config.model_dir).glob("non_finite_step_*.npz")
    assert str(written) in str(caught.value)
    assert np.load(written)["inputs/0"].shape == (4, 48)


@pytest.mark.night
def test_the_run_ends_with_its_corpus(config: RunConfig) -> None:
    data = dataclasses.replace(config.data, num_epochs=1, batch_size=64)
    ended = train(changed(config, data=data, train_steps=10_000, evaluation=EvaluationConfig(10_000, 1)))
    steps = list(losses_of(config))
    assert ended["step"] == steps[-1] == len(steps) < 100
    assert ended["validation"]["loss"] > 0
    name = "epochs/demo_span_corruption"
    epochs_told = [
        record[name] for record in read_metrics(config.model_dir) if record["kind"] == "train" and name in record
    ]
    assert epochs_told == sorted(epochs_told) and all(0 < epochs <= 1 for epochs in epochs_told)
    assert (Path(config.model_dir) / "checkpoints" / str(steps[-1])).is_dir()


@pytest.mark.night
def test_the_training_example_of_the_page_on_python_runs(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", Path("docs/python.md").read_text(), re.DOTALL)
    code = next(block for block in blocks if "limba.train(" in block)
    (tmp_path / "data").mkdir()
    shutil.copyfile(corpus, tmp_path / "data" / "a.jsonl")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "python.md", "exec"), {})
    step, bits_per_byte = capsys.readouterr().out.strip().split("\n")[-1].split()
    assert step == "20" and 0 < float(bits_per_byte) < 8
    assert (tmp_path / "runs" / "bytes" / "checkpoints" / "20").is_dir()
