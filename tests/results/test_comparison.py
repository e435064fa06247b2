"""Intervals over test examples, and models in pairs: by hand, and as SciPy's bootstrap has them."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from limba.tools.results import comparison, table
from limba.tools.results.kinds.fine_tuned import Classification, Example
from limba.tools.results.outcome import Outcome, percentiles
from limba.tools.results.protocol import PROTOCOL

TASK = Classification("kind", "train.tsv", "test.tsv")
EXAMPLES = [Example(f"line {n}", (f"text {n}",), "yes" if n % 2 else "no", f"line {n}") for n in range(200)]


def wrong_at(places: range) -> list:
    """Predictions that are wrong at some places."""
    answers = [example.answer for example in EXAMPLES]
    return [{"yes": "no", "no": "yes"}[answer] if n in places else answer for n, answer in enumerate(answers)]


def test_documents_are_drawn_whole() -> None:
    counts = comparison.resamples(["a", "a", "b", "c", "c", "c"], PROTOCOL)
    assert counts.shape == (PROTOCOL.resamples, 6)
    assert (counts[:, 0] == counts[:, 1]).all() and (counts[:, 3] == counts[:, 5]).all()
    assert (counts[:, [0, 2, 3]].sum(1) == 3).all()


def test_an_interval_is_scipys() -> None:
    protocol = dataclasses.replace(PROTOCOL, resamples=9_999)
    predictions = wrong_at(range(60))
    counts = comparison.resamples([example.document for example in EXAMPLES], protocol)
    drawn = comparison.draws(TASK, EXAMPLES, [predictions], counts)["accuracy"]
    hits = np.array([100.0 * (t.answer == p) for t, p in zip(EXAMPLES, predictions, strict=True)])
    other = stats.bootstrap((hits,), np.mean, n_resamples=9_999, method="percentile", rng=np.random.default_rng(1))
    assert percentiles(drawn, 0.95) == pytest.approx(list(other.confidence_interval), abs=0.5)
    assert drawn.std(ddof=1) == pytest.approx(other.standard_error, rel=0.03)


def test_the_best_is_marked_only_where_pairs_decide() -> None:
    counts = comparison.resamples([example.document for example in EXAMPLES], PROTOCOL)
    rows = {"good": range(20), "near": range(2, 23), "bad": range(100)}
    for chosen, best in ((("good", "near", "bad"), None), (("good", "bad"), "good"), (("good",), None)):
        made = table.Table()
        drawn = {}
        for name in chosen:
            predictions = wrong_at(rows[name])
            made.add(TASK.name, name, [Outcome(TASK.judge(EXAMPLES, predictions), predictions=predictions)])
            drawn[name] = comparison.draws(TASK, EXAMPLES, [predictions], counts)
        made.compare(TASK.name, drawn, PROTOCOL)
        cells = made.cells["kind", "accuracy"]
        assert [name for name, cell in cells.items() if cell.is_best] == ([best] if best else [])
        assert f"\\textbf{{{90:.2f}}}" in made.latex() or best is None
        made = table.Table()
        for name in chosen:
            predictions = wrong_at(rows[name])
            made.add(TASK.name, name, [Outcome(TASK.judge(EXAMPLES, predictions), predictions=predictions)])
        made.compare(TASK.name, drawn, PROTOCOL, marks_best=False)
        assert not any(cell.is_best for cells in made.cells.values() for cell in cells.values())
    pairs = {(entry.first, entry.second): entry for entry in made.comparisons["kind"]}
    assert pairs == {}


def test_a_pairs_figures_are_those_of_both_models_in_the_same_resamples() -> None:
    counts = comparison.resamples([example.document for example in EXAMPLES], PROTOCOL)
    seeds = {"a": [wrong_at(range(20)), wrong_at(range(40))], "b": [wrong_at(range(30, 80))]}
    drawn = {name: comparison.draws(TASK, EXAMPLES, of_seeds, counts) for name, of_seeds in seeds.items()}
    means = {"a": {"accuracy": 85.0}, "b": {"accuracy": 75.0}}
    (pair,) = comparison.compared(
        means, {name: {"accuracy": figures["accuracy"]} for name, figures in drawn.items()}, PROTOCOL
    )
    hits = {
        name: np.mean([[t.answer == p for t, p in zip(EXAMPLES, s, strict=True)] for s in of_seeds], 0)
        for name, of_seeds in seeds.items()
    }
    by_hand = 100 * counts @ (hits["a"] - hits["b"]) / len(EXAMPLES)
    assert pair.difference == 10 and pair.interval == pytest.approx(percentiles(by_hand, 0.95), abs=1e-9)
    assert pair.p == pytest.approx(2 * (min((by_hand <= 0).sum(), (by_hand >= 0).sum()) + 1) / 1_001, abs=1e-9)


def test_pairs_are_compared_by_the_share_that_is_right() -> None:
    shares = {"a": [[100.0] * 90 + [0.0] * 10], "b": [[100.0] * 60 + [0.0] * 40]}
    made = table.Table()
    for name, seeds in shares.items():
        made.add("pairs", name, [Outcome({"accuracy": float(np.mean(seeds))}, predictions=[*seeds[0]])])
    made.add("pairs", "chance", [Outcome({"accuracy": 50.0})])
    made.compare("pairs", comparison.draws_of_shares("accuracy", made.predictions["pairs"], PROTOCOL), PROTOCOL)
    (pair,) = made.comparisons["pairs"]
    assert pair.difference == pytest.approx(30) and pair.p < 0.01 and made.cells["pairs", "accuracy"]["a"].is_best
    assert made.cells["pairs", "accuracy"]["chance"].over_examples is None


def test_an_interval_over_seeds_is_students() -> None:
    values = [70.1, 71.4, 69.9, 72.0, 70.6]
    expected = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert table.over_seeds(values) == pytest.approx(expected, abs=1e-9) and table.over_seeds([1.0]) is None
