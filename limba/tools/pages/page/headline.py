"""The page's first words: how good a run is, whether it still learns, what is left of it, and what it has cost."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import numpy as np

from limba.api import duration
from limba.config import prices
from limba.tools.pages.page.charts import short
from limba.tools.pages.page.runs import Run

LEVEL = 0.005  # a smaller share of the loss is no change
LEAST_POINTS = 4  # for a trend
LINES = 100  # the newest, whose median is the time of a step


def headline(runs: Sequence[Run]) -> str:
    """Returns a paragraph for each run that has figures; texts are escaped."""
    said = [(run.name, list(sentences(run))) for run in runs if len(run.train)]
    before = [f"<b>{html.escape(name)}</b>: " if len(runs) > 1 else "" for name, _ in said]
    return "".join(
        f"<p>{name}<strong>{html.escape(best)}</strong> {html.escape(' '.join(rest))}</p>"
        for name, (_, (best, *rest)) in zip(before, said, strict=True)
    )


def sentences(run: Run) -> Iterator[str]:
    """Yields the best loss first, then what is known of its trend, of the time that is left and of the cost."""
    table, name = run.history.tables["validation"], "validation loss"
    if not len(table) or "loss" not in table or not np.isfinite(table["loss"]).any():
        table, name = run.train, "training loss"
    values = table["loss"] if "loss" in table else np.full(len(table), np.nan)
    steps, losses = table.steps[np.isfinite(values)], values[np.isfinite(values)]
    if not len(losses):
        yield f"No finite {name} yet."
    else:
        best = int(np.argmin(losses))
        yield f"Best {name}: {short(losses[best])} at step {steps[best]:,.0f}."
        yield from _trend(steps, losses, name)
    yield from _left(run)
    yield from _cost(run)


def _trend(steps: np.ndarray, losses: np.ndarray, name: str) -> Iterator[str]:
    """Yields how the mean of the last quarter of the steps differs from that of the quarter before."""
    span = (steps[-1] - steps[0]) / 4
    newest, before = steps > steps[-1] - span, (steps > steps[-1] - 2 * span) & (steps <= steps[-1] - span)
    if len(losses) < LEAST_POINTS or not before.any():
        return
    change = float(losses[newest].mean() / losses[before].mean() - 1)
    kind = "no longer falls" if abs(change) < LEVEL else "still falls" if change < 0 else "rises"
    yield f"The {name} {kind}: {change:+.1%} from one quarter of the steps to the last.".replace("-", "−")


def _left(run: Run) -> Iterator[str]:
    notes, step, steps = run.history.notes, int(run.train.steps[-1]), run.config.train_steps
    if notes and notes[-1]["kind"] == "end":
        yield f"It ended: {notes[-1].get('reason') or 'at its last step'}."
    elif steps and "seconds_per_step" in run.train:
        seconds = float(np.nanmedian(run.train["seconds_per_step"][-LINES:])) * max(steps - step, 0)
        yield f"{duration(seconds)} left to step {steps:,}." if np.isfinite(seconds) else ""


def _cost(run: Run) -> Iterator[str]:
    """Yields the time in steps, and its price where the devices have one."""
    environment, hours = run.history.start.get("environment"), run.axes().get("hours")
    devices = str(environment.get("devices", "")) if isinstance(environment, dict) else ""
    count, _, kind = devices.partition(" x ")
    if hours is None or not len(hours) or not count.isdecimal():
        return
    spent, each = f"{duration(hours[-1] * 3600)} in steps on {devices}", prices.device_price(kind)
    if each is None:
        yield f"{spent}, which has no list price."
    else:
        yield f"{spent}: ${each * int(count) * hours[-1]:,.2f} by the list price of {prices.DATE}."
