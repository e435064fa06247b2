"""Errors that end a program with one sentence, and checks for the fields of configurations."""

from __future__ import annotations


class InputError(ValueError):
    """An invalid input: one sentence that says what is wrong, where, and what to do."""


class ConfigError(InputError):
    """A field with an invalid value. `field` is its full name; each front end shows the name that its user typed.

    >>> error = ConfigError("DataConfig.batch_size", "is 0; give a whole number above 0.")
    >>> str(error), error.field
    ('DataConfig.batch_size is 0; give a whole number above 0.', 'DataConfig.batch_size')
    """

    def __init__(self, field: str, sentence: str):
        super().__init__(field, sentence)
        self.field, self.sentence = field, sentence

    def __str__(self) -> str:
        return f"{self.field} {self.sentence}"


class NonFiniteError(RuntimeError):
    """The loss or the gradient is not finite; the batch is written to a file, and no checkpoint is saved after it."""


class StorageError(RuntimeError):
    """A directory or bucket cannot be written or read any more: one sentence that says what failed and what is safe."""


class RestartError(RuntimeError):
    """The run cannot continue in this process, and the same command resumes it: one sentence that says why."""


def reason_of(error: BaseException, limit: int = 200) -> str:
    """Returns the first line of an error's message, or its type if it has none; at most `limit` characters.

    >>> reason_of(OSError(2, "No such file or directory")), reason_of(KeyError()), reason_of(ValueError("bad.\\nBut"))
    ('No such file or directory', 'KeyError', 'bad')
    """
    text = getattr(error, "strerror", None) or str(error).strip().split("\n")[0]
    return text[:limit].rstrip(".") or type(error).__name__


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
