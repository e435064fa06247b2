"""How a command ends: its exit status, one line on stderr, and never a traceback for what is not a fault of Limba's."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from limba.cli import program
from limba.config import InputError, NonFiniteError, RestartError, StorageError, UntrustedModuleError

ROOT = Path(__file__).resolve().parents[2]


def system_error(number: int, *names: str) -> OSError:
    return OSError(number, os.strerror(number), *names)


ENDS = [
    (InputError("in.txt\nis bad."), 2, "in.txt is bad."),
    (NonFiniteError("The loss is not finite."), 3, "The loss is not finite."),
    (StorageError("The disk is full."), 74, "The disk is full."),
    (RestartError("Saved step 3."), 75, "Saved step 3."),
    (KeyboardInterrupt(), 130, "Ctrl-C ended the program."),
    (UntrustedModuleError("run names the module 'a'", ["a"]), 2, "if you trust who wrote it: limba x 'a b' --import=a"),
    (system_error(errno.ENOSPC), 74, "A file cannot be written (No space left on device); make room"),
    (system_error(errno.EROFS, "/run/loss.png"), 74, "/run/loss.png cannot be written (Read-only file system)"),
    (system_error(errno.EACCES, "/run/a"), 74, "/run/a cannot be written (Permission denied)"),
    (system_error(errno.ENOTDIR, "/run/a"), 2, "/run/a cannot be used (Not a directory); check the path."),
    (MemoryError(), 2, "Out of memory (MemoryError); give a smaller batch or model."),
    (RuntimeError("can't start new thread"), 2, "Out of memory (can't start new thread)"),
    (system_error(errno.ENOMEM, "/run/a"), 2, "Out of memory (Cannot allocate memory)"),
    (system_error(errno.ENAMETOOLONG, "a" * 9), 2, "aaaaaaaaa cannot be used (File name too long)"),
]


@pytest.mark.parametrize(("error", "code", "says"), ENDS, ids=lambda value: str(value)[:30])
def test_an_end_is_one_line(error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    def ends(argv: Sequence[str]) -> None:
        raise error

    assert program.exit_code(ends, ["x", "a b"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_what_nobody_knows_keeps_its_traceback() -> None:
    def ends(argv: Sequence[str]) -> None:
        raise KeyError("a fault of Limba's own")

    with pytest.raises(KeyError):
        program.exit_code(ends, [])


def started(*argv: str, **options: Any) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "limba", *argv], cwd=ROOT, stderr=subprocess.PIPE, text=True, **options
    )


def test_a_reader_that_closes_the_pipe_is_no_fault() -> None:
    process = started("--help", stdout=subprocess.PIPE)
    process.stdout.close()  # as `| head -0`
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and said == ""


def test_a_full_disk_is_said() -> None:
    with open("/dev/full", "w") as full:
        process = started("--help", stdout=full)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 74
    assert said.splitlines() == [
        "A file cannot be written (No space left on device); make room, or name a directory that can be written."
    ]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("command", "status"), [("--help", 0), ("train nothing-here.gin", 2)])
def test_streams_that_are_closed_are_no_fault(command: str, status: int, closed: str) -> None:
    """As some daemons start their programs."""
    done = subprocess.run(
        ["bash", "-c", f"exec {sys.executable} -m limba {command} {closed}"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == status
    assert len(done.stderr.splitlines()) == (status == 2 and "2>&-" not in closed)


@pytest.mark.night
def test_a_run_without_streams_trains_and_saves(tmp_path: Path, corpus: Path) -> None:
    flags = f"CORPUS={corpus} MODEL_DIR={tmp_path}/run VOCABULARY=byte VOCAB_SIZE=384 BATCH_SIZE=8 TRAIN_STEPS=1"
    gin = " ".join(f"--gin.{value}" for value in [*flags.split(), "config.ModelConfig.emb_dim=16"])
    command = f"exec {sys.executable} -m limba train gin/demo.gin {gin} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], cwd=ROOT, timeout=600).returncode == 0
    assert (tmp_path / "run" / "checkpoints" / "1" / "manifest.json").is_file()


def test_ctrl_c_of_a_command_that_waits_is_one_line() -> None:
    code = (
        "import sys, time\nfrom limba.cli import program\n"
        "sys.exit(program.exit_code(lambda argv: (print('waits', flush=True), time.sleep(600)), ['generate']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=200)
    assert process.returncode == program.INTERRUPTED
    assert said.splitlines() == ["Ctrl-C ended the program."]


def test_a_thread_that_does_not_end_is_not_waited_for() -> None:
    code = (
        "import sys, threading, time; from limba.cli import program\n"
        "program.EXIT_SECONDS = 0.5\n"
        "def run(_): threading.Thread(target=time.sleep, args=[1000]).start(); return 3\n"
        "sys.exit(program.exit_code(run, []))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (
        3,
        "The program is done; one of its threads did not end within 0 s.\n",
    )
