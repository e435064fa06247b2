"""Checkpoints in a bucket: saved, verified, and each object damaged alone; a process of its own has the clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from etils import epath

from limba.config import CheckpointConfig, StorageError
from limba.formats import limba_checkpoint
from limba.training.checkpoints import step_directory
from limba.training.checkpoints.directory import Checkpoints
from tests.bucket_server import emulated, serving_buckets
from tests.sharding.processes import xla_flags
from tests.storage.leases import of_another_machine
from tests.training.checkpoints import states
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
# Saves two steps; then damages one object of the newest after the other, and says for each what
# `limba status --verify` and a resumed run make of it. A copy is put back each time.
PROGRAM = """
import contextlib, io, json, logging, sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
from etils import epath
from limba.cli import verify as verification
from limba.training.checkpoints.directory import Checkpoints
from tests.training.checkpoints import states
run = epath.Path("gs://bucket/run")
said = []
class Keeping(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("limba").addHandler(Keeping())
logging.getLogger("limba").propagate = False
def verified():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = verification.run(str(run), "checksums")
    return [status, out.getvalue().splitlines()]
def names(folder):
    return [name for child in folder.iterdir() for name in (names(child) if child.is_dir() else [child])]
states.save(run, 10, 20)
answers = {"whole": verified()}
step = run / "checkpoints" / "20"
contents = {str(path): path.read_bytes() for path in names(step)}
for path, content in contents.items():
    name = path.removeprefix(str(step) + "/")
    for way in ("deleted", "cut", "flipped"):
        if way == "deleted":
            epath.Path(path).unlink()
        else:
            middle = len(content) // 2
            rest = bytes([content[middle] ^ 4]) + content[middle + 1 :] if way == "flipped" else b""
            epath.Path(path).write_bytes(content[:middle] + rest)
        said.clear()
        found = verified()
        with Checkpoints(str(run), states.CONFIG, states.DATA) as checkpoints:
            restored = checkpoints.restore_latest(states.abstract())
        number = int(restored.state.step)
        states.assert_is(restored, number)
        answers[f"{name} {way}"] = [*found, number, list(said)]
        for aside in run.joinpath("checkpoints").iterdir():
            if aside.name.startswith("20"):
                aside.rmtree()
        for place, content_there in contents.items():
            epath.Path(place).write_bytes(content_there)
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_each_object_of_the_newest_step_is_damaged_alone() -> None:
    with serving_buckets() as server:
        variables = {**os.environ, **server.environment(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300
        )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    status, lines = answers.pop("whole")
    assert status == 0 and [line.partition(": whole")[0] for line in lines] == ["checkpoints/10", "checkpoints/20"]
    assert len(answers) >= 3 * 6
    for case, (status, lines, step, said) in answers.items():
        name = case.rpartition(" ")[0]
        if case == "manifest.json deleted":  # a step without it was never committed
            assert (status, step) == (0, 10) or "manifest.json is missing" in " ".join(said + lines), case
        else:
            assert (status, step, len(said)) == (2, 10, 1), (case, lines, said)
            assert f"damaged: {name} " in lines[1] and f"({name} " in said[0] and "20.broken" in said[0]


def test_a_bucket_that_may_not_be_listed_is_not_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run began at step 0 beside its checkpoints."""
    with emulated(monkeypatch) as server:
        server.put("bucket", "run/checkpoints/20/manifest.json", b"{}")
        checkpoints = Checkpoints("gs://bucket/run", CheckpointConfig(), states.DATA)
        assert checkpoints.steps() == [20]
        assert limba_checkpoint.steps_in(epath.Path("gs://bucket/another/checkpoints")) == {}
        server.forbids_listing = True
        sentence = r"^gs://bucket/run/checkpoints cannot be listed \(Forbidden.*\); fix that, and try again\.$"
        with pytest.raises(StorageError, match=sentence):
            checkpoints.restore_latest(states.abstract())
        with pytest.raises(StorageError, match=sentence):
            Checkpoints("gs://bucket/run", CheckpointConfig(), states.DATA)
        step_directory.remove_old(checkpoints.directory, 20, keep=1)  # no error: the save before it is good
        assert server.names("run/checkpoints") == ["run/checkpoints/20/manifest.json"]
    warning = caplog.messages[-1]
    assert warning.startswith("The old checkpoints in gs://bucket/run/checkpoints cannot be removed ("), warning


NAMED = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
from etils import epath
from tests.training.checkpoints import life
life.check_names(epath.Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_run_s_name_is_no_pattern(where: str, tmp_path: Path) -> None:
    """On a disk no step was whole, and in a bucket run[1] removed steps of run1."""
    place = str(tmp_path) if where == "disk" else "gs://bucket/runs"
    with serving_buckets() as server:
        variables = {**os.environ, **server.environment(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}
        command = [sys.executable, "-c", NAMED, place]
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


# Holds the lease, and saves step 20 with the numbers of a seed. It stops itself (SIGSTOP) at the moment that is named.
# A line lets it save, and one more lets it restore what is there in the end.
STOPPED = """
import os, signal, sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
from limba.config import CheckpointConfig, RestartError
from limba.storage import lease, lease_places, literal_names, manifest
from limba.training.checkpoints import arrays, step_directory
from limba.training.checkpoints.directory import Checkpoints
from tests.training.checkpoints import states
moment, seed = sys.argv[1], int(sys.argv[2])
lease_places.BEAT_SECONDS = 0.2
lease_places.LEASE_SECONDS = 0.6
arrays.BATCH_BYTES = 1
batches, merge = arrays._batches, arrays.merge
def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
def batches_with_a_stop(items, size):
    for number, batch in enumerate(batches(items, size)):
        if number == {"first arrays": 0, "later arrays": 2}[moment]:
            stop()
        yield batch
def merge_after_a_stop(*arguments):
    stop()
    return merge(*arguments)
def write_after_a_stop(path, content):
    if path.name == manifest.FILE:
        stop()
    write(path, content)
def remove_after_a_stop(*arguments):
    literal_names.remove_objects = remove
    stop()
    remove(*arguments)
def list_after_a_stop(*arguments):
    literal_names.objects_in = objects_in
    stop()
    return objects_in(*arguments)
if moment == "listing":
    objects_in, literal_names.objects_in = literal_names.objects_in, list_after_a_stop
if moment in ("start", "removal"):
    remove, literal_names.remove_objects = literal_names.remove_objects, remove_after_a_stop
if "arrays" in moment:
    arrays._batches = batches_with_a_stop
if moment == "merge":
    arrays.merge = merge_after_a_stop
if moment == "commit":
    write, step_directory._write = step_directory._write, write_after_a_stop
with lease.held("gs://bucket/run") as held:
    checkpoints = Checkpoints("gs://bucket/run", CheckpointConfig(), states.DATA, may_commit=held.confirm)
    checkpoints.save(20, states.state(seed), {0: {"about": {}, "batch": seed}}, {"step": seed})
    try:
        checkpoints.wait()
        print("SAVED", flush=True)
    except RestartError as error:
        print("ENDED", error, flush=True)
        sys.exit()
    sys.stdin.readline()
    with Checkpoints("gs://bucket/run", CheckpointConfig(), states.DATA) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), seed)
    print("WHOLE", flush=True)
