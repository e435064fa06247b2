"""Settings that must be made before jax and TensorFlow are imported, and what launchers say. Imports no jax.

`python limba/config/environment.py` exits with 0 on a Cloud TPU machine, else with 1. It needs no other package.
"""

import contextlib
import gc
import importlib.util
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

# Read by the libraries when they are imported. What the user has set stays.
VARIABLES = {
    "TF_CPP_MIN_LOG_LEVEL": "3",  # TensorFlow only reads text here; its start-up notes are of no use
    "TF_ENABLE_ONEDNN_OPTS": "0",  # silences a note; Limba does no arithmetic in TensorFlow
    "EPATH_USE_TF": "false",  # buckets are read by fsspec; TensorFlow has an address and credentials of its own
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # else gcsfs asks a bucket by gRPC of what kind it is
    "GRPC_VERBOSITY": "ERROR",
    "GLOG_minloglevel": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
# Large pages for the arrays of a step on a CPU, or of a conversion. Each step allocates its memory again, and to touch
# that in pages of 4 kB cost a fifth of the step. glibc reads this only when a process starts.
LARGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
# For a conversion too: what is freed is used again, by all threads. Else each large array is given back to the system,
# which clears its pages for the next one: a tenth of the processor's time, and up to a fifth of the memory.
REUSED_PAGES = (
    "GLIBC_TUNABLES",
    "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
    f":glibc.malloc.mmap_threshold={1 << 33}:glibc.malloc.trim_threshold={1 << 33}",
)
# What helps where a step exchanges data between GPUs, by jaxlib 0.10's names (an unknown flag of XLA would end the
# process; a test lets XLA read it). LIMBA_GPU_FLAGS=0 sets nothing. Not measured here on several GPUs. The sources:
# docs/gpus.md; why nothing else is set: docs/development/proof.md.
GPU_FLAGS_SWITCH = "LIMBA_GPU_FLAGS"
# Moves exchanges beside computation. NVIDIA's JAX images set it: docs.nvidia.com/jax-toolbox/environment-variables
GPU_XLA_FLAG = "--xla_gpu_enable_latency_hiding_scheduler"
# jax's own 0.75 leaves 20 GB of an H100 unused; 0.9 leaves room for NCCL:
# docs.nvidia.com/jax-toolbox/performance-profiling/gpu-performance
GPU_MEMORY = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
# Else jax takes that share of a GPU at once, and torch in the same process finds the rest.
GPU_IS_SHARED = ("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# TensorFlow's notes that no variable silences.
CHATTER = re.compile(rb"^(I0000 |W0000 .*cuda|WARNING: All log messages before absl::InitializeLog)")
# Clients of buckets log each attempt of a request with its traceback; Limba says in a line what came of all attempts.
BUCKET_CLIENTS = ("gcsfs", "fsspec", "aiohttp", "asyncio")
OBJECTS_COLLECTED = 10_000  # made since the last collection of garbage; Python's own number is 700
_ENDS = threading.Lock()  # never released
_BUFFERED: list[int] = []  # the console, inside `quiet_imports`


class Announced(NamedTuple):
    """The variables with which a launcher says how many processes it has started."""

    launcher: str
    count: str
    index: str
    local_index: str
    local_count: str


# In this order, as jax: mpirun inside a job of Slurm has the variables of both.
LAUNCHERS = (
    Announced(
        "Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    Announced("Slurm", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", ""),
    Announced("MPICH or Intel MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Announced("torchrun", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)  # fmt: skip


def announced() -> Announced | None:
    """Returns the launcher that announces several processes."""
    for launcher in LAUNCHERS:
        count = os.environ.get(launcher.count, "")
        is_complete = launcher.index in os.environ or launcher.launcher == "Slurm"
        if count.isdigit() and int(count) > 1 and is_complete:
            return launcher
    return None


def process_number() -> str:
    """Returns the number of this process as the environment has it, "0" where it runs alone.

    PROCESS_ID counts first, LIMBA_ALONE=1 before it, then the launchers. It is for commands that one process does.
    """
    if os.environ.get("LIMBA_ALONE") == "1":
        return "0"
    launcher = announced()
    return os.environ.get("PROCESS_ID") or (os.environ.get(launcher.index) if launcher else None) or "0"


def open_streams() -> None:
    """Opens the streams that this process has begun without, as after `>&-`, on the null device."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, "r" if name == "stdin" else "w"))


def set_variables() -> None:
    """Sets VARIABLES and the cache of compiled programs where the user has not; silences absl's notes.

    For a process of our own, never in the user's Python.
    """
    from limba.config import compile_cache  # this file also runs where Limba is not installed

    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    if compile_cache.OF_JAX not in os.environ:  # a second start compiles nothing
        os.environ[compile_cache.OF_JAX] = compile_cache.directory()
    if num_gpus() > 1:
        set_gpu_flags()
    logging.getLogger("absl").setLevel(logging.ERROR)


def set_gpu_flags() -> None:
    """Sets GPU_XLA_FLAG and GPU_MEMORY where the user has not, unless LIMBA_GPU_FLAGS is 0."""
    if os.environ.get(GPU_FLAGS_SWITCH) == "0":
        return
    flags_before = os.environ.get("XLA_FLAGS", "")
    if GPU_XLA_FLAG not in flags_before:
        os.environ["XLA_FLAGS"] = f"{flags_before} {GPU_XLA_FLAG}=true".strip()
    os.environ.setdefault(*GPU_MEMORY)


def set_logging() -> None:
    """Sets the log format to the bare message, with the addresses in it without their credentials."""
    from limba.config.errors import without_credentials  # this file also runs where Limba is not installed

    class Bare(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return without_credentials(super().format(record))

    handler = logging.StreamHandler()
    handler.setFormatter(Bare("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in BUCKET_CLIENTS:
        logging.getLogger(name).setLevel(logging.CRITICAL)


def use_large_pages(pages: tuple[str, str] = LARGE_PAGES) -> None:
    """Starts this program again with `pages` set, if it runs on a CPU and they are not set."""
    name, value = pages
    on_cpu = os.environ.get("JAX_PLATFORMS", "cpu") == "cpu" and not _has_accelerator()
    if on_cpu and sys.platform == "linux" and name not in os.environ:
        os.environ[name] = value
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Buffers stderr inside the context, then writes all of it except TensorFlow's start-up notes.

    Garbage collection, a quarter of the import time, is off inside; objects made inside are never searched. After it,
    garbage is collected more rarely: thousands of documents are on their way to a batch, and none is in a cycle.
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
                gc.set_threshold(OBJECTS_COLLECTED, *gc.get_threshold()[1:])
            sys.stderr.flush()
            _BUFFERED.remove(stderr)
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not CHATTER.match(line):
                    os.write(2, line)


def console() -> int | None:
    """Returns the file descriptor that reaches the user's console; None if `sys.stderr` has none."""
    if _BUFFERED:
        return _BUFFERED[0]
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # as in a notebook
        return None


def in_colour(stream: IO[str]) -> bool:
    """Returns whether a stream is a terminal that shows colours; NO_COLOR (no-color.org) and TERM=dumb say no."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def end_now(sentence: str, status: int) -> NoReturn:
    """Prints one line to stderr and ends the process, whatever its threads wait for; the first call in one counts."""
    _ENDS.acquire()

    def flush() -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()

    flushing = threading.Thread(target=flush, daemon=True)  # another thread may hold its lock for ever
    with contextlib.suppress(RuntimeError):  # from Python 3.12 on none starts when the program has ended and flushed
        flushing.start()
        flushing.join(1.0)
    with contextlib.suppress(OSError):  # the terminal may be gone
        line = " ".join(sentence.split())
        os.write(console() or 2, ("\n" * sys.stderr.isatty() + line + "\n").encode(errors="backslashreplace"))
    os._exit(status)


def _has_accelerator() -> bool:
    return is_tpu_vm() or num_gpus() > 0


def num_cores() -> int:
    """Returns how many cores this process may use: in a job of Slurm often fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def num_gpus() -> int:
    """Returns how many GPUs this process may use, of NVIDIA or of AMD, without asking their driver."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        visible = os.environ.get(name)
        if visible is not None:
            return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len(glob("/dev/nvidia[0-9]*")) or num_amd_gpus()


def num_amd_gpus() -> int:
    """Returns how many AMD GPUs the kernel's compute driver lists; its nodes without a gpu_id are CPUs."""
    if not os.path.exists("/dev/kfd"):
        return 0
    number = 0
    for path in glob("/sys/class/kfd/kfd/topology/nodes/*/gpu_id"):
        with contextlib.suppress(OSError, ValueError):
            number += int(Path(path).read_text()) > 0
    return number


def accelerator_without_packages() -> tuple[str, str] | None:
    """Returns the accelerator of this machine that jax has no packages for, in words and as the set-up names it.

    None if there is no accelerator, if its packages are installed, or if JAX_PLATFORMS chooses the platform.
    """
    if os.environ.get("JAX_PLATFORMS") or not _has_accelerator():
        return None
    has_nvidia = bool(glob("/dev/nvidia[0-9]*"))
    of_nvidia = ["jax_cuda13_plugin", "jax_cuda12_plugin"]
    kinds = [
        ("a Cloud TPU", is_tpu_vm(), "tpu", ["libtpu"]),
        ("an NVIDIA GPU", has_nvidia, "cuda", of_nvidia),
        ("an AMD GPU", num_amd_gpus() > 0, "rocm", ["jax_rocm7_plugin", "jax_rocm60_plugin"]),
    ]
    for words, is_here, name, modules in kinds:
        if is_here:
            return None if any(importlib.util.find_spec(module) for module in modules) else (words, name)
    return None


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
