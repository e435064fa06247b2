"""The chips that a run is looked at for, by their names on the cloud: TPUs, NVIDIA's and AMD's cards, simulated CPUs.

Memory of TPUs is what libtpu's compiler lets a program use (it says so when a program is larger). Peaks, clocks and
bandwidths are from Google's and NVIDIA's data sheets; bandwidths are a chip's, of all its links in one direction.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from limba.api import PEAK_TFLOPS
from limba.config import InputError, environment
from limba.tools.preflight.compiled import nvidia

WITHOUT_KERNELS = ("v2", "v3", "t4", "v100", "mi250x", "mi300x")
Figures = Mapping[str, Any]  # of a compiled step, as `figures` in step.py gives them


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips of one kind. A device is what JAX calls one: a core of v2 and v3, else a chip."""

    name: str  # as in 'v4-8'
    platform: str  # 'tpu', 'gpu' or 'cpu'
    devices: int
    hosts: int
    gib: float  # memory that a program may use, of one device; 0: this machine's, shared by all devices
    peak_flops: float  # dense bfloat16 FLOP/s of one device; 0: not known
    clock_ghz: float = 0.0
    link_gb_per_second: float = 0.0  # between chips, of one device
    of_compiler: str = ""  # the compiler's name for the topology
    choices: Mapping[str, object] = dataclasses.field(default_factory=dict)  # the compiler's further choices

    @property
    def chips(self) -> int:
        """The number of chips or cards; v2's, v3's and MI250X's are two devices."""
        return max(1, self.devices // 2) if re.match("v[23]-|mi250x-", self.name) else self.devices

    @property
    def kind(self) -> str:
        """The name without its number, such as v4 or a100-40."""
        return self.name.rpartition("-")[0]

    @property
    def can_compile(self) -> bool:
        """Whether a step can be compiled for it without one; for other cards there is arithmetic alone."""
        return self.platform != "gpu" or self.kind in nvidia.CARDS

    @property
    def has_kernels(self) -> bool:
        """Whether attention has a kernel there, which keeps no scores; on a CPU one keeps none either."""
        return self.kind not in WITHOUT_KERNELS

    def in_slices(self, number: int) -> Topology:
        """Returns several slices of these TPUs, such as v4-8x2; the network between them is not in the estimates."""
        counts = {"devices": number * self.devices, "hosts": number * self.hosts}
        choices = {**self.choices, "num_slices": number}
        return dataclasses.replace(self, name=f"{self.name}x{number}", choices=choices, **counts)


@dataclasses.dataclass(frozen=True)
class _Kind:
    prefix: str
    of_compiler: str
    gib: float
    tflops: float
    clock_ghz: float
    link_gb_per_second: float
    shapes: Mapping[int, str]  # number in the name: chips along each axis
    cores_in_name: int  # how often a device counts in the name
    choices: Mapping[str, object] = dataclasses.field(default_factory=dict)


_MEGACORE = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1), "num_slices": 1}
_CUBES = {8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4", 256: "4x4x8", 512: "4x8x8"}
_CORES = {8: "2x2", 32: "4x4", 128: "8x8", 256: "8x16", 512: "16x16"}
_CHIPS = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_ONE = {"chips_per_host_bounds": (1, 1, 1), "num_slices": 1}
_KINDS = (
    _Kind("v2", "v2", 7.48, 23.0, 0.70, 124.0, _CORES, 1),
    _Kind("v3", "v3", 15.48, 61.5, 0.94, 164.0, _CORES, 1),
    _Kind("v4", "v4", 30.75, 275.0, 1.05, 300.0, _CUBES, 2, _MEGACORE),
    _Kind("v5e", "v5e", 15.75, 197.0, 1.50, 200.0, {1: "1x1", **_CHIPS}, 1),
    _Kind("v5p", "v5p", 95.74, 459.0, 1.75, 600.0, _CUBES, 2, _MEGACORE),
    _Kind("v6e", "v6e", 31.25, 918.0, 1.75, 448.0, {1: "1x1", **_CHIPS}, 1),
)
_CHIPS_OF_HOST = 4
_FRACTION_OF_CARDS = {1: 0.75, 2: 0.9}  # that jax gives to programs on one card, and Limba on several
_CARDS = {  # GB of memory, and GB a second of all links of a card in one direction
    "a100": (85.0, 300.0), "h100": (85.0, 450.0), "h200": (150.1, 450.0), "a100-40": (42.5, 300.0),
    "l4": (24.0, 32.0), "t4": (15.8, 16.0), "v100": (16.9, 150.0), "gh200": (102.0, 450.0), "b200": (191.0, 900.0),
    "mi250x": (68.7, 100.0), "mi300x": (206.0, 448.0),
}  # fmt: skip
_NUM_CPUS = (1, 2, 4, 8, 16)


def topologies() -> list[Topology]:
    """Returns all topologies, TPUs first, each kind from its smallest."""
    return list(_table().values())


def topology(name: str) -> Topology:
    """Returns the topology of this name, or several slices of one; InputError, with names that are near, for another.

    >>> pod = topology("v4-32")
    >>> pod.devices, pod.hosts, pod.gib
    (16, 4, 30.75)
    >>> topology("v4-8x2").devices, topology("v4-8x2").hosts, topology("mi300x-8").can_compile
    (8, 2, False)
    """
    table = _table()
    slices = re.fullmatch(r"(v\w+-\d+)x(\d+)", name.lower())
    if slices and slices[1] in table and int(slices[2]) > 1:
        return table[slices[1]].in_slices(int(slices[2]))
    found = table.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), table, n=4, cutoff=0.3) or ["v4-8", "v5e-16", "h100-8"]
        raise InputError(f"The topology {name} is not known; did you mean {', '.join(near)}?")
    return found


