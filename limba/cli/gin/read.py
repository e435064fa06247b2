"""Reads gin files as one frozen RunConfig or ModelConfig.

First all names and types are checked. Then the configuration is built, and checks itself. Only then are the modules
of tasks/ imported. So a mistake costs milliseconds, not the imports of a run.

A gin file runs code: it imports the modules that it names. Read one from somebody else only if you would run their
scripts.

gin accepts a macro that nothing uses, so a misspelt TRAIN_STEPS would train for the default; and its messages take
several lines. Here each error is one sentence that says what to do.
"""

from __future__ import annotations

import dataclasses
import os
import pprint
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from limba import config, toolbox
from limba.cli.gin import continued, statements
from limba.cli.gin.continued import Continued
from limba.cli.gin.statements import REQUIRED, Binding, Macro, Reference, Source, leaves
from limba.cli.gin.unread import unread_choices
from limba.config import InputError, ModelConfig, Open, RunConfig, did_you_mean, kinds, named, nearest
from limba.config.optimizer import fields_of, foreign_fields, optimizer_config
from limba.data import task_modules

HEADER = ("from __gin__ import dynamic_registration", "from limba import config")
WIDTH = 80
INDENT = 4
LINE = "# " + "=" * (WIDTH - 2)


class GinRun(NamedTuple):
    """A run as gin files describe it."""

    config: RunConfig
    text: str  # what MODEL_DIR/config.gin will hold
    names: Mapping[str, str]  # canonical field -> the macro that sets it: "DataConfig.batch_size" -> "BATCH_SIZE"
    evaluation: tuple[str, ...] = ()  # arguments of `limba evaluate`, for a configuration that only evaluates
    continued: Continued | None = None  # the model that it continues from, where its files ask what that is


def read_run(
    files: Sequence[str],
    overrides: Sequence[str] = (),
    search_paths: Sequence[Path] = (),
    written_as: Mapping[str, str] | None = None,
    allowed: Sequence[str] | None = None,
) -> GinRun:
    """Returns the run that gin files and `NAME=VALUE` overrides describe; later values replace earlier ones.

    Files, included files and task modules are looked for in `search_paths` (files only), the current directory and the
    repository. Imports the task modules that the files import, which takes seconds and runs their code. `written_as`
    maps gin names to what the user wrote instead. With `allowed` only these modules, and those of Limba and of tasks/,
    are imported, and another one is an UntrustedModuleError. Raises InputError, one sentence in the user's names, for
    invalid input.
    """
    return _checked_run(statements.read(files, overrides, search_paths), " and ".join(files), allowed, written_as)


def read_translated(
    text: str,
    place: str,
    overrides: Sequence[str] = (),
    written_as: Mapping[str, str] | None = None,
    allowed: Sequence[str] | None = None,
) -> GinRun:
    """Returns the run of a gin text that a command has made from `place`, files of another dialect; as `read_run`."""
    source = Source()
    statements.read_with_includes(source, text, place)
    for override in overrides:
        statements.read_override(source, override, "--gin.")
    return _checked_run(source, place, allowed, written_as)


