"""`limba doctor`: checks this machine, line by line, and says what to do about each thing that is not right."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from limba.api import Parser
from limba.tools.preflight.checks.environment import SETUP, room
from limba.tools.preflight.checks.environment import environment as preflight
from limba.tools.preflight.checks.verdict import Line, Section

ABOUT = """Checks this machine: versions, packages, devices, memory, disk, tokens (only whether they are there) and the
clock, which it compares with the hub's. Each line that is not ok says what to do. Nothing is changed. Ends with 2 if
something is wrong, else with 0.

    limba doctor
    limba doctor --json"""
DEVICE_SECONDS = 120.0  # to find the devices; a TPU that another process holds may never answer
LEAST_MEMORY = 4 << 30  # bytes
LEAST_FILES = 1024  # open at once; 256 files of a corpus are read side by side
STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}
# What is asked of the devices, in a process of its own.
ASK = """
import json, jax, jax.numpy as jnp
devices = jax.devices()
total = float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((64, 64))))
limits = [(d.memory_stats() or {}).get("bytes_limit") for d in devices[:1]]
print(json.dumps([devices[0].platform, devices[0].device_kind, len(devices), limits[0], total == 64.0 ** 3]))
"""


def run(argv: Sequence[str]) -> int:
    """Prints the findings; returns 2 if one is an error, else 0."""
    parser = Parser("doctor", ABOUT)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    given = parser.parse(argv)
    sections = []
    for make in (preflight, devices, machine):
        section = make().worded({})
        sections.append(section)
        if not given.json:
            _show(section)
    lines = [line for section in sections for line in section.lines]
    wrong, doubtful = (sum(line.level == level for line in lines) for level in ("error", "warning"))
    if given.json:
        found = [{"title": s.title, "lines": [vars(line) for line in s.lines], "data": dict(s.data)} for s in sections]
        print(json.dumps(found, ensure_ascii=False, indent=1))
    else:
        print(f"{wrong} error(s), {doubtful} warning(s).")
    return 2 if wrong else 0


def _show(section: Section) -> None:
    """Prints a section, in colour on a terminal unless NO_COLOR is set."""
    import rich.console
    import rich.text

    console = rich.console.Console(highlight=False, soft_wrap=True)
    console.print(rich.text.Text(section.title, style="bold"))
    for line in section.lines:
        text = rich.text.Text(f"  {line.level:<8} ", style=STYLES[line.level])
        text.append(line.text, style="default")
        console.print(text)
        if line.fix:
            console.print(rich.text.Text(f"           -> {line.fix}"))


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
        said = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        fix = f"set JAX_PLATFORMS=cpu to use the CPU, or {SETUP} for this machine's accelerator"
        return Section("Devices", [Line("error", f"jax finds no device: {said[:300].rstrip('.')}.", fix, "no-device")])
    platform, kind, count, limit, is_right = json.loads(ended.stdout.strip().splitlines()[-1])
    memory = f", {limit / 2**30:.1f} GiB each" if limit else ""
    lines = [Line("ok", f"jax computes on {count} x {kind} ({platform}{memory}).")]
    if not is_right:
        lines.append(
            Line("error", "A product of matrices has a wrong sum there.", "do not train on this machine", "wrong-sums")
        )
    if platform == "cpu":
        lines.append(Line("ok", "There is no accelerator: tiny and small models train here, larger ones elsewhere."))
    return Section("Devices", lines, {"platform": platform, "kind": kind, "devices": count, "bytes": limit})


def machine() -> Section:
    """Returns the findings about cores, memory, open files and tools."""
    cores = len(os.sched_getaffinity(0))
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
    for place in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(place).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def disk() -> list[Line]:
    """Returns the findings about free space where runs, models of the hub and exchanged batches go."""
    hub = os.environ.get("HF_HOME", "~/.cache/huggingface")
    places = {
        "this folder": (os.getcwd(), 10 << 30, "runs are written here: go to a larger disk"),
        "models of the hub": (hub, 5 << 30, "export HF_HOME=DIRECTORY"),
        "shared memory": ("/dev/shm", 1 << 30, "start the container with --shm-size=4g"),
    }
    return list(room(places, {}, unwritable="error"))


def clock() -> list[Line]:
    """Returns the kernel's finding about the clock, if it has one."""
    if _is_synchronized() is not False:
        return []
    fix = "sudo timedatectl set-ntp true; in a container, on its host"
    return [Line("warning", "The kernel says that no time server keeps this machine's clock.", fix, "clock")]


def _is_synchronized() -> bool | None:
    """Returns the kernel's word on its clock (adjtimex(2): TIME_ERROR is 5); None if it gives none."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # zeros: change nothing
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != 5
