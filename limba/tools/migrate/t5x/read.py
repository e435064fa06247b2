"""The statements of T5X's gin files, in their order, each with its place; T5X's own files come from `tables`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from limba.cli.gin.statements import REQUIRED, Macro, Reference, Size, Source, leaves, read_override, read_text
from limba.config import InputError, did_you_mean, foreign
from limba.tools.migrate.t5x import tables

_MARKS = re.compile(r"""^[ \t]*(include\s+['"]t5x/|(from|import)\s+t5x\b|import\s+__main__\b)""", re.MULTILINE)
_OURS = re.compile(r"^[ \t]*from\s+limba\s+import\s+config\b", re.MULTILINE)
OLD_OWNERS = {"ModelBasedPjitPartitioner": "PjitPartitioner"}  # names of 2021 -> T5X's later ones
_INCLUDE = re.compile(r"""^[ \t]*include\s+['"]([^'"]+)['"]""", re.MULTILINE)


@dataclass(frozen=True)
class Line:
    """One binding of theirs. `owner` is the class's own name, without its module; for a macro `field` is empty."""

    scope: str
    owner: str
    field: str
    value: object
    place: str  # file and line, or flag
    written: str  # as in the file: network.T5Config.emb_dim
    network: str  # which of T5X's networks `network` is in this file: t5, scalable_t5, decoder_only
    is_table: bool = False  # of T5X's own file, not the user's


@dataclass
class Theirs:
    """All lines that files and flags of T5X's dialect give; of two for one name the later one counts."""

    lines: list[Line] = field(default_factory=list)
    modules: list[tuple[str, str]] = field(default_factory=list)  # (dotted name, place)
    imports: list[tuple[str, str]] = field(default_factory=list)  # those of T5X and its libraries
    size: Size = field(default_factory=Size)


def is_t5x(files: Sequence[str], search_paths: Sequence[Path] = ()) -> bool:
    """Returns whether these gin files are T5X's dialect: one is T5X's own, or names its modules, or includes such."""
    folders, names = [*search_paths, Path.cwd()], list(files)
    for name in names:  # which grows by what they include
        path = _path_of(name, folders)
        if path is None:
            if _own_name(name) in tables.PATHS:
                return True
            continue
        try:
            text = foreign.text_of(path)
        except (OSError, UnicodeDecodeError, InputError):
            continue
        if not _OURS.search(text):
            if _MARKS.search(text):
                return True
            names += [each for each in dict.fromkeys(_INCLUDE.findall(text)) if each not in names]
    return False


def read(files: Sequence[str], overrides: Sequence[str], search_paths: Sequence[Path]) -> Theirs:
    """Returns the lines of the files, with those that they include, and then of the `NAME=VALUE` overrides.

    A file is looked for in `search_paths` and the current directory; T5X's own files need not be there. Raises
    InputError for one that is not found or not gin.
    """
    theirs = Theirs()
    folders = [*search_paths, Path.cwd()]
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
    paths = [Path(name)] if os.path.isabs(name) else [folder / name for folder in folders]
    return next((path for path in paths if path.is_file()), None)


def _read_file(theirs: Theirs, name: str, folders: Sequence[Path], asked_by: str, above: tuple[str, ...]) -> None:
    if name in above:
        raise InputError(f"{asked_by} includes {name}, which includes itself; remove one of the includes.")
    path = _path_of(name, folders)
    if path is None:
        _read_table(theirs, name, folders, asked_by, above)
        return
    try:
        text = foreign.text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The gin file {name} cannot be read: {error}.") from None
    found = re.findall(r"from\s+t5x\.examples\.(\w+)\s+import\s+network", text)
    network, source = found[-1] if found else "", Source(size=theirs.size)
    is_table = _own_name(name) in tables.PATHS

    def include(filename: str, asked_by: str) -> None:
        _add(theirs, source, network, is_table)
        _read_file(theirs, filename, folders, asked_by, (*above, name))

    read_text(source, text, name, include)
    _add(theirs, source, network, is_table)


def _read_table(theirs: Theirs, name: str, folders: Sequence[Path], asked_by: str, above: tuple[str, ...]) -> None:
    own = _own_name(name)
    table = tables.include_file(own)
    if table is None:
        subject = f"{asked_by} includes {name}, which" if asked_by else f"The gin file {name}"
        places = ", ".join(dict.fromkeys(str(folder) for folder in folders))
        near = did_you_mean(own, tables.PATHS).rstrip(".?")
        raise InputError(
            f"{subject} does not exist in {places}, and is not one of the files of T5X that Limba knows{near};"
            f" give its folder with --gin_search_paths ({tables.PAGE} lists those)."
        )
    first, values = table
    for each in first:
        _read_file(theirs, each, folders, own, (*above, own))
    source = Source(size=theirs.size)
    read_text(source, "".join(f"{key} = {value}\n" for key, value in values.items()), own)
    bindings = [dataclasses.replace(each, place=own) for each in source.bindings]  # a table has no lines
    _add(theirs, Source(bindings), tables.network_of(own) or "", is_table=True)


def _add(theirs: Theirs, source: Source, network: str, is_table: bool) -> None:
    for binding in source.bindings:
        parts = binding.owner.split(".")
        if parts[-1] == "loss_fn" and len(parts) > 1:  # in 2021 the loss's fields were those of the model's method
            parts.pop()
        owner = ".".join(parts[-2:]) if parts[-1] == "predict_batch_with_aux" else parts[-1]
        owner = OLD_OWNERS.get(owner, owner)
        theirs.lines.append(
            Line(
                binding.scope,
                owner if binding.field else binding.owner,
                binding.field,
                binding.value,
                binding.place,
                binding.name,
                network,
                is_table,
            )
        )
    for module, place in source.modules:
        libraries = ("t5x", "__main__", "seqio", "optax", "jax", "flax", "tensorflow", "gin", "functools")
        is_library = module.partition(".")[0] in libraries
        (theirs.imports if is_library else theirs.modules).append((module, place))
    source.bindings.clear()  # in place: the reader appends to it
    source.modules.clear()


SCRIPTS = {"train": "gin/runs/pretrain.gin", "evaluate": "gin/runs/evaluate.gin", "infer": "gin/runs/infer.gin"}
HEADER = ("from __gin__ import dynamic_registration", "", "from limba import config")


class Found(NamedTuple):
    """A value of theirs with the line that sets it; `line` is None for a default of T5X's class."""

    value: Any
    line: Line | None
    name: str  # what sets it: TRAIN_STEPS, network.T5Config.emb_dim

    @property
    def origin(self) -> str:
        place = self.line.place if self.line else "T5X's default"
        return f"{place}: {self.name}"


class Settings:
    """Reads values; `unread` are the user's lines that nothing has read. Macros of `may_lack` may have no value."""

    def __init__(self, theirs: Theirs, may_lack: Collection[str] = ()):
        self.theirs, self._may_lack = theirs, may_lack
        self.macros = {line.owner: line for line in theirs.lines if not line.field}
        self.fields = {(line.scope, line.owner, line.field): line for line in theirs.lines if line.field}
        self.asked: set[str] = set()
        self._read: set[str] = set()

    def has(self, owner: str) -> bool:
        """Returns whether any field of this class is set."""
        return any(key[1] == owner for key in self.fields)

    def find(self, owner: str, name: str, scope: str = "", default: object = None) -> Found:
        """Returns the value of a field in a scope, of the outer one if that has none, or the default."""
        self.asked.add(f"{owner}.{name}")
        line = self.fields.get((scope, owner, name)) or self.fields.get(("", owner, name))
        for each in {scope, ""}:
            if (each, owner, name) in self.fields:
                self._read.add(self.fields[each, owner, name].written)
        if line is None:
            return Found(default, None, f"{owner}.{name}")
        return self._resolved(line.value, Found(line.value, line, line.written), ())

    def macro(self, name: str) -> Found | None:
        """Returns the value of a macro, None if it is not set."""
        line = self.macros.get(name)
        return None if line is None else self._resolved(Macro(name), Found(None, line, name), ())

    def _resolved(self, value: object, found: Found, inside: tuple[str, ...]) -> Found:
        if isinstance(value, Macro):
            return self._of_macro(value, found, inside)
        part = lambda item: self._resolved(item, found, inside).value
        if isinstance(value, Mapping):
            return found._replace(value={part(key): part(item) for key, item in value.items()})
        return found._replace(value=type(value)(map(part, value)) if isinstance(value, list | tuple) else value)

    def _of_macro(self, macro: Macro, found: Found, inside: tuple[str, ...]) -> Found:
        name = macro.name
        if macro == REQUIRED and found.name in self._may_lack:
            return found._replace(value=REQUIRED)
        if macro == REQUIRED:
            raise InputError(f"{found.name} is not set, and {_place(found)} needs it; add --gin.{found.name}=VALUE.")
        if name in inside:
            raise InputError(f"{_place(found)} defines {name} by itself; give it a value instead.")
        self._read.add(name)
        if name not in self.macros:
            near = did_you_mean(name, self.macros).rstrip(".?")
            raise InputError(f"{_place(found)} uses %{name}, which nothing sets{near}; add --gin.{name}=VALUE.")
        line = self.macros[name]
        return self._resolved(line.value, Found(line.value, line, name), (*inside, name))

    def referred(self) -> set[str]:
        """Returns the classes and functions that a value refers to."""
        counting = [*self.macros.values(), *self.fields.values()]
        return {class_of(leaf) for line in counting for leaf in leaves(line.value) if isinstance(leaf, Reference)}

    def unread(self) -> list[Line]:
        """Returns the user's lines, each that counts once, that nothing has read."""
        counting = [*self.macros.values(), *self.fields.values()]
        used = {leaf.name for line in counting for leaf in leaves(line.value) if isinstance(leaf, Macro)}
        return [
            line
            for line in counting
            if not line.is_table and line.written not in self._read and not (not line.field and line.owner in used)
        ]


def _place(found: Found) -> str:
    return found.line.place if found.line else found.name


def class_of(value: object) -> str:
    """Returns the class or function that a reference names, without its module; "" for another value.

    >>> class_of(Reference("", "seqio.ByteVocabulary", True))
    'ByteVocabulary'
    """
    return value.name.rpartition(".")[2] if isinstance(value, Reference) else ""


def refuse(found: Found, why: str) -> InputError:
    """Returns the error for a value that Limba cannot honour: the line, the name, why, and what to do."""
    return InputError(f"{_place(found)} sets {found.name} to {found.value!r}: {why} ({tables.PAGE}).")


class Row(NamedTuple):
    """A line of the table: same, differs or dropped; their name and value, our name, and why."""

    kind: str
    theirs: str
    ours: str
    why: str


class Translation:
    """Collects gin bindings, each with the line of theirs that it comes from."""

    def __init__(self, settings: Settings, skeleton: str):
        self.settings, self.skeleton = settings, skeleton
        self.bindings: dict[str, tuple[Any, str]] = {}  # our name -> (value, origin)
        self.names: dict[str, str] = {}  # our name -> theirs, for messages
        self.rows: list[Row] = []
        self.modules: list[str] = []
        self.unused: list[str] = []  # the user's names that nothing in this run uses

    def set(self, name: str, found: Found, value: object = None, differs: str = "") -> None:
        """Binds our name to a value of theirs, or to `value`, what it means here; `differs` says how that differs."""
        value = found.value if value is None else value
        self.bindings[name] = (value, found.origin)
        self.names[name] = found.name
        self.rows.append(Row("differs" if differs else "same", f"{found.name} = {found.value!r}", f"{name}", differs))

    def fix(self, name: str, value: object, origin: str) -> None:
        """Binds our name to a value that follows from the whole of theirs."""
        self.bindings[name] = (value, origin)

    def differs(self, found: Found, ours: str, why: str) -> None:
        self.rows.append(Row("differs", f"{found.name} = {found.value!r}", ours, why))

    def dropped(self, found: Found, why: str) -> None:
        """Notes a setting without a counterpart; one that T5X's own files give, or nobody, is not worth a line."""
        if found.line is not None and not found.line.is_table and not isinstance(found.value, Reference):
            self.rows.append(Row("dropped", f"{found.name} = {found.value!r}", "", why))

    def copy(self, owner: str, fields: Mapping[str, str], defaults: Mapping[str, object], scope: str = "") -> None:
        """Copies fields that mean the same, under our names; None is left out."""
        for theirs, ours in fields.items():
            found = self.settings.find(owner, theirs, scope, defaults.get(theirs))
            if found.value is not None:
                self.set(ours, found)

    def drop(self, owner: str, fields: Mapping[str, str], scope: str = "") -> None:
        """Reads fields that mean nothing here, with the reason of each."""
        for name, why in fields.items():
            self.dropped(self.settings.find(owner, name, scope), why)

    def must_be(self, owner: str, name: str, allowed: Sequence[object], why: str) -> None:
        """Raises InputError for a field with a value that Limba cannot honour."""
        found = self.settings.find(owner, name, default=allowed[0])
        if found.value not in allowed:
            raise refuse(found, why)

    def text(self, title: str) -> str:
        """Returns our gin file, every line with its origin as a comment."""
        lines = [f"# {title}", *HEADER, *map(_import, self.modules), "", f"include '{self.skeleton}'", ""]
        lines += [f"{name} = {value!r}  # {origin}" for name, (value, origin) in self.bindings.items()]
        return "\n".join(lines) + "\n"

    def summary(self) -> str:
        """Returns a line with the numbers of the rows."""
        count = {kind: len({row for row in self.rows if row.kind == kind}) for kind in ("same", "differs", "dropped")}
        unused = f" (nothing uses {', '.join(self.unused)})" if self.unused else ""
        return (
            f"{count['same']} settings are the same, {count['differs']} differ, {count['dropped']} are dropped{unused}"
        )

    def table(self) -> str:
        """Returns the table of what is the same, what differs and why, and what is dropped, as gin comments."""
        lines = ["# What became of T5X's settings:"]
        for kind in ("same", "differs", "dropped"):
            rows = [row for row in self.rows if row.kind == kind]
            lines += (
                [f"#   {kind}: {len(rows)}"] if kind == "same" else [f"#   {kind}:" if rows else f"#   {kind}: none"]
            )
            if kind != "same":
                lines += [f"#     {row.theirs} -> {row.ours or 'nothing'}: {row.why}" for row in dict.fromkeys(rows)]
        lines += ["#   the same:", *(f"#     {row.theirs} -> {row.ours}" for row in self.rows if row.kind == "same")]
        return "\n".join(lines) + "\n"


def _import(module: str) -> str:
    package, _, name = module.rpartition(".")
    return f"from {package} import {name}" if package else f"import {name}"
