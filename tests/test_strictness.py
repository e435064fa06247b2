"""Shapes are checked, ranks are never promoted, warnings are errors, and no test depends on the clock."""

import ast
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import jaxtyping
import pytest

from limba.config import LossConfig
from limba.training.losses import cross_entropy
from tests.conftest import CHECKED
from tests.shipped import MODULES, ROOT, TESTS, place_of, tree_of

pytestmark = pytest.mark.lint


def test_modules_whose_shapes_are_checked_are_there() -> None:
    absent = set(CHECKED) - set(MODULES)
    assert not absent, f"tests/conftest.py has the shapes of {absent} checked, where no module is"


def test_a_wrong_shape_is_an_error() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        cross_entropy(jnp.zeros((2, 3, 5)), jnp.zeros((2, 4), jnp.int32), LossConfig())


def test_ranks_are_not_promoted() -> None:
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.zeros((2, 3)) + jnp.zeros(3)


def test_warnings_are_errors() -> None:
    with pytest.raises(DeprecationWarning):
        warnings.warn("old", DeprecationWarning, stacklevel=1)


# Where a test may sleep, set a limit of less than 30 seconds, or assert that something was quick.
BY_THE_CLOCK = {
    "tests/waiting.py": "what all others wait by",
    "tests/bucket_server.py": "a server that is slow on purpose",
    "tests/http_server.py": "a server that is slow on purpose",
    "tests/config/test_waiting.py": "long work and short work, which only time tells apart",
    "tests/conftest.py": "the age of kept programs",
    "tests/cli/test_play.py": "a client that sends slowly, and a slow server",
    "tests/data/sources/test_network.py": "a library that never returns, and one whose own patience is two minutes",
    "tests/data/test_reader_processes.py": "a step that takes time",
    "tests/faults/starts.py": "a run that prints nothing is told from one that does by time alone",
    "tests/faults/test_processes.py": "signals at random moments, and processes that are stopped for a while",
    "tests/launch/test_supervise.py": "while a command is stopped nothing may happen",
    "tests/run/test_moments.py": "signals at twenty moments of a start",
    "tests/sharding/test_preemption.py": "a step that does not end",
    "tests/storage/test_reaching.py": "a network that swallows everything",
    "tests/training/checkpoints/test_save.py": "a limit that has to pass",
}
LEAST_SECONDS = 30
CLOCKS = ("time.monotonic", "time.time", "time.perf_counter")  # a processor's own time is not the clock's


def by_the_clock(tree: ast.AST) -> Iterator[str]:
    """Yields what in a test goes wrong on a busy machine; programs in its strings are not looked at."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
            yield f"{node.lineno}: {ast.unparse(node)}: use tests.waiting.wait_until"
        elif isinstance(node, ast.keyword) and node.arg == "timeout" and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, int | float) and node.value.value < LEAST_SECONDS:
                yield f"{node.value.lineno}: timeout={node.value.value}: a busy machine needs {LEAST_SECONDS} s or more"
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.LtE) and has_clock(node):
            yield f"{node.lineno}: {ast.unparse(node)}: how long it takes is not a test"


def has_clock(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in CLOCKS for node in ast.walk(tree))


def test_no_test_depends_on_how_fast_the_machine_is() -> None:
    faults_by_file = {place_of(path): list(by_the_clock(tree_of(path))) for path in TESTS}
    wrong = [
        f"{file}:{fault}" for file, faults in faults_by_file.items() if file not in BY_THE_CLOCK for fault in faults
    ]
    assert not wrong, "\n".join(wrong)
    assert not [file for file in BY_THE_CLOCK if not faults_by_file.get(file)], "these need no permission any more"


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(1)",
        "process.wait(timeout=5)",
        "assert time.monotonic() - began < 3",
        "while time.time() < end: pass",
    ],
)
def test_the_search_for_clocks_finds_what_it_should(line: str) -> None:
    assert list(by_the_clock(ast.parse(line)))


# What a named tuple has, and what no library gives in another way; a test's own classes say `self`.
PRIVATE_BUT_GIVEN = ("_replace", "_asdict", "_fields", "_NEXT_MAP_SEED", "_get_default_generation_params")
PATCHES = ("setattr", "delattr", "getattr", "hasattr")


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yields the private names that a test uses: those of attributes, of imports, and those that it patches."""
    for node in ast.walk(tree):
        names: list[str] = []
        line = 0
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
            names = [node.attr]
            line = node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("limba"):
            names = [alias.name for alias in node.names]
            line = node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in PATCHES:
            names = [str(part.value) for part in node.args if isinstance(part, ast.Constant)]
            line = node.lineno
        for name in names:
            last = name.rpartition(".")[2]
            if last.startswith("_") and not last.startswith("__") and last not in PRIVATE_BUT_GIVEN:
                yield f"{line}: {last}"


def test_no_test_of_the_data_knows_the_inside_of_a_station() -> None:
    """A promise is tested from outside, or what is tested is given by its room."""
    files = [path for path in TESTS if place_of(path).startswith("tests/data/")]
    wrong = []
    for path in files:
        wrong += [f"{place_of(path)}:{name}" for name in private_names(tree_of(path))]
    assert len(files) > 30 and not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "stream._recipe.deal",
        "from limba.data.sources.tfds import _masked",
        'monkeypatch.setattr(HubSource, "_patterns", {})',
        'monkeypatch.setattr("limba.data.sources.hub_data._checked", None)',
    ],
)
def test_the_search_for_private_names_finds_what_it_should(line: str) -> None:
    assert len(list(private_names(ast.parse(line)))) == 1


ENDLESS = """
import subprocess, sys

def test_endless() -> None:
    assert subprocess.run([sys.executable, "-c", "print('so far', flush=True); import time; time.sleep(1000)"],
                          capture_output=True, text=True).stdout == "all of it"

def test_next() -> None:
    pass
"""


@pytest.mark.slow
def test_a_test_that_waits_for_an_endless_program_fails_by_name_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(ENDLESS)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.conftest", f"--rootdir={ROOT}"]
    options = ["-o", "faulthandler_timeout=30", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1 and "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "so far" in ended.stdout and "What the test had started was ended after 20 s:" in ended.stdout
