"""Figures that cannot be written end no run, hold up none, and are written when there is room again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from limba.config import DataConfig, RunConfig
from limba.data.stream.names import NO_DOCUMENTS
from limba.storage.files import LocalFile
from limba.training.metrics import recent_steps
from limba.training.metrics.growing_files import Uploads
from limba.training.skipped_batches import FILE, SkippedBatches
from limba.training.trace import Trace
from tests import tiny

FIGURES = (
    "loss learning_rate gradient_norm parameter_norm update_norm tokens_per_second seconds_per_step data_wait"
    " sequences_per_second_per_device"
)
# No file may grow beyond 20 kB, as on a full disk, from step 20 to step 150.
FULL = f"""
import resource, signal, sys
from limba.training.metrics.logging import Metrics
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # it would be cut off, and stay so
whole = resource.getrlimit(resource.RLIMIT_FSIZE)
with Metrics(sys.argv[1], 0, 200, True) as metrics:
    for step in range(200):
        if step in (20, 150):
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000 if step == 20 else whole[0], whole[1]))
        metrics.train_line(step, dict.fromkeys({FIGURES!r}.split(), 1.0))
"""
# The reader of its console ends after the first line.
WITHOUT_CONSOLE = """
import sys
from limba.training.metrics.logging import Metrics
with Metrics(sys.argv[1], 0, 200, True) as metrics:
    for step in range(2_000):
        metrics.say("A line that is long enough to fill what a pipe holds.")
    metrics.record("event", 1, {"ended": True})
sys.exit(75)
"""


def started(program: str, directory: Path, **options: object) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", program, str(directory)], text=True, **options)


def test_a_full_disk_holds_up_no_step_and_loses_no_line(tmp_path: Path) -> None:
    process = started(FULL, tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    # One for each file: metrics.jsonl and the log; TensorBoard's is written every two minutes.
    assert len(said.splitlines()) in (2, 3)
    assert all(
        " cannot be written at the moment (File too large); it is tried again" in line for line in said.splitlines()
    )
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records if record["kind"] == "train"] == list(range(200))
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert events.stat().st_size > 20_000  # each figure of each step


@pytest.mark.parametrize(
    ("is_copy", "is_written_before", "lines"), [(False, True, 2), (False, False, 1), (True, True, 1), (True, False, 1)]
)
def test_a_disk_that_stays_full_is_said_in_few_lines(
    is_copy: bool, is_written_before: bool, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    file = Uploads(str(tmp_path / "a"), is_copy)
    monkeypatch.setattr(os, "write", full)
    for number in range(3 if is_written_before else 0):
        file.write(b"%d\n" % number)
        assert not file.flush()
    file.write(b"last\n")
    file.close()
    assert len(caplog.messages) == lines and all("No space left on device" in line for line in caplog.messages)


def test_a_console_that_is_gone_ends_no_run(tmp_path: Path) -> None:
    with started(WITHOUT_CONSOLE, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 75)
    event, end = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert event["ended"] and end["kind"] == "end"


def test_a_console_on_a_full_disk_ends_no_run(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        process = started(WITHOUT_CONSOLE, tmp_path, stdout=full, stderr=subprocess.PIPE)
        process.communicate(timeout=60)
    event, end = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert event["ended"] and end["kind"] == "end"


def test_a_local_file_gets_all_of_a_line_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Uploads(str(tmp_path / "a"))
    write = os.write
    file.write(b"one\n")
    assert file.flush()

    def half(descriptor: int, data: memoryview) -> int:
        if len(data) < 4:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    file.write(b"two and three\n")
    assert not file.flush() and (tmp_path / "a").read_bytes() == b"one\n"
    monkeypatch.undo()
    file.close()
    assert (tmp_path / "a").read_bytes() == b"one\ntwo and three\n"


def test_a_local_file_is_continued(tmp_path: Path) -> None:
    for part in (b"a", b"b"):
        file = LocalFile(str(tmp_path / "a"))
        file.append(part)
        file.close()
    assert (tmp_path / "a").read_bytes() == b"ab"


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nothing can be made until `undo` is called, as on a full disk."""
    made = os.open

    def opened(path: object, flags: int, *more: object, **named: object) -> int:
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(28, "No space left on device", str(path))
        return made(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", opened)
    return tmp_path


def test_a_ledger_is_written_when_there_is_room_again(
    full: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = DataConfig("any", {"inputs": 64}, batch_size=8, num_data_shards=4)
    config = RunConfig(tiny.model(), data, str(full), train_steps=10)
    ledger = SkippedBatches(config)
    ledger.append([{"batch": 5, "rows": []}])
    assert 5 in ledger and not (full / FILE).exists()
    assert [record.getMessage() for record in caplog.records] == [
        f"{full / FILE} cannot be written (No space left on device); the run goes on."
    ]
    monkeypatch.undo()
    ledger.write()
    ledger.append([{"batch": 7, "rows": []}])
    assert [batch for batch in range(10) if batch in SkippedBatches(config)] == [5, 7]


def test_a_step_that_is_not_finite_is_said_though_its_batch_cannot_be_written(tmp_path: Path) -> None:
    values = {"loss": float("nan"), "gradient_norm": 1.0, "update_norm": 1.0}
    (tmp_path / "file").touch()
    failed = recent_steps.RecentStep(7, {0: {"inputs": np.zeros(3)}}, values, NO_DOCUMENTS)
    said = recent_steps.report(str(tmp_path / "file"), failed, values, [5])
    assert "its batch cannot be written to" in said and "the checkpoint at step 5 is good" in said


def test_a_trace_that_cannot_be_written_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataConfig("any", {"inputs": 64}, batch_size=8, num_data_shards=4)
    config = RunConfig(tiny.model(), data, str(tmp_path), train_steps=10, profile_steps=2)
    said = list[str]()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jax.profiler, "start_trace", lambda *_: None)
    monkeypatch.setattr(jax.profiler, "stop_trace", fail)
    trace = Trace(config, 0, said.append)
    for step in range(1, 8):
        trace.before(step)
        trace.after(step, None, is_last=step == 7)
    trace.close(7, None)
    assert said == [f"The steps are not traced: {tmp_path}/profile cannot be written (No space left on device)."]
