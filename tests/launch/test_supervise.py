"""A command of Limba is started again where that helps: real bash, real signals, a small program in the run's place."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
# Writes a line for each start, and ends as the line of that number in the file `plan` says: a status, or a signal.
PROGRAM = """
import os, pathlib, signal, sys, time
log = pathlib.Path("log")
with log.open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
plan = pathlib.Path("plan").read_text().split()
deed = plan[min(len(log.read_text().splitlines()), len(plan)) - 1]
def saved(number, _):
    pathlib.Path("got").write_text(pathlib.Path("got").read_text() + signal.Signals(number).name + "\\n")
    time.sleep(0.5)  # a save takes time
    sys.exit(75)
if deed == "wait":
    pathlib.Path("got").write_text("")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, saved)
    pathlib.Path("ready").write_text("")
    time.sleep(60)
if deed.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, deed))
sys.exit(int(deed))
"""


def start(folder: Path, plan: str, *arguments: str, **variables: str) -> subprocess.Popen:
    """Starts the program under launch/supervise.sh, in a session of its own."""
    (folder / "plan").write_text(plan)
    command = ["bash", str(ROOT / "launch" / "supervise.sh"), sys.executable, "-c", PROGRAM, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "MODEL_DIR"}
    environment |= {"RETRIES": "3", "RETRY_SECONDS": "0", **variables}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def ended(process: subprocess.Popen) -> tuple[int, list[str]]:
    """Returns its status and the lines that it printed."""
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors.splitlines()


def num_starts(folder: Path) -> int:
    return len((folder / "log").read_text().splitlines())


@pytest.mark.parametrize(
    ("plan", "status", "starts"),
    [
        ("0", 0, 1),
        ("1", 1, 1),  # a mistake of Limba's: the next start would make it, too
        ("2", 2, 1),
        ("3", 3, 1),
        ("74", 74, 1),
        ("130", 130, 1),
        ("75 75 0", 0, 3),
        ("75 2", 2, 2),
        ("SIGSEGV SIGABRT SIGKILL 0", 0, 4),
        ("SIGKILL", 137, 4),  # RETRIES new starts
        ("SIGTERM", 75, 1),  # somebody stopped the command itself
        ("SIGHUP", 75, 1),
    ],
)
def test_a_new_start_follows_what_it_can_mend(plan: str, status: int, starts: int, tmp_path: Path) -> None:
    code, lines = ended(start(tmp_path, plan, "train", "--gin.MODEL_DIR=runs/x"))
    assert (code, num_starts(tmp_path)) == (status, starts)
    assert all(line.startswith("launch/supervise.sh: the run ended with status ") for line in lines), lines
    again = [line for line in lines if "new start " in line and " of at most 3 in 0 s." in line]
    assert len(again) == starts - 1  # one line before each
    assert (tmp_path / "log").read_text() == "train --gin.MODEL_DIR=runs/x\n" * starts


def test_an_outage_of_a_bucket_may_pass(tmp_path: Path) -> None:
    assert ended(start(tmp_path, "74 0", "--gin.MODEL_DIR=gs://bucket/run"))[0] == 0
    assert num_starts(tmp_path) == 2
    assert ended(start(tmp_path, "0 0 74 0", MODEL_DIR="gs://bucket/run"))[0] == 0
    assert num_starts(tmp_path) == 4


@pytest.mark.parametrize(
    ("written", "arguments", "status", "starts"),
    [
        ("MODEL_DIR = 'gs://bucket/run'", (), 0, 2),
        ('MODEL_DIR="s3://bucket/run"  # ours', (), 0, 2),
        ("MODEL_DIR = 'runs/x'", (), 74, 1),
        ("# MODEL_DIR = 'gs://bucket/run'", (), 74, 1),
        ("MODEL_DIR = 'gs://bucket/run'", ("--gin.MODEL_DIR=runs/x",), 74, 1),  # what is given counts
    ],
)
@pytest.mark.parametrize("named", ["my.gin", "--gin_file=my.gin"])
def test_a_bucket_may_be_named_by_the_gin_file(
    named: str,
    written: str,
    arguments: tuple[str, ...],
    status: int,
    starts: int,
    tmp_path: Path,
) -> None:
    (tmp_path / "my.gin").write_text(f"TRAIN_STEPS = 5\n{written}\n")
    assert ended(start(tmp_path, "74 0", "train", named, *arguments))[0] == status
    assert num_starts(tmp_path) == starts


def test_the_number_of_new_starts_is_chosen(tmp_path: Path) -> None:
    assert ended(start(tmp_path, "75", RETRIES="0"))[0] == 75
    assert num_starts(tmp_path) == 1
    code, lines = ended(start(tmp_path, "75", RETRIES="many"))
    assert code == 2 and lines == ["launch/supervise.sh: RETRIES is many; give a whole number, 0 or more."]


@pytest.mark.parametrize(("retries", "status", "starts"), [("08", 0, 4), ("0", 75, 1), ("", 0, 4)])
def test_the_number_of_new_starts_is_decimal(retries: str, status: int, starts: int, tmp_path: Path) -> None:
    code, _ = ended(start(tmp_path, "75 75 75 0", "train", RETRIES=retries))
    assert (code, num_starts(tmp_path)) == (status, starts)


@pytest.mark.parametrize("retries", ["-1", "many", "1.5"])
def test_a_number_of_new_starts_that_is_none_is_named(retries: str, tmp_path: Path) -> None:
    code, lines = ended(start(tmp_path, "0", "train", RETRIES=retries))
    assert code == 2 and lines == [f"launch/supervise.sh: RETRIES is {retries}; give a whole number, 0 or more."]
    assert not (tmp_path / "log").exists()


def test_pauses_grow(tmp_path: Path) -> None:
    began = time.monotonic()
    code, lines = ended(start(tmp_path, "75", RETRIES="2", RETRY_SECONDS="1"))
    assert code == 75 and time.monotonic() - began >= 3
    assert [line.split(" in ")[1] for line in lines[:2]] == ["1 s.", "2 s."]


@pytest.mark.slow
def test_a_long_start_sets_the_number_back(tmp_path: Path) -> None:
    slow = PROGRAM.replace("deed = plan", "time.sleep(2.1)\ndeed = plan")
    command = ["bash", str(ROOT / "launch" / "supervise.sh"), sys.executable, "-c", slow]
    variables = {**os.environ, "RETRIES": "1", "RETRY_SECONDS": "0", "RESET_SECONDS": "1"}
    (tmp_path / "plan").write_text("75 75 75 0")
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and num_starts(tmp_path) == 4


@pytest.mark.parametrize("sent", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_is_forwarded_once_and_the_save_is_waited_for(sent: str, tmp_path: Path) -> None:
    process = start(tmp_path, "wait")
    wait_until((tmp_path / "ready").exists)
    if sent == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C: the terminal sends it to the whole group
    else:
        process.send_signal(getattr(signal, sent))
    assert ended(process) == (75, [])
    assert (tmp_path / "got").read_text() == f"{sent}\n"
    assert num_starts(tmp_path) == 1


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv of util-linux is not installed")
def test_the_command_saves_when_the_script_is_killed(tmp_path: Path) -> None:
    """The kernel tells the command, which has a process group of its own, that its parent is gone."""
    process = start(tmp_path, "wait")
    wait_until((tmp_path / "ready").exists)
    os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: (tmp_path / "got").read_text() == "SIGTERM\n")
    process.communicate(timeout=60)  # the command, which has these pipes too, has ended


def test_a_signal_ends_the_pause(tmp_path: Path) -> None:
    """It would take more than an hour, and `ended` waits for less."""
    process = start(tmp_path, "75", RETRY_SECONDS="5000")
    assert process.stderr is not None and "in 5000 s." in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 75 and num_starts(tmp_path) == 1


def test_a_stopped_command_is_not_a_crash(tmp_path: Path) -> None:
    process = start(tmp_path, "wait")
    wait_until((tmp_path / "ready").exists)
    (child,) = map(int, subprocess.check_output(["ps", "-o", "pid=", "--ppid", str(process.pid)], text=True).split())
    os.kill(child, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(child, signal.SIGCONT)
    time.sleep(0.5)
    assert process.poll() is None and num_starts(tmp_path) == 1
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 75 and num_starts(tmp_path) == 1


@pytest.mark.parametrize("script", ["pretrain.sh gin/demo.gin", "en_ms.sh", "ro_base.sh", "ja_lm.sh"])
def test_the_scripts_that_train_start_again(script: str, tmp_path: Path) -> None:
    """With the scripts' own text, in a folder whose setup does nothing and whose Python is the small program."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    (tmp_path / "launch" / "setup.sh").write_text("exit 0\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "program.py").write_text(PROGRAM)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/program.py" "$@"\n')
    python.chmod(0o755)
    (tmp_path / "plan").write_text("SIGSEGV 75 0")
    name, *arguments = script.split()
    variables = {
        **os.environ,
        "RETRY_SECONDS": "0",
        "ACCELERATOR": "cpu",
        "MODEL_DIR": str(tmp_path / "run"),
        "VOCABULARY": "v.model",
    }
    done = subprocess.run(
        ["bash", str(tmp_path / "launch" / name), *arguments], cwd=tmp_path, env=variables, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, *others = (tmp_path / "log").read_text().splitlines()
    assert first.startswith("-m limba train gin/") and others == [first] * 2
