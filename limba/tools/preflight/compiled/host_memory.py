"""The memory of a process that trains on a CPU: the arrays of its devices, and what compiling leaves in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Seen(NamedTuple):
    """The memory of this process by Linux's /proc/self/status, in bytes; zeros where that is not."""

    resident: int  # now
    highest: int  # that it ever was


def seen() -> Seen:
    """Returns the memory of this process at this moment."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return Seen(0, 0)
    kib = {name: int(size) for name, size in re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB$", text, re.MULTILINE)}
    return Seen(kib.get("VmRSS", 0) << 10, kib.get("VmHWM", 0) << 10)


def process_bytes(start: Seen, after_init: Seen, after_step: Seen, init: int, state: int, step: int) -> int:
    """Returns the bytes that a process needs beyond its start: the most of its three phases.

    Memory that compiling has freed mostly stays with the process (the C library keeps it for small pieces, and a
    step's large arrays come from the system), so it adds to the arrays of what comes later. The phases, with the bytes
    of all devices' arrays: making the state (`init`), compiling the step beside the state, and the step, with a copy of
    the largest right operand of a product (`ProgramCosts.packed_bytes`), taken to be what a product packs: a step took
    242 MiB beside its temporaries with a head of 256. The memory is that of a process which compiles both programs and
    runs neither: at its start and after each.

    >>> start, after_init, after_step = Seen(100, 100), Seen(140, 150), Seen(160, 300)
    >>> process_bytes(start, after_init, after_step, init=50, state=40, step=90)
    240
    >>> process_bytes(start, after_init, after_step, init=50, state=40, step=400)
    460
    """
    return max(
        after_init.resident - start.resident + init,
        after_step.highest - start.resident + state,
        after_step.resident - start.resident + step,
    )
