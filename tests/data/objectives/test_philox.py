"""Random numbers for many seeds at once are TensorFlow's for one."""

import numpy as np
import pytest
import tensorflow as tf

from limba.data import philox

SEEDS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, [8, 2])


@pytest.mark.core
def test_numbers_are_tensorflows():
    counts, kinds = (1, 4, 85, 482), [SEEDS, SEEDS + 1, SEEDS[::-1], SEEDS]
    for seeds, count, drawn in zip(kinds, counts, philox.uniform(kinds, counts), strict=True):
        np.testing.assert_array_equal(drawn, [tf.random.stateless_uniform([count], seed).numpy() for seed in seeds])


@pytest.mark.core
def test_seeds_are_tensorflows():
    expected = [tf.random.experimental.stateless_split(seed, 6).numpy() for seed in SEEDS]
    np.testing.assert_array_equal(philox.split(SEEDS, 6), expected)
    np.testing.assert_array_equal(philox.split(SEEDS, 2), np.array(expected)[:, :2])
