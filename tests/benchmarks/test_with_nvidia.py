"""The tests of NVIDIA's cards at night, in an environment that has their compiler; no card is needed."""

import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.environments import environment_with

ROOT = Path(__file__).parents[2]
FILES = (
    "tests/benchmarks/test_kernels_of_cards.py",
    "tests/benchmarks/test_compiled.py",
    "tests/training/test_compiled_figures.py",
)
OF_CARDS = "of_cards or for_a_gpu or a_card_s_step"  # those that need the compiler


def pins() -> tuple[str, ...]:
    """Returns what `launch/setup.sh cuda12` adds for this Python: jax's plugin, and NVIDIA's compiler and libraries."""
    text = (ROOT / "requirements" / "lock-cuda12.txt").read_text()
    packages = []
    for line in re.findall(r"^[a-z].*==.*(?= \\$)", text, re.MULTILINE):
        package = Requirement(line)
        if package.marker is None or package.marker.evaluate():
            packages.append(f"{package.name}{package.specifier}")
    return tuple(packages)


@pytest.mark.night
def test_the_tests_of_cards_pass_where_their_compiler_is_installed() -> None:
    """Needs the network once: the packages, 5 GB, are installed in an environment that is kept."""
    python = environment_with(pins(), sees_tests=True)
    command = [python, "-m", "pytest", "-q", "-n", "0", "-m", "aot", "-k", OF_CARDS, *FILES]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{ended.stdout[-4000:]}\n{ended.stderr[-2000:]}"
    assert re.search(r"^[1-9]\d* passed(?!.* skipped)", ended.stdout, re.MULTILINE), ended.stdout[-2000:]
