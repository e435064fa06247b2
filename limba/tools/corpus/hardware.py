"""What a run will train on, by a name such as v4-8, 8xh100 or cpu: its devices, what they compute, what they cost."""

from __future__ import annotations

import difflib
import os
import re
from typing import NamedTuple

from limba.api import PEAK_TFLOPS, find_tool
from limba.config import InputError
from limba.config.prices import price
from limba.config.speed import MFU

CPU_GFLOPS = (32.0, 100.0)  # of a core, at a width of 512 or more; T5 1.1 small has 64 of two with AVX-512
TPU = re.compile(r"v(\d)(e|p|litepod)?-(\d+)", re.IGNORECASE)
KINDS = {  # of TPUs: jax's name, devices that the number counts for one, devices of a chip
    "v2": ("TPU v2", 1, 2), "v3": ("TPU v3", 1, 2), "v4": ("TPU v4", 2, 1), "v5e": ("TPU v5e", 1, 1),
    "v5litepod": ("TPU v5e", 1, 1), "v5p": ("TPU v5p", 2, 1), "v6e": ("TPU v6", 1, 1),
}  # fmt: skip
GPUS = [*(name.lower() for name in PEAK_TFLOPS if not name.startswith("TPU")), "a100-40", "gh200"]
GPU = re.compile(rf"(?:(\d+)x)?({'|'.join(sorted(GPUS, key=len, reverse=True))})(?:[x-](\d+))?", re.IGNORECASE)


def _check_size(name: str, chip: str, number: int) -> None:
    """Raises InputError, with what there is, for a slice of TPUs that Google does not make.

    v4 and v5p come in any box of whole hosts, which count 8 in the name; the others in the sizes that preflight knows.
    """
    chips = find_tool("topologies")
    assert chips is not None  # it is shipped with this one
    sizes = sorted(int(each.name.rpartition("-")[2]) for each in chips.topologies() if each.kind == chip)
    if number in sizes or (chip in ("v4", "v5p") and number > 0 and number % 8 == 0):
        return
    there = ", ".join(f"{chip}-{size}" for size in sizes)
    raise InputError(f"--hardware={name} does not exist: {chip} comes as {there}; give one of these.")


class Hardware(NamedTuple):
    """Some devices; `flops` is the least and the most that one of them computes a second: a share MFU of its peak."""

    name: str
    setup: str  # the argument of launch/setup.sh: tpu, cuda or cpu
    devices: int
    chips: int
    flops: tuple[float, float]
    price: float | None  # dollars a chip-hour by the list; None if it has none
    reason: str

    def flops_at(self, width: int) -> tuple[float, float]:
        """Returns the least and the most that all devices compute a second for a network of a width.

        A CPU's cores do less for a small one.
        """
        share = self.devices * (min(1.0, width / 512) if self.setup == "cpu" else 1.0)
        slow, fast = self.flops
        return share * slow, share * fast


def hardware(name: str | None, cores: int | None = None) -> Hardware:
    """Returns the hardware of a name such as v4-8, h100, 8xh100 or cpu; None: that of this machine.

    `cores` are those of a CPU, if not this machine's. Raises InputError for another name, with those that are near it.

    >>> hardware("v4-8")[:4], hardware("8xh100")[:4], hardware("v3-8")[:4]
    (('v4-8', 'tpu', 4, 4), ('8xh100', 'cuda', 8, 8), ('v3-8', 'tpu', 8, 4))
    """
    if name is None or name == "cpu":
        cores = cores or len(os.sched_getaffinity(0))
        slow, fast = CPU_GFLOPS
        reason = f"{cores} cores of this machine at {slow:.0f} to {fast:.0f} GFLOP/s each, less for a width below 512"
        return Hardware("cpu", "cpu", 1, 1, (cores * slow * 1e9, cores * fast * 1e9), None, reason)
    if match := GPU.fullmatch(name):
        devices, chip = int(match[1] or match[3] or 1), match[2].lower()
        chips = max(1, devices // 2) if chip == "mi250x" else devices  # of two dies, each a device
        kind, setup = chip.upper().removesuffix("-40").removeprefix("G"), "rocm" if chip.startswith("mi") else "cuda"
    elif (match := TPU.fullmatch(name)) and (key := f"v{match[1]}{(match[2] or '').lower()}") in KINDS:
        kind, counted, of_chip = KINDS[key]
        chip, number = key.replace("litepod", "e"), int(match[3])
        _check_size(name, chip, number)
        devices, setup = max(1, number // counted), "tpu"
        chips = max(1, devices // of_chip)
    else:
        known = ["cpu", *GPUS, *(f"8x{each}" for each in GPUS), *(f"{each}-8" for each in KINDS)]
        near = difflib.get_close_matches(name.lower(), known, n=3)
        raise InputError(
            f"--hardware={name} is not known; "
            + (f"did you mean {' or '.join(near)}? Else " if near else "")
            + "give cpu, a GPU such as h100, a100 or 8xh100, or a TPU such as v4-8, v5e-8 or v5p-16."
        )
    if devices < 1:
        raise InputError(f"--hardware={name} has no device; give a number of 1 or more.")
    peak = PEAK_TFLOPS[kind]
    low, high = MFU
    reason = f"{devices} x {kind} at {100 * low:.0f} to {high:.0%} of {peak:g} TFLOP/s, as published runs"
    return Hardware(name, setup, devices, chips, (low * peak * 1e12, high * peak * 1e12), price(chip), reason)
