"""The objects that gin statements describe: classes of `limba/config/` in scopes, with the values that count.

gin accepts a macro that nothing uses, so a misspelt TRAIN_STEPS would train for the default; and its messages take
several lines. Here each error is one sentence that says what to do.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from limba import config, tool_registry
from limba.cli.gin.macros import field_of
from limba.cli.gin.statements import REQUIRED, Binding, Macro, Reference, Source, leaves
from limba.cli.gin.unread import unread_choices
from limba.config import InputError, Open, RunConfig, did_you_mean, kinds, nearest
from limba.config.optimizer import fields_of, foreign_fields, optimizer_config

RUN = "config.RunConfig"
MODEL = "config.ModelConfig"
OPTIMIZER = "config.OptimizerConfig"
SCHEDULE = "config.ScheduleConfig"
# All classes that a gin file may name.
CLASSES: dict[str, type] = {f"config.{name}": vars(config)[name] for name in config.__all__ if name.endswith("Config")}
# Class -> a file that sets its fields, for errors to name.
FILES = {RUN: "gin/runs/pretrain.gin", MODEL: "gin/models/t5_1_1/small.gin"}


@dataclass
class Node:
    """An object to construct: a class of `limba/config/` in a scope, with the values of its bound fields."""

    scope: str
    owner: str
    bindings: dict[str, Binding]  # field -> the binding that counts
    values: dict[str, object] = field(default_factory=dict)  # field -> its value; a Node for an object
    locations: dict[str, str] = field(default_factory=dict)  # field -> where the value is set

    def __repr__(self) -> str:
        return repr(Reference(self.scope, self.owner, True))

    def make(self) -> Any:
        """Returns the configuration; raises ConfigError if it is invalid."""
        fields: dict[str, Any] = {name: _made(value) for name, value in self.values.items()}
        if self.owner == OPTIMIZER:
            return optimizer_config(**fields)
        return CLASSES[self.owner](**fields)


def _made(value: object) -> object:
    if isinstance(value, Node):
        return value.make()
    if isinstance(value, Mapping):
        return {_made(key): _made(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_made, value))
    return value


class Tree:
    """The objects and macros that the class `root` needs, without overridden and unused ones."""

    def __init__(self, source: Source, root: str, flag: str = "--gin.") -> None:
        _check_names(source)
        self.root = root
        self.flag = flag
        self.ordered = source.bindings
        # The last of several bindings of one name counts.
        self.all_macros = {binding.name: binding for binding in source.bindings if not binding.field}
        self.fields = {
            (binding.scope, binding.owner, binding.field): binding for binding in source.bindings if binding.field
        }
        # What the root needs is added while it is resolved.
        self.nodes: dict[tuple[str, str], Node] = {}  # by scope and class
        self.macros: dict[str, Binding] = {}
        self.top = self._node("", root)

    def _bindings_of(self, scope: str, owner: str) -> dict[str, Binding]:
        """Returns field -> binding; an inner scope's binding replaces an outer one's."""
        parts = scope.split("/") if scope else []
        bindings = {}
        for count in range(len(parts) + 1):
            outer = "/".join(parts[:count])
            for (binding_scope, binding_owner, field_name), binding in self.fields.items():
                if binding_scope == outer and binding_owner == owner:
                    bindings[field_name] = binding
        return bindings

    def _node(self, scope: str, owner: str) -> Node:
        """Returns the object of a class in a scope, which is made once, however often it is named."""
        if (scope, owner) in self.nodes:
            return self.nodes[scope, owner]
        node = Node(scope, owner, self._bindings_of(scope, owner))
        self.nodes[scope, owner] = node  # before its fields, which may name it again
        for name, binding in node.bindings.items():
            value, location = self._resolved(scope, binding.value, binding)
            node.values[name] = value
            node.locations[name] = location
        if owner == OPTIMIZER:
            self._drop_fields_of_replaced_rule(node)
        return node

    def _drop_fields_of_replaced_rule(self, node: Node) -> None:
        """Drops fields that the optimizer's rule does not have, where they were set for a rule that it has replaced.

        A field was, if the rule that counted at its line has it, as in an included recipe; so were all fields of a
        run's own config.gin. Any other one is a mistake, and stays to be refused.
        """
        for name in foreign_fields(node.values.get("name", config.OptimizerConfig.name), node.values):
            binding = node.bindings[name]
            belonged_to_rule = not foreign_fields(self._rule_before(binding), [name])
            if binding.is_own or belonged_to_rule:
                del node.bindings[name]
                del node.values[name]
                del node.locations[name]

    def _rule_before(self, binding: Binding) -> object:
        """Returns the name of the optimizer's rule that counted at a statement.

        A macro that was set only after it has the first value that it got.
        """
        before = self.ordered[: self.ordered.index(binding)]
        rule: object = config.OptimizerConfig.name
        for earlier in before:
            if earlier.owner == OPTIMIZER and earlier.field == "name":
                rule = earlier.value
        for _ in self.ordered:  # at most once for each: macros may name each other in a circle
            if not isinstance(rule, Macro) or rule.name not in self.all_macros:
                break
            rule = self._value_at(rule.name, before)
        return rule

    def _value_at(self, macro: str, before: Sequence[Binding]) -> object:
        """Returns the value of a macro after the statements `before`; its first one where none of these sets it."""
        for earlier in reversed(before):
            if earlier.name == macro:
                return earlier.value
        return next(binding.value for binding in self.ordered if binding.name == macro)

    def _resolved(
        self, scope: str, value: object, binding: Binding, inside: tuple[str, ...] = ()
    ) -> tuple[object, str]:
        """Returns the value, and the location that sets it. `inside`: the macros on the way here."""
        if isinstance(value, Reference):
            return self._node(value.scope or scope, value.name), binding.location
        if isinstance(value, Macro) and value != REQUIRED:
            return self._value_of_macro(value.name, binding, inside)

        def part(item: object) -> Any:
            return self._resolved(scope, item, binding, inside)[0]

        if isinstance(value, Mapping):
            return {part(key): part(item) for key, item in value.items()}, binding.location
        if isinstance(value, list | tuple):
            return type(value)(map(part, value)), binding.location
        return value, binding.location

    def _value_of_macro(self, name: str, binding: Binding, inside: tuple[str, ...]) -> tuple[object, str]:
        if name in inside:
            raise InputError(f"{binding.location} defines {name} by itself; give it a value instead.")
        if name not in self.all_macros:
            near = did_you_mean(name, self.all_macros).rstrip(".?")
            raise InputError(
                f"{binding.location} uses %{name}, which nothing sets{near}; add {name} = VALUE, or"
                f" {self.flag}{name}=VALUE.",
                fix=f"{name} = {Open()!r}",
            )
        macro = self.all_macros[name]
        self.macros[name] = macro
        # As in gin, a macro's name is the scope of the objects in its value.
        return self._resolved(name, macro.value, macro, (*inside, name))

    def names(self) -> dict[str, str]:
        """Returns canonical field -> the macro that sets it: {"DataConfig.batch_size": "BATCH_SIZE"}."""
        names = {}
        for _, node in sorted(self.nodes.items(), reverse=True):  # the outermost scope comes last, and counts
            for name, binding in node.bindings.items():
                if isinstance(binding.value, Macro):
                    names[f"{node.owner.removeprefix('config.')}.{name}"] = binding.value.name
        return names

    def check(self, is_whole: bool = True) -> None:
        """Raises InputError for the first value that is missing, unused, or of the wrong type.

        `is_whole`: everything that the source sets must be used in this tree.
        """
        self._check_required()
        if is_whole:
            self._check_bindings_are_reached()
            self._check_overrides_count()
        for _, node in sorted(self.nodes.items()):
            hints = fields_of(CLASSES[node.owner])
            for name, value in node.values.items():
                if not _fits(value, hints[name]):
                    field = f"{node.owner}.{name}"
                    takes = _in_words(hints[name])
                    sentence = f"{node.locations[name]} gives {value!r} for {field}, which takes {takes}."
                    raise InputError(sentence, fix=f"{field} = {Open(takes)!r}")

    def _check_required(self) -> None:
        missing = [name for name, binding in self.macros.items() if binding.value == REQUIRED]
        if missing:
            name, *others = missing
            comment = self.macros[name].comment or "it has no default"
            also = f" ({', '.join(others)} too)" if others else ""
            flag = f"add {self.flag}{name}=VALUE to the command" if self.flag else f"give {name}=VALUE"
            sentence = f"{name} is not set{also}: {comment}; {flag}, or {name} = VALUE to the gin file."
            raise InputError(sentence, fix=f"{name} = {Open(comment)!r}")
        for _, node in sorted(self.nodes.items()):
            for entry in dataclasses.fields(CLASSES[node.owner]):
                if not _is_missing(entry, node):
                    continue
                file = FILES.get(node.owner)
                advice = f"include a file such as {file}" if file else "set it"
                name = f"{node.owner}.{entry.name}"
                sentence = f"Nothing sets {name}; {advice}, or add {self.flag}{name}=VALUE."
                raise InputError(sentence, fix=f"{name} = {Open()!r}")

    def _check_bindings_are_reached(self) -> None:
        for (scope, owner, _), binding in self.fields.items():
            # An object takes the bindings of its own scope and of all scopes around it.
            reached = [node_scope for node_scope, node_owner in self.nodes if node_owner == owner]
            if any(_is_within(node_scope, scope) for node_scope in reached):
                continue
            choices = ", ".join(sorted(written(node.scope, node.owner) for node in self.nodes.values()))
            raise InputError(
                f"{binding.location} sets a field of {written(scope, owner)}, which {self.root} does not use; it uses"
                f" {choices}."
            )

    def _check_overrides_count(self) -> None:
        """Raises InputError for an override that changes nothing, since another binding or choice stands above it."""
        for binding in self.ordered:
            if not binding.is_override:
                continue
            if binding.field:
                key = (binding.scope, binding.owner, binding.field)
                if self.fields[key] is binding and not self._is_in_tree(binding):
                    fields = {(binding.owner, binding.field)}
                    raise self._no_effect(binding, self.binding_above(fields))
            elif self.all_macros[binding.name] is binding and binding.name not in self.macros:
                raise self._no_effect(binding, self.binding_above(self.fields_set_by(binding.name)))

    def _is_in_tree(self, binding: Binding) -> bool:
        counting = itertools.chain.from_iterable(node.bindings.values() for node in self.nodes.values())
        return any(binding is other for other in counting)

    def fields_set_by(self, macro: str) -> set[tuple[str, str]]:
        """Returns (class, field) of all bindings that have the macro as their value, whether they count or not."""
        return {(binding.owner, binding.field) for binding in self.ordered if Macro(macro) in leaves(binding.value)}

    def binding_above(self, fields: set[tuple[str, str]]) -> Binding | None:
        """Returns the binding that counts for one of these fields."""
        for node in self.nodes.values():
            for binding in node.bindings.values():
                if (binding.owner, binding.field) in fields:
                    return binding
        return None

    def _no_effect(self, override: Binding, above: Binding | None) -> InputError:
        if above is None or above is override:
            return InputError(f"{override.location} sets {override.name}, which this run does not use; leave it out.")
        name = f"{above.name} = {override.value!r}"
        return InputError(
            f"{override.location} sets {override.name}, and changes nothing: {above.location} sets {above.name} to"
            f" {above.value!r}; give {self.flag}{above.name}={override.value!r}, or change that line.",
            fix=name,
        )

    def check_overrides_are_read(self, config: RunConfig) -> None:
        """Raises InputError for an override of a field that nothing in a run with these choices reads."""
        overrides = {binding.location for binding in self.ordered if binding.is_override}
        for node in self.nodes.values():
            for field_name, reason in unread_choices(node.owner, node.values, config, self.flag).items():
                location = node.locations[field_name]
                if location in overrides:
                    raise InputError(f"{location} sets {node.owner}.{field_name}, which {reason}")


def _is_missing(entry: dataclasses.Field, node: Node) -> bool:
    """Returns whether a field of an object has neither a value nor a default."""
    if entry.name in node.values:
        return node.values[entry.name] == REQUIRED
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING


def _is_within(scope: str, outer: str) -> bool:
    """Returns whether a scope is `outer` or inside of it; everything is inside of the empty scope."""
    return not outer or f"{scope}/".startswith(f"{outer}/")


def written(scope: str, owner: str) -> str:
    """Returns a class in a scope as gin files write it: scope/config.Name."""
    return f"{scope}/{owner}" if scope else owner


def _fits(value: object, hint: object) -> bool:
    if dataclasses.is_dataclass(hint):
        return isinstance(value, Node) and CLASSES[value.owner] is hint
    return kinds.fits(value, hint)


def _in_words(hint: object) -> str:
    for name, value in CLASSES.items():
        if value is hint:
            return f"@{name}()"
    return kinds.in_words(hint)


def _check_class(name: str, location: str, field: str = "") -> None:
    if name not in CLASSES:
        raise InputError(f"{location} names {name}, which is not a class of limba/config/{_advice(name, field)}")


def _advice(name: str, field: str = "") -> str:
    """Returns the end of a sentence about a name that Limba does not have; it may be another trainer's."""
    migrate = tool_registry.find("migrate")
    if migrate is None:
        return did_you_mean(name, CLASSES)
    return migrate.advice(name, CLASSES, field)


