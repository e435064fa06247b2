"""What `limba results` has written into the runs' directories: its picture and its table, of each suite."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Sequence

from limba.tools.pages.page.runs import Run

FOLDER = "results"


def section(runs: Sequence[Run]) -> str:
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
        text = table.read_text() if table.exists() else ""
        yield html.escape(path.stem), base64.b64encode(path.read_bytes()).decode(), html.escape(text)
