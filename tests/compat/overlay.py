"""Makes .venv-compat: transformers 4.57.6 and two packages it needs, to precede .venv's on the path."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINS = Path(__file__).parent / "requirements.txt"
PLACE = ROOT / ".venv-compat"


def made() -> Path:
    """Returns the folder, which is made if it is absent or of other pins; RuntimeError with what pip said."""
    record = PLACE / "made-from.txt"
    with (ROOT / ".venv-compat.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if record.is_file() and record.read_bytes() == PINS.read_bytes():
            return PLACE
        shutil.rmtree(PLACE, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        ended = subprocess.run(
            [*command, f"--target={PLACE}", f"--requirement={PINS}"], capture_output=True, text=True, check=False
        )
        if ended.returncode:
            shutil.rmtree(PLACE, ignore_errors=True)
            said = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
            raise RuntimeError(
                f"transformers 4.57.6 of {PINS.relative_to(ROOT)} could not be installed; pip said: {said}"
            )
        shutil.copyfile(PINS, record)
    return PLACE


def environment() -> dict[str, str]:
    """Returns the variables of a process that imports transformers 4.57.6, and all else from .venv."""
    return {
        **os.environ,
        "PYTHONPATH": f"{made()}{os.pathsep}{ROOT}",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "USE_TF": "0",
    }


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(subprocess.run([sys.executable, *arguments], env=environment(), check=False).returncode)
