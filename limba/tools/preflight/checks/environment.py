"""The machine: versions against the lock, devices and their packages, who holds them, room, tokens, time limit, clock.

Nothing here starts a device or needs jax.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path

from limba.config import RunConfig, compile_cache, reason_of
from limba.config import environment as machine
from limba.tools.preflight.checks import processes
from limba.tools.preflight.checks.verdict import Data, Line, Section

SETUP = "bash launch/setup.sh"
IN_USE = "device-in-use"
LOCKS = Path(__file__).resolve().parents[4] / "requirements"
# Lock -> the package that only it has. A TPU's last: the tests' packages have its compiler on a card's machine, too.
CHIPS = {
    "cuda13": "jax-cuda13-plugin",
    "cuda12": "jax-cuda12-plugin",
    "rocm": "jax-rocm7-plugin",
    "tpu": "libtpu",
}
OLDEST_DRIVERS = {"cuda13": 580, "cuda12": 525}  # of NVIDIA; docs/install.md
SHOWN = ("jax", "jaxlib", "libtpu", "flax", "optax", "seqio", "tensorflow")  # packages whose versions are printed
DIFFERENCES_SHOWN = 6
LEAST_FREE = 5 << 30  # bytes on the disks of compiled programs and temporary files
HUB_SECONDS = 3.0  # for an answer of the hub
# By how much a clock is wrong. Google refuses tokens from five minutes on.
OFF_SECONDS = 30.0  # a warning
REFUSED_SECONDS = 240.0  # an error
GOOGLE_FILE = "~/.config/gcloud/application_default_credentials.json"
TRUE = ("1", "ON", "YES", "TRUE")  # as the hub's library reads its variables


def environment(config: RunConfig | None = None) -> Section:
    """Returns what is found on this machine, about a run if one is given; takes a second or two.

    It may ask the hub for the time of day, with a limit of HUB_SECONDS.
    """
    data: Data = {}
    lines = [*_versions(data), *_devices(data), *_holders(), *_room(data), *_tokens(config, data)]
    if config is not None:
        lines += _time_limit(config)
    lines += _clock(data)
    return Section("Environment", lines, data)


def wrong_for_a_start(pid: int | None = None) -> list[Line]:
    """Returns what is wrong with this machine for a run's next start, and nothing else; asks no server.

    `pid` is the process of a run that trains here, which may well hold the devices.
    """
    data: Data = {}
    lines = [*_versions(data), *_devices(data), *_holders(pid), *_room(data)]
    return [line for line in lines if line.level != "ok"]


def _versions(data: Data) -> Iterator[Line]:
    """Yields how Python and the installed packages differ from the lock of this machine's chip."""
    versions = installed()
    lock = chip_of(versions)
    python = platform.python_version()
    shown = {name: versions[name] for name in SHOWN if name in versions}
    data |= {"python": python, "packages": shown, "lock": lock}
    said = ", ".join(f"{name} {version}" for name, version in shown.items())
    is_lean = "tensorflow" not in versions
    wanted = pins(LOCKS, lock, is_lean)
    if not wanted:
        yield Line("ok", f"Python {python}, {said}; an installed package has no lock to compare with.")
        return
    chip = "cpu" if lock == "lean" else lock
    fix = f"LEAN=1 {SETUP} {chip}" if is_lean else f"{SETUP} {chip}"
    newest = 14 if is_lean else 13  # TensorFlow has no wheel for 3.14
    if not (3, 11) <= sys.version_info[:2] <= (3, newest):
        tested = f"Python is {python}, and the packages are tested with 3.11 to 3.{newest}."
        yield Line("error", tested, fix, "python-version")
    missing = sorted(set(wanted) - set(versions))
    others = {name: (versions[name], pin) for name, pin in wanted.items() if name in versions and versions[name] != pin}
    data["differ_from_lock"] = {name: list(pair) for name, pair in others.items()} | dict.fromkeys(missing)
    if missing:
        # Limba cannot run without what it imports itself, nor on a chip without the chip's own packages.
        of_chip = wanted.keys() - pins(LOCKS, "lean" if is_lean else "cpu").keys()
        needed = _needed(LOCKS.parent / "pyproject.toml") | of_chip
        level = "error" if needed & set(missing) else "warning"
        yield Line(level, f"{_some(missing)} of requirements/lock-{lock}.txt: not installed.", fix, "packages")
    if others:
        some = _some([f"{name} {version} (lock: {pin})" for name, (version, pin) in others.items()])
        yield Line("warning", f"Versions that differ from requirements/lock-{lock}.txt: {some}.", fix, "packages")
    if not missing and not others:
        yield Line("ok", f"Python {python}, {said}: as in requirements/lock-{lock}.txt.")


