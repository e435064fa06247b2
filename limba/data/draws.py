"""The random numbers of the data: numpy's Philox (Salmon et al. 2011), counted by purpose and number.

Nothing else draws. A number follows from seed, name, purpose, shard and its own count alone, so it can be drawn again
from any place, and needs nothing of what was drawn before. Which words are drawn, and in which order, is a format: a
change is another order of the data (`stream/positions.py`).

Only `random_raw` of numpy is used, whose stream is promised never to change; a Generator's methods are not (NEP 19).
"""

from __future__ import annotations

import enum
import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.random.bit_generator import ISeedSequence

WORD = (1 << 64) - 1
MOST_SORTED = 1 << 12  # keys that are sorted as 32 bits


class Purpose(enum.IntEnum):
    """What is drawn, and what its number counts."""

    UNITS = 1  # the order of an epoch's units: 0
    CHUNK = 2  # the order of a chunk's documents: unit and chunk
    RECORDS = 3  # the keys of a permutation of records: 0
    ROWS = 4  # what an objective hides or splits: the block of rows
    MIXTURE = 5  # the tasks of examples: the group of examples
    SHUFFLE = 6  # the order of a window: the window
    SEQIO = 7  # the first seed of preprocessors in TensorFlow: 0; a source's seed: 1


class _Key(ISeedSequence):
    """A key in the form of a seed: given its argument `key`, Philox would first draw a seed from the system, unused."""

    def __init__(self, key: np.ndarray):
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """Returns the key, uint64 [2], which is all that Philox asks for."""
        del n_words, dtype
        return self._key


class Words:
    """The random words of one number, drawn in a fixed order."""

    def __init__(self, philox: np.random.Philox):
        self._philox = philox

    def raw(self, count: int) -> np.ndarray:
        """Returns the next words, uint64 [count]."""
        return self._philox.random_raw(count)

    def keys(self, *shape: int) -> np.ndarray:
        """Returns uint32 of this shape: halves of words, the lower one first."""
        count = int(np.prod(shape))
        halves = self.raw((count + 1) // 2).astype("<u8", copy=False).view("<u4")
        return halves[:count].reshape(shape)

    def uniform(self, *shape: int) -> np.ndarray:
        """Returns float32 of this shape in [0, 1)."""
        return (self.keys(*shape) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)

    def uniform64(self, count: int) -> np.ndarray:
        """Returns float64 [count] in [0, 1)."""
        return (self.raw(count) >> np.uint64(11)) * 2.0**-53

    def permutation(self, size: int) -> np.ndarray:
        """Returns a permutation of range(size), int64."""
        return self.raw(size).argsort(kind="stable")


class Draws(NamedTuple):
    """What random numbers depend on beside their purpose and number.

    `name` is the name of a task or mixture. `era` is an epoch for the order of documents; for all else it is the first
    epoch of a pass over a changed corpus, and 0 before. `step` counts the steps of a task that draw.
    """

    seed: int
    name: str = ""
    shard: int = 0
    era: int = 0
    step: int = 0

    def words(self, purpose: Purpose, number: int = 0) -> Words:
        """Returns the random words of a number."""
        key = np.array([self.seed & WORD, _key_of(self.name)], np.uint64)
        kind = purpose << 48 | self.step << 32 | self.shard
        # Philox counts its own blocks in the first word.
        counter = np.array([0, number, kind, self.era], np.uint64)
        seed: Any = _Key(key)  # numpy's own type of it is narrower than what it takes
        return Words(np.random.Philox(seed, counter))

    def seed_of_seqio(self, number: int = 0) -> int:
        """Returns a seed for TensorFlow and seqio, of 31 bits."""
        (word,) = self.words(Purpose.SEQIO, number).raw(1).tolist()
        return word >> 33

    def next_step(self) -> Draws:
        """Returns what the next step that draws depends on."""
        return self._replace(step=self.step + 1)


@functools.lru_cache(maxsize=4096)
def _key_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def order_of(keys: np.ndarray) -> np.ndarray:
    """Returns the places of keys uint32 [..., n] from the least to the greatest, along the last axis.

    The lowest bits of a key give way to its place, so that the numbers sort at once and equal ones stay in order.
    """
    count = keys.shape[-1]
    if count > MOST_SORTED:
        wide = keys.astype(np.uint64) << np.uint64(32) | np.arange(count, dtype=np.uint64)
        return (np.sort(wide) & np.uint64(0xFFFF_FFFF)).astype(np.int64)
    bits = np.uint32(max(count - 1, 0).bit_length())
    places = np.sort(keys >> bits << bits | np.arange(count, dtype=np.uint32))
    return places & ((np.uint32(1) << bits) - np.uint32(1))
