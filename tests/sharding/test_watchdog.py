"""A step that does not end ends the process, with the stacks of its threads; a slow phase does not."""

import shutil
import threading
from pathlib import Path

import pytest

from limba.config import StorageError
from limba.sharding import watchdog
from limba.sharding.watchdog import Watchdog
from tests.sharding.processes import Processes
from tests.waiting import Clock, wait_until

TICK = 0.02


class Result:
    """The result of a step that a device is computing."""

    def __init__(self) -> None:
        self.is_there = False

    def is_ready(self) -> bool:
        return self.is_there


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The sentences with which the process would have ended."""
    said: list[tuple[str, int]] = []

    monkeypatch.setattr(watchdog, "end_now", lambda sentence, status: said.append((sentence, status)))
    monkeypatch.setattr(watchdog, "TICK_SECONDS", TICK)
    return said


def test_a_stuck_step_is_named_and_its_stacks_are_written(ends: list, tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    done = Result()
    stuck = Result()
    done.is_there = True
    with Watchdog(0.3, str(tmp_path)) as watched:
        for step, result in ((6, done), (7, stuck), (8, Result())):
            watched.beat(step, result)  # jax lets the loop go ahead of the devices
        wait_until(lambda: ends)
    (sentence, status) = ends[0]
    stacks = tmp_path / "logs" / "stacks_process_0.txt"
    assert status == 75 and sentence.startswith(
        "Step 7 has not ended after 0 s (RunConfig.step_timeout_seconds is 0.3)"
    )
    assert str(stacks) in sentence and "resumes from step 5" in sentence
    assert "test_a_stuck_step" in stacks.read_text() and "Step 7 of process 0" in stacks.read_text()


def test_slow_but_living_runs_go_on(ends: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue of steps longer than the limit, a phase longer than the limit, and a first step that compiles."""
    clock = Clock()
    monkeypatch.setattr(watchdog, "time", clock)
    with Watchdog(0.3, str(tmp_path)) as watched:
        clock.turn(0.6, TICK)  # the first step
        results = [Result() for _ in range(6)]
        for step, result in enumerate(results):
            watched.beat(step, result)
        for result in results:  # the loop waits for all of them, each takes two thirds of the limit
            clock.turn(0.2, TICK)
            result.is_there = True
        with watched.phase("An evaluation"):
            clock.turn(0.6, TICK)
        watched.beat(7, results[0])
    assert not ends
    assert not list((tmp_path / "logs").iterdir())  # an empty file is not left behind


def test_an_end_keeps_its_reason_where_the_folder_is_gone(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="^the disk is away$"), Watchdog(600.0, str(tmp_path)):
        shutil.rmtree(tmp_path / "logs")
        raise StorageError("the disk is away")


def test_a_phase_has_a_limit_too(ends: list, tmp_path: Path) -> None:
    with Watchdog(0.1, str(tmp_path), phase_limit=0.3) as watched, watched.phase("An evaluation"):
        wait_until(lambda: ends)
    assert ends[0][0].startswith("An evaluation has not ended after 0 s")


def test_a_start_that_hangs_has_a_limit(ends: list, tmp_path: Path) -> None:
    with Watchdog(0.1, str(tmp_path), phase_limit=0.2):
        wait_until(lambda: ends)
    assert ends[0][0].startswith("The start of the run, with its first step, has not ended")


def test_nothing_is_watched_outside_of_a_run() -> None:
    before = threading.active_count()
    watchdog.beat(1, Result())
    with watchdog.phase("An evaluation"):
        pass
    assert threading.active_count() == before


@pytest.mark.night
def test_processes_end_when_one_of_them_is_stuck(tmp_path: Path) -> None:
    """The one that is stuck, and the one that waits for it in an exchange, which no signal of Python interrupts."""
    ended_by_itself: list[bool] = []  # else by the word of the other, which may come first on a busy machine
    with Processes(tmp_path, 2, step=2, odd_step=10) as processes:
        for index in (0, 1):
            status, lines = processes.end(index)
            ended_by_itself.append(lines[0].startswith("Step 10 has not ended"))
            assert status == 75 and len(lines) == 1, lines
            assert lines[0].startswith("Step 10 has not ended") or "has ended: Step 10" in lines[0]
    stacks = [path.read_text() for path in sorted((tmp_path / "logs").glob("stacks_process_*.txt"))]
    assert sum("Step 10 of process" in stack for stack in stacks) >= sum(ended_by_itself) > 0
    assert not ended_by_itself[0] or "process_allgather" in stacks[0]
