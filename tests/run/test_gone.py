"""A reader process that is killed, a MODEL_DIR that is moved away: the run goes on, or saves and says why it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.run.test_hosts import arguments, leg, losses, start  # noqa: F401  a fixture
from tests.waiting import wait_until

WHOLE = 40  # steps of the undisturbed run
SMALL = ("--gin.config.MeshConfig.fsdp=1", "--gin.NUM_MICROBATCHES=1")
TWO_READERS = "--gin.config.DataConfig.num_reader_processes=2"
# The first loss is the best: each later evaluation writes the record of the best step, and saves none.
WITH_BEST = (
    "--gin.EVAL_PERIOD=5",
    "--gin.config.CheckpointConfig.best_metric='loss'",
    "--gin.config.CheckpointConfig.best_mode='max'",
)


class Run:
    """A run in a process of its own, whose lines on stderr are read as they come."""

    def __init__(self, flags: list[str], directory: Path, steps: int, *more: str):
        (self.process,) = start(leg(flags, directory, steps, *SMALL, *more), 1, 1)
        self.directory = directory
        self.errors = list[str]()
        self._threads = [
            threading.Thread(target=self.errors.extend, args=[self.process.stderr]),
            threading.Thread(target=list, args=[self.process.stdout]),
        ]
        for thread in self._threads:
            thread.start()

    def reaches(self, condition: Callable[[], object]) -> None:
        wait_until(lambda: condition() or self.process.poll() is not None, lambda: "".join(self.errors))
        assert self.process.poll() is None, "".join(self.errors)

    def trains(self, step: int) -> None:
        self.reaches(lambda: max(losses(self.directory), default=0) >= step)

    def says(self, text: str) -> None:
        self.reaches(lambda: text in "".join(self.errors))

    def close(self) -> None:
        """Ends the process if it still runs."""
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in filter(None, (self.process.stdout, self.process.stderr)):
            pipe.close()

    def end(self) -> int:
        status = self.process.wait(480)
        for thread in self._threads:
            thread.join()
        return status


@pytest.fixture
def run_of(arguments: list[str]) -> Iterator[Callable[..., Run]]:  # noqa: F811
    """Starts a run in a directory, up to a step, with more flags; none outlives the test."""
    with contextlib.ExitStack() as stack:

        def started(directory: Path, steps: int, *more: str) -> Run:
            run = Run(arguments, directory, steps, *more)
            stack.callback(run.close)
            return run

        yield started


def readers_of(process: subprocess.Popen) -> list[int]:
    """Returns the ids of a run's reader processes."""
    children = []
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"limba.data.stream.reader" in command:
            children.append(int(child))
    return children


@pytest.mark.night
def test_a_killed_reader_and_a_directory_that_comes_back_change_nothing(
    run_of: Callable[..., Run], tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    run = tmp_path / "run"
    away = tmp_path / "away"
    undisturbed = run_of(whole, WHOLE)
    assert undisturbed.end() == 0, "".join(undisturbed.errors)
    disturbed = run_of(run, WHOLE, TWO_READERS, *WITH_BEST)
    disturbed.trains(7)
    os.kill(readers_of(disturbed.process)[1], signal.SIGKILL)
    disturbed.says("has ended (-9): it is started again")
    run.rename(away)
    disturbed.directory = away  # where metrics.jsonl still grows
    disturbed.says("it is tried again")  # a save that was due, or under way
    disturbed.says(f"{run}/lease (it is gone); the run goes on")
    disturbed.says(f"{run}/best/best.json cannot be written ({run} is gone); the run goes on.")
    assert not run.exists()
    away.rename(run)
    assert disturbed.end() == 0, "".join(disturbed.errors)
    assert json.loads((run / "best" / "best.json").read_text())["last_step"] == WHOLE
    assert losses(run) == losses(whole) and list(losses(run)) == list(range(1, WHOLE + 1))
    assert not any("Traceback" in line for line in disturbed.errors) and len(disturbed.errors) <= 5, disturbed.errors

    # A run whose readers are killed as they come saves what was trained, and the next start goes on from there.
    killed = tmp_path / "killed"
    ending = run_of(killed, WHOLE, TWO_READERS, "--gin.CHECKPOINT_PERIOD=100000")
    ending.trains(9)
    while ending.process.poll() is None:
        with contextlib.suppress(OSError):  # one that has just ended
            for reader in readers_of(ending.process):
                os.kill(reader, signal.SIGKILL)
    assert ending.end() == 75, "".join(ending.errors)
    step = max(losses(killed))
    assert "3 times in a row" in ending.errors[-1] and ending.errors[-1].endswith(
        f"What was trained, up to step {step:,}, is saved.\n"
    )
    assert [path.name for path in (killed / "checkpoints").iterdir()] == [str(step)]
    again = run_of(killed, WHOLE)
    assert again.end() == 0, "".join(again.errors)
    assert losses(killed) == losses(whole)


@pytest.mark.night
def test_a_directory_that_stays_away_ends_the_run_with_74_and_is_not_made_again(
    run_of: Callable[..., Run], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    away = tmp_path / "away"
    limits = ("--gin.config.CheckpointConfig.save_timeout_seconds=3", "--gin.CHECKPOINT_PERIOD=100000")
    moved = run_of(run, 100_000, *limits)
    moved.trains(7)
    run.rename(away)
    assert moved.end() == 74, "".join(moved.errors)
    assert not run.exists()
    gone, reason = moved.errors
    assert f"{run}/lease (it is gone); the run goes on" in gone
    assert reason.startswith("FAILED after step ")
    assert f" {run}/lease has been gone for 3 s, as if {run} had been moved" in reason
