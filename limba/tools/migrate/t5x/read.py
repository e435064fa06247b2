"""The statements of T5X's gin files, in order, each with its file and line; T5X's own files come from `tables`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from limba.cli.gin.statements import Size, Source, read_override, read_text
from limba.config import InputError, did_you_mean, untrusted_files
from limba.tools.migrate.t5x import tables

_MARKS = re.compile(r"""^[ \t]*(include\s+['"]t5x/|(from|import)\s+t5x\b|import\s+__main__\b)""", re.MULTILINE)
_OURS = re.compile(r"^[ \t]*from\s+limba\s+import\s+config\b", re.MULTILINE)
OLD_OWNERS = {"ModelBasedPjitPartitioner": "PjitPartitioner"}  # names of 2021 -> T5X's later ones
# Packages whose imports in a gin file of T5X are not task modules of the user.
LIBRARIES = ("t5x", "__main__", "seqio", "optax", "jax", "flax", "tensorflow", "gin", "functools")
_NETWORK = re.compile(r"t5x\.examples\.(\w+)\.network")
_INCLUDE = re.compile(r"""^[ \t]*include\s+['"]([^'"]+)['"]""", re.MULTILINE)


@dataclass(frozen=True)
class Line:
    """One binding of theirs. `owner` is the class's own name, without its module; for a macro `field` is empty."""

    scope: str
    owner: str
    field: str
    value: object
    where: str  # file and line, or flag
    written: str  # as in the file: network.T5Config.emb_dim
    network: str  # which of T5X's networks `network` is in this file: t5, scalable_t5, decoder_only
    is_table: bool = False  # of T5X's own file, not the user's


@dataclass
class Theirs:
    """All lines that files and flags of T5X's dialect give; of two for one name the later one counts."""

    lines: list[Line] = field(default_factory=list)
    modules: list[tuple[str, str]] = field(default_factory=list)  # (dotted name, where)
    imports: list[tuple[str, str]] = field(default_factory=list)  # of T5X and its libraries
    size: Size = field(default_factory=Size)


def is_t5x(files: Sequence[str], search_paths: Sequence[Path] = ()) -> bool:
    """Returns whether these gin files are T5X's dialect: one is T5X's own, or names or includes what is T5X's."""
    folders = [Path.cwd(), *search_paths]
    names = list(files)
    for name in names:  # which grows by what they include
        path = _path_of(name, folders)
        if path is None:
            if _own_name(name) in tables.PATHS:
                return True
            continue
        try:
            text = untrusted_files.text_of(path)
        except (OSError, UnicodeDecodeError, InputError):
            continue
        if _OURS.search(text):
            continue
        if _MARKS.search(text):
            return True
        for included in _INCLUDE.findall(text):
            if included not in names:
                names.append(included)
    return False


def read(files: Sequence[str], overrides: Sequence[str], search_paths: Sequence[Path]) -> Theirs:
    """Returns the lines of the files, with those that they include, and then of the `NAME=VALUE` overrides.

    A file is looked for in the current directory, then in `search_paths`; T5X's own files need not be there. Raises
    InputError for one that is not found or not gin.
    """
    theirs = Theirs()
    folders = [Path.cwd(), *search_paths]
    for name in files:
        _read_file(theirs, os.path.expanduser(name), folders, "", ())
    source = Source()
    for override in overrides:
        read_override(source, override, "--gin.")
    _add(theirs, source, "t5", is_table=False)
    return theirs


def _own_name(name: str) -> str:
    """Returns the path of a file inside T5X's repository: /home/me/t5x/t5x/configs/runs/eval.gin names one too."""
    index = name.rfind("t5x/configs/") if "t5x/configs/" in name else name.rfind("t5x/examples/")
    return name[index:] if index > 0 and name[index - 1] == "/" else name


def _path_of(name: str, folders: Sequence[Path]) -> Path | None:
    """Returns the file of this name in the first folder that has one; None if none has."""
    candidates = [Path(name)] if os.path.isabs(name) else [folder / name for folder in folders]
    return next((path for path in candidates if path.is_file()), None)


def _read_file(theirs: Theirs, name: str, folders: Sequence[Path], asked_by: str, above: tuple[str, ...]) -> None:
    if name in above:
        raise InputError(f"{asked_by} includes {name}, which includes itself; remove one of the includes.")
    path = _path_of(name, folders)
    if path is None:
        _read_table(theirs, name, folders, asked_by, above)
        return
    try:
        text = untrusted_files.text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The gin file {name} cannot be read: {error}.") from None
    network = _network_in(text, name)
    source = Source(size=theirs.size)
    is_table = _own_name(name) in tables.PATHS

    def include(filename: str, asked_by: str) -> None:
        _add(theirs, source, network, is_table)
        _read_file(theirs, filename, folders, asked_by, (*above, name))

    read_text(source, text, name, include)
    _add(theirs, source, network, is_table)


def _network_in(text: str, name: str) -> str:
    """Returns which of T5X's networks a gin file imports last: t5 of t5x.examples.t5.network; "" for none."""
    source = Source()
    read_text(source, text, name, include=lambda filename, asked_by: None)
    networks = [_NETWORK.fullmatch(module) for module, _ in source.modules]
    return next((network[1] for network in reversed(networks) if network), "")


def _read_table(theirs: Theirs, name: str, folders: Sequence[Path], asked_by: str, above: tuple[str, ...]) -> None:
    own_name = _own_name(name)
    table = tables.include_file(own_name)
    if table is None:
        subject = f"{asked_by} includes {name}, which" if asked_by else f"The gin file {name}"
        listed = ", ".join(dict.fromkeys(str(folder) for folder in folders))
        near = did_you_mean(own_name, tables.PATHS).rstrip(".?")
        raise InputError(
            f"{subject} does not exist in {listed}, and is not one of the files of T5X that Limba knows{near};"
            f" give its folder with --gin_search_paths ({tables.PAGE} lists those)."
        )
    first, values = table
    for included in first:
        _read_file(theirs, included, folders, own_name, (*above, own_name))
    source = Source(size=theirs.size)
    read_text(source, "".join(f"{key} = {value}\n" for key, value in values.items()), own_name)
    bindings = [dataclasses.replace(binding, location=own_name) for binding in source.bindings]  # a table has no lines
    _add(theirs, Source(bindings), tables.network_of(own_name) or "", is_table=True)


def _add(theirs: Theirs, source: Source, network: str, is_table: bool) -> None:
    for binding in source.bindings:
        parts = binding.owner.split(".")
        if parts[-1] == "loss_fn" and len(parts) > 1:  # in 2021 gin files bound the fields of Model.loss_fn
            parts.pop()
        owner = ".".join(parts[-2:]) if parts[-1] == "predict_batch_with_aux" else parts[-1]
        owner = OLD_OWNERS.get(owner, owner)
        theirs.lines.append(
            Line(
                binding.scope,
                owner if binding.field else binding.name,  # a macro's scope is part of its name
                binding.field,
                binding.value,
                binding.location,
                binding.name,
                network,
                is_table,
            )
        )
    for module, where in source.modules:
        if module.partition(".")[0] in LIBRARIES:
            theirs.imports.append((module, where))
        else:
            theirs.modules.append((module, where))
    source.bindings.clear()  # in place: the reader appends to it
    source.modules.clear()
