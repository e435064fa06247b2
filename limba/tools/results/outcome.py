"""What a task gives: its figures, their intervals, and what else is worth keeping."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

Figures = dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """The result of a task for one model and one seed, as it is kept."""

    figures: Figures
    intervals: dict[str, list[float]] = field(default_factory=dict)  # figure -> from, to
    parts: dict[str, float] = field(default_factory=dict)  # such as the accuracy of each phenomenon
    notes: dict[str, float] = field(default_factory=dict)


def bootstrap(values: Sequence[float], resamples: int, confidence: float) -> list[float]:
    """Returns the percentile interval of the mean of some values, by resampling them with a fixed seed.

    Efron & Tibshirani 1993, chapter 13.

    >>> bootstrap([1.0, 1.0], 10, 0.95)
    [1.0, 1.0]
    """
    given, random = np.asarray(values, np.float64), np.random.default_rng(0)
    means = [float(given[random.integers(0, len(given), len(given))].mean()) for _ in range(resamples)]
    tail = 50 * (1 - confidence)
    return [float(each) for each in np.percentile(means, [tail, 100 - tail])]


def jackknife(
    judge: Callable[[Sequence[int]], Figures], count: int, groups: int, confidence: float
) -> dict[str, list[float]]:
    """Returns the intervals of figures of so many examples: each group of them is left out in turn.

    `judge` is given the places of the examples that count. The standard error is that of the jackknife of groups, the
    interval a normal distribution's: Efron & Tibshirani 1993, chapter 11.

    >>> judge = lambda places: {"accuracy": 100 * sum(place % 2 for place in places) / len(places)}
    >>> [round(each, 1) for each in jackknife(judge, 100, 100, 0.95)["accuracy"]]
    [40.2, 59.8]
    """
    groups, whole = min(groups, count), judge(range(count))
    left = [judge([place for place in range(count) if place % groups != group]) for group in range(groups)]
    width = statistics.NormalDist().inv_cdf((1 + confidence) / 2) * (groups - 1) ** 0.5
    errors = {name: width * float(np.std([each[name] for each in left])) for name in whole}
    return {name: [value - errors[name], value + errors[name]] for name, value in whole.items()}
