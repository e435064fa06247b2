"""Draws the page's charts with bokeh: the models without numbers, which the page's script fills in and keeps new."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import (
    BasicTicker,
    BoxZoomTool,
    ColumnDataSource,
    DataRange1d,
    FactorRange,
    HoverTool,
    LinearAxis,
    Quad,
)
from bokeh.plotting import figure
from bokeh.resources import Resources

from limba.tools.pages.page.charts import Chart, Line

HEIGHT = 280  # pixels
EVENTS_HEIGHT = 60  # and so much for each kind
LOGARITHMIC = ("Loss", "Validation", "Optimization")  # sections whose figures have a logarithm
FROM_NONE = ("data_wait", "epochs", "tokens", "corpus_tokens", "padding")  # charts whose figures are 0 or more
DASHES = ("solid", "dashed", "dotted", "dotdash", [12, 3], [6, 2, 2, 2, 2, 2], "dashdot", [2, 6])
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "cross", "star", "x")
HATCHES = ("/", "\\", "-", "|", "+", "x", ".", "o")


def script() -> str:
    """Returns bokeh's own script, as it stands in the page."""
    (text,) = Resources(mode="inline", components=["bokeh"]).js_raw[:1]
    return text


def item(chart: Chart) -> dict[str, object]:
    """Returns what bokeh's script makes a chart of. Its sources are called by the chart's name and a line's number.

    Colours are left to the page, which knows whether it is dark; `tags` say which line of the palette each has.
    """
    is_events, is_bars = chart.kind == "events", chart.kind == "bars"
    options: dict[str, Any] = {
        "height": EVENTS_HEIGHT + 24 * len(chart.places) if is_events else HEIGHT,
        "tools": [BoxZoomTool(dimensions="width")],
        "y_range": FactorRange(factors=list(chart.places)) if is_events else _range(chart),
    }
    plot: Any = figure(
        sizing_mode="stretch_width", toolbar_location=None, name=chart.name, tags=[chart.section in LOGARITHMIC],
        background_fill_color=None, border_fill_color=None, outline_line_color=None, min_border_right=16, **options,
    )  # fmt: skip
    for number, line in enumerate(chart.lines):
        _draw(plot, chart, number, line)
    for axis in plot.axis:
        axis.axis_label_text_font_style = "normal"
        if isinstance(axis, LinearAxis):
            axis.ticker = BasicTicker(desired_num_ticks=5)
    if not is_events:
        plot.yaxis.axis_label = chart.unit
    plot.xaxis.axis_label = "tokens in a row" if is_bars else "step"
    return dict(json_item(plot))


def _range(chart: Chart) -> DataRange1d:
    found = DataRange1d(default_span=_span(chart))
    if any(chart.name == name or chart.name.startswith(f"{name}-") for name in FROM_NONE):
        found.start = 0
    return found


def _span(chart: Chart) -> float:
    """Returns how much a line of one value is shown with, above and below together."""
    values = [abs(float(each)) for line in chart.lines for each in line.columns["y"][-1:] if np.isfinite(each)]
    return max(values, default=0.0) or 1.0


def _draw(plot: Any, chart: Chart, number: int, line: Line) -> None:
    columns = ("y", "said", "left", "right") if chart.kind == "bars" else ("x", "y", "said")
    source = ColumnDataSource({name: [] for name in columns}, name=f"{chart.name}/{number}")
    style, drawn = line.style % len(DASHES), []
    if chart.kind == "bars":
        bars = Quad(left="left", right="right", bottom=0, top="y", fill_alpha=0.35, hatch_pattern=HATCHES[style])
        drawn.append(plot.add_glyph(source, bars))
    if chart.kind == "lines":
        width = 1 if line.is_marked else 1.75
        drawn.append(plot.line("x", "y", source=source, line_width=width, line_dash=DASHES[style]))
    if line.is_marked:
        drawn.append(plot.scatter("x", "y", source=source, marker=MARKERS[style], size=8, fill_alpha=0.6))
    for each in drawn:
        each.glyph.tags = [line.style]
        each.nonselection_glyph = each.muted_glyph = "auto"  # a third of the text less than copies of the glyph
    plot.add_tools(HoverTool(renderers=drawn[-1:], tooltips=[(line.label, "@said")], point_policy="snap_to_data"))
