"""Directories that cannot be written any more, and two runs that want the same one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.breaking.bench import (
    END_SECONDS,
    LONG_STEPS,
    MORE_STEPS,
    TRAINED_STEPS,
    Bench,
    NotTriedError,
    Row,
    Setting,
)
from benchmarks.breaking.start import SAVED, Start

SMALL_DISK = "30m"
LARGER_DISK = "300m"
SAVE_SECONDS = 6.0  # CheckpointConfig.save_timeout_seconds
STORAGE = {74}
INPUT = {2}
FALLBACK = 3 * TRAINED_STEPS  # steps between the checkpoints of the run that has another directory to turn to
LONG = Setting(1, LONG_STEPS)
SAVING = f"--gin.config.CheckpointConfig.save_timeout_seconds={SAVE_SECONDS}"
# What lets root write where it has no rights.
ALL_RIGHTS = "-dac_override,-dac_read_search"


@contextlib.contextmanager
def _small_disk(bench: Bench) -> Iterator[Path]:
    """Yields a folder on a file system of 30 MB of its own."""
    place = bench.new("disk")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        raise NotTriedError("This needs a small file system, and this user may mount none here.")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


def _without_all_rights() -> list[str]:
    """Returns the words of a command that takes from root the right to write everywhere."""
    if os.geteuid() != 0:
        return []
    words = ["setpriv", "--bounding-set", ALL_RIGHTS]
    if shutil.which("setpriv") is None or subprocess.run([*words, "true"], capture_output=True).returncode:
        raise NotTriedError("Root may write everywhere, and setpriv, which could change that, is not here.")
    return words


def _disk_full(bench: Bench, name: str) -> Iterator[Row]:
    """A file system that the run's own checkpoints fill; a start while it is full; and one with more room."""
    row = Row(name, "a file system of 30 MB, on which all checkpoints are kept, fills")
    again = Row(f"{name}-restart", "a start while that file system is still full")
    with _small_disk(bench) as disk:
        directory, extra = disk / "run", ["--gin.CHECKPOINTS_KEPT=100", SAVING]
        with bench.start(directory, LONG, extra=extra) as start:
            start.until(lambda: bench.said(start, directory), 120)
            codes = start.wait(END_SECONDS)
        since = _last_saved(start)
        bench.judge(row, start, directory, codes, [STORAGE], since, r"\b[MGk]i?B\b", 2 * SAVE_SECONDS)
        with bench.start(directory, LONG, extra=extra) as second:
            codes = second.wait(END_SECONDS)
        bench.judge(again, second, directory, codes, [STORAGE], second.began, r"\b[MGk]i?B\b")
        promised = max(start.promised(), second.promised())
        subprocess.run(["mount", "-o", f"remount,size={LARGER_DISK}", str(disk)], check=True)
        bench.resume(row, directory, LONG, promised, steps=promised + MORE_STEPS, extra=extra)
        again.resumed = row.resumed
    yield row
    yield again


def _last_saved(start: Start) -> float:
    """Returns when the last checkpoint was said to be saved."""
    return max((line.seconds for line in start.lines if SAVED.search(line.text)), default=start.began)


def _disk_filled(bench: Bench, name: str) -> Iterator[Row]:
    """Another program takes the last byte: then not even metrics.jsonl grows."""
    row = Row(name, "another program takes all that is left of the file system")
    with _small_disk(bench) as disk:
        directory = disk / "run"
        with bench.start(directory, LONG, extra=[SAVING]) as start:
            start.trains(12)
            since = time.monotonic()
            with contextlib.suppress(OSError), open(disk / "other", "wb", buffering=0) as file:
                for size in (1 << 20, 1 << 10, 1):
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(bytes(size))
            codes = start.wait(END_SECONDS)
        bench.judge(row, start, directory, codes, [STORAGE], since, "", 2 * SAVE_SECONDS)
        (disk / "other").unlink()
        promised = start.promised()
        yield bench.resume(row, directory, LONG, promised, steps=promised + MORE_STEPS, extra=[SAVING])


def _rights(bench: Bench, name: str) -> Iterator[Row]:
    """The right to write in checkpoints/ is withdrawn while a run trains, and a start meets it so."""
    words, directory = {0: _without_all_rights()}, bench.trained(LONG, "rights")
    row = Row(name, "the rights to write in checkpoints/ withdrawn while the run trains")
    again = Row(f"{name}-restart", "a start that may not write in checkpoints/")
    checkpoints = directory / "checkpoints"
    try:
        with bench.start(directory, LONG, extra=[SAVING], before=words) as start:
            start.trains(7)
            since = time.monotonic()
            checkpoints.chmod(0o555)
            codes = start.wait(END_SECONDS)
        bench.judge(row, start, directory, codes, [STORAGE], since, "checkpoints", 2 * SAVE_SECONDS)
        with bench.start(directory, LONG, extra=[SAVING], before=words) as second:
            codes = second.wait(END_SECONDS)
        bench.judge(again, second, directory, codes, [STORAGE | INPUT], second.began, "checkpoints")
    finally:
        checkpoints.chmod(0o755)
    promised = max(TRAINED_STEPS, start.promised(), second.promised())
    bench.resume(row, directory, LONG, promised, steps=promised + MORE_STEPS)
    again.resumed = row.resumed
    yield row
    yield again


