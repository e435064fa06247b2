"""The board's table and pictures: validation loss, bits per byte, and steps to the baseline's final loss.

And the law of a recipe's rate: how the best one falls with the length of the run, from the sweeps of a board.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.board.recipes import Recipe, recipe_of
from limba.config import InputError

Result = Mapping[str, Any]
BASELINE = "adafactor"
BASELINE_ENCODER = "masked"
HEAD = (
    "recipe", "set", "seeds", "steps", "loss", "bits per byte", "steps to the baseline's loss", "share",
    "s/step", "TFLOP", "passes", "date",
)  # fmt: skip


@dataclass(frozen=True)
class Board:
    """Results that may be compared: they share corpus, size and part of the text."""

    corpus: str
    depth: int
    final: bool
    is_encoder: bool = False

    @property
    def name(self) -> str:
        """The name of its picture.

        >>> Board("de", 2, True).name
        'de-d2-final'
        """
        shape = "-encoder" if self.is_encoder else ""
        return f"{self.corpus}-d{self.depth}{shape}{'-final' if self.final else ''}"


@dataclass(frozen=True)
class Group:
    """The runs of one recipe that differ in their seeds only."""

    recipe: str
    settings: str
    steps: int
    runs: tuple[Result, ...]

    @property
    def loss(self) -> float:
        """The mean of the last validation losses; infinite if a run diverged."""
        return statistics.fmean(last(run, "loss") for run in self.runs)


def last(run: Result, figure: str) -> float:
    """Returns a run's last validation figure; infinity if it diverged."""
    values = run["curve"][figure]
    return values[-1] if run["status"] == "finished" and values else float("inf")


def steps_to(steps: Sequence[float], losses: Sequence[float], target: float) -> float | None:
    """Returns the step at which the loss first reaches the target, linear between evaluations; None if it never does.

    A target that the first evaluation already reaches gives that evaluation's step, the most it can be; so does a
    target first reached after a loss that is not finite.

    >>> steps_to([100, 200, 300], [5.0, 4.0, 3.0], 3.5), steps_to([100, 200], [5.0, math.nan], 3.5)
    (250.0, None)
    """
    for i, loss in enumerate(losses):
        if not loss <= target:  # NaN too
            continue
        before = losses[i - 1] if i else math.nan
        if not math.isfinite(before):
            return float(steps[i])
        step = steps[i - 1]
        return float(step + (steps[i] - step) * (before - target) / (before - loss))
    return None


def boards(results: Iterable[Result]) -> dict[Board, list[Group]]:
    """Returns the groups of each board, the best first."""
    gathered: dict[Board, dict[tuple[str, str, int], list[Result]]] = {}
    for result in results:
        is_encoder = recipe_of(result["recipe"]).is_encoder
        board = Board(result["corpus"], result["depth"], result["final"], is_encoder)
        settings = " ".join(f"{name}={value}" for name, value in result["settings"].items())
        key = (result["recipe"], settings, result["steps"])
        gathered.setdefault(board, {}).setdefault(key, []).append(result)
    return {
        board: sorted(
            (Group(recipe, settings, steps, tuple(runs)) for (recipe, settings, steps), runs in groups.items()),
            key=lambda group: group.loss,
        )
        for board, groups in sorted(gathered.items(), key=lambda item: item[0].name)
    }


def baseline_of(groups: Sequence[Group], name: str = BASELINE) -> Group | None:
    """Returns the baseline's group: the best of the groups with the most steps and seeds. None if it has no run."""
    names = (name, BASELINE_ENCODER) if name == BASELINE else (name,)
    candidates = [group for group in groups if group.recipe in names]
    return max(candidates, key=lambda group: (group.steps, len(group.runs), -group.loss), default=None)


def _spread(values: Sequence[float], digits: int) -> str:
    """Returns mean and sample standard deviation.

    >>> _spread([4.0, 4.5], 2), _spread([4.0], 2), _spread([float("inf")], 2)
    ('4.25 ± 0.35', '4.00', 'diverged')
    """
    if not np.all(np.isfinite(values)):
        return "diverged"
    mean = f"{statistics.fmean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):,.{digits}f}"


def _row(group: Group, baseline: Group | None) -> list[str]:
    runs = group.runs
    reached = share = ""
    if baseline is not None and math.isfinite(baseline.loss):  # it has a last loss, which others may reach
        finished_runs = [run for run in runs if run["status"] == "finished"]
        steps_reached = [steps_to(run["curve"]["steps"], run["curve"]["loss"], baseline.loss) for run in finished_runs]
        known = [step for step in steps_reached if step is not None]
        if len(known) == len(runs):
            reached = _spread(known, 0)
            share = f"{statistics.fmean(known) / baseline.steps:.0%}".replace("%", " %")
        else:
            reached = f"not reached by {len(runs) - len(known)} of {len(runs)}"
    all_finished = all(run["status"] == "finished" for run in runs)
    passes = [run["passes"] for run in runs if run["passes"] is not None]
    flop = statistics.fmean(run["flops_per_step"] for run in runs) * group.steps / 1e12
    return [
        group.recipe, group.settings, str(len(runs)), f"{group.steps:,}",
        _spread([last(run, "loss") for run in runs], 3),
        _spread([last(run, "bits_per_byte") for run in runs], 3) if all_finished else "",
        reached, share,
        f"{statistics.median(run['seconds_per_step'] for run in runs):.2f}", f"{flop:,.0f}",
        f"{max(passes):.2f}" if passes else "", max(run["date"] for run in runs)[:10],
    ]  # fmt: skip


