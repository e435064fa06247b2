"""The table as a picture in SVG: bars of each task's figures with their intervals; over steps, a curve of each run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape

from limba.tools.results.table import Cell, Table

WIDTH, LEFT, RIGHT, LINE, CURVE = 760, 260, 90, 20, 140  # pixels
STEP = re.compile(r"(.*), step ([\d,]+)")
STYLE = (
    "svg{background:#fff}text{font:13px system-ui,sans-serif;fill:#222}.t{font-weight:600}.b{fill:#4c78a8}"
    ".o{fill:#b9b9b9}.w{stroke:#222;stroke-width:1.5;fill:none}.c{stroke:#4c78a8;stroke-width:2;fill:none}"
)


def svg(table: Table, models: Sequence[str]) -> str:
    """Returns the picture; columns of `models` have the first colour, baselines are grey."""
    top, parts = 24, list[str]()
    for (task, name), cells in table.cells.items():
        parts.append(_text(0, top, f"{task}: {name}", ' class="t"'))
        top += 8
        curves = dict[str, list[tuple[int, Cell]]]()
        for column, cell in cells.items():
            if match := STEP.fullmatch(column):
                curves.setdefault(match[1], []).append((int(match[2].replace(",", "")), cell))
        curves = {run: points for run, points in curves.items() if len(points) > 1}
        for run, points in curves.items():
            parts += _curve(run, sorted(points), top)
            top += CURVE + LINE
        most = max(max(map(_reach, cells.values())), 1e-9)
        for column, cell in cells.items():
            if (match := STEP.fullmatch(column)) and match[1] in curves:
                continue
            parts += _bar(column, cell, top, (WIDTH - LEFT - RIGHT) / most, "b" if column in models else "o")
            top += LINE
        top += 28
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" role="img"'
        f' aria-label="Results"><style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def _ends(cell: Cell) -> tuple[float, float]:
    """Returns the interval of a figure, or its mean less and more the deviation."""
    spread = cell.deviation or 0.0
    return cell.interval or (cell.mean - spread, cell.mean + spread)


def _reach(cell: Cell) -> float:
    return max(cell.mean, _ends(cell)[1])


def _bar(column: str, cell: Cell, top: float, scale: float, kind: str) -> Iterator[str]:
    low, high = (LEFT + scale * max(0.0, each) for each in _ends(cell))
    middle = top + LINE / 2
    yield _text(LEFT - 8, middle + 4, column, ' text-anchor="end"')
    width = scale * max(0.0, cell.mean)
    yield f'<rect class="{kind}" x="{LEFT}" y="{top + 3}" width="{width:.1f}" height="{LINE - 6}"/>'
    if high > low:
        yield f'<path class="w" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"/>'
    yield _text(max(high, LEFT + width) + 6, middle + 4, f"{cell.mean:.2f}")


def _curve(run: str, points: list[tuple[int, Cell]], top: float) -> Iterator[str]:
    first, last = points[0][0], points[-1][0]
    low, high = min(_ends(cell)[0] for _, cell in points), max(map(_reach, (cell for _, cell in points)))
    x = lambda step: LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / max(1, last - first)
    y = lambda value: top + CURVE - (CURVE - 10) * (value - low) / ((high - low) or 1.0)
    yield _text(LEFT - 8, top + CURVE / 2, run, ' text-anchor="end"')
    line = "L".join(f"{x(step):.1f} {y(cell.mean):.1f}" for step, cell in points)
    yield f'<path class="c" d="M{line}"/>'
    for step, cell in points:
        begin, end = (y(each) for each in _ends(cell))
        yield f'<path class="w" d="M{x(step):.1f} {begin:.1f}V{end:.1f}"><title>{step:,}: {cell.text()}</title></path>'
    yield _text(x(first), top + CURVE + 14, f"step {first:,}: {points[0][1].mean:.2f}")
    yield _text(x(last), top + CURVE + 14, f"{last:,}: {points[-1][1].mean:.2f}", ' text-anchor="end"')
