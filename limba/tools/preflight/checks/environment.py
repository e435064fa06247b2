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
CHIPS = {  # lock: the package that only it has
    "tpu": "libtpu",
    "cuda13": "jax-cuda13-plugin",
    "cuda12": "jax-cuda12-plugin",
    "rocm": "jax-rocm7-plugin",
}
OLDEST_DRIVERS = {"cuda13": 580, "cuda12": 525}  # of NVIDIA; docs/gpus.md
SHOWN = ("jax", "jaxlib", "libtpu", "flax", "optax", "seqio", "tensorflow")
DIFFERENCES_SHOWN = 6
LEAST_FREE = 5 << 30  # bytes on the disks of compiled programs and temporary files
HUB_SECONDS = 3.0
# The error of a clock; Google's tokens are refused from five minutes on.
OFF_SECONDS = 30.0
REFUSED_SECONDS = 240.0
GOOGLE_FILE = "~/.config/gcloud/application_default_credentials.json"
TRUE = ("1", "ON", "YES", "TRUE")  # as the hub's library reads its variables


def environment(config: RunConfig | None = None) -> Section:
    """Returns what is found on this machine, about a run if one is given; takes a second or two.

    It may ask the hub for the time of day, with a limit of HUB_SECONDS.
    """
    data: Data = {}
    lines = [
        *_versions(data),
        *_devices(data),
        *_holders(),
        *_room(data),
        *_tokens(config, data),
        *(() if config is None else _time_limit(config)),
        *_clock(data),
    ]
    return Section("Environment", lines, data)


def wrong_for_a_start(own: int | None = None) -> list[Line]:
    """Returns what is wrong with this machine for a run's next start, and nothing else; asks no server.

    `own` is the process of a run that trains here, which may well hold the devices.
    """
    data: Data = {}
    lines = [*_versions(data), *_devices(data), *_holders(own), *_room(data)]
    return [line for line in lines if line.level != "ok"]


def _versions(data: Data) -> Iterator[Line]:
    versions = installed()
    lock = chip_of(versions)
    python = platform.python_version()
    known = {name: versions[name] for name in SHOWN if name in versions}
    data |= {"python": python, "packages": known, "lock": lock}
    said = ", ".join(f"{name} {version}" for name, version in known.items())
    is_lean = "tensorflow" not in versions
    wanted = pins(LOCKS, lock, is_lean)
    if not wanted:
        yield Line("ok", f"Python {python}, {said}; there is no lock beside an installed package to compare with.")
        return
    fix = f"{'LEAN=1 ' if is_lean else ''}{SETUP} {'cpu' if lock == 'lean' else lock}"
    newest = 14 if is_lean else 13  # TensorFlow has no wheel for 3.14
    if not (3, 11) <= sys.version_info[:2] <= (3, newest):
        tested = f"Python is {python}, and the packages are tested with 3.11 to 3.{newest}."
        yield Line("error", tested, fix, "python-version")
    missing = sorted(set(wanted) - set(versions))
    others = {name: (versions[name], pin) for name, pin in wanted.items() if name in versions and versions[name] != pin}
    data["differ_from_lock"] = {name: list(pair) for name, pair in others.items()} | dict.fromkeys(missing)
    if missing:
        of_chip = pins(LOCKS, lock, is_lean).keys() - pins(LOCKS, "lean" if is_lean else "cpu").keys()
        level = "error" if (_needed(LOCKS.parent / "pyproject.toml") | of_chip) & set(missing) else "warning"
        yield Line(level, f"{_some(missing)} of requirements/lock-{lock}.txt: not installed.", fix, "packages")
    if others:
        some = _some([f"{name} {own} (lock: {pin})" for name, (own, pin) in others.items()])
        yield Line("warning", f"Other versions than those of requirements/lock-{lock}.txt: {some}.", fix, "packages")
    if not missing and not others:
        yield Line("ok", f"Python {python}, {said}: as in requirements/lock-{lock}.txt.")