def read_own(
    text: str,
    file: str,
    overrides: Sequence[str],
    allowed: Sequence[str],
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> GinRun:
    """Returns the run that MODEL_DIR/config.gin describes, `file` with this text, with `NAME=VALUE` overrides.

    Fields of the run and of its schedule, by their names ("ScheduleConfig.decay_steps"), are set `before` the
    overrides, and `after` them; these cannot be overridden. The text is data: it includes no files, and imports only
    the modules of `allowed`, of Limba and of tasks/; UntrustedModuleError for others, InputError as `read_run`.
    """
    source = Source()
    statements.read_text(source, text, file)
    _set_fields(source, before or {})
    for override in overrides:
        statements.read_override(source, override, "--gin.")
    _set_fields(source, after or {})
    directory = os.path.dirname(file)
    _check_imports(source, file, allowed, directory)
    for module, place in source.modules:
        task_modules.check(module, f"{place} imports")
    return _checked_run(source, file, allowed, directory=directory)  # looks again: the folders of tasks/ are known now


def _set_fields(source: Source, values: Mapping[str, object]) -> None:
    """Adds bindings of fields of the run and of its schedule, in the scopes in which the run's objects are made."""
    if not values:
        return
    scopes = {}
    scope = ""
    owner = RUN
    node: Node | None = Tree(source, RUN).top
    for name in (RUN, "config.OptimizerConfig", "config.ScheduleConfig"):
        if name != RUN:
            field = {"config.OptimizerConfig": "optimizer", "config.ScheduleConfig": "schedule"}[name]
            found = node.values.get(field) if node is not None else None
            node = found if isinstance(found, Node) else None
            if node is None:  # it has its defaults, and no name yet
                source.bindings.append(
                    statements.Binding(scope, owner, field, statements.Reference(scope, name, True), "a branch", "")
                )
        scope = scope if node is None else node.scope
        owner = name
        scopes[name] = scope
    for name, value in values.items():
        owner, _, field = f"config.{name}".rpartition(".")
        source.bindings.append(statements.Binding(scopes[owner], owner, field, value, "a branch", ""))


def read_gin(file: str | os.PathLike[str], **overrides: object) -> RunConfig:
    """Returns the run that a gin file describes, with some of its names set to other values.

    A field without a macro is set by its full name: `**{"config.ModelConfig.emb_dim": 64}`. Imports the task modules
    that the file names, and so runs their code. Raises InputError, one sentence, for invalid input.

    >>> run = read_gin("gin/demo.gin", MODEL_DIR="gs://bucket/demo", TRAIN_STEPS=100)
    >>> run.train_steps, run.data.batch_size, run.model.emb_dim
    (100, 32, 128)
    """
    return read_gin_run(file, overrides).config


def read_gin_run(file: str | os.PathLike[str], overrides: Mapping[str, object]) -> GinRun:
    """Returns `read_gin` with what else is known of the run."""
    values = [f"{name}={value!r}" for name, value in overrides.items()]
    return _checked_run(statements.read([os.fspath(file)], values, flag=""), flag="")


def read_model(file: str, overrides: Sequence[str] = ()) -> ModelConfig:
    """Returns the network of a gin file, such as one of gin/models/; DROPOUT_RATE is 0 if only a run would set it.

    Raises InputError for a file without a network, and as `read_run`.

    >>> read_model("gin/models/t5_1_1/small.gin").num_heads
    6
    """
    source = statements.read([file], overrides)
    if not any(binding.owner == MODEL for binding in source.bindings):
        raise InputError(f"{file} sets nothing of {MODEL}; give a gin file of a model or of a run.")
    return model_of(source)


def _check_imports(source: Source, place: str, allowed: Sequence[str], directory: str | None = None) -> None:
    from limba.inference.source import check_imports

    check_imports([module for module, _ in source.modules], place, allowed, directory)


def _checked_run(
    source: Source,
    file: str = "",
    allowed: Sequence[str] | None = None,
    written_as: Mapping[str, str] | None = None,
    directory: str | None = None,
    flag: str = "--gin.",
) -> GinRun:
    if allowed is not None:
        _check_imports(source, file, allowed, directory)
    for module, place in source.modules:
        task_modules.check(module, f"{place} imports")
    run = run_of(source, flag, written_as)
    task_modules.import_all(run.config.data.task_modules)
    return run


def run_of(source: Source, flag: str = "--gin.", written_as: Mapping[str, str] | None = None) -> GinRun:
    """Returns the run that the statements describe; imports no task module, but those of a run that it continues."""
    found = continued.complete(source)
    tree = Tree(source, RUN, flag)
    tree.check()
    written_as = written_as or {}
    modules = tuple(dict.fromkeys(module for module, _ in source.modules))
    names = {name.removeprefix("config."): wrote for name, wrote in written_as.items() if "." in name}
    names |= {field: written_as.get(name, name) for field, name in tree.names().items()}
    with named(names):
        data_node = tree.top.values.get("data")
        if found is not None and isinstance(data_node, Node):
            found.check_objective(data_node.values.get("objective"))
        config: RunConfig = tree.top.make()
        tree.check_overrides_are_read(config)  # of values that are valid
        data = dataclasses.replace(config.data, task_modules=modules)
        return GinRun(dataclasses.replace(config, data=data), text_of(tree, modules), names, continued=found)


def hidden_macros(source: Source) -> dict[str, Binding]:
    """Returns each macro that changes nothing -> the binding in its place; none where the files have a mistake."""
    try:
        tree = Tree(source, RUN)
    except InputError:
        return {}
    names = tree.all_macros.keys() - tree.macros.keys()
    above = {name: tree.binding_above(tree.fields_set_by(name)) for name in names}
    return {name: binding for name, binding in above.items() if binding is not None}


def model_of(source: Source) -> ModelConfig:
    """Returns the network that the statements describe."""
    macros = {binding.name: binding.value for binding in source.bindings if not binding.field}
    if macros.get("DROPOUT_RATE") == statements.REQUIRED:  # gin/models/ leaves it to the run
        source.bindings.append(statements.Binding("", "DROPOUT_RATE", "", 0.0, "", ""))
    tree = Tree(source, MODEL)
    tree.check(is_whole=False)
    with named(tree.names()):
        return tree.top.make()


def text_of(tree: Tree, modules: Sequence[str]) -> str:
    """Returns every value that the run uses, defaults included, in the form of gin's operative config.

    Macros stay macros, so that `--gin.TRAIN_STEPS=…` also overrides this text. `modules` are imported. A
    default that is an object, such as EvaluationConfig.sampling, is left out.
    """
    names = [module.rpartition(".") for module in modules]
    imports = [f"from {package} import {name}" if package else f"import {name}" for package, _, name in names]
    lines = [*HEADER, *dict.fromkeys(imports), "", "# Macros:", LINE]
    lines += [_bound(name, tree.macros[name].value) for name in sorted(tree.macros, key=str.lower)]
    for node in sorted(tree.nodes.values(), key=lambda node: (node.owner.lower(), node.scope.lower().split("/")[::-1])):
        lines += ["", f"# Parameters for {_name(node)}:", LINE, *_parameters(node)]
    return "\n".join(lines) + "\n"


def _name(node: Node) -> str:
    return f"{node.scope}{'/' if node.scope else ''}{node.owner}"


def _parameters(node: Node) -> Iterator[str]:
    for entry in sorted(dataclasses.fields(node.make()), key=lambda entry: entry.name):
        if entry.name in node.bindings:
            yield _bound(f"{_name(node)}.{entry.name}", node.bindings[entry.name].value)
        elif entry.default is not dataclasses.MISSING:
            yield _bound(f"{_name(node)}.{entry.name}", entry.default)


def _bound(name: str, value: object) -> str:
    text = pprint.pformat(value, width=WIDTH - INDENT)
    if "\n" not in text and len(name + text) <= WIDTH:
        return f"{name} = {text}"
    return f"{name} = \\\n" + "\n".join(" " * INDENT + line for line in text.split("\n"))


RUN = "config.RunConfig"
MODEL = "config.ModelConfig"
OPTIMIZER = "config.OptimizerConfig"
SCHEDULE = "config.ScheduleConfig"
CLASSES: dict[str, type] = {f"config.{name}": vars(config)[name] for name in config.__all__ if name.endswith("Config")}
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
        fields: dict[str, Any] = {name: _made(value) for name, value in self.values.items()}
        if self.owner == OPTIMIZER:
            return optimizer_config(**fields)
        return CLASSES[self.owner](**fields)


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
        self.root = root
        self.flag = flag
        self.ordered = source.bindings
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

        So they do if the name that counted where they stand has them: an included recipe's. And in a run's own
        config.gin, whose optimizer another name replaces.
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
            self._check_overrides_count()
        for _, node in sorted(self.nodes.items()):
            hints = fields_of(CLASSES[node.owner])
            for name, value in node.values.items():
                if not _fits(value, hints[name]):
                    field = f"{node.owner}.{name}"
                    takes = _in_words(hints[name])
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
        return any(binding is counts for node in self.nodes.values() for counts in node.bindings.values())

    def fields_set_by(self, macro: str) -> set[tuple[str, str]]:
        """Returns (class, field) of all bindings that have the macro as their value, whether they count or not."""
        return {(each.owner, each.field) for each in self.ordered if Macro(macro) in leaves(each.value)}

    def binding_above(self, fields: set[tuple[str, str]]) -> Binding | None:
        """Returns the binding that counts for one of these fields."""
        for node in self.nodes.values():
            for binding in node.bindings.values():
                if (binding.owner, binding.field) in fields:
                    return binding
        return None

    def _no_effect(self, override: Binding, above: Binding | None) -> InputError:
        if above is None or above is override:
            return InputError(f"{override.place} sets {override.name}, which this run does not use; leave it out.")
        name = f"{above.name} = {override.value!r}"
        return InputError(
            f"{override.place} sets {override.name}, and changes nothing: {above.place} sets {above.name} to"
            f" {above.value!r}; give {self.flag}{above.name}={override.value!r}, or change that line.",
            fix=name,
        )

    def check_overrides_are_read(self, config: RunConfig) -> None:
        """Raises InputError for an override of a field that nothing in a run with these choices reads."""
        overrides = {binding.place for binding in self.ordered if binding.is_override}
        for node in self.nodes.values():
            for field_name, reason in unread_choices(node.owner, node.values, config, self.flag).items():
                place = node.places[field_name]
                if place in overrides:
                    raise InputError(f"{place} sets {node.owner}.{field_name}, which {reason}")


def _fits(value: object, hint: object) -> bool:
    if dataclasses.is_dataclass(hint):
        return isinstance(value, Node) and CLASSES[value.owner] is hint
    return kinds.fits(value, hint)


def _in_words(hint: object) -> str:
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
