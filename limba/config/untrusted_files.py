"""How a file is opened and read that somebody else wrote: it may be damaged, made to do harm, or be no file at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from limba.config.errors import InputError, SentenceError, is_out_of_memory, reason_of

CHECK = "check the file, or copy it again"  # what is advised where nothing better is known
_WORDS = {  # of errors whose own words say nothing to a user
    RecursionError: "it is nested too deeply",
    UnicodeDecodeError: "it is not text in UTF-8",
}


@contextlib.contextmanager
def reading(path: object, advice: str = CHECK, kind: type[SentenceError] = InputError) -> Iterator[None]:
    """Raises one sentence with the path, of the given kind, for whatever a parser raises inside.

    Parsers raise more than they document (RecursionError, OverflowError, NotImplementedError for a compression,
    KeyError for a part that is missing), so every exception is meant here but sentences themselves. Let nothing but the
    reading and the parsing stand inside, and the check of what came out of it: a mistake of ours would look like
    damage.
    """
    try:
        yield
    except SentenceError:
        raise
    except Exception as error:
        raise kind(f"{path} cannot be read ({reason_for(error)}); {advice}.") from error


def reason_for(error: Exception) -> str:
    """Returns why a file cannot be read, in words for its user.

    >>> reason_for(RecursionError("maximum recursion depth exceeded")), reason_for(KeyError("vocab"))
    ('it is nested too deeply', "it lacks 'vocab'")
    """
    if is_out_of_memory(error):
        return "it needs more memory than there is"
    for kind, words in _WORDS.items():
        if isinstance(error, kind):
            return words
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return reason_of(error)


def open_regular(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a local file for reading; InputError for anything else, such as a pipe, on which a read would wait.

    OSError as `open` for a file that is missing, or that is a directory.
    """
    check_regular(path)
    # The folder's owner may put a pipe there in between: it is opened without waiting, and looked at again.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_kind(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raises InputError for a local path that is neither a file nor a directory; OSError for one that is missing."""
    _check_kind(path, os.stat(path).st_mode)


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Returns whether a local path is a file, and can be looked at."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def is_inside(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Returns whether a local file, or what it is a link to, lies in a folder: a foreign link may lead anywhere."""
    return Path(path).resolve().is_relative_to(Path(folder).resolve())


def _check_kind(path: str | os.PathLike[str], mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
        name = kinds.get(stat.S_IFMT(mode), "something else")
        raise InputError(f"{os.fspath(path)} is {name}, not a regular file; remove it, or copy the folder again.")


def bytes_of(path: str | os.PathLike[str], most: int = -1) -> bytes:
    """Returns the content of a local file, or its first bytes; raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read(most)


def text_of(path: str | os.PathLike[str]) -> str:
    """Returns the text of a local file without a byte order mark; UnicodeDecodeError if it is not UTF-8, as above."""
    return bytes_of(Path(path)).decode("utf-8-sig")
