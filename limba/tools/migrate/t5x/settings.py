"""The values of T5X's gin files: found by class, field and scope, with macros replaced, each with its origin."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from limba.cli.gin.statements import REQUIRED, Macro, Reference, leaves
from limba.config import InputError, did_you_mean
from limba.tools.migrate.t5x import tables
from limba.tools.migrate.t5x.read import OLD_OWNERS, Line, Theirs


@dataclass(frozen=True, repr=False)  # it is shown as it is written
class Target(Reference):
    """A reference of a value that was found, with the scope in which gin calls what it names."""

    within: str = ""


class Setting(NamedTuple):
    """A value of T5X's with the line that sets it; `line` is None for a default of T5X's class."""

    value: Any
    line: Line | None
    name: str  # what sets it: TRAIN_STEPS, network.T5Config.emb_dim

    @property
    def origin(self) -> str:
        where = self.line.where if self.line else "T5X's default"
        return f"{where}: {self.name}"


class Settings:
    """Reads values; `unread` are the user's lines that nothing has read. Macros of `may_lack` may have no value."""

    def __init__(self, theirs: Theirs, may_lack: Collection[str] = ()):
        self.theirs = theirs
        self._may_lack = may_lack
        self.macros = {line.owner: line for line in theirs.lines if not line.field}
        self.fields = {(line.scope, line.owner, line.field): line for line in theirs.lines if line.field}
        self.asked: set[str] = set()
        self._read: set[str] = set()
        self._called: set[tuple[str, str]] = set()  # (scope, class) of the references in values that were found

    def has(self, owner: str) -> bool:
        """Returns whether any field of this class is set."""
        return any(key[1] == owner for key in self.fields)

    def line(self, owner: str, name: str) -> Line | None:
        """Returns the line that sets a field of a class; `owner` as in `find`."""
        scope, _, kind = owner.rpartition("/")
        lines = [self.fields.get((around, kind, name)) for around in _scopes_around(scope)]
        return next((line for line in reversed(lines) if line is not None), None)

    def find(self, owner: str, name: str, default: object = None) -> Setting:
        """Returns the value of a field of a class, or the default.

        `owner` may have a scope before it, as in gin: of "a/b/Trainer" a field of a/b/Trainer counts, then of
        a/Trainer, then of Trainer.
        """
        scope, _, kind = owner.rpartition("/")
        self.asked.add(f"{kind}.{name}")
        line = self.line(owner, name)
        for around in _scopes_around(scope):
            if (around, kind, name) in self.fields:
                self._read.add(self.fields[around, kind, name].written)
        if line is None:
            return Setting(default, None, f"{kind}.{name}")
        return self._resolved(line.value, Setting(line.value, line, line.written), scope, ())

    def macro(self, name: str) -> Setting | None:
        """Returns the value of a macro, None if it is not set."""
        line = self.macros.get(name)
        return None if line is None else self._resolved(Macro(name), Setting(None, line, name), "", ())

    def _resolved(self, value: object, setting: Setting, scope: str, inside: tuple[str, ...]) -> Setting:
        """Returns the setting with the value that counts in a scope; `inside`: the macros on the way here."""
        if isinstance(value, Macro):
            return self._of_macro(value, setting, inside)
        if isinstance(value, Reference):
            # gin calls `@X()` in the scope around it, and an X that the program calls later in no scope.
            within = value.scope or (scope if value.called else "")
            target = Target(value.scope, value.name, value.called, within)
            self._called.add((within, todays_class_of(target)))
            return setting._replace(value=target)

        def resolved(item: object) -> Any:
            return self._resolved(item, setting, scope, inside).value

        if isinstance(value, Mapping):
            return setting._replace(value={resolved(key): resolved(item) for key, item in value.items()})
        if isinstance(value, list | tuple):
            return setting._replace(value=type(value)(map(resolved, value)))
        return setting._replace(value=value)

    def _of_macro(self, macro: Macro, setting: Setting, inside: tuple[str, ...]) -> Setting:
        name = macro.name
        if macro == REQUIRED and setting.name in self._may_lack:
            return setting._replace(value=REQUIRED)
        if macro == REQUIRED:
            raise InputError(
                f"{setting.name} is not set, and {_origin_of(setting)} needs it; add --gin.{setting.name}=VALUE."
            )
        if name in inside:
            raise InputError(f"{_origin_of(setting)} defines {name} by itself; give it a value instead.")
        self._read.add(name)
        if name not in self.macros:
            near = did_you_mean(name, self.macros).rstrip(".?")
            raise InputError(f"{_origin_of(setting)} uses %{name}, which nothing sets{near}; add --gin.{name}=VALUE.")
        line = self.macros[name]
        # As in gin, a macro's name is the scope of what its value calls.
        return self._resolved(line.value, Setting(line.value, line, name), name, (*inside, name))

    def reaches(self, line: Line) -> bool:
        """Returns whether a value that was found refers to the class of this line, in its scope or one inside it."""
        return any(line.owner == owner and line.scope in _scopes_around(scope) for scope, owner in self._called)

    def referred(self) -> set[str]:
        """Returns the classes and functions that a value refers to."""
        references = set()
        for line in self._lines:
            for leaf in leaves(line.value):
                if isinstance(leaf, Reference):
                    references.add(class_of(leaf))
        return references

    def unread(self) -> list[Line]:
        """Returns the user's lines that nothing has read; of two lines for one name only the one that counts."""
        used_macros = set()
        for line in self._lines:
            for leaf in leaves(line.value):
                if isinstance(leaf, Macro):
                    used_macros.add(leaf.name)
        unread = []
        for line in self._lines:
            is_used_macro = not line.field and line.owner in used_macros
            if not (line.is_table or line.written in self._read or is_used_macro):
                unread.append(line)
        return unread

    @property
    def _lines(self) -> list[Line]:
        """The lines that count: of two for one name the later one."""
        return [*self.macros.values(), *self.fields.values()]


