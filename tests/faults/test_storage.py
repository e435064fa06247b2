"""Directories that cannot be written any more, and two runs that want the same one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.runs import END_SECONDS, INPUT, LONG_STEPS, MORE_STEPS, STORAGE, TRAINED_STEPS, Runs, Setting

pytestmark = pytest.mark.night

SMALL_DISK = "30m"
LARGER_DISK = "300m"
SAVE_SECONDS = 6.0  # CheckpointConfig.save_timeout_seconds
LONG = Setting(1, LONG_STEPS[1])
SAVING = f"--gin.config.CheckpointConfig.save_timeout_seconds={SAVE_SECONDS}"
SIZES = r"\b[MGk]i?B\b"
ANOTHER = r"\bprocess\b|\bpid\b"
ALL_RIGHTS = "-dac_override,-dac_read_search"  # what lets root write where it has no rights


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 30 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no small file system can be mounted: run as root, or by `unshare -rm python -m pytest`")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)


@pytest.fixture
def without_all_rights() -> list[str]:
    """The words of a command that takes from root the right to write everywhere."""
    if os.geteuid() != 0:
        return []
    words = ["setpriv", "--bounding-set", ALL_RIGHTS]
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("root may write everywhere, and setpriv, which could change that, is not here")
    return words


def test_a_full_disk_ends_the_run_and_the_next_start(disk: Path, runs: Runs) -> None:
    """The trials disk-full and disk-full-restart: all checkpoints are kept, and fill it."""
    directory = disk / "run"
    extra = ["--gin.CHECKPOINTS_KEPT=100", SAVING]
    with runs.start(directory, LONG, extra=extra) as start:
        start.until(lambda: runs.said(start, directory))
        codes = start.wait(END_SECONDS)
    runs.check(start, directory, codes, [STORAGE], start.last_saved(), SIZES)
    with runs.start(directory, LONG, extra=extra) as second:
        codes = second.wait(END_SECONDS)
    runs.check(second, directory, codes, [STORAGE], second.began, SIZES)
    promised = max(start.promised(), second.promised())
    assert promised > 0
    subprocess.run(["mount", "-o", f"remount,size={LARGER_DISK}", str(disk)], check=True)
    runs.check_resumes(directory, LONG, promised, steps=promised + MORE_STEPS, extra=extra)


def test_a_disk_that_others_fill_ends_the_run(disk: Path, runs: Runs) -> None:
    """The trial disk-filled-by-others: they take the last byte, so that not even metrics.jsonl grows."""
    directory = disk / "run"
    with runs.training(directory, LONG, 12, extra=[SAVING]) as start:
        since = time.monotonic()
        with contextlib.suppress(OSError), open(disk / "other", "wb", buffering=0) as file:
            for size in (1 << 20, 1 << 10, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        codes = start.wait(END_SECONDS)
    runs.check(start, directory, codes, [STORAGE], since)
    (disk / "other").unlink()
    promised = start.promised()
    runs.check_resumes(directory, LONG, promised, steps=promised + MORE_STEPS, extra=[SAVING])


def test_withdrawn_rights_end_the_run_and_the_next_start(without_all_rights: list[str], runs: Runs) -> None:
    """The trials rights-withdrawn and rights-withdrawn-restart: checkpoints/ may not be written any more."""
    directory = runs.trained(LONG, "rights")
    checkpoints = directory / "checkpoints"
    words = {0: without_all_rights}
    try:
        with runs.training(directory, LONG, 7, extra=[SAVING], before=words) as start:
            since = time.monotonic()
            checkpoints.chmod(0o555)
            codes = start.wait(END_SECONDS)
        runs.check(start, directory, codes, [STORAGE], since, "checkpoints")
        with runs.start(directory, LONG, extra=[SAVING], before=words) as second:
            codes = second.wait(END_SECONDS)
        runs.check(second, directory, codes, [STORAGE | INPUT], second.began, "checkpoints")
    finally:
        checkpoints.chmod(0o755)
    promised = max(TRAINED_STEPS, start.promised(), second.promised())
    runs.check_resumes(directory, LONG, promised, steps=promised + MORE_STEPS)


def test_checkpoints_that_are_moved_away_end_the_run(runs: Runs) -> None:
    """The trial checkpoints-gone: as an unmounted disk would be."""
    directory = runs.trained(LONG, "gone")
    checkpoints = directory / "checkpoints"
    away = directory / "away"
    with runs.training(directory, LONG, 7, extra=[SAVING]) as start:
        since = time.monotonic()
        checkpoints.rename(away)
        checkpoints.write_text("")  # nor can it be made again
        codes = start.wait(END_SECONDS)
    runs.check(start, directory, codes, [STORAGE], since, "checkpoints")
    checkpoints.unlink()
    away.rename(checkpoints)
    promised = max(TRAINED_STEPS, start.promised())
    runs.check_resumes(directory, LONG, promised, steps=promised + MORE_STEPS)


@pytest.mark.parametrize("processes", [1, 2], ids=["second-start", "second-start-of-2"])
def test_a_second_start_in_the_directory_of_a_run_is_refused(processes: int, runs: Runs) -> None:
    setting = Setting(processes, LONG_STEPS[processes])
    directory = runs.trained(setting, "two")
    with runs.training(directory, setting, 3, steps=10**6) as first:
        with runs.start(directory, LONG) as second:
            codes = second.wait(END_SECONDS)
        since = time.monotonic()
        first.send(signal.SIGTERM, [0])
        ended = first.wait(END_SECONDS)
    runs.check(second, directory, codes, [INPUT], second.began, ANOTHER)
    assert ended == [75] * processes, first.text()
    assert not [line.text for line in runs.said(first, directory) if line.seconds < since]
    runs.check_same(first, directory, setting, TRAINED_STEPS)


def test_of_two_starts_at_once_one_trains(runs: Runs) -> None:
    """The trial starts-at-once: the other one says why it does not."""
    setting = Setting()
    directory = runs.new("once")
    with runs.start(directory, setting) as one, runs.start(directory, setting) as other:
        codes = [*one.wait(3 * END_SECONDS), *other.wait(3 * END_SECONDS)]
    assert sorted(codes, key=str) == [0, 2], f"{one.text()}\n---\n{other.text()}"
    winner, loser = (one, other) if codes[0] == 0 else (other, one)
    runs.check(loser, directory, [2], [INPUT], loser.began, ANOTHER)
    runs.check_same(winner, directory, setting)
