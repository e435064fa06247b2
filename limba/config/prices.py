"""List prices of chips on demand, in dollars a chip-hour, from the date below; spot prices and grants cost less.

TPUs, L4 and T4: cloud.google.com/tpu/pricing and /compute/gpus-pricing, regions of the US, as they were in 2025 and not
looked up since (v2 and v3 by the chip of two cores; L4 with its machine, T4 without). A10G: AWS's g5.xlarge, in the
same way. H200: runpod.io/pricing, 2026-10-07. RTX 3090, 4090 and 5090, L40 and L40S: RunPod's community cloud in March
2026. The others: lambda.ai/instances, 2026-09-20, in machines of eight cards (GH200: of one). H200, RunPod's and
Lambda's were read in copies of these pages. Other cards have no list price here; most of them are bought.
"""

import re

from limba.config import hardware

DATE = "2026-10"
PRICES = {
    "v2": 1.13, "v3": 2.00, "v4": 3.22, "v5e": 1.20, "v5p": 4.20, "v6e": 2.70,
    "l4": 0.71, "t4": 0.35, "v100": 0.79, "a100-40": 1.99, "a100": 2.79, "h100": 3.99, "h200": 4.59, "gh200": 2.29,
    "b200": 6.69, "a10g": 1.01, "rtx3090": 0.22, "rtx4090": 0.34, "rtx5090": 0.69, "l40": 0.69, "l40s": 0.79,
}  # fmt: skip


def device_price(kind: str) -> float | None:
    """Returns the dollars of a device-hour on demand by jax's `device_kind`, None for one without a list price.

    >>> device_price("TPU v4"), device_price("TPU v3"), device_price("NVIDIA A100-SXM4-40GB"), device_price("cpu")
    (3.22, 1.0, 1.99, None)
    >>> device_price("TPU v5 lite"), device_price("TPU v5"), device_price("NVIDIA RTX A6000")
    (1.2, 4.2, None)
    """
    chip = hardware.of_device_kind(kind)
    if chip is None or chip.name not in PRICES:
        return None
    return PRICES[chip.name] / chip.devices


def price(chip: str) -> float | None:
    """Returns the dollars of a chip-hour on demand, None for a chip without a list price.

    A chip is named as in a topology, with or without numbers of chips and slices.

    >>> price("v4"), price("v4-8x2"), price("a100-40-8"), price("8xh100"), price("mi250x-8")
    (3.22, 3.22, 1.99, 3.99, None)
    """
    name = re.sub(r"(-\d+)x\d+$", r"\1", chip)  # of slices
    chip_and_number = hardware.written(name)
    return None if chip_and_number is None else PRICES.get(chip_and_number[0].name)
