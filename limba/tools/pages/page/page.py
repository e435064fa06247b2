"""The report as one HTML file that needs no network, and as the data by which an open page is brought up to date.

bokeh draws the charts: their models without numbers, which the page's script fills in and keeps new.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from bokeh import models
from bokeh.embed import json_item
from bokeh.plotting import figure
from bokeh.resources import Resources

from limba.config import InputError, reason_of
from limba.tools.pages.page import charts, tables
from limba.tools.pages.page.charts import Chart, Line
from limba.tools.pages.page.runs import Run, own_bytes
from limba.tools.pages.serving import PageHandler, PageServer, as_json

HEIGHT = 280  # pixels
EVENTS_HEIGHT = 60  # and so much for each kind
LOGARITHMIC = ("Loss", "Validation", "Optimization")  # sections whose figures have a logarithm
FROM_NONE = ("data_wait", "epochs", "tokens", "corpus_tokens", "padding")  # charts whose figures are 0 or more
DASHES = ([], [6], [2, 4], [2, 4, 6, 4], [12, 3], [6, 2, 2, 2, 2, 2], [6, 4, 2, 4], [2, 6])
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "cross", "star", "x")
RAW_ALPHA = 0.3  # of the raw values under a smoothed line
MOST_RAW = 4  # lines of a chart that has them: of more, the pale lines hide the others
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
        "tools": [models.BoxZoomTool(dimensions="width")],
        "y_range": models.FactorRange(factors=list(chart.places)) if is_events else _range(chart),
    }
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
    if not is_events:
        plot.yaxis.axis_label = chart.unit
    plot.xaxis.axis_label = "tokens in a row" if is_bars else "step"
    return dict(json_item(plot))


def _range(chart: Chart) -> models.DataRange1d:
    found = models.DataRange1d(default_span=_span(chart))
    if any(chart.name == name or chart.name.startswith(f"{name}-") for name in FROM_NONE):
        found.start = 0
    return found


def _span(chart: Chart) -> float:
    """Returns how much a line of one value is shown with, above and below together."""
    values = [abs(float(each)) for line in chart.lines for each in line.columns["y"][-1:] if np.isfinite(each)]
    return max(values, default=0.0) or 1.0


def _draw(plot: Any, chart: Chart, number: int, line: Line) -> None:
    columns = ("y", "said", "left", "right") if chart.kind == "bars" else ("x", "y", "said")
    source = models.ColumnDataSource({name: [] for name in columns}, name=f"{chart.name}/{number}")
    style, drawn = line.style % len(DASHES), []
    if chart.kind == "bars":
        bars = models.Quad(left="left", right="right", bottom=0, top="y", fill_alpha=0.35, hatch_pattern=HATCHES[style])
        drawn.append(plot.add_glyph(source, bars))
    has_raw = len(chart.lines) <= MOST_RAW and not line.is_marked
    if chart.kind == "lines" and has_raw:
        raw = models.ColumnDataSource({name: [] for name in columns}, name=f"{chart.name}/{number}/raw")
        pale = plot.line("x", "y", source=raw, line_width=1, line_alpha=RAW_ALPHA)
        pale.glyph.tags = [line.style]
        pale.nonselection_glyph = pale.muted_glyph = "auto"
    if chart.kind == "lines":
        width = 1 if line.is_marked else 1.75
        drawn.append(plot.line("x", "y", source=source, line_width=width, line_dash=DASHES[style]))
    if line.is_marked:
        drawn.append(plot.scatter("x", "y", source=source, marker=MARKERS[style], size=8, fill_alpha=0.6))
    for each in drawn:
        each.glyph.tags = [line.style]
        each.nonselection_glyph = each.muted_glyph = "auto"  # a third of the text less than copies of the glyph
    plot.add_tools(
        models.HoverTool(renderers=drawn[-1:], tooltips=[(line.label, "@said")], point_policy="snap_to_data")
    )


MOST_BYTES = 2_000_000  # of a page with its data
POINTS, LEAST_POINTS = 600, 24  # of a line
MARK = '<meta name="generator" content="Limba, report of runs">'  # by which a page of ours is known
# Nothing is loaded from anywhere: the browser itself refuses it.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src {}"
AXIS_TITLES = {"step": "step", "tokens": "tokens", "hours": "hours in steps", "flop": "FLOP"}
TABLES = {"Corpora": "corpora", "Events": "happened", "Configuration": "configuration", "Environment": "environment"}
SECTIONS = ("Loss", "Figures", "Validation", "Text", "Samples", "Optimization", "Speed", "Data")


class Content(NamedTuple):
    """What a page shows: the charts, and the data of its script. Pages of the same `structure` can be updated."""

    charts: Sequence[Chart]
    data: dict[str, Any]


def content_of(runs: Sequence[Run], most_points: int = POINTS) -> Content:
    """Returns the content for runs that are up to date. InputError if a file of theirs cannot be read."""
    try:
        return _content_of(runs, most_points)
    except Exception as error:  # a bucket's client has errors of its own
        if not isinstance(error, OSError) and not any("://" in str(run.directory) for run in runs):
            raise
        place = getattr(error, "filename", None) or ", ".join(str(run.directory) for run in runs)
        raise InputError(f"{place} cannot be read ({reason_of(error)}); check your rights and the network.") from error


def _content_of(runs: Sequence[Run], most_points: int) -> Content:
    found = charts.charts_of(runs, most_points)
    size, unit = charts.flop_unit(runs)
    axes = charts.known_axes(found) or ["step"]
    form = [[chart.name, chart.kind, chart.title, *(line.label for line in chart.lines)] for chart in found]
    fragments = {
        "headline": tables.headline(runs),
        "facts": tables.facts(runs),
        "problems": tables.problems(runs),
        "corpora": tables.corpora(runs) + tables.stages(runs),
        "happened": tables.happened(runs),
        "configuration": tables.configuration(runs),
        "environment": tables.environment(runs),
    }
    written = tables.samples_of(runs)
    form += [axes, bool(written), bool(fragments["environment"]), bool(fragments["corpora"])]
    return Content(
        found,
        {
            "structure": hashlib.sha256(json.dumps(form).encode()).hexdigest()[:16],
            "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "axes": {name: unit if name == "flop" else AXIS_TITLES[name] for name in axes},
            "charts": {chart.name: charts.data_of(chart, size) for chart in found},
            "sentences": {chart.name: chart.sentence for chart in found},
            "fragments": fragments,
            "runs": [run.name for run in runs],
            "samples": written,
        },
    )


def page_of(runs: Sequence[Run], is_live: bool = False) -> str:
    """Returns the page of these runs, in fewer than MOST_BYTES: with fewer points where there are many lines."""
    points = max(POINTS // len(runs), LEAST_POINTS)
    items: dict[str, object] = {}
    while True:
        content = content_of(runs, points)
        items = items or {chart.name: item(chart) for chart in content.charts}
        text = _page(content, items, runs, is_live)
        if len(text.encode()) < MOST_BYTES or points <= LEAST_POINTS:
            return text
        points = max(points // 2, LEAST_POINTS)


def _page(content: Content, items: dict[str, object], runs: Sequence[Run], is_live: bool) -> str:
    data = {**content.data, "items": items, "live": is_live}
    title = f"Report of {runs[0].name}" if len(runs) == 1 else f"Report of {len(runs)} runs"
    drawn = {name: text for name in SECTIONS if (text := _section(name, content))}
    written = [name for name, fragment in TABLES.items() if content.data["fragments"][fragment]]
    parts = {
        "MARK": MARK,
        "POLICY": POLICY.format("'self'" if is_live else "'none'"),
        "TITLE": html.escape(title),
        "TIME": content.data["time"],
        "STYLE": _file("page.css"),
        "AXES": "".join(
            f'<option value="{name}">{html.escape(said)}</option>' for name, said in content.data["axes"].items()
        ),
        "CONTENTS": "".join(f'<li><a href="#part-{name.lower()}">{name}</a></li>' for name in (*drawn, *written)),
        "SECTIONS": "".join(drawn.values()) + _results_section(runs),
        **{name.upper(): text for name, text in content.data["fragments"].items() if name != "facts"},
        "HAS_CORPORA": "" if content.data["fragments"]["corpora"] else "hidden",
        "HAS_ENVIRONMENT": "" if content.data["fragments"]["environment"] else "hidden",
        "DATA": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "BOKEH": script().replace("</script", "<\\/script"),
        "SCRIPT": _file("page.js"),
    }
    text = _file("page.html")
    pieces = text.split("%%")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _section(name: str, content: Content) -> str:
    if name == "Samples":
        return _samples(content.data)
    if name == "Figures":
        facts = content.data["fragments"]["facts"]
        return f'<section id="part-figures"><h2>Figures</h2><div id="facts">{facts}</div></section>'
    found = [chart for chart in content.charts if chart.section == name]
    if not found:
        return ""
    drawn = "".join(map(_chart, found))
    return f'<section id="part-{name.lower()}"><h2>{name}</h2><div class="charts">{drawn}</div></section>'


def _chart(chart: Chart) -> str:
    title, name = html.escape(chart.title), html.escape(chart.name)
    legend = "".join(_legend(chart, line) for line in chart.lines)
    return (
        f'<figure class="chart" data-chart="{name}"><figcaption><h3 id="title-{name}">{title}</h3>'
        f'<ul class="legend">{legend}</ul>'
        f'<button type="button" class="svg" aria-label="Save {title} as SVG">SVG</button></figcaption>'
        f'<div class="canvas" id="chart-{name}" role="img" aria-labelledby="title-{name}"'
        f' aria-describedby="said-{name}"></div>'
        f'<p class="said" id="said-{name}">{html.escape(chart.sentence)}</p>'
        f"<details><summary>{title}: the numbers</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}: the numbers"></div></details></figure>'
    )


def _legend(chart: Chart, line: charts.Line) -> str:
    """Returns the entry of a line: a short piece of it, and its label."""
    style = line.style % len(DASHES)
    pattern = " ".join(map(str, DASHES[style]))
    mark = f" ({MARKERS[style].replace('_', ' ')})" if line.is_marked else ""
    return (
        f'<li><svg width="34" height="10" aria-hidden="true"><line x1="0" y1="5" x2="34" y2="5" class="line-{style}"'
        f' stroke-width="2.5" stroke-dasharray="{pattern}"/></svg>{html.escape(line.label + mark)}</li>'
    )


def _samples(data: dict[str, Any]) -> str:
    """Returns the slider and the place of the samples, or how the runs get some."""
    if not data["samples"]:
        return (
            '<section id="part-samples"><h2>Samples</h2><p>None yet: each evaluation writes texts for'
            " <code>config.EvaluationConfig.prompts</code>, which gin files and the command line set.</p></section>"
        )
    return (
        '<section id="part-samples"><h2>Samples by step</h2><p class="controls"><label for="sample">Step</label>'
        '<input type="range" id="sample" min="0" value="0" step="1"><output id="sample-step" for="sample"></output>'
        '</p><div id="panels"></div></section>'
    )


def _file(name: str) -> str:
    return importlib.resources.files("limba.tools.pages.page").joinpath(name).read_text(encoding="utf-8")


FOLDER = "results"


def _results_section(runs: Sequence[Run]) -> str:
    """Returns the section of the page; "" where no run has results."""
    found = list(dict.fromkeys(each for run in runs for each in _results(run)))
    if not found:
        return ""
    drawn = "".join(
        f'<figure><figcaption><h3>{name}</h3></figcaption><img alt="The results of {name} as bars; their numbers are'
        f' below." src="data:image/svg+xml;base64,{picture}"><details><summary>{name}: the numbers</summary><div'
        f' class="scroll" tabindex="0" role="region" aria-label="{name}: the numbers"><pre>{table}</pre></div>'
        "</details></figure>"
        for name, picture, table in found
    )
    return f"<section><h2>Results</h2>{drawn}</section>"


def _results(run: Run) -> Iterator[tuple[str, str, str]]:
    folder = run.directory / FOLDER
    for path in sorted(folder.glob("*.svg")) if folder.exists() else ():
        table = path.with_suffix(".txt")
        # The page may be sent to others: what a link in somebody else's folder leads to is not put on it. A picture
        # that cannot be read is left out, and the page is made.
        picture = own_bytes(run.directory, path)
        if picture is None:
            continue
        text = (own_bytes(run.directory, table) or b"").decode("utf-8-sig", "replace")
        yield html.escape(path.stem), base64.b64encode(picture).decode(), html.escape(text)


LOOK_SECONDS, BUCKET_SECONDS = 2.0, 30.0  # between two looks at a disk and at a bucket, however many pages are open


class ReportServer(PageServer):
    """Serves the report of these runs, which it reads again as they grow."""

    def __init__(self, host: str, port: int, runs: Sequence[Run], token: str | None = None):
        self._runs, self._turn = runs, threading.Lock()
        self._looked, self._data = -1e9, dict[str, Any]()
        remote = any("://" in str(run.directory) for run in runs)
        self._every = BUCKET_SECONDS if remote else LOOK_SECONDS
        super().__init__(host, port, ReportHandler, token)

    def page(self) -> str:
        """Returns the page as it is now. InputError if a run cannot be read."""
        with self._turn:
            for run in self._runs:
                run.update()
            return page_of(self._runs, is_live=True)

    def data(self) -> dict[str, Any]:
        """Returns the data of the page as they are now. InputError as above."""
        with self._turn:
            if time.monotonic() - self._looked > self._every:
                for run in self._runs:
                    run.update()
                self._data = content_of(self._runs, max(POINTS // len(self._runs), 1)).data
                self._looked = time.monotonic()
            return self._data


class ReportHandler(PageHandler):
    """Answers one request."""

    server: ReportServer

    def get(self, path: str) -> tuple[str, bytes]:
        """Returns the page or its data."""
        if path == "/":
            return "text/html; charset=utf-8", self.server.page().encode()
        return as_json(self.server.data()) if path == "/api/report" else super().get(path)
