"""What goes wrong in one unit of a corpus, and what to do when a request has failed."""

from __future__ import annotations

import lzma
import zlib

import zstandard

from limba.config import InputError

# What reading, unpacking and parsing raise for a file that cannot be read.
UNREADABLE = (
    OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error, lzma.LZMAError, zstandard.ZstdError
)  # fmt: skip


class UnitError(InputError):
    """Only one unit is damaged or unreadable, so a run may skip it."""


class RecordError(UnitError):
    """An invalid line or row; every reader finds it at the same place."""


def advice_on(error: Exception, otherwise: str) -> str:
    """Returns the advice for a failed request: wait if it may succeed later, else `otherwise`."""
    return "try again later" if getattr(error, "is_temporary", False) else otherwise
