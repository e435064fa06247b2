"""Figures of predictions, in percent, correlations too; each for many resamples of the examples at once.

`counts`, [R, N], says how often each of N examples is in each of R resamples: ones alone are the examples as they
are. The figures equal scikit-learn's, SciPy's and seqeval's (tests/results/test_scores.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Span = tuple[str, int, int]  # label, first token, the token after the last
Draws = dict[str, np.ndarray]  # figure -> its value in each resample, [R]


def share(counts: np.ndarray, hits: Sequence[float], totals: Sequence[float]) -> np.ndarray:
    """Returns the hits in percent of the totals, [R]; 0 where there is nothing to hit.

    >>> share(np.array([[1, 1], [2, 0]]), [1, 0], [1, 1]).tolist()
    [50.0, 100.0]
    """
    return 100 * _ratio(counts @ np.asarray(hits, np.float64), counts @ np.asarray(totals, np.float64))


def macro_f1(counts: np.ndarray, targets: Sequence[str], predictions: Sequence[str]) -> np.ndarray:
    """Returns F1 of each class that is a target or a prediction, averaged, [R]."""
    sums = np.zeros(len(counts))
    classes = np.zeros(len(counts))
    for label in sorted({*targets, *predictions}):
        is_target = np.array([other == label for other in targets], np.float64)
        is_prediction = np.array([other == label for other in predictions], np.float64)
        either = counts @ (is_target + is_prediction)
        sums += _ratio(200 * (counts @ (is_target * is_prediction)), either)
        classes += either > 0
    return _ratio(sums, classes)


def pearson(counts: np.ndarray, targets: Sequence[float], predictions: Sequence[float]) -> np.ndarray:
    """Returns Pearson's correlation times 100, [R]; 0 where one side is constant."""
    weights = counts / counts.sum(1, keepdims=True)
    first = _centred(weights, targets)
    second = _centred(weights, predictions)
    scale = np.sqrt((weights * first**2).sum(1) * (weights * second**2).sum(1))
    return 100 * _ratio((weights * first * second).sum(1), np.where(scale > 1e-12, scale, 0.0))


def spearman(counts: np.ndarray, targets: Sequence[float], predictions: Sequence[float]) -> np.ndarray:
    """Returns Spearman's correlation times 100, [R]: Pearson's of the ranks, equal values sharing theirs."""
    correlations = []
    for row in counts:
        once = np.ones((1, int(row.sum())))
        correlations.append(pearson(once, *(_ranks(np.repeat(values, row)) for values in (targets, predictions)))[0])
    return np.array(correlations)


def span_f1(
    counts: np.ndarray, targets: Sequence[Sequence[Span]], predictions: Sequence[Sequence[Span]]
) -> dict[str, np.ndarray]:
    """Returns F1, precision and recall of spans over all sentences (micro), as seqeval, each [R]."""
    hits = [len(set(t) & set(p)) for t, p in zip(targets, predictions, strict=True)]
    of_targets = [len(set(spans)) for spans in targets]
    of_predictions = [len(set(spans)) for spans in predictions]
    both = np.add(of_targets, of_predictions).tolist()
    return {
        "span F1": 2 * share(counts, hits, both),
        "precision": share(counts, hits, of_predictions),
        "recall": share(counts, hits, of_targets),
    }


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Returns the spans of IOB2 tags; as in seqeval, an I- after another label or after O begins one too.

    >>> spans_of(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    spans: list[Span] = []
    before = ""
    for index, tag in enumerate(tags):
        kind, _, label = tag.partition("-")
        if kind == "I" and label == before:
            spans[-1] = (label, spans[-1][1], index + 1)
        elif kind in ("B", "I"):
            spans.append((label, index, index + 1))
        before = label if kind in ("B", "I") else ""
    return spans


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    return np.divide(over, under, out=np.zeros(np.shape(over)), where=under != 0)


def _centred(weights: np.ndarray, values: Sequence[float]) -> np.ndarray:
    """Returns values less their mean in each resample, [R, N]."""
    array = np.asarray(values, np.float64)
    return array[None, :] - (weights @ array)[:, None]


def _ranks(values: np.ndarray) -> list[float]:
    _, rank_of, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[rank_of].tolist()
