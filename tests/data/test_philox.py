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


@pytest.mark.core
def test_sequences_are_those_of_data_sets_of_seeds():
    """As t5's and seqio's preprocessors draw them, from any element on."""
    for seed in (0, 1, 7, 2**31 - 2, 2**31 - 1, 2**31, *SEEDS[:, 0] % 2**31):
        expected = list(tf.data.Dataset.random(int(seed)).take(90).as_numpy_iterator())
        assert philox.sequence(int(seed), 0, 90).tolist() == expected
        assert philox.sequence(int(seed), 13, 44).tolist() == expected[13:57]


@pytest.mark.core
def test_choices_are_those_of_sample_from_datasets():
    random = np.random.RandomState(0)
    for number_of_parts in (2, 3, 4, 8):
        weights = (values := random.rand(number_of_parts)) / values.sum()
        seed = int(random.randint(2**31 - 1))
        parts = [tf.data.Dataset.from_tensors(number).repeat() for number in range(number_of_parts)]
        mixed = tf.data.Dataset.sample_from_datasets(parts, weights.tolist(), seed=seed).take(400)
        expected = list(mixed.as_numpy_iterator())
        assert philox.choices(seed, weights.tolist(), 0, 400).tolist() == expected
        assert philox.choices(seed, weights.tolist(), 150, 99).tolist() == expected[150:249]
