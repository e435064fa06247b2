"""A run directory that version 0.2 wrote resumes here, with the losses of a run that was never stopped.

tests/golden/run_COMMIT/run was stopped by SIGKILL behind step 10 of 24, by the code of that commit; `whole` has the
losses of the same run without interruption. 0a475fc is version 0.2.0; 06a95cb the last one that wrote config.json in
format 1.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from limba.config.plain import from_text
from limba.training.metrics.logging import read_metrics
from tests.sharding.processes import xla_flags

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
CORPUS = GOLDEN / "run_06a95cb" / "corpus.jsonl"


def losses(directory: Path) -> dict[int, float]:
    return {each["step"]: each["loss"] for each in read_metrics(str(directory)) if each["kind"] == "train"}


@pytest.mark.slow
@pytest.mark.parametrize("commit", ["0a475fc", "06a95cb"])
def test_a_run_of_version_0_2_resumes(commit: str, tmp_path: Path) -> None:
    golden = GOLDEN / f"run_{commit}"
    shutil.copytree(golden, tmp_path, dirs_exist_ok=True)
    shutil.copy(CORPUS, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}
    command = [sys.executable, "-m", "limba", "train", "run/config.gin", "--gin.MODEL_DIR=run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "resumes at step 10" in done.stdout

    expected, found = losses(tmp_path / "whole"), losses(tmp_path / "run")
    assert list(found) == list(range(11, 25))
    # Equal to the last digit as recorded; another processor, or other flags of the compiler, may sum in another order.
    assert found == pytest.approx({step: expected[step] for step in found}, abs=1e-6)
    before, after = (golden / "run" / "config.json", tmp_path / "run" / "config.json")
    assert (json.loads(before.read_text())["format"], json.loads(after.read_text())["format"]) == (1, 2)
    run = from_text(after.read_text(), "config.json")
    assert (run.model_dir, run.data.data_files) == (str(tmp_path / "run"), "corpus.jsonl")
    assert from_text(before.read_text(), "config.json").data == run.data
