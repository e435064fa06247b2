"""SIGTERM at twenty moments of a start: fresh and resumed, one process and two. All end, and no step is lost."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.run.test_hosts import arguments as arguments
from tests.run.test_hosts import finish, losses, part, start

NUM_MOMENTS = 20
LAST_SECONDS = 16.0
JOIN_SECONDS = 30
MANY_STEPS = 1_000_000


def newest(directory: Path) -> int:
    """Returns the newest saved step; 0 for none."""
    folder = directory / "checkpoints"
    steps = [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.exists() else []
    return max(steps, default=0)


def ends(started: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Waits for the ends of all; returns status and output of each."""
    outputs = [process.communicate(timeout=240) for process in started]
    return [(process.returncode, "".join(output)) for process, output in zip(started, outputs, strict=True)]


@pytest.mark.night
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("resumed", [False, True], ids=["fresh", "resumed"])
@pytest.mark.parametrize("first", [0, 1], ids=["even", "odd"])  # in two parts of minutes each
def test_a_signal_at_any_moment_of_a_start_ends_it_and_loses_nothing(
    processes: int, resumed: bool, first: int, arguments: list[str], tmp_path: Path
) -> None:
    """The moments are spread over imports, joining, restoring, compilation and the first steps, however long they take.

    The signal goes to the last process only: the others hear of it, or wait for one that has never joined, and end when
    it has not come in time. Before a process listens, Python's own way ends it.
    """
    directory = tmp_path / "run"
    command = ["-m", "limba", "train", *part(arguments, directory, MANY_STEPS)]
    saved = 0
    if resumed:
        finish(start(["-m", "limba", "train", *part(arguments, directory, 3)], processes, 2 // processes))
        saved = newest(directory)
        assert saved == 3
    for number in range(first, NUM_MOMENTS, 2):
        started = start(command, processes, 2 // processes, JOIN_TIMEOUT_SECONDS=str(JOIN_SECONDS))
        time.sleep((number + 1) * LAST_SECONDS / NUM_MOMENTS)
        started[-1].send_signal(signal.SIGTERM)
        all_ends = ends(started)
        assert all(status in (75, -signal.SIGTERM) for status, _ in all_ends), (number, all_ends)
        now = newest(directory)
        done = max(losses(directory), default=0)
        assert now == max(done, saved), (number, now, done, all_ends)  # and every step that was done is saved
        assert list(losses(directory)) == list(range(1, done + 1)), (number, all_ends)
        if resumed:
            saved = now
        else:
            shutil.rmtree(directory, ignore_errors=True)  # the next one is a fresh run too
