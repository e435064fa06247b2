"""Reads gin files as one frozen RunConfig or ModelConfig.

First all names and types are checked. Then the configuration is built, and checks itself. Only then are the modules
of tasks/ imported. So a mistake costs milliseconds, not the imports of a run.

A gin file runs code: it imports the modules that it names. Read one from somebody else only if you would run their
scripts.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from limba.cli.gin import continued, statements
from limba.cli.gin.continued import Continued
from limba.cli.gin.statements import REQUIRED, Binding, Reference, Source
from limba.cli.gin.text import text_of
from limba.cli.gin.tree import MODEL, OPTIMIZER, RUN, SCHEDULE, Node, Tree
from limba.config import InputError, ModelConfig, RunConfig, named
from limba.data import task_modules

# The objects on the way from a run to its schedule: class, and the field of the object before it.
WAY_TO_SCHEDULE = ((OPTIMIZER, "optimizer"), (SCHEDULE, "schedule"))
OF_A_BRANCH = "a branch"  # as errors name the location of a field that no file sets


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

    Files, included files and task modules are looked for in the current directory, in `search_paths` (files only) and
    in the repository. Imports the task modules that the files import, which takes seconds and runs their code.
    `written_as` maps gin names to what the user wrote instead. With `allowed` only these modules, Limba's and tasks/'s
    are imported, and any other raises UntrustedModuleError. Raises InputError, one sentence in the user's names, for
    invalid input.

    >>> read_run(["gin/demo.gin"], ["MODEL_DIR='runs/a'", "BATCH_SIZE=16"]).config.data.batch_size
    16
    """
    source = statements.read(files, overrides, search_paths)
    _check_place(source)
    return _checked_run(source, " and ".join(files), allowed, written_as)


def read_translated(
    text: str,
    location: str,
    overrides: Sequence[str] = (),
    written_as: Mapping[str, str] | None = None,
    allowed: Sequence[str] | None = None,
    search_paths: Sequence[Path] = (),
) -> GinRun:
    """Returns the run of a gin text, which a command has made from files of another dialect; as `read_run`.

    `location` names these files in errors.
    """
    source = Source()
    statements.read_with_includes(source, text, location, search_paths)
    for override in overrides:
        statements.read_override(source, override, "--gin.")
    return _checked_run(source, location, allowed, written_as)


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
    statements.read_text(source, text, file, is_own=True)
    _set_fields(source, before or {})
    for override in overrides:
        statements.read_override(source, override, "--gin.")
    _set_fields(source, after or {})
    directory = os.path.dirname(file)
    _check_imports(source, file, allowed, directory)
    for module, location in source.modules:
        task_modules.check(module, f"{location} imports")
    # This looks at the imports a second time: only now are the folders of tasks/ known.
    return _checked_run(source, file, allowed, directory=directory)


def text_elsewhere(text: str, file: str, model_dir: str) -> str:
    """Returns the text of a run's config.gin, `file`, changed so that the run is in `model_dir`; imports nothing."""
    source = Source()
    statements.read_text(source, text, file, is_own=True)
    # A directory that is a macro stays one, so that --gin.MODEL_DIR still replaces it.
    name = run_of(source).names.get("RunConfig.model_dir", f"{RUN}.model_dir")
    statements.read_override(source, f"{name}={model_dir!r}", "--gin.")
    return run_of(source).text


def _set_fields(source: Source, values: Mapping[str, object]) -> None:
    """Adds bindings of fields of the run and of its schedule, in the scopes in which the run's objects are made."""
    if not values:
        return
    scopes = _scopes_to_schedule(source)
    for name, value in values.items():
        owner, _, field = f"config.{name}".rpartition(".")
        source.bindings.append(Binding(scopes[owner], owner, field, value, OF_A_BRANCH, ""))


def _scopes_to_schedule(source: Source) -> dict[str, str]:
    """Returns the class -> the scope of the run, its optimizer and its schedule.

    An object that has its defaults only is not named by the statements; a binding is added that names it, so that its
    fields can be set.
    """
    node: Node | None = Tree(source, RUN).top
    owner = RUN
    scope = ""
    scopes = {RUN: scope}
    for name, field in WAY_TO_SCHEDULE:
        value = None if node is None else node.values.get(field)
        if isinstance(value, Node):
            node = value
            scope = node.scope
        else:
            node = None
            source.bindings.append(Binding(scope, owner, field, Reference(scope, name, True), OF_A_BRANCH, ""))
        owner = name
        scopes[name] = scope
    return scopes


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
    values = [f"{name}={_in_gin(name, value)}" for name, value in overrides.items()]
    return _checked_run(statements.read([os.fspath(file)], values, flag=""), flag="")


