"""The table of a paper: a row for each model and figure, as text, Markdown, LaTeX and JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from limba.tools.results.comparison import Comparison, best_of, compared
from limba.tools.results.outcome import Outcome, percentiles
from limba.tools.results.protocol import PROTOCOL, Protocol
from limba.tools.results.scores import Draws

Block = tuple[str, str]  # a task and a figure of it
Interval = Sequence[float]  # from, to


class Cell(NamedTuple):
    """A figure over seeds: its mean, and its intervals over test examples and over seeds, where it has them."""

    mean: float
    values: Sequence[float]  # of each seed; the mean alone where nothing is trained
    seeds: int | None = None  # None: nothing is trained
    deviation: float | None = None  # of the seeds' sample
    over_examples: Interval | None = None
    over_seeds: Interval | None = None
    protocol: str = ""  # a short hash of all that two figures must share to be compared
    is_best: bool = False  # better than each other one, decided by comparisons in pairs
    notes: Sequence[int] = ()  # numbers of the sentences below the table that are about it
    parts: Mapping[str, object] | None = None  # such as the mean and the interval of each phenomenon; in JSON alone


class Table:
    """Cells by task, figure and model, in the order in which they were added."""

    def __init__(self) -> None:
        self.cells: dict[Block, dict[str, Cell]] = {}
        self.outcomes: dict[str, dict[str, Sequence[Outcome]]] = {}  # by task and model, of what has predictions
        self.comparisons: dict[str, list[Comparison]] = {}  # by task

    def add(
        self,
        task: str,
        model: str,
        outcomes: Sequence[Outcome],
        protocol: str = "",
        notes: Sequence[int] = (),
    ) -> None:
        """Adds the figures of a task for a model, or for a baseline, of one outcome for each seed."""
        parts = {
            part: {"mean": mean, "interval": outcomes[0].intervals.get(part)}
            for part, mean in outcomes[0].parts.items()  # only tasks with one outcome and one figure have them
        }
        if outcomes[0].predictions:
            self.outcomes.setdefault(task, {})[model] = outcomes
        for name in outcomes[0].figures:
            values = [outcome.figures[name] for outcome in outcomes]
            cell = Cell(
                mean=statistics.fmean(values),
                values=values,
                seeds=len(values) if outcomes[0].curve else None,
                deviation=statistics.stdev(values) if len(values) > 1 else None,
                over_examples=outcomes[0].intervals.get(name),  # of a single outcome; `compare` has the seeds'
                over_seeds=over_seeds(values),
                protocol=protocol,
                notes=notes,
                parts=parts or None,
            )
            self.cells.setdefault((task, name), {})[model] = cell

    def sort(self, tasks: Sequence[str]) -> None:
        """Brings the figures of each task together: models of several kinds add them in turn."""
        self.cells = dict(sorted(self.cells.items(), key=lambda block: tasks.index(block[0][0])))

    def compare(
        self,
        task: str,
        drawn: Mapping[str, Draws],
        protocol: Protocol,
        marks_best: bool = True,
        fewer_is_better: bool = False,
    ) -> None:
        """Gives each cell of a task its interval over examples, and marks what is better than each other one.

        `drawn` has the figures of each model in the same resamples of the examples; what it lacks, such as chance, is
        not compared. Without `marks_best` nothing is marked: the figures are of different measures.
        """
        values: dict[str, dict[str, Sequence[float]]] = {model: {} for model in drawn}
        blocks = {figure: cells for (name, figure), cells in self.cells.items() if name == task}
        for figure, cells in blocks.items():
            for model in drawn:
                if model not in cells:  # its figure has another name
                    continue
                cell = cells[model]
                values[model][figure] = cell.values
                interval = cell.over_examples or percentiles(drawn[model][figure], protocol.confidence)
                cells[model] = cell._replace(over_examples=interval)
        self.comparisons[task] = compared(values, drawn, protocol)
        for figure, cells in blocks.items():
            means = {model: cells[model].mean for model in drawn if model in cells}
            best = best_of(figure, means, self.comparisons[task], protocol, fewer_is_better)
            if best is None or not marks_best:
                continue
            rules = [cell.mean for model, cell in cells.items() if model not in drawn]  # such as chance
            best_end = min if fewer_is_better else max
            if best_end([means[best], *rules]) == means[best]:
                cells[best] = cells[best]._replace(is_best=True)

    def _lines(self, bold: tuple[str, str]) -> Iterator[list[str]]:
        """Yields the head, and a line for each cell; a task and a figure are named in the first of their lines only."""
        share = f"{100 * PROTOCOL.confidence:g}%"
        intervals = [f"{share} over examples", f"{share} over seeds"]
        yield ["task", "figure", "model", "mean", *intervals, "seeds", "protocol", "notes"]
        before = ("", "")
        for (task, figure), cells in self.cells.items():
            for model, cell in cells.items():
                mean = f"{cell.mean:.2f}"
                names = ["" if task == before[0] else task, "" if (task, figure) == before else figure]
                before = (task, figure)
                mean = f"{bold[0]}{mean}{bold[1]}" if cell.is_best else mean
                ends = [_ends(cell.over_examples), _ends(cell.over_seeds)]
                seeds = "" if cell.seeds is None else str(cell.seeds)
                yield [*names, model, mean, *ends, seeds, cell.protocol, ", ".join(map(str, cell.notes))]

    def text(self) -> str:
        """Returns the table for a terminal; the best has a star."""
        lines = list(self._lines(("", "*")))
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        return "\n".join(
            "  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    def markdown(self) -> str:
        """Returns the table in Markdown."""
        head, *rest = self._lines(("**", "**"))
        rule = ["---", "---", "---", "---:", "---:", "---:", "---:", "---", "---"]
        return "\n".join(f"| {' | '.join(_markdown(cell) for cell in line)} |" for line in (head, rule, *rest))

    def latex(self) -> str:
        """Returns the table as a tabular of booktabs."""
        head, *rest = self._lines(("", ""))
        best = [cell.is_best for cells in self.cells.values() for cell in cells.values()]
        rows = list[str]()
        for line, is_best in zip(rest, best, strict=True):
            cells = [_escaped(cell) for cell in line]
            cells[3] = rf"\textbf{{{cells[3]}}}" if is_best else cells[3]
            rows += [r"\midrule"] if line[1] and rows else []
            rows.append(" & ".join(cells) + r" \\")
        begin = r"\begin{tabular}{lllrrrrll}"
        top = " & ".join(map(_escaped, head)) + r" \\"
        return "\n".join([begin, r"\toprule", top, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"])

    def json(self) -> list[dict[str, object]]:
        """Returns the cells, one object each."""
        return [
            {"task": task, "figure": name, "model": model, **cell._asdict()}
            for (task, name), cells in self.cells.items()
            for model, cell in cells.items()
        ]

    def pairs(self) -> list[dict[str, object]]:
        """Returns the comparisons, one object each."""
        return [
            {"task": task, **comparison._asdict()}
            for task, of_task in self.comparisons.items()
            for comparison in of_task
        ]


def over_seeds(values: Sequence[float]) -> Interval | None:
    """Returns Student's interval of a mean over seeds; None of one seed.

    >>> [round(each, 2) for each in over_seeds([70.0, 71.0, 72.0])]
    [68.52, 73.48]
    """
    if len(values) < 2:
        return None
    from scipy import stats

    mean = statistics.fmean(values)
    quantile = float(stats.t.ppf((1 + PROTOCOL.confidence) / 2, len(values) - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return [mean - half, mean + half]


def _ends(interval: Interval | None) -> str:
    return f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""


def _markdown(text: str) -> str:
    """Returns a text that stays in its cell.

    >>> _markdown("a|b")
    'a\\\\|b'
    """
    return " ".join(text.replace("|", "\\|").split())


def _escaped(text: str) -> str:
    """Returns a text with the signs escaped that LaTeX reads otherwise.

    >>> _escaped("a_b & 5% ~x")
    'a\\\\_b \\\\& 5\\\\% \\\\textasciitilde{}x'
    """
    words = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}"}
    words |= {">": r"\textgreater{}", "|": r"\textbar{}"}
    return "".join(f"\\{letter}" if letter in "_&%#{}$" else words.get(letter, letter) for letter in text)