@functools.cache  # which takes a third of a second
def installed() -> dict[str, str]:
    """Returns package -> version of all installed packages, by their normal names."""
    found = {}
    for each in importlib.metadata.distributions():
        with contextlib.suppress(KeyError, TypeError):  # a folder that lacks its description
            found.setdefault(_normal(each.metadata["Name"]), each.version)
    return found


def _needed(project: Path) -> set[str]:
    """Returns the packages that Limba itself imports; others of a lock are needed by these, or by parts of these."""
    named = tomllib.loads(project.read_text())["project"]["dependencies"] if project.exists() else []
    return {_normal(found[0]) for each in named if (found := re.match(r"[\w.-]+", each))}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def chip_of(versions: Mapping[str, str]) -> str:
    """Returns the lock of the chip whose package is installed; without one cpu, or lean where TensorFlow is not there.

    >>> chip_of({"jax": "0.12", "libtpu": "0.0.50"}), chip_of({"tensorflow": "2.21"}), chip_of({"jax": "0.12"})
    ('tpu', 'cpu', 'lean')
    """
    without = "cpu" if "tensorflow" in versions else "lean"
    return next((lock for lock, package in CHIPS.items() if package in versions), without)


def pins(folder: Path, lock: str, is_lean: bool = False) -> dict[str, str]:
    """Returns package -> version that a lock, with the locks that it includes, has for this Python.

    In a lean environment a chip's lock stands on lock-lean.txt.
    """
    from packaging.markers import Marker

    path = folder / f"lock-{lock}.txt"
    found = {}
    if not path.exists():
        return found
    for line in path.read_text().splitlines():
        if include := re.fullmatch(r"-r lock-(\w+)\.txt", line):
            found |= pins(folder, "lean" if is_lean and include[1] == "cpu" else include[1], is_lean)
            continue
        pin = re.match(r"([\w.-]+)==([^\s;\\]+)(?: *; *([^\\]+))?", line)
        if pin and (pin[3] is None or Marker(pin[3].strip()).evaluate()):
            found[_normal(pin[1])] = pin[2]
    return found


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - DIFFERENCES_SHOWN} more" if len(names) > DIFFERENCES_SHOWN else ""
    return ", ".join(names[:DIFFERENCES_SHOWN]) + more


def _devices(data: Data) -> Iterator[Line]:
    tpu = machine.is_tpu_vm()
    gpus = machine.num_gpus()
    data |= {"tpu": tpu, "gpus": gpus, "cores": os.cpu_count()}
    if tpu:
        found = "a Cloud TPU"
    elif gpus:
        found = f"{gpus} GPU(s)"
    else:
        found = "no TPU and no GPU"
    absent = machine.accelerator_without_packages()
    if absent is not None:
        words, name = absent
        yield Line("error", f"This machine has {words}, and jax has no packages for it.", f"{SETUP} {name}", "packages")
    else:
        yield Line("ok", f"Devices: {found}; {os.cpu_count()} cores, {_gib(_memory())} of memory.")
    chosen = os.environ.get("JAX_PLATFORMS", "")
    if chosen.split(",")[0] == "cpu" and (tpu or gpus):
        text = f"JAX_PLATFORMS is {chosen}, so {found} stays unused in a run of this shell."
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
    is_old = int(version[1]) < OLDEST_DRIVERS["cuda12"]
    fix = "install a newer driver" if is_old else f"{SETUP} cuda12"
    yield Line(
        "error", f"NVIDIA's driver is {version[1]}, and the packages of {lock} need {oldest} or newer.", fix, "driver"
    )