def _scopes_around(scope: str) -> list[str]:
    """Returns the scopes whose bindings count in a scope, the outermost first.

    >>> _scopes_around("a/b")
    ['', 'a', 'a/b']
    """
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]


def owner_of(value: object, kind: str, otherwise: str = "") -> str:
    """Returns a class as `find` takes it, in the scope in which gin calls a reference to it.

    Where `value` is not a reference, `otherwise` is the scope.

    >>> owner_of(Target("a", "utils.DatasetConfig", True, "a"), "DatasetConfig"), owner_of(None, "Trainer")
    ('a/DatasetConfig', 'Trainer')
    """
    scope = value.within if isinstance(value, Target) else otherwise
    return f"{scope}/{kind}" if scope else kind


def _origin_of(setting: Setting) -> str:
    return setting.line.where if setting.line else setting.name


def class_of(value: object) -> str:
    """Returns the class or function that a reference names, without its module; "" for another value.

    >>> class_of(Reference("", "seqio.ByteVocabulary", True))
    'ByteVocabulary'
    """
    return value.name.rpartition(".")[2] if isinstance(value, Reference) else ""


def todays_class_of(value: object) -> str:
    """Returns `class_of` under the name that T5X has for it today.

    >>> todays_class_of(Reference("", "partitioning.ModelBasedPjitPartitioner", True))
    'PjitPartitioner'
    """
    kind = class_of(value)
    return OLD_OWNERS.get(kind, kind)


def refuse(setting: Setting, why: str) -> InputError:
    """Returns the error for a value that Limba cannot honour: the line, the name, why, and what to do."""
    if setting.line is None:
        return InputError(f"{setting.name} is {setting.value!r}, since nothing sets it: {why} ({tables.PAGE}).")
    return InputError(f"{_origin_of(setting)} sets {setting.name} to {setting.value!r}: {why} ({tables.PAGE}).")
