"""Resolves statements to one tree of values: replaces macros, follows scopes and references, checks names and types.

gin accepts a macro that nothing uses, so a misspelt TRAIN_STEPS would train for the default; and its messages take
several lines. Here each error is one sentence that says what to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from limba import config, toolbox
from limba.cli.gin.statements import REQUIRED, Binding, Macro, Reference, Source, leaves
from limba.config import InputError, Open, did_you_mean, kinds, nearest
from limba.config.optimizer import fields_of, foreign_fields

RUN, MODEL, OPTIMIZER = "config.RunConfig", "config.ModelConfig", "config.OptimizerConfig"
CLASSES: dict[str, Any] = {f"config.{name}": vars(config)[name] for name in config.__all__ if name.endswith("Config")}
FILES = {RUN: "gin/runs/pretrain.gin", MODEL: "gin/models/t5_1_1/small.gin"}  # that set a class's fields


@dataclass
class Node:
    """An object to construct: a class of `limba/config/` in a scope, with the values of its bound fields."""

    scope: str
    owner: str
    bindings: dict[str, Binding]  # field -> the binding that counts
    values: dict[str, object] = field(default_factory=dict)  # field -> its value; a Node for an object
    places: dict[str, str] = field(default_factory=dict)  # field -> where the value is set

    def __repr__(self) -> str:
        return repr(Reference(self.scope, self.owner, True))

    def make(self) -> Any:
        """Returns the configuration; raises ConfigError if it is invalid."""
        return CLASSES[self.owner](**{name: _made(value) for name, value in self.values.items()})


def _made(value: object) -> object:
    if isinstance(value, Node):
        return value.make()
    if isinstance(value, Mapping):
        return {_made(key): _made(item) for key, item in value.items()}
    return type(value)(map(_made, value)) if isinstance(value, list | tuple) else value


class Tree:
    """The objects and macros that the class `root` needs, without overridden and unused ones."""

    def __init__(self, source: Source, root: str, flag: str = "--gin.") -> None:
        _check_names(source)
        self.root, self.flag, self.ordered = root, flag, source.bindings
        self.all_macros = {binding.name: binding for binding in source.bindings if not binding.field}
        self.fields = {(b.scope, b.owner, b.field): b for b in source.bindings if b.field}
        self.nodes: dict[tuple[str, str], Node] = {}
        self.macros: dict[str, Binding] = {}
        self.top = self._node("", root)

    def _bindings_of(self, scope: str, owner: str) -> dict[str, Binding]:
        """Returns field -> binding; an inner scope's binding replaces an outer one's."""
        parts = scope.split("/") if scope else []
        found = {}
        for count in range(len(parts) + 1):
            outer = "/".join(parts[:count])
            found.update({key[2]: binding for key, binding in self.fields.items() if key[:2] == (outer, owner)})
        return found

    def _node(self, scope: str, owner: str) -> Node:
        if (scope, owner) not in self.nodes:
            node = self.nodes[scope, owner] = Node(scope, owner, self._bindings_of(scope, owner))
            for name, binding in node.bindings.items():
                node.values[name], node.places[name] = self._resolved(scope, binding.value, binding)
            if owner == OPTIMIZER:
                self._leave_rules_behind(node)
        return self.nodes[scope, owner]

    def _leave_rules_behind(self, node: Node) -> None:
        """Drops the fields of other optimizers that belong to what was read before: its own, replaced optimizer.

        So they do if the name that counted where they stand has them: an included recipe's. And in a run's config.gin,
        which listed the fields of all optimizers until version 0.3.
        """
        default = config.OptimizerConfig.name
        for name in foreign_fields(node.values.get("name", default), node.values):
            before = self.ordered[: self.ordered.index(node.bindings[name])]
            named = [each.value for each in before if (each.owner, each.field) == (OPTIMIZER, "name")]
            if node.bindings[name].is_own or not foreign_fields([default, *named][-1], [name]):
                del node.bindings[name], node.values[name], node.places[name]

    def _resolved(
        self, scope: str, value: object, binding: Binding, inside: tuple[str, ...] = ()
    ) -> tuple[object, str]:
        """Returns the value, and the place that sets it. `inside`: the macros on the way here."""
        if isinstance(value, Reference):
            return self._node(value.scope or scope, value.name), binding.place
        if isinstance(value, Macro) and value != REQUIRED:
            return self._value_of_macro(value.name, binding, inside)
        part = lambda item: self._resolved(scope, item, binding, inside)[0]
        if isinstance(value, Mapping):
            return {part(key): part(item) for key, item in value.items()}, binding.place
        return (type(value)(map(part, value)) if isinstance(value, list | tuple) else value), binding.place

    def _value_of_macro(self, name: str, binding: Binding, inside: tuple[str, ...]) -> tuple[object, str]:
        if name in inside:
            raise InputError(f"{binding.place} defines {name} by itself; give it a value instead.")
        if name not in self.all_macros:
            near = did_you_mean(name, self.all_macros).rstrip(".?")
            sentence = f"{binding.place} uses %{name}, which nothing sets{near}; add {name} = VALUE, or"
            raise InputError(f"{sentence} {self.flag}{name}=VALUE.", fix=f"{name} = {Open()!r}")
        self.macros[name] = self.all_macros[name]
        # As in gin, a macro's name is the scope of the objects in its value.
        return self._resolved(name, self.macros[name].value, self.macros[name], (*inside, name))

    def names(self) -> dict[str, str]:
        """Returns canonical field -> the macro that sets it: {"DataConfig.batch_size": "BATCH_SIZE"}."""
        return {
            f"{node.owner.removeprefix('config.')}.{name}": binding.value.name
            for _, node in sorted(self.nodes.items(), reverse=True)  # the outermost scope counts
            for name, binding in node.bindings.items()
            if isinstance(binding.value, Macro)
        }

    def check(self, is_whole: bool = True) -> None:
        """Raises InputError for the first value that is missing, unused, or of the wrong type.

        `is_whole`: everything that the source sets must be used in this tree.
        """
        self._check_required()
        if is_whole:
            self._check_bindings_are_reached()
        for _, node in sorted(self.nodes.items()):
            hints = fields_of(CLASSES[node.owner])
            for name, value in node.values.items():
                if not _fits(value, hints[name]):
                    field, takes = f"{node.owner}.{name}", _in_words(hints[name])
                    sentence = f"{node.places[name]} gives {value!r} for {field}, which takes {takes}."
                    raise InputError(sentence, fix=f"{field} = {Open(takes)!r}")

    def _check_required(self) -> None:
        if missing := [name for name, binding in self.macros.items() if binding.value == REQUIRED]:
            name, *others = missing
            about = self.macros[name].comment or "it has no default"
            also = f" ({', '.join(others)} too)" if others else ""
            flag = f"add {self.flag}{name}=VALUE to the command" if self.flag else f"give {name}=VALUE"
            sentence = f"{name} is not set{also}: {about}; {flag}, or {name} = VALUE to the gin file."
            raise InputError(sentence, fix=f"{name} = {Open(about)!r}")
        for _, node in sorted(self.nodes.items()):
            for entry in dataclasses.fields(CLASSES[node.owner]):
                has_default = (entry.default, entry.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
                if node.values.get(entry.name) == REQUIRED or not (has_default or entry.name in node.values):
                    file = FILES.get(node.owner)
                    advice = f"include a file such as {file}" if file else "set it"
                    name = f"{node.owner}.{entry.name}"
                    sentence = f"Nothing sets {name}; {advice}, or add {self.flag}{name}=VALUE."
                    raise InputError(sentence, fix=f"{name} = {Open()!r}")

    def _check_bindings_are_reached(self) -> None:
        for (scope, owner, _), binding in self.fields.items():
            scopes = [reached for reached, name in self.nodes if name == owner]
            if not any(not scope or f"{reached}/".startswith(f"{scope}/") for reached in scopes):
                choices = ", ".join(sorted(repr(node)[1:-2] for node in self.nodes.values()))
                name = repr(Reference(scope, owner, False))[1:]
                raise InputError(
                    f"{binding.place} sets a field of {name}, which {self.root} does not use; it uses {choices}."
                )


def _fits(value: object, hint: Any) -> bool:
    if dataclasses.is_dataclass(hint):
        return isinstance(value, Node) and CLASSES[value.owner] is hint
    return kinds.fits(value, hint)


def _in_words(hint: Any) -> str:
    return next((f"@{name}()" for name, value in CLASSES.items() if value is hint), None) or kinds.in_words(hint)


def _check_class(name: str, place: str, field: str = "") -> None:
    if name not in CLASSES:
        raise InputError(f"{place} names {name}, which is not a class of limba/config/{_advice(name, field)}")


def _advice(name: str, field: str = "") -> str:
    """Returns the end of a sentence about a name that is none of ours, which may be another trainer's."""
    migrate = toolbox.find("migrate")
    return migrate.advice(name, CLASSES, field) if migrate else did_you_mean(name, CLASSES)