def _holders(own: int | None = None) -> Iterator[Line]:
    locking = processes.holder_of_lock() if machine.is_tpu_vm() else None  # elsewhere it compiles for a TPU
    of_tpu = dict.fromkeys([*processes.holders(processes.TPU_DEVICES), locking])
    for holder in of_tpu:
        if holder is not None and holder.pid != own:
            text = f"The TPU is held by {holder}; a TPU serves one process at a time."
            yield Line("error", text, f"kill {holder.pid}", IN_USE)
    for holder in processes.holders(processes.GPU_DEVICES):
        if holder.pid != own:
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
    places = {
        "compiled programs": (compiled, LEAST_FREE, _other_cache(compiled)),
        "temporary files": (tempfile.gettempdir(), LEAST_FREE, "export TMPDIR=DIRECTORY"),
    }
    yield from room(places, data)


def room(places: Mapping[str, tuple[str, int, str]], data: Data, unwritable: str = "warning") -> Iterator[Line]:
    """Yields the free space of local places: name -> (path, the least bytes, what to do if it has fewer)."""
    free = {}
    wrong = list[Line]()
    for name, (place, least, fix) in places.items():
        if not place or "://" in place:
            continue
        there = Path(place).expanduser()
        while not there.exists() and there != there.parent:
            there = there.parent
        free[name] = shutil.disk_usage(there).free
        if not os.access(there, os.W_OK):
            wrong.append(Line(unwritable, f"{place}, for {name}, cannot be written.", fix, "not-writable"))
        elif free[name] < least:
            wrong.append(Line("warning", f"{_gib(free[name])} are free in {place}, for {name}.", fix, "no-room"))
    data["free_bytes"] = free
    yield from wrong
    if free and not wrong:
        yield Line("ok", "Free: " + ", ".join(f"{_gib(number)} for {name}" for name, number in free.items()) + ".")


def _other_cache(place: str) -> str:
    own = os.environ.get(compile_cache.VARIABLE) or compile_cache.DEFAULT
    is_own = place == str(Path(own).expanduser())  # else the user has set jax's own variable, which comes first
    return f"export {compile_cache.VARIABLE if is_own else compile_cache.OF_JAX}=DIRECTORY"


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
        text = "RunConfig.report_to names wandb, and there is no key for it."
        yield Line("warning", text, "export WANDB_API_KEY=…", "no-key")
    emulated = os.environ.get("STORAGE_EMULATOR_HOST")
    if config is not None and "gs://" in repr(config) and not (present["Google's credentials"] or emulated):
        text = (
            "The run names gs:// addresses, and there are no credentials of Google's: only public buckets can be read."
        )
        yield Line("warning", text, "gcloud auth application-default login", "no-credentials")


def _is_in_netrc(host: str) -> bool:
    import netrc

    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc().authenticators(host) is not None
    return False


def has_google_credentials() -> bool:
    """Returns whether this machine has credentials for buckets: in a file, or as a machine of Google's."""
    given = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if given:
        return os.path.isfile(given)
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
    left = max(int(end) - time.time(), 0.0)
    every = config.checkpoint.every_steps
    records = []
    with contextlib.suppress(Exception):  # a bucket's client has errors of its own; Storage says them
        records = [each for each in RunDirectory(config.model_dir).records() if each["kind"] == "train"]
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
    if any(os.environ.get(name, "").upper() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        yield Line("ok", "The clock is not compared: HF_HUB_OFFLINE is set.")
        return
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        off = clock_error(address)
    except (OSError, ValueError, TypeError) as error:
        reason = reason_of(getattr(error, "reason", error) if isinstance(error, urllib.error.URLError) else error)
        yield Line("ok", f"The clock is not compared: {address} does not answer ({reason}).")
        return
    data["clock_error_seconds"] = round(off, 1)
    if abs(off) < OFF_SECONDS:
        yield Line("ok", f"The clock agrees with that of {address} within {OFF_SECONDS:.0f} s.")
        return
    level = "error" if abs(off) >= REFUSED_SECONDS else "warning"
    text = f"This machine's clock is {abs(off):,.0f} s {'ahead of' if off > 0 else 'behind'} that of {address}"
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
    return (began + time.time()) / 2 - parsedate_to_datetime(date).timestamp()
