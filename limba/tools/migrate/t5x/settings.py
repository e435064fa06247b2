"""T5X's values by class and field, as gin resolves them, and a record of which of them a translation has read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from limba.api import did_you_mean
from limba.cli.gin.statements import REQUIRED, Macro, Reference, leaves
from limba.config import InputError
from limba.tools.migrate.t5x import tables
from limba.tools.migrate.t5x.read import Line, Theirs


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

    def find(self, owner: str, name: str, scope: str = "", default: Any = None) -> Found:
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

    def _resolved(self, value: Any, found: Found, inside: tuple[str, ...]) -> Found:
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


def class_of(value: Any) -> str:
    """Returns the class or function that a reference names, without its module; "" for another value.

    >>> class_of(Reference("", "seqio.ByteVocabulary", True))
    'ByteVocabulary'
    """
    return value.name.rpartition(".")[2] if isinstance(value, Reference) else ""


def refuse(found: Found, why: str) -> InputError:
    """Returns the error for a value that Limba cannot honour: the line, the name, why, and what to do."""
    return InputError(f"{_place(found)} sets {found.name} to {found.value!r}: {why} ({tables.PAGE}).")
