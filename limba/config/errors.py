"""Errors that end a program with one sentence, and checks for the fields of configurations."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

from limba.config.secrets import without_credentials

# What the operating system reports where nothing can be written: no rights, a full disk, an ended quota.
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


class SentenceError(Exception):
    """An error whose message goes to the console and into files: addresses in it are without their credentials."""

    def __init__(self, *parts: object):
        super().__init__(*(without_credentials(part) if isinstance(part, str) else part for part in parts))


class InputError(SentenceError, ValueError):
    """An invalid input: one sentence that says what is wrong, where, and what to do."""

    exit_status = 2


class ConfigError(InputError):
    """A field with an invalid value. `field` is its full name; each front end shows the name that its user typed.

    >>> error = ConfigError("DataConfig.batch_size", "is 0; give a whole number above 0.")
    >>> str(error), error.field
    ('DataConfig.batch_size is 0; give a whole number above 0.', 'DataConfig.batch_size')
    """

    def __init__(self, field: str, sentence: str):
        super().__init__(field, sentence)
        self.field, self.sentence = field, str(self.args[1])

    def __str__(self) -> str:
        return f"{self.field} {self.sentence}"


class UntrustedModuleError(InputError):
    """A model's configuration names `modules` that may not be imported without the caller's word; `fact` says which."""

    def __init__(self, fact: str, modules: list[str]):
        super().__init__(fact, modules)
        self.fact, self.modules = fact, modules

    def __str__(self) -> str:
        return f"{self.fact}; if you trust who wrote it, give imports={self.modules!r}."


class NonFiniteError(SentenceError, RuntimeError):
    """The loss or the gradient is not finite; the batch is written to a file, and no checkpoint is saved after it."""

    exit_status = 3


class StorageError(SentenceError, RuntimeError):
    """A directory or bucket cannot be written or read any more: one sentence that says what failed and what is safe."""

    exit_status = 74


class RestartError(SentenceError, RuntimeError):
    """The run cannot continue in this process, and the same command resumes it: one sentence that says why."""

    exit_status = 75


def reason_of(error: BaseException, limit: int = 200) -> str:
    """Returns the first line of an error's message, or its type if it has none; at most `limit` characters.

    >>> reason_of(OSError(2, "No such file or directory")), reason_of(KeyError()), reason_of(ValueError("bad.\\nBut"))
    ('No such file or directory', 'KeyError', 'bad')
    """
    text = without_credentials(getattr(error, "strerror", None) or str(error).strip().split("\n")[0])  # before the cut
    return text[:limit].rstrip(".") or type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether the memory of the host or of a device does not suffice; jax, whose error it is, may be absent.

    >>> is_out_of_memory(RuntimeError("can't start new thread")), is_out_of_memory(OSError(12, "no memory"))
    (True, True)
    """
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    of_jax = type(error).__module__.startswith("jax") and "RESOURCE_EXHAUSTED" in str(error)
    return of_jax or isinstance(error, MemoryError) or str(error) == "can't start new thread"  # Python's, of its stack


def require(condition: bool, field: str, sentence: str) -> None:
    """Raises ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(field, sentence)


def positive(owner: object, *names: str) -> None:
    """Raises ConfigError for a field that is not a whole number above 0."""
    for name in names:
        value = getattr(owner, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole and value > 0, f"{type(owner).__name__}.{name}", f"is {value!r}; give a whole number above 0.")


def above_zero(owner: object, *names: str) -> None:
    """Raises ConfigError for a field that is not a finite number above 0."""
    for name in names:
        value = getattr(owner, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        sentence = f"is {value!r}; give a number above 0."
        require(is_number and 0 < value < float("inf"), f"{type(owner).__name__}.{name}", sentence)


def one_of(owner: object, name: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError for a field that is not one of the choices."""
    value = getattr(owner, name)
    require(value in choices, f"{type(owner).__name__}.{name}", f"is {value!r}; choose one of {', '.join(choices)}.")


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Returns `; did you mean A?` if a choice is similar, else a full stop.

    >>> did_you_mean("outptu", ["input", "output"]), did_you_mean("x", ["input"])
    ('; did you mean output?', '.')
    """
    upper = {choice.upper(): choice for choice in choices}
    near = difflib.get_close_matches(name.upper(), list(upper), n=1, cutoff=0.6)
    return f"; did you mean {upper[near[0]]}?" if near else "."
