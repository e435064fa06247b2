"""Reads gin files: parse, resolve, check, build. Nothing else in Limba knows gin's syntax.

Part of `cli/`: imports gin's parser and `limba.config`.
"""

from limba.cli.gin.read import (
    GinRun,
    read_gin,
    read_gin_run,
    read_model,
    read_own,
    read_run,
    read_translated,
    text_elsewhere,
)

__all__ = [
    "GinRun",
    "read_gin",
    "read_gin_run",
    "read_model",
    "read_own",
    "read_run",
    "read_translated",
    "text_elsewhere",
]
