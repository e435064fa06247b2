"""A curve drawn in characters, for a terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

WIDTH = 64  # characters
HEIGHT = 8  # lines


def text_curve(points: Sequence[tuple[int, float]], width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Returns (step, loss) points as a drawing of characters: a column is the mean of its steps.

    >>> print("\\n".join(text_curve([(1, 4.0), (2, 3.0), (3, 2.0), (4, 2.0)], width=4, height=3)))
      4.000 |*
      3.000 | *
      2.000 |  **
            +----
             step 1 to 4
    """
    points = [(step, loss) for step, loss in points if math.isfinite(loss)]
    if not points:
        return []
    first = points[0][0]
    last = points[-1][0]
    losses_of_column: list[list[float]] = [[] for _ in range(width)]
    for step, loss in points:
        column = (step - first) * width // max(last - first + 1, 1)
        losses_of_column[min(column, width - 1)].append(loss)
    means = [statistics.fmean(losses) if losses else None for losses in losses_of_column]
    low = min(mean for mean in means if mean is not None)
    high = max(mean for mean in means if mean is not None)
    rows = [[" "] * width for _ in range(height)]
    for column, mean in enumerate(means):
        if mean is None:
            continue
        row = height - 1
        if high > low:
            row = round((high - mean) / (high - low) * (height - 1))
        rows[row][column] = "*"
    labels = [high - (high - low) * row / max(height - 1, 1) for row in range(height)]
    lines = [f"{label:>7.3f} |{''.join(row)}".rstrip() for label, row in zip(labels, rows, strict=True)]
    return [*lines, f"{'':>7} +{'-' * width}", f"{'':>9}step {first:,} to {last:,}"]
