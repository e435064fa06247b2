"""launch/simulate.sh: several real processes through launch/pretrain.sh and launch/supervise.sh."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.logged import records_so_far
from tests.sharding.processes import ROOT, xla_flags
from tests.waiting import wait_until

SMALL = (
    "VOCAB_SIZE=1024", "BATCH_SIZE=8", "TASK_FEATURE_LENGTHS={'inputs': 48}", "LOG_PERIOD=1", "EVAL_PERIOD=1000",
    "EVAL_STEPS=1",
)  # fmt: skip


def start(*arguments: str, **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        ["bash", str(ROOT / "launch" / "simulate.sh"), *arguments],
        env={**os.environ, "SETUP": "no", "XLA_FLAGS": xla_flags(), **variables},
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def steps_of(directory: Path) -> list[int]:
    return [record["step"] for record in records_so_far(directory) if record["kind"] == "train"]


@pytest.mark.night
def test_four_processes_train_and_stop_together(corpus: Path, vocabulary: Path, tmp_path: Path) -> None:
    """SIGTERM to the script, as Ctrl-C there, saves in all of them; the same command resumes and ends."""
    variables = {"MODEL_DIR": str(tmp_path / "run"), "CORPUS": str(corpus), "VOCABULARY": str(vocabulary)}
    running = start("4", "gin/demo.gin", "TRAIN_STEPS=100000", "CHECKPOINT_PERIOD=100000", *SMALL, **variables)
    wait_until(lambda: running.poll() is not None or steps_of(tmp_path / "run"))
    assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    output = running.communicate(timeout=200)[0]
    assert running.returncode == 75, output
    last = steps_of(tmp_path / "run")[-1]
    for index in range(4):
        assert f"{index}: process {index} of 4 on " in output
        assert f"{index}: The run was asked to stop after step {last:,}; the same command resumes it." in output
    resumed = start("4", "gin/demo.gin", f"TRAIN_STEPS={last + 3}", *SMALL, **variables)
    output = resumed.communicate(timeout=400)[0]
    assert resumed.returncode == 0, output
    assert len(re.findall(r"^\d: process \d of 4 on .* has ended$", output, re.MULTILINE)) == 4
    assert steps_of(tmp_path / "run") == list(range(1, last + 4))


@pytest.mark.long
def test_processes_that_are_preempted_at_random_resume(corpus: Path, vocabulary: Path, tmp_path: Path) -> None:
    variables = {"MODEL_DIR": str(tmp_path / "run"), "CORPUS": str(corpus), "VOCABULARY": str(vocabulary)}
    running = start(
        "2", "gin/demo.gin", "--kill-every=20", "SEED=3", "TRAIN_STEPS=4000", "CHECKPOINT_PERIOD=50", *SMALL,
        "--gin.config.RunConfig.host_timeout_seconds=10", **variables,
    )  # fmt: skip
    preempted = 0
    lines = []
    assert running.stdout is not None
    for line in running.stdout:
        lines.append(line)
        preempted += " gets SIG" in line
        if preempted >= 2 and "new start" not in line and re.match(r"0: step ", line):
            running.send_signal(signal.SIGTERM)  # it has resumed after two preemptions
            break
    lines += running.communicate(timeout=200)[0].splitlines(keepends=True)
    text = "".join(lines)
    assert preempted >= 2 and "new start" in text, text
    assert running.returncode == 75, text
    steps = steps_of(tmp_path / "run")
    assert set(steps) == set(range(1, max(steps) + 1))  # none is left out, some are repeated


# A Python that ends, as `limba train`, with the status of its process, or waits to be stopped.
PYTHON = """#!/bin/sh
case "$*" in
  *"-m limba train"*)
    case $PROCESS_ID in 0) status=$FIRST ;; *) status=$SECOND ;; esac
    if [ "$status" = waits ]; then exec sleep 60; fi
    exit "$status" ;;
esac
exec {python} "$@"
"""


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        ("0", "0", 0), ("0", "75", 75), ("75", "2", 2), ("2", "75", 2), ("75", "3", 3), ("74", "75", 74),
        ("waits", "2", 2), ("waits", "75", 75),
    ],
)  # fmt: skip
def test_its_status_is_that_of_the_process_that_failed(first: str, second: str, status: int, tmp_path: Path) -> None:
    """With the scripts' own text, and a Python in place of the training. A process that would wait is stopped."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON.replace("{python}", sys.executable))
    python.chmod(0o755)
    done = start(
        "2", "gin/other.gin", VENV=str(tmp_path), MODEL_DIR=str(tmp_path / "run"), FIRST=first, SECOND=second,
        RETRIES="0", LONE_SECONDS="1",
    )  # fmt: skip
    output = done.communicate(timeout=60)[0]
    assert done.returncode == status, output
    if first == "waits":
        assert f"process 1 has ended with status {status}; the others are stopped after 1 s." in output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("4",), "give the number of processes and a gin file"),
        (("four", "gin/demo.gin"), "the number of processes is four; give a whole number"),
        (("2", "gin/demo.gin", "--kill-every=soon"), "--kill-every is soon; give whole seconds"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], sentence: str) -> None:
    done = start(*arguments)
    output = done.communicate(timeout=200)[0]
    assert done.returncode == 2 and sentence in output and len(output.splitlines()) == 1
