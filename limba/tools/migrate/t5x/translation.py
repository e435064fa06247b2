"""What a translation gathers: the lines of our gin file with their origins, and the table of what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from limba.cli.gin.statements import Reference
from limba.tools.migrate.t5x.settings import Found, Settings, refuse

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

    def __init__(self, settings: Settings, skeleton: str):
        self.settings, self.skeleton = settings, skeleton
        self.bindings: dict[str, tuple[Any, str]] = {}  # our name -> (value, origin)
        self.names: dict[str, str] = {}  # our name -> theirs, for messages
        self.rows: list[Row] = []
        self.modules: list[str] = []
        self.unused: list[str] = []  # the user's names that nothing in this run uses

    def set(self, name: str, found: Found, value: Any = None, differs: str = "") -> None:
        """Binds our name to a value of theirs, or to `value`, what it means here; `differs` says how that differs."""
        value = found.value if value is None else value
        self.bindings[name] = (value, found.origin)
        self.names[name] = found.name
        self.rows.append(Row("differs" if differs else "same", f"{found.name} = {found.value!r}", f"{name}", differs))

    def fix(self, name: str, value: Any, origin: str) -> None:
        """Binds our name to a value that follows from the whole of theirs."""
        self.bindings[name] = (value, origin)

    def differs(self, found: Found, ours: str, why: str) -> None:
        self.rows.append(Row("differs", f"{found.name} = {found.value!r}", ours, why))

    def dropped(self, found: Found, why: str) -> None:
        """Notes a setting without a counterpart; one that T5X's own files give, or nobody, is not worth a line."""
        if found.line is not None and not found.line.is_table and not isinstance(found.value, Reference):
            self.rows.append(Row("dropped", f"{found.name} = {found.value!r}", "", why))

    def copy(self, owner: str, fields: Mapping[str, str], defaults: Mapping[str, Any], scope: str = "") -> None:
        """Copies fields that mean the same, under our names; None is left out."""
        for theirs, ours in fields.items():
            found = self.settings.find(owner, theirs, scope, defaults.get(theirs))
            if found.value is not None:
                self.set(ours, found)

    def drop(self, owner: str, fields: Mapping[str, str], scope: str = "") -> None:
        """Reads fields that mean nothing here, with the reason of each."""
        for name, why in fields.items():
            self.dropped(self.settings.find(owner, name, scope), why)

    def must_be(self, owner: str, name: str, allowed: Sequence[Any], why: str, scope: str = "") -> None:
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
