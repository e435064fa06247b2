"""The random numbers of the data: those of a block of rows, of a mixture's choices and of a shuffle.

What draws asks here, so it does not know the generator. Behind this stand TensorFlow's numbers (`philox.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from limba.data import philox

# (first block, number of blocks) -> a pair of seeds for each, int64 [n, 2]
Pairs = Callable[[int, int], np.ndarray]

SEEDS_AT_ONCE = 1024


class Words:
    """The random numbers of one block, from pairs of seeds, int64 [S, 2]. They are drawn in a fixed order."""

    def __init__(self, seeds: np.ndarray):
        self._seeds = seeds
        self._used = 0

    def _take(self, count: int) -> np.ndarray:
        found = self._seeds[self._used : self._used + count]
        self._used += count
        return found

    def uniform(self, *counts: int) -> list[np.ndarray]:
        """Returns float32 [count] in [0, 1) for each count."""
        seeds = [self._take(1) for _ in counts]
        return [drawn[0] for drawn in philox.uniform(seeds, counts)]

    def uniform_rows(self, num_rows: int, *counts: int) -> list[np.ndarray]:
        """Returns float32 [num_rows, count] in [0, 1) for each count."""
        # As t5 draws them: each row has a seed, of which its preprocessors split theirs.
        seeds = philox.split(self._take(num_rows), len(counts))
        return philox.uniform([seeds[:, number] for number in range(len(counts))], counts)

    def split(self, sizes: Sequence[int]) -> list[Words]:
        """Returns the numbers of each part of the block; a part draws at most `size` times."""
        seeds = philox.split(self._take(1), sum(sizes))[0]
        edges = np.cumsum([0, *sizes])
        return [Words(seeds[start:stop]) for start, stop in itertools.pairwise(edges)]


def pairs_of(seed: int, start: int, count: int) -> np.ndarray:
    """Returns the pairs int64 [count, 2] that two `tf.data.Dataset.random` give, of the seed and the next one."""
    first = start // SEEDS_AT_ONCE
    last = (start + count - 1) // SEEDS_AT_ONCE
    blocks = [_block_of_pairs(seed, number) for number in range(first, last + 1)]
    found = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    return found[start - SEEDS_AT_ONCE * first :][:count]


@functools.lru_cache(maxsize=256)
def _block_of_pairs(seed: int, number: int) -> np.ndarray:
    return np.stack([philox.sequence(seed + side, SEEDS_AT_ONCE * number, SEEDS_AT_ONCE) for side in (0, 1)], 1)


def choices(seed: int, weights: Sequence[float], start: int, count: int) -> np.ndarray:
    """Returns int64 [count]: the parts from which the examples `start` and those after it of a mixture come."""
    return philox.choices(seed, weights, start, count)


def of_shuffle(seed: int, count: int) -> Callable[[int], np.ndarray]:
    """Returns start -> int64 [count], the numbers by which a shuffle chooses element `start` and those after it."""
    first, second = philox.sequence(seed, 0, 2).tolist()
    return lambda start: philox.of_pair(first, second, start, count)
