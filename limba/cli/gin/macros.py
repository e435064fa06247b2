"""The names that gin files set for users, such as TRAIN_STEPS."""

import re

from limba.data.task_modules import ROOT


def macro_names() -> list[str]:
    """Returns the names that the gin files of Limba set."""
    names: set[str] = set()
    for file in (ROOT / "gin").rglob("*.gin"):
        names.update(re.findall(r"^([A-Z_]+) =", file.read_text(encoding="utf-8"), re.MULTILINE))
    return sorted(names)
