"""Jobs of Slurm that prepare a folder: their numbers are kept in its scratch folder until it is finished."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from limba.config import InputError

FILE = "slurm.json"
ANSWER_SECONDS = 60  # for squeue


def remember(scratch: Path, jobs: Sequence[str]) -> None:
    """Writes the numbers of the jobs; nothing if they have ended already, and with them the scratch folder."""
    with contextlib.suppress(FileNotFoundError):
        (scratch / FILE).write_text(json.dumps(list(jobs)))


def check(scratch: Path) -> None:
    """Raises InputError if one of the jobs is still queued or running, as far as squeue tells."""
    try:
        jobs = json.loads((scratch / FILE).read_text())
    except (FileNotFoundError, ValueError):
        return
    if living := sorted({job for job in jobs if _is_queued(job)}):
        raise InputError(
            f"Jobs of Slurm that prepare this folder are queued or running ({', '.join(living)}); wait for their end,"
            f" or scancel {' '.join(living)}, and then start again: finished parts are not repeated."
        )


def _is_queued(job: str) -> bool:
    command = ["squeue", "-h", "-j", job, "-o", "%A"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return not found.returncode and bool(found.stdout.strip())  # it fails for a job that it has forgotten
