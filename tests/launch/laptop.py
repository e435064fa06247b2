"""A laptop with a checkout and a stand-in for gcloud, and launch/pod.sh there: what the tests of pods share.

Each worker's set-up is launch/setup.sh of a commit of its own, which puts a small program in Python's place.
"""

import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
ZONE = "--zone=us-central2-b"
TYPE = "--type=v4-16"
STAYS = "my-pod: the pod stays, and costs, until: bash launch/pod.sh delete my-pod\n"
RUN = ("run", "my-pod", "gin/demo.gin", "MODEL_DIR=gs://bucket/run")
NOT_TAKEN = ("MODEL_DIR", "ACCELERATOR", "HF_TOKEN")  # of the environment of the tests
# In the place of a worker's setup.sh: fails where a file of the worker's home says so.
SETUP = f"""
[ "$1" = tpu ] || {{ echo "setup.sh was called with $*" >&2; exit 2; }}
[ ! -f ~/full ] || {{ echo "No space left on device" >&2; exit 74; }}
echo "$UV_PYTHON_INSTALL_MIRROR" "$https_proxy" >>~/set_up
mkdir -p .venv/bin
printf '#!/bin/sh\\nexec %s program.py "$@"\\n' {sys.executable} >.venv/bin/python
chmod +x .venv/bin/python
"""
# In Python's place: writes down how it was called, and does what ~/deed says.
PROGRAM = """
import os, pathlib, signal, sys, time
home = pathlib.Path.home()
with (home / "started").open("a") as file:
    file.write(os.environ.get("HF_TOKEN", "-") + " " + os.environ.get("TFDS_DATA_DIR", "-") + " ")
    file.write(os.environ["JAX_PLATFORMS"] + " " + " ".join(sys.argv[1:]) + "\\n")
deeds = pathlib.Path(os.environ["DEEDS"])
deed = (deeds / os.environ["WORKER"]).read_text() if (deeds / os.environ["WORKER"]).exists() else "wait"
signal.signal(signal.SIGTERM, lambda *_: (print("saved step 7"), sys.exit(75)))
print("step 7", flush=True)
while deed == "wait":
    time.sleep(0.05)
    if (deeds / "end").exists():
        deed = "0"
sys.exit(int(deed))
"""


def make_laptop(tmp_path: Path) -> Path:
    """Returns a folder with a checkout of launch/pod.sh, committed, and a stand-in gcloud for its PATH."""
    shutil.copytree(_new_laptop().name, tmp_path, symlinks=True, dirs_exist_ok=True)
    return tmp_path


@functools.cache
def _new_laptop() -> tempfile.TemporaryDirectory[str]:
    """Returns the laptop that all tests of a process begin with a copy of."""
    kept = tempfile.TemporaryDirectory()
    laptop = Path(kept.name)
    tree = laptop / "checkout"
    shutil.copytree(ROOT / "launch", tree / "launch", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "gin").mkdir()
    (tree / "gin" / "demo.gin").write_text("# a gin file\n")
    (tree / "launch" / "setup.sh").write_text(SETUP)
    (tree / "program.py").write_text(PROGRAM)
    (tree / ".gitignore").write_text("/.venv/\n")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=tree, check=True)
    (laptop / "world").mkdir()
    (laptop / "deeds").mkdir()
    (laptop / "bin").mkdir()
    stand_in = laptop / "bin" / "gcloud"
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -S {ROOT}/tests/launch/gcloud.py "$@"\n')
    stand_in.chmod(0o755)
    set_world(laptop)
    return kept


def set_world(laptop: Path, **changes: object) -> None:
    """Sets entries of the stand-in's world."""
    path = laptop / "world" / "world.json"
    with (laptop / "world" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the stand-in
        world = json.loads(path.read_text()) if path.exists() else {"workers": 2, "buckets": {"bucket": "us-central2"}}
        path.write_text(json.dumps({**world, **changes}))


def world_of(laptop: Path) -> dict:
    return json.loads((laptop / "world" / "world.json").read_text())


def calls(laptop: Path) -> list[list[str]]:
    path = laptop / "world" / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def start(laptop: Path, *arguments: str, stdin: Any = subprocess.DEVNULL, **variables: str) -> subprocess.Popen:
    """Starts `launch/pod.sh ARGUMENTS` with variables of the environment."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_TAKEN}
    environment |= {
        "PATH": f"{laptop}/bin:{os.environ['PATH']}", "WORLD": str(laptop / "world"), "POLL_SECONDS": "0",
        "LIMBA_PODS": str(laptop / "pods"), "DEEDS": str(laptop / "deeds"), "RETRIES": "0", **variables,
    }  # fmt: skip
    return subprocess.Popen(
        ["bash", str(laptop / "checkout" / "launch" / "pod.sh"), *arguments], env=environment, cwd=laptop, text=True,
        stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def pod(laptop: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Returns the status of `launch/pod.sh ARGUMENTS` and what it printed."""
    process = start(laptop, *arguments, **variables)
    printed, errors = process.communicate(timeout=300)
    return process.returncode, printed, errors


def make_pod(laptop: Path, *, is_set_up: bool = True) -> None:
    """Makes the pod my-pod. A laptop on which nothing was done gets a copy of one that another test has made."""
    if not calls(laptop) and world_of(laptop) == world_of(Path(_new_laptop().name)):
        shutil.copytree(_laptop_with_pod(is_set_up).name, laptop, symlinks=True, dirs_exist_ok=True)
    else:
        _run_make_pod(laptop, is_set_up)


@functools.cache
def _laptop_with_pod(is_set_up: bool) -> tempfile.TemporaryDirectory[str]:
    kept = tempfile.TemporaryDirectory()
    _run_make_pod(make_laptop(Path(kept.name)), is_set_up)
    return kept


def _run_make_pod(laptop: Path, is_set_up: bool) -> None:
    assert pod(laptop, "create", "my-pod", TYPE, ZONE)[0] == 0
    if is_set_up:
        assert pod(laptop, "setup", "my-pod")[0] == 0


def worker(laptop: Path, number: int) -> Path:
    return laptop / "world" / "my-pod" / f"worker{number}"


def end_runs(laptop: Path) -> None:
    """Lets the programs of all workers end."""
    (laptop / "deeds" / "end").write_text("")


def watching(laptop: Path, **variables: str) -> subprocess.Popen:
    return start(laptop, "watch", "my-pod", **{"POLL_SECONDS": "1"}, **variables)


def started(laptop: Path, number: int, times: int, name: str = "my-pod") -> list[str]:
    """Waits until a worker's program was started so many times; returns the lines it wrote."""
    path = laptop / "world" / name / f"worker{number}" / "started"

    def lines() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    wait_until(lambda: len(lines()) >= times, lambda: f"worker {number} started {len(lines())} times")
    return lines()
