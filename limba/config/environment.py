"""What has to be set before jax and TensorFlow are imported, in one place."""

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
    "TF_CPP_MIN_LOG_LEVEL": "3",  # TensorFlow only reads text here; its start-up notes say nothing of use
    "TF_ENABLE_ONEDNN_OPTS": "0",  # silences a note; no arithmetic of ours runs in TensorFlow
    "GRPC_VERBOSITY": "ERROR",
    "GLOG_minloglevel": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "JAX_COMPILATION_CACHE_DIR": os.path.expanduser("~/.cache/limba/compiled"),  # a second start compiles nothing
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
# Large pages for the arrays of a step on a CPU: a step takes its memory anew each time, and touching it
# 4 kB at a time cost a fifth of the step. glibc reads this only when a process starts.
LARGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
# TensorFlow's notes that no variable silences.
CHATTER = re.compile(rb"^(I0000 |W0000 .*cuda|WARNING: All log messages before absl::InitializeLog)")


def set_variables() -> None:
    """Sets VARIABLES where the user has not, and the form of log lines."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax tells every choice it makes


def use_large_pages() -> None:
    """Starts this program once more with LARGE_PAGES set, where it is a CPU's and they are not."""
    name, value = LARGE_PAGES
    on_cpu = os.environ.get("JAX_PLATFORMS", "cpu") == "cpu" and not _has_accelerator()
    if on_cpu and sys.platform == "linux" and name not in os.environ:
        os.environ[name] = value
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Holds back what is written to stderr inside, and passes on all but TensorFlow's start-up notes.

    Meanwhile no garbage is collected, which took a quarter of the time; what is made inside is not searched later.
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
    """True where the PCI bus shows a Cloud TPU: Google's vendor id with the ids of v2/v3, v4, v5p, v5e, v6e and 7x."""
    chips = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
    for device in Path("/sys/bus/pci/devices").glob("*"):
        with contextlib.suppress(OSError):
            if (device / "vendor").read_text().strip() == "0x1ae0" and (device / "device").read_text().strip() in chips:
                return True
    return False
