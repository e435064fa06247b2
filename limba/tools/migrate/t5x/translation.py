"""T5X's values by class and field, and what a translation makes of them: our gin lines, and a table of what differs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from limba.cli.gin.statements import REQUIRED, Macro, Reference, leaves
from limba.config import InputError, did_you_mean
from limba.tools.migrate.t5x import tables
from limba.tools.migrate.t5x.read import Line, Theirs

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

    def must_be(self, owner: str, name: str, allowed: Sequence[object], why: str, scope: str = "") -> None:
        """Raises InputError for a field with a value that Limba cannot honour."""
        found = self.settings.find(owner, name, scope, allowed[0])
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
