"""What T5X's settings become: our gin bindings, each with its origin, and a table of what became of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from limba.cli.gin.statements import Reference
from limba.tools.migrate.t5x.settings import Setting, Settings, owner_of, refuse, todays_class_of

SCRIPTS = {"train": "gin/runs/pretrain.gin", "evaluate": "gin/runs/evaluate.gin", "infer": "gin/runs/infer.gin"}
HEADER = ("from __gin__ import dynamic_registration", "", "from limba import config")


class Row(NamedTuple):
    """A line of the table: same, differs or dropped; their name and value, our name, and why."""

    kind: str
    theirs: str
    ours: str
    why: str


class Translation:
    """Collects gin bindings, each with the line of theirs that it comes from."""

    def __init__(self, settings: Settings, script: str):
        self.settings = settings
        self.script = script
        self.skeleton = SCRIPTS[script]
        self.bindings: dict[str, tuple[Any, str]] = {}  # our name -> (value, origin)
        self.names: dict[str, str] = {}  # our name -> theirs, for messages
        self.rows: list[Row] = []
        self.modules: list[str] = []
        self.unused: list[str] = []  # the user's names that nothing in this run uses

    def set(self, name: str, setting: Setting, value: object = None, differs: str = "") -> None:
        """Binds our name to a value of theirs, or to `value`, what it means here; `differs` says how that differs."""
        if value is None:
            value = setting.value
        self.bindings[name] = (value, setting.origin)
        self.names[name] = setting.name
        kind = "differs" if differs else "same"
        self.rows.append(Row(kind, f"{setting.name} = {setting.value!r}", name, differs))

    def fix(self, name: str, value: object, origin: str) -> None:
        """Binds our name to a value that follows from the whole of theirs."""
        self.bindings[name] = (value, origin)

    def differs(self, setting: Setting, ours: str, why: str) -> None:
        self.rows.append(Row("differs", f"{setting.name} = {setting.value!r}", ours, why))

    def dropped(self, setting: Setting, why: str) -> None:
        """Notes a setting without a counterpart; one that T5X's own files give, or nobody, is not worth a line."""
        if setting.line is not None and not setting.line.is_table and not isinstance(setting.value, Reference):
            self.rows.append(Row("dropped", f"{setting.name} = {setting.value!r}", "", why))

    def owner(self, parent: str, name: str, selector: str, otherwise: str = "") -> str:
        """Returns a class as `Settings.find` takes it, in the scope of the reference that a field of `parent` holds.

        `selector` is the class as T5X's files write it, "utils.DatasetConfig". Raises InputError for a reference to
        another one, whose numbers T5X's class does not have.
        """
        setting = self.settings.find(parent, name)
        kind = selector.rpartition(".")[2]
        if isinstance(setting.value, Reference) and todays_class_of(setting.value) != kind:
            raise refuse(setting, f"Limba has T5X's {selector}; use it")
        return owner_of(setting.value, kind, otherwise)

    def copy(self, owner: str, fields: Mapping[str, str], defaults: Mapping[str, object]) -> None:
        """Copies fields that mean the same, under our names; None is left out."""
        for theirs, ours in fields.items():
            setting = self.settings.find(owner, theirs, defaults.get(theirs))
            if setting.value is not None:
                self.set(ours, setting)

    def drop(self, owner: str, fields: Mapping[str, str]) -> None:
        """Reads fields that mean nothing here, with the reason of each."""
        for name, why in fields.items():
            self.dropped(self.settings.find(owner, name), why)

    def must_be(self, owner: str, name: str, allowed: Sequence[object], why: str) -> None:
        """Raises InputError for a field with a value that Limba cannot honour."""
        setting = self.settings.find(owner, name, default=allowed[0])
        if setting.value not in allowed:
            raise refuse(setting, why)

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
        same = [row for row in self.rows if row.kind == "same"]
        lines = ["# What became of T5X's settings:", f"#   same: {len(same)}"]
        for kind in ("differs", "dropped"):
            rows = dict.fromkeys(row for row in self.rows if row.kind == kind)  # each once, in their order
            lines.append(f"#   {kind}:" if rows else f"#   {kind}: none")
            lines += [f"#     {row.theirs} -> {row.ours or 'nothing'}: {row.why}" for row in rows]
        # The longest list last: nobody has to read it.
        lines.append("#   the same:")
        lines += [f"#     {row.theirs} -> {row.ours}" for row in same]
        return "\n".join(lines) + "\n"


def _import(module: str) -> str:
    package, _, name = module.rpartition(".")
    return f"from {package} import {name}" if package else f"import {name}"
