"""The law of a recipe's rate: how the best one falls with the length of the run, from the sweeps of a board."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks.board import tables
from benchmarks.board.recipes import Recipe
from limba.config import InputError

Losses = dict[tuple[int, int], dict[float, list[float]]]  # (depth, steps) -> rate -> losses of the seeds


def losses_by_rate(results: Iterable[Mapping[str, Any]], name: str, corpus: str, recipe: Recipe) -> Losses:
    """Returns the last losses of a recipe's runs that differ in nothing but rate and seed."""
    found: Losses = {}
    for each in results:
        settings = dict(each["settings"])
        rate = settings.pop("learning_rate", recipe.learning_rate)
        if (each["recipe"], each["corpus"], each["final"]) == (name, corpus, False) and not settings:
            losses = found.setdefault((each["depth"], each["steps"]), {}).setdefault(rate, [])
            losses.append(tables.last(each, "loss"))
    return dict(sorted(found.items()))


def best_rate(losses: Mapping[float, list[float]]) -> float | None:
    """Returns where the parabola through the lowest mean and its neighbours, over log rate, is lowest; None at an edge.

    >>> best_rate({0.1: [2.0], 0.2: [1.0], 0.4: [2.0]}), best_rate({0.1: [1.0], 0.2: [2.0], 0.4: [3.0]})
    (0.2, None)
    """
    rates = sorted(losses)
    means = [statistics.fmean(losses[rate]) for rate in rates]
    at = means.index(min(means))
    if not 0 < at < len(rates) - 1 or not all(map(math.isfinite, means[at - 1 : at + 2])):
        return None
    square, slope, _ = np.polyfit(np.log(rates[at - 1 : at + 2]), means[at - 1 : at + 2], 2)
    return round(math.exp(-slope / (2 * square)), 4)


def law_of(best: Mapping[tuple[int, int], float]) -> tuple[float, float]:
    """Returns (c, e) of rate = c x steps^-e, by least squares over the logarithms; InputError for a single length.

    >>> law_of({(2, 100): 0.2, (2, 400): 0.1})
    (2.0, 0.5)
    """
    if len({steps for _, steps in best}) < 2:
        raise InputError("A law needs the best rates of two lengths of runs: sweep more --rates and --steps.")
    slope, start = np.polyfit([math.log(steps) for _, steps in best], np.log(list(best.values())), 1)
    return round(math.exp(start), 3), round(-float(slope), 3)


def markdown(found: Losses) -> str:
    """Returns a row for each depth and length: each rate's mean loss, with the seeds' deviation, and the best rate."""
    rates = sorted({rate for each in found.values() for rate in each})
    lines = [f"| depth | steps | seeds | {' | '.join(f'{rate:g}' for rate in rates)} | best |"]
    lines.append("| --- " * (len(rates) + 4) + "|")
    for (depth, steps), losses in found.items():
        best, seeds = best_rate(losses), max(map(len, losses.values()))
        cells = [_cell(losses.get(rate, [])) for rate in rates]
        lines.append(
            f"| {depth} | {steps:,} | {seeds} | {' | '.join(cells)} | {'at the edge' if best is None else best} |"
        )
    return "\n".join(lines)


def _cell(losses: list[float]) -> str:
    if len(losses) < 2:
        return f"{losses[0]:.3f}" if losses else ""
    return f"{statistics.fmean(losses):.3f} ± {statistics.stdev(losses):.3f}"
