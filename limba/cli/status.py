"""`limba status`: a run's progress."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from limba import toolbox
from limba.cli.arguments import Parser
from limba.config import InputError, environment

if TYPE_CHECKING:
    from limba.storage.lease import Owner

ABOUT = """Prints a run's step, loss, speed, ETA and last checkpoint, and which of its processes are alive and slow. The
run may be in a bucket, on other machines, or over; nothing in its directory is changed. Of a run on this machine, or of
one in a directory here where nothing trains now, it also says what would keep the next start from working: packages,
room, and who holds the TPU.

    limba status MODEL_DIR
    limba status gs://my-bucket/runs/ro --watch

A heartbeat's age is the file's time compared with this machine's clock, until --watch has seen it change; from then on
only this machine's clock counts. Ends with 2 if there is no run, else with 0."""
SECONDS = 15.0


def run(argv: Sequence[str]) -> None:
    """Prints the status of the run that the flags name, once or until Ctrl-C; raises InputError."""
    parser = Parser("status", ABOUT)
    parser.add_object("model", "MODEL_DIR", "a run directory; a path or gs://…")
    parser.add_argument("--watch", action="store_true", help="print it again and again, until Ctrl-C")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"between two looks with --watch ({SECONDS:g})")
    given = parser.parse(argv)
    if given.model is None:
        raise InputError("No run is given; write limba status MODEL_DIR.")
    if not given.seconds >= 1:
        raise InputError(f"--seconds is {given.seconds:g}; give 1 or more.")
    with environment.quiet_imports():
        from limba.evaluation.history import figures_read
        from limba.evaluation.status import Status

    status = Status(given.model)
    while True:
        with figures_read(str(given.model)):
            lines = status.lines()
        lines += _of_this_machine(status.owner, "://" not in str(given.model))
        if given.watch and sys.stdout.isatty():
            print("\x1b[2J\x1b[H", end="")  # an empty screen
        print("\n".join(lines), flush=True)
        if not given.watch:
            return
        time.sleep(given.seconds)
        if not sys.stdout.isatty():
            print()


def _of_this_machine(owner: Owner | None, is_local: bool) -> list[str]:
    """Returns what `limba preflight` would say against the run's next start here; [] if it runs elsewhere."""
    if not is_local or (owner is not None and owner.host != socket.gethostname()):
        return []
    check = toolbox.find("check")
    return check.of_this_machine(None if owner is None else owner.pid) if check else []
