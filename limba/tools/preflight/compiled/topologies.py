"""The chips that a run is looked at for, by the names that people write: TPUs, cards of NVIDIA and AMD, CPUs.

`limba/config/hardware.py` has what a chip is. Here is how several of them are joined, and what their compiler is told.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from limba.config import InputError, environment, hardware, speed
from limba.tools.preflight.compiled import nvidia

Figures = Mapping[str, Any]  # of a compiled step, as `figures` in step.py gives them
# The command that installs a TPU's compiler. The script is named, and not imported: it belongs to the repository.
SETUP_TPU = "bash ./launch/setup.sh tpu"
INSTALL_TPU = f"install it, without a TPU, with: {SETUP_TPU}"


@dataclasses.dataclass(frozen=True)
class Topology:
    """Chips of one kind. A device is what JAX calls one: a core of v2 and v3, else a chip."""

    name: str  # as in 'v4-8'
    platform: str  # 'tpu', 'gpu' or 'cpu'
    devices: int
    hosts: int
    gib: float  # memory that a program may use, of one device; 0: this machine's, shared by all devices
    peak_flops: float  # dense FLOP/s of one device in the dtype that training takes there; 0: not known
    clock_ghz: float = 0.0
    link_gb_per_second: float = 0.0  # between chips, of one device
    of_compiler: str = ""  # the compiler's name for the topology
    choices: Mapping[str, object] = dataclasses.field(default_factory=dict)  # the compiler's further choices
    chip: hardware.Chip | None = None  # None: a CPU, or one that the table lacks

    @property
    def chips(self) -> int:
        """The number of chips or cards; v2's, v3's and MI250X's are two devices."""
        return self.devices if self.chip is None else max(1, self.devices // self.chip.devices)

    @property
    def kind(self) -> str:
        """The name without its number, such as v4 or a100-40."""
        return self.name.rpartition("-")[0] if self.chip is None else self.chip.name

    @property
    def speed(self) -> speed.Speed | None:
        """What all devices do a second; None where their peak is not known. A CPU's devices share its cores."""
        if self.platform == "cpu":
            return speed.of_cores(environment.num_cores())
        if not self.peak_flops:
            return None
        memory = 0.0 if self.chip is None else self.chip.gb_per_second * 1e9
        return speed.of_peak(self.devices * self.peak_flops, self.devices * memory)

    @property
    def can_compile(self) -> bool:
        """Whether preflight compiles a step for it without one; for other cards there is arithmetic alone."""
        return self.platform != "gpu" or self.kind in nvidia.JUDGED

    @property
    def has_kernels(self) -> bool:
        """Whether attention has a kernel there, which keeps no scores; on a CPU one keeps none either."""
        return self.chip is None or self.chip.has_kernels

    @property
    def dtype(self) -> str:
        """The dtype of activations that trains fastest there."""
        if self.platform == "cpu":
            return "float32"
        return "bfloat16" if self.chip is None or self.chip.has_bfloat16 else "float16"

    def in_slices(self, number: int) -> Topology:
        """Returns several slices of these TPUs, such as v4-8x2; the network between them is not in the estimates."""
        counts = {"devices": number * self.devices, "hosts": number * self.hosts}
        choices = {**self.choices, "num_slices": number}
        return dataclasses.replace(self, name=f"{self.name}x{number}", choices=choices, **counts)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """How TPUs of a kind are joined to slices."""

    name: str  # also the compiler's
    clock_ghz: float
    shapes: Mapping[int, str]  # number in the name: chips along each axis
    cores_in_name: int  # how often a device counts in the name
    choices: Mapping[str, object] = dataclasses.field(default_factory=dict)


# Names of libtpu: a v4 or v5p chip computes as one device, and hosts have 2 x 2 chips.
_MEGACORE = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1), "num_slices": 1}
# Number in the name -> the sides of the slice, in chips. v2 and v3 count cores, and v4 and v5p count each chip twice.
_CUBES = {8: "2x2x1", 16: "2x2x2", 32: "2x2x4", 64: "2x4x4", 128: "4x4x4", 256: "4x4x8", 512: "4x8x8"}
_CORES = {8: "2x2", 32: "4x4", 128: "8x8", 256: "8x16", 512: "16x16"}
_CHIPS = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_ONE = {"chips_per_host_bounds": (1, 1, 1), "num_slices": 1}
_KINDS = (
    _Kind("v2", 0.70, _CORES, 1),
    _Kind("v3", 0.94, _CORES, 1),
    _Kind("v4", 1.05, _CUBES, 2, _MEGACORE),
    _Kind("v5e", 1.50, {1: "1x1", **_CHIPS}, 1),
    _Kind("v5p", 1.75, _CUBES, 2, _MEGACORE),
    _Kind("v6e", 1.75, {1: "1x1", **_CHIPS}, 1),
)
_CHIPS_OF_HOST = 4
_FRACTION_OF_CARDS = {1: 0.75, 2: 0.9}  # that jax gives to programs on one card, and Limba on several
_NUM_CARDS = (1, 2, 4, 8, 16, 32)  # that are listed; others are taken too
_CARDS_OF_HOST = 8
_MOST_CARDS = 4096
_NUM_CPUS = (1, 2, 4, 8, 16)
_BOXES = ("v4", "v5p")  # TPUs that come in any box of whole hosts, which count 8 in the name


