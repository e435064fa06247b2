"""What can be wrong with a gin configuration's names and kinds of values, found before anything is imported.

gin itself is silent about a macro that nothing uses, so a misspelt TRAIN_STEPS would train for the default;
and its messages for the rest run over several lines. Here each is one sentence with the mend.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from limba import config
from limba.cli.gin_files import REQUIRED, Binding, Macro, Reference, Source
from limba.config import InputError

ROOT = Path(__file__).resolve().parents[2]
RUN = "config.RunConfig"
CLASSES = {f"config.{name}": value for name, value in vars(config).items() if dataclasses.is_dataclass(value)}
KINDS = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", type(None): "None"}


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Returns `; did you mean A?` where a choice is near, or a full stop."""
    upper = {choice.upper(): choice for choice in choices}
    near = difflib.get_close_matches(name.upper(), list(upper), n=1, cutoff=0.6)
    return f"; did you mean {upper[near[0]]}?" if near else "."


def _leaves(value: object) -> Iterator[Reference | Macro]:
    """Yields the references and macros inside a value."""
    if isinstance(value, Reference | Macro):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(key)
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)


def _check_class(name: str, place: str) -> None:
    if name not in CLASSES:
        raise InputError(f"{place} names {name}, which is not a class of limba/config/{did_you_mean(name, CLASSES)}")


def _check_names(source: Source) -> None:
    for binding in source.bindings:
        if binding.field:
            _check_class(binding.owner, binding.place)
            fields = [entry.name for entry in dataclasses.fields(CLASSES[binding.owner])]
            if binding.field not in fields:
                raise InputError(
                    f"{binding.place} sets {binding.field}, which is not a field of {binding.owner}"
                    f"{did_you_mean(binding.field, fields)}"
                )
        for leaf in _leaves(binding.value):
            if isinstance(leaf, Reference):
                _check_class(leaf.name, binding.place)
                if not leaf.called:
                    raise InputError(f"{binding.place} gives {leaf}, which makes nothing; write {leaf}() instead.")


def _check_macros_are_used(source: Source) -> None:
    used = {leaf.name for binding in source.bindings for leaf in _leaves(binding.value) if isinstance(leaf, Macro)}
    for binding in source.bindings:
        if not binding.field and binding.name not in used:
            near = did_you_mean(binding.name, used)
            raise InputError(f"{binding.place} sets {binding.name}, which nothing uses{near}")


def _check_modules(source: Source) -> None:
    for module, place in source.modules:
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            choices = [f"tasks.{path.stem}" for path in sorted((ROOT / "tasks").glob("[!_]*.py"))]
            raise InputError(f"{place} imports {module}, which is not there{did_you_mean(module, choices)}")


class _Graph:
    """The bindings that count in the end, followed from RunConfig as gin will follow them."""

    def __init__(self, source: Source) -> None:
        self.macros = {binding.name: binding for binding in source.bindings if not binding.field}
        self.fields = {(b.scope, b.owner, b.field): b for b in source.bindings if b.field}
        self.reached: set[tuple[str, str]] = set()
        self.reached_macros: dict[str, Binding | None] = {}  # name -> the binding that first asks for it
        self._reach("", RUN)

    def bindings_of(self, scope: str, owner: str) -> dict[str, Binding]:
        """Returns field -> binding; an inner scope's wins over an outer one's."""
        parts = scope.split("/") if scope else []
        scopes = ["/".join(parts[:count]) for count in range(len(parts) + 1)]
        found = {}
        for outer in scopes:
            found.update({key[2]: binding for key, binding in self.fields.items() if key[:2] == (outer, owner)})
        return found

    def _reach(self, scope: str, owner: str) -> None:
        if (scope, owner) in self.reached:
            return
        self.reached.add((scope, owner))
        for binding in self.bindings_of(scope, owner).values():
            self._follow(scope, binding)

    def _follow(self, scope: str, binding: Binding) -> None:
        for leaf in _leaves(binding.value):
            if isinstance(leaf, Reference):
                self._reach(leaf.scope or scope, leaf.name)
            elif leaf != REQUIRED and leaf.name not in self.reached_macros:
                self.reached_macros[leaf.name] = binding
                if leaf.name in self.macros:
                    self._follow(leaf.name, self.macros[leaf.name])

    def resolve(self, binding: Binding, inside: tuple[str, ...] = ()) -> tuple[object, str]:
        """Returns the value with macros replaced, and where it was set; `inside` are the macros on the way."""
        value = binding.value
        if isinstance(value, Macro) and value != REQUIRED:
            if value.name in inside:
                raise InputError(f"{binding.place} makes {value.name} out of itself; give it a value instead.")
            return self.resolve(self.macros[value.name], (*inside, value.name))
        if isinstance(value, Mapping):
            pairs = ((self._part(binding, k, inside), self._part(binding, v, inside)) for k, v in value.items())
            return dict(pairs), binding.place
        if isinstance(value, list | tuple):
            return tuple(self._part(binding, item, inside) for item in value), binding.place
        return value, binding.place

    def _part(self, binding: Binding, value: object, inside: tuple[str, ...]) -> object:
        return self.resolve(dataclasses.replace(binding, value=value), inside)[0]


