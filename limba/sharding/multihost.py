"""The processes of one run: joining them, and what they decide together."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import jax

from limba.config import InputError
from limba.config.environment import is_tpu_vm


def join_hosts() -> None:
    """Joins the processes of a run: by COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID where they are
    set, by the TPU's own metadata on a TPU VM, else this process is alone. Call it before any array is made; again
    it does nothing."""
    if jax.distributed.is_initialized():
        return
    names = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
    given = [name for name in names if os.environ.get(name)]
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if not given:
        if is_tpu_vm() and platforms.split(",")[0] in ("", "tpu"):
            _join(jax.distributed.initialize)
        return
    if len(given) < len(names):
        missing = ", ".join(name for name in names if name not in given)
        raise InputError(f"{', '.join(given)} is set and {missing} is not; set all three, or none.")
    address, number, index = (os.environ[name] for name in names)
    if not re.fullmatch(r".+:\d+", address):
        raise InputError(f"COORDINATOR_ADDRESS is {address}; give HOST:PORT of the first process.")
    if not (number.isdigit() and index.isdigit() and int(index) < int(number)):
        raise InputError(
            f"PROCESS_ID is {index} and NUM_PROCESSES {number}; give whole numbers, the id below the number."
        )
    if platforms == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _join(lambda: jax.distributed.initialize(address, int(number), int(index)))


def _join(initialize: Callable[[], None]) -> None:
    try:
        initialize()
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"The processes of this run cannot join ({reason}); start the command on every worker, or set"
            " COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID."
        ) from error
