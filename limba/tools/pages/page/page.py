"""The report as one HTML file that needs no network, and as the data by which an open page is brought up to date."""

from __future__ import annotations

import hashlib
import html
import importlib.resources
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from limba.config import InputError, reason_of
from limba.tools.pages.page import charts, drawing, headline, samples, tables
from limba.tools.pages.page.charts import Chart
from limba.tools.pages.page.results import results_section
from limba.tools.pages.page.runs import Run

MOST_BYTES = 2_000_000  # of a page with its data
POINTS = 600  # of a line
LEAST_POINTS = 24
MARK = '<meta name="generator" content="Limba, report of runs">'  # by which `limba report` knows its own pages
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
        has_bucket = any("://" in str(run.directory) for run in runs)
        if not isinstance(error, OSError) and not has_bucket:
            raise
        path = getattr(error, "filename", None) or ", ".join(str(run.directory) for run in runs)
        raise InputError(f"{path} cannot be read ({reason_of(error)}); check your rights and the network.") from error


def _content_of(runs: Sequence[Run], most_points: int) -> Content:
    drawn = charts.charts_of(runs, most_points)
    flops, flop_unit = charts.flop_unit(runs)
    axes = charts.known_axes(drawn) or ["step"]
    fragments = {
        "headline": headline.headline(runs),
        "facts": tables.facts(runs),
        "problems": tables.problems(runs),
        "corpora": tables.corpora(runs) + tables.stages(runs),
        "happened": tables.happened(runs),
        "configuration": tables.configuration(runs),
        "environment": tables.environment(runs),
    }
    texts = samples.samples_of(runs)
    # An open page of the same structure takes new data; of another one it loads itself again.
    structure: list[object] = [
        [chart.name, chart.kind, chart.title, *(line.label for line in chart.lines)] for chart in drawn
    ]
    structure += [axes, bool(texts), bool(fragments["environment"]), bool(fragments["corpora"])]
    data = {
        "structure": hashlib.sha256(json.dumps(structure).encode()).hexdigest()[:16],
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "axes": {name: flop_unit if name == "flop" else AXIS_TITLES[name] for name in axes},
        "charts": {chart.name: charts.data_of(chart, flops) for chart in drawn},
        "sentences": {chart.name: chart.sentence for chart in drawn},
        "fragments": fragments,
        "runs": [run.name for run in runs],
        "samples": texts,
    }
    return Content(drawn, data)


def page_of(runs: Sequence[Run], is_live: bool = False) -> str:
    """Returns the page of these runs, in fewer than MOST_BYTES: with fewer points where there are many lines."""
    points = max(POINTS // len(runs), LEAST_POINTS)
    items: dict[str, object] = {}
    while True:
        content = content_of(runs, points)
        items = items or {chart.name: drawing.item(chart) for chart in content.charts}
        text = _page(content, items, runs, is_live)
        if len(text.encode()) < MOST_BYTES or points <= LEAST_POINTS:
            return text
        points = max(points // 2, LEAST_POINTS)


def _page(content: Content, items: dict[str, object], runs: Sequence[Run], is_live: bool) -> str:
    data = {**content.data, "items": items, "live": is_live}
    title = f"Report of {runs[0].name}" if len(runs) == 1 else f"Report of {len(runs)} runs"
    fragments = content.data["fragments"]
    sections = {name: _section(name, content) for name in SECTIONS}
    shown = [name for name, section in sections.items() if section]
    shown += [name for name, fragment in TABLES.items() if fragments[fragment]]
    parts = {
        "MARK": MARK,
        "POLICY": POLICY.format("'self'" if is_live else "'none'"),
        "TITLE": html.escape(title),
        "TIME": content.data["time"],
        "STYLE": _file("page.css"),
        "AXES": "".join(
            f'<option value="{name}">{html.escape(axis)}</option>' for name, axis in content.data["axes"].items()
        ),
        "CONTENTS": "".join(f'<li><a href="#part-{name.lower()}">{name}</a></li>' for name in shown),
        "SECTIONS": "".join(sections.values()) + results_section(runs),
        **{name.upper(): text for name, text in fragments.items() if name != "facts"},
        "HAS_CORPORA": "" if fragments["corpora"] else "hidden",
        "HAS_ENVIRONMENT": "" if fragments["environment"] else "hidden",
        "DATA": json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "BOKEH": drawing.script().replace("</script", "<\\/script"),
        "SCRIPT": _file("page.js"),
    }
    text = _file("page.html")
    pieces = text.split("%%")  # text, a name, text, a name, ..., text
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    # Records and names of files may hold half of a surrogate pair, which no file of UTF-8 can.
    return "".join(pieces).encode(errors="replace").decode()


def _section(name: str, content: Content) -> str:
    if name == "Samples":
        return _samples(content.data)
    if name == "Figures":
        facts = content.data["fragments"]["facts"]
        return f'<section id="part-figures"><h2>Figures</h2><div id="facts">{facts}</div></section>'
    of_section = [chart for chart in content.charts if chart.section == name]
    if not of_section:
        return ""
    figures = "".join(map(_chart, of_section))
    return f'<section id="part-{name.lower()}"><h2>{name}</h2><div class="charts">{figures}</div></section>'


def _chart(chart: Chart) -> str:
    title = html.escape(chart.title)
    name = html.escape(chart.name)
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
    style = line.style % len(drawing.DASHES)
    pattern = " ".join(map(str, drawing.DASHES[style]))
    mark = ""
    if line.is_marked:
        mark = f" ({drawing.MARKERS[style].replace('_', ' ')})"
    return (
        f'<li><svg width="34" height="10" aria-hidden="true"><line x1="0" y1="5" x2="34" y2="5" class="line-{style}"'
        f' stroke-width="2.5" stroke-dasharray="{pattern}"/></svg>{html.escape(line.label + mark)}</li>'
    )


def _samples(data: dict[str, Any]) -> str:
    """Returns the slider and the panels of the samples, or how a run gets some."""
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
