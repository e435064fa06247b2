"""The errors that end a program with a sentence, and the checks that configurations make of themselves."""

from __future__ import annotations


class ConfigError(ValueError):
    """A choice that cannot work: one sentence saying what, where, and what to do."""


class NonFiniteError(RuntimeError):
    """The loss or the gradient is no longer a number; the batch is written down, nothing is saved after it."""


def require(condition: bool, message: str) -> None:
    """Raises ConfigError with the message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def positive(owner: object, *names: str) -> None:
    """Raises ConfigError for a field that is no whole number above 0."""
    for name in names:
        value = getattr(owner, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(
            whole and value > 0,
            f"{type(owner).__name__}.{name} is {value!r}; give a whole number above 0.",
        )


def one_of(owner: object, name: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError for a field that is none of the choices."""
    value = getattr(owner, name)
    require(
        value in choices,
        f"{type(owner).__name__}.{name} is {value!r}; choose one of {', '.join(choices)}.",
    )
