"""The charts of the page: which lines each has, in words and numbers; `drawing` draws them."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from limba.api import keep_extremes
from limba.tools.pages.page.runs import AXES, KINDS, Run, events_of, thinned

NUM_BARS = 32  # of a histogram
MOST_METRICS = 12  # of generated text
MOST_EVENTS = 300
# A loss has diverged where it is FAR spans above what was usual; the few values above the quantile USUAL are not usual.
LEAST_VALUES, USUAL, FAR = 20, 0.98, 1.0
FLOP_UNITS = ((1e21, "ZFLOP"), (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"))


class Line(NamedTuple):
    """A line of a chart: its columns are those of AXES that are known, and `y`. `style` is its colour and dashes."""

    label: str
    style: int
    columns: dict[str, np.ndarray]
    is_marked: bool = False  # drawn as points: an evaluation here and there
    texts: Sequence[str] = ()  # of each point, where it is an event


class Chart(NamedTuple):
    """A chart of the page; `kind` is "lines", "bars" (columns left, right, y) or "events" (y is a name)."""

    name: str
    section: str
    title: str
    unit: str
    lines: Sequence[Line]
    kind: str = "lines"
    places: Sequence[str] = ()  # the names on the y axis of events

    @property
    def sentence(self) -> str:
        """The newest figures in words; the page's table has all."""
        said = [_in_words(self, line) for line in self.lines]
        ends = dict.fromkeys(end for _, end in said if end)
        if len(ends) == 1 and len(said) > 1:  # said once
            sentence = f"{', '.join(words for words, _ in said)}{next(iter(ends))}."
        else:
            sentence = f"{', '.join(words + end for words, end in said)}."
        if self.top is None:
            return sentence
        return f"{sentence} Points above {short(self.top)} are drawn there."

    @property
    def top(self) -> float | None:
        """Where the axis of a loss that has diverged ends; None where all values are shown."""
        if self.section != "Loss" or self.kind != "lines":
            return None
        tops = [top for line in self.lines if (top := top_of(line.columns["y"])) is not None]
        return max(tops, default=None)


class Figures(NamedTuple):
    """Figures that share a chart where one run is shown; where several are, each figure has its own."""

    name: str
    section: str
    title: str
    unit: str
    kind: str  # of the records
    columns: Callable[[Run], dict[str, str]]  # label -> column
    factor: float = 1.0


def _of(**names: str) -> Callable[[Run], dict[str, str]]:
    """Returns a function that gives the same columns for every run, `column=label`."""
    return lambda _: {label: column for column, label in names.items()}


def _below(kind: str, prefix: str, whole: bool = False, **also: str) -> Callable[[Run], dict[str, str]]:
    """Returns a function that gives the columns whose names begin so, and others, `column=label`.

    With `whole`, without those of a part, such as one stage's: "tokens/stage_80000/ro".
    """

    def columns(run: Run) -> dict[str, str]:
        names = [name for name in run.history.tables[kind].names if name.startswith(prefix)]
        names = [name for name in names if not (whole and "/" in name.removeprefix(prefix))]
        return {**{label: name for name, label in also.items()}, **{name.removeprefix(prefix): name for name in names}}

    return columns


FIGURES = (
    Figures("learning_rate", "Optimization", "Learning rate", "rate", "train", _of(learning_rate="learning rate")),
    Figures("gradient_norm", "Optimization", "Gradient norm", "norm", "train", _of(gradient_norm="gradient norm")),
    Figures("parameter_norm", "Optimization", "Parameter norm", "norm", "train", _of(parameter_norm="parameter norm")),
    Figures("update_norm", "Optimization", "Update norm", "norm", "train", _of(update_norm="update norm")),
    Figures("throughput", "Speed", "Throughput", "tokens/s", "train", _of(tokens_per_second="tokens per second")),
    Figures("step_time", "Speed", "Time of a step", "seconds", "train", _of(seconds_per_step="seconds per step")),
    Figures("mfu", "Speed", "Model FLOP utilization (MFU)", "% of the peak", "train", _of(mfu="MFU"), 100),
    Figures("data_wait", "Speed", "Waiting for data", "% of the time", "train", _of(data_wait="data wait"), 100),
    Figures("memory", "Speed", "Memory", "GiB", "train",
            _of(hbm_peak_gib="device, peak", host_memory_gib="host, first process")),
    Figures("epochs", "Data", "Epochs of each corpus", "epochs", "train", _below("train", "epochs/")),
    Figures("corpus_tokens", "Data", "Tokens of each corpus", "tokens, without padding", "train",
            _below("train", "tokens/", whole=True)),
    Figures("bits_per_byte", "Validation", "Bits per byte by character set", "bits per byte", "validation",
            _below("validation", "bits_per_byte/", bits_per_byte="all")),
)  # fmt: skip


