"""Gin files and command-line bindings as plain statements, each with its place; nothing is imported or built.

`read` gives both the statements, which `limba/cli/gin_checks.py` judges in milliseconds, and one flat text
of the same bindings, which gin itself parses afterwards. The task modules that gin files import take
seconds to load, so they are listed and not imported here.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright takes the folder gin/ for the package of that name, which Python does not)

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gin import config_parser

from limba.config import InputError

HEADER = "from __gin__ import dynamic_registration\nfrom limba import config\n"
NAMES_OF_GIN = "__gin__."


@dataclass(frozen=True)
class Reference:
    """@scope/config.Name, with () when it is to be called."""

    scope: str
    name: str
    called: bool

    def __repr__(self) -> str:
        return f"@{self.scope}{'/' if self.scope else ''}{self.name}{'()' if self.called else ''}"


@dataclass(frozen=True)
class Macro:
    """%NAME: the value that NAME has in the end."""

    name: str

    def __repr__(self) -> str:
        return f"%{self.name}"


REQUIRED = Macro("gin.REQUIRED")


@dataclass(frozen=True)
class Binding:
    """One `NAME = value` (then `field` is empty) or `scope/owner.field = value`."""

    scope: str
    owner: str
    field: str
    value: object
    place: str  # as a person would look for it
    comment: str  # what follows # on its line

    @property
    def name(self) -> str:
        return f"{self.scope}{'/' if self.scope else ''}{self.owner}{'.' if self.field else ''}{self.field}"


@dataclass
class Source:
    """All that was read, in the order in which it counts: a later binding replaces an earlier one."""

    bindings: list[Binding] = field(default_factory=list)
    modules: list[tuple[str, str]] = field(default_factory=list)  # (dotted name, place) of imported task modules
    text: str = HEADER  # the same bindings in one piece, without includes and imports


class _Delegate(config_parser.ParserDelegate):
    """Keeps references and macros as names."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        scope, _, name = scoped_configurable_name.rpartition("/")
        return Reference(scope, name, evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def _statements(text: str, place: str) -> Iterator[config_parser.BindingStatement]:
    try:
        yield from config_parser.ConfigParser(io.StringIO(text), _Delegate())
    except (SyntaxError, tokenize.TokenError) as error:
        reason = str(error.args[0]).splitlines()[0].rstrip(".")
        line = getattr(error, "lineno", None)
        where = f"{place} line {line}" if line and "\n" in text else place
        raise InputError(f"{where} is not gin: {reason}.") from None


def _comment(line: str) -> str:
    return line.partition("#")[2].strip()


def find(name: str, search_paths: Sequence[Path], wanted_by: str) -> Path:
    """Returns the first `folder / name` that is a file; ConfigError says where it was looked for."""
    places = [Path(name)] if Path(name).is_absolute() else [folder / name for folder in search_paths]
    for path in places:
        if path.is_file():
            return path
    folders = ", ".join(dict.fromkeys(str(path.parent if path.is_absolute() else path) for path in places))
    raise InputError(f"{wanted_by} names the gin file {name}, which is not there; looked for it in {folders}.")


def _read_file(source: Source, name: str, search_paths: Sequence[Path], wanted_by: str, above: tuple[Path, ...]) -> str:
    """Adds a file's statements to `source` and returns its text with the includes put in."""
    path = find(name, search_paths, wanted_by).resolve()
    if path in above:
        raise InputError(f"{wanted_by} includes {name}, which includes itself; take one of the includes out.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The gin file {name} cannot be read: {error}.") from None
    lines = text.split("\n")  # as gin counts lines; splitlines knows more kinds
    for statement in _statements(text + "\n", name):
        number = statement.location.line_num
        place = f"{name} line {number}"
        if isinstance(statement, config_parser.IncludeStatement):
            included = _read_file(source, statement.filename, search_paths, place, (*above, path))
            lines[number - 1] = included
        elif isinstance(statement, config_parser.ImportStatement):
            lines[number - 1] = ""
            if statement.module == "limba.config" and statement.bound_name() == "config":
                continue
            if not statement.module.startswith(NAMES_OF_GIN):
                source.modules.append((statement.module, place))
        elif isinstance(statement, config_parser.BindingStatement):
            _add(source, statement, place, _comment(lines[number - 1]))
    return "\n".join(lines) + "\n"


def _add(source: Source, statement: config_parser.BindingStatement, place: str, comment: str) -> None:
    scope, owner, field_name, value, _ = statement
    source.bindings.append(Binding(scope, owner, field_name, value, place, comment))


def literal(value: str) -> str:
    """Returns VALUE of --gin.NAME=VALUE as gin writes it; what is no gin value is a string.

    >>> literal("{'inputs': 512}"), literal("1e-3"), literal("/tmp/x"), literal('"/tmp/x"')
    ("{'inputs': 512}", '1e-3', "'/tmp/x'", '"/tmp/x"')
    """
    try:
        statements = list(config_parser.ConfigParser(f"NAME = {value}\n", _Delegate()))
        whole = len(statements) == 1
    except (SyntaxError, tokenize.TokenError):
        whole = False
    return value if whole and "\n" not in value and "#" not in value else repr(value)


def _read_override(source: Source, override: str) -> None:
    name, equals, value = override.partition("=")
    place = f"--gin.{name}"
    if not equals:
        raise InputError(f"{place} has no value; write {place}=VALUE.")
    if value[:1] in ("'", '"') and (len(value) < 2 or value[-1] != value[0]):
        raise InputError(f"{place} has a quotation mark that is not closed in {value}; close it or leave both out.")
    text = f"{name} = {literal(value)}\n"
    for statement in _statements(text, place):
        if not isinstance(statement, config_parser.BindingStatement):
            raise InputError(f"{place} is not a name that a value can be given to.")
        _add(source, statement, place, "")
    source.text += text


def read(files: Sequence[str], overrides: Sequence[str], search_paths: Sequence[Path]) -> Source:
    """Returns the statements of `files`, then of the `NAME=VALUE` texts in `overrides`.

    Raises ConfigError for a file that is not found, not readable or not gin.
    """
    source = Source()
    for name in files:
        source.text += _read_file(source, name, search_paths, "--gin_file", ())
    for override in overrides:
        _read_override(source, override)
    return source
