"""tests/results/test_harness.py at night, in an environment that has lm-evaluation-harness."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.environments import environment_with

ROOT = Path(__file__).parents[2]
HARNESS = ("lm-eval==0.4.13", "accelerate==1.15.0")  # accelerate for its own model of transformers, the reference


@pytest.mark.night
def test_the_tests_of_the_harness_pass_where_it_is_installed() -> None:
    """Needs the network once: the packages are installed in an environment that is kept."""
    python = environment_with(HARNESS, sees_tests=True)
    command = [python, "-m", "pytest", "-q", "-n", "0", "tests/results/test_harness.py"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{ended.stdout[-4000:]}\n{ended.stderr[-2000:]}"
    assert re.search(r"^[1-9]\d* passed(?!.* skipped)", ended.stdout, re.MULTILINE), ended.stdout[-2000:]
