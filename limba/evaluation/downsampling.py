"""Chooses some of many points: for a line of a chart, or some of many evaluations."""

from __future__ import annotations

import itertools

import numpy as np


def keep_extremes(values: np.ndarray, most: int) -> np.ndarray:
    """Returns the indices of at most `most` values, in order: the first, the last, and each stretch's extremes.

    A line through these points has the spikes of the whole line, which every n-th point would lose. NaN is not an
    extreme.

    >>> keep_extremes(np.asarray([1.0, 2, 9, 2, 1, 2, -5, 2, 1, 1]), 6).tolist()
    [0, 2, 4, 5, 6, 9]
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    num_stretches = max((most - 2) // 2, 1)  # each gives its lowest and its highest value, besides first and last
    edges = np.linspace(1, count - 1, num_stretches + 1).astype(int)
    low = np.where(np.isnan(values), np.inf, values)
    high = np.where(np.isnan(values), -np.inf, values)
    chosen = {0, count - 1}
    for begin, end in itertools.pairwise(edges):
        chosen.add(begin + int(np.argmin(low[begin:end])))
        chosen.add(begin + int(np.argmax(high[begin:end])))
    return np.asarray(sorted(chosen))


def evenly(count: int, most: int) -> list[int]:
    """Returns the indices of at most `most` of `count` things at even distances, the first and the last among them.

    >>> evenly(10, 4), evenly(2, 4), evenly(0, 4)
    ([0, 3, 6, 9], [0, 1], [])
    """
    if not count:
        return []
    return sorted({round(position) for position in np.linspace(0, count - 1, min(count, most)).tolist()})
