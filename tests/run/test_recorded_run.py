"""A run directory that was recorded resumes, with the losses of a run that was never stopped.

tests/golden/run/run was stopped by SIGKILL behind step 10 of 24; `whole` has the losses of the same run without
interruption.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.logged import losses_of
from tests.shipped import ROOT

GOLDEN = ROOT / "tests" / "golden" / "run"


@pytest.mark.slow
def test_a_recorded_run_resumes_with_the_losses_of_one_that_never_stopped(tmp_path: Path) -> None:
    """Weights, optimizer, step and place in the text are those of its checkpoint."""
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    # The compiler has no flags, as in the recording: then each loss is equal to the last digit.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, "-m", "limba", "train", "run/config.gin", "--gin.MODEL_DIR=run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "resumes at step 10" in done.stdout

    expected = losses_of(tmp_path / "whole")
    found = losses_of(tmp_path / "run")
    assert list(found) == list(range(11, 25))
    # Another processor may sum in another order.
    assert found == pytest.approx({step: expected[step] for step in found}, abs=1e-6)