def topologies() -> list[Topology]:
    """Returns all topologies, TPUs first, each kind from its smallest."""
    return list(_table().values())


def topology(name: str, flag: str = "") -> Topology:
    """Returns the chips of a name as people write it: v4-8, h100-8, 8xa100, rtx4090, a100-40-2, cpu.

    Slices of TPUs have their number behind: v4-8x2. Raises InputError for another name, with those that are near it,
    and for a size that does not exist; `flag` begins its sentence.

    >>> pod = topology("v4-32")
    >>> pod.devices, pod.hosts, pod.gib
    (16, 4, 30.75)
    >>> topology("v4-8x2").devices, topology("v4-8x2").hosts, topology("mi300x-8").can_compile
    (8, 2, False)
    >>> topology("4090").name, topology("8xA100").name, topology("a100-40").name, topology("cpu").name
    ('rtx4090-1', 'a100-8', 'a100-40-1', 'cpu-1')
    """
    table = _table()
    text = name.strip().lower()
    asked = f"{flag}{name}" if flag else f"The topology {name}"
    slices = re.fullmatch(r"(.+-\d+)x(\d+)", text)
    if slices and int(slices[2]) > 1:
        one = hardware.written(slices[1])
        if one is not None and one[0].platform == "tpu":
            return topology(slices[1], flag).in_slices(int(slices[2]))
    if text in table:
        return table[text]
    if re.fullmatch(r"cpus?", text):
        return table["cpu-1"]
    written = hardware.written(text)
    if written is None:
        raise InputError(_unknown(text, asked))
    chip, number = written
    if chip.platform == "gpu":
        return _cards_of(chip, 1 if number is None else number, asked)
    return _slice_of(chip, number, asked)


def of_devices(device_kind: str, number: int) -> Topology | None:
    """Returns the chips that so many devices of jax are; None for a kind or a number that is not known.

    >>> [each.name for each in (of_devices("TPU v4", 4), of_devices("NVIDIA L40S", 2)) if each]
    ['v4-8', 'l40s-2']
    """
    chip = hardware.of_device_kind(device_kind)
    if chip is None:
        return None
    in_name = next((kind.cores_in_name for kind in _KINDS if kind.name == chip.name), 1)
    try:
        return topology(f"{chip.name}-{number * in_name}")
    except InputError:
        return None


def _unknown(name: str, asked: str) -> str:
    """Returns the sentence about a name that is not a chip's: all names of a kind, or the names near it."""
    kind = name.strip(" -")
    if kind in ("gpu", "gpus", "cuda", "nvidia", "card"):
        return f"{asked} names no card; give one of {', '.join(hardware.GPU_NAMES)}, several as 8xh100 or h100-8."
    if kind in ("tpu", "tpus"):
        names = ", ".join(hardware.TPU_NAMES)
        return f"{asked} names no TPU; give one of {names} with its size, as v4-8, v5e-16 or v6e-1."
    near = hardware.near(name, ("cpu",))
    meant = f"did you mean {', '.join(near)}? Else give" if near else "give"
    return (
        f"{asked} is not known; {meant} cpu, a card such as rtx4090, a100 or 8xh100, or a TPU such as v4-8; gpu and tpu"
        " list them all."
    )


