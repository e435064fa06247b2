"""Joining the processes of one run: finding each other, jax's service, and a line about it on each console."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import socket
import sys
import time
from collections import Counter
from typing import Any

import jax
from jax._src import distributed

from limba.config import InputError, RestartError, RunConfig, environment
from limba.config.errors import reason_of
from limba.sharding import clusters, roll_call
from limba.sharding.compiling import keep_whole_entries, share_cache
from limba.sharding.liveness import SHUTDOWN_SECONDS, losses_told, others
from limba.sharding.watchdog import log_folder
from limba.storage.files import open_no_link

JOIN_SECONDS = 1_800.0  # workers of a large pod start minutes apart (marin-community/marin#7232: 300 s are too few)
LEAST_SECONDS = 60.0  # for jax's service, once all have come


def join_hosts(run: RunConfig | None = None) -> None:
    """Joins the processes of a run. Call it before any array is made; a second call only tells what `run` is.

    `limba.sharding.clusters.find` finds them; a process that runs alone returns at once. COORDINATOR_BIND_ADDRESS is
    the address of the first process's own host at which it listens (default: all), JOIN_TIMEOUT_SECONDS how long they
    wait for each other (default 1,800); every 30 seconds a line names who is missing. Each process of several prints
    one line when it has joined: in a run to stdout, else to stderr.

    Raises InputError for values that cannot work, and RestartError if not all processes have come in time. Of several
    processes, one that is lost later ends this one with a sentence (`limba.sharding.liveness`), within
    `run.host_timeout_seconds`; what libraries print goes to a file in the run's directory.
    """
    keep_whole_entries()
    if not jax.distributed.is_initialized():
        place = clusters.find()
        if place is None:
            return
        _join(run, place)
    if run is not None and jax.process_count() > 1:
        them = others()
        them.model_dir = run.model_dir
        them.native_output = os.path.join(log_folder(run.model_dir), f"process_{jax.process_index()}.stderr")
        environment.divert_native_output(them.native_output, open_no_link)
    if jax.process_count() > 1:
        _say_joined(run is not None)


@functools.cache
def _announced() -> list[str]:
    """Returns the line that was printed, if there was one."""
    return []


def _say_joined(is_run: bool) -> None:
    """Prints that this process has joined, once."""
    if _announced():
        return
    kinds = Counter(device.device_kind for device in jax.local_devices())
    devices = ", ".join(f"{number} x {kind}" for kind, number in kinds.items())
    _announced().append(f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}")
    print(f"{_announced()[0]}, {devices}", file=sys.stdout if is_run else sys.stderr, flush=True)


def say_ended() -> None:
    """Prints that this process of several has done its work; one that fails or is stopped ends with a sentence."""
    if _announced():
        print(f"{_announced()[0]} has ended", flush=True)


def _join(run: RunConfig | None, place: clusters.Membership) -> None:
    """Waits for all processes, and joins them by jax's service."""
    seconds, bind = _join_seconds(), os.environ.get("COORDINATOR_BIND_ADDRESS")
    if bind and not re.fullmatch(r".*[^:\]]:\d+|\[.*\]:\d+", bind):
        bind = f"{bind}:{place.port}"
    devices = clusters.devices_of(place, environment.num_gpus())
    if os.environ.get("JAX_PLATFORMS", "") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    began = time.monotonic()
    roll_call.wait_for_all(place, bind or f":{place.port}", seconds)
    left = max(seconds - (time.monotonic() - began), LEAST_SECONDS)
    timeout = math.ceil(run.host_timeout_seconds if run else RunConfig.host_timeout_seconds)
    arguments: dict[str, Any] = {} if devices is None else {"local_device_ids": devices}
    try:
        with losses_told():
            jax.distributed.initialize(
                coordinator_address=place.address,
                num_processes=place.count,
                process_id=place.index,
                coordinator_bind_address=bind if place.index == 0 else None,
                cluster_detection_method="deactivate",  # it would take other devices than those found here
                initialization_timeout=math.ceil(left),
                heartbeat_timeout_seconds=timeout,
                shutdown_timeout_seconds=SHUTDOWN_SECONDS,
                **arguments,
            )
    except ValueError as error:
        raise InputError(
            f"The processes of this run cannot join ({reason_of(error)}); start the command on every worker, or set"
            " COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID."
        ) from error
    except RuntimeError as error:
        _forget_client()
        raise RestartError(
            f"The {place.count} processes of this run have come, and have not joined at {place.address} within"
            f" {left:.0f} s ({reason_of(error)}); start all of them again."
        ) from error
    others().watch(distributed.global_state.coordinator_address or "", float(timeout))
    share_cache()


def _join_seconds() -> float:
    given = os.environ.get("JOIN_TIMEOUT_SECONDS", str(JOIN_SECONDS))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise InputError(f"JOIN_TIMEOUT_SECONDS is {given}; give a number of seconds above 0.")
    return seconds


def _forget_client() -> None:
    """Ends the client that could not join; jax would do so at the end of the process, with a traceback."""
    environment.divert_native_output(os.devnull)
    state = distributed.global_state
    if state.client is not None:
        with contextlib.suppress(RuntimeError):
            state.client.shutdown()
    state.client = state.service = None
