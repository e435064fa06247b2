"""TensorFlow's random numbers, number for number: those of tf.data's seeds, and stateless ones for many seeds at once.

Philox 4x32-10 is Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2, 3", section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
_LOW, _HALF = np.uint64(0xFFFF_FFFF), np.uint64(32)
_GRAPH_SEED, _LARGEST_SEED = 87654321, 2**31 - 1  # which tf.random sets where a graph has none, and of an operation
_SCRAMBLE = np.array([0x3EC8F720, 0x02461E29], np.uint64)  # the key with which TensorFlow mixes a seed


def sequence(seed: int, start: int, count: int) -> np.ndarray:
    """Returns int64 [count]: elements `start` and those after it of `tf.data.Dataset.random(seed)`, 32 bits each."""
    return of_pair(_GRAPH_SEED, seed % _LARGEST_SEED, start, count)


def of_pair(low: int, high: int, start: int, count: int) -> np.ndarray:
    """Returns int64 [count]: words `start` and those after it of TensorFlow's generator of a pair of seeds."""
    first = start // 4
    blocks = np.arange(first, (start + count + 3) // 4, dtype=np.uint64)
    counter = np.zeros([4, len(blocks)], np.uint64)
    counter[0], counter[1] = blocks & _LOW, blocks >> _HALF
    counter[2:] = np.array([[high & 0xFFFF_FFFF], [high >> 32]], np.uint64)
    key = np.array([[low & 0xFFFF_FFFF], [low >> 32]], np.uint64)
    return _philox(counter, key).T.reshape(-1)[start - 4 * first :][:count].astype(np.int64)


def choices(seed: int, weights: Sequence[float], start: int, count: int) -> np.ndarray:
    """Returns int64 [count]: selections `start` and those after it of `sample_from_datasets(…, weights, seed)`."""
    pairs = sequence(seed, 2 * start, 2 * count).reshape(count, 2)
    words = _words([pairs], [2])[0]
    mantissas = ((words[:, 0] & np.uint64(0xF_FFFF)) << _HALF) | words[:, 1] | np.uint64(1023 << 52)
    logits = np.log(np.array(weights, np.float32)).astype(np.float64)
    sums = np.cumsum(np.exp(logits - logits.max()))
    return np.searchsorted(sums, (mantissas.view(np.float64) - 1.0) * sums[-1], side="right")


def uniform(seeds: Sequence[np.ndarray], counts: Sequence[int]) -> list[np.ndarray]:
    """Returns float32 [n, count] in [0, 1) for each of `seeds`, int64 [n, 2], and its count.

    Each row is `tf.random.stateless_uniform([count], seed)`; all are drawn at once.
    """
    words = [(each & np.uint64(0x7F_FFFF)).astype(np.uint32) for each in _words(seeds, counts)]
    return [(mantissas | np.uint32(0x3F80_0000)).view(np.float32) - np.float32(1) for mantissas in words]


def split(seeds: np.ndarray, count: int) -> np.ndarray:
    """Returns int64 [n, count, 2]: `tf.random.experimental.stateless_split(seed, count)` for each of int64 [n, 2]."""
    words = _words([seeds], [4 * count])[0].astype(np.uint32)
    return words.view(np.int64).reshape(len(seeds), count, 2)


def _words(seeds: Sequence[np.ndarray], counts: Sequence[int]) -> list[np.ndarray]:
    """Returns the first `count` 32-bit words of each seed of int64 [n, 2], uint64 [n, count]."""
    pairs = np.ascontiguousarray(np.stack(seeds, 1), np.int64)
    halves = np.moveaxis(pairs.view(np.uint32).astype(np.uint64), 2, 0)  # [4, n, K]
    mixed = _philox(halves, _SCRAMBLE)
    blocks = [-(-count // 4) for count in counts]
    of_kind = np.repeat(mixed, blocks, axis=2)  # [4, n, all blocks]
    counter = np.zeros_like(of_kind)
    counter[0] = np.concatenate([np.arange(size) for size in blocks])
    counter[2:] = of_kind[2:]
    words = np.moveaxis(_philox(counter, of_kind[:2]), 0, 2)
    parts = np.split(words, np.cumsum(blocks)[:-1], axis=1)
    return [part.reshape(len(part), -1)[:, :count] for part, count in zip(parts, counts, strict=True)]


def _philox(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Returns the four 32-bit words of the counter's four under the key's two, all as uint64.

    Both halves of a round are one operation: on less data numpy's time is mostly spent on the calls, and each call
    lets another thread take the interpreter.
    """
    multipliers, weyl, keys = (_columns(each, counter.ndim) for each in (_MULTIPLIERS, _WEYL, key))
    even, odd = counter[0::2], counter[1::2]
    for _ in range(10):
        product = (even * multipliers)[::-1]
        even = product >> _HALF
        even ^= odd
        even ^= keys
        odd = product & _LOW
        keys = (keys + weyl) & _LOW
    return np.stack([even[0], odd[0], even[1], odd[1]])


def _columns(pair: np.ndarray, num_axes: int) -> np.ndarray:
    return pair.reshape(pair.shape + (1,) * (num_axes - pair.ndim))
