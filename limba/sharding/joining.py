"""Joining the processes of one run: the roll call, then jax's service, and a line about it on each console."""

import math
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence

import jax

from limba.config import InputError, RunConfig, environment, reason_of
from limba.sharding import clusters, host_names, preemption
from limba.sharding.clusters import Membership
from limba.sharding.others import OTHERS
from limba.sharding.roll_call import wait_for_all

JOIN_SECONDS = 1_800.0  # workers of a large pod start minutes apart (marin-community/marin#7232: 300 s are too few)
LEAST_SECONDS = 60.0  # for jax's service, once all have come
MOST_SECONDS = 1e6


def join_hosts(run: RunConfig | None = None) -> None:
    """Joins the processes of a run. Call it before any array is made; a second call only tells what `run` is.

    `limba.sharding.clusters.find` finds them; a process that runs alone returns at once. COORDINATOR_BIND_ADDRESS is
    the address of the first process's own host at which it listens (default: all), JOIN_TIMEOUT_SECONDS how long they
    wait for each other (default 1,800); every 30 seconds a line names who is missing. Each process of several prints
    one line when it has joined: in a run to stdout, else to stderr.

    Raises InputError for values that cannot work, and RestartError if not all processes have come in time. When one of
    several processes is lost later, this one ends within `run.host_timeout_seconds`, by jax's own message.
    """
    if not jax.distributed.is_initialized():
        membership = clusters.find()
        if membership is None:
            return
        _join(run, membership)
    if run is not None:
        OTHERS.model_dir = run.model_dir
    if jax.process_count() > 1:
        _say_joined(is_run=run is not None)


_said: list[str] = []  # how this process was named when it had joined; empty until then


def _say_joined(is_run: bool) -> None:
    """Prints that this process has joined, once."""
    if _said:
        return
    kinds = Counter(device.device_kind for device in jax.local_devices())
    devices = ", ".join(f"{number} x {kind}" for kind, number in kinds.items())
    process = f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}"
    _said.append(process)
    print(f"{process}, {devices}", file=sys.stdout if is_run else sys.stderr, flush=True)


def say_ended() -> None:
    """Prints that this process of several has done its work; one that fails or is stopped ends with a sentence."""
    if _said:
        print(f"{_said[0]} has ended", flush=True)


def _join(run: RunConfig | None, membership: Membership) -> None:
    """Waits for all processes, and joins them by jax's service."""
    seconds = _join_seconds()
    bind = _bind_address(membership)
    devices = clusters.devices_of(membership, environment.num_gpus())
    address = ""  # at which other processes must reach this one
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        # Gloo gives up 30 s after the first process arrives at their first exchange.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = host_names.own_address(membership)
    began = time.monotonic()
    wait_for_all(membership, bind or f":{membership.port}", seconds, address)
    left = seconds - (time.monotonic() - began)
    with preemption.joining():
        _initialize(run, membership, bind, devices, max(left, LEAST_SECONDS))


def _join_seconds() -> float:
    text = os.environ.get("JOIN_TIMEOUT_SECONDS", str(JOIN_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < MOST_SECONDS:
        raise InputError(f"JOIN_TIMEOUT_SECONDS is {text}; give a number of seconds above 0.")
    return seconds


def _bind_address(membership: Membership) -> str | None:
    """Returns HOST:PORT at which the first process is to listen; None for all addresses of its host."""
    address = os.environ.get("COORDINATOR_BIND_ADDRESS")
    if not address:
        return None
    has_port = re.fullmatch(r".*[^:\]]:\d+|\[.*\]:\d+", address)
    return address if has_port else f"{address}:{membership.port}"


def _initialize(
    run: RunConfig | None, membership: Membership, bind: str | None, devices: Sequence[int] | None, seconds: float
) -> None:
    """Starts jax's service, in which the processes meet, and listens to what the others say."""
    try:
        jax.distributed.initialize(
            coordinator_address=membership.address,
            num_processes=membership.count,
            process_id=membership.index,
            coordinator_bind_address=bind if membership.index == 0 else None,
            cluster_detection_method="deactivate",  # it would take other devices than those found here
            initialization_timeout=math.ceil(seconds),
            heartbeat_timeout_seconds=math.ceil((run or RunConfig).host_timeout_seconds),
            local_device_ids=devices,
        )
    except ValueError as error:
        raise InputError(
            f"The processes of this run cannot join ({reason_of(error)}); start the command on every worker, or set"
            " COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID."
        ) from error
    if membership.count > 1:
        OTHERS.watch()
