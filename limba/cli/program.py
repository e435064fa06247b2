"""Runs a command, returns its exit code, and makes its errors use the names that the user typed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from limba.config import InputError, NonFiniteError

NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


def exit_code(program: Callable[[Sequence[str]], object], argv: Sequence[str]) -> int:
    """Runs a program; returns 0, or after one sentence on stderr 2 for an invalid input and 3 for a
    loss that is not finite."""
    try:
        program(argv)
    except (InputError, NonFiniteError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2 if isinstance(error, InputError) else 3
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
        return 2
    return 0


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
