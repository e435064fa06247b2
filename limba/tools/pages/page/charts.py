"""The charts of the page: which lines each has, in words and numbers; `drawing` draws them."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from limba.api import keep_extremes
from limba.tools.pages.page.events import KINDS, events_of, thinned
from limba.tools.pages.page.runs import AXES, Run

NUM_BARS = 32  # of a histogram
MOST_METRICS = 12  # of generated text
MOST_EVENTS = 300
# A loss has diverged where it is FAR spans above what was usual; the few values above the quantile USUAL are not usual.
LEAST_VALUES = 20
USUAL = 0.98
FAR = 1.0
FLOP_UNITS = ((1e21, "ZFLOP"), (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"))
SHORT_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


class Line(NamedTuple):
    """A line of a chart. `columns` are `y` and the known AXES, each [points]; `style` is its colour and dashes."""

    label: str
    style: int
    columns: dict[str, np.ndarray]
    is_marked: bool = False  # drawn as points: an evaluation here and there
    texts: Sequence[str] = ()  # of each point, where it is an event
    first_step: int = 0  # of its run, whose FLOPs are counted from there
    flops_per_step: float = 0.0  # of its run; 0.0 if they are not known


class Chart(NamedTuple):
    """A chart of the page; `kind` is "lines", "bars" (columns left, right, y) or "events" (y is a name)."""

    name: str
    section: str
    title: str
    unit: str
    lines: Sequence[Line]
    kind: str = "lines"
    event_kinds: Sequence[str] = ()  # the names on the y axis of events, from below

    @property
    def sentence(self) -> str:
        """The newest figures in words; the page's table has all."""
        figures = [_in_words(self, line) for line in self.lines]
        wheres = dict.fromkeys(where for _, where in figures if where)
        if len(wheres) == 1 and len(figures) > 1:  # all are of one step, which is written once
            sentence = f"{', '.join(words for words, _ in figures)}{next(iter(wheres))}."
        else:
            sentence = f"{', '.join(words + where for words, where in figures)}."
        if self.top is None:
            return sentence
        return f"{sentence} Points above {short(self.top)} are drawn there."

    @property
    def top(self) -> float | None:
        """Where the axis of a loss that has diverged ends; None where all values are shown."""
        if self.section != "Loss" or self.kind != "lines":
            return None
        tops = [top_of(line.columns["y"]) for line in self.lines]
        return max((top for top in tops if top is not None), default=None)


class Figures(NamedTuple):
    """Figures that share a chart where one run is shown; where several are, each figure has its own."""

    name: str
    section: str
    title: str
    unit: str
    kind: str  # of the records
    columns: Callable[[Run], dict[str, str]]  # label -> column
    factor: float = 1.0


def _of(**labels: str) -> Callable[[Run], dict[str, str]]:
    """Returns a function that gives the same columns for every run, `column=label`."""
    return lambda _: {label: column for column, label in labels.items()}


def _below(kind: str, prefix: str, is_whole: bool = False, **labels: str) -> Callable[[Run], dict[str, str]]:
    """Returns a function that gives the columns whose names begin so, and others, `column=label`.

    With `is_whole`, without the figures of a part, such as one stage's: "tokens/stage_80000/ro".
    """

    def columns(run: Run) -> dict[str, str]:
        by_label = {label: column for column, label in labels.items()}
        for column in run.history.tables[kind].names:
            label = column.removeprefix(prefix)
            is_part = is_whole and "/" in label
            if column.startswith(prefix) and not is_part:
                by_label[label] = column
        return by_label

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
            _below("train", "tokens/", is_whole=True)),
    Figures("bits_per_byte", "Validation", "Bits per byte by character set", "bits per byte", "validation",
            _below("validation", "bits_per_byte/", bits_per_byte="all")),
)  # fmt: skip


def charts_of(runs: Sequence[Run], most_points: int) -> list[Chart]:
    """Returns the charts of these runs that have something to show; a line has at most `most_points` points."""
    charts = [
        _of_both_kinds(runs, most_points, "loss", "Loss", "Loss", "nats per target token"),
        _timeline(runs),
        _of_both_kinds(runs, most_points, "accuracy", "Validation", "Token accuracy", "% of the target tokens", 100),
    ]
    for figures in FIGURES:
        charts += _charts_of_figures(runs, most_points, figures)
    charts += [_tokens_read(runs, most_points), _padding(runs, most_points), *_histograms(runs)]
    charts += _metrics_of_text(runs, most_points)
    return _with_own_names([chart for chart in charts if chart.lines])


