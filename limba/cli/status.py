"""`limba status`: a run's progress, or with --verify whether the files of its checkpoints are whole."""

import contextlib
import sys
import time
from collections.abc import Sequence

from limba import tool_registry
from limba.cli import verify
from limba.cli.arguments import Parser
from limba.config import InputError, environment
from limba.storage.lease import Owner

ABOUT = """Prints a run's step, loss, speed, ETA and last checkpoint, and which of its processes are alive and slow. The
run may be in a bucket, on other machines, or over; nothing in its directory is changed. For a run on this machine, or
one in a local directory where nothing trains now, it also prints what would keep the next start from working: packages,
room, and who holds the TPU.

    limba status MODEL_DIR
    limba status gs://my-bucket/runs/ro --watch
    limba status MODEL_DIR --verify

A heartbeat's age is the file's time compared with this machine's clock, until --watch has seen it change; from then on
only this machine's clock counts. Ends with 2 if there is no run, else with 0.

--verify checks every checkpoint of a run instead, its best one too: the size and the checksum of each file must match
its manifest. It prints a line for each step, and ends with 2 if one is damaged, else with 0. It also takes one
checkpoint, MODEL_DIR/checkpoints/1000."""
SECONDS = 15.0  # between two looks
MOST_SECONDS = 86_400.0
CLEAR_SCREEN = "\x1b[2J\x1b[H"


def run(argv: Sequence[str]) -> int:
    """Prints the status of the run that the flags name, once or until Ctrl-C, or checks its files; raises InputError.

    Returns 2 if a checkpoint is damaged, else 0.
    """
    parser = Parser("status", ABOUT)
    parser.add_object("model", "MODEL_DIR", "a run directory; a path or gs://…", is_run=True)
    parser.add_argument("--watch", action="store_true", help="print it again and again, until Ctrl-C")
    parser.add_argument("--seconds", type=float, help=f"between two looks with --watch; default: {SECONDS:g}")
    parser.add_argument("--verify", action="store_true", help="check the files of all checkpoints instead")
    parser.add_argument("--sizes", action="store_true", help="with --verify: only sizes; misses a changed byte")
    args = parser.parse(argv)
    if args.sizes and not args.verify:
        raise InputError("--sizes is about --verify; add that, or leave it out.")
    if args.seconds is not None and not args.watch:
        raise InputError("--seconds is about --watch; add that, or leave it out.")
    if args.watch and args.verify:
        raise InputError("Both --verify and --watch are given; give one.")
    seconds = SECONDS if args.seconds is None else args.seconds
    if not 1 <= seconds <= MOST_SECONDS:
        raise InputError(f"--seconds is {seconds:g}; give a number from 1 to {MOST_SECONDS:,.0f}.")
    if args.verify:
        return verify.run(args.model, "sizes" if args.sizes else "checksums")
    if args.watch:
        with contextlib.suppress(KeyboardInterrupt):  # which is how watching ends
            _show(args.model, seconds)
    else:
        _show(args.model, None)
    return 0


def _show(model_dir: str, seconds: float | None) -> None:
    """Prints the status of a run, again and again if there are `seconds` between two looks."""
    with environment.quiet_imports():
        from limba.evaluation.history import figures_read
        from limba.evaluation.status import Status

    status = Status(model_dir)
    while True:
        with figures_read(model_dir):
            lines = status.lines()
        lines += _of_this_machine(status.owner, "://" not in model_dir)
        if seconds is not None and sys.stdout.isatty():
            print(CLEAR_SCREEN, end="")
        print("\n".join(lines), flush=True)
        if seconds is None:
            return
        time.sleep(seconds)
        if not sys.stdout.isatty():
            print()


def _of_this_machine(owner: Owner | None, is_local: bool) -> list[str]:
    """Returns what `limba preflight` would say against the run's next start here; [] if it runs elsewhere."""
    if not is_local or (owner is not None and not owner.is_here):
        return []
    check = tool_registry.find("check")
    if check is None:
        return []
    return check.of_this_machine(None if owner is None else owner.pid)
