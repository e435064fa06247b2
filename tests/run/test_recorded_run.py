"""Run directories that were recorded resume, with the losses of runs that were never stopped.

tests/golden/run/run was stopped by SIGKILL behind step 10 of 24, and tests/golden/run_of_two/run, whose two processes
of one device each have saved two steps, behind step 8 of 16. `whole` has the losses of the same run without
interruption.
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


def check_resumes(name: str, step: int, last_step: int, processes: int, tolerance: float, directory: Path) -> None:
    """Resumes a copy of a recorded run by so many processes, and compares its losses with the undisturbed ones."""
    shutil.copytree(GOLDEN / name, directory, dirs_exist_ok=True)
    shutil.copyfile(GOLDEN / "run" / "corpus.jsonl", directory / "corpus.jsonl")
    # The compiler has no flags, as in the recording: then each loss is equal to the last digit.
    environments = variables(processes, PYTHONPATH=str(ROOT), XLA_FLAGS="")
    command = [sys.executable, "-m", "limba", "train", "run/config.gin", "--gin.MODEL_DIR=run"]
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
    assert f"resumes at step {step}" in ends[0][0]

    expected = losses_of(directory / "whole")
    found = losses_of(directory / "run")
    assert list(found) == list(range(step + 1, last_step + 1))
    assert found == pytest.approx({each: expected[each] for each in found}, abs=tolerance)


@pytest.mark.slow
def test_a_recorded_run_resumes_with_the_losses_of_one_that_never_stopped(tmp_path: Path) -> None:
    """Weights, optimizer, step and place in the text are those of its checkpoint."""
    # Another processor may sum in another order.
    check_resumes("run", 10, 24, processes=1, tolerance=1e-6, directory=tmp_path)


@pytest.mark.night
def test_a_recorded_run_of_two_processes_is_resumed_by_two(tmp_path: Path) -> None:
    check_resumes("run_of_two", 8, 16, processes=2, tolerance=1e-6, directory=tmp_path)


@pytest.mark.slow
def test_a_recorded_run_of_two_processes_is_resumed_by_one(tmp_path: Path) -> None:
    """What both have written is read by one, which sums over one device instead of two."""
    check_resumes("run_of_two", 8, 16, processes=1, tolerance=1e-5, directory=tmp_path)
