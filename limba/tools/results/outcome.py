"""What a task gives: its figures, their intervals, and what else is worth keeping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Figures = dict[str, float]
Prediction = str | float | list[str]  # a class, a score, or a tag of each word


@dataclass(frozen=True)
class Outcome:
    """The result of a task for one model and one seed, as it is kept."""

    figures: Figures
    intervals: dict[str, list[float]] = field(default_factory=dict)  # figure -> from, to
    parts: dict[str, float] = field(default_factory=dict)  # such as the accuracy of each phenomenon
    notes: dict[str, float] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)  # of a training: an entry for each epoch
    predictions: list[Prediction] = field(default_factory=list)  # of each test example, pair or window of a text
    sizes: list[float] = field(default_factory=list)  # what each of these numbers is divided by; []: by 1


def bootstrap(values: Sequence[float], resamples: int, confidence: float) -> list[float]:
    """Returns the percentile interval of the mean of some values, by resampling them with a fixed seed.

    Efron & Tibshirani 1993, chapter 13.

    >>> bootstrap([1.0, 1.0], 10, 0.95)
    [1.0, 1.0]
    """
    of_examples = np.asarray(values, np.float64)
    random = np.random.default_rng(0)
    means = [
        float(of_examples[random.integers(0, len(of_examples), len(of_examples))].mean()) for _ in range(resamples)
    ]
    return percentiles(np.array(means), confidence)


def percentiles(draws: np.ndarray, confidence: float) -> list[float]:
    """Returns the interval that holds the middle of some draws."""
    tail = 50 * (1 - confidence)
    return [float(value) for value in np.percentile(draws, [tail, 100 - tail])]
