"""The table of a paper: tasks by models, as text, Markdown, LaTeX and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from limba.tools.results.outcome import Outcome

Row = tuple[str, str]  # a task and a figure of it


class Cell(NamedTuple):
    """A figure over seeds: its mean, its deviation, and how many there were; the interval where it has one.

    An interval is that of the test examples, the mean of the seeds' intervals.
    """

    mean: float
    deviation: float | None
    seeds: int
    interval: tuple[float, float] | None = None
    parts: Mapping[str, object] | None = None  # such as the mean and the interval of each phenomenon; in JSON alone

    def text(self, plus: str = " ± ") -> str:
        """Returns it with two decimals.

        >>> Cell(71.0, 0.5, 3).text(), Cell(50.0, None, 1, (48.0, 52.0)).text()
        ('71.00 ± 0.50', '50.00 [48.00, 52.00]')
        """
        spread = "" if self.deviation is None else f"{plus}{self.deviation:.2f}"
        ends = f" [{self.interval[0]:.2f}, {self.interval[1]:.2f}]" if self.interval else ""
        return f"{self.mean:.2f}{spread}{ends}"


class Table:
    """Cells by row and column, in the order in which they were added."""

    def __init__(self) -> None:
        self.cells: dict[Row, dict[str, Cell]] = {}
        self.columns: dict[str, None] = {}

    def add(self, task: str, column: str, outcomes: Sequence[Outcome]) -> None:
        """Adds the figures of a task for a model, or for a baseline, of one outcome for each seed."""
        self.columns.setdefault(column)
        for name in outcomes[0].figures:
            values = [each.figures[name] for each in outcomes]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            ends = [each.intervals[name] for each in outcomes if name in each.intervals]
            low, high = (statistics.fmean(each) for each in zip(*ends, strict=True)) if ends else (0.0, 0.0)
            within = outcomes[0].intervals.get  # only tasks with one outcome and one figure have parts
            parts = {part: {"mean": mean, "interval": within(part)} for part, mean in outcomes[0].parts.items()}
            cell = Cell(statistics.fmean(values), deviation, len(values), (low, high) if ends else None, parts or None)
            self.cells.setdefault((task, name), {})[column] = cell

    def _lines(self, plus: str) -> Iterable[list[str]]:
        yield ["task", "figure", *self.columns]
        for (task, name), cells in self.cells.items():
            yield [task, name, *(cells[each].text(plus) if each in cells else "" for each in self.columns)]

    def text(self) -> str:
        """Returns the table for a terminal."""
        lines = list(self._lines(" ± "))
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        return "\n".join(
            "  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def markdown(self) -> str:
        """Returns the table in Markdown."""
        head, *rest = self._lines(" ± ")
        rule = ["---", "---", *(["---:"] * len(self.columns))]
        return "\n".join(
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in (head, rule, *rest)
        )

    def latex(self) -> str:
        """Returns the table as a tabular of booktabs."""
        head, *rest = ([_escaped(cell) for cell in line] for line in self._lines(" $\\pm$ "))
        rows = [" & ".join(line) + r" \\" for line in rest]
        begin = rf"\begin{{tabular}}{{ll{'r' * len(self.columns)}}}"
        return "\n".join(
            [begin, r"\toprule", " & ".join(head) + r" \\", r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
        )

    def json(self) -> list[dict[str, object]]:
        """Returns the cells, one object each."""
        return [
            {"task": task, "figure": name, "column": column, **cell._asdict()}
            for (task, name), cells in self.cells.items()
            for column, cell in cells.items()
        ]


def _escaped(text: str) -> str:
    """Returns a text with LaTeX's signs escaped, but for its own plus-minus.

    >>> _escaped("a_b & 5%")
    'a\\\\_b \\\\& 5\\\\%'
    """
    return "".join(f"\\{letter}" if letter in "_&%#{}" else letter for letter in text)
