"""The page's first paragraphs: how a run has ended, its best loss, the trend, the time to its last step, its price."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

import numpy as np

from limba.api import duration
from limba.config import prices
from limba.tools.pages.page.charts import short
from limba.tools.pages.page.runs import Run

LEVEL = 0.005  # a smaller share of the loss does not count as a change
LEAST_POINTS = 4  # for a trend
LINES = 100  # the newest, whose median is the time of a step


def headline(runs: Sequence[Run]) -> str:
    """Returns a paragraph for each run that has ended, and one for each that has figures; texts are escaped."""
    paragraphs = []
    for run in runs:
        name = f"<b>{html.escape(run.name)}</b>: " if len(runs) > 1 else ""
        if run.standing is not None:
            css_class = ' class="wrong"' if run.standing.is_wrong else ""
            word = html.escape(run.standing.word)
            sentence = html.escape(run.standing.sentence)
            paragraphs.append(f"<p{css_class}>{name}<strong>{word}</strong> {sentence}</p>")
        if len(run.train):
            best, *rest = sentences(run)
            paragraphs.append(f"<p>{name}<strong>{html.escape(best)}</strong> {html.escape(' '.join(rest))}</p>")
    return "".join(paragraphs)


def sentences(run: Run) -> Iterator[str]:
    """Yields the best loss first, then its trend, the remaining time and the cost, if they are known."""
    table = run.history.tables["validation"]
    name = "validation loss"
    has_validation_loss = len(table) and "loss" in table and np.isfinite(table["loss"]).any()
    if not has_validation_loss:
        table = run.train
        name = "training loss"
    losses = table["loss"] if "loss" in table else np.full(len(table), np.nan)
    is_finite = np.isfinite(losses)
    steps = table.steps[is_finite]
    losses = losses[is_finite]
    if not len(losses):
        yield f"No finite {name} yet."
    else:
        best = int(np.argmin(losses))
        yield f"Best {name}: {short(losses[best])} at step {steps[best]:,.0f}."
        if run.standing is None or run.standing.word == "DONE":  # a run that failed has worse news than its trend
            yield from _trend(steps, losses, name)
    if run.standing is None:
        yield from _remaining_time(run)
    yield from _cost(run)


def _trend(steps: np.ndarray, losses: np.ndarray, name: str) -> Iterator[str]:
    """Yields how the mean of the last quarter of the steps differs from the mean of the quarter before."""
    quarter = (steps[-1] - steps[0]) / 4
    is_last = steps > steps[-1] - quarter
    is_before = (steps > steps[-1] - 2 * quarter) & ~is_last
    if len(losses) < LEAST_POINTS or not is_before.any():
        return
    change = float(losses[is_last].mean() / losses[is_before].mean() - 1)
    if abs(change) < LEVEL:
        verdict = "no longer falls"
    elif change < 0:
        verdict = "still falls"
    else:
        verdict = "rises"
    yield f"The {name} {verdict}: {change:+.1%} from one quarter of the steps to the last.".replace("-", "−")


def _remaining_time(run: Run) -> Iterator[str]:
    """Yields the time to the last step, by the newest lines."""
    last_step = run.config.train_steps
    if not last_step or "seconds_per_step" not in run.train:
        return
    steps = max(last_step - int(run.train.steps[-1]), 0)
    # The median: a step that waited for a checkpoint or an evaluation says nothing about the others.
    seconds = float(np.nanmedian(run.train["seconds_per_step"][-LINES:])) * steps
    if np.isfinite(seconds):
        yield f"{duration(seconds)} left to step {last_step:,}."


def _cost(run: Run) -> Iterator[str]:
    """Yields the time in steps on each kind of devices, and its price where all of them have one."""
    hours_by_devices = run.hours_by_devices()
    if not hours_by_devices:
        return
    times = [f"{duration(hours * 3600)} in steps on {devices}" for devices, hours in hours_by_devices.items()]
    spent = " and ".join(times)
    dollars = 0.0
    for devices, hours in hours_by_devices.items():
        count, _, device_kind = devices.partition(" x ")
        price = prices.device_price(device_kind)
        if price is None:
            yield f"{spent}."
            return
        dollars += price * int(count) * hours
    yield f"{spent}: ${dollars:,.2f} by the list price of {prices.DATE}."