def markdown(board: Board, groups: Sequence[Group], name: str = BASELINE) -> str:
    """Returns the board's table in Markdown, with every group, the losing ones too."""
    baseline = baseline_of(groups, name)
    first = groups[0].runs[0]
    part = "final-evaluation" if board.final else "search-evaluation"
    models = f"`{board.corpus}`, depth {board.depth}: {first['parameters']:,} parameters, {first['rows']} rows a step"
    target = ""
    if baseline is not None and math.isfinite(baseline.loss):
        target = f"; the baseline's loss is {baseline.loss:.3f} after {baseline.steps:,} steps"
    elif baseline is not None:
        target = "; the baseline diverged, so there is no loss to reach"
    lines = [HEAD, ["---"] * len(HEAD), *(_row(group, baseline) for group in groups)]
    command = (
        f"python -m benchmarks.speedrun --recipe=RECIPE --set=SET --steps=STEPS --seeds=SEEDS --depth={board.depth}"
        f" --corpus={board.corpus}.jsonl{' --final' if board.final else ''}"
    )
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{models}, {part} part{target}. On {first['devices']}; each row is `{command}`\n\n{table}"


def best_of_each(groups: Sequence[Group]) -> list[Group]:
    """Returns the best group of each recipe and number of steps among the groups with the most seeds."""
    best: dict[tuple[str, int], Group] = {}
    for group in groups:
        known = best.get((group.recipe, group.steps))
        if known is None or len(group.runs) > len(known.runs):  # the groups come best first
            best[group.recipe, group.steps] = group
    return list(best.values())


def draw(board: Board, groups: Sequence[Group], folder: Path) -> Path:
    """Draws bits per byte over steps, FLOPs and seconds, a colour for each recipe and steps; returns the path."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), dpi=110, layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for number, group in enumerate(best_of_each(groups)):
        for i, run in enumerate(group.runs):
            curve = run["curve"]
            steps = np.array(curve["steps"], float)
            label = f"{group.recipe}, {group.steps:,} steps" if i == 0 else None
            for plot, x in zip(axes, (steps, steps * run["flops_per_step"] / 1e12, curve["seconds"]), strict=True):
                style = ("-", "--", "-.", ":")[number // 10 % 4]
                plot.plot(x, curve["bits_per_byte"], style, color=f"C{number % 10}", lw=1.2, alpha=0.8, label=label)
    for plot, words in zip(axes, ("step", "TFLOP of matrix products", "seconds of steps"), strict=True):
        plot.set(xlabel=words)
        plot.grid(alpha=0.3)
    axes[0].set(ylabel="bits per byte of the validation targets", title=board.name)
    axes[2].legend(fontsize="small")
    path = folder / f"curves-{board.name}.png"
    figure.savefig(path)
    return path


Losses = dict[tuple[int, int], dict[float, list[float]]]  # (depth, steps) -> rate -> losses of the seeds


def losses_by_rate(results: Iterable[Mapping[str, Any]], name: str, corpus: str, recipe: Recipe) -> Losses:
    """Returns the last losses of a recipe's runs that differ in nothing but rate and seed."""
    by_size: Losses = {}
    for run in results:
        settings = dict(run["settings"])
        rate = settings.pop("learning_rate", recipe.learning_rate)
        is_of_recipe = (run["recipe"], run["corpus"], run["final"]) == (name, corpus, False)
        if is_of_recipe and not settings:
            by_rate = by_size.setdefault((run["depth"], run["steps"]), {})
            by_rate.setdefault(rate, []).append(last(run, "loss"))
    return dict(sorted(by_size.items()))


def best_rate(losses: Mapping[float, list[float]]) -> float | None:
    """Returns where the parabola through the lowest mean and its neighbours, over log rate, is lowest; None at an edge.

    >>> best_rate({0.1: [2.0], 0.2: [1.0], 0.4: [2.0]}), best_rate({0.1: [1.0], 0.2: [2.0], 0.4: [3.0]})
    (0.2, None)
    """
    rates = sorted(losses)
    means = [statistics.fmean(losses[rate]) for rate in rates]
    lowest = means.index(min(means))
    if not 0 < lowest < len(rates) - 1:
        return None
    near = slice(lowest - 1, lowest + 2)
    if not all(map(math.isfinite, means[near])):
        return None
    square, slope, _ = np.polyfit(np.log(rates[near]), means[near], 2)
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


def rates_markdown(by_size: Losses) -> str:
    """Returns a row for each depth and length: each rate's mean loss, with the seeds' deviation, and the best rate."""
    rates = sorted({rate for by_rate in by_size.values() for rate in by_rate})
    lines = [f"| depth | steps | seeds | {' | '.join(f'{rate:g}' for rate in rates)} | best |"]
    lines.append("| --- " * (len(rates) + 4) + "|")
    for (depth, steps), losses in by_size.items():
        best = best_rate(losses)
        seeds = max(map(len, losses.values()))
        cells = [_cell(losses.get(rate, [])) for rate in rates]
        lines.append(
            f"| {depth} | {steps:,} | {seeds} | {' | '.join(cells)} | {'at the edge' if best is None else best} |"
        )
    return "\n".join(lines)


def _cell(losses: list[float]) -> str:
    if len(losses) < 2:
        return f"{losses[0]:.3f}" if losses else ""
    return f"{statistics.fmean(losses):.3f} ± {statistics.stdev(losses):.3f}"
