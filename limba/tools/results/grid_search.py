"""The search of a fine-tuned task: each rate with each number of epochs, then the best of them with fresh seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from limba.tools.results.outcome import Outcome
from limba.tools.results.protocol import Protocol
from limba.tools.results.trainer import FineTuning, Setting

Compute = Callable[[], Outcome]
Get = Callable[[str, Setting, int, Compute], Outcome]  # the part, the setting, the seed


class Found(NamedTuple):
    """The outcomes of the seeds, and the notes beside their figures."""

    outcomes: list[Outcome]
    notes: list[str]


def settings(protocol: Protocol) -> list[Setting]:
    """Returns all that a search chooses from; it is the same for every model."""
    return [Setting(rate, epochs) for rate in protocol.learning_rates for epochs in protocol.epochs]


def num_of_search(protocol: Protocol) -> int:
    """Returns the trainings of a search; where there is one setting, nothing is searched."""
    choices = settings(protocol)
    return 0 if len(choices) == 1 else len(choices)


def learned(runs: FineTuning, label: str, is_random: bool, seeds: Sequence[int], protocol: Protocol, get: Get) -> Found:
    """Returns the test figures of each seed at the setting with the best figure on the development part.

    The search has the seed 0, which is not in `seeds`; it never sees the test part.
    """
    tried = dict[Setting, Outcome]()
    if num_of_search(protocol) == 0:
        best = settings(protocol)[0]
    else:
        for setting in settings(protocol):
            compute = lambda setting=setting: runs.outcome(setting, 0, False, is_random)
            tried[setting] = get("development", setting, 0, compute)
        best = max(tried, key=lambda choice: tried[choice].notes["development"])
    outcomes = []
    for seed in seeds:
        compute = lambda seed=seed: runs.outcome(best, seed, True, is_random)
        outcomes.append(get("test", best, seed, compute))
    return Found(outcomes, _notes(runs, label, is_random, best, tried.get(best), outcomes, protocol))


def _notes(
    runs: FineTuning,
    label: str,
    is_random: bool,
    best: Setting,
    searched: Outcome | None,
    outcomes: Sequence[Outcome],
    protocol: Protocol,
) -> list[str]:
    task = runs.task
    parts = runs.parts
    what = f"{task.name}, {label}"
    of_development = ", ".join(f"{outcome.notes['development']:.2f}" for outcome in outcomes)
    of_epochs = ", ".join(f"{outcome.notes['epoch']:.0f}" for outcome in outcomes)
    if searched is None:
        of_search = "not searched; "
        best_epochs = [outcome.notes["epoch"] for outcome in outcomes]
        on_development = of_development
    else:
        of_search = ""
        best_epochs = [searched.notes["epoch"]]
        on_development = f"{searched.notes['development']:.2f} in the search, {of_development}"
    notes = [
        f"{what}: rate {best.rate:g}, {best.epochs} epochs ({of_search}{task.main} on the development part"
        f" {on_development} with the seeds; best epochs {of_epochs})"
    ]
    rates = protocol.learning_rates
    if best.rate == min(rates) < max(rates):
        notes.append(f"{what}: the best rate is the lowest that was tried; a lower one may give more")
    if best.rate == max(rates) > min(rates):
        notes.append(f"{what}: the best rate is the highest that was tried; a higher one may give more")
    if best.epochs == max(protocol.epochs) and min(best_epochs) == best.epochs:
        notes.append(f"{what}: the best epoch is the last of the most that were tried; more may give more")
    constant = task.judge(parts.dev, task.constant(parts, parts.dev))[task.main]
    failed = [str(seed) for seed, outcome in enumerate(outcomes, 1) if outcome.notes["development"] <= constant + 1e-9]
    if failed:
        notes.append(
            f"{what}: no better than the rule '{task.constant_name}' on the development part with seed"
            f" {', '.join(failed)}; nothing was learned there"
        )
    cut = int(outcomes[0].notes.get("cut", 0))
    if cut and not is_random:
        follows = "; the words after them count as wrong" if task.is_tagged else ""
        notes.append(
            f"{what}: {cut:,} of {len(parts.test):,} test examples are longer than {runs.longest:,} tokens, and"
            f" cut{follows}"
        )
    return notes
