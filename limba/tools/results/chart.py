"""The table as a picture in SVG: bars of each task's figures with their intervals over test examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from limba.tools.results.protocol import PROTOCOL
from limba.tools.results.table import Cell, Table

WIDTH = 760
LEFT = 260
RIGHT = 90
LINE = 20  # pixels
STYLE = (
    "svg{background:#fff}text{font:13px system-ui,sans-serif;fill:#222}.t{font-weight:600}.b{fill:#4c78a8}"
    ".o{fill:#b9b9b9}.w{stroke:#222;stroke-width:1.5;fill:none}"
)


def svg(table: Table, models: Sequence[str]) -> str:
    """Returns the picture; rows of `models` have the first colour, baselines are grey."""
    top = 24
    parts: list[str] = []
    for (task, name), cells in table.cells.items():
        parts.append(_text(0, top, f"{task}: {name}", ' class="t"'))
        top += 8
        most = max(max(map(_reach, cells.values())), 1e-9)
        for model, cell in cells.items():
            parts += _bar(model, cell, top, (WIDTH - LEFT - RIGHT) / most, "b" if model in models else "o")
            top += LINE
        top += 28
    parts.append(_text(0, top, f"Thin lines: {100 * PROTOCOL.confidence:g}% intervals over test examples."))
    top += 12
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" role="img"'
        f' aria-label="Results"><style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def _ends(cell: Cell) -> tuple[float, float]:
    """Returns the interval of a figure over test examples; its mean alone where it has none, as chance."""
    low, high = cell.over_examples or (cell.mean, cell.mean)
    return low, high


def _reach(cell: Cell) -> float:
    return max(cell.mean, _ends(cell)[1])


def _bar(model: str, cell: Cell, top: float, scale: float, kind: str) -> Iterator[str]:
    low, high = (LEFT + scale * max(0.0, value) for value in _ends(cell))
    middle = top + LINE / 2
    yield _text(LEFT - 8, middle + 4, model, ' text-anchor="end"')
    width = scale * max(0.0, cell.mean)
    yield f'<rect class="{kind}" x="{LEFT}" y="{top + 3}" width="{width:.1f}" height="{LINE - 6}"/>'
    if high > low:
        yield f'<path class="w" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"/>'
    yield _text(max(high, LEFT + width) + 6, middle + 4, f"{cell.mean:.2f}")
