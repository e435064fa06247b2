"""The data's random numbers: numpy's words for ever, even, independent of one another, and each purpose's own."""

import itertools
import math

import numpy as np
import pytest

from limba.data.dataset import CHOICES, Elements, Mixed
from limba.data.draws import MOST_SORTED, Draws, Purpose, Words, order_of

pytestmark = pytest.mark.core


def chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """Returns how many standard deviations the statistic of these counts is above its mean, by its degrees."""
    expected = np.broadcast_to(expected, counts.shape)
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = counts.size - 1
    return (statistic - degrees) / math.sqrt(2 * degrees)


def test_the_words_are_those_of_every_version_of_numpy() -> None:
    """A run's order of data hangs on them: with other ones no checkpoint could be resumed."""
    assert Draws(0).words(Purpose.UNITS).raw(4).tolist() == [
        18320647189992533962,
        4377072935633308420,
        15649673334024388353,
        14370696518503795482,
    ]
    draws = Draws(7, "ro_span_corruption", shard=3, era=2, step=1)
    assert draws.words(Purpose.ROWS, 5_000_000_000).raw(4).tolist() == [
        7391274318674663182,
        16436286877603821585,
        12130557439116112166,
        12401802317870010630,
    ]


def test_halves_of_words_are_keys_and_fractions() -> None:
    draws = Draws(1)
    words = draws.words(Purpose.ROWS).raw(3)
    keys = draws.words(Purpose.ROWS).keys(5)
    assert keys.dtype == np.uint32
    assert keys.tolist() == [int(word) >> shift & 0xFFFF_FFFF for word in words for shift in (0, 32)][:5]
    fractions = draws.words(Purpose.ROWS).uniform(5)
    assert fractions.dtype == np.float32 and fractions.tolist() == [(int(key) >> 8) / 2**24 for key in keys]
    wide = draws.words(Purpose.ROWS).uniform64(3)
    assert wide.tolist() == [(int(word) >> 11) / 2**53 for word in words]
    drawn = draws.words(Purpose.ROWS)
    assert drawn.keys(2, 1).tolist() == keys[:2, None].tolist() and drawn.raw(2).tolist() == words[1:].tolist()
    assert draws.words(Purpose.ROWS).keys(2, 0).shape == (2, 0)


def test_each_purpose_number_and_part_has_words_of_its_own() -> None:
    parts = {
        "seed": Draws(1, "ro"),
        "name": Draws(0, "en"),
        "shard": Draws(0, "ro", shard=1),
        "era": Draws(0, "ro", era=1),
        "step": Draws(0, "ro", step=1),
        "a large seed": Draws(2**63 + 1, "ro"),
        "a negative seed": Draws(-1, "ro"),
    }
    first = Draws(0, "ro")
    drawn = [draws.words(Purpose.ROWS, number) for draws in (first, *parts.values()) for number in (0, 1, 2**40)]
    drawn += [first.words(purpose) for purpose in Purpose if purpose is not Purpose.ROWS]
    all_words = [word for words in drawn for word in words.raw(50).tolist()]
    assert len(set(all_words)) == len(all_words) == 50 * (3 * 8 + 6)
    assert first.next_step().words(Purpose.ROWS).raw(5).tolist() == parts["step"].words(Purpose.ROWS).raw(5).tolist()


def test_seeds_of_seqio_fit_into_31_bits() -> None:
    seeds = [Draws(n, "ro").seed_of_seqio(number) for n in range(500) for number in (0, 1)]
    assert len(set(seeds)) == 1000 and 0 <= min(seeds) < 2**24 and 2**31 - 2**24 < max(seeds) < 2**31


def test_fractions_are_even() -> None:
    fractions = np.concatenate([Draws(2).words(Purpose.ROWS, number).uniform(100) for number in range(1000)])
    assert fractions.min() >= 0 and fractions.max() < 1
    assert abs(chi_square(np.bincount((fractions * 100).astype(int), minlength=100), 1000)) < 3
    # Each with the next one, also across numbers.
    pairs = np.stack([fractions[:-1], fractions[1:]], 1)
    cells = (pairs * 20).astype(int) @ [20, 1]
    assert abs(chi_square(np.bincount(cells, minlength=400), len(pairs) / 400)) < 3


@pytest.mark.parametrize("draw", ["permutation", "order_of"])
def test_all_permutations_are_equally_likely(draw: str) -> None:
    places = {order: number for number, order in enumerate(itertools.permutations(range(5)))}
    counts = np.zeros(120)
    for number in range(24_000):
        words = Draws(4).words(Purpose.CHUNK, number)
        order = words.permutation(5) if draw == "permutation" else order_of(words.keys(5))
        counts[places[tuple(order.tolist())]] += 1
    assert abs(chi_square(counts, 200)) < 3


def test_a_place_of_many_has_any_number() -> None:
    counts = np.zeros([60, 60])
    for number in range(6_000):
        counts[np.arange(60), Draws(5).words(Purpose.UNITS, number).permutation(60)] += 1
    assert abs(chi_square(counts, 100)) < 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 482, MOST_SORTED, MOST_SORTED + 1])
def test_keys_are_put_in_order(count: int) -> None:
    """By their upper bits, equal ones as they stand: numpy's stable order."""
    keys = Draws(6).words(Purpose.ROWS).keys(3, count)
    bits = max(count - 1, 0).bit_length() if count <= MOST_SORTED else 0
    expected = np.argsort(keys >> np.uint32(bits), axis=1, kind="stable")
    assert order_of(keys).tolist() == expected.tolist()
    assert order_of(np.zeros([2, count], np.uint32)).tolist() == [list(range(count))] * 2


def test_choices_of_a_mixture_follow_the_rates() -> None:
    """A hundred thousand of them, each independent of the one before; a rate of 0 is never chosen."""
    rates = [0.5, 0.0, 0.2, 0.299, 0.001]
    mixed = Mixed([Elements([()] * 120_000, {}) for _ in rates], rates, Draws(8, "mixture"))
    chosen = np.array([item.tasks[0] for item in itertools.islice(mixed.read(), 100_000)])
    counts = np.bincount(chosen, minlength=5)
    assert counts[1] == 0
    expected = np.array(rates) * len(chosen)
    assert abs(chi_square(np.delete(counts, 1), np.delete(expected, 1))) < 3
    followed = np.bincount(chosen[1:][chosen[:-1] == 0], minlength=5)
    assert abs(chi_square(np.delete(followed, 1), np.delete(np.array(rates) * followed.sum(), 1))) < 3
    assert len(chosen) > CHOICES


def test_a_mixture_goes_on_from_any_example() -> None:
    """Also where the next choices are drawn, each of which may equal the choice before by chance."""
    parts = [Elements([(part, n) for n in range(9000)], {}) for part in range(3)]
    mixed = Mixed(parts, [0.2, 0.3, 0.5], Draws(1))
    items = list(itertools.islice(mixed.read(), 10 * CHOICES + 30))
    borders = [CHOICES * group + near for group in range(1, 11) for near in (-3, -2, -1, 0)]
    for number in (0, *borders, 2 * CHOICES + 5):
        resumed = itertools.islice(mixed.read(items[number].place), 20)
        assert [item.value for item in resumed] == [item.value for item in items[number + 1 : number + 21]]


def test_words_are_not_shared() -> None:
    draws = Draws(1)
    first = draws.words(Purpose.ROWS, 3)
    second = draws.words(Purpose.ROWS, 3)
    assert isinstance(first, Words) and first.raw(2).tolist() == second.raw(2).tolist()