def _check_required(graph: _Graph) -> None:
    missing = []
    for name, asked_by in graph.reached_macros.items():
        if name in graph.macros:
            if graph.macros[name].value == REQUIRED:
                missing.append(name)
        elif asked_by is not None:
            raise InputError(
                f"{asked_by.place} uses %{name}, which nothing sets{did_you_mean(name, graph.macros).rstrip('.?')}"
                f"; add {name} = VALUE, or --gin.{name}=VALUE."
            )
    if missing:
        name, *others = missing
        about = graph.macros[name].comment
        also = f" ({', '.join(others)} too)" if others else ""
        raise InputError(
            f"{name} is not set{also}: {about or 'it has no default'}; "
            f"add --gin.{name}=VALUE to the command, or {name} = VALUE to the gin file."
        )
    for scope, owner in sorted(graph.reached):
        bound = graph.bindings_of(scope, owner)
        for entry in dataclasses.fields(CLASSES[owner]):
            has_default = entry.default is not dataclasses.MISSING or entry.default_factory is not dataclasses.MISSING
            is_set = bound[entry.name].value != REQUIRED if entry.name in bound else has_default
            if not is_set:
                include = {RUN: "gin/runs/pretrain.gin", "config.ModelConfig": "gin/models/t5_1_1/small.gin"}.get(owner)
                mend = f"include a file such as {include}" if include else "set it"
                name = f"{owner}.{entry.name}"
                raise InputError(f"Nothing sets {name}; {mend}, or add --gin.{name}=VALUE.")


def _check_bindings_are_reached(graph: _Graph) -> None:
    for (scope, owner, _), binding in graph.fields.items():
        scopes = [reached for reached, name in graph.reached if name == owner]
        if not any(not scope or f"{reached}/".startswith(f"{scope}/") for reached in scopes):
            choices = [f"{s}/{o}" if s else o for s, o in graph.reached]
            raise InputError(
                f"{binding.place} sets a field of {scope}{'/' if scope else ''}{owner}, which the run does not use; "
                f"it uses {', '.join(sorted(choices))}."
            )


def _fits(value: object, hint: typing.Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        key, item = arguments
        return isinstance(value, Mapping) and all(_fits(k, key) and _fits(v, item) for k, v in value.items())
    if dataclasses.is_dataclass(hint):
        return isinstance(value, Reference) and CLASSES[value.name] is hint
    return isinstance(value, hint)


def _in_words(hint: typing.Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_in_words(argument) for argument in arguments)
    if origin is tuple:
        return f"a tuple, each {_in_words(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        example = "{'inputs': 512}" if arguments[1] is int else "{'train': 'a.txt'}"
        return f"a dictionary such as {example}"
    if dataclasses.is_dataclass(hint):
        return next(f"@{name}()" for name, value in CLASSES.items() if value is hint)
    return KINDS.get(hint, getattr(hint, "__name__", str(hint)))


def _check_kinds(graph: _Graph) -> None:
    for scope, owner in sorted(graph.reached):
        hints = typing.get_type_hints(CLASSES[owner])
        for name, binding in graph.bindings_of(scope, owner).items():
            value, place = graph.resolve(binding)
            if not _fits(value, hints[name]):
                raise InputError(f"{place} gives {value!r} for {owner}.{name}, which takes {_in_words(hints[name])}.")


def check(source: Source) -> None:
    """Raises ConfigError, one sentence, for the first name or kind of value that cannot be meant."""
    _check_names(source)
    _check_macros_are_used(source)
    _check_modules(source)
    graph = _Graph(source)
    _check_required(graph)
    _check_bindings_are_reached(graph)
    _check_kinds(graph)
