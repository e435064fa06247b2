"""Run directories that were recorded resume: their data positions are of format 5, so their text begins anew.

tests/golden/run/run was stopped by SIGKILL behind step 10 of 24, and tests/golden/run_of_two/run, whose two processes
of one device each have saved two steps, behind step 8 of 16.
"""

import shutil
import subprocess
import sys
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
    """Resumes a copy of a recorded run: weights, optimizer and step are those of its checkpoint, the text begins anew.

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
    found = losses_of(directory / "run")
    assert list(found) == list(range(step + 1, last_step + 1))
    assert found == expected


@pytest.mark.slow
def test_a_recorded_run_resumes_with_its_weights_and_its_text_begins_anew(tmp_path: Path) -> None:
    check_resumes("run", 10, 24, processes=1, directory=tmp_path)


@pytest.mark.night
def test_a_recorded_run_of_two_processes_is_resumed_by_two(tmp_path: Path) -> None:
    check_resumes("run_of_two", 8, 16, processes=2, directory=tmp_path)


@pytest.mark.slow
def test_a_recorded_run_of_two_processes_is_resumed_by_one(tmp_path: Path) -> None:
    """What both have written is read by one."""
    check_resumes("run_of_two", 8, 16, processes=1, directory=tmp_path)
