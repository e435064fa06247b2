"""The processes of one run: joining them, and collective decisions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from limba.config import InputError
from limba.config.environment import is_tpu_vm
from limba.config.errors import reason_of


def join_hosts() -> None:
    """Joins the processes of a run. Call it before any array is made; a second call does nothing.

    COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID configure it; without them a TPU VM uses its metadata, and other
    machines run one process. Raises InputError if only some of the three are set, or if joining fails.
    """
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
        raise InputError(
            f"The processes of this run cannot join ({reason_of(error)}); start the command on every worker, or set"
            " COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID."
        ) from error


def gather(numbers: np.ndarray) -> np.ndarray:
    """Returns the arrays [...] of all processes as [processes, ...]; all must call it, with equal shapes.

    >>> gather(np.array([3, 4])).tolist()
    [[3, 4]]
    """
    return numbers[None] if jax.process_count() == 1 else np.asarray(multihost_utils.process_allgather(numbers))


def any_process(flag: bool) -> bool:
    """Returns whether the flag is true in any process; all must call it."""
    return bool(gather(np.array(flag)).any())


def gather_bytes(parts: Mapping[int, bytes]) -> dict[int, bytes]:
    """Merges the numbered bytes of all processes; all must call it, each with other numbers.

    >>> gather_bytes({0: b"position"})
    {0: b'position'}
    """
    if jax.process_count() == 1:
        return dict(parts)
    count, size = gather(np.array([len(parts), max(map(len, parts.values()))])).max(axis=0)
    numbers = np.full((count, 2), -1, np.int64)  # number, length
    content = np.zeros((count, size), np.uint8)
    for row, (number, part) in enumerate(sorted(parts.items())):
        numbers[row] = number, len(part)
        content[row, : len(part)] = np.frombuffer(part, np.uint8)
    numbers, content = gather(numbers).reshape(-1, 2), gather(content).reshape(-1, size)
    return {int(number): content[row, :length].tobytes() for row, (number, length) in enumerate(numbers) if number >= 0}


def write_once(write: Callable[[], object]) -> None:
    """Lets the first process write while the others wait; all must call it."""
    if jax.process_index() == 0:
        write()
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("written")
