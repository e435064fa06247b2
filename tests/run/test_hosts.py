"""Two real processes on CPU (gloo) train, save, stop on SIGTERM to one and resume, with the losses of one process."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
# launch.train for several runs, one after the other.
SEVERAL = """
import json, sys
from limba.config import environment
environment.set_variables()
from limba.cli.train.train import run
for arguments in json.loads(sys.argv[1]):
    run(arguments)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(program: list[str], processes: int, devices: int) -> list[subprocess.Popen]:
    """Starts it in that many processes of that many devices each."""
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
        command = [sys.executable, *program]
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


@pytest.mark.slow
def test_two_processes_train_like_one(arguments: list[str], tmp_path: Path) -> None:
    """With dropout and micro-batches; a new process resumes bit for bit, and SIGTERM to one process stops both."""
    one, two, parts, alone = (tmp_path / name for name in ("one", "two", "parts", "alone"))

    def leg(directory: Path, steps: int) -> list[str]:
        return [*arguments, f"--gin.MODEL_DIR={directory}", f"--gin.TRAIN_STEPS={steps}"]

    outputs = finish(start(["-m", "launch.train", *leg(two, 3)], 2, 2))
    assert "step 3/3" in outputs[0] and "step" not in outputs[1]  # only the first process prints
    shutil.copytree(two, alone)
    finish(start(["-c", SEVERAL, json.dumps([leg(one, 8), leg(parts, 3)])], 1, 4))
    # The checkpoint of two processes is resumed by one: the data do not depend on the number of hosts.
    finish(start(["-c", SEVERAL, json.dumps([leg(parts, 8), leg(alone, 8)])], 1, 4))
    assert losses(parts) == losses(one) and len(losses(one)) == 8
    assert list(losses(alone)) == list(range(1, 9))
    np.testing.assert_allclose(list(losses(alone).values()), list(losses(one).values()), rtol=1e-5)
    assert "config.RunConfig" in (parts / "config.gin").read_text()
    assert list((parts / "tensorboard").glob("events.out.tfevents.*"))

    started = start(["-m", "launch.train", *leg(two, 100_000), "--gin.EVAL_PERIOD=100000"], 2, 2)
    deadline = time.monotonic() + 400
    while len(losses(two)) < 8:
        assert time.monotonic() < deadline and all(process.poll() is None for process in started)
        time.sleep(0.2)
    started[1].send_signal(signal.SIGTERM)
    outputs = finish(started)
    step = max(losses(two))
    assert f"Asked to stop: step {step:,} is saved" in outputs[0]
    assert {path.name for path in (two / "checkpoints").iterdir()} == {"3", str(step)}
    assert list(losses(two)) == list(range(1, step + 1))
    np.testing.assert_allclose([losses(two)[n] for n in range(1, 9)], list(losses(one).values()), rtol=1e-5)
