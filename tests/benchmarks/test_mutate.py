"""The check by faults: what a test looks at is found, what none looks at survives, and the list is of what is there."""

import tomllib
from pathlib import Path

import pytest

from benchmarks import mutate
from limba.config import InputError

MODULE = """
def twice(x: int) -> int:
    return 2 * x


def opposite(x: int) -> int:
    return -x
"""
TEST = "from module import twice\n\n\ndef test_twice() -> None:\n    assert [twice(0), twice(3)] == [0, 6]\n"


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "module.py").write_text(MODULE)
    (tmp_path / "test_module.py").write_text(TEST)
    return tmp_path


@pytest.mark.night
def test_faults_that_no_test_sees_survive_and_the_text_is_as_before(workdir: Path) -> None:
    survivors = mutate.survivors(workdir, "module.py", ["test_module.py"], 12, 0)
    assert survivors == (4, ["module.py:7: -x -> (x)"])  # 2 / x, 2, 3 * x are seen
    assert (workdir / "module.py").read_text() == MODULE


@pytest.mark.slow
def test_tests_that_fail_without_a_fault_are_named(workdir: Path) -> None:
    (workdir / "test_module.py").write_text(TEST.replace("6", "7"))
    with pytest.raises(InputError, match=r"The tests of module\.py fail without a fault \(test_module\.py\)"):
        mutate.survivors(workdir, "module.py", ["test_module.py"], 12, 0)


def test_the_same_seed_draws_the_same_faults_of_all_kinds() -> None:
    text = (mutate.ROOT / "limba/training/schedule.py").read_text()
    draws = [mutate.chosen(mutate.faults(text), 12, mutate.random.Random(seed)) for seed in (1, 1, 2)]
    places = [[(fault.node.lineno, fault.node.col_offset, fault.instead) for fault in drawn] for drawn in draws]
    assert places[0] == places[1] != places[2]
    assert {fault.kind for fault in draws[0]} >= {"comparison", "sign", "constant", "operand", "argument"}


def test_what_is_listed_is_there() -> None:
    listed = tomllib.loads(mutate.LIST.read_text())
    named = [name for module, tests in listed["modules"].items() for name in (module, *tests.split())]
    assert not [name for name in named if not (mutate.ROOT / name).is_file()]
    assert all(reason for reason in listed["equivalent"].values())
