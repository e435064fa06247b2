"""A preparation as three job arrays of Slurm: read, write, finish, each after the one before.

Each task is the command itself, with its round in ROUND, and does every N-th job of that. The nodes must see the output
folder and the scratch folder, and the environment that this process runs in.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from limba.api import held
from limba.config import InputError
from limba.tools.corpus.preparation.prepare import JOBS_FILE, Preparation, Prepared

MOST_TASKS = 1_000  # of one job array, where MaxArraySize is Slurm's default
TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}")  # minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS
ROUND = "LIMBA_PREPARE"  # the variable of a task: read, write or finish


def done_part(work: Preparation) -> Prepared | None:
    """Does the part of this task of a job array; the last one returns the summary."""
    if os.environ[ROUND] == "finish":
        return work.finish()
    rank, tasks = (int(os.environ[f"SLURM_ARRAY_TASK_{name}"]) for name in ("ID", "COUNT"))
    for job in work.reading(rank, tasks) if os.environ[ROUND] == "read" else work.writing(rank, tasks):
        job()
    return None


def submit(
    work: Preparation, argv: Sequence[str], tasks: int, at_once: int | None, options: Mapping[str, str]
) -> tuple[dict[str, str], Path]:
    """Submits the command, as job arrays of `tasks` tasks, for what is missing; returns each round's job, and the logs.

    `at_once` is how many may run together (None: as many as Slurm starts); `options` are sbatch's without dashes, ""
    for a switch. When the jobs have ended, a second call submits what is missing. Raises InputError where Slurm is not
    found or refuses, and where jobs of an earlier call are queued or running.
    """
    if not 0 < tasks <= MOST_TASKS:
        raise InputError(f"tasks is {tasks:,}; give 1 to {MOST_TASKS:,}, the most that a job array of Slurm takes.")
    if not TIME.fullmatch(options["time"]):
        raise InputError(f"The time limit is {options['time']}; write minutes, HH:MM:SS or D-HH:MM:SS.")
    if shutil.which("sbatch") is None:
        raise InputError("sbatch is not here; run this on a login node of your cluster.")
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        raise InputError("This is a task of a job array of Slurm, which cannot submit; run this on a login node.")
    if "://" in work.output and not work.scratch_given:
        raise InputError(f"{work.output} is an address: give a scratch folder too, on a disk that all nodes see.")
    logs = Path(os.path.abspath(f"{work.scratch}.slurm" if work.scratch_given else f"{work.output.rstrip('/')}.slurm"))
    with held(work.output, "prepares"):
        work.begin()
        logs = logs / f"{sum(1 for _ in logs.iterdir()) + 1 if logs.exists() else 1}"  # of each call
        logs.mkdir(parents=True)
        jobs: dict[str, str] = {}
        try:
            for what, count in {"read": len(work.reading()), "write": len(work.writing()), "finish": 1}.items():
                if count:
                    array = f"0-{min(tasks, count) - 1}" + (f"%{at_once}" if at_once else "")
                    given = {"job-name": f"limba-{what}", "array": array, "output": f"{logs}/{what}-%a.out"}
                    after = {"dependency": f"afterok:{list(jobs.values())[-1]}"} if jobs else {}
                    # What cannot start any more, since a task before it failed, does not stay in the queue.
                    given |= {"mem-per-cpu": "4G", "kill-on-invalid-dep": "yes", **after, **options}
                    jobs[what] = _submitted(given, _command(what, argv))
        except subprocess.CalledProcessError as error:
            raise InputError(
                "sbatch refused the job (its message is above); give the partition, the time and the options that your"
                f" cluster wants. Jobs that were submitted before it: {' '.join(jobs.values()) or 'none'}."
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):  # they have ended already, and with them the scratch folder
                (work.scratch / JOBS_FILE).write_text(json.dumps(list(jobs.values())))
    return jobs, logs


def _submitted(options: Mapping[str, str], command: str) -> str:
    """Returns the number of the job that runs a command."""
    flags = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    words = ["sbatch", "--parsable", *flags, f"--wrap={command}"]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip().partition(";")[0]


def _command(what: str, argv: Sequence[str]) -> str:
    """Returns `limba prepare` for a task: with this Python, its programs and the modules of this folder."""
    programs, here = shlex.quote(os.path.dirname(sys.executable)), shlex.quote(os.getcwd())
    variables = f"PATH={programs}:$PATH PYTHONPATH=$PWD:${{PYTHONPATH:-}} {ROUND}={what}"
    return f"cd {here} && export {variables} && exec {shlex.join([sys.executable, '-m', 'limba', 'prepare', *argv])}"
