"""SIGTERM asks a run to stop, and what handled it before handles it again afterwards."""

import os
import signal

from limba.sharding.preemption import stop_requests


def test_sigterm_asks_to_stop() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_requests() as stop_requested:
        assert not stop_requested(1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop_requested(2) and stop_requested(3)
    assert signal.getsignal(signal.SIGTERM) is before
