"""The launchers that start a command several times, and what they tell each process. Imports no jax."""

from __future__ import annotations

import os
from typing import NamedTuple


class Announced(NamedTuple):
    """The variables with which a launcher says how many processes it has started."""

    launcher: str
    count: str
    index: str
    local_index: str
    local_count: str


# In this order, as jax: mpirun inside a job of Slurm has the variables of both.
LAUNCHERS = (
    Announced(
        "Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Announced("Slurm", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", ""),
    Announced("MPICH or Intel MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Announced("torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)  # fmt: skip


def announced() -> Announced | None:
    """Returns the launcher that announces several processes."""
    for each in LAUNCHERS:
        count = os.environ.get(each.count, "")
        is_complete = each.index in os.environ or each.launcher == "Slurm"
        if count.isdigit() and int(count) > 1 and is_complete:
            return each
    return None


def process_number() -> str:
    """Returns the number of this process as the environment has it, "0" where it runs alone.

    PROCESS_ID counts first, LIMBA_ALONE=1 before it, then the launchers. It is for commands that one process does.
    """
    if os.environ.get("LIMBA_ALONE") == "1":
        return "0"
    launcher = announced()
    return os.environ.get("PROCESS_ID") or (os.environ.get(launcher.index) if launcher else None) or "0"
