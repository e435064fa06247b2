"""Figures equal scikit-learn's, SciPy's and seqeval's, of examples and of resamples of them."""

import random

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from limba.tools.results import scores

# What seqeval 1.2.2 gives of the sentences of `tags_of` for the seeds 1, 2 and 3: F1, precision, recall.
OF_SEQEVAL = {
    1: (71.99367088607595, 74.95881383855024, 69.25418569254185),
    2: (69.89169675090253, 71.38643067846607, 68.45827439886845),
    3: (70.61649319455564, 72.65238879736408, 68.69158878504673),
}
ONCE = np.ones((1, 60))


def tags_of(seed: int, count: int = 200) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences with tags, and what some model could give for them; both break IOB2's rules in places."""
    chosen = random.Random(seed)
    labels = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG"]
    targets = [[chosen.choice(labels) for _ in range(chosen.randint(1, 9))] for _ in range(count)]
    chosen = random.Random(seed + 100)
    predictions = [
        [tag if chosen.random() < 0.7 else chosen.choice(["O", "B-PER", "I-ORG"]) for tag in row] for row in targets
    ]
    return targets, predictions


def resampled(counts: np.ndarray, values: list) -> list:
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


@pytest.mark.parametrize("seed", OF_SEQEVAL)
def test_spans_equal_seqevals(seed: int) -> None:
    targets, predictions = ([scores.spans_of(row) for row in rows] for rows in tags_of(seed))
    figures = scores.span_f1(np.ones((1, len(targets))), targets, predictions)
    assert [float(values[0]) for values in figures.values()] == pytest.approx(OF_SEQEVAL[seed], abs=1e-9)


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        (["O", "I-A", "I-A", "B-A"], [("A", 1, 3), ("A", 3, 4)]),
        (["B-A", "I-B", "I-B"], [("A", 0, 1), ("B", 1, 3)]),
        (["I-A", "O", "I-A"], [("A", 0, 1), ("A", 2, 3)]),
    ],
)
def test_spans_follow_seqeval(tags, spans) -> None:
    assert scores.spans_of(tags) == spans


def test_classes_equal_scikit_learns() -> None:
    chosen = random.Random(0)
    targets = [chosen.choice("aaabbcd") for _ in range(60)]
    predictions = [chosen.choice("abcde") if chosen.random() < 0.5 else target for target in targets]
    counts = np.random.default_rng(0).multinomial(60, np.full(60, 1 / 60), 20)
    hits = [t == p for t, p in zip(targets, predictions, strict=True)]
    accuracy = scores.share(counts, hits, [1] * 60)
    macro = scores.macro_f1(counts, targets, predictions)
    for row, one, other in zip(counts, accuracy, macro, strict=True):
        pair = resampled(row, targets), resampled(row, predictions)
        assert one == pytest.approx(100 * metrics.accuracy_score(*pair), abs=1e-9)
        assert other == pytest.approx(100 * metrics.f1_score(*pair, average="macro"), abs=1e-9)


def test_correlations_equal_scipys() -> None:
    chosen = random.Random(0)
    targets = [float(chosen.randint(0, 5)) for _ in range(60)]
    predictions = [value + chosen.random() * 3 for value in targets]
    counts = np.random.default_rng(0).multinomial(60, np.full(60, 1 / 60), 20)
    pearson = scores.pearson(counts, targets, predictions)
    spearman = scores.spearman(counts, targets, predictions)
    for row, one, other in zip(counts, pearson, spearman, strict=True):
        pair = resampled(row, targets), resampled(row, predictions)
        assert one == pytest.approx(100 * stats.pearsonr(*pair).statistic, abs=1e-9)
        assert other == pytest.approx(100 * stats.spearmanr(*pair).statistic, abs=1e-9)
    assert scores.pearson(ONCE, targets, [3.0] * 60) == 0
