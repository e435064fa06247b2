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
from collections.abc import Iterator
from glob import glob
from pathlib import Path

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
    """Sets the log format to the bare message."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)


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
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not CHATTER.match(line):
                    os.write(2, line)


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
