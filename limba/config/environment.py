"""Settings that must be made before jax and TensorFlow are imported.

`python limba/config/environment.py` exits with 0 on a Cloud TPU machine, else with 1. It needs no other package.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import NoReturn

# Read by the libraries when they are imported. What the user has set stays.
VARIABLES = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # TensorFlow only reads text here; its start-up notes are of no use
    "TF_ENABLE_ONEDNN_OPTS": "0",  # silences a note; Limba does no arithmetic in TensorFlow
    "GRPC_VERBOSITY": "ERROR",
    "GLOG_minloglevel": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "JAX_COMPILATION_CACHE_DIR": os.path.expanduser("~/.cache/limba/compiled"),  # a second start compiles nothing
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
# Large pages for the arrays of a step on a CPU. Each step allocates its memory again, and to touch that in pages of
# 4 kB cost a fifth of the step. glibc reads this only when a process starts.
LARGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
# TensorFlow's notes that no variable silences.
CHATTER = re.compile(rb"^(I0000 |W0000 .*cuda|WARNING: All log messages before absl::InitializeLog)")


def set_variables() -> None:
    """Sets VARIABLES where the user has not, and silences Orbax, which logs each of its choices."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    logging.getLogger("absl").setLevel(logging.ERROR)


def set_logging() -> None:
    """Sets the log format to the bare message, with the addresses in it without their credentials."""
    from limba.config.secrets import without_credentials  # this file also runs where Limba is not installed

    class Bare(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return without_credentials(super().format(record))

    handler = logging.StreamHandler()
    handler.setFormatter(Bare("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def use_large_pages() -> None:
    """Starts this program again with LARGE_PAGES set, if it runs on a CPU and they are not set."""
    name, value = LARGE_PAGES
    on_cpu = os.environ.get("JAX_PLATFORMS", "cpu") == "cpu" and not _has_accelerator()
    if on_cpu and sys.platform == "linux" and name not in os.environ:
        os.environ[name] = value
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Buffers stderr inside the context, then writes all of it except TensorFlow's start-up notes.

    Garbage collection, a quarter of the import time, is off inside; objects made inside are never searched.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    _BUFFERED.append(stderr)
    collects = gc.isenabled()
    gc.disable()
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            if collects:
                gc.enable()
            if not gc.get_freeze_count():
                gc.freeze()
            sys.stderr.flush()
            _BUFFERED.remove(stderr)
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not CHATTER.match(line):
                    os.write(2, line)


def divert_native_output(path: str) -> None:
    """Sends what libraries write to file descriptor 2 into a file; `sys.stderr` and the log stay on the console."""
    old = sys.stderr
    old.flush()
    if old.fileno() == 2:
        sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, encoding=old.encoding, errors="backslashreplace")
        loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
        for log_handler in (each for logger in loggers for each in logger.handlers):
            if isinstance(log_handler, logging.StreamHandler) and log_handler.stream is old:
                log_handler.setStream(sys.stderr)
    with open(path, "ab") as file:
        os.dup2(file.fileno(), 2)


def console() -> int | None:
    """Returns the file descriptor that reaches the user's console; None if `sys.stderr` has none."""
    if _BUFFERED:
        return _BUFFERED[0]
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # as in a notebook
        return None


def end_now(sentence: str, status: int) -> NoReturn:
    """Prints one line to stderr and ends the process, whatever its threads wait for; the first call in one counts."""
    _ENDS.acquire()

    def flush() -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()

    flushing = threading.Thread(target=flush, daemon=True)  # another thread may hold its lock for ever
    flushing.start()
    flushing.join(1.0)
    with contextlib.suppress(OSError):  # the terminal may be gone
        line = " ".join(sentence.split())
        os.write(console() or 2, ("\n" * sys.stderr.isatty() + line + "\n").encode(errors="backslashreplace"))
    os._exit(status)


_ENDS = threading.Lock()  # never released
_BUFFERED: list[int] = []  # the console, inside `quiet_imports`


def _has_accelerator() -> bool:
    return is_tpu_vm() or bool(glob("/dev/nvidia[0-9]*"))


def is_tpu_vm() -> bool:
    """Returns whether the PCI bus shows a Cloud TPU, by Google's vendor id and the ids of v2 to v6e and 7x."""
    chips = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with contextlib.suppress(OSError):
            if (device / "vendor").read_text().strip() == "0x1ae0" and (device / "device").read_text().strip() in chips:
                return True
    return False


if __name__ == "__main__":
    sys.exit(0 if is_tpu_vm() else 1)