def _check_names(source: Source) -> None:
    """Raises InputError for a class or field that does not exist, and for a macro that nothing uses."""
    used = {leaf.name for binding in source.bindings for leaf in leaves(binding.value) if isinstance(leaf, Macro)}
    for binding in source.bindings:
        if binding.field:
            _check_class(binding.owner, binding.place, binding.field)
            fields = fields_of(CLASSES[binding.owner])
            if binding.field not in fields:
                near = did_you_mean(binding.field, fields)
                right = nearest(binding.field, fields)
                raise InputError(
                    f"{binding.place} sets {binding.field}, not a field of {binding.owner}{near}",
                    fix=f"{binding.name.removesuffix(binding.field)}{right} = {binding.value!r}" if right else None,
                )
        for leaf in leaves(binding.value):
            if isinstance(leaf, Reference):
                _check_class(leaf.name, binding.place)
                if not leaf.called:
                    raise InputError(f"{binding.place} gives {leaf}, a class; write {leaf}() for an object of it.")
    for binding in source.bindings:
        if not binding.field and binding.name not in used:
            migrate = toolbox.find("migrate")
            ours = migrate.our_macro(binding.name) if migrate else ""
            near = _advice(binding.name) if ours else did_you_mean(binding.name, used)
            right = ours or nearest(binding.name, used)
            fix = f"{right} = {binding.value!r}" if right else None
            raise InputError(f"{binding.place} sets {binding.name}, which nothing uses{near}", fix=fix)
