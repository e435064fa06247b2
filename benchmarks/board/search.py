"""The search for a recipe's settings: the same number of trials for each recipe, over the grid that it names."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.board.recipes import OWN, Recipe, Settings

RATE = "learning_rate"
Scores = Mapping[str, float]  # loss by `form` of the settings; infinite for a run that diverged


def form(settings: Settings) -> str:
    """Returns settings as text: the same for the same settings."""
    return json.dumps(dict(settings), sort_keys=True)


def own(recipe: Recipe, settings: Settings) -> dict[str, Any]:
    """Returns the settings that differ from the recipe's."""
    return {name: value for name, value in sorted(settings.items()) if value != _default(recipe, name)}


def _default(recipe: Recipe, name: str) -> Any:
    from limba.config import OptimizerConfig

    if hasattr(recipe, name):
        return getattr(recipe, name)
    return recipe.optimizer.get(name, getattr(OptimizerConfig(recipe.optimizer["name"]), name, None))


def around(recipe: Recipe, fixed: Settings) -> Recipe:
    """Returns the recipe with other values to begin with; a learning rate is then tried itself, halved and doubled.

    >>> around(Recipe("", {"name": "adamw"}, "cosine", 0.01, 1.0), {"learning_rate": 0.5, "beta2": 0.9}).learning_rate
    0.5
    """
    grid, rate = dict(recipe.grid), fixed.get(RATE)
    if rate is not None:
        grid = {**grid, RATE: (rate, rate / 2, rate * 2)}
    own_fields = {name: value for name, value in fixed.items() if name in OWN}
    others = {name: value for name, value in fixed.items() if name not in OWN}
    return dataclasses.replace(recipe, optimizer={**recipe.optimizer, **others}, grid=grid, **own_fields)


def beside(recipe: Recipe, other: Recipe, settings: Settings) -> dict[str, Any]:
    """Returns settings of `other` that make the run which `settings` make of `recipe`."""
    names = {*settings, *OWN, *(name for name in (*recipe.optimizer, *other.optimizer) if name != "name")}
    return own(other, {name: settings.get(name, _default(recipe, name)) for name in names})


def next_trial(recipe: Recipe, known: Scores, budget: int) -> tuple[dict[str, Any] | None, dict[str, float]]:
    """Returns the settings to try next, None at the search's end, and the scores of the trials before it.

    It goes through the search from its beginning. So a search that was killed goes on, and a known run that the search
    has not come to does not count as one of its trials.
    """
    scores: dict[str, float] = {}
    while (settings := proposal(recipe, scores, budget)) is not None:
        if form(settings) not in known:
            return settings, scores
        scores[form(settings)] = known[form(settings)]
    return None, scores


def proposal(recipe: Recipe, scores: Scores, budget: int) -> dict[str, Any] | None:
    """Returns the settings that the search tries next; None if `budget` trials are done or nothing is left to try.

    One axis of the grid after the other, each around the best so far. A learning rate that is the best and the lowest
    or highest tried gets a neighbour, at half or double. When a whole pass changes nothing, the learning rate is tried
    between the best one and its neighbours.
    """
    if len(scores) >= budget:
        return None
    best: dict[str, Any] = {}
    for _ in range(budget):
        before = dict(best)
        for name, values in recipe.grid.items():
            missing = _missing(recipe, scores, best, name, list(values))
            if missing is not None:
                return missing
            best = _best_on(recipe, scores, best, name, values)
        if best == before:
            break
    rate, rates = best.get(RATE, recipe.learning_rate), _tried_rates(recipe, scores, best)
    place = rates.index(rate)
    for other in rates[max(0, place - 1) : place + 2]:
        between = own(recipe, {**best, RATE: float(f"{math.sqrt(rate * other):.3g}")})
        if form(between) not in scores:
            return between
    return None


def _tried_rates(recipe: Recipe, scores: Scores, others: Settings) -> list[float]:
    """Returns the learning rates that were tried with these other settings, in order."""
    wanted = form(own(recipe, {**others, RATE: recipe.learning_rate}))
    found = [
        json.loads(each).get(RATE, recipe.learning_rate)
        for each in scores
        if form(own(recipe, {**json.loads(each), RATE: recipe.learning_rate})) == wanted
    ]
    return sorted(found)


def _missing(recipe: Recipe, scores: Scores, best: Settings, name: str, values: Sequence[Any]) -> dict[str, Any] | None:
    """Returns settings of this axis that were not tried yet."""
    for value in values:
        settings = own(recipe, {**best, name: value})
        if form(settings) not in scores:
            return settings
    if name == RATE:
        rates = _tried_rates(recipe, scores, best)
        rate = min(rates, key=lambda each: scores[form(own(recipe, {**best, RATE: each}))])
        if rate in (rates[0], rates[-1]):  # of rates that all diverge, the lowest
            return own(recipe, {**best, RATE: rate / 2 if rate == rates[0] else rate * 2})
    return None


def _best_on(recipe: Recipe, scores: Scores, best: Settings, name: str, values: Sequence[Any]) -> dict[str, Any]:
    """Returns the best settings of the axis; of equal ones those that were the best before."""
    choices = _tried_rates(recipe, scores, best) if name == RATE else list(values)
    found = [own(recipe, {**best, name: value}) for value in choices]
    return min([dict(best), *found], key=lambda each: scores.get(form(each), math.inf))
