"""Which processes hold a device: a TPU serves one process at a time, and a GPU's memory is shared."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterable
from glob import glob
from typing import NamedTuple

TPU_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")  # of v2 to v4 with Google's driver, and of v5e and later
GPU_DEVICES = ("/dev/nvidia[0-9]*", "/dev/dri/renderD*")
TPU_LOCK = "/tmp/libtpu_lockfile"  # that libtpu locks, by lockf, while a process uses the TPU
_FLOCK = "hhqqi"  # C's struct flock on 64-bit Linux: type, whence, start, length, process
WORDS_SHOWN = 4  # of a command: later ones may hold what is secret


class Holder(NamedTuple):
    """A process that has a device open."""

    pid: int
    user: str
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} ({self.command})"


def holders(patterns: Iterable[str]) -> list[Holder]:
    """Returns the processes but this one that have one of these files open, as far as this user may see.

    Another user's open files are hidden from all but root; `holder_of_lock` finds such a holder of a TPU.
    """
    import psutil

    devices = set()
    for pattern in patterns:
        devices.update(os.path.realpath(path) for path in glob(pattern))
    if not devices:
        return []
    holding = []
    for process in psutil.process_iter():
        if process.pid != os.getpid() and devices & _open_files(process.pid):
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                holding.append(Holder(process.pid, process.username(), command_of(process.cmdline())))
    return holding


def _open_files(pid: int) -> set[str]:
    files = set()
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                files.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return files


def command_of(words: Iterable[str]) -> str:
    """Returns the beginning of a command, without words that give a value to a name.

    >>> command_of(["/usr/bin/python3", "serve.py", "8080", "token=secret"])
    'python3 serve.py 8080'
    """
    program, *others = [*words, ""][: WORDS_SHOWN + 1]
    shown = [word for word in others if word and "=" not in word][: WORDS_SHOWN - 1]
    return " ".join([os.path.basename(program) or "unknown", *shown])


def lock_holder(path: str = TPU_LOCK) -> int | None:
    """Returns the process that has locked libtpu's file, of whatever user; None if there is none.

    The file alone, left behind by a process that ended, means nothing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else pid


def holder_of_lock(path: str = TPU_LOCK) -> Holder | None:
    """Returns the process that has locked libtpu's file, with what this user may know of it."""
    import psutil

    pid = lock_holder(path)
    if pid is None or pid == os.getpid():
        return None
    with contextlib.suppress(psutil.Error):  # a process that this user may not see
        process = psutil.Process(pid)
        return Holder(process.pid, process.username(), command_of(process.cmdline()))
    return Holder(pid, "another user or container", "unknown")
