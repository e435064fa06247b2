"""Recorded runs resume: of the present order of data exactly, of an earlier format with a text that begins anew.

tests/golden/run/run was stopped by SIGKILL behind step 10 of 24, and tests/golden/run_of_two/run, whose two processes
of one device each have saved two steps, behind step 8 of 16: their data positions are of format 5, so their text begins
anew. tests/golden/run_of_order_1/run is a run of two processes as it was at step 8 of 16; `XLA_FLAGS= python -m
tests.run.test_recorded_run` has recorded it.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.run.logged import losses_of
from tests.sharding.processes import variables
from tests.shipped import ROOT

GOLDEN = ROOT / "tests" / "golden"


def trained(directory: Path, run: str, processes: int, *flags: str) -> str:
    """Trains a run of the directory to its end by so many processes; returns what the first one says."""
    # The compiler has no flags, as in the recording: then each loss is equal to the last digit.
    environments = variables(processes, PYTHONPATH=str(ROOT), XLA_FLAGS="")
    command = [sys.executable, "-m", "limba", "train", "run/config.gin", f"--gin.MODEL_DIR={run}", *flags]
    started = []
    for environment in environments:
        started.append(
            subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ends = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0] * processes, ends
    return "".join(ends[0])


def check_resumes(name: str, step: int, last_step: int, processes: int, directory: Path) -> None:
    """Resumes a copy of a recorded run: weights, optimizer and step come from its checkpoint, the text begins anew.

    So it is as a run that begins with this checkpoint and reads from the beginning.
    """
    shutil.copytree(GOLDEN / name, directory, dirs_exist_ok=True)
    shutil.copyfile(GOLDEN / "run" / "corpus.jsonl", directory / "corpus.jsonl")
    checkpoint = f"checkpoints/{step}"
    shutil.copytree(directory / "run" / checkpoint, directory / "kept" / checkpoint)
    said = trained(directory, "run", processes)
    assert f"resumes at step {step}" in said
    sentence = f"The text begins anew at step {step}: this version reads it in another order"
    assert said.count(sentence) == 1 and "(data position of format 5, this version's is 6)" in said
    trained(directory, "other", processes, f"--gin.INITIAL_CHECKPOINT_PATH=kept/{checkpoint}")
    expected = losses_of(directory / "other")
    losses = losses_of(directory / "run")
    assert list(losses) == list(range(step + 1, last_step + 1))
    assert losses == expected


@pytest.mark.slow
def test_a_recorded_run_resumes_with_its_weights_and_its_text_begins_anew(tmp_path: Path) -> None:
    check_resumes("run", 10, 24, processes=1, directory=tmp_path)


@pytest.mark.night
def test_a_recorded_run_of_two_processes_is_resumed_by_two(tmp_path: Path) -> None:
    check_resumes("run_of_two", 8, 16, processes=2, directory=tmp_path)


@pytest.mark.night
def test_a_recorded_run_of_two_processes_is_resumed_by_one(tmp_path: Path) -> None:
    """What both have written is read by one."""
    check_resumes("run_of_two", 8, 16, processes=1, directory=tmp_path)


ORDERED = GOLDEN / "run_of_order_1"
SAVED = 8
LAST = 16


@pytest.mark.parametrize(
    "processes", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.night)]
)
def test_a_run_of_this_order_reads_on_where_it_was(processes: int, tmp_path: Path) -> None:
    """With the losses of the run that was never stopped, on as many processes and on another number of them."""
    shutil.copytree(ORDERED / "run", tmp_path / "run")
    shutil.copyfile(GOLDEN / "run" / "corpus.jsonl", tmp_path / "corpus.jsonl")
    said = trained(tmp_path, "run", processes)
    assert f"resumes at step {SAVED}" in said and "begins anew" not in said
    losses_now = losses_of(tmp_path / "run")
    expected = losses_of(ORDERED / "whole")
    assert list(losses_now) == list(range(SAVED + 1, LAST + 1))
    for step, loss in losses_now.items():
        # One process adds up the rows of two devices in another order.
        assert loss == pytest.approx(expected[step], rel=0 if processes == 2 else 1e-6), step


def record() -> None:
    """Trains the recorded run, and keeps what it had at step SAVED."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        shutil.copyfile(GOLDEN / "run" / "corpus.jsonl", directory / "corpus.jsonl")
        (directory / "run").mkdir()
        shutil.copyfile(GOLDEN / "run_of_two" / "run" / "config.gin", directory / "run" / "config.gin")
        data = ["--gin.BATCH_SIZE=64", "--gin.config.DataConfig.shuffle_buffer=20"]  # so it has read several blocks
        trained(directory, "run", 2, "--gin.CHECKPOINTS_KEPT=4", *data)
        (ORDERED / "whole").mkdir(parents=True)
        shutil.copyfile(directory / "run" / "metrics.jsonl", ORDERED / "whole" / "metrics.jsonl")
        for name in ("config.gin", "config.json", "rows.json", f"checkpoints/{SAVED}"):
            kept = ORDERED / "run" / name
            kept.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (directory / "run" / name).is_dir() else shutil.copyfile
            copy(directory / "run" / name, kept)
        config = ORDERED / "run" / "config.json"
        config.write_text(config.read_text().replace(str(directory), ""))
    print(json.dumps(losses_of(ORDERED / "whole")))


if __name__ == "__main__":
    record()
