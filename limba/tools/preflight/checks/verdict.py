"""The lines and sections of a preflight: each line is fine, a warning or an error, and names what mends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

# Where a figure has been measured that a line quotes; a front end writes the command in its place.
STEPS_ON_V4_8 = "benchmarks/README.md, 'A training step on TPU v4-8'"


@dataclasses.dataclass(frozen=True)
class Line:
    """One finding, as a sentence."""

    level: str  # 'ok', 'warning' or 'error'
    text: str
    mend: str = ""  # the gin line (or command) that mends it


@dataclasses.dataclass(frozen=True)
class Section:
    """The findings about one part of a run."""

    title: str
    lines: Sequence[Line]
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the same as figures, as JSON has them
