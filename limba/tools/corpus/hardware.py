"""What a run will train on, by a name such as v4-8, 8xh100, 4090 or cpu: preflight's chips, and what they cost."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from limba.api import find_tool
from limba.config import InputError, environment, speed
from limba.config.hardware import Chip
from limba.config.prices import price

VOLTA = (
    "is a Volta card: CUDA 13 has no code for it, so its set-up is `bash launch/setup.sh cuda12` with a driver of"
    " version 525 or newer. cuDNN has none either from 9.11 on: where that fails, install nvidia-cudnn-cu12 below 9.11."
    " It has no bfloat16, so the run computes in float16, and its attention is the einsum. Nothing was tried on one"
)
TURING = "has no bfloat16: the run computes in float16 with a scaled loss, and its attention is the einsum"


class Devices(Protocol):
    """Chips as preflight knows them (`limba/tools/preflight/compiled/topologies.py`)."""

    @property
    def name(self) -> str: ...
    @property
    def platform(self) -> str: ...
    @property
    def devices(self) -> int: ...
    @property
    def chips(self) -> int: ...
    @property
    def peak_flops(self) -> float: ...
    @property
    def has_kernels(self) -> bool: ...
    @property
    def dtype(self) -> str: ...
    @property
    def chip(self) -> Chip | None: ...


class Hardware(NamedTuple):
    """Some devices, and the dollars of a chip-hour by the list; None if they have no price there."""

    chips_of_preflight: Devices
    limit: float  # bytes that a device has for programs
    price: float | None

    @property
    def name(self) -> str:
        """The name, which preflight takes too."""
        return "cpu" if self.is_cpu else self.chips_of_preflight.name

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU."""
        return self.chips_of_preflight.platform == "cpu"

    @property
    def devices(self) -> int:
        """The number of devices, as JAX counts them."""
        return self.chips_of_preflight.devices

    @property
    def chips(self) -> int:
        """The number of chips or cards, which have the price."""
        return self.chips_of_preflight.chips

    @property
    def dtype(self) -> str:
        """The dtype of activations."""
        return self.chips_of_preflight.dtype

    @property
    def has_kernels(self) -> bool:
        """Whether attention keeps no scores there."""
        return self.is_cpu or self.chips_of_preflight.has_kernels

    @property
    def reason(self) -> str:
        """How its speed was found, in words."""
        if self.is_cpu:
            slow, fast = speed.CPU_GFLOPS
            return (
                f"{_cores_in_words()} of this machine at {slow:.0f} to {fast:.0f} GFLOP/s each, less for a width below"
                f" {speed.CPU_WIDTH}"
            )
        low, high = speed.MFU
        chip = self.chips_of_preflight.chip
        kind = self.name if chip is None else chip.name
        peak = self.chips_of_preflight.peak_flops / 1e12
        text = f"{self.devices} x {kind} at {100 * low:.0f} to {100 * high:.0f} % of {peak:g} TFLOP/s"
        return text if self.has_kernels else f"{text}, and its scores through memory"

    @property
    def words(self) -> str:
        """What was found, where it is this machine."""
        if self.is_cpu:
            return f"This machine: {_cores_in_words()}, {self.limit / 2**30:.1f} GiB of memory, no accelerator."
        return f"This machine: {self.name}, {self.limit / 2**30:.1f} GiB a device for programs."

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user of it has to know beforehand."""
        chip = self.chips_of_preflight.chip
        if chip is None or chip.has_bfloat16:
            return ()
        return (f"{chip.name} {VOLTA if chip.capability < 7.5 else TURING}.",)


def _cores_in_words() -> str:
    cores = environment.num_cores()
    return f"{cores} core{'' if cores == 1 else 's'}"


def of_this_machine() -> Hardware:
    """Returns the devices that jax finds here; InputError where it has no packages for them, or they are not known."""
    lacking = environment.accelerator_without_packages()
    if lacking is not None:
        words, setup = lacking
        raise InputError(
            f"This machine has {words}, and jax's packages for it are not installed; run bash launch/setup.sh {setup}."
        )
    import jax

    devices = jax.devices()
    first = devices[0]
    if first.platform == "cpu":
        return hardware(None)
    topologies = find_tool("topologies")
    assert topologies is not None  # it is shipped with this one
    chips = topologies.of_devices(first.device_kind, len(devices))
    if chips is None:
        raise InputError(
            f"jax finds {len(devices)} x {first.device_kind} here, for which no figures are known; name the nearest"
            " chips, as in --hardware=rtx4090; --hardware=gpu lists them."
        )
    limit = (first.memory_stats() or {}).get("bytes_limit") or topologies.limit_bytes(chips)
    return Hardware(chips, limit, price(chips.name))


def hardware(name: str | None) -> Hardware:
    """Returns the hardware of a name such as v4-8, h100, 8xh100, 4090 or cpu; None: this machine's CPU.

    Raises InputError for another name, with those that are near it.

    >>> [(found.name, found.devices, found.chips) for found in map(hardware, ("v4-8", "8xh100", "v3-8", "RTX 4090"))]
    [('v4-8', 4, 4), ('h100-8', 8, 8), ('v3-8', 8, 4), ('rtx4090-1', 1, 1)]
    """
    topologies = find_tool("topologies")
    assert topologies is not None  # it is shipped with this one
    chips = topologies.topology("cpu" if name is None else name, "--hardware=")
    return Hardware(chips, topologies.limit_bytes(chips), price(chips.name))
