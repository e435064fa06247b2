"""Stopping a run by SIGTERM after the same step in all processes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils


@contextlib.contextmanager
def stop_requests() -> Iterator[Callable[[int], bool]]:
    """Yields a function that returns, after each step, whether all processes should save and stop there.

    With several processes jax's preemption service carries one process's SIGTERM to all of them, and names the step
    at which all stop. With one process a signal handler does; it is removed at the end.
    """
    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point
        return
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        yield lambda step: bool(received)
    finally:
        signal.signal(signal.SIGTERM, before)