def _with_own_names(charts: Sequence[Chart]) -> list[Chart]:
    """Returns the charts, numbered where a name is taken: ro-wiki and ro_wiki give the same."""
    named: dict[str, Chart] = {}
    for chart in charts:
        name = chart.name
        number = 1
        while name in named:
            number += 1
            name = f"{chart.name}-{number}"
        named[name] = chart._replace(name=name)
    return list(named.values())


def _of_both_kinds(
    runs: Sequence[Run], most_points: int, name: str, section: str, title: str, unit: str, factor: float = 1.0
) -> Chart:
    """Returns the chart of the figure `name` of both training and validation."""
    lines = []
    for number, run in enumerate(runs):
        for kind, label in (("train", "training"), ("validation", "validation")):
            table = run.history.tables[kind]
            if name not in table:
                continue
            is_marked = kind == "validation"
            style = number
            if len(runs) == 1:  # then the colour tells the kinds apart, else the runs
                style = int(is_marked)
            values = table[name] * factor
            lines.append(_line(run, kind, _named(runs, run, label), style, values, most_points, is_marked))
    return Chart(name, section, title, unit, lines)


def _charts_of_figures(runs: Sequence[Run], most_points: int, figures: Figures) -> Iterator[Chart]:
    """Yields one chart of all figures of a single run, or one of each figure with a line for each run."""
    columns = {}
    for run in runs:
        columns |= figures.columns(run)
    is_single = len(runs) == 1
    lines: dict[str, list[Line]] = {}
    for style, (label, column) in enumerate(columns.items()):
        lines[label] = []
        for number, run in enumerate(runs):
            table = run.history.tables[figures.kind]
            if column not in table:
                continue
            values = table[column] * figures.factor
            is_marked = figures.kind != "train"
            if is_single:
                line = _line(run, figures.kind, label, style, values, most_points, is_marked)
            else:
                line = _line(run, figures.kind, run.name, number, values, most_points, is_marked)
            lines[label].append(line)
    if is_single or len(lines) == 1:
        together = [line for several in lines.values() for line in several]
        yield Chart(figures.name, figures.section, figures.title, figures.unit, together)
        return
    for label, several in lines.items():
        name = f"{figures.name}-{_slug(label)}"
        yield Chart(name, figures.section, f"{figures.title}: {label}", figures.unit, several)


def _tokens_read(runs: Sequence[Run], most_points: int) -> Chart:
    lines = []
    for number, run in enumerate(runs):
        tokens = run.axes().get("tokens")
        if tokens is None or not len(tokens):
            continue
        corpora = [name.removeprefix("epochs/") for name in run.train.names if name.startswith("epochs/")]
        label = corpora[0] if len(corpora) == 1 and corpora[0] else "all corpora"
        lines.append(_line(run, "train", _named(runs, run, label), number, tokens, most_points))
    return Chart("tokens", "Data", "Tokens read", "tokens, without padding", lines)


def _padding(runs: Sequence[Run], most_points: int) -> Chart:
    lines = []
    for number, run in enumerate(runs):
        share = run.padding()
        if share is not None:
            lines.append(_line(run, "train", _named(runs, run, "padding"), number, share * 100, most_points))
    return Chart("padding", "Data", "Padding", "% of the places in rows", lines)


def _histograms(runs: Sequence[Run]) -> Iterator[Chart]:
    """Yields a chart for each side of the rows that has any tokens: how many rows have how many."""
    sides = dict.fromkeys(side for run in runs for side in run.history.row_lengths)
    for side in sides:
        counts = [run.history.row_lengths.get(side, ()) for run in runs]  # of each run: pairs (length, rows)
        longest = max((length for pairs in counts for length, _ in pairs), default=0)
        edges = np.unique(np.linspace(0, longest + 1, NUM_BARS + 1).astype(int))  # the same for all runs
        lines = []
        for number, (run, pairs) in enumerate(zip(runs, counts, strict=True)):
            if not longest or not pairs:
                continue
            lengths, rows = np.asarray(pairs, np.float64).T
            shares = 100 * np.histogram(lengths, edges, weights=rows)[0] / rows.sum()
            columns = {"left": edges[:-1].astype(float), "right": edges[1:].astype(float), "y": shares}
            lines.append(Line(_named(runs, run, side), number, columns))
        yield Chart(f"lengths-{side}", "Data", f"Tokens in a row of {side}", "% of the rows", lines, "bars")


