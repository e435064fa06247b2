"""Rules of proof: what a comparison of two recipes must have before it names a winner.

Runs are paired by their seed, which gives both the same documents in the same order, the same masks, and the same
initial values where shapes agree. The deviation is taken over the differences, not over the losses; a winner needs at
least `PAIRS` pairs, none left out, and p below `LEVEL` by a paired t-test, two-sided, times the number of recipes that
are compared (Bonferroni). modded-nanogpt's rules for statistics (github.com/KellerJordan/modded-nanogpt) ask as much.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.board import tables
from benchmarks.board.recipes import optimizer_of, recipe_of
from benchmarks.board.sizes import size_of
from benchmarks.board.tables import Group
from limba.config import InputError

PAIRS = 6
LEVEL = 0.01
POWER = 0.9  # with which the seeds that are asked for would show the difference that was seen


@dataclass(frozen=True)
class Comparison:
    """The losses of a recipe minus another recipe's at the same seeds, and how many recipes are compared."""

    differences: tuple[float, ...]
    compared: int = 1

    @property
    def mean(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.differences)

    @property
    def p(self) -> float:
        """The corrected p of no difference.

        >>> round(Comparison((-0.1, -0.12, -0.08)).p, 4), Comparison((-0.1, 0.1), 3).p
        (0.0131, 1.0)
        """
        from scipy import stats

        pairs = len(self.differences)
        statistic = self.mean / max(self.deviation, 1e-12) * math.sqrt(pairs)
        return min(1.0, self.compared * 2 * float(stats.t.sf(abs(statistic), pairs - 1)))

    @property
    def interval(self) -> float:
        """Half of the interval that holds the difference with 99 %, before the correction."""
        from scipy import stats

        pairs = len(self.differences)
        return float(stats.t.ppf(1 - LEVEL / 2, pairs - 1)) * self.deviation / math.sqrt(pairs)

    @property
    def wanted(self) -> int:
        """The pairs that would show a difference of this size with `POWER`, at least `PAIRS`.

        >>> Comparison((-0.1, -0.12, -0.08)).wanted, Comparison((-0.01, -0.05, 0.03)).wanted
        (6, 242)
        """
        from scipy import stats

        for pairs in range(PAIRS, 10_000):
            bounds = stats.t.ppf([1 - LEVEL / self.compared / 2, POWER], pairs - 1)
            if abs(self.mean) >= float(sum(bounds)) * self.deviation / math.sqrt(pairs):
                return pairs
        return 10_000

    @property
    def wins(self) -> bool:
        return len(self.differences) >= PAIRS and self.mean < 0 and self.p < LEVEL


def paired(group: Group, other: Group, compared: int) -> Comparison:
    """Returns the comparison of two groups of runs; InputError for different seeds, or fewer than two."""
    losses = {run["seed"]: tables.last(run, "loss") for run in group.runs}
    others = {run["seed"]: tables.last(run, "loss") for run in other.runs}
    if losses.keys() != others.keys() or len(losses) < 2:
        raise InputError(
            f"Pairs need the same seeds, two at least, and the board has {sorted(losses)} of {group.recipe} and"
            f" {sorted(others)} of {other.recipe}; run the others first."
        )
    differences = tuple(losses[seed] - others[seed] for seed in sorted(losses))
    if not all(map(math.isfinite, differences)):
        raise InputError(f"A run of {group.recipe} or {other.recipe} diverged: there is no difference to judge.")
    return Comparison(differences, compared)


def newton_schulz_flops(shapes: Sequence[tuple[int, int]], iterations: int = 5) -> float:
    """Returns the FLOPs by which Muon makes matrices [n, m] orthogonal, n the longer side.

    An iteration has y^T y (2 n m^2), its square (2 m^3), and y times the sum (2 n m^2).

    >>> newton_schulz_flops([(4, 2)], 1)
    80.0
    """
    sides = [(max(shape), min(shape)) for shape in shapes]
    return float(iterations * sum(4 * n * m * m + 2 * m**3 for n, m in sides))


def flops_of_step(group: Group, depth: int) -> float:
    """Returns the FLOPs of a step: the matrix products of the network and of the optimizer."""
    import jax

    from limba.model import Network
    from limba.sharding.mesh import named_leaves

    run = group.runs[0]
    size = size_of(depth)
    optimizer = optimizer_of(recipe_of(group.recipe), run["settings"], size, group.steps)
    if optimizer.name != "muon":
        return float(run["flops_per_step"])
    leaves = named_leaves(jax.eval_shape(Network(size.model()).init, jax.random.key(0)))
    kernels = [leaf.shape for name, leaf in leaves.items() if name.endswith("/kernel") and "layers" in name]
    matrices = [shape[-2:] for shape in kernels for _ in range(math.prod(shape[:-2]))]
    return run["flops_per_step"] + newton_schulz_flops(matrices)


def verdict(recipe: Group, other: Group, compared: int, depth: int) -> str:
    """Returns the result of the pairs of two recipes in words: a winner, or what is missing for one."""
    comparison = paired(recipe, other, compared)
    pairs = len(recipe.runs)
    flops = _flops(recipe, depth) / _flops(other, depth)
    seconds = _seconds(recipe) / _seconds(other)
    result = (
        f"{recipe.recipe}, {recipe.steps:,} steps, less {other.recipe}, {other.steps:,} steps: {comparison.mean:+.4f}"
        f" nats ± {comparison.interval:.4f} (99 %), deviation {comparison.deviation:.4f}, {pairs} pairs, p"
        f" {comparison.p:.2g}; {flops:.0%} of the FLOPs, the optimizer's included, {seconds:.0%} of the seconds."
    )
    if comparison.wins:
        return f"{result} {recipe.recipe} is lower."
    if pairs < PAIRS:
        return (
            f"{result} No winner: {PAIRS} pairs are the least, and by this deviation {comparison.wanted} would show it."
        )
    return f"{result} No winner: p must be below {LEVEL:g} and the difference below 0."


def _flops(group: Group, depth: int) -> float:
    return flops_of_step(group, depth) * group.steps


def _seconds(group: Group) -> float:
    return group.steps * statistics.median(run["seconds_per_step"] for run in group.runs)
