"""Waiting for what another thread or process does: as long as a busy machine needs, and no longer than it takes."""

import time
from collections.abc import Callable

MOST_SECONDS = 400.0


def wait_until(is_so: Callable[[], object], seen: Callable[[], object] = lambda: "") -> None:
    """Returns when the condition holds; after MOST_SECONDS it fails with what is `seen` then."""
    deadline = time.monotonic() + MOST_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, seen()
        time.sleep(0.01)
