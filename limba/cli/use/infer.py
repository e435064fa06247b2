"""`limba infer`: the same as `generate`, but reads lines if no prompt is given."""

from __future__ import annotations

from collections.abc import Sequence

from limba.cli.use import generate


def run(argv: Sequence[str]) -> None:
    """Generates the requested texts; raises InputError."""
    generate.run(argv, "infer")
