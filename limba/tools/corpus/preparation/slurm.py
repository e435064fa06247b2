"""A preparation as three job arrays of Slurm, by datatrove's executor: read, write, finish, each after the one before.

The nodes must see the output folder and the scratch folder, and the environment that this process runs in.
"""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from limba.api import held
from limba.config import InputError
from limba.tools.corpus.preparation import queued
from limba.tools.corpus.preparation.prepare import Preparation, Prepared, Recipe, Settings
from limba.tools.corpus.preparation.workers import Job

MOST_TASKS = 1_000  # of one job array, where MaxArraySize is Slurm's default
DAYS = re.compile(r"(\d+-)?\d+(:\d+){0,2}")  # minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS


class Dealt:
    """A step of datatrove's pipelines: all jobs. Task number R of N does the jobs R, R + N, R + 2N, …"""

    def __init__(self, what: str, jobs: Sequence[Job], preload: Callable[[], None] | None):
        self.what, self.count, self._preload = what, len(jobs), preload
        self._jobs = pickle.dumps(jobs)  # unpacked after `preload`, which decides how heavy libraries are imported

    def __repr__(self) -> str:
        return f"limba: {self.count} jobs of {self.what}"

    def __call__(self, data: object, rank: int, world_size: int) -> None:
        if self._preload is not None:
            self._preload()
        for job in pickle.loads(self._jobs)[rank::world_size]:
            job()


def check_tasks(tasks: int) -> None:
    """Raises InputError for a number of tasks that cannot work, and if datatrove is not installed."""
    if tasks < 1:
        raise InputError(f"tasks is {tasks}; give 1 or more.")
    if find_spec("datatrove") is None:
        raise InputError(
            "datatrove, whose executor submits the tasks, is not installed; install it beside Limba"
            ' (pip install "datatrove==0.10.1", or the extra limba[prepare]).'
        )


@dataclass(frozen=True)
class Cluster:
    """Where the tasks run: the partition, the time limit of one task, and other options of sbatch."""

    partition: str
    time: str = "24:00:00"
    options: Mapping[str, str] = field(default_factory=dict)  # without dashes; the value of a switch is ""

    def __post_init__(self) -> None:
        if not self.partition:
            raise InputError("No partition of Slurm is named; give one of those that sinfo lists.")
        if not DAYS.fullmatch(self.time):
            raise InputError(f"The time limit is {self.time}; write minutes, HH:MM:SS or D-HH:MM:SS.")


@dataclass(frozen=True)
class Submitted:
    """The numbers of the jobs that read, write and finish, without those that had nothing to do; and their logs."""

    jobs: Mapping[str, str]
    logs: Path


