"""The time of a step and of a run before anything has run: a range, by what published runs reach, and its words."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_STEP_SECONDS = 0.005  # of any step: what starts its programs takes milliseconds, whatever the peak is
MFU = (0.2, 0.5)  # share of the peak that a step's matrix products reach in published runs
# Of the time that the steps take, at the slow end: the start, compiling, evaluations, saves, and what a preemption a
# day takes (a quarter of an hour for new machines, and at most half an hour of steps that are done again).
BESIDE_STEPS = 0.15
BESIDE = f"with {BESIDE_STEPS:.0%} at the slow end for start, compiling, evaluations, saves and preemptions"


def step_seconds(flops: float, speeds: tuple[float, float]) -> tuple[float, float]:
    """Returns the shortest and longest time of a step of so many FLOPs, at the least and most FLOP/s of all devices."""
    slow, fast = speeds
    return max(LEAST_STEP_SECONDS, flops / fast), max(LEAST_STEP_SECONDS, flops / slow)


def hours_of_run(steps: float, seconds: tuple[float, float]) -> tuple[float, float]:
    """Returns the shortest and longest time of a run, in hours, by those of a step in seconds.

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
    return f"{in_range([each / unit for each in hours])} {name}"


def in_range(values: Sequence[float], unit: str = "") -> str:
    """Returns the least and the most of something, each to two digits; one number if they are the same.

    >>> in_range([80, 160], "$"), in_range([0.0131, 0.0132])
    ('$80 to $160', '0.013')
    """
    return " to ".join(dict.fromkeys(f"{unit}{number(each)}" for each in values))


def number(value: float) -> str:
    """Returns a number to two digits.

    >>> number(0.0123), number(5), number(1234.5)
    ('0.012', '5', '1,200')
    """
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:.2g}"
