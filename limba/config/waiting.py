"""Prints a message during long work without a progress bar: compiling, restoring, proving."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

FIRST_SECONDS = 2.0  # on a terminal; what takes less is not shown
SECONDS_BETWEEN = 300.0  # between two lines, where stderr is not a terminal


@contextlib.contextmanager
def waiting(what: str, shows: bool = True) -> Iterator[None]:
    """Shows `what` with the seconds so far on stderr, from FIRST_SECONDS on: one line that changes and then goes.

    Where stderr is not a terminal, it is a line every SECONDS_BETWEEN. With `shows=False` nothing is printed, as by all
    processes but the first. Outputs of the body may come between.
    """
    stream = sys.stderr
    if not shows:
        yield
        return
    is_terminal = stream.isatty()
    began = time.monotonic()
    ended = threading.Event()

    def say() -> None:
        pause = FIRST_SECONDS if is_terminal else SECONDS_BETWEEN
        while not ended.wait(pause):
            line = f"{what}: {time.monotonic() - began:.0f} s so far"
            with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
                stream.write(f"\r{line}\x1b[K" if is_terminal else f"{line}\n")
                stream.flush()
            pause = 1.0 if is_terminal else SECONDS_BETWEEN

    thread = threading.Thread(target=say, daemon=True, name="waiting")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)
        if is_terminal and time.monotonic() - began >= FIRST_SECONDS:
            with contextlib.suppress(OSError, ValueError):
                stream.write("\r\x1b[K")
                stream.flush()