def _metrics_of_text(runs: Sequence[Run], most_points: int) -> Iterator[Chart]:
    names = dict.fromkeys(name for run in runs for name in run.history.tables["text"].names)
    names = [name for name in names if not name.startswith("letter/")]
    for name in names[:MOST_METRICS]:
        figures = Figures(f"text-{_slug(name)}", "Text", name, "metric", "text", _of(**{name: name}))
        yield from _charts_of_figures(runs, most_points, figures)


def _timeline(runs: Sequence[Run]) -> Chart:
    """Returns the chart of what happened: a row for each kind of event."""
    lines = []
    kinds_seen = set[str]()
    for number, run in enumerate(runs):
        events = thinned(events_of(run), MOST_EVENTS)
        if not events:
            continue
        kinds_seen |= {event.kind for event in events}
        columns = run.at([event.step for event in events])
        texts = [f"{event.kind}|{event.sentence}" for event in events]
        flops = run.flops_per_step() or 0.0
        first_step = run.history.first_step
        lines.append(Line(_named(runs, run, "events"), number, columns, True, texts, first_step, flops))
    rows = [kind for kind in reversed(KINDS) if kind in kinds_seen]  # the y axis goes up, and the first kind is on top
    return Chart("events", "Loss", "Events", "", lines, "events", rows)


def _line(
    run: Run, kind: str, label: str, style: int, values: np.ndarray, most_points: int, is_marked: bool = False
) -> Line:
    points = keep_extremes(values, most_points)
    columns = {name: axis[points] for name, axis in run.axes(kind).items()}
    columns["y"] = values[points]
    flops = run.flops_per_step() or 0.0
    return Line(label, style, columns, is_marked, first_step=run.history.first_step, flops_per_step=flops)


def _named(runs: Sequence[Run], run: Run, label: str) -> str:
    """Returns the label of a run's line, with the run's name where there are several."""
    return f"{run.name}: {label}" if len(runs) > 1 else label


def flop_unit(runs: Sequence[Run]) -> tuple[float, str]:
    """Returns the size and the name of the unit in which the FLOPs of these runs are short numbers."""
    most = 0.0
    for run in runs:
        axis = run.axes().get("flop")
        if axis is not None and len(axis):
            most = max(most, float(axis[-1]))
    for size, name in FLOP_UNITS:
        if most >= size:
            return size, name
    return 1.0, "FLOP"


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
    """Returns each line as the page's script reads it: its columns, and as `flop` the FLOPs of a step in `unit`.

    A line's FLOPs are 0 up to `first` and grow by the same number at each later step, so they need no column.
    """
    return [
        {
            "label": line.label,
            "columns": {name: packed(values) for name, values in line.columns.items() if name != "flop"},
            "flop": line.flops_per_step / unit,
            "first": line.first_step,
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


def known_axes(charts: Sequence[Chart]) -> list[str]:
    """Returns the AXES that some line has."""
    return [name for name in AXES if any(name in line.columns for chart in charts for line in chart.lines)]


def _in_words(chart: Chart, line: Line) -> tuple[str, str]:
    """Returns a line's newest figure in words, and where it is."""
    if chart.kind == "events":
        return f"{line.label}: {len(line.texts)}", ", all listed below"
    values = line.columns["y"]
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return f"{line.label}: no finite number", ""
    if chart.kind == "bars":
        highest = finite[np.argmax(values[finite])]
        first = int(line.columns["left"][highest])
        last = int(line.columns["right"][highest]) - 1
        length = f"{first:,}" if last <= first else f"{first:,} to {last:,}"
        return f"{line.label}: most rows, {values[highest]:.3g} %, have {length} tokens", ""
    newest = finite[-1]
    return f"{line.label}: {short(float(values[newest]))}", f" at step {line.columns['step'][newest]:,.0f}"


def short(value: float) -> str:
    """Returns a number in few digits.

    >>> short(4.567891), short(6730.12), short(123456.7), short(3_000_000), short(0.0000123), short(0.0)
    ('4.568', '6,730', '123,457', '3 M', '1.23e-05', '0')
    """
    for size, unit in SHORT_UNITS:
        if size <= abs(value) < 1e15:
            return f"{value / size:.4g} {unit}"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1e4:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) >= 1e-3 else f"{value:.3g}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"
