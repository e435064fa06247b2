"""This machine without a run: packages, devices, memory, disk, tokens (only whether they are there), the clock.

Each line that is not ok says what to do. Nothing is changed.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from limba.config.environment import num_cores
from limba.tools.preflight.checks.environment import SETUP, environment, room
from limba.tools.preflight.checks.verdict import Line, Section

DEVICE_SECONDS = 120.0  # to find the devices; a TPU that another process holds may never answer
LEAST_MEMORY = 4 << 30  # bytes
LEAST_FILES = 1024  # open at once; 256 files of a corpus are read side by side
# What is asked of the devices, in a process of its own.
ASK = """
import json, jax, jax.numpy as jnp
devices = jax.devices()
total = float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((64, 64))))
limits = [(d.memory_stats() or {}).get("bytes_limit") for d in devices[:1]]
print(json.dumps([devices[0].platform, devices[0].device_kind, len(devices), limits[0], total == 64.0 ** 3]))
"""


def sections() -> Iterator[Section]:
    """Yields the sections about this machine, without a run."""
    for make in (environment, devices, machine):
        yield make().worded({})


def devices() -> Section:
    """Returns the findings about what jax computes on, asked in another process, which may hang."""
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", ASK], capture_output=True, text=True, timeout=DEVICE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        what = f"jax did not find its devices in {DEVICE_SECONDS:.0f} s; another process may hold them."
        fix = "end that process; on a TPU: sudo lsof -w /dev/accel* /dev/vfio/*"
        return Section("Devices", [Line("error", what, fix, "device-in-use")])
    if ended.returncode != 0:
        message = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        text = f"jax finds no device: {message[:300].rstrip('.')}."
        fix = f"set JAX_PLATFORMS=cpu to use the CPU, or {SETUP} for this machine's accelerator"
        return Section("Devices", [Line("error", text, fix, "no-device")])
    platform, kind, count, limit, is_right = json.loads(ended.stdout.strip().splitlines()[-1])
    memory = f", {limit / 2**30:.1f} GiB each" if limit else ""
    lines = [Line("ok", f"jax computes on {count} x {kind} ({platform}{memory}).")]
    if not is_right:
        text = "A product of matrices has a wrong sum there."
        lines.append(Line("error", text, "do not train on this machine", "wrong-sums"))
    if platform == "cpu":
        lines.append(Line("ok", "There is no accelerator: tiny and small models train here, larger ones elsewhere."))
    return Section("Devices", lines, {"platform": platform, "kind": kind, "devices": count, "bytes": limit})


def machine() -> Section:
    """Returns the findings about cores, memory, open files and tools."""
    cores = num_cores()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup_limit()
    usable = min(memory, limit) if limit else memory
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    lines = []
    if usable < LEAST_MEMORY:
        text = f"{usable / 2**30:.1f} GiB of memory may be used here; the imports alone need 1 GiB."
        lines.append(Line("warning", text, "use a machine with 4 GiB or more", "memory"))
    if files != resource.RLIM_INFINITY and files < LEAST_FILES:
        lines.append(Line("warning", f"At most {files} files may be open at once.", "ulimit -n 4096", "open-files"))
    lacking = [tool for tool in ("bash", "git") if shutil.which(tool) is None]
    lines += [Line("warning", f"{tool} is not installed.", f"apt-get install {tool}", "packages") for tool in lacking]
    return Section("Machine", [*lines, *disk(), *clock()], {"cores": cores, "memory": usable, "open_files": files})


def _cgroup_limit() -> int | None:
    """Returns the memory limit of this process's container in bytes, if it has one."""
    # Of cgroups, version 2 and version 1.
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def disk() -> list[Line]:
    """Returns the findings about free space where runs, models of the hub and exchanged batches go."""
    hub = os.environ.get("HF_HOME", "~/.cache/huggingface")
    folders = {
        "this folder": (os.getcwd(), 10 << 30, "runs are written here: go to a larger disk"),
        "models of the hub": (hub, 5 << 30, "export HF_HOME=DIRECTORY"),
        "shared memory": ("/dev/shm", 1 << 30, "start the container with --shm-size=4g"),
    }
    return list(room(folders, {}, unwritable="error"))


def clock() -> list[Line]:
    """Returns a warning if the kernel says that the clock is not synchronized."""
    if _is_synchronized() is not False:  # None: it says nothing
        return []
    fix = "sudo timedatectl set-ntp true; in a container, on its host"
    return [Line("warning", "The kernel says that no time server keeps this machine's clock.", fix, "clock")]


def _is_synchronized() -> bool | None:
    """Returns whether the kernel's clock is synchronized (adjtimex(2): TIME_ERROR is 5); None if it does not say."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # zeros: change nothing
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != 5
