"""The machine: locks, who holds a device, tokens that are never shown, the clock, and Slurm's time limit."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from limba.config import DataConfig, RunConfig, compile_cache
from limba.tools.preflight.checks import environment, processes
from tests import tiny

ROOT = Path(__file__).parents[2]


def run_in(directory: Path, **choices: object) -> RunConfig:
    data = DataConfig("demo_span_corruption", {"inputs": 64}, 8)
    return RunConfig(tiny.MODEL, data, str(directory), train_steps=1_000, **choices)


def test_versions_are_compared_with_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = environment.pins(ROOT / "requirements", "tpu")
    assert locked["libtpu"] and locked["jax"] and locked["flax"]
    monkeypatch.setattr(environment, "installed", lambda: {**locked, "flax": "0.0.1"})
    data: dict = {}
    (line,) = environment._versions(data)
    assert line.level == "warning" and f"flax 0.0.1 (lock: {locked['flax']})" in line.text
    assert line.fix == "bash launch/setup.sh tpu" and data["differ_from_lock"] == {"flax": ["0.0.1", locked["flax"]]}
    monkeypatch.setattr(environment, "installed", lambda: {n: v for n, v in locked.items() if n != "optax"})
    (line,) = environment._versions({})
    assert line.level == "error" and "optax" in line.text


def test_a_lean_environment_on_a_card_is_whole_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = environment.pins(ROOT / "requirements", "cuda13", is_lean=True)
    assert locked["jax-cuda13-plugin"] and locked["flax"] and not locked.keys() & {"tensorflow", "seqio"}
    monkeypatch.setattr(environment, "installed", lambda: locked)
    (line,) = environment._versions({})
    assert line.level == "ok"
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    (line,) = environment._versions({})
    assert line.level == "ok"
    monkeypatch.setattr(sys, "version_info", (3, 15, 0))
    assert "the packages are tested with 3.11 to 3.14" in next(environment._versions({})).text
    monkeypatch.undo()
    monkeypatch.setattr(environment, "installed", lambda: {n: v for n, v in locked.items() if n != "contourpy"})
    (line,) = environment._versions({})  # matplotlib needs it, and Limba does not
    assert (line.level, line.fix) == ("warning", "LEAN=1 bash launch/setup.sh cuda13")


def test_who_holds_a_device_and_its_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "accel0"
    lock = tmp_path / "libtpu_lockfile"
    device.write_text("")
    lock.write_text("")
    assert processes.holders([str(tmp_path / "accel*")]) == [] and processes.holder_of_lock(str(lock)) is None
    program = (
        "import fcntl, sys; d = open(sys.argv[1]); l = open(sys.argv[2], 'r+'); fcntl.lockf(l, fcntl.LOCK_EX);"
        " print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(device), str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "ready\n"
            (holder_found,) = processes.holders([str(tmp_path / "accel*")])
            assert holder_found.pid == holder.pid and holder_found.command.startswith("python")
            of_lock = processes.holder_of_lock(str(lock))
            assert of_lock is not None and of_lock.pid == holder.pid
            monkeypatch.setattr(processes, "holder_of_lock", lambda: of_lock)
            for is_there in (False, True):  # without a TPU it compiles for one
                monkeypatch.setattr(environment.machine, "is_tpu_vm", lambda is_there=is_there: is_there)
                said = [line.fix for line in environment._holders() if line.level == "error"]
                assert said == [f"kill {holder.pid}"] * is_there
            monkeypatch.undo()
        finally:
            holder.communicate()
    assert processes.holder_of_lock(str(lock)) is None  # the file alone means nothing
    with open(lock, "r+") as own_lock:
        fcntl.lockf(own_lock, fcntl.LOCK_EX)
        assert processes.holder_of_lock(str(lock)) is None


def test_tokens_are_said_to_be_there_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("WANDB_API_KEY", "wandb_secret")
    section = environment.environment(run_in(tmp_path, hub_model_id="user/name"))
    text = json.dumps([line.text for line in section.lines]) + json.dumps(section.data)
    assert "secret" not in text and section.data["tokens"]["HF_TOKEN"]
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("limba.storage.servers.token", lambda: None)
    section = environment.environment(run_in(tmp_path, hub_model_id="user/name"))
    assert not section.data["tokens"]["HF_TOKEN"]  # the section Storage says, once, what it is missing for
    assert [line for line in section.lines if line.level == "error"] == []


def test_room_for_compiled_programs_is_looked_at_where_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "LEAST_FREE", 1 << 60)
    monkeypatch.setenv(compile_cache.VARIABLE, str(tmp_path))

    def said(cache: str) -> list[tuple[str, object]]:
        monkeypatch.setenv(compile_cache.OF_JAX, cache)
        return [(line.level, line.fix) for line in environment._room({})]

    temporary = ("warning", "export TMPDIR=DIRECTORY")
    assert said(str(tmp_path)) == [("warning", "export COMPILE_CACHE=DIRECTORY"), temporary]
    assert said(str(tmp_path / "jax_s_own")) == [("warning", "export JAX_COMPILATION_CACHE_DIR=DIRECTORY"), temporary]
    assert said("gs://mine/compiled") == [temporary]
    assert said("") == [("ok", None), temporary]  # off, or a folder that is not safe
    assert next(environment._room({})).text == "Compiled programs are not kept: each start compiles again."


@pytest.mark.parametrize(("off", "level"), [(0, "ok"), (-100, "warning"), (1_000, "error")])
def test_a_wrong_clock_is_seen(off: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(404)
            self.send_header("Date", formatdate(time.time() - off, usegmt=True))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        data: dict = {}
        (line,) = environment._clock(data)
        server.shutdown()
    assert line.level == level and abs(data["clock_error_seconds"] - off) < 5


def test_a_time_limit_before_the_next_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3_600))
    (line,) = environment._time_limit(run_in(tmp_path))
    assert line.level == "ok" and "ends in" in line.text
    record = {"kind": "train", "step": 100, "seconds_per_step": 10.0, "loss": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    (line,) = environment._time_limit(run_in(tmp_path))
    assert line.level == "warning" and line.fix[0] == "CheckpointConfig.every_steps" and 85 <= line.fix[1] <= 90
    monkeypatch.delenv("SLURM_JOB_ID")
    assert list(environment._time_limit(run_in(tmp_path))) == []


def test_a_chosen_cpu_beside_an_accelerator_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.machine, "num_gpus", lambda: 2)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    lines = list(environment._devices({}))
    assert [line.fix for line in lines if line.level == "warning"] == ["unset JAX_PLATFORMS"]
    assert os.environ["JAX_PLATFORMS"] == "cpu"
