"""What the figures of some steps advise: more processes that read text, or a checkpoint before the job ends."""

import os
import time
from collections.abc import Mapping

from limba.config import RunConfig, environment
from limba.training.metrics.records import duration


def advice_on(config: RunConfig, num_steps: int, step: int, figures: Mapping[str, float]) -> str:
    """Returns what the figures of `num_steps` steps up to `step` advise; "" if nothing."""
    on_data = waiting_advice(num_steps, figures["data_wait"], config.data.num_reader_processes)
    on_job = job_advice(config, num_steps, step, figures["seconds_per_step"])
    return " ".join(advice for advice in (on_data, on_job) if advice)


def waiting_advice(num_steps: int, data_wait: float, num_processes: int) -> str:
    """Returns advice if the devices waited for data in 10 or more steps and the host has free cores; else "".

    >>> waiting_advice(9, 0.5, 1) or waiting_advice(100, 0.09, 1) or waiting_advice(100, 0.5, 1_000)
    ''
    """
    num_cores = environment.num_cores()
    if num_steps < 10 or data_wait < 0.1 or num_processes >= num_cores:
        return ""
    return (
        f"The devices wait for data {data_wait:.0%} of the time; raise DataConfig.num_reader_processes, which is"
        f" {num_processes} on this host of {num_cores} cores."
    )


def job_advice(config: RunConfig, num_steps: int, step: int, seconds_per_step: float) -> str:
    """Returns advice if a job of Slurm ends before the next checkpoint of a run is due; else "".

    The job's variables say when it ends. A job that is told to end saves; one whose node fails does not.
    """
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    every = config.checkpoint.every_steps
    if num_steps < 10 or not end.isdigit() or isinstance(every, str):  # an epoch, whose steps are not known here
        return ""
    steps = every - step % every
    if config.train_steps is not None:
        steps = min(steps, config.train_steps - step)
    left = int(end) - time.time()
    due = steps * seconds_per_step
    if due <= left:
        return ""
    return (
        f"The job ends in {duration(max(left, 0))}, and the next checkpoint is due in {duration(due)}"
        f" (CheckpointConfig.every_steps is {every:,}): a node that fails would lose all steps until then; save more"
        " often, or ask for more time."
    )
