"""TensorFlow's stateless random numbers, number for number, for many seeds at once.

`tf.random.stateless_uniform` takes one seed a call; a block of rows, each with seeds of its own, would be hundreds
of operations in every shard's graph. Philox 4x32-10 is Salmon et al. 2011 ("Parallel random numbers: as easy as
1, 2, 3", section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_LOW, _HALF = np.uint64(0xFFFF_FFFF), np.uint64(32)
_SCRAMBLE = np.array([0x3EC8F720, 0x02461E29], np.uint64)  # the key with which TensorFlow mixes a seed


def uniform(seeds: np.ndarray, count: int) -> np.ndarray:
    """Returns float32 [n, count] in [0, 1): `tf.random.stateless_uniform([count], seed)` for each of int64 [n, 2]."""
    mantissas = (_words(seeds, count) & np.uint64(0x7F_FFFF)).astype(np.uint32)
    return (mantissas | np.uint32(0x3F80_0000)).view(np.float32) - np.float32(1)


def split(seeds: np.ndarray, count: int) -> np.ndarray:
    """Returns int64 [n, count, 2]: `tf.random.experimental.stateless_split(seed, count)` for each of int64 [n, 2]."""
    words = _words(seeds, 4 * count).astype(np.uint32)
    return words.view(np.int64).reshape(len(seeds), count, 2)


def _words(seeds: np.ndarray, count: int) -> np.ndarray:
    """Returns the first `count` 32-bit words that each seed gives, uint64 [n, count]."""
    halves = np.ascontiguousarray(seeds, np.int64).view(np.uint32).astype(np.uint64)
    mixed = _philox(list(halves.T), _SCRAMBLE)
    places = np.arange(-(-count // 4), dtype=np.uint64)
    none = np.zeros([1, 1], np.uint64)
    words = _philox([places[None], none, mixed[2][:, None], mixed[3][:, None]], [mixed[0][:, None], mixed[1][:, None]])
    return np.stack(words, -1).reshape(len(seeds), -1)[:, :count]


def _philox(counter: Sequence[np.ndarray], key: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the four words of 32 bits that belong to the counter's four under the key's two, all as uint64."""
    first, second, third, fourth = counter
    keys = list(key)
    for _ in range(10):
        low, high = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first, third = high >> _HALF ^ second ^ keys[0], low >> _HALF ^ fourth ^ keys[1]
        second, fourth = high & _LOW, low & _LOW
        keys = [(word + step) & _LOW for word, step in zip(keys, _WEYL, strict=True)]
    return np.broadcast_arrays(first, second, third, fourth)
