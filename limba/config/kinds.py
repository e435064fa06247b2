"""The kinds of values that fields take, by their type hints: checks that need nothing but the dataclass itself."""

import dataclasses
import functools
import math
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from limba.config.errors import ConfigError, InputError, Open, without_credentials

WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}
# A step is a 32-bit number on the devices. A seed and a number of bytes may have 64 bits.
MOST = 2**31 - 1
MOST_OF_64_BITS = 2**63 - 1
MOST_FLOAT = 3.4e38  # of 32 bits
ADDRESSES = ("gs", "s3", "az", "hf")  # that can be read
WRITABLE = ("gs",)  # that checkpoints and logs can be kept at: tensorstore, leases and growing files are tried there


class Limit(NamedTuple):
    """What a value must be beside its type: a part of a field's type hint, which `check` reads."""

    holds: Callable[[Any], bool]
    words: str
    verb: str = "give"


def choice(*names: str) -> Limit:
    """Returns the limit of a text that is one of these names."""
    return Limit(names.__contains__, f"one of {', '.join(names)}", "choose")


PositiveInt = Annotated[int, Limit(lambda value: value > 0, "a whole number above 0")]
NonNegativeInt = Annotated[int, Limit(lambda value: value >= 0, "0 or more")]
PositiveFloat = Annotated[float, Limit(lambda value: value > 0, "a number above 0")]
NonNegativeFloat = Annotated[float, Limit(lambda value: value >= 0, "0 or more")]
Share = Annotated[float, Limit(lambda value: 0 <= value < 1, "a number from 0 to below 1")]
OpenShare = Annotated[float, Limit(lambda value: 0 < value < 1, "a number above 0 and below 1")]
ClosedShare = Annotated[float, Limit(lambda value: 0 <= value <= 1, "a number from 0 to 1")]


def fits(value: object, hint: object) -> bool:
    """Returns whether a plain value has the type of a field's type hint.

    >>> fits([1, 2], tuple[int, ...]), fits(True, int), fits(1, float | None), fits([1, "a"], tuple[int, str])
    (True, False, True, True)
    """
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        hints = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(value) == len(hints) and all(map(fits, value, hints))
    if origin is not None:
        key, item = arguments
        return isinstance(value, Mapping) and all(fits(k, key) and fits(v, item) for k, v in value.items())
    kinds = {float: (int, float), str: (str, os.PathLike)}.get(hint, (hint,))
    return isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))


def in_words(hint: Any) -> str:
    """Returns a description of the values that a type hint allows.

    >>> in_words(float | None), in_words(tuple[str, ...])
    ('a number or None', 'a list, each a string')
    """
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(argument) for argument in arguments)
    if origin is typing.Literal:
        return " or ".join(map(repr, arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"({', '.join(map(in_words, arguments))})"
    if origin is tuple:
        return f"a list, each {in_words(arguments[0])}"
    if origin is not None:
        return f"a mapping such as {{'inputs': {512 if arguments[1] is int else repr('a.txt')}}}"
    return WORDS.get(hint) or hint.__name__


def class_name(config: object) -> str:
    """Returns the class of a configuration as gin files and messages name it.

    >>> from limba.config import optimizer_config
    >>> class_name(optimizer_config("adamw"))
    'OptimizerConfig'
    """
    return getattr(config, "CLASS_NAME", type(config).__name__)


def check(owner: Any, of_64_bits: tuple[str, ...] = (), may_be_empty: tuple[str, ...] = ()) -> None:
    """Raises ConfigError for the first field of a dataclass with an invalid value.

    That is a value of another type than the field's hint; a number that is not finite; a whole number of more than 32
    bits, or 64 for the fields `of_64_bits`; a string that is empty, or cannot be written to a file; and a number
    beyond the limit of its hint. Lists become tuples.

    >>> from limba.config import MeshConfig
    >>> MeshConfig(fsdp="two")
    Traceback (most recent call last):
    limba.config.errors.ConfigError: MeshConfig.fsdp is 'two'; give a whole number.
    """
    hints = hints_of(type(owner))
    for entry in dataclasses.fields(owner):
        value = getattr(owner, entry.name)
        hint = hints[entry.name]
        if not fits(value, hint):
            raise _wrong(owner, entry.name, value, in_words(hint))
        most = MOST_OF_64_BITS if entry.name in of_64_bits else MOST
        for leaf in _leaves(value):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise _wrong(owner, entry.name, value, "a finite number")
            if isinstance(leaf, float | int) and abs(leaf) > MOST_FLOAT:
                raise _wrong(owner, entry.name, value, f"a number below {MOST_FLOAT:.1e}, as devices compute")
            if isinstance(leaf, int) and not (-most <= leaf <= most or fits(0.5, hint)):
                raise _wrong(owner, entry.name, value, f"a whole number up to {most:,}")
            if leaf == "" and entry.name not in may_be_empty:
                advice = " or None" if fits(None, hint) else ""
                raise _wrong(owner, entry.name, value, f"a text that is not empty{advice}")
            if isinstance(leaf, str) and not _is_writable(leaf):
                raise _wrong(owner, entry.name, value, "text in UTF-8, without NUL characters")
        for kind, limit in _limits(type(owner))[entry.name]:
            if fits(value, kind) and not limit.holds(value):
                or_none = ", or None" if fits(None, hint) and limit.verb == "give" else ""
                raise _wrong(owner, entry.name, value, f"{limit.words}{or_none}", limit.verb)
        if isinstance(value, list | tuple):
            object.__setattr__(owner, entry.name, _tuples(value))


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def check_address(path: str, name: str, known: tuple[str, ...] = ADDRESSES) -> None:
    """Raises InputError, which calls the path `name`, for an address whose kind is not one of `known`.

    >>> check_address("gs://bucket/run", "model_dir"), check_address("runs/mine", "model_dir")
    (None, None)
    """
    kind, separator, _ = path.partition("://")
    if separator and kind not in known:
        kinds = ", ".join(f"{protocol}://" for protocol in known)
        sentence = f"{name} {path} begins with {kind}://, not with {kinds}; correct it, or give a directory."
        raise InputError(sentence, fix=(name, Open("a directory")) if "." in name else None)  # a field, or words


def check_local(path: str, name: str) -> None:
    """Raises InputError, which calls the path `name`, for an address: what is written there needs a local disk.

    >>> check_local("lengths.png", "the picture")
    """
    if "://" in path:
        raise InputError(f"{name} is {path}, and it can only be local; give a path of this machine.")


def _wrong(owner: object, field: str, value: object, give: str, verb: str = "give") -> ConfigError:
    text = without_credentials(repr(value))  # before the cut, after which a password may have no end
    text = text if len(text) <= 200 else f"{text[:200]}…"
    field = f"{class_name(owner)}.{field}"
    return ConfigError(field, f"is {text}; {verb} {give}.", (field, Open(give)))


@functools.cache
def hints_of(kind: type) -> Mapping[str, Any]:
    """Returns the type of each field of a configuration, without its limit."""
    return typing.get_type_hints(kind)


@functools.cache
def _limits(kind: type) -> Mapping[str, list[tuple[type, Limit]]]:
    """Returns the limits of each field, each with the type whose values it holds for: int of PositiveInt | None."""
    limits: dict[str, list[tuple[type, Limit]]] = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        limits[name] = []
        for part in (hint, *typing.get_args(hint)):  # the hint itself, or one of the types that it unites
            for limit in getattr(part, "__metadata__", ()):
                limits[name].append((part.__origin__, limit))
    return limits


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif not isinstance(value, bool):
        yield value


def _is_writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
