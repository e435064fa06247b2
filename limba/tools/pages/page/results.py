"""The section of results: the pictures and tables that `limba results` has put in the directories of runs."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Sequence

from limba.api import matching
from limba.tools.pages.page.runs import Run, own_bytes

FOLDER = "results"


def results_section(runs: Sequence[Run]) -> str:
    """Returns the section of the page; "" where no run has results."""
    results = dict.fromkeys(result for run in runs for result in results_of(run))  # runs may share a folder: once
    if not results:
        return ""
    figures = "".join(_figure(name, picture, table) for name, picture, table in results)
    return f"<section><h2>Results</h2>{figures}</section>"


def results_of(run: Run) -> Iterator[tuple[str, str, str]]:
    """Yields the results of a run: (name, the picture as SVG in base64, its numbers), escaped for HTML.

    The page may be sent to others: what a link in somebody else's folder leads to is not put on it. A picture that
    cannot be read is left out, and the page is made.
    """
    for path in matching(run.directory / FOLDER, "*.svg"):
        picture = own_bytes(run.directory, path)
        if picture is None:
            continue
        table = own_bytes(run.directory, path.with_suffix(".txt")) or b""
        text = table.decode("utf-8-sig", "replace")
        yield html.escape(path.stem), base64.b64encode(picture).decode(), html.escape(text)


def _figure(name: str, picture: str, table: str) -> str:
    return (
        f'<figure><figcaption><h3>{name}</h3></figcaption><img alt="The results of {name} as bars; their numbers are'
        f' below." src="data:image/svg+xml;base64,{picture}"><details><summary>{name}: the numbers</summary><div'
        f' class="scroll" tabindex="0" role="region" aria-label="{name}: the numbers"><pre>{table}</pre></div>'
        "</details></figure>"
    )
