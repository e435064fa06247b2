"""The processes of one run: joining them, and collective decisions."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from limba.config import InputError, RestartError, RunConfig, StorageError, environment
from limba.config.errors import reason_of
from limba.sharding.liveness import SHUTDOWN_SECONDS, answers, losses_told, others
from limba.sharding.watchdog import log_folder

PORT_SECONDS = 5.0  # for a run that is just ending to free the port

T = TypeVar("T")
SECONDS_APART = 1.0  # of processes at a collective: some backends give up after 30


def join_hosts(run: RunConfig | None = None) -> None:
    """Joins the processes of a run. Call it before any array is made; a second call only tells what `run` is.

    COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID configure it; without them a TPU VM uses its metadata, and other
    machines run one process. COORDINATOR_BIND_ADDRESS is the address of the first process's own host at which it
    listens (default: all), JOIN_TIMEOUT_SECONDS how long they wait for each other (default 300).

    Raises InputError for values that cannot work, and RestartError if not all processes have come in time. Of several
    processes, one that is lost later ends this one with a sentence (`limba.sharding.liveness`), within
    `run.host_timeout_seconds`; what libraries print goes to a file in the run's directory.
    """
    if not jax.distributed.is_initialized():
        _join_if_several(run)
    if run is not None and jax.distributed.is_initialized() and jax.process_count() > 1:
        them = others()
        them.model_dir = run.model_dir
        them.native_output = os.path.join(log_folder(run.model_dir), f"process_{jax.process_index()}.stderr")
        environment.divert_native_output(them.native_output)


def _join_if_several(run: RunConfig | None) -> None:
    names = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
    given = [name for name in names if os.environ.get(name)]
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if not given:
        if environment.is_tpu_vm() and platforms.split(",")[0] in ("", "tpu"):
            _join(run, _join_seconds())
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
    seconds, bind = _join_seconds(), os.environ.get("COORDINATOR_BIND_ADDRESS")
    if platforms == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if index == "0":
        port = int(address.rpartition(":")[2])
        if bind and not re.fullmatch(r".*[^:\]]:\d+|\[.*\]:\d+", bind):
            bind = f"{bind}:{port}"
        _check_port(bind or f":{port}", address)
    else:
        seconds = _wait_for_first(address, seconds)
    arguments = {"coordinator_address": address, "num_processes": int(number), "process_id": int(index)}
    _join(run, seconds, **arguments, coordinator_bind_address=bind if index == "0" else None)


def _join_seconds() -> float:
    given = os.environ.get("JOIN_TIMEOUT_SECONDS", "300")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise InputError(f"JOIN_TIMEOUT_SECONDS is {given}; give a number of seconds above 0.")
    return seconds


def _check_port(bind: str, address: str) -> None:
    """Raises InputError if the first process cannot listen there; jax would end with a fault of memory access."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    began = time.monotonic()
    while True:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("" if host == "::" else host, int(port)))
                return
            except (OSError, OverflowError) as error:
                in_use = getattr(error, "errno", None) == errno.EADDRINUSE
                if in_use and time.monotonic() < began + PORT_SECONDS:
                    time.sleep(0.2)
                    continue
                raise InputError(
                    f"The first process cannot listen at {bind} ({reason_of(error)}); end the program that does, or"
                    f" change the port in COORDINATOR_ADDRESS ({address}) of all processes, or"
                    " COORDINATOR_BIND_ADDRESS."
                ) from error


def _wait_for_first(address: str, seconds: float) -> float:
    """Waits until the first process listens; returns the seconds that are left."""
    began = time.monotonic()
    while not answers(address, 2.0):
        if time.monotonic() > began + seconds:
            raise RestartError(
                f"The first process did not answer at {address} (COORDINATOR_ADDRESS) for {seconds:.0f} s; start it,"
                " and check the address and the firewall."
            )
        time.sleep(min(0.5, seconds / 4))
    return max(seconds - (time.monotonic() - began), 5.0)


def _join(run: RunConfig | None, seconds: float, **arguments: Any) -> None:
    timeout = math.ceil(run.host_timeout_seconds if run else RunConfig.host_timeout_seconds)
    try:
        with losses_told():
            jax.distributed.initialize(
                **arguments,
                initialization_timeout=math.ceil(seconds),
                heartbeat_timeout_seconds=timeout,
                shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            )
    except ValueError as error:
        raise InputError(
            f"The processes of this run cannot join ({reason_of(error)}); start the command on every worker, or set"
            " COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID."
        ) from error
    except RuntimeError as error:
        _forget_client()
        number, index = arguments.get("num_processes"), arguments.get("process_id")
        which = "Another process of this run" if number != 2 else f"Process {1 - (index or 0)} of 2"
        raise RestartError(
            f"{which} has not joined within {seconds:.0f} s (JOIN_TIMEOUT_SECONDS); start the command on every worker"
            f", each with its own PROCESS_ID{f' from 0 to {number - 1}' if number else ''}."
        ) from error
    others().watch(distributed.global_state.coordinator_address or "", float(timeout))


def _forget_client() -> None:
    """Ends the client that could not join; jax would do so at the end of the process, with a traceback."""
    environment.divert_native_output(os.devnull)
    state = distributed.global_state
    if state.client is not None:
        with contextlib.suppress(RuntimeError):
            state.client.shutdown()
    state.client = state.service = None


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


@contextlib.contextmanager
def entered_by_first(context: AbstractContextManager[T]) -> Iterator[T | None]:
    """Enters a context in the first process only, and yields its value there; None in the others. All must call it.

    Entering may take long. If it raises an InputError or StorageError, all processes raise one of that class with its
    sentence.
    """
    if jax.process_count() == 1:
        with context as value:
            yield value
        return
    with contextlib.ExitStack() as stack:
        entered: list[tuple[T | None, Exception | None]] = []

        def enter() -> None:
            try:
                entered.append((stack.enter_context(context), None))
            except Exception as error:  # noqa: BLE001  raised below, in all processes
                entered.append((None, error))

        is_first = jax.process_index() == 0
        thread = threading.Thread(target=enter, daemon=True)
        if is_first:
            thread.start()
            thread.join(SECONDS_APART)
        while any_process(is_first and not entered):
            if is_first:
                thread.join(SECONDS_APART)
        value, error = entered[0] if is_first else (None, None)
        said = f"{type(error).__name__}:{error}" if error else ":"
        kind, _, sentence = gather_bytes({jax.process_index(): said.encode()})[0].decode().partition(":")
        if error or sentence:
            kinds = {each.__name__: each for each in (InputError, StorageError)}
            raise error or kinds.get(kind, RuntimeError)(sentence)
        yield value
