"""The lengths of span corruption by trying all, advice that works when it is followed, and rows against lists."""

import itertools
import math
import re

import numpy as np
import pytest

from limba.config import ConfigError
from limba.data.dataset import TOKENS, Elements
from limba.data.draws import Draws, Purpose, Words
from limba.data.objectives import spans
from limba.data.registry import Feature
from limba.data.vocabulary import ByteVocabulary

pytestmark = pytest.mark.core


def words() -> Words:
    """The same words each time."""
    return Draws(seed=3).words(Purpose.ROWS)


DENSITIES = (0.05, 0.15, 0.3, 0.45, 0.5, 0.6, 0.75)
MEANS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)


def lengths_of(raw: int, density: float, mean: float) -> tuple[int, int]:
    """t5.data.preprocessors.random_spans_helper, `_tokens_length_to_inputs_length_targets_length`."""
    noise = round(raw * density)
    num_spans = round(noise / mean)
    return raw - noise + num_spans + 1, noise + num_spans + 1


def fitting(inputs: int, density: float, mean: float) -> tuple[int, int] | None:
    """The longest rows that fit, by trying; None where a span would have no noise or no text before it."""
    raw = inputs - 1
    while lengths_of(raw + 1, density, mean)[0] <= inputs and raw <= 200 * inputs:
        raw += 1
    targets = lengths_of(raw, density, mean)[1]
    if density == 0.5 and targets > inputs:
        raw -= 1
        targets -= 1
    if raw < 2:
        return None
    noise, number = spans.num_noise(raw, density, mean)
    fits = number <= noise and number <= raw - noise and raw - noise + number + 1 <= inputs and raw <= 200 * inputs
    return (raw, max(targets, noise + number + 1)) if fits else None


@pytest.mark.parametrize("density", DENSITIES)
def test_lengths_are_those_of_trying(density: float) -> None:
    known = 0
    for inputs, mean in itertools.product([*range(2, 40), 64, 127, 512], MEANS):
        wanted = fitting(inputs, density, mean)
        if wanted is None:
            with pytest.raises(ConfigError):
                spans.raw_and_targets(inputs, density, mean)
        else:
            known += 1
            assert spans.raw_and_targets(inputs, density, mean) == wanted
            assert spans.span_corruption_lengths({"inputs": inputs}, density, mean)["targets"] == wanted[1]
    assert known > 40
    published = {128: (141, 29), 256: (284, 58), 512: (568, 114), 1024: (1137, 229)}
    assert {inputs: spans.raw_and_targets(inputs) for inputs in published} == published
    assert spans.raw_and_targets(10**15)[0] > 10**15  # of a mistyped length, at once
    assert spans.span_corruption_lengths({"inputs": 512}) == {"inputs": 512, "targets": 114}


def test_counts_of_noise_are_at_least_one_and_leave_text() -> None:
    assert [spans.num_noise(length, 0.01, 3.0) for length in (0, 1, 2, 9)] == [(1, 1)] * 4
    assert [spans.num_noise(length, 0.99, 1.0) for length in (1, 2, 9)] == [(1, 1), (1, 1), (8, 8)]
    assert spans.num_noise(10, 0.25, 1.0) == (2, 2)  # half to even
    assert spans.num_noise(10, 0.35, 1.0) == (4, 4)  # 3.5 in single precision, as in t5's graph


@pytest.mark.parametrize("choices", [(0.0, 3.0), (1.0, 3.0), (0.15, 0.9), (-0.1, 3.0), (1.2, 3.0)])
def test_impossible_choices_are_refused(choices: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="is not possible; give a density between 0 and 1 and a mean span of 1"):
        spans.raw_and_targets(512, *choices)
    assert spans.raw_and_targets(512, 0.5, 1.0)[1] <= 512


def refused(inputs: int, density: float, mean: float) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        spans.raw_and_targets(inputs, density, mean)
    return caught.value


@pytest.mark.parametrize("density", [0.05, 0.15, 0.5, 0.75, 0.8, 0.9, 0.95])
def test_advice_that_is_followed_works(density: float) -> None:
    """What the sentence names is the choice that has to change, and the number in it is one that will do."""
    kinds = set()
    for inputs, mean in itertools.product((2, 5, 12, 15, 16, 20, 64, 300), (1.0, 2.0, 3.0, 9.0, 40.0, 500.0)):
        if fitting(inputs, density, mean) is not None:
            continue
        sentence = str(refused(inputs, density, mean))
        highest = mean / (mean + 1)  # of each span and the token of text before it
        if density > highest:
            kinds.add("highest")
            assert f"allow at most {math.floor(100 * highest) / 100}; give a lower density" in sentence
        elif inputs < 16 and fitting(16, density, mean) is not None:
            kinds.add("shortest")
            assert f"'inputs' {inputs}, too short for span corruption" in sentence and "give 16 or more" in sentence
        elif best := re.search(r"give at most (\d+), or longer inputs", sentence):
            kinds.add("mean")
            assert fitting(inputs, density, float(best[1])) is not None and 1 <= int(best[1]) <= mean
            noise = int(min(inputs / (1 - density), 200 * inputs) * density)
            longer = range(int(best[1]) + 1, min(noise, int(mean)) + 1)
            assert not [longer_mean for longer_mean in longer if fitting(inputs, density, longer_mean) is not None]
        else:
            kinds.add("density")
            assert f"is {density}, too high for span corruption of {inputs} inputs" in sentence
            noise = int(min(inputs / (1 - density), 200 * inputs) * density)
            most = min(noise, int(mean))
            assert not [
                number for number in range(most, max(0, most - 8), -1) if fitting(inputs, density, number) is not None
            ]
    assert kinds


