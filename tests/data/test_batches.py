"""Every batch of every task, format, objective and choice of data is what it was: tests/golden/batches."""

import json
from pathlib import Path

import pytest
import seqio

from tests.data import batches
from tests.data.batches import CASES, EVALUATED

RECORDED = json.loads(batches.HASHES.read_text())
CORE = ("txt_4_shards", "pairs_packed", "array_record_whole_units", "stages", "task_en_ms_both", "skipped_dealt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    directory = tmp_path_factory.mktemp("batches")
    batches.write_corpora(directory)
    with batches.registered(directory):
        yield directory


def check(name: str, folder: Path) -> None:
    case = CASES[name]
    recorded = RECORDED[name]
    hashes, positions = batches.hashes_of(case, folder)
    assert hashes == {kind: value for kind, value in recorded.items() if kind != "validation"}
    rest = recorded["batches"][case.resumes // case.together :]
    if case.resumes:
        assert batches.resumed(case, folder, positions) == rest
    if name in EVALUATED:
        assert batches.evaluated(case, folder) == recorded["validation"]


def test_every_task_and_mixture_that_ships_is_a_case(folder: Path) -> None:
    names = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
    of_tasks = (Path(batches.__file__).parents[2] / "tasks").glob("[a-z]*.py")
    assert {path.stem for path in of_tasks} == set(batches.MODULES)
    assert set(batches.SHIPPED) <= names
    assert set(CASES) == set(RECORDED)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORE)
def test_batches_are_the_same(name: str, folder: Path) -> None:
    check(name, folder)


@pytest.mark.night
@pytest.mark.parametrize("name", [name for name in CASES if name not in CORE])
def test_all_batches_are_the_same(name: str, folder: Path) -> None:
    """Also after a resume."""
    check(name, folder)
