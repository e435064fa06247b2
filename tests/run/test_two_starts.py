"""Two starts in one MODEL_DIR: the second ends with a sentence, and a run that has lost its directory stops writing."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

import tasks.demo  # noqa: F401  registers the task
from limba.config import (
    CheckpointConfig,
    EvaluationConfig,
    InputError,
    MeshConfig,
    RestartError,
    RunConfig,
)
from limba.run import train
from limba.storage import lease_places
from limba.storage.lease import FILE, held
from tests import tiny
from tests.run.test_hosts import arguments, losses, start  # noqa: F401  a fixture
from tests.storage.leases import file_of, of_another_machine, put
from tests.waiting import wait_until

DEMO = ["--gin.EVAL_PERIOD=100000", "--gin.config.MeshConfig.fsdp=1", "--gin.CHECKPOINT_PERIOD=5"]


@pytest.fixture
def config(tmp_path: Path, corpus: Path, vocabulary: Path) -> RunConfig:
    return RunConfig(
        model=tiny.model(vocab_size=1024, emb_dim=64, num_heads=2, mlp_dim=128, num_decoder_layers=2),
        data=tiny.demo_data(corpus, vocabulary),
        model_dir=str(tmp_path / "run"),
        train_steps=20_000,  # minutes: a run that is never told of the other one ends, and the test fails
        mesh=MeshConfig(2, 2, 2),
        checkpoint=CheckpointConfig(every_steps=1_000_000),
        evaluation=EvaluationConfig(every_steps=1_000_000, num_batches=1),
        log_every_steps=1,
    )


def test_a_run_in_a_directory_that_is_in_use_writes_nothing(config: RunConfig) -> None:
    with held(config.model_dir):
        with pytest.raises(InputError, match=f"Another process uses {config.model_dir} now"):
            train(config)
        assert [path for path in Path(config.model_dir).rglob("*") if path.is_file()] == [Path(config.model_dir) / FILE]


@pytest.mark.slow
def test_a_run_that_has_lost_its_directory_saves_nothing_more(config: RunConfig, monkeypatch, capsys) -> None:
    monkeypatch.setattr(lease_places, "BEAT_SECONDS", 0.2)
    directory = Path(config.model_dir)
    theirs = of_another_machine()

    def take_over() -> None:
        wait_until(lambda: len(losses(directory)) >= 3)
        put(directory / FILE, theirs)

    thread = threading.Thread(target=take_over)
    thread.start()
    with pytest.raises(RestartError, match=r"Another process uses .* now \(process 7 on far"):
        train(config)
    thread.join()
    assert (directory / FILE).read_text() == file_of(theirs)
    assert not [path for path in (directory / "checkpoints").iterdir() if path.name.isdigit()]


@pytest.mark.night
def test_a_second_start_ends_and_a_killed_run_is_taken_over_at_once(arguments: list[str], tmp_path: Path) -> None:  # noqa: F811
    run = tmp_path / "run"
    flags = [*arguments, *DEMO, f"--gin.MODEL_DIR={run}"]

    def wait_for_step(step: int, process: subprocess.Popen) -> None:
        wait_until(lambda: process.poll() is not None or max(losses(run), default=0) >= step)
        assert process.poll() is None

    (first,) = start(["-m", "limba", "train", *flags, "--gin.TRAIN_STEPS=100000"], 1, 2)
    reading = threading.Thread(target=first.communicate)  # else it stands still when the pipe is full, at 64 KiB
    reading.start()
    wait_for_step(7, first)
    second = start(["-m", "limba", "train", *flags, "--gin.TRAIN_STEPS=100000"], 2, 1)
    sentence = f"Another process uses {run} now (process {first.pid} on "
    for process in second:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 2 and errors.splitlines()[-1].startswith(sentence)
    step = max(losses(run))
    wait_for_step(step + 5, first)  # the first goes on
    os.kill(first.pid, signal.SIGKILL)
    reading.join()
    last = max(losses(run))
    (third,) = start(["-m", "limba", "train", *flags, f"--gin.TRAIN_STEPS={last + 2}"], 1, 2)
    out = "\n".join(third.communicate(timeout=400))
    assert third.returncode == 0, out
    assert f"{run} was left by process {first.pid} on " in out and "waiting" not in out
    assert sorted(losses(run)) == list(range(1, last + 3)) and not (run / FILE).exists()