def charts_of(runs: Sequence[Run], most: int) -> list[Chart]:
    """Returns the charts of these runs that have something to show; a line has at most `most` points."""
    found = [
        _both(runs, most, "loss", "Loss", "Loss", "nats per target token"),
        _timeline(runs),
        _both(runs, most, "accuracy", "Validation", "Token accuracy", "% of the target tokens", 100),
        *(chart for figures in FIGURES for chart in _charts_of_figures(runs, most, figures)),
        _from_totals(runs, most),
        _padding(runs, most),
        *_histograms(runs),
        *_texts(runs, most),
    ]
    return [chart for chart in found if chart.lines]


def _line(run: Run, kind: str, label: str, style: int, values: np.ndarray, most: int, marks: bool = False) -> Line:
    places = keep_extremes(values, most)
    columns = {name: axis[places] for name, axis in run.axes(kind).items()}
    return Line(label, style, {**columns, "y": values[places]}, marks)


def _named(runs: Sequence[Run], run: Run, label: str) -> str:
    return f"{run.name}: {label}" if len(runs) > 1 else label


def _both(runs: Sequence[Run], most: int, name: str, section: str, title: str, unit: str, factor: float = 1.0) -> Chart:
    """Returns the chart of the figure `name` of both training and validation."""
    lines = []
    for number, run in enumerate(runs):
        for kind, label in (("train", "training"), ("validation", "validation")):
            if name in (table := run.history.tables[kind]):
                is_marked = kind == "validation"
                style = number if len(runs) > 1 else int(is_marked)
                values = table[name] * factor
                lines.append(_line(run, kind, _named(runs, run, label), style, values, most, is_marked))
    return Chart(name, section, title, unit, lines)


def _charts_of_figures(runs: Sequence[Run], most: int, figures: Figures) -> Iterator[Chart]:
    columns = {label: column for run in runs for label, column in figures.columns(run).items()}
    marks = figures.kind != "train"
    single = len(runs) == 1
    lines = {
        label: [
            _line(
                run, figures.kind, run.name if not single else label, place if single else number,
                run.history.tables[figures.kind][column] * figures.factor, most, marks,
            )
            for number, run in enumerate(runs) if column in run.history.tables[figures.kind]
        ]
        for place, (label, column) in enumerate(columns.items())
    }  # fmt: skip
    if single:
        together = [line for several in lines.values() for line in several]
        yield Chart(figures.name, figures.section, figures.title, figures.unit, together)
        return
    for label, several in lines.items():
        is_only = len(lines) == 1
        name = figures.name if is_only else f"{figures.name}-{_slug(label)}"
        yield Chart(name, figures.section, figures.title if is_only else f"{figures.title}: {label}", figures.unit,
                    several)  # fmt: skip


def _from_totals(runs: Sequence[Run], most: int) -> Chart:
    lines = []
    for number, run in enumerate(runs):
        if (tokens := run.axes().get("tokens")) is not None and len(tokens):
            corpus = next((name for name in run.train.names if name.startswith("epochs/")), "")
            several = sum(name.startswith("epochs/") for name in run.train.names) > 1
            label = "all corpora" if several or not corpus else corpus.removeprefix("epochs/")
            lines.append(_line(run, "train", _named(runs, run, label), number, tokens, most))
    return Chart("tokens", "Data", "Tokens read", "tokens, without padding", lines)


def _padding(runs: Sequence[Run], most: int) -> Chart:
    lines = [
        _line(run, "train", _named(runs, run, "padding"), number, share * 100, most)
        for number, run in enumerate(runs)
        if (share := run.padding()) is not None
    ]
    return Chart("padding", "Data", "Padding", "% of the places in rows", lines)


