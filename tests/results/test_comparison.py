"""Intervals over test examples, and models in pairs: by hand, and as SciPy's bootstrap has them."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from limba.tools.results import comparison, table
from limba.tools.results.kinds import bits
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
    drawn = {name: comparison.draws(TASK, EXAMPLES, each, counts) for name, each in seeds.items()}
    values = {"a": {"accuracy": [90.0, 80.0]}, "b": {"accuracy": [75.0]}}
    (pair,) = comparison.compared(
        values, {name: {"accuracy": each["accuracy"]} for name, each in drawn.items()}, PROTOCOL
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
    drawn = {name: comparison.draws_of_ratio(outcome, PROTOCOL) for name, (outcome,) in made.outcomes["pairs"].items()}
    made.compare("pairs", drawn, PROTOCOL)
    (pair,) = made.comparisons["pairs"]
    assert pair.difference == pytest.approx(30) and pair.p < 0.01 and made.cells["pairs", "accuracy"]["a"].is_best
    assert made.cells["pairs", "accuracy"]["chance"].over_examples is None


def test_an_interval_over_seeds_is_students() -> None:
    values = [70.1, 71.4, 69.9, 72.0, 70.6]
    expected = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert table.over_seeds(values) == pytest.approx(expected, abs=1e-9) and table.over_seeds([1.0]) is None


def test_seeds_that_disagree_leave_no_best() -> None:
    """Two rows whose examples decide, of which one has seeds that lie far apart."""
    counts = comparison.resamples([each.document for each in EXAMPLES], PROTOCOL)
    good = [wrong_at(range(20)), wrong_at(range(22)), wrong_at(range(21))]
    for other, best in (([range(80), range(82), range(84)], "good"), ([range(19), range(70), range(140)], None)):
        made = table.Table()
        drawn = {}
        for name, seeds in (("good", good), ("other", [wrong_at(places) for places in other])):
            outcomes = [Outcome(TASK.judge(EXAMPLES, seed), predictions=seed, curve=[{"epoch": 1.0}]) for seed in seeds]
            made.add(TASK.name, name, outcomes)
            drawn[name] = comparison.draws(TASK, EXAMPLES, seeds, counts)
        made.compare(TASK.name, drawn, PROTOCOL)
        pair = next(each for each in made.comparisons["kind"] if each.figure == "accuracy")
        assert pair.p < 0.01, "by the examples alone both would have a best"
        cells = made.cells["kind", "accuracy"]
        assert [name for name, cell in cells.items() if cell.is_best] == ([best] if best else [])
        expected = stats.ttest_ind(cells["good"].values, cells["other"].values, equal_var=False).pvalue
        assert pair.p_over_seeds == pytest.approx(expected, abs=1e-9)
        assert cells["good"].seeds == 3 and made.text().endswith("  3")


@pytest.mark.parametrize("second", [[69.2], [69.9, 70.3, 69.1, 71.5], [70.0, 70.0]])
def test_p_over_seeds_is_scipys(second) -> None:
    first = [70.1, 71.4, 69.9, 72.0, 70.6]
    expected = (
        stats.ttest_1samp(first, second[0]) if len({*second}) == 1 else stats.ttest_ind(first, second, equal_var=False)
    )
    assert comparison.p_over_seeds(first, second) == pytest.approx(expected.pvalue, abs=1e-9)
    assert comparison.p_over_seeds(second, first) == pytest.approx(expected.pvalue, abs=1e-9)


def test_seeds_that_all_agree_are_constants() -> None:
    assert comparison.p_over_seeds([1.0, 1.0], [2.0]) == 0 and comparison.p_over_seeds([1.0, 1.0], [1.0, 1.0]) == 1


def test_bits_per_byte_have_intervals_over_windows_and_the_fewest_are_the_best() -> None:
    random = np.random.default_rng(0)
    sizes = random.integers(20, 1_000, 400)
    nats = sizes * random.normal(1.4, 0.3, 400)
    rows = {"few": nats, "more": nats * random.normal(1.05, 0.02, 400), "much": nats * random.normal(2.0, 0.1, 400)}
    made = table.Table()
    for name, of_windows in rows.items():
        windows = [("held.txt", "a b", float(n), int(size)) for n, size in zip(of_windows, sizes, strict=True)]
        made.add("text", name, [bits._outcome("bits per byte", windows)])
    hidden = bits._outcome("bits per hidden byte", [("held.txt", "a b", 2.0, 9), ("held.txt", "c", 1.0, 8)])
    made.add("text", "gaps", [hidden])
    drawn = {name: comparison.draws_of_ratio(outcome, PROTOCOL) for name, (outcome,) in made.outcomes["text"].items()}
    made.compare("text", drawn, PROTOCOL, fewer_is_better=True)
    cells = made.cells["text", "bits per byte"]
    assert [name for name, cell in cells.items() if cell.is_best] == ["few"], "another measure is not compared"
    ratio = lambda n, size, axis: np.sum(n, axis=axis) / np.sum(size, axis=axis)
    of_scipy = stats.bootstrap(
        (rows["few"] / np.log(2), sizes), ratio, paired=True, n_resamples=9_999, method="percentile",
        vectorized=True, rng=np.random.default_rng(1),
    )  # fmt: skip
    assert cells["few"].over_examples == pytest.approx(list(of_scipy.confidence_interval), rel=0.01)
    assert made.cells["text", "bits per hidden byte"]["gaps"].is_best is False


def test_of_many_windows_neighbours_are_drawn_together() -> None:
    protocol = dataclasses.replace(PROTOCOL, most_blocks=3)
    outcome = Outcome({"bits": 1.0}, predictions=[1.0, 2.0, 3.0, 4.0, 5.0], sizes=[1.0, 1.0, 1.0, 1.0, 2.0])
    counts = comparison.resamples(["first", "second", "third"], protocol)
    expected = counts @ np.array([3.0, 7.0, 5.0]) / (counts @ np.array([2.0, 2.0, 2.0]))
    assert comparison.draws_of_ratio(outcome, protocol)["bits"] == pytest.approx(expected, abs=1e-12)
