"""Intervals over test examples, and models compared in pairs on the same resamples of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from limba.tools.results.kinds.fine_tuned import Example, Learned
from limba.tools.results.outcome import Prediction, percentiles
from limba.tools.results.protocol import Protocol
from limba.tools.results.scores import Draws


class Comparison(NamedTuple):
    """The difference of two models in a figure, first less second."""

    figure: str
    first: str
    second: str
    difference: float
    interval: list[float]
    p: float


def resamples(documents: Sequence[str], protocol: Protocol) -> np.ndarray:
    """Returns how often each example is in each resample, [R, N]: documents are drawn, with all their examples.

    Efron & Tibshirani 1993, chapter 8; the seed is fixed, so that all models have the same resamples.
    """
    names = {name: number for number, name in enumerate(dict.fromkeys(documents))}
    random = np.random.default_rng(0)
    drawn = random.multinomial(len(names), np.full(len(names), 1 / len(names)), protocol.resamples)
    return drawn[:, [names[document] for document in documents]]


def draws(
    task: Learned, examples: Sequence[Example], seeds: Sequence[Sequence[Prediction]], counts: np.ndarray
) -> Draws:
    """Returns the figures of a model in each resample, [R], the mean over its seeds."""
    of_seeds = [task.figures(examples, predictions, counts) for predictions in seeds]
    return {name: np.mean([of_seed[name] for of_seed in of_seeds], 0) for name in of_seeds[0]}


def draws_of_shares(
    figure: str, predictions: Mapping[str, Sequence[Sequence[Prediction]]], protocol: Protocol
) -> dict[str, Draws]:
    """Returns the mean of numbers, one for each example of a task that is not learned, in each resample."""
    length = len(next(iter(predictions.values()))[0])
    counts = resamples([str(index) for index in range(length)], protocol)
    return {
        model: {figure: np.mean([counts @ np.array(numbers, np.float64) / length for numbers in seeds], 0)}
        for model, seeds in predictions.items()
    }


def compared(
    means: Mapping[str, Mapping[str, float]], drawn: Mapping[str, Draws], protocol: Protocol
) -> list[Comparison]:
    """Returns each pair of models in each figure, by the paired bootstrap.

    p is two-sided: how often a resample has the difference at 0 or on the other side (Efron & Tibshirani 1993, chapter
    16; Berg-Kirkpatrick, Burkett & Klein 2012), each count with one more, so that it is never 0.
    """
    comparisons = []
    for first, second in itertools.combinations(means, 2):
        for figure in means[first]:
            differences = drawn[first][figure] - drawn[second][figure]
            sides = (differences <= 0).sum(), (differences >= 0).sum()
            p = min(1.0, 2 * (min(sides) + 1) / (len(differences) + 1))
            difference = means[first][figure] - means[second][figure]
            interval = percentiles(differences, protocol.confidence)
            comparisons.append(Comparison(figure, first, second, difference, interval, float(p)))
    return comparisons


def best_of(figure: str, means: Mapping[str, float], pairs: Sequence[Comparison], protocol: Protocol) -> str | None:
    """Returns the model that is better than each other one in a figure, decided by the pairs; None if none is."""
    best = max(means, key=lambda model: means[model])
    pairs_of_best = [pair for pair in pairs if pair.figure == figure and best in (pair.first, pair.second)]
    is_decided = pairs_of_best and all(pair.p < 1 - protocol.confidence for pair in pairs_of_best)
    return best if is_decided else None