def _fallback(bench: Bench, name: str) -> Iterator[Row]:
    """The same with a directory to turn to."""
    words, directory, other = {0: _without_all_rights()}, bench.trained(LONG, "rights"), bench.new("other")
    row = Row(name, "the same, where CheckpointConfig.fallback_dir is given")
    extra = [SAVING, f"--gin.config.CheckpointConfig.fallback_dir='{other}'", f"--gin.CHECKPOINT_PERIOD={FALLBACK}"]
    checkpoints, last = directory / "checkpoints", FALLBACK + 10
    try:
        with bench.start(directory, LONG, steps=last, extra=extra, before=words) as start:
            start.trains(2)
            since = time.monotonic()
            checkpoints.chmod(0o555)
            codes = start.wait(END_SECONDS)
    finally:
        checkpoints.chmod(0o755)
    bench.judge(row, start, directory, codes, [{0}], since, str(other), 3 * SAVE_SECONDS)
    if not any(path.name.isdigit() for path in other.rglob("*")):
        row.wrong.append("the other directory holds no step")
    yield bench.resume(row, directory, LONG, last, steps=last + MORE_STEPS, extra=extra)


def _gone(bench: Bench, name: str) -> Iterator[Row]:
    """checkpoints/ is moved away while the run trains, as an unmounted disk would be."""
    directory = bench.trained(LONG, "gone")
    row = Row(name, "checkpoints/ moved away while the run trains, and back afterwards")
    checkpoints, away = directory / "checkpoints", directory / "away"
    with bench.start(directory, LONG, extra=[SAVING]) as start:
        start.trains(7)
        since = time.monotonic()
        checkpoints.rename(away)
        checkpoints.write_text("")  # nor can it be made again
        codes = start.wait(END_SECONDS)
    bench.judge(row, start, directory, codes, [STORAGE], since, "checkpoints", 2 * SAVE_SECONDS)
    checkpoints.unlink()
    away.rename(checkpoints)
    promised = max(TRAINED_STEPS, start.promised())
    yield bench.resume(row, directory, LONG, promised, steps=promised + MORE_STEPS)


def _second_start(bench: Bench, name: str) -> Iterator[Row]:
    """A second start in the directory of a run that trains."""
    processes = 2 if name.endswith("of-2") else 1
    setting = Setting(processes, LONG.steps)
    directory = bench.trained(setting, "two")
    row = Row(name, f"a second start in the directory of a run of {processes} that trains")
    with bench.start(directory, setting, steps=10**6) as first:
        first.trains(3)
        with bench.start(directory, LONG) as second:
            codes = second.wait(END_SECONDS)
        since = time.monotonic()
        first.send(signal.SIGTERM, [0])
        ended = first.wait(END_SECONDS)
    bench.judge(row, second, directory, codes, [INPUT], second.began, r"\bprocess\b|\bpid\b")
    if ended != [75] * processes:
        row.wrong.append(f"the first run ends with {ended}")
    if trouble := [line.text for line in bench.said(first, directory) if line.seconds < since]:
        row.wrong.append(f"the first run says {trouble[0]!r}")
    yield bench.resumed(row, bench.differences(first, directory, setting, TRAINED_STEPS), first)


def _at_once(bench: Bench, name: str) -> Iterator[Row]:
    """Two starts at the same moment: one of them trains to its end, the other one says why it does not."""
    setting = Setting()
    directory = bench.new("once")
    row = Row(name, "two starts at the same moment in a new directory")
    with bench.start(directory, setting) as one, bench.start(directory, setting) as other:
        codes = [*one.wait(3 * END_SECONDS), *other.wait(3 * END_SECONDS)]
    winner, loser = (one, other) if codes[0] == 0 else (other, one)
    bench.judge(row, loser, directory, [max(codes, key=str)], [INPUT], loser.began, r"\bprocess\b|\bpid\b")
    row.codes = codes
    if sorted(codes, key=str) != [0, 2]:
        row.wrong.append(f"the two end with {codes}")
    yield bench.resumed(row, bench.differences(winner, directory, setting), winner)


SCENES: dict[str, Callable[[Bench, str], Iterator[Row]]] = {
    "disk-full": _disk_full,
    "disk-filled-by-others": _disk_filled,
    "rights-withdrawn": _rights,
    "rights-withdrawn-fallback": _fallback,
    "checkpoints-gone": _gone,
    "second-start": _second_start,
    "second-start-of-2": _second_start,
    "starts-at-once": _at_once,
}


def rows(bench: Bench, chosen: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of the chosen faults."""
    for name, scene in SCENES.items():
        if name in chosen:
            yield from scene(bench, name)
