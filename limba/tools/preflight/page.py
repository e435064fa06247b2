"""The verdict as text for a console, as JSON, and as one HTML file that loads nothing."""

from __future__ import annotations

import datetime
import html
from collections.abc import Mapping, Sequence

from limba.config.speed import in_range, in_time, number
from limba.tools.preflight.checks.compiler import TITLE as COMPILED
from limba.tools.preflight.checks.cost import TITLE as COSTS
from limba.tools.preflight.checks.data import TITLE as DATA
from limba.tools.preflight.checks.estimate import TITLE as ESTIMATE
from limba.tools.preflight.checks.verdict import (
    FAILS,
    GO,
    WASTEFUL,
    WORDS,
    Line,
    Section,
    as_json,
    exit_status,
    lines_of,
    verdict,
)


def glance(sections: Sequence[Section]) -> dict[str, str]:
    """Returns the four figures that a reader looks for first, each as a sentence: fits, days, passes and cost."""
    data = {section.title: section.data for section in sections}
    of = lambda title: data.get(title, {})
    memory = of(COMPILED) if of(COMPILED).get("live_bytes") else of(ESTIMATE)
    how = "as compiled" if memory is of(COMPILED) and memory else "by arithmetic"
    unknown = "not known: " + (
        "the errors come first" if exit_status(sections) == FAILS
        else "--all says why" if of(ESTIMATE) else "name the chips, as in --topology=v4-8"
    )  # fmt: skip
    figures: dict[str, str] = dict.fromkeys(("fits", "days", "passes", "cost"), unknown)
    if memory:
        live, limit = (memory[name] / 2**30 for name in ("live_bytes", "limit_bytes"))
        live = memory.get("reported_bytes", 0) / 2**30 or live
        more = f"; at most {of(ESTIMATE)['largest_batch']:,} rows" if of(ESTIMATE).get("largest_batch") else ""
        figures["fits"] = f"{'yes' if live <= limit else 'no'}, {live:.2f} of {limit:.2f} GiB a device, {how}{more}"
    costs = of(COSTS)
    if hours := costs.get("hours"):
        share = f", {costs['share_of_days'][1]:.0%} of those given at most" if "share_of_days" in costs else ""
        figures["days"] = f"{in_time(hours)} on {of(ESTIMATE)['topology']}{share}"
        figures["cost"] = f"{in_range(costs['chip_hours'])} chip-hours"
        if "dollars" in costs:
            figures["cost"] = f"{in_range(costs['dollars'], '$')}, {figures['cost']} at ${costs['price']:g}"
    epochs, ratio = of(DATA).get("epochs"), costs.get("tokens_per_parameter")
    passes = "the size of the text is not known" if epochs is None else f"{number(epochs)} over the text"
    figures["passes"] = passes + (f"; {number(ratio)} tokens a parameter" if ratio else "")
    return figures


def first_screen(sections: Sequence[Section], is_all_shown: bool) -> str:
    """Returns the verdict, four figures, and what is wrong with its fixes, unless all lines have been shown."""
    wrong = [line for level in ("error", "warning") for each in sections for line in each.lines if line.level == level]
    figures = [f"  {name:<8} {text}" for name, text in glance(sections).items()]
    if is_all_shown:
        return "\n".join(["", *figures, "", verdict(sections)])
    lines = [text for line in dict.fromkeys(wrong) for text in ("", *lines_of(line))]
    hidden = sum(len(each.lines) for each in sections) - len(wrong)
    return "\n".join([verdict(sections), *figures, *lines, "", f"{hidden} other lines are fine; --all prints them."])


def json_of(sections: Sequence[Section], about: Mapping[str, object]) -> str:
    """Returns the whole as JSON: what was looked at, the verdict, the four figures, and the sections."""
    return as_json(sections, {**about, "figures": glance(sections)})


STYLE = """
:root{color-scheme:light dark;--back:#fbfbf9;--text:#1d2329;--dim:#5c6670;--line:#d9dde0;--card:#fff;
--ok:#1a7f4b;--warning:#9a6200;--error:#b3261e}
@media(prefers-color-scheme:dark){:root{--back:#15191d;--text:#e4e8eb;--dim:#98a3ad;--line:#343b42;--card:#1c2126;
--ok:#5cc98f;--warning:#e3ad4b;--error:#ff8a80}}
body{margin:0 auto;padding:2rem 1rem 4rem;max-width:60rem;background:var(--back);color:var(--text);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:0 0 .6rem}.dim{color:var(--dim)}
section{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:1rem 1.2rem;margin:1rem 0}
.line{display:grid;grid-template-columns:5.5rem minmax(0,1fr);gap:.2rem .8rem;padding:.35rem 0;
border-top:1px solid var(--line)}
.line:first-of-type{border-top:0}.ok{color:var(--ok)}.warning{color:var(--warning)}.error{color:var(--error)}
.level{font-weight:600}.line>div{overflow-wrap:anywhere}
pre{margin:.3rem 0;overflow-x:auto;font-size:.82rem;line-height:1.25}
code{font-size:.9em;background:var(--back);border:1px solid var(--line);border-radius:.25rem;padding:.05rem .3rem}
"""


def html_of(sections: Sequence[Section], about: Mapping[str, object]) -> str:
    """Returns the whole as one HTML page, light or dark as its reader's system is."""
    status = exit_status(sections)
    colour = {GO: "ok", WASTEFUL: "warning", FAILS: "error"}[status]
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    said = " · ".join(html.escape(f"{name}: {value}") for name, value in about.items() if value)
    body = "\n".join(map(_section_as_html, sections))
    figures = "<br>".join(f"<b>{name}</b> {html.escape(text)}" for name, text in glance(sections).items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Preflight: {html.escape(WORDS[status])}</title><style>{STYLE}</style></head><body>
<h1 class="{colour}">{html.escape(verdict(sections))}</h1>
<p>{figures}</p>
<p class="dim">{said}<br>Limba, {when}</p>
{body}
</body></html>
"""


def _section_as_html(section: Section) -> str:
    lines = "\n".join(map(_line_as_html, section.lines))
    return f"<section><h2>{html.escape(section.title)}</h2>\n{lines}\n</section>"


def _line_as_html(line: Line) -> str:
    first, *others = line.text.split("\n")
    rest = f"<pre tabindex=0>{html.escape(chr(10).join(others))}</pre>" if others else ""
    codes = [f"<code>{html.escape(fix)}</code>" for fix in line.fixes({}).splitlines()]
    fix = f"<br>Fix: {'<br>'.join(codes)}" if codes else ""
    return (
        f'<div class="line"><div class="level {line.level}">{line.level}</div>'
        f"<div>{html.escape(first)}{rest}{fix}</div></div>"
    )
