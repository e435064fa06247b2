"""Two real processes on CPU (gloo) train, save, are stopped and killed, and resume with the same losses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.run.logged import records_so_far
from tests.sharding.processes import ROOT, variables, xla_flags
from tests.waiting import wait_until

SAVES = "SIGINT: the run saves after this step and ends; a second one ends it at once."
# limba train for several runs, one after the other.
SEVERAL = """
import json, sys
from limba.config import environment
environment.set_variables()
from limba.cli.train import run
for arguments in json.loads(sys.argv[1]):
    run(arguments)
"""


def start(program: list[str], processes: int, devices: int, **more: str) -> list[subprocess.Popen]:
    """Starts it in that many processes of that many devices each, each with a terminal's process group of its own."""
    more["XLA_FLAGS"] = f"{xla_flags(devices)} {more.get('XLA_FLAGS', '')}".strip()
    return [
        subprocess.Popen(
            [sys.executable, *program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        for environment in variables(processes, PYTHONPATH=str(ROOT), **more)
    ]


def finish(started: list[subprocess.Popen], *statuses: int) -> list[tuple[str, list[str]]]:
    """Waits for the ends, which must have these statuses (default: 0); returns output and lines on stderr of each."""
    ends = [process.communicate(timeout=480) for process in started]
    expected = list(statuses) or [0] * len(started)
    assert [process.returncode for process in started] == expected, "\n".join(map("".join, ends))
    return [(output, errors.splitlines()) for output, errors in ends]


def wait_for_steps(directory: Path, number: int, started: list[subprocess.Popen]) -> None:
    wait_until(lambda: len(losses(directory)) >= number or any(process.poll() is not None for process in started))
    ended = [process.communicate()[1][-1000:] for process in started if process.poll() is not None]
    assert not ended, ended


def losses(directory: Path) -> dict[int, float]:
    """Returns the losses of the steps that a run has logged."""
    return {record["step"]: record["loss"] for record in records_so_far(directory) if record["kind"] == "train"}


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


@pytest.mark.night
def test_two_processes_of_one_device_have_the_dropout_of_one(arguments: list[str], tmp_path: Path) -> None:
    """Masks are of the global batch: losses do not depend on the devices.

    The rate is low, so that roundings of the sums over devices stay as small as they are in the first step: with the
    demo's own, Adafactor makes up to 1e-5 of them in four steps.
    """
    by_count = []
    for processes in (1, 2):
        run = [*arguments, "--gin.config.MeshConfig.fsdp=1", "--gin.LEARNING_RATE=0.001"]
        run += [f"--gin.MODEL_DIR={tmp_path}/{processes}"]
        finish(start(["-m", "limba", "train", *run, "--gin.TRAIN_STEPS=4", "--gin.EVAL_PERIOD=100"], processes, 1))
        by_count.append(list(losses(tmp_path / str(processes)).values()))
    assert len(by_count[0]) == 4
    np.testing.assert_allclose(by_count[1], by_count[0], rtol=1e-5)


def part(arguments: list[str], directory: Path, steps: int) -> list[str]:
    return [*arguments, f"--gin.MODEL_DIR={directory}", f"--gin.TRAIN_STEPS={steps}"]


@pytest.mark.night
def test_a_new_process_resumes_bit_for_bit(arguments: list[str], tmp_path: Path) -> None:
    """With parameters and rows cut among four devices."""
    one = tmp_path / "one"
    parts = tmp_path / "parts"
    finish(start(["-c", SEVERAL, json.dumps([part(arguments, one, 8), part(arguments, parts, 3)])], 1, 4))
    finish(start(["-m", "limba", "train", *part(arguments, parts, 8)], 1, 4))
    assert losses(parts) == losses(one) and len(losses(one)) == 8


@pytest.mark.slow
def test_two_processes_train_like_one(arguments: list[str], tmp_path: Path) -> None:
    """With dropout and micro-batches; one process goes on from two's checkpoint, and SIGTERM to one stops both."""
    one, two, alone = (tmp_path / name for name in ("one", "two", "alone"))

    outputs = finish(start(["-m", "limba", "train", *part(arguments, two, 3)], 2, 2))
    assert "step 3/3" in outputs[0][0] and "step" not in outputs[1][0]  # only the first process prints
    shutil.copytree(two, alone)
    # The checkpoint of two processes is resumed by one: the data do not depend on the number of hosts.
    finish(start(["-c", SEVERAL, json.dumps([part(arguments, one, 8), part(arguments, alone, 8)])], 1, 4))
    assert list(losses(one)) == list(losses(alone)) == list(range(1, 9))
    np.testing.assert_allclose(list(losses(alone).values()), list(losses(one).values()), rtol=1e-5)
    assert "config.RunConfig" in (alone / "config.gin").read_text()
    assert list((alone / "tensorboard").glob("events.out.tfevents.*"))

    program = ["-m", "limba", "train", *part(arguments, two, 100_000), "--gin.EVAL_PERIOD=100000"]
    started = start(program, 2, 2)
    wait_for_steps(two, 8, started)
    started[1].send_signal(signal.SIGTERM)
    outputs = finish(started, 75, 75)
    step = max(losses(two))
    assert f"Asked to stop: step {step:,} is saved" in outputs[0][0]
    sentence = f"The run was asked to stop after step {step:,}; the same command resumes it."
    assert [errors for _, errors in outputs] == [[sentence]] * 2
    assert {path.name for path in (two / "checkpoints").iterdir()} == {"3", str(step)}
    assert list(losses(two)) == list(range(1, step + 1))
    np.testing.assert_allclose([losses(two)[n] for n in range(1, 9)], list(losses(one).values()), rtol=1e-5)


def leg(arguments: list[str], directory: Path, steps: int, *more: str) -> list[str]:
    common = ["--gin.EVAL_PERIOD=100000", "--gin.CHECKPOINT_PERIOD=5", *more]
    return ["-m", "limba", "train", *arguments, f"--gin.MODEL_DIR={directory}", f"--gin.TRAIN_STEPS={steps}", *common]


@pytest.mark.night
def test_interrupted_and_killed_processes_lose_no_batch(arguments: list[str], tmp_path: Path) -> None:
    """Each fault is answered in time, and the losses equal a run's without faults, to the last bit."""
    broken = tmp_path / "broken"
    whole = tmp_path / "whole"
    limit = "--gin.config.RunConfig.host_timeout_seconds=10"

    def start_two(directory: Path, steps: int) -> list[subprocess.Popen]:
        return start(leg(arguments, directory, steps, limit), 2, 2)

    started = start_two(broken, 100_000)
    wait_for_steps(broken, 3, started)
    for process in started:
        process.send_signal(signal.SIGINT)
    ends = finish(started, 75, 75)
    step = max(losses(broken))
    for _, errors in ends:
        assert errors == [SAVES, f"The run was asked to stop after step {step:,}; the same command resumes it."]

    started = start_two(broken, 100_000)
    wait_for_steps(broken, step + 8, started)
    started[1].kill()
    (_, errors), _ = finish(started, -signal.SIGABRT, -signal.SIGKILL)
    assert errors  # jax's own message

    last = max(losses(broken)) + 5
    finish(start_two(broken, last))
    finish(start_two(whole, last))
    assert losses(broken) == losses(whole) and len(losses(whole)) == last


@pytest.mark.night
def test_ctrl_c_lets_reader_processes_give_their_positions(arguments: list[str], tmp_path: Path) -> None:
    """A terminal sends it to every process of the run."""
    started = start(leg(arguments, tmp_path, 100_000, "--gin.config.DataConfig.num_reader_processes=2"), 1, 4)
    wait_for_steps(tmp_path, 3, started)
    os.killpg(started[0].pid, signal.SIGINT)
    ((_, errors),) = finish(started, 75)
    step = max(losses(tmp_path))
    assert errors == [SAVES, f"The run was asked to stop after step {step:,}; the same command resumes it."]
    assert (tmp_path / "checkpoints" / str(step) / "data").is_dir()
