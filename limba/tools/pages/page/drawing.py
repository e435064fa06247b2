"""How bokeh draws a chart: its models without numbers, which the page's script fills in and keeps new."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh import models
from bokeh.embed import json_item
from bokeh.plotting import figure
from bokeh.resources import Resources

from limba.tools.pages.page.charts import Chart, Line

HEIGHT = 280  # pixels
EVENTS_HEIGHT = 60  # pixels of a chart of events
EVENTS_ROW_HEIGHT = 24  # and so much for each kind
LOGARITHMIC = ("Loss", "Validation", "Optimization")  # sections whose figures have a logarithm
FROM_ZERO = ("data_wait", "epochs", "tokens", "corpus_tokens", "padding")  # charts whose figures are 0 or more
# By a line's style: a run is known by more than its colour.
DASHES = ([], [6], [2, 4], [2, 4, 6, 4], [12, 3], [6, 2, 2, 2, 2, 2], [6, 4, 2, 4], [2, 6])
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "cross", "star", "x")
HATCHES = ("/", "\\", "-", "|", "+", "x", ".", "o")
RAW_ALPHA = 0.3  # of the raw values under a smoothed line
MOST_RAW = 4  # lines of a chart that has them: of more, the pale lines hide the others


def script() -> str:
    """Returns bokeh's own script, as the page has it."""
    (text,) = Resources(mode="inline", components=["bokeh"]).js_raw[:1]
    return text


def item(chart: Chart) -> dict[str, object]:
    """Returns what bokeh's script makes a chart of. Its sources are called by the chart's name and a line's number.

    Colours are left to the page, which knows whether it is dark; `tags` say which line of the palette each has.
    """
    options: dict[str, Any] = {
        "height": HEIGHT,
        "tools": [models.BoxZoomTool(dimensions="width")],
    }
    if chart.kind != "events":
        options["y_range"] = _range(chart)
    else:
        options["height"] = EVENTS_HEIGHT + EVENTS_ROW_HEIGHT * len(chart.event_kinds)
        options["y_range"] = models.FactorRange(factors=list(chart.event_kinds))
    plot: Any = figure(
        sizing_mode="stretch_width", toolbar_location=None, name=chart.name, tags=[chart.section in LOGARITHMIC],
        background_fill_color=None, border_fill_color=None, outline_line_color=None, min_border_right=16, **options,
    )  # fmt: skip
    for number, line in enumerate(chart.lines):
        _draw(plot, chart, number, line)
    for axis in plot.axis:
        axis.axis_label_text_font_style = "normal"
        if isinstance(axis, models.LinearAxis):
            axis.ticker = models.BasicTicker(desired_num_ticks=5)
    if chart.kind != "events":
        plot.yaxis.axis_label = chart.unit
    plot.xaxis.axis_label = "tokens in a row" if chart.kind == "bars" else "step"
    return dict(json_item(plot))


def _range(chart: Chart) -> models.DataRange1d:
    y_range = models.DataRange1d(default_span=_span(chart))
    if any(chart.name == name or chart.name.startswith(f"{name}-") for name in FROM_ZERO):
        y_range.start = 0
    return y_range


def _span(chart: Chart) -> float:
    """Returns how much a line of one value is shown with, above and below together."""
    newest = [value for line in chart.lines for value in line.columns["y"][-1:]]
    return max((abs(float(value)) for value in newest if np.isfinite(value)), default=0.0) or 1.0


def _draw(plot: Any, chart: Chart, number: int, line: Line) -> None:
    """Adds a line to a plot: bars, or the line over its raw values, or the points of events and evaluations."""
    columns = ("y", "said", "left", "right") if chart.kind == "bars" else ("x", "y", "said")
    source = models.ColumnDataSource({name: [] for name in columns}, name=f"{chart.name}/{number}")
    style = line.style % len(DASHES)
    drawn = []
    if chart.kind == "bars":
        bars = models.Quad(left="left", right="right", bottom=0, top="y", fill_alpha=0.35, hatch_pattern=HATCHES[style])
        drawn.append(plot.add_glyph(source, bars))
    if chart.kind == "lines":
        if len(chart.lines) <= MOST_RAW and not line.is_marked:
            raw = models.ColumnDataSource({name: [] for name in columns}, name=f"{chart.name}/{number}/raw")
            pale = plot.line("x", "y", source=raw, line_width=1, line_alpha=RAW_ALPHA)
            _share_glyph(pale, line)
        width = 1 if line.is_marked else 1.75
        drawn.append(plot.line("x", "y", source=source, line_width=width, line_dash=DASHES[style]))
    if line.is_marked:
        drawn.append(plot.scatter("x", "y", source=source, marker=MARKERS[style], size=8, fill_alpha=0.6))
    for renderer in drawn:
        _share_glyph(renderer, line)
    hover = models.HoverTool(renderers=drawn[-1:], tooltips=[(line.label, "@said")], point_policy="snap_to_data")
    plot.add_tools(hover)


def _share_glyph(renderer: Any, line: Line) -> None:
    """Gives a glyph its style, and has bokeh keep no copies of it, which are a third of the page's text."""
    renderer.glyph.tags = [line.style]
    renderer.nonselection_glyph = "auto"
    renderer.muted_glyph = "auto"