def _histograms(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yields a chart for each side of the rows that has any tokens: how many rows have how many."""
    sides = dict.fromkeys(side for run in runs for side in run.history.row_lengths)
    for side in sides:
        lines = []
        counted = [run.history.row_lengths.get(side, ()) for run in runs]
        longest = max((length for pairs in counted for length, _ in pairs), default=0)
        edges = np.unique(np.linspace(0, longest + 1, NUM_BARS + 1).astype(int))
        for number, (run, pairs) in enumerate(zip(runs, counted, strict=True)):
            if not longest or not pairs:
                continue
            lengths, rows = np.asarray(pairs, np.float64).T
            shares = 100 * np.histogram(lengths, edges, weights=rows)[0] / rows.sum()
            columns = {"left": edges[:-1].astype(float), "right": edges[1:].astype(float), "y": shares}
            lines.append(Line(_named(runs, run, side), number, columns))
        yield Chart(f"lengths-{side}", "Data", f"Tokens in a row of {side}", "% of the rows", lines, "bars")


def _texts(runs: Sequence[Run], most: int) -> Iterator[Chart]:
    names = dict.fromkeys(
        name for run in runs for name in run.history.tables["text"].names if not name.startswith("letter/")
    )
    for name in list(names)[:MOST_METRICS]:
        figures = Figures(f"text-{_slug(name)}", "Text", name, "metric", "text", _of(**{name: name}))
        yield from _charts_of_figures(runs, most, figures)


def _timeline(runs: Sequence[Run]) -> Chart:
    """Returns the chart of what happened: a row for each kind of event."""
    lines, places = [], dict.fromkeys(reversed(KINDS))
    seen = set[str]()
    for number, run in enumerate(runs):
        found = thinned(events_of(run), MOST_EVENTS)
        if found:
            seen |= {each.kind for each in found}
            columns = run.at([each.step for each in found])
            texts = [f"{each.kind}|{each.said}" for each in found]
            lines.append(Line(_named(runs, run, "events"), number, columns, True, texts))
    return Chart("events", "Loss", "Events", "", lines, "events", [kind for kind in places if kind in seen])


def flop_unit(runs: Sequence[Run]) -> tuple[float, str]:
    """Returns the size and the name of the unit in which the FLOPs of these runs are short numbers."""
    ends = [axis[-1] for run in runs if (axis := run.axes().get("flop")) is not None and len(axis)]
    most = float(max(ends, default=0.0))
    return next(((size, name) for size, name in FLOP_UNITS if most >= size), (1.0, "FLOP"))


def top_of(values: np.ndarray) -> float | None:
    """Returns what the end of a loss's axis should be, if values after its best are far above all that came before.

    >>> falls = np.linspace(9.0, 3.0, 100)
    >>> top_of(falls), top_of(np.append(falls, [20.0, 35.0]))
    (None, 12.0)
    """
    finite = values[np.isfinite(values)]
    if len(finite) < LEAST_VALUES:
        return None
    best = int(np.argmin(finite))
    usual = max(float(finite[: best + 1].max()), float(np.quantile(finite, USUAL)))
    span = usual - float(finite[best])
    if float(finite.max()) <= usual + FAR * span:
        return None
    return usual + span / 2


def data_of(chart: Chart, unit: float) -> list[dict[str, object]]:
    """Returns each line as the page's script reads it: its columns but FLOPs, and `flop`, those of a step in `unit`."""
    return [
        {
            "label": line.label,
            "columns": {name: packed(values) for name, values in line.columns.items() if name != "flop"},
            "flop": _flops_of_a_step(line) / unit,
            "texts": list(line.texts),
            "top": chart.top,
            "marked": line.is_marked,
        }
        for line in chart.lines
    ]


def packed(values: np.ndarray) -> str:
    """Returns float32 numbers, little-endian in base64; those that are not finite as NaN."""
    numbers = np.asarray(values, np.float64)
    with np.errstate(over="ignore"):
        small = numbers.astype("<f4")
    return base64.b64encode(np.where(np.isfinite(small), small, np.float32("nan")).astype("<f4").tobytes()).decode()


def _flops_of_a_step(line: Line) -> float:
    steps, flops = line.columns.get("step"), line.columns.get("flop")
    return 0.0 if steps is None or flops is None or not steps.any() else float(flops.max() / steps.max())


def known_axes(charts: Sequence[Chart]) -> list[str]:
    """Returns the AXES that some line has."""
    return [name for name in AXES if any(name in line.columns for chart in charts for line in chart.lines)]


def _in_words(chart: Chart, line: Line) -> tuple[str, str]:
    """Returns a line's newest figure in words, and where it stands."""
    if chart.kind == "events":
        return f"{line.label}: {len(line.texts)}", ", all listed below"
    values = line.columns["y"]
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return f"{line.label}: no finite number", ""
    if chart.kind == "bars":
        high = finite[np.argmax(values[finite])]
        left, right = (int(line.columns[name][high]) for name in ("left", "right"))
        length = f"{left:,}" if right - left <= 1 else f"{left:,} to {right - 1:,}"
        return f"{line.label}: most rows, {values[high]:.3g} %, have {length} tokens", ""
    return f"{line.label}: {short(float(values[finite[-1]]))}", f" at step {line.columns['step'][finite[-1]]:,.0f}"


def short(value: float) -> str:
    """Returns a number in few digits.

    >>> short(4.567891), short(6730.12), short(123456.7), short(3_000_000), short(0.0000123), short(0.0)
    ('4.568', '6,730', '123,457', '3 M', '1.23e-05', '0')
    """
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if size <= abs(value) < 1e15:
            return f"{value / size:.4g} {unit}"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1e4:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) >= 1e-3 else f"{value:.3g}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
