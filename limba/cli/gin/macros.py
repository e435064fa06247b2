"""The names that gin files set for users, such as TRAIN_STEPS."""

from __future__ import annotations

import re

from limba.cli.gin.statements import Macro, Source, read_text
from limba.data.task_modules import ROOT


def macro_names() -> list[str]:
    """Returns the names that the gin files of Limba set."""
    names: set[str] = set()
    for file in (ROOT / "gin").rglob("*.gin"):
        names.update(re.findall(r"^([A-Z_]+) =", file.read_text(encoding="utf-8"), re.MULTILINE))
    return sorted(names)


def field_of(name: str) -> str:
    """Returns the field that the gin files of Limba set by a name; "" for a name that none of them has.

    >>> field_of("WEIGHT_DECAY"), field_of("WEIGHT")
    ('config.OptimizerConfig.weight_decay', '')
    """
    folder = ROOT / "gin"
    # The parts that runs include come first: a complete run may give the value to a second field.
    files = [*sorted(folder.glob("*/**/*.gin")), *sorted(folder.glob("*.gin"))]
    for file in files:
        text = file.read_text(encoding="utf-8")
        if f"%{name}" not in text:
            continue
        source = Source()
        read_text(source, text, file.name, include=_passed_over)
        for binding in source.bindings:
            if binding.field and binding.value == Macro(name):
                return f"{binding.owner}.{binding.field}"
    return ""


def _passed_over(file: str, asked_by: str) -> None:
    """Reads nothing of an included file, whose names are looked for on their own."""