@functools.cache  # which takes a third of a second
def installed() -> dict[str, str]:
    """Returns package -> version of all installed packages, by their normal names."""
    versions = {}
    for distribution in importlib.metadata.distributions():
        with contextlib.suppress(KeyError, TypeError):  # a folder that lacks its description
            # The first one on the path is the one that is imported.
            versions.setdefault(_normal(distribution.metadata["Name"]), distribution.version)
    return versions


def _needed(project: Path) -> set[str]:
    """Returns the packages that Limba itself imports; the other ones of a lock are needed by these."""
    if not project.exists():
        return set()
    needed = set()
    for requirement in tomllib.loads(project.read_text())["project"]["dependencies"]:
        name = re.match(r"[\w.-]+", requirement)
        if name:
            needed.add(_normal(name[0]))
    return needed


def _normal(name: str) -> str:
    """Returns a package's name as the index normalizes it: lower case, with hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def chip_of(versions: Mapping[str, str]) -> str:
    """Returns the lock of the chip whose package is installed; without one cpu, or lean where TensorFlow is not there.

    >>> chip_of({"jax": "0.12", "libtpu": "0.0.50"}), chip_of({"tensorflow": "2.21"}), chip_of({"jax": "0.12"})
    ('tpu', 'cpu', 'lean')
    """
    for lock, package in CHIPS.items():
        if package in versions:
            return lock
    return "cpu" if "tensorflow" in versions else "lean"


def pins(folder: Path, lock: str, is_lean: bool = False) -> dict[str, str]:
    """Returns package -> version that a lock, with the locks that it includes, has for this Python.

    In a lean environment a chip's lock stands on lock-lean.txt.
    """
    from packaging.markers import Marker

    path = folder / f"lock-{lock}.txt"
    versions = {}
    if not path.exists():
        return versions
    for line in path.read_text().splitlines():
        include = re.fullmatch(r"-r lock-(\w+)\.txt", line)
        if include:
            included = "lean" if is_lean and include[1] == "cpu" else include[1]
            versions |= pins(folder, included, is_lean)
            continue
        pin = re.match(r"([\w.-]+)==([^\s;\\]+)(?: *; *([^\\]+))?", line)
        if pin is None:
            continue
        name, version, marker = pin.groups()
        if marker is None or Marker(marker.strip()).evaluate():
            versions[_normal(name)] = version
    return versions


def _some(names: Sequence[str]) -> str:
    text = ", ".join(names[:DIFFERENCES_SHOWN])
    if len(names) > DIFFERENCES_SHOWN:
        text += f" and {len(names) - DIFFERENCES_SHOWN} more"
    return text


def _devices(data: Data) -> Iterator[Line]:
    """Yields this machine's devices, and whether jax has their packages and is told to use them."""
    tpu = machine.is_tpu_vm()
    gpus = machine.num_gpus()
    data |= {"tpu": tpu, "gpus": gpus, "cores": machine.num_cores()}
    if tpu:
        devices = "a Cloud TPU"
    elif gpus:
        devices = f"{gpus} GPU(s)"
    else:
        devices = "no TPU and no GPU"
    absent = machine.accelerator_without_packages()
    if absent is not None:
        words, name = absent
        yield Line("error", f"This machine has {words}, and jax has no packages for it.", f"{SETUP} {name}", "packages")
    else:
        yield Line("ok", f"Devices: {devices}; {machine.num_cores()} cores, {_gib(_memory())} of memory.")
    chosen = os.environ.get("JAX_PLATFORMS", "")
    if chosen.split(",")[0] == "cpu" and (tpu or gpus):
        text = f"JAX_PLATFORMS is {chosen}, so {devices} stays unused in a run of this shell."
        yield Line("warning", text, "unset JAX_PLATFORMS", "unused-device")
    with contextlib.suppress(OSError):
        yield from driver_lines(Path("/proc/driver/nvidia/version").read_text(), chip_of(installed()))


