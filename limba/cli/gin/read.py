"""Reads gin files as one frozen RunConfig or ModelConfig.

First all names and types are checked. Then the configuration is built, and checks itself. Only then are the modules
of tasks/ imported. So a mistake costs milliseconds, not the imports of a run.

A gin file runs code: it imports the modules that it names. Read one from somebody else only if you would run their
scripts.
"""

from __future__ import annotations

import dataclasses
import os
import pprint
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.cli.gin import statements
from limba.cli.gin.resolve import MODEL, RUN, Node, Tree
from limba.cli.gin.statements import Source
from limba.config import InputError, ModelConfig, RunConfig, named
from limba.data import task_modules

HEADER = ("from __gin__ import dynamic_registration", "from limba import config")
WIDTH, INDENT = 80, 4
LINE = "# " + "=" * (WIDTH - 2)


class GinRun(NamedTuple):
    """A run as gin files describe it."""

    config: RunConfig
    text: str  # what MODEL_DIR/config.gin will hold
    names: Mapping[str, str]  # canonical field -> the macro that sets it: "DataConfig.batch_size" -> "BATCH_SIZE"
    evaluation: tuple[str, ...] = ()  # arguments of `limba evaluate`, for a configuration that only evaluates


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
    scopes, scope, owner = {}, "", RUN
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
        scope, owner = (scope if node is None else node.scope), name
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
    values = [f"{name}={value!r}" for name, value in overrides.items()]
    return _checked_run(statements.read([os.fspath(file)], values, flag=""), flag="").config


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
    """Returns the run that the statements describe; imports no task module."""
    tree = Tree(source, RUN, flag)
    tree.check()
    written_as = written_as or {}
    modules = tuple(dict.fromkeys(module for module, _ in source.modules))
    names = {name.removeprefix("config."): wrote for name, wrote in written_as.items() if "." in name}
    names |= {field: written_as.get(name, name) for field, name in tree.names().items()}
    with named(names):
        config: RunConfig = tree.top.make()
        data = dataclasses.replace(config.data, task_modules=modules)
        return GinRun(dataclasses.replace(config, data=data), text_of(tree, modules), names)


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
