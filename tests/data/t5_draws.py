"""TensorFlow's random numbers as t5's preprocessors draw them, instead of the numbers in `limba.data.draws`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from limba.data.dataset import ROWS_PER_BLOCK, TOKENS, Dataset, Elements
from limba.data.draws import Purpose, Words
from limba.data.objectives.spans import num_noise

RANKED = np.uint32(16)  # bits below a rank, which sorting may use


def keys_in_order_of(draws: np.ndarray) -> np.ndarray:
    """Returns uint32 keys [n] that sort as the draws [n] do, those that are equal in their order."""
    ranks = np.argsort(np.argsort(draws, kind="stable"), kind="stable")
    return ranks.astype(np.uint32) << RANKED


class WordsOfSeeds(Words):
    """The words of rows from the seeds that t5 gives to each row's noise and text, int64 [2, 2] for each row."""

    def __init__(self, seeds: Iterator[np.ndarray], noise_density: float):
        self._seeds = seeds
        self._noise_density = noise_density

    def keys(self, *shape: int) -> np.ndarray:
        num_rows, count = shape
        noise, _ = num_noise(count + 2, self._noise_density, 1.0)
        counts = (noise - 1, count + 1 - noise)
        rows = []
        for _ in range(num_rows):
            drawn = [
                tf.random.stateless_uniform([size], seed).numpy()
                for size, seed in zip(counts, next(self._seeds), strict=True)
            ]
            rows.append(np.concatenate([keys_in_order_of(words) for words in drawn]))
        return np.array(rows, np.uint32).reshape(shape)


class DrawsOfT5(NamedTuple):
    """The draws of span corruption as t5 makes them under a map seed."""

    map_seed: int
    noise_density: float = 0.15

    def next_step(self) -> "DrawsOfT5":
        return self

    def words(self, purpose: Purpose, number: int) -> Words:
        assert purpose is Purpose.ROWS
        return WordsOfSeeds(self._seeds(number * ROWS_PER_BLOCK), self.noise_density)

    def _seeds(self, first: int) -> Iterator[np.ndarray]:
        """Yields the split seeds of row `first` and those after it."""
        kinds = [tf.data.Dataset.random(self.map_seed + side) for side in (0, 1)]
        for pair in tf.data.Dataset.zip(tuple(kinds)).skip(first).as_numpy_iterator():
            yield tf.random.experimental.stateless_split(np.array(pair, np.int64), 2).numpy()


def vectors_under(map_seed: int, vectors: Iterable[Sequence[int]], noise_density: float = 0.15) -> Dataset:
    """Returns vectors of tokens that are corrupted by t5's draws, whose first two pairs go to chunks and splitting."""
    elements = [{"targets": np.array(vector, np.int32)} for vector in vectors]
    dataset = Elements(elements, {"targets": TOKENS})
    dataset.draws = DrawsOfT5(map_seed + 4, noise_density)
    return dataset
