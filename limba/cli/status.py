"""`limba status`: a run's progress; `limba verify`: whether the files of its checkpoints are whole."""

import socket
import sys
import time
from collections.abc import Iterator, Sequence

from etils import epath

from limba import toolbox
from limba.cli.arguments import Parser
from limba.config import InputError, RunConfig, StorageError, environment, plain
from limba.formats import limba_checkpoint
from limba.storage import manifest
from limba.storage.failures import short_reason
from limba.storage.files import read_text, resolved
from limba.storage.lease import Owner

ABOUT = """Prints a run's step, loss, speed, ETA and last checkpoint, and which of its processes are alive and slow. The
run may be in a bucket, on other machines, or over; nothing in its directory is changed. Of a run on this machine, or of
one in a directory here where nothing trains now, it also says what would keep the next start from working: packages,
room, and who holds the TPU.

    limba status MODEL_DIR
    limba status gs://my-bucket/runs/ro --watch

A heartbeat's age is the file's time compared with this machine's clock, until --watch has seen it change; from then on
only this machine's clock counts. Ends with 2 if there is no run, else with 0."""
VERIFY = """Checks every checkpoint of a run, its best one too: the size and the checksum of each file must be those of
its manifest. Prints a line for each step. Ends with 2 if one is damaged, else with 0.

    limba verify MODEL_DIR"""
SECONDS = 15.0


def run(argv: Sequence[str]) -> None:
    """Prints the status of the run that the flags name, once or until Ctrl-C; raises InputError."""
    parser = Parser("status", ABOUT)
    parser.add_object("model", "MODEL_DIR", "a run directory; a path or gs://…", is_run=True)
    parser.add_argument("--watch", action="store_true", help="print it again and again, until Ctrl-C")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"between two looks with --watch ({SECONDS:g})")
    given = parser.parse(argv)
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


def verify(argv: Sequence[str]) -> int:
    """Prints a line for each step; returns 2 if one is damaged, else 0. Raises InputError if there is none."""
    parser = Parser("verify", VERIFY)
    parser.add_object("model", "MODEL_DIR", "a run directory, or one of its checkpoints; a path or gs://…", is_run=True)
    parser.add_argument("--sizes", action="store_true", help="compare only sizes; a changed byte is not found then")
    given = parser.parse(argv)
    root = resolved(given.model)
    found = list(_steps(root))
    if not found:
        raise InputError(f"{given.model} has no checkpoints/<step>; name the MODEL_DIR of a run.")
    has_damage = False
    for path in found:
        is_damaged, text = verdict(path, "sizes" if given.sizes else "checksums")
        has_damage = has_damage or is_damaged
        name = path.relative_to(root) if path != root and path.is_relative_to(root) else path
        print(f"{name}: {text}", flush=True)
    return 2 if has_damage else 0


def verdict(path: epath.Path, how: str) -> tuple[bool, str]:
    """Returns (whether a checkpoint is damaged, the sentence about it)."""
    if not path.name.isdigit():
        return False, "set aside by a run"
    try:
        damaged = limba_checkpoint.damage(path, how)
        if damaged:
            return True, f"damaged: {'; '.join(damaged)}"
        number, size = manifest.size_of(path)
    except Exception as error:
        raise StorageError(f"{path} cannot be read at the moment ({short_reason(error)}); try again.") from error
    what = "sizes and checksums" if how == "checksums" else "sizes, not checksums,"
    return False, f"whole ({number} files, {size:,} bytes; {what} are those of its manifest)"


def _steps(root: epath.Path) -> Iterator[epath.Path]:
    """Yields the checkpoints of a run, of its `best` and of its fallback_dir, and those that the run has set aside."""
    if root.name.isdigit() and root.parent.name == "checkpoints":
        yield root
        return
    for directory in (root / "checkpoints", root / "best" / "checkpoints", *_fallback(root)):
        yield from limba_checkpoint.steps_in(directory, with_files=True).values()
        for child in sorted(directory.iterdir()) if directory.is_dir() else ():
            if ".broken" in child.name:
                yield child


def _fallback(root: epath.Path) -> Iterator[epath.Path]:
    """Yields where the run saves if its directory cannot be written, if its config.json names such a place."""
    if not (root / plain.FILE).exists():
        return
    config = plain.from_text(read_text(root / plain.FILE), str(root / plain.FILE))
    if isinstance(config, RunConfig):
        place = limba_checkpoint.fallback_directory(config.model_dir, config.checkpoint.fallback_dir)
        if place is not None:
            yield place
