"""The speed of a step by what its compiler reports, as a range.

No chip has confirmed these figures, so each says how it was made.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from limba.api import flops_per_sequence
from limba.config import RunConfig
from limba.config.speed import LEAST_STEP_SECONDS, MEASURED, MFU
from limba.tools.preflight.compiled.topologies import Figures, Topology

KERNEL_EFFICIENCY = 0.6  # of the peak, for Pallas kernels, which the compiler gives no cycles
SLOWEST = 2.0  # times the compiler's cycles, which know nothing of waiting for memory or of the host
CPU_SLOWEST = 3.0  # times what the products alone take at the speed of a product of this machine


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds a step at best and at worst, and the sentences that say how they were made."""

    fastest: float
    slowest: float
    made: str

    def figures(self, config: RunConfig, lengths: tuple[int, int], topology: Topology) -> dict[str, Any]:
        """Returns tokens a second, MFU and days as (lowest, highest); the last two None where they are not known."""
        tokens = config.data.batch_size * sum(lengths)
        flops = _flops(config, lengths)
        peak = topology.peak_flops * topology.devices
        steps = config.train_steps
        shortest_first = (self.fastest, self.slowest)
        longest_first = (self.slowest, self.fastest)
        return {
            "seconds_per_step": list(shortest_first),
            "tokens_per_second": [tokens / seconds for seconds in longest_first],
            "mfu": [flops / seconds / peak for seconds in longest_first] if peak else None,
            "days": [steps * seconds / 86400 for seconds in shortest_first] if steps else None,
        }


def _flops(config: RunConfig, lengths: tuple[int, int]) -> float:
    return flops_per_sequence(config.model, *lengths, config.data.num_predicted) * config.data.batch_size


def estimate(config: RunConfig, step: Figures, lengths: tuple[int, int], topology: Topology) -> Estimate:
    """Returns the range of a step's time from the figures of its compiled program."""
    if topology.platform == "gpu":
        return _on_gpu(config, step, lengths, topology)
    if topology.platform == "cpu":
        return _on_cpu(step, topology)
    return _on_tpu(step, topology)


def _on_gpu(config: RunConfig, step: Figures, lengths: tuple[int, int], topology: Topology) -> Estimate:
    seconds_at_peak = _flops(config, lengths) / topology.devices / topology.peak_flops
    exchanged = exchange_seconds(step.get("collective_bytes", {}), topology)
    low, high = MFU
    return Estimate(
        fastest=max(seconds_at_peak / high, exchanged, LEAST_STEP_SECONDS),
        slowest=max(seconds_at_peak / low + 2 * exchanged, LEAST_STEP_SECONDS),
        made=f"the step's matrix products at {low:.0%} to {high:.0%} of the peak ({MEASURED}), since"
        " NVIDIA's compiler gives no time; exchanges at the links' speed, which at the slow end hide behind nothing"
        f" and take twice as long; and at least {LEAST_STEP_SECONDS * 1000:g} ms",
    )


def _on_cpu(step: Figures, topology: Topology) -> Estimate:
    speed = product_flops_per_second()
    seconds = step["product_flops"] * topology.devices / speed  # all devices share this machine's cores
    return Estimate(
        fastest=seconds,
        slowest=CPU_SLOWEST * seconds,
        made=f"the step's matrix products at the {speed / 1e9:.0f} GFLOP/s that a product of 1,024 has on this machine"
        f" now, up to {CPU_SLOWEST:g} times that for all else",
    )


def _on_tpu(step: Figures, topology: Topology) -> Estimate:
    exchanged = exchange_seconds(step.get("collective_bytes", {}), topology)
    kernel_flops_per_cycle = KERNEL_EFFICIENCY * topology.peak_flops / (topology.clock_ghz * 1e9)
    cycles = step["fusion_cycles"] + step["kernel_flops"] / kernel_flops_per_cycle
    seconds = cycles / topology.clock_ghz / 1e9
    return Estimate(
        fastest=max(seconds, exchanged, LEAST_STEP_SECONDS),
        slowest=max(SLOWEST * (seconds + exchanged), LEAST_STEP_SECONDS),
        made=f"{cycles / 1e6:,.0f} M cycles of a device at {topology.clock_ghz} GHz, by XLA's own estimates of its"
        f" fusions with loops multiplied, and attention kernels at {KERNEL_EFFICIENCY:.0%} of the peak. The fast end"
        " hides every exchange behind them; the slow end takes twice the cycles, and exchanges at half of the links'"
        " speed. XLA's cycles leave out waiting for memory and for the host, so the truth is more likely near the slow"
        " end",
    )


def exchange_seconds(exchanged: Mapping[str, int], topology: Topology) -> float:
    """Returns the seconds that a device's exchanges take at the full speed of its links; 0 on one device or CPUs.

    A ring moves twice as many bytes for an all-reduce as for an all-gather or a reduce-scatter of the same size.
    """
    if not topology.link_gb_per_second or topology.devices == 1:
        return 0.0
    num_bytes = sum(size * (2 if kind == "all-reduce" else 1) for kind, size in exchanged.items())
    return num_bytes / (topology.link_gb_per_second * 1e9)


def product_flops_per_second(size: int = 1024) -> float:
    """Returns the FLOP/s of this machine's float32 matrix product, the best of some."""
    import numpy as np

    a = np.ones((size, size), np.float32)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        np.matmul(a, a)
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
