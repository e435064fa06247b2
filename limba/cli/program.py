"""Runs a command, returns its exit code, and makes its errors use the names that the user typed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from limba.config import InputError, NonFiniteError, RestartError, StorageError

NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


# The exit status after one sentence on stderr, by the error's class; docs/reliability.md has the table.
CODES = {InputError: 2, NonFiniteError: 3, StorageError: 74, RestartError: 75}


def exit_code(program: Callable[[Sequence[str]], object], argv: Sequence[str]) -> int:
    """Runs a program; returns 0, the program's own whole number, or after one sentence on stderr a status of CODES."""
    try:
        result = program(argv)
    except tuple(CODES) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return next(code for kind, code in CODES.items() if isinstance(error, kind))
    except BrokenPipeError:  # as in `limba … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is flushed at the end goes there
        return 1
    except OSError as error:
        if error.errno not in NOT_WRITABLE or not error.filename:
            raise
        print(
            f"{error.filename} cannot be written ({error.strerror}); make room, or name a place that can.",
            file=sys.stderr,
        )
        return CODES[StorageError]
    return result if isinstance(result, int) else 0


def said(text: str, names: Mapping[str, str]) -> str:
    """Returns the text with canonical fields replaced by the names that the user typed.

    >>> said("DataConfig.batch_size 8 is below DataConfig.batch_size_x.", {"DataConfig.batch_size": "BATCH_SIZE"})
    'BATCH_SIZE 8 is below DataConfig.batch_size_x.'
    """
    if not names:
        return text
    fields = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    text = re.sub(rf"(?<![\w./])({fields})(?!\w)", lambda match: names[match[1]], text)
    return re.sub(r"(?<!\S)(\S+) or \1(?!\w)", r"\1", text)  # two fields that one flag sets


@contextlib.contextmanager
def names_said(names: Mapping[str, str]) -> Iterator[None]:
    """Re-raises an InputError or ConfigError, with its fields replaced by `said`."""
    try:
        yield
    except InputError as error:
        raise InputError(said(str(error), names)) from error
