"""Names of earlier versions, and their current names.

Old names in a run's config.gin are always read. In files and flags that a person writes they are read for two
versions, and each reading prints one line that lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNTIL = "0.4"
NAMES = {
    "config.RunConfig.reduce_gradients_in": "config.RunConfig.gradient_reduce_dtype",
    "config.CheckpointConfig.best_is": "config.CheckpointConfig.best_mode",
    "BEST_IS": "BEST_MODE",
}
MODES = {"highest": "max", "lowest": "min"}
VALUES = {"config.CheckpointConfig.best_mode": MODES, "BEST_MODE": MODES}  # current name -> old value -> current value


def value_of_today(name: str, value: Any) -> Any:
    """Returns the current value for an old value of the macro or field with this (current) name.

    >>> value_of_today("BEST_MODE", "highest"), value_of_today("BATCH_SIZE", 8)
    ('max', 8)
    """
    return VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value


def sentence(found: Sequence[tuple[str, str]]) -> str:
    """Returns the line about old names in files and flags, given as (old name, place).

    >>> sentence([("BEST_IS", "my.gin line 3")])
    'Old names, which Limba reads until version 0.4: BEST_IS is now BEST_MODE (my.gin line 3).'
    """
    parts = [f"{old} is now {NAMES[old]} ({place})" for old, place in found]
    return f"Old names, which Limba reads until version {UNTIL}: {', '.join(parts)}."