def rows_of(tokens: list[int], mask: list[bool], top: int, end: int | None) -> tuple[list[int], list[int]]:
    sides: list[list[int]] = [[], []]
    for side, hidden in ((0, True), (1, False)):
        number = 0
        last = False
        for token, is_noise in zip(tokens, mask, strict=True):
            if is_noise == hidden:
                if not last:
                    sides[side].append(top - number)
                    number += 1
            else:
                sides[side].append(token)
            last = is_noise == hidden
        sides[side] += [] if end is None else [end]
    return sides[0], sides[1]


@pytest.mark.parametrize("end", [None, 1])
@pytest.mark.parametrize("length", [1, 2, 3, 17, 64])
def test_rows_are_those_of_their_masks(length: int, end: int | None) -> None:
    random = np.random.default_rng(length)
    tokens = random.integers(2, 80, (5, length)).astype(np.int32)
    for density, mean in ((0.15, 3.0), (0.5, 1.0), (0.3, 2.0)):
        draws = spans.keys_of_rows(tokens.shape, words(), density)
        noise, number = spans.num_noise(length, density, mean)
        number = min(number, max(length, 2) - noise)  # of a stream's last row: 3 tokens of density 0.5 have one of text
        assert [draw.shape for draw in draws] == [(5, noise - 1), (5, max(length, 2) - noise - 1)]
        drawn = np.concatenate(draws, axis=1)
        assert len(np.unique(drawn)) == drawn.size  # none for both noise and text
        masks = spans.random_spans_noise_mask(length, draws, density, mean)
        assert masks.shape == (5, length)
        if length > 2:
            assert (masks.sum(1) == noise).all() and not masks[:, 0].any() and masks[:, -1].all()
            assert ((np.diff(masks.astype(int)) == 1).sum(1) == number).all()
        made = spans.corrupt_spans(tokens, draws, 99, end, density, mean)
        for row in range(5):
            wanted = rows_of(tokens[row].tolist(), masks[row].tolist(), 99, end)
            assert tuple(side[row].tolist() for side in made) == wanted
    draws = spans.keys_of_rows(tokens.shape, words())
    for ours, explicit in (
        (spans.random_spans_noise_mask(length, draws), spans.random_spans_noise_mask(length, draws, 0.15, 3.0)),
        (spans.corrupt_spans(tokens, draws, 99, end)[0], spans.corrupt_spans(tokens, draws, 99, end, 0.15, 3.0)[0]),
        (draws[1], spans.keys_of_rows(tokens.shape, words(), 0.15)[1]),
    ):
        np.testing.assert_array_equal(ours, explicit)


def test_lengths_of_spans_follow_the_order_of_the_draws() -> None:
    """t5 shuffles num_segments - 1 ones among num_items - 1 places by sorting the draws; equal ones stay in order."""
    of_noise = np.array([[3, 1, 9, 2, 5], [5, 5, 5, 5, 5]], np.uint32) << np.uint32(16)
    of_text = of_noise[::-1, ::-1]
    for number in range(1, 7):
        masks = spans.random_spans_noise_mask(12, [of_noise, of_text], 0.5, 6 / number)
        for mask, *draws in zip(masks, of_text, of_noise, strict=True):
            wanted = []
            for row in draws:
                order = np.argsort(row, kind="stable")
                ends = [index + 1 for index, item in enumerate(order) if item < number - 1]
                wanted.append(np.diff([0, *ends, 6]).tolist())
            lengths = [len(list(run)) for _, run in itertools.groupby(mask)]
            assert [lengths[::2], lengths[1::2]] == wanted


@pytest.mark.parametrize(("density", "mean"), [(0.15, 3.0), (0.5, 1.0)])
@pytest.mark.parametrize("rest", [0, 1, 3, 9])
def test_a_block_has_its_rows_and_the_shorter_last_one(rest: int, density: float, mean: float) -> None:
    """The shorter row draws after the others; what is missing of it is padding."""
    raw, targets = spans.raw_and_targets(16, density, mean)
    noise, number = spans.num_noise(raw, density, mean)
    widths = (raw - noise + number + 1, noise + number + 1)
    assert widths == (16, targets) or density == 0.5
    random = np.random.default_rng(0)
    tokens = random.integers(3, 80, 3 * raw + rest).astype(np.int32)
    vectors = Elements([{"targets": tokens}], {"targets": TOKENS})
    vectors.draws = Draws(seed=3)  # whose first words are `words()`
    feature = Feature(ByteVocabulary(100))
    rows = list(spans.span_corruption(vectors, {"inputs": 16}, {"inputs": feature, "targets": feature}, density, mean))
    assert len(rows) == 3 + (rest > 0)
    top = feature.vocabulary.vocab_size - 1
    sides = [[row[name] for row in rows] for name in ("inputs", "targets")]
    drawn = words()
    of_whole_rows = spans.keys_of_rows((3, raw), drawn, density)
    of_rest = spans.keys_of_rows((1, rest), drawn, density)
    for row in range(len(rows)):
        part = tokens[row * raw : (row + 1) * raw]
        draws = of_rest if row == 3 else [of_whole_row[row : row + 1] for of_whole_row in of_whole_rows]
        mask = spans.random_spans_noise_mask(len(part), draws, density, mean)[0]
        for side, wanted in zip(sides, rows_of(part.tolist(), mask.tolist(), top, 1), strict=True):
            assert side[row].tolist() == wanted + [0] * (len(side[0]) - len(wanted))
            assert side[row].dtype == np.int32
