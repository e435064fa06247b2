"""The memory of this host that is free, and numbers of bytes in words."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # of a container, whose limit the machine's own figures do not show


def free_memory() -> int:
    """Returns the bytes of this host's memory that are free, of a container's where it has a limit."""
    import psutil

    free = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no container, or none with a limit ("max")
        most = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
        cached = next(line for line in (CGROUP / "memory.stat").read_text().splitlines() if line.startswith("file "))
        free = min(free, most - used + int(cached.split()[1]))
    return max(free, 0)


def size(num_bytes: float) -> str:
    """Returns a number of bytes in words.

    >>> size(2.5e9), size(3e6)
    ('2.5 GB', '3 MB')
    """
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{math.ceil(num_bytes / 1e6):,.0f} MB"
