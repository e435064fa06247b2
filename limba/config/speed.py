"""The time of a step and of a run before anything has run: a range, by what was measured and published, and its words.

A step takes its matrix products at a share of the peak (`MFU`). Where attention has no kernel, its scores go to memory
and back beside them (`SCORE_TRAFFIC`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST_STEP_SECONDS = 0.005  # of any step: what starts its programs takes milliseconds, whatever the peak is
# Share of the peak that matrix products reach. T5 base on one H200 28 to 34 %, mT5 base and T5 large on one H100 26
# and 31 % (docs/development/proof.md); published: T5s on A100 25 to 37 %, language models of 345M to 750M on TPUs 35 to
# 39 %.
MFU = (0.2, 0.4)
MEASURED = "T5 base had 28 to 34 % on one H200, and published runs lie between 25 and 39 %"
# Bytes that cross a device's memory for each score of attention, where no kernel keeps them: written, normalized in
# float32, read by two products; as much again for the gradient, and up to twice that where they are computed twice.
SCORE_TRAFFIC = (24.0, 48.0)
CPU_GFLOPS = (32.0, 100.0)  # of a core, at a width of 512 or more; T5 1.1 small has 64 of two with AVX-512
CPU_WIDTH = 512  # of a network, below which a CPU's cores do less
# Of the time that the steps take, at the slow end: the start, compiling, evaluations, saves, and what a preemption a
# day takes (a quarter of an hour for new machines, and at most half an hour of steps that are done again).
BESIDE_STEPS = 0.15
BESIDE = f"with {BESIDE_STEPS:.0%} at the slow end for start, compiling, evaluations, saves and preemptions"


class Work(NamedTuple):
    """What a step computes, on all devices together."""

    flops: float
    scores: float  # of attention that go to memory; 0 where a kernel keeps them
    width: int  # of the network


class Speed(NamedTuple):
    """What all devices of a run do a second, at least and at most."""

    flops: tuple[float, float]
    bytes_of_memory: float = 0.0  # 0 where it is part of the former, as on a CPU

    def at(self, width: int) -> tuple[float, float]:
        """Returns the least and the most FLOP/s for a network of a width."""
        share = 1.0 if self.bytes_of_memory else min(1.0, width / CPU_WIDTH)
        slow, fast = self.flops
        return share * slow, share * fast


def of_peak(flops: float, bytes_of_memory: float) -> Speed:
    """Returns what devices do that have such a peak, and move so many bytes a second."""
    low, high = MFU
    return Speed((low * flops, high * flops), bytes_of_memory)


def of_cores(cores: int) -> Speed:
    """Returns what the cores of a CPU do."""
    low, high = CPU_GFLOPS
    return Speed((low * 1e9 * cores, high * 1e9 * cores))


def step_seconds(work: Work, speed: Speed) -> tuple[float, float]:
    """Returns the shortest and longest time of a step.

    >>> step_seconds(Work(40.0, 0.0, 512), Speed((10.0, 20.0), 1.0))
    (2.0, 4.0)
    >>> step_seconds(Work(0.0, 0.0, 512), Speed((1.0, 2.0)))
    (0.005, 0.005)
    """
    slow, fast = speed.at(work.width)
    shortest = work.flops / fast
    longest = work.flops / slow
    if speed.bytes_of_memory:
        least, most = SCORE_TRAFFIC
        shortest += least * work.scores / speed.bytes_of_memory
        longest += most * work.scores / speed.bytes_of_memory
    return max(LEAST_STEP_SECONDS, shortest), max(LEAST_STEP_SECONDS, longest)


def hours_of_run(steps: float, seconds: tuple[float, float]) -> tuple[float, float]:
    """Returns the shortest and longest time of a run in hours, from the shortest and longest step in seconds.

    The longest has room for what is not a step (`BESIDE_STEPS`).

    >>> hours_of_run(3600, (1.0, 2.0))
    (1.0, 2.3)
    """
    fastest, slowest = seconds
    return steps * fastest / 3600, steps * slowest * (1 + BESIDE_STEPS) / 3600


def in_time(hours: Sequence[float]) -> str:
    """Returns a time, or a range of times, in the unit that fits it.

    >>> in_time([0.0001, 0.001]), in_time([0.25]), in_time([5, 11]), in_time([30, 80])
    ('under a minute', '15 minutes', '5 to 11 hours', '1.2 to 3.3 days')
    """
    longest = hours[-1]
    if longest < 1 / 60:
        return "under a minute"
    if longest >= 48:
        unit = 24.0
        name = "days"
    elif longest >= 1.5:
        unit = 1.0
        name = "hours"
    else:
        unit = 1 / 60
        name = "minutes"
    return f"{in_range([duration / unit for duration in hours])} {name}"


def in_range(values: Sequence[float], unit: str = "") -> str:
    """Returns the least and the most of something, each to two digits; one number if they are the same.

    >>> in_range([80, 160], "$"), in_range([0.0131, 0.0132])
    ('$80 to $160', '0.013')
    """
    return " to ".join(dict.fromkeys(f"{unit}{number(value)}" for value in values))


def number(value: float) -> str:
    """Returns a number to two digits.

    >>> number(0.0123), number(5), number(1234.5)
    ('0.012', '5', '1,200')
    """
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:.2g}"
