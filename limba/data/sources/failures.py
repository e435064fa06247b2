"""What goes wrong in one unit of a corpus, and what to do when a request has failed."""

from __future__ import annotations

import lzma
import zlib
from typing import TypeVar

import zstandard

from limba.config import InputError, StorageError
from limba.config.errors import Fix
from limba.storage.failures import is_outage

E = TypeVar("E", bound=InputError)

# What reading, unpacking and parsing raise for a file that cannot be read.
UNREADABLE = (
    OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error, lzma.LZMAError, zstandard.ZstdError
)  # fmt: skip


class UnitError(InputError):
    """Only one unit is damaged or unreadable, so a run may skip it."""


class RecordError(UnitError):
    """An invalid line or row; every reader finds it at the same place."""


def of_request(
    fact: str, error: Exception, otherwise: str, kind: type[E] = InputError, or_else: str = "", fix: Fix | None = None
) -> E:
    """Returns the error for a request that has failed: `fact`, and the advice `otherwise` or to try again.

    Where it may succeed later, the same command works then: it has the exit status of a server that does not answer.

    >>> error = of_request("The corpus cannot be listed", OSError(), "check the path")
    >>> str(error), error.exit_status
    ('The corpus cannot be listed; check the path.', 2)
    """
    may_pass = getattr(error, "is_temporary", is_outage(error))
    advice = "try again later" if may_pass else otherwise
    failure = kind(f"{fact}; {advice}{or_else}.", fix=fix)
    if may_pass:
        failure.exit_status = StorageError.exit_status
    return failure