def _table() -> dict[str, Topology]:
    found = []
    for kind in _KINDS:
        for number, shape in kind.shapes.items():
            devices = number // kind.cores_in_name
            hosts = max(1, devices // _CHIPS_OF_HOST // (2 if kind.prefix in ("v2", "v3") else 1))
            choices = kind.choices or (_ONE if number == 1 else {})
            figures = (kind.gib, kind.tflops * 1e12, kind.clock_ghz, kind.link_gb_per_second)
            place = f"{kind.of_compiler}:{shape}"
            found.append(Topology(f"{kind.prefix}-{number}", "tpu", devices, hosts, *figures, place, choices))
    for card, (memory_gb, link) in _CARDS.items():
        peak = next(tflops for kind, tflops in PEAK_TFLOPS.items() if kind in card.upper()) * 1e12
        for number in (1, 2, 4, 8, 16, 32):
            gib = round(memory_gb * 1e9 / 2**30 * _FRACTION_OF_CARDS[min(number, 2)], 2)
            hosts = max(1, number // 8)
            found.append(Topology(f"{card}-{number}", "gpu", number, hosts, gib, peak, link_gb_per_second=link))
    found += [Topology(f"cpu-{number}", "cpu", number, 1, 0.0, 0.0) for number in _NUM_CPUS]
    return {each.name: each for each in found}


def limit_bytes(wanted: Topology) -> float:
    """Returns the bytes that a device of the topology has for programs; a CPU's devices share this machine's."""
    if wanted.gib:
        return wanted.gib * 2**30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / wanted.devices


def check_installed(wanted: Topology) -> None:
    """Raises InputError if the topology's compiler is not installed, without importing it."""
    if wanted.platform == "tpu" and importlib.util.find_spec("libtpu") is None:
        raise InputError(f"No compiler for {wanted.name}; {INSTALL_TPU}", fix=SETUP_TPU)
    if wanted.platform == "gpu":
        nvidia.check_installed(wanted.name)


def devices_of(wanted: Topology, dump: str) -> np.ndarray:
    """Returns an array of the topology's devices; they can be compiled for, not run on (but for simulated CPUs).

    Call it once in a process, before jax has started a platform. XLA writes what it says about programs to the folder
    `dump`. Raises InputError where the compiler is not installed.
    """
    if wanted.platform == "gpu":
        if wanted.devices > 1:
            environment.set_gpu_flags()  # as a run on several cards has them
        return nvidia.topology_devices(wanted.name, dump)
    if wanted.platform == "cpu":
        given = f"--xla_force_host_platform_device_count={wanted.devices}"
        os.environ["XLA_FLAGS"] = f"{given} {os.environ.get('XLA_FLAGS', '')}"
        import jax

        if len(jax.devices()) < wanted.devices:
            raise InputError(
                f"{wanted.devices} devices are requested and XLA_FLAGS, {os.environ['XLA_FLAGS']!r}, gives"
                f" {len(jax.devices())}; unset it."
            )
        return np.array(jax.devices()[: wanted.devices])
    from jax.experimental import topologies as of_jax

    try:
        found = of_jax.get_topology_desc(platform="tpu", topology_name=wanted.of_compiler, **wanted.choices)
    except Exception as error:  # without libtpu jax knows no such platform, and says so in several ways
        raise InputError(f"No compiler for {wanted.name} ({str(error)[:200]}); {INSTALL_TPU}", fix=SETUP_TPU) from error
    return np.array(found.devices)


# The scripts of the repository; this folder does not import them.
SETUP_TPU = "bash ./launch/setup.sh tpu"
INSTALL_TPU = f"install it, without a TPU, with: {SETUP_TPU}"
