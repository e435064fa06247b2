"""Intervals over test examples and over seeds, and models compared in pairs: on the same examples, and over seeds."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from limba.tools.results.kinds.fine_tuned import Example, Learned
from limba.tools.results.outcome import Outcome, Prediction, percentiles
from limba.tools.results.protocol import Protocol
from limba.tools.results.scores import Draws

OfSeeds = Mapping[str, Sequence[float]]  # figure -> its value with each seed; one value of what is not trained


class Comparison(NamedTuple):
    """The difference of two models in a figure, first less second."""

    figure: str
    first: str
    second: str
    difference: float
    interval: list[float]  # over examples
    p: float  # over examples
    p_over_seeds: float | None = None  # None: neither has several seeds

    def decides(self, confidence: float) -> bool:
        """Returns whether other examples, and other seeds, would hardly turn the difference round."""
        p_over_seeds = 0.0 if self.p_over_seeds is None else self.p_over_seeds
        return max(self.p, p_over_seeds) < 1 - confidence


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


def draws_of_ratio(outcome: Outcome, protocol: Protocol) -> Draws:
    """Returns the figure of a task that is not learned in each resample: its sum of numbers over that of their sizes.

    The numbers are of pairs, of which each counts as one, or of a text's windows. Of many windows, neighbours are drawn
    together.
    """
    (figure,) = outcome.figures
    numbers = np.array(outcome.predictions, np.float64)
    sizes = np.array(outcome.sizes or [1.0] * len(numbers), np.float64)
    begins = range(0, len(numbers), math.ceil(len(numbers) / protocol.most_blocks))
    counts = resamples([str(begin) for begin in begins], protocol)
    sums = counts @ np.add.reduceat(numbers, begins)
    sizes_drawn = np.maximum(1.0, counts @ np.add.reduceat(sizes, begins))  # as in the figure itself
    return {figure: sums / sizes_drawn}


def compared(values: Mapping[str, OfSeeds], drawn: Mapping[str, Draws], protocol: Protocol) -> list[Comparison]:
    """Returns each pair of models in each figure that both have, by the paired bootstrap and over seeds.

    p is two-sided: how often a resample has the difference at 0 or on the other side (Efron & Tibshirani 1993, chapter
    16; Berg-Kirkpatrick, Burkett & Klein 2012), each count with one more, so that it is never 0.
    """
    comparisons = []
    for first, second in itertools.combinations(values, 2):
        for figure in values[first]:
            if figure not in values[second]:
                continue
            differences = drawn[first][figure] - drawn[second][figure]
            sides = (differences <= 0).sum(), (differences >= 0).sum()
            p = min(1.0, 2 * (min(sides) + 1) / (len(differences) + 1))
            of_first = values[first][figure]
            of_second = values[second][figure]
            comparison = Comparison(
                figure=figure,
                first=first,
                second=second,
                difference=statistics.fmean(of_first) - statistics.fmean(of_second),
                interval=percentiles(differences, protocol.confidence),
                p=float(p),
                p_over_seeds=p_over_seeds(of_first, of_second),
            )
            comparisons.append(comparison)
    return comparisons


def p_over_seeds(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Returns Welch's two-sided p of the difference of two means over seeds; None where neither has several.

    What has one value, such as a simple rule, is a constant: then it is Student's p of the other mean.

    >>> round(p_over_seeds([70.0, 71.0, 72.0], [69.0]), 3), p_over_seeds([70.0], [69.0])
    (0.074, None)
    """
    variances = [statistics.variance(values) / len(values) for values in (first, second) if len(values) > 1]
    if not variances:
        return None
    difference = statistics.fmean(first) - statistics.fmean(second)
    if not sum(variances):  # all seeds agree, such as on one constant answer
        return 1.0 if difference == 0 else 0.0
    from scipy import stats

    lengths = [len(values) for values in (first, second) if len(values) > 1]
    parts = [variance**2 / (length - 1) for variance, length in zip(variances, lengths, strict=True)]
    degrees_of_freedom = sum(variances) ** 2 / sum(parts)
    return float(2 * stats.t.sf(abs(difference) / math.sqrt(sum(variances)), degrees_of_freedom))


def best_of(
    figure: str, means: Mapping[str, float], pairs: Sequence[Comparison], protocol: Protocol, fewer_is_better: bool
) -> str | None:
    """Returns the model that is better than each other one in a figure, decided by the pairs; None if none is."""
    best_end = min if fewer_is_better else max
    best = best_end(means, key=lambda model: means[model])
    pairs_of_best = [pair for pair in pairs if pair.figure == figure and best in (pair.first, pair.second)]
    is_decided = pairs_of_best and all(pair.decides(protocol.confidence) for pair in pairs_of_best)
    return best if is_decided else None