def _cards_of(chip: hardware.Chip, number: int, asked: str) -> Topology:
    """Returns so many cards: 1 to 8 of a host, or whole hosts of 8."""
    is_whole = number <= _CARDS_OF_HOST or number % _CARDS_OF_HOST == 0
    if not 1 <= number <= _MOST_CARDS or not is_whole:
        raise InputError(
            f"{asked} does not exist: give 1 to {_CARDS_OF_HOST} cards of one machine, or a multiple of"
            f" {_CARDS_OF_HOST} up to {_MOST_CARDS:,}, as {chip.name}-{_CARDS_OF_HOST}."
        )
    gib = round(chip.gib * _FRACTION_OF_CARDS[min(number, 2)], 2)
    hosts = max(1, number // _CARDS_OF_HOST)
    return Topology(
        f"{chip.name}-{number}", "gpu", number, hosts, gib, chip.tflops * 1e12,
        link_gb_per_second=chip.link_gb_per_second, chip=chip,
    )  # fmt: skip


def _slice_of(chip: hardware.Chip, number: int | None, asked: str) -> Topology:
    """Returns a slice of TPUs that Google makes, by the number in its name."""
    kind = next(kind_of_slice for kind_of_slice in _KINDS if kind_of_slice.name == chip.name)
    if number is not None and number in kind.shapes:
        return _tpus(kind, number)
    if number and kind.name in _BOXES and number % 8 == 0:
        return _tpus(dataclasses.replace(kind, shapes={number: _box(number // 8)}), number)
    there = ", ".join(f"{kind.name}-{size}" for size in kind.shapes)
    said = "has no size" if number is None else "does not exist"
    raise InputError(f"{asked} {said}: {kind.name} comes as {there}; give one of these.")


def _box(hosts: int) -> str:
    """Returns the sides of the box of chips, 2 x 2 for each host, that is nearest to a cube.

    >>> _box(3), _box(128)
    ('2x2x3', '8x8x8')
    """
    boxes = []
    for x in range(1, hosts + 1):
        if hosts % x:
            continue
        others = hosts // x
        boxes += [(2 * x, 2 * y, others // y) for y in range(x, others + 1) if others % y == 0]
    return "x".join(map(str, min(boxes, key=lambda box: (sum(box), box))))


def _tpus(kind: _Kind, number: int) -> Topology:
    chip = hardware.chip(kind.name)
    devices = number // kind.cores_in_name
    hosts = max(1, devices // _CHIPS_OF_HOST // chip.devices)
    choices = kind.choices or (_ONE if number == 1 else {})
    return Topology(
        f"{kind.name}-{number}",
        "tpu",
        devices,
        hosts,
        gib=chip.gib,
        peak_flops=chip.tflops * 1e12,
        clock_ghz=kind.clock_ghz,
        link_gb_per_second=chip.link_gb_per_second,
        of_compiler=f"{kind.name}:{kind.shapes[number]}",
        choices=choices,
        chip=chip,
    )


def _table() -> dict[str, Topology]:
    rows = []
    for kind in _KINDS:
        rows += [_tpus(kind, number) for number in kind.shapes]
    for card in (*hardware.NVIDIA, *hardware.AMD):
        rows += [_cards_of(card, number, card.name) for number in _NUM_CARDS]
    rows += [Topology(f"cpu-{number}", "cpu", number, 1, gib=0.0, peak_flops=0.0) for number in _NUM_CPUS]
    return {row.name: row for row in rows}


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
    """Returns an array of the topology's devices; they can be compiled for, not run on (except for simulated CPUs).

    Call it once in a process, before jax has started a platform. XLA writes what it says about programs to the folder
    `dump`. Raises InputError where the compiler is not installed.
    """
    if wanted.platform == "gpu":
        if wanted.devices > 1:
            environment.set_gpu_flags()  # as a run on several cards has them
        return nvidia.topology_devices(wanted.name, dump)
    if wanted.platform == "cpu":
        flag = f"--xla_force_host_platform_device_count={wanted.devices}"
        os.environ["XLA_FLAGS"] = (
            f"{flag} {os.environ.get('XLA_FLAGS', '')}"  # of a flag given twice the last one counts
        )
        import jax

        if len(jax.devices()) < wanted.devices:
            raise InputError(
                f"{wanted.devices} devices are requested and XLA_FLAGS, {os.environ['XLA_FLAGS']!r}, gives"
                f" {len(jax.devices())}; unset it."
            )
        return np.array(jax.devices()[: wanted.devices])
    from jax.experimental import topologies as of_jax

    try:
        description = of_jax.get_topology_desc(platform="tpu", topology_name=wanted.of_compiler, **wanted.choices)
    except Exception as error:  # without libtpu jax knows no such platform, and says so in several ways
        raise InputError(f"No compiler for {wanted.name} ({str(error)[:200]}); {INSTALL_TPU}", fix=SETUP_TPU) from error
    return np.array(description.devices)
