"""The lines and sections of a preflight: each line is fine, a warning or an error, and says what makes it right."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from limba.config import Fix, errors

Data = dict[str, Any]  # the figures of a section, as JSON has them


@dataclasses.dataclass(frozen=True)
class Line:
    """One finding, as a sentence."""

    level: str  # 'ok', 'warning' or 'error'
    text: str
    fix: Fix | list[Fix] | None = None  # a field's value or a command; several of them as a list
    code: str = ""  # its stable name in --json, as "rate-too-high"; "" has none yet

    def fixes(self, names: Mapping[str, str]) -> str:
        """Returns the fix as lines of a gin file, or as a command; "" if there is none.

        >>> Line("error", "x", [("DataConfig.batch_size", 8), ("ModelConfig.remat", "full")]).fixes({})
        "config.DataConfig.batch_size = 8\\nconfig.ModelConfig.remat = 'full'"
        """
        several = self.fix if isinstance(self.fix, list) else [self.fix or ""]
        assigned = lambda field, value: f"{names.get(field, f'config.{field}')} = {value!r}"
        return "\n".join(each if isinstance(each, str) else assigned(*each) for each in several)


@dataclasses.dataclass(frozen=True)
class Section:
    """The findings about one part of a run."""

    title: str
    lines: Sequence[Line]
    data: Data = dataclasses.field(default_factory=dict)  # the same as figures, as JSON has them

    def worded(self, names: Mapping[str, str]) -> Section:
        """Returns the section with the names that its user typed for fields, as `GinRun` has them.

        >>> line = Line("warning", "ModelConfig.vocab_size is 9, DataConfig.seed is 1.", ("DataConfig.seed", 0))
        >>> Section("Data", [line]).worded({"ModelConfig.vocab_size": "VOCAB_SIZE"}).lines[0]
        Line(level='warning', text='VOCAB_SIZE is 9, DataConfig.seed is 1.', fix='config.DataConfig.seed = 0', code='')
        """
        lines = [
            dataclasses.replace(line, text=errors.worded(line.text, names), fix=line.fixes(names))
            for line in self.lines
        ]
        return dataclasses.replace(self, lines=lines)
