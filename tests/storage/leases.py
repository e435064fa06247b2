"""Leases as processes of other machines have written them."""

from pathlib import Path

from limba.storage import lease_places
from limba.storage.lease_places import Owner

PID = 7
HOST = "far"


def of_another_machine(token: str = "theirs", **changes: object) -> Owner:
    """Returns a holder on another machine, whose leases are as long as ours."""
    owner = Owner(token, HOST, PID, 1, lease_places.LEASE_SECONDS)
    return owner._replace(**changes)


def file_of(owner: Owner) -> str:
    """Returns what filelock writes for an owner."""
    lines = [f"pid={owner.pid}", f"host={owner.host}", "mode=lease", f"token={owner.token}"]
    lines += [f"duration={owner.lease_seconds!r}", f"start={owner.start}"]
    return "\n".join(["filelock/2", *lines, ""])


def put(path: Path, owner: Owner) -> None:
    """Replaces what is there by another owner's file in one step, as a process that takes over does."""
    new = path.with_name("new")
    new.write_text(file_of(owner))
    new.rename(path)