def driver_lines(text: str, lock: str) -> Iterator[Line]:
    """Yields what the text of NVIDIA's driver says about the packages of a lock.

    >>> text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build"
    >>> [line.level for line in driver_lines(text, "cuda13")], [line.fix for line in driver_lines(text, "cuda13")]
    (['error'], ['bash launch/setup.sh cuda12'])
    """
    version = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+)(?:\.[\d.]+)?", text)
    oldest = OLDEST_DRIVERS.get(lock)
    if version is None or oldest is None:
        return
    if int(version[1]) >= oldest:
        yield Line("ok", f"NVIDIA's driver is {version[1]}; {lock} needs {oldest} or newer.")
        return
    is_too_old_for_any = int(version[1]) < OLDEST_DRIVERS["cuda12"]
    fix = "install a newer driver" if is_too_old_for_any else f"{SETUP} cuda12"
    yield Line(
        "error", f"NVIDIA's driver is {version[1]}, and the packages of {lock} need {oldest} or newer.", fix, "driver"
    )


def _holders(own_process: int | None = None) -> Iterator[Line]:
    """Yields other processes that use a device; `own_process` is one that may."""
    of_tpu = processes.holders(processes.TPU_DEVICES)
    if machine.is_tpu_vm():  # elsewhere whoever locks libtpu's file compiles for a TPU that is not here
        locking = processes.holder_of_lock()
        if locking is not None and locking not in of_tpu:
            of_tpu.append(locking)
    for holder in of_tpu:
        if holder.pid != own_process:
            text = f"The TPU is held by {holder}; a TPU serves one process at a time."
            yield Line("error", text, f"kill {holder.pid}", IN_USE)
    for holder in processes.holders(processes.GPU_DEVICES):
        if holder.pid != own_process:
            text = f"A GPU is also used by {holder}, whose memory a run cannot have."
            yield Line("warning", text, f"kill {holder.pid}", IN_USE)


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.1f} GiB"


def _room(data: Data) -> Iterator[Line]:
    compiled = os.environ.get(compile_cache.OF_JAX, "")
    if not compiled:  # off, or a folder that is not safe: one line at the start has said why
        yield Line("ok", "Compiled programs are not kept: each start compiles again.")
    folders = {
        "compiled programs": (compiled, LEAST_FREE, _other_cache(compiled)),
        "temporary files": (tempfile.gettempdir(), LEAST_FREE, "export TMPDIR=DIRECTORY"),
    }
    yield from room(folders, data)


def room(folders: Mapping[str, tuple[str, int, str]], data: Data, unwritable: str = "warning") -> Iterator[Line]:
    """Yields the free space of local folders: name -> (path, the least bytes, what to do if it has fewer)."""
    free = {}
    wrong = list[Line]()
    for name, (folder, least, fix) in folders.items():
        if not folder or "://" in folder:
            continue
        existing = Path(folder).expanduser()  # the folder, or where it would be made
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        free[name] = shutil.disk_usage(existing).free
        if not os.access(existing, os.W_OK):
            wrong.append(Line(unwritable, f"{folder}, for {name}, cannot be written.", fix, "not-writable"))
        elif free[name] < least:
            wrong.append(Line("warning", f"{_gib(free[name])} are free in {folder}, for {name}.", fix, "no-room"))
    data["free_bytes"] = free
    yield from wrong
    if free and not wrong:
        yield Line("ok", "Free: " + ", ".join(f"{_gib(number)} for {name}" for name, number in free.items()) + ".")


def _other_cache(folder: str) -> str:
    """Returns the command that keeps compiled programs in another folder than this one."""
    chosen_by_limba = os.environ.get(compile_cache.VARIABLE) or compile_cache.DEFAULT
    variable = compile_cache.VARIABLE
    if folder != str(Path(chosen_by_limba).expanduser()):  # the user has set jax's own variable, which comes first
        variable = compile_cache.OF_JAX
    return f"export {variable}=DIRECTORY"