def _in_gin(name: str, value: object) -> str:
    """Returns a Python value as gin writes it; InputError for one that gin cannot hold, such as a set or nan."""
    text = repr(_plain(value))
    source = Source()
    statements.read_override(source, f"VALUE={text}", "")
    if repr(source.bindings[0].value) != text:
        raise InputError(
            f"{name} is {value!r}; give a number, a text, a path, True, False or None, or a list, tuple or dictionary"
            " of these."
        )
    return text


def _plain(value: object) -> Any:
    """Returns a value with paths as text and with Python's own types, also those inside of it."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if getattr(value, "shape", None) == ():  # a scalar of NumPy or JAX
        return value.item()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(value, str):  # also of a class of one's own, such as a StrEnum
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


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


def _check_imports(source: Source, location: str, allowed: Sequence[str], directory: str | None = None) -> None:
    from limba.inference.source import check_imports

    check_imports([module for module, _ in source.modules], location, allowed, directory)


def _check_place(source: Source) -> None:
    """Raises InputError if a run's own config.gin decides MODEL_DIR, and lies elsewhere: the run there would train.

    It was moved or copied with its directory, or names that by a path from another folder.
    """
    binding = continued.last_binding(source, "MODEL_DIR", f"{RUN}.model_dir")
    if binding is None or not binding.is_own or not isinstance(binding.value, str):
        return
    file = binding.location.rpartition(" line ")[0]
    folder = source.runs.get(file)
    if folder is None or not (folder / "checkpoints").is_dir():  # a copy of the file alone
        return
    named_folder = Path(os.path.expanduser(binding.value)).resolve()
    if "://" in binding.value or not folder.is_relative_to(named_folder):  # a run's best step lies inside of it
        raise InputError(
            f"{file} makes the run {binding.value}, and lies in {folder}: that was moved or copied, or the path is one"
            f" from another folder. For the run that is here give MODEL_DIR={folder}, or else the directory of the run"
            " that you mean."
        )


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
    for module, location in source.modules:
        task_modules.check(module, f"{location} imports")
    run = run_of(source, flag, written_as)
    task_modules.import_all(run.config.data.task_modules)
    return run


def run_of(source: Source, flag: str = "--gin.", written_as: Mapping[str, str] | None = None) -> GinRun:
    """Returns the run that the statements describe; imports no task modules, except a continued run's."""
    continued_from = continued.complete(source)  # before all else: it adds the bindings that the model decides
    tree = Tree(source, RUN, flag)
    tree.check()
    modules = tuple(dict.fromkeys(module for module, _ in source.modules))
    written_as = written_as or {}
    # Fields that a user of another dialect has set directly, and fields that a macro sets.
    names = {name.removeprefix("config."): wrote for name, wrote in written_as.items() if "." in name}
    names |= {field: written_as.get(name, name) for field, name in tree.names().items()}
    with named(names):
        data_node = tree.top.values.get("data")
        if continued_from is not None and isinstance(data_node, Node):
            continued_from.check_objective(data_node.values.get("objective"))
        config: RunConfig = tree.top.make()
        tree.check_overrides_are_read(config)  # of values that are valid
        data = dataclasses.replace(config.data, task_modules=modules)
        return GinRun(dataclasses.replace(config, data=data), text_of(tree, modules), names, continued=continued_from)


def hidden_macros(source: Source) -> dict[str, Binding]:
    """Returns each macro that changes nothing -> the binding that counts instead; {} where the files have a mistake."""
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
    if macros.get("DROPOUT_RATE") == REQUIRED:  # gin/models/ leaves it to the run
        source.bindings.append(Binding("", "DROPOUT_RATE", "", 0.0, "", ""))
    tree = Tree(source, MODEL)
    tree.check(is_whole=False)
    with named(tree.names()):
        return tree.top.make()
