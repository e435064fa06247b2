"""Figures of predictions: in percent, correlations too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Span = tuple[str, int, int]  # label, first token, the token after the last


def accuracy(targets: Sequence[object], predictions: Sequence[object]) -> float:
    """Returns the share of right ones."""
    return 100 * float(np.mean([t == p for t, p in zip(targets, predictions, strict=True)]))


def macro_f1(targets: Sequence[str], predictions: Sequence[str | None]) -> float:
    """Returns F1 of each class of the targets, averaged.

    >>> round(macro_f1(["a", "b"], ["a", "a"]), 1)
    33.3
    """
    found = []
    for label in sorted(set(targets)):
        hits = sum(t == p == label for t, p in zip(targets, predictions, strict=True))
        found.append(200 * hits / (list(targets).count(label) + list(predictions).count(label)))
    return float(np.mean(found))


def pearson(targets: Sequence[float], predictions: Sequence[float]) -> float:
    """Returns Pearson's correlation times 100; 0 where one side is constant."""
    first, second = (np.asarray(each, np.float64) - np.mean(each) for each in (targets, predictions))
    scale = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return 100 * float((first * second).sum()) / scale if scale > 1e-12 else 0.0


def spearman(targets: Sequence[float], predictions: Sequence[float]) -> float:
    """Returns Spearman's correlation times 100: Pearson's of the ranks, equal values sharing theirs."""
    return pearson(*(_ranks(each) for each in (targets, predictions)))


def _ranks(values: Sequence[float]) -> list[float]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[places].tolist()


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Returns the spans of IOB2 tags; as in seqeval, an I- after another label or after O begins one too.

    >>> spans_of(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    found: list[Span] = []
    before = ""
    for place, tag in enumerate(tags):
        kind, _, label = tag.partition("-")
        if kind == "I" and label == before:
            found[-1] = (label, found[-1][1], place + 1)
        elif kind in ("B", "I"):
            found.append((label, place, place + 1))
        before = label if kind in ("B", "I") else ""
    return found


def span_f1(targets: Sequence[Sequence[Span]], predictions: Sequence[Sequence[Span]]) -> dict[str, float]:
    """Returns precision, recall and F1 of spans over all sentences (micro), as seqeval."""
    hits = sum(len(set(t) & set(p)) for t, p in zip(targets, predictions, strict=True))
    of_targets, of_predictions = (sum(len(set(each)) for each in spans) for spans in (targets, predictions))
    return {
        "span F1": 200 * hits / max(1, of_targets + of_predictions),
        "precision": 100 * hits / max(1, of_predictions),
        "recall": 100 * hits / max(1, of_targets),
    }