def _tokens(config: RunConfig | None, data: Data) -> Iterator[Line]:
    """Yields which tokens are there; their values are never shown."""
    from limba.api import hub_token

    reports = () if config is None else config.reports
    present = {
        "HF_TOKEN": bool(hub_token()),
        "WANDB_API_KEY": bool(os.environ.get("WANDB_API_KEY")) or _is_in_netrc("api.wandb.ai"),
        "Google's credentials": has_google_credentials(),
    }
    data["tokens"] = present
    there = [name for name, is_there in present.items() if is_there]
    absent = [name for name, is_there in present.items() if not is_there]
    said = []
    if there:
        said.append(f"{', '.join(there)}: present")
    if absent:
        said.append(f"{', '.join(absent)}: absent")
    yield Line("ok", f"Tokens (never shown): {'; '.join(said)}.")
    is_online = os.environ.get("WANDB_MODE") not in ("offline", "disabled")
    if "wandb" in reports and is_online and not present["WANDB_API_KEY"]:
        text = "RunConfig.report_to names wandb, and no API key for it is set."
        yield Line("warning", text, "export WANDB_API_KEY=…", "no-key")
    has_access = present["Google's credentials"] or os.environ.get("STORAGE_EMULATOR_HOST")
    names_bucket = config is not None and "gs://" in repr(config)
    if names_bucket and not has_access:
        text = "The run names gs:// addresses, and there are no Google credentials: only public buckets can be read."
        yield Line("warning", text, "gcloud auth application-default login", "no-credentials")


def _is_in_netrc(host: str) -> bool:
    import netrc

    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc().authenticators(host) is not None
    return False


def has_google_credentials() -> bool:
    """Returns whether this machine has credentials for buckets: in a file, or as a machine of Google's."""
    key_file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if key_file:
        return os.path.isfile(key_file)
    with contextlib.suppress(OSError):
        if "Google" in Path("/sys/class/dmi/id/product_name").read_text():
            return True  # its metadata server gives them
    return os.path.isfile(os.path.expanduser(GOOGLE_FILE))


def _time_limit(config: RunConfig) -> Iterator[Line]:
    """Yields Slurm's time limit against the checkpoint period, with the speed of the run that model_dir holds."""
    if not os.environ.get("SLURM_JOB_ID"):
        return
    from limba.api import PlannedRun, RunDirectory, duration

    end = os.environ.get("SLURM_JOB_END_TIME", "")
    if not end.isdigit():
        yield Line("ok", "This is a job of Slurm, which does not say when it ends (SLURM_JOB_END_TIME).")
        return
    left = max(int(end) - time.time(), 0.0)  # seconds
    every = config.checkpoint.every_steps
    records = []
    with contextlib.suppress(Exception):  # a bucket's client has errors of its own; Storage says them
        records = [record for record in RunDirectory(config.model_dir).records() if record["kind"] == "train"]
    if not records:
        text = (
            f"The job of Slurm ends in {duration(left)}; a checkpoint is saved every {every} steps, and before the end."
        )
        yield Line("ok", text)
        return
    speed = float(records[-1]["seconds_per_step"])
    step = int(records[-1]["step"])
    advice = PlannedRun(config).job_advice(step, speed)
    if advice:
        steps = max(1, int(left / speed / 4))
        yield Line("warning", advice, ("CheckpointConfig.every_steps", steps), "time-limit")
    else:
        yield Line("ok", f"The Slurm job ends in {duration(left)}, after the next checkpoint at {speed:.3g} s a step.")


def _clock(data: Data) -> Iterator[Line]:
    """Yields how far this machine's clock is from the hub's."""
    if any(os.environ.get(name, "").upper() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        yield Line("ok", "The clock is not compared: HF_HUB_OFFLINE is set.")
        return
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        off = clock_error(address)
    except (OSError, ValueError, TypeError) as error:
        cause = getattr(error, "reason", error) if isinstance(error, urllib.error.URLError) else error
        yield Line("ok", f"The clock is not compared: {address} does not answer ({reason_of(cause)}).")
        return
    data["clock_error_seconds"] = round(off, 1)
    if abs(off) < OFF_SECONDS:
        yield Line("ok", f"The clock agrees with {address} within {OFF_SECONDS:.0f} s.")
        return
    level = "error" if abs(off) >= REFUSED_SECONDS else "warning"
    direction = "ahead of" if off > 0 else "behind"
    text = f"This machine's clock is {abs(off):,.0f} s {direction} {address}"
    yield Line(level, f"{text}; buckets refuse tokens of a wrong time.", "sudo timedatectl set-ntp true", "clock")


def clock_error(address: str) -> float:
    """Returns by how many seconds this machine's clock is ahead of a server's; OSError if it does not answer."""
    request = urllib.request.Request(address, method="HEAD")
    began = time.time()
    try:
        with urllib.request.urlopen(request, timeout=HUB_SECONDS) as answer:
            date = answer.headers["Date"]
    except urllib.error.HTTPError as error:  # a refusal has the time too
        date = error.headers["Date"]
    middle = (began + time.time()) / 2  # when the server most likely wrote its date
    return middle - parsedate_to_datetime(date).timestamp()
