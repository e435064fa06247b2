"""Fewer points of a long line, such that nothing that stands out is lost."""

from __future__ import annotations

import itertools

import numpy as np


def kept(values: np.ndarray, most: int) -> np.ndarray:
    """Returns the places of at most `most` values, in order: the first, the last, and each stretch's extremes.

    >>> kept(np.asarray([1.0, 2, 9, 2, 1, 2, -5, 2, 1, 1]), 6).tolist()
    [0, 2, 4, 5, 6, 9]
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(1, count - 1, max((most - 2) // 2, 1) + 1).astype(int)
    low = np.where(np.isnan(values), np.inf, values)
    high = np.where(np.isnan(values), -np.inf, values)
    places = {0, count - 1}
    for begin, end in itertools.pairwise(edges):
        places |= {begin + int(np.argmin(low[begin:end])), begin + int(np.argmax(high[begin:end]))}
    return np.asarray(sorted(places))


def evenly(count: int, most: int) -> list[int]:
    """Returns the places of at most `most` of `count` things, the first and the last among them.

    >>> evenly(10, 4), evenly(2, 4), evenly(0, 4)
    ([0, 3, 6, 9], [0, 1], [])
    """
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most)).tolist()}) if count else []
