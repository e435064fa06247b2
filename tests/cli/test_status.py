"""`limba status` on directories as runs leave them, by heartbeats whose ages are known."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from etils import epath

from limba.cli.main import main
from limba.config import DataConfig, RunConfig, saved_config
from limba.evaluation import run_directory
from limba.evaluation.status import Status
from limba.evaluation.text_curve import text_curve
from limba.storage import manifest
from limba.storage.lease import held
from limba.storage.lease_places import this_process
from limba.tools.preflight.checks import environment, processes
from tests import tiny
from tests.storage.leases import file_of

ROOT = Path(__file__).resolve().parents[2]


def train_record(step: int, loss: float, seconds: float = 0.5, **more: float) -> str:
    record = {
        "kind": "train", "step": step, "time": "2026-11-22T08:00:00+00:00", "loss": loss, "seconds_per_step": seconds,
        "tokens_per_second": 1_000.0, "data_wait": 0.1, **more,
    }  # fmt: skip
    return json.dumps(record) + "\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "checkpoints" / "40").mkdir(parents=True)
    (run / "checkpoints" / "40" / "manifest.json").write_text("{}")
    (run / "metrics.jsonl").write_text("".join(train_record(n, 9 - n / 10, mfu=0.25) for n in range(1, 51)))
    return run


def hosts(directory: Path, pid: int, waits: tuple[float, ...], silent: float = 0.0) -> None:
    entries = [
        {"process": i, "host": f"h{i}", "silent_seconds": silent if i else 0.0, "step": 50, "seconds_per_step": 0.5,
         "seconds_for_data": wait}
        for i, wait in enumerate(waits)
    ]  # fmt: skip
    record = {"format": 1, "written_every_seconds": 5.0, "pid": pid, "processes": entries}
    (directory / "hosts.json").write_text(json.dumps(record))


def test_a_run_that_is_over(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in directory.iterdir())
    assert main(["status", str(directory)]) == 0
    text = capsys.readouterr().out
    assert "step         50, logged at 2026-11-22T08:00:00 UTC" in text and "loss         4.0000" in text
    assert "1,000 tokens/s, MFU 25.0%, 10% of the time waiting for data" in text
    assert "checkpoint   step 40, 0 s ago by the file's time" in text
    assert "process      none: nothing trains here now" in text and "step 1 to 50" in text
    assert sorted(path.name for path in directory.iterdir()) == before


def bound(kind: str, step: int, **more: object) -> str:
    return json.dumps({"kind": kind, "step": step, "time": "2026-11-22T08:00:00+00:00", **more}) + "\n"


@pytest.mark.parametrize(
    ("records", "first_line", "step"),
    [
        ((bound("start", 0), bound("end", 0, failed=True, reason="Out of memory")), "FAILED after step 0: Out of", ""),
        (
            (bound("end", 40, stopped=True), bound("start", 40), bound("end", 40, failed=True, reason="Disk full")),
            "FAILED after step 40: Disk full.", "step         50",
        ),
        (
            (train_record(60, 1.0), bound("end", 60, failed=True, reason="A GPU failed"), bound("start", 40),
             train_record(45, 5.0), bound("end", 45, stopped=True)),
            "STOPPED after step 45", "step         45,",
        ),
    ],
)  # fmt: skip
def test_how_a_run_ended_last_is_said(records: tuple[str, ...], first_line: str, step: str, directory: Path) -> None:
    """Records were read in the order of steps: an end came before the start behind it, or of undone steps last."""
    metrics = directory / "metrics.jsonl"
    if not step:
        metrics.write_text("")
    with metrics.open("a") as file:
        file.writelines(records)
    lines = Status(directory).lines()
    assert lines[0].startswith(first_line), lines
    assert any(line.startswith(step or "step         not known") for line in lines), lines


def test_a_start_is_said_only_of_a_run_that_somebody_holds(directory: Path) -> None:
    """The best step of a run, and a run whose metrics are gone, have a checkpoint and no steps."""

    def step_line() -> str:
        (line,) = (line for line in Status(epath.Path(directory)).lines() if line.startswith("step "))
        return line

    (directory / "metrics.jsonl").write_text(bound("start", 0))
    assert step_line() == (
        "step         not known: no step is recorded here, as in a run's best/ or without its metrics.jsonl"
    )
    with held(str(directory)):
        assert step_line() == "step         none yet: the run starts, or compiles its step"
    shutil.rmtree(directory / "checkpoints")
    assert step_line() == "step         none yet"


def test_the_stage_that_is_read_and_the_next_one(directory: Path) -> None:
    for stages, line in (
        (((20, "clean"), (60, "books")), "stage        2 of 3: clean since step 20, books from step 60 on"),
        (((50, "clean"),), "stage        1 of 2: wiki since step 0, clean from step 50 on"),
        (((20, "clean"),), "stage        2 of 2: clean since step 20"),
    ):
        data = DataConfig("wiki", {"inputs": 64}, 8, stages=stages)
        (directory / saved_config.FILE).write_text(
            saved_config.to_text(RunConfig(tiny.MODEL, data, str(directory), 100))
        )
        assert line in Status(epath.Path(directory)).lines()


def test_a_run_that_ends_with_its_epochs_has_no_last_step(directory: Path) -> None:
    data = DataConfig("wiki", {"inputs": 64}, 8, num_epochs=2)
    (directory / saved_config.FILE).write_text(
        saved_config.to_text(RunConfig(tiny.MODEL, data, str(directory), train_steps=None))
    )
    text = "\n".join(Status(directory).lines())
    assert "step         50, logged at" in text and "loss         4.0000" in text and "ETA" not in text


def test_a_living_run_and_who_is_slow(directory: Path) -> None:
    status = Status(epath.Path(directory))
    with held(str(directory)):
        hosts(directory, os.getpid(), (0.01, 0.01, 0.3))
        text = "\n".join(status.lines())
        assert f"process {os.getpid()} on " in text and "alive, heartbeat" in text
        assert "this machine's clock" in text
        assert "  2 on h2: alive, heartbeat" in text and "step 50, 0.5 s a step, 0.3 s of them for its data" in text
        assert "slow         process 2 on h2 waits 0.3 s a step for its data, most wait 0.01 s" in text
        hosts(directory, os.getpid(), (0.01, 0.01, 0.02), silent=90)
        text = "\n".join(status.lines())
        assert "  1 on h1: NO HEARTBEAT for 1 min 30 s" in text and "slow         none" in text
        hosts(directory, os.getpid() + 1, (0.01, 0.01))  # what an earlier start has left
        assert " on h1" not in "\n".join(status.lines())
        (directory / "hosts.json").write_text("{")
        assert "hosts.json is damaged" in "\n".join(status.lines())


def test_a_heartbeat_that_stops_is_told_by_the_file_and_then_by_the_own_clock(directory: Path) -> None:
    with held(str(directory)):
        lease = directory / "lease"
        os.utime(lease, (time.time() - 3_600,) * 2)
        status = Status(epath.Path(directory))
        assert "NO HEARTBEAT for 1 h 0 min (by the file's time" in "\n".join(status.lines())
        os.utime(lease, (time.time() - 3_588,) * 2)  # a heartbeat of a host whose clock is an hour late
        assert "alive, heartbeat 0 s ago (seen here)" in "\n".join(status.lines())


def test_the_age_of_an_object_that_is_no_local_file(directory: Path) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.put(str(directory), "/status_bucket", recursive=True)
    try:
        seen = Status(epath.Path(directory))
        seen._hosts._system = system
        seen._hosts._path = "/status_bucket/metrics.jsonl"
        beat = seen._hosts.look()
        assert beat.content and beat.age is not None and beat.age < 60
        seen._hosts._path = "/status_bucket/none"
        assert seen._hosts.look().age is None
    finally:
        system.rm("/status_bucket", recursive=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "No run is given; write limba status MODEL_DIR."),
        (["{empty}"], "is not a run directory; give the directory of a run."),
        (["{empty}/none"], "is not a run directory; give the directory of a run."),
        (["{empty}", "--watch", "--seconds=0"], "--seconds is 0; give a number from 1 to 86,400."),
        (["{empty}", "--watch", "--seconds=inf"], "--seconds is inf; give a number from 1 to 86,400."),
        (["{empty}", "--watch", "--seconds=nan"], "--seconds is nan; give a number from 1 to 86,400."),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", *(argument.format(empty=tmp_path) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and len(error.splitlines()) == 1


def test_watch_prints_again_until_ctrl_c(directory: Path) -> None:
    command = [sys.executable, "-m", "limba", "status", str(directory), "--watch", "--seconds=1"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += line.startswith("run ")
        if seen == 2:
            process.send_signal(2)
            break
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0 and errors == ""  # the documented end


@pytest.mark.parametrize("points", [[], [(1, float("nan"))]])
def test_a_curve_of_nothing_is_empty(points: list[tuple[int, float]]) -> None:
    assert text_curve(points) == []


def test_a_curve_of_equal_losses_is_a_line() -> None:
    assert sum("*" in line for line in text_curve([(step, 2.0) for step in range(1, 300)])) == 1


def test_what_would_keep_the_next_start_from_working(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the module that preflight has: who holds the TPU, packages, and room for a checkpoint."""
    locked = environment.pins(ROOT / "requirements", "cpu")
    monkeypatch.setattr(environment, "installed", lambda: {**locked, "flax": "0.0.1"})
    monkeypatch.setattr(environment, "LEAST_FREE", 0)
    step = directory / "checkpoints" / "40"
    device = tmp_path / "accel0"
    (step / "state").write_bytes(bytes(20_000_000))
    (step / "manifest.json").unlink()
    (step / manifest.FILE).write_text(manifest.text_of(step))
    device.write_text("")
    monkeypatch.setattr(processes, "TPU_DEVICES", (str(tmp_path / "accel*"),))
    program = "import sys; kept = open(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(device)]

    def told() -> str:
        assert main(["status", str(directory)]) == 0
        return capsys.readouterr().out

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "ready\n"
            text = told()
            assert f"error        The TPU is held by process {other.pid} of " in text
            assert f"Fix: kill {other.pid}" in text
            # The run's own process may hold it; and a run on another machine has nothing to do with this one.
            owner = this_process()._replace(token="a", pid=other.pid)
            (directory / "lease").write_text(file_of(owner))
            assert "The TPU is held" not in (text := told()) and "flax 0.0.1 (lock: " in text
            (directory / "lease").write_text(file_of(owner._replace(host="another")))
            assert "Fix:" not in told()
        finally:
            other.communicate()
    (directory / "lease").unlink()
    text = told()
    assert (
        f"warning      Versions that differ from requirements/lock-cpu.txt: flax 0.0.1 (lock: {locked['flax']})" in text
    )
    assert "The TPU is held" not in text and "room         a checkpoint takes 0.02 GB, and " in text
    monkeypatch.setattr(run_directory, "free_bytes", lambda _: 1_000_000)
    assert "room         NONE for the next checkpoint: a checkpoint takes 0.02 GB, and 0.00 GB are free" in told()
