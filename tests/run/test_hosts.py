"""Two real processes on CPU (gloo) train, save, stop on one's SIGTERM and resume, with the losses of one process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(arguments: list[str], processes: int, devices: int) -> list[subprocess.Popen]:
    """Starts one run in that many processes of that many devices each."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(ROOT),
    }
    address = f"127.0.0.1:{free_port()}"
    started = []
    for index in range(processes):
        if processes > 1:
            environment |= {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": str(processes), "PROCESS_ID": str(index)}
        command = [sys.executable, "-m", "launch.train", *arguments]
        started.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
            )
        )
    return started


def finish(started: list[subprocess.Popen]) -> list[str]:
    outputs = [process.communicate(timeout=480)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(outputs)
    return outputs


def losses(directory: Path) -> dict[int, float]:
    path = directory / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines() if line] if path.exists() else []
    return {record["step"]: record["loss"] for record in records if record["kind"] == "train"}


@pytest.fixture
def arguments(corpus: Path, vocabulary: Path, tmp_path: Path) -> list[str]:
    return [
        "--gin_file=gin/demo.gin",
        f"--gin.VOCABULARY={vocabulary}",
        f"--gin.CORPUS={corpus}",
        "--gin.VOCAB_SIZE=1024",
        "--gin.BATCH_SIZE=8",
        "--gin.config.DataConfig.num_data_shards=4",
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 48}",
        "--gin.LOG_PERIOD=1",
        "--gin.EVAL_PERIOD=3",
        "--gin.EVAL_STEPS=2",
        "--gin.CHECKPOINT_PERIOD=1000",
        "--gin.config.MeshConfig.fsdp=2",
        "--gin.NUM_MICROBATCHES=2",
        "--gin.DROPOUT_RATE=0.1",
    ]


def test_two_processes_train_like_one(arguments: list[str], tmp_path: Path) -> None:
    """With dropout and micro-batches; and a fresh process goes on bit for bit."""
    one, two, parts = tmp_path / "one", tmp_path / "two", tmp_path / "parts"
    finish(start([*arguments, f"--gin.MODEL_DIR={one}", "--gin.TRAIN_STEPS=8"], 1, 4))
    for steps in (3, 8):
        finish(start([*arguments, f"--gin.MODEL_DIR={parts}", f"--gin.TRAIN_STEPS={steps}"], 1, 4))
    assert losses(parts) == losses(one) and len(losses(one)) == 8
    assert "config.RunConfig" in (parts / "config.gin").read_text()
    assert list((parts / "tensorboard").glob("events.out.tfevents.*"))

    outputs = finish(start([*arguments, f"--gin.MODEL_DIR={two}", "--gin.TRAIN_STEPS=3"], 2, 2))
    assert "step 3/3" in outputs[0] and "step" not in outputs[1]  # one process speaks for all
    finish(start([*arguments, f"--gin.MODEL_DIR={two}", "--gin.TRAIN_STEPS=6"], 2, 2))
    # The checkpoint then goes on in one process: the data do not know how many hosts there are.
    finish(start([*arguments, f"--gin.MODEL_DIR={two}", "--gin.TRAIN_STEPS=8"], 1, 4))
    assert list(losses(two)) == list(range(1, 9))
    np.testing.assert_allclose(list(losses(two).values()), list(losses(one).values()), rtol=1e-5)


def test_sigterm_to_one_process_saves_the_same_step_on_all(arguments: list[str], tmp_path: Path) -> None:
    directory = tmp_path / "run"
    started = start(
        [*arguments, f"--gin.MODEL_DIR={directory}", "--gin.TRAIN_STEPS=100000", "--gin.EVAL_PERIOD=100000"], 2, 2
    )
    deadline = time.monotonic() + 400
    while len(losses(directory)) < 3:
        assert time.monotonic() < deadline and all(process.poll() is None for process in started)
        time.sleep(0.2)
    started[1].send_signal(signal.SIGTERM)
    outputs = finish(started)
    step = max(losses(directory))
    assert f"Asked to stop: saved step {step:,}" in outputs[0]
    assert [path.name for path in (directory / "checkpoints").iterdir()] == [str(step)]