def submit(
    recipe: Recipe,
    settings: Settings,
    output: str,
    cluster: Cluster,
    *,
    tasks: int,
    at_once: int | None = None,
    scratch: str | None = None,
    preload: Callable[[], None] | None = None,
    then: Callable[[Prepared], None] | None = None,
    another: str = "another output folder",
) -> Prepared | Submitted:
    """Submits what is missing to Slurm and returns at once; the summary if the folder is finished.

    `tasks` is the number of tasks, `at_once` how many of them may run together (None: as many as Slurm starts). The
    files are those of one machine. `then(summary)` is called in the last job. A second call, when the jobs have ended,
    submits what is missing. Raises InputError where Slurm is not found or refuses, where jobs of an earlier call are
    queued or running, and as `prepare`.
    """
    check_tasks(tasks)
    if tasks > MOST_TASKS:
        raise InputError(f"tasks is {tasks:,}; a job array of Slurm takes {MOST_TASKS:,} at most.")
    if shutil.which("sbatch") is None:
        raise InputError("sbatch is not here; run this on a login node of your cluster.")
    if "SLURM_ARRAY_TASK_ID" in os.environ:
        raise InputError("This is a task of a job array of Slurm, which cannot submit; run this on a login node.")
    if not scratch and "://" in output:
        raise InputError(f"{output} is an address: give a scratch folder too, on a disk that all nodes see.")
    work = Preparation(recipe, settings, output, scratch, another)
    if work.finished:
        return work.finished
    logs = Path(os.path.abspath(f"{work.scratch}.slurm" if scratch else f"{output.rstrip('/')}.slurm"))
    with held(output, "prepares"):
        work.begin()
        logs.mkdir(exist_ok=True)
        logs = logs / f"{sum(1 for _ in logs.iterdir()) + 1}"  # of each call; datatrove keeps its notes there
        finish = partial(_finish, recipe, settings, output, scratch, then)
        rounds: dict[str, Sequence[Job]] = {"read": work.reading(), "write": work.writing(), "finish": [finish]}
        executors = _executors(rounds, cluster, tasks, at_once, logs, preload)
        try:
            executors["finish"].run()  # submits those that it depends on first
        except subprocess.CalledProcessError as error:
            before = " ".join(_numbers(executors).values()) or "none"
            raise InputError(
                "sbatch refused the job (its message is above); give the partition, the time and the options that your"
                f" cluster wants. Jobs that were submitted before it: {before}."
            ) from error
        finally:
            queued.remember(work.scratch, list(_numbers(executors).values()))
    return Submitted(_numbers(executors), logs)


def _executors(
    rounds: Mapping[str, Sequence[Job]],
    cluster: Cluster,
    tasks: int,
    at_once: int | None,
    logs: Path,
    preload: Callable[[], None] | None,
) -> dict[str, Any]:
    """Returns round -> datatrove's executor of its jobs, which depends on the one before; the last is "finish"."""
    from datatrove.executor import SlurmPipelineExecutor
    from loguru import logger

    logger.disable("datatrove")  # in this process: it writes its steps to the console
    executors: dict[str, Any] = {}
    before = None
    for what, jobs in rounds.items():
        if not jobs:
            continue
        number = min(tasks, len(jobs))
        folder = logs / what
        folder.mkdir(parents=True, exist_ok=True)
        before = executors[what] = SlurmPipelineExecutor(
            [Dealt(what, jobs, preload)],
            tasks=number,
            time=cluster.time,
            partition=cluster.partition,
            workers=-1 if at_once is None else at_once,
            mem_per_cpu_gb=4,
            job_name=f"limba-{what}",
            qos="",
            env_command=_environment(),
            # What cannot start any more, since a task before it failed, does not stay in the queue.
            sbatch_args={"kill-on-invalid-dep": "yes", **cluster.options},
            logging_dir=str(folder),
            depends=before,
            requeue_signals=None,
            job_id_retriever=_number_of_job,
        )
    return executors


def _numbers(executors: Mapping[str, Any]) -> dict[str, str]:
    """Returns round -> number of its job, of those that are submitted."""
    return {what: str(each.job_id) for what, each in executors.items() if each.job_id}


def _number_of_job(printed: str) -> str:
    """Returns the number in what sbatch prints.

    >>> _number_of_job("Submitted batch job 4242 on cluster main")
    '4242'
    """
    found = re.search(r"\bjob (\d+)", printed)
    return found[1] if found else printed.split()[-1]


def _environment() -> str:
    """Returns the command with which a job finds this Python, its programs and the modules of this folder."""
    programs, here = shlex.quote(os.path.dirname(sys.executable)), shlex.quote(os.getcwd())
    return f"cd {here} && export PATH={programs}:$PATH PYTHONPATH=$PWD:${{PYTHONPATH:-}}"


def _finish(
    recipe: Recipe,
    settings: Settings,
    output: str,
    scratch: str | None,
    then: Callable[[Prepared], None] | None,
) -> None:
    """Ends the preparation, in the last job."""
    work = Preparation(recipe, settings, output, scratch)
    found = work.finished or work.finish()
    if then is not None:
        then(found)