"""


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("start", marks=pytest.mark.night),
        pytest.param("listing", marks=pytest.mark.night),
        pytest.param("removal", marks=pytest.mark.night),
        pytest.param("first arrays", marks=pytest.mark.slow),
        pytest.param("later arrays", marks=pytest.mark.night),
        pytest.param("merge", marks=pytest.mark.night),
        pytest.param("commit", marks=pytest.mark.night),
    ],
)
def test_who_is_stopped_while_it_writes_a_step_leaves_its_successor_s_whole(moment: str) -> None:
    """SIGSTOP; another machine takes over and commits the same step; SIGCONT: the other one's step is not touched."""
    with serving_buckets() as server, contextlib.ExitStack() as programs:
        variables = {**os.environ, **server.environment(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}

        def started(moment: str, seed: int) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", STOPPED, moment, str(seed)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            program = programs.enter_context(subprocess.Popen(command, cwd=ROOT, env=variables, text=True, **pipes))
            programs.callback(program.kill)
            return program

        if moment in ("start", "removal"):  # an earlier attempt, which was not committed, or one that was
            server.put("bucket", "run/checkpoints/20/data/metadata", b"old")
        if moment == "removal":
            server.put("bucket", "run/checkpoints/20/manifest.json", b"old")
        first = started(moment, 7)
        wait_until(lambda: Path(f"/proc/{first.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        # As the lease of a process on another machine, which nobody here can ask.
        server.put("bucket", "run/lease", of_another_machine(lease_seconds=0.6).content())
        second = started("never", 20)
        assert second.stdout is not None and second.stdout.readline() == "SAVED\n"
        committed = {name: server.objects["bucket", name].data for name in server.names("run/checkpoints")}
        first.send_signal(signal.SIGCONT)
        out = first.communicate(timeout=120)[0]
        assert out.startswith("ENDED Another process "), out
        now = {name: server.objects["bucket", name].data for name in server.names("run/checkpoints")}
        assert {name: now.get(name) for name in committed} == committed
        assert all("/state/d/" in name or "/state/ocdbt.process_0." in name for name in now.keys() - committed.keys())
        assert second.communicate("\n", timeout=120)[0] == "WHOLE\n"


# Saves a step; then, when it is told that the bucket takes nothing any more, tries to save another one.
REFUSED = """
import sys, time
import jax
jax.config.update("jax_num_cpu_devices", 2)
from limba.config import CheckpointConfig, StorageError
from limba.training.checkpoints.directory import Checkpoints
from tests.training.checkpoints import states
config = CheckpointConfig(save_timeout_seconds=4.0)
states.save("gs://bucket/run", 10)
print("saved", flush=True)
sys.stdin.readline()
began = time.monotonic()
try:
    with Checkpoints("gs://bucket/run", config, states.DATA) as checkpoints:
        checkpoints.save(20, states.state(20), {0: {"about": {}, "batch": 20}}, {"step": 20})
        checkpoints.wait()
except StorageError as error:
    print(time.monotonic() - began, error, flush=True)
sys.stdin.readline()
with Checkpoints("gs://bucket/run", config, states.DATA) as checkpoints:
    states.assert_is(checkpoints.restore_latest(states.abstract()), 10)
    print(checkpoints.steps(), flush=True)
"""


@pytest.mark.night
def test_a_bucket_that_takes_nothing_any_more_is_one_sentence() -> None:
    with serving_buckets() as server:
        variables = {**os.environ, **server.environment(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}
        with subprocess.Popen(
            [sys.executable, "-c", REFUSED], cwd=ROOT, env=variables, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == "saved\n"
            server.refuses_writes = True
            process.stdin.write("\n")
            process.stdin.flush()
            said = process.stdout.readline()
            server.refuses_writes = False
            rest = process.communicate("\n", timeout=120)[0]
    seconds, _, sentence = said.partition(" ")
    assert sentence.startswith("Step 20 cannot be saved in gs://bucket/run/checkpoints ("), said
    assert "Step 10 in gs://bucket/run/checkpoints is good." in sentence and float(seconds) < 60, said
    assert process.returncode == 0 and rest == "[10]\n"