def _check_names(source: Source) -> None:
    """Raises InputError for a class or field that does not exist, and for a macro that nothing uses."""
    used_macros = set()
    for binding in source.bindings:
        if binding.field:
            _check_field(binding)
        for leaf in leaves(binding.value):
            if isinstance(leaf, Macro):
                used_macros.add(leaf.name)
            if isinstance(leaf, Reference):
                _check_class(leaf.name, binding.location)
                if not leaf.called:
                    raise InputError(f"{binding.location} gives {leaf}, a class; write {leaf}() for an object of it.")
    for binding in source.bindings:
        if not binding.field and binding.name not in used_macros:
            raise _unused(binding, used_macros)


def _check_field(binding: Binding) -> None:
    """Raises InputError for a binding of a class or of a field that does not exist."""
    _check_class(binding.owner, binding.location, binding.field)
    fields = fields_of(CLASSES[binding.owner])
    if binding.field in fields:
        return
    near = did_you_mean(binding.field, fields)
    right = nearest(binding.field, fields)
    fix = f"{binding.name.removesuffix(binding.field)}{right} = {binding.value!r}" if right else None
    raise InputError(f"{binding.location} sets {binding.field}, not a field of {binding.owner}{near}", fix=fix)


def _unused(binding: Binding, used_macros: set[str]) -> InputError:
    """Returns the error for a macro that nothing uses.

    It says Limba's name for T5X's, the field of a name that other gin files have, or the nearest name that is used.
    """
    migrate = tool_registry.find("migrate")
    ours = "" if migrate is None else migrate.our_macro(binding.name)
    field_name = "" if ours else field_of(binding.name)
    if field_name:
        return InputError(
            f"{binding.location} sets {binding.name}, which nothing uses; set its field, {field_name}, in its place.",
            fix=f"{field_name} = {binding.value!r}",
        )
    near = _advice(binding.name) if ours else did_you_mean(binding.name, used_macros)
    right = ours or nearest(binding.name, used_macros)
    fix = f"{right} = {binding.value!r}" if right else None
    return InputError(f"{binding.location} sets {binding.name}, which nothing uses{near}", fix=fix)
