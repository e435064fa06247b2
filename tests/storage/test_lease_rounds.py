"""One run a directory, in many rounds of real processes: starts at once, kills, holders that stand still and go on."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.lease_rounds import rounds

ROOT = Path(__file__).parents[2]
PROMISES = (
    "of two starts at once one holds",
    "after SIGKILL the next start holds",
    "a stopped holder of this machine is not replaced",
    "of three one takes over from a silent holder elsewhere",
    "who stood still past its lease commits nothing",
    "who took over commits",
)
AS_NFS = ["-e", "trace=renameat2", "-e", "inject=renameat2:error=EINVAL"]  # no names are swapped there


@pytest.mark.slow
@pytest.mark.parametrize("swaps", [True, False], ids=["this-disk", "as-nfs"])
def test_one_run_a_directory_in_ten_rounds(tmp_path: Path, swaps: bool) -> None:
    assert rounds(tmp_path, 10, 2.0, swaps) == dict.fromkeys(PROMISES, 10)


@pytest.mark.night
@pytest.mark.parametrize("swaps", [True, False], ids=["this-disk", "as-nfs"])
def test_one_run_a_directory_in_a_hundred_rounds(tmp_path: Path, swaps: bool) -> None:
    command = [sys.executable, "-m", "tests.storage.lease_rounds", str(tmp_path), "100", "3.0"]
    if not swaps and shutil.which("strace"):
        strace = ["strace", "-f", "--seccomp-bpf", "-o", str(tmp_path / "calls"), *AS_NFS]
        program = subprocess.run([*strace, *command], cwd=ROOT, capture_output=True, text=True, timeout=1800)
        assert program.returncode == 0, program.stderr
        assert "EINVAL (Invalid argument) (INJECTED)" in (tmp_path / "calls").read_text()
        kept = json.loads(program.stdout)
    else:
        kept = rounds(tmp_path, 100, 3.0, swaps)
    assert kept == dict.fromkeys(PROMISES, 100)
