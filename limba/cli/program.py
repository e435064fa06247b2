"""How a command starts and ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from limba.config import InputError, NonFiniteError


def exit_code(program: Callable[[Sequence[str]], object], argv: Sequence[str]) -> int:
    """Runs a program; returns 0, or with one sentence on stderr 2 for a choice that cannot work and 3 for a
    loss that is no longer a number."""
    try:
        program(argv)
    except (InputError, NonFiniteError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2 if isinstance(error, InputError) else 3
    return 0
