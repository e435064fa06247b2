"""A run whose bucket refuses every connection: a port that nothing listens at any more, not a server that answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharding.processes import ROOT, xla_flags
from tests.waiting import wait_until

SERVER = """
import sys
from tests.bucket_server import serving_buckets
with serving_buckets() as server:
    print(server.address, flush=True)
    sys.stdin.read()
"""


@pytest.mark.night
def test_a_run_whose_bucket_is_gone_is_stopped_in_minutes_and_says_it_in_sentences(
    corpus: Path, vocabulary: Path, tmp_path: Path
) -> None:
    """It wrote 34 tracebacks of the bucket's client, and SIGTERM did not end it."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    names = {
        "CORPUS": corpus, "VOCABULARY": vocabulary, "VOCAB_SIZE": 1024, "BATCH_SIZE": 8, "LOG_PERIOD": 1,
        "TASK_FEATURE_LENGTHS": "{'inputs': 48}", "TRAIN_STEPS": 1_000_000, "CHECKPOINT_PERIOD": 50,
        "EVAL_PERIOD": 1_000_000, "EVAL_STEPS": 1, "MODEL_DIR": "gs://bucket/run",
    }  # fmt: skip
    command = [sys.executable, "-m", "limba", "train", "gin/demo.gin"]
    command += [f"--gin.{name}={value}" for name, value in names.items()]
    variables = {**os.environ, "STORAGE_EMULATOR_HOST": address, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        running = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "step 50 saved in" in log.read_text() or running.poll() is not None)
        assert running.poll() is None, log.read_text()
        server.kill()
        server.communicate()
        wait_until(lambda: "cannot be written" in log.read_text())  # the heartbeat, or the figures
        running.send_signal(signal.SIGTERM)
        status = running.wait(400)
    finally:
        running.kill()
        server.kill()
    said = log.read_text()
    assert status == 74, said[-3000:]
    assert "Traceback" not in said and "Step 50 in gs://bucket/run/checkpoints is good." in said.splitlines()[-1], said
