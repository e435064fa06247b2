"""What objectives hide has the shares and lengths of their papers' formulas, tested by chi-square; draws are fixed.

Masked language modeling, whose rule is longer, has tests of its own.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from limba.data.dataset import TOKENS, Dataset, Elements, Step
from limba.data.draws import Draws, Purpose, Words
from limba.data.objectives import denoisers, prefix_lm, spans, ul2, whole_words
from limba.data.registry import Feature
from limba.data.vocabulary.load import load_vocabulary

pytestmark = pytest.mark.core
LIKELY = 1e-4  # of chi-square's p
NUM_ROWS = 4_000


def words(number: int = 0) -> Words:
    return Draws(seed=12, name="statistics").words(Purpose.ROWS, number)


def likelihood(counts: Sequence[float] | np.ndarray, chances: Sequence[float] | np.ndarray) -> float:
    """Returns chi-square's p of these counts; kinds of no chance are not there, seldom ones at the end are together."""
    observed = np.array(counts, float)
    expected = np.array(chances, float) * np.sum(counts) / np.sum(chances)
    assert not observed[expected == 0].any()
    observed = observed[expected > 0]
    expected = expected[expected > 0]
    if len(observed) == 1:
        return 1.0
    while len(observed) > 2 and expected[-1] < 5:
        observed = np.append(observed[:-2], observed[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    return stats.chisquare(observed, expected).pvalue


def chances_of_lengths(num_items: int, num_segments: int) -> np.ndarray:
    """Returns the chance of each length of the first of some segments, where all divisions are equally likely."""
    if num_segments == 1:
        return np.eye(num_items)[-1]
    last = num_items - num_segments + 1
    divisions = math.comb(num_items - 1, num_segments - 1)
    return np.array([math.comb(num_items - length - 1, num_segments - 2) / divisions for length in range(1, last + 1)])


def runs(mask: np.ndarray) -> np.ndarray:
    """Returns the lengths of the runs in bool [n], which begins with a run of False: first of False, then of True."""
    edges = np.flatnonzero(np.diff(mask)) + 1
    return np.diff([0, *edges, len(mask)])


def check_segments(mask: np.ndarray, num_spans: int) -> None:
    """Tests the lengths of each row's first and last span and text, in masks [rows, tokens]."""
    noise = int(mask[0].sum())
    text = mask.shape[1] - noise
    assert (mask.sum(1) == noise).all()
    lengths = np.array([runs(row) for row in mask])
    assert lengths.shape == (len(mask), 2 * num_spans)
    for column, items in ((0, text), (1, noise), (-2, text), (-1, noise)):
        chances = chances_of_lengths(items, num_spans)
        counts = np.bincount(lengths[:, column] - 1, minlength=len(chances))
        assert likelihood(counts, chances) > LIKELY
    if noise == num_spans or num_spans < 3:
        return
    # Neighbours are as free as the number of tokens leaves them.
    first = lengths[:, 1]
    second = lengths[:, 3]
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(-1 / (num_spans - 1), abs=4 / math.sqrt(len(mask)))


@pytest.mark.parametrize(("length", "density", "mean"), [(141, 0.15, 3.0), (568, 0.15, 3.0), (100, 0.5, 4.0)])
def test_spans_are_cut_as_all_divisions_are_equally_likely(length: int, density: float, mean: float) -> None:
    """Raffel et al. 2020, section 3.1.4; t5's `random_spans_noise_mask`."""
    noise, num_spans = spans.num_noise(length, density, mean)
    assert noise == round(length * density) and num_spans == round(noise / mean)
    keys = spans.keys_of_rows((NUM_ROWS, length), words(), density)
    mask = spans.random_spans_noise_mask(length, keys, density, mean)
    assert mask.mean() == noise / length
    check_segments(mask, num_spans)


@pytest.mark.parametrize("denoiser", denoisers.UL2, ids=str)
def test_denoisers_cut_as_the_table_has_it(denoiser: denoisers.Denoiser) -> None:
    """Tay et al. 2022, table 1: the share of noise, the mean span, and among rows of as many spans all divisions."""
    raw, longest = denoisers.denoiser_lengths(128, denoiser)
    tokens = np.full([NUM_ROWS, raw], 5, np.int32)
    density = denoiser.noise_density
    mean = denoiser.mean_noise_span_length
    if mean is None:
        _, (_, is_end) = denoisers.split_end(tokens, words(), density)
        ends = is_end.sum(1)
        assert likelihood(np.bincount(ends, minlength=longest)[1:longest], np.ones(longest - 1)) > LIKELY
        return
    (inputs, stays), _ = denoisers.corrupt_spans(tokens, words(), density, mean, top_sentinel=10_000)
    is_first = inputs != 5
    num_spans = is_first.sum(1)
    is_noise = is_first | ~stays
    noise = round(raw * density)
    assert (is_noise.sum(1) == noise).all()
    low = int(noise / mean)  # a row has one of the two nearest numbers, at least one
    if low:
        more = noise / mean - low
        assert likelihood(np.bincount(num_spans - low, minlength=2), [1 - more, more]) > LIKELY
    else:
        assert (num_spans == 1).all()
    for count in range(max(low, 2), low + 2):
        of_count = is_noise[num_spans == count]
        if len(of_count) > 500:
            check_segments(of_count, count)


def rows_of(step: Step, num_tokens: int, lengths: dict[str, int]) -> Dataset:
    vectors = Elements([{"targets": np.full(num_tokens, 100, np.int32)}], {"targets": TOKENS})
    vectors.draws = Draws(seed=3, name="statistics")
    features = dict.fromkeys(("inputs", "targets"), Feature(load_vocabulary("byte", 200)))
    return step(vectors, lengths, features)


def test_a_prefix_has_any_length() -> None:
    """Raffel et al. 2020, section 3.2.1: the place of the split is uniform."""
    prefixes = [len(row["inputs"]) - 1 for row in rows_of(prefix_lm, 64 * NUM_ROWS, {"inputs": 64})]
    assert likelihood(np.bincount(prefixes, minlength=64)[1:64], np.ones(63)) > LIKELY


def test_the_order_of_denoisers_is_any() -> None:
    """Each of the seven is as often at each place of a cycle."""
    modes = denoisers.mode_ids(load_vocabulary("byte", 200))
    raws = [denoisers.denoiser_lengths(32, denoiser)[0] for denoiser in denoisers.UL2]
    rows = list(rows_of(ul2, 600 * sum(raws), {"inputs": 32}))
    is_end = np.array([row["inputs"][0] == modes["S"] for row in rows]).reshape(600, 7)
    is_short = np.array([row["inputs"][0] == modes["R"] for row in rows]).reshape(600, 7)
    assert (is_end.sum(1) == 1).all() and (is_short.sum(1) == 2).all()
    assert likelihood(is_end.sum(0), np.ones(7)) > LIKELY
    assert likelihood(is_short.sum(0), np.ones(7)) > LIKELY


def test_whole_words_are_chosen_as_all_divisions_are_equally_likely() -> None:
    """Of words of one token, in one window: the lengths equal the lengths of spans of tokens."""
    num_words = 100
    density = 0.3
    mean = 3.0
    edges = np.arange(num_words + 1)
    masks = []
    for number in range(2_000):
        keys = words(number).keys(2, num_words)
        masks.append(whole_words.whole_word_mask(edges, num_words, keys, density, mean, window=num_words))
    check_segments(np.array(masks), num_spans=10)
