"""The errors that end a program with a sentence, and the checks that configurations make of themselves."""

from __future__ import annotations


class InputError(ValueError):
    """Something given cannot be used: one sentence saying what, where, and what to do."""


class ConfigError(InputError):
    """A field that cannot work. `field` is its full name; each front end says the name that its user typed.

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
    """The loss or the gradient is no longer a number; the batch is written down, nothing is saved after it."""


def require(condition: bool, field: str, sentence: str) -> None:
    """Raises ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(field, sentence)


def positive(owner: object, *names: str) -> None:
    """Raises ConfigError for a field that is no whole number above 0."""
    for name in names:
        value = getattr(owner, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole and value > 0, f"{type(owner).__name__}.{name}", f"is {value!r}; give a whole number above 0.")


def one_of(owner: object, name: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError for a field that is none of the choices."""
    value = getattr(owner, name)
    require(value in choices, f"{type(owner).__name__}.{name}", f"is {value!r}; choose one of {', '.join(choices)}.")
