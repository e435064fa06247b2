"""Gin files and `NAME=VALUE` overrides as a list of statements, each with its location.

gin-config's own parser reads the syntax. Nothing is resolved or imported.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright confuses the folder gin/ with the package gin)

import functools
import io
import os
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gin import config_parser

from limba.config import InputError, did_you_mean, kinds, nearest, saved_config, untrusted_files
from limba.data.task_modules import ROOT

OWN_FILE = "config.gin"  # in a run's MODEL_DIR, beside its config.json
# Limits for the gin files of one run, in which a file counts each time it is included.
MOST_FILES = 100
MOST_LETTERS = 2_000_000
# In the name of an included file: the family of the model that the run continues from.
FAMILY = "{family}"


@dataclass(frozen=True)
class Reference:
    """@scope/config.Name, followed by () if it is called."""

    scope: str
    name: str
    called: bool

    def __repr__(self) -> str:
        return f"@{self.scope}{'/' if self.scope else ''}{self.name}{'()' if self.called else ''}"


@dataclass(frozen=True)
class Macro:
    """%NAME: the value that NAME has after all files and overrides are read."""

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
    location: str  # file and line, or flag
    comment: str  # its comment
    is_own: bool = False  # from a run's own config.gin
    is_override: bool = False  # from the command line, or an argument of a call: it must change what the run does

    @property
    def name(self) -> str:
        return f"{self.scope}{'/' if self.scope else ''}{self.owner}{'.' if self.field else ''}{self.field}"


@dataclass
class Size:
    """How much gin was read: a few files that include each other twice would never end."""

    files: int = 0
    letters: int = 0

    def add(self, text: str, name: str) -> None:
        """Counts the text of a file; InputError beyond the limits."""
        self.files += 1
        self.letters += len(text)
        if self.files > MOST_FILES or self.letters > MOST_LETTERS:
            raise InputError(
                f"With {name} the gin files, each counted as often as it is included, are {self.files:,} with"
                f" {self.letters:,} letters; at most {MOST_FILES} with {MOST_LETTERS:,} are read: remove includes."
            )


@dataclass(frozen=True)
class FileOfFamily:
    """An included file whose name has FAMILY: it is read when the model that the run continues from is known."""

    location: str  # of the include
    num_before: int  # bindings before it
    read: Callable[[str], None]  # adds the statements of the file of a family


@dataclass
class Source:
    """All statements read. Of two bindings of one name the later one is used."""

    bindings: list[Binding] = field(default_factory=list)
    of_family: FileOfFamily | None = None
    modules: list[tuple[str, str]] = field(default_factory=list)  # (dotted name, location) of imported task modules
    size: Size = field(default_factory=Size)
    runs: dict[str, Path] = field(default_factory=dict)  # a run's own config.gin, by its name -> the run's directory

    def add(
        self,
        statement: config_parser.BindingStatement,
        location: str,
        is_own: bool = False,
        is_override: bool = False,
    ) -> None:
        """Appends a binding; `is_own`: of a run's own config.gin."""
        owner = statement.selector
        field_name = statement.arg_name
        comment = statement.location.line_content.partition("#")[2].strip()
        self.bindings.append(
            Binding(statement.scope, owner, field_name, statement.value, location, comment, is_own, is_override)
        )


class _Delegate(config_parser.ParserDelegate):
    """Keeps references and macros as names."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        scope, _, name = scoped_configurable_name.rpartition("/")
        return Reference(scope, name, evaluate)

    def macro(self, macro_name: str) -> Macro:
        return Macro(macro_name)


def leaves(value: object) -> Iterator[object]:
    """Yields the values inside dictionaries, lists and tuples; a dictionary's keys too."""
    if isinstance(value, Mapping):
        for pair in value.items():
            yield from leaves(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def _parsed(text: str, location: str) -> Iterator[object]:
    try:
        yield from config_parser.ConfigParser(io.StringIO(text), _Delegate())
    except (SyntaxError, tokenize.TokenError, RecursionError, TypeError) as error:
        if isinstance(error, RecursionError):
            reason = "brackets are nested too deeply"
        elif isinstance(error, TypeError):
            reason = "a list or a dictionary is the key of a dictionary"
        else:
            reason = str(error.args[0]).splitlines()[0].rstrip(".")
        line = getattr(error, "lineno", None)
        has_lines = "\n" in text.rstrip("\n")  # an override has none to count
        where = f"{location} line {line}" if line and has_lines else location
        raise InputError(f"{where} is not gin: {reason}.") from None


def _find(name: str, search_paths: Sequence[Path], asked_by: str) -> Path:
    """Returns the first `folder / name` that is a file; the InputError lists the folders searched."""
    kinds.check_local(name, f"The file that {asked_by} includes")
    paths = [Path(name)] if Path(name).is_absolute() else [folder / name for folder in search_paths]
    for path in paths:
        if path.is_file():
            return path
    searched = [str(path.parent if path.is_absolute() else path) for path in paths]
    folders = ", ".join(dict.fromkeys(searched))
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gin").rglob("*.gin")}
    subject = f"{asked_by} includes {name}, which" if asked_by else f"The gin file {name}"
    near = nearest(name, shipped)
    fix = f"include {near!r}" if near and asked_by else None
    raise InputError(f"{subject} does not exist; looked for it in {folders}{did_you_mean(name, shipped)}", fix=fix)


def _read_file(source: Source, name: str, search_paths: Sequence[Path], asked_by: str, above: tuple[Path, ...]) -> None:
    """Adds the statements of a file and of those that it includes."""
    path = _find(name, search_paths, asked_by).resolve()
    if path in above:
        raise InputError(f"{asked_by} includes {name}, which includes itself; remove one of the includes.")
    try:
        text = untrusted_files.text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The gin file {name} cannot be read: {error}.") from None
    include = functools.partial(_read_file, source, search_paths=search_paths, above=(*above, path))
    is_own = path.name == OWN_FILE and path.with_name(saved_config.FILE).is_file()
    if is_own:
        source.runs[name] = path.parent
    read_text(source, text, name, include, is_own)


def read_text(
    source: Source, text: str, name: str, include: Callable[..., None] | None = None, is_own: bool = False
) -> None:
    """Adds the statements of a gin file's text; `include(name, asked_by=location)` adds an included file's.

    `is_own`: it is a run's own config.gin.
    """
    source.size.add(text, name)
    for statement in _parsed(text + "\n", name):
        location = f"{name} line {statement.location.line_num}"
        if isinstance(statement, config_parser.BindingStatement):
            source.add(statement, location, is_own)
        elif isinstance(statement, config_parser.IncludeStatement):
            if include is None:
                raise InputError(f"{location} includes {statement.filename}; write its lines there instead.")
            if FAMILY in statement.filename:
                _read_later(source, statement.filename, location, include)
            else:
                include(statement.filename, asked_by=location)
        elif isinstance(statement, config_parser.ImportStatement):
            # Two imports are gin's own way of naming limba.config; all others are task modules.
            is_config = statement.module == "limba.config" and statement.bound_name() == "config"
            if not is_config and not statement.module.startswith("__gin__."):
                source.modules.append((statement.module, location))


def _read_later(source: Source, name: str, location: str, include: Callable[..., None]) -> None:
    """Keeps an included file whose name has FAMILY for when the family is known."""
    if source.of_family is not None:
        raise InputError(
            f"{location} includes {name}, and {source.of_family.location} has included a file by the family of a model"
            " already; leave one of them out."
        )

    def read_of(family: str) -> None:
        include(name.replace(FAMILY, family), asked_by=location)

    source.of_family = FileOfFamily(location, len(source.bindings), read_of)


def _folders(search_paths: Sequence[Path]) -> list[Path]:
    """Returns where gin files are looked for; as in gin-config, the current directory is the first."""
    return [Path.cwd(), *search_paths, ROOT, ROOT / "gin"]


def read_with_includes(source: Source, text: str, name: str, search_paths: Sequence[Path] = ()) -> None:
    """Adds the statements of a text and of the files that it includes, which are looked for as `read` does."""
    folders = _folders(search_paths)
    read_text(source, text, name, functools.partial(_read_file, source, search_paths=folders, above=()))


def literal(value: str) -> str:
    """Returns VALUE of NAME=VALUE in gin's syntax; a value that is not gin is a string.

    >>> literal("{'inputs': 512}"), literal("1e-3"), literal("/tmp/x"), literal('"/tmp/x"'), literal("8 # a")
    ("{'inputs': 512}", '1e-3', "'/tmp/x'", '"/tmp/x"', "'8 # a'")
    """
    text = f"NAME = {value}\n"
    try:
        is_whole = len(list(config_parser.ConfigParser(text, _Delegate()))) == 1
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except TypeError:  # a list as a key: gin in its form, which `read_override` refuses
        return value
    except (SyntaxError, tokenize.TokenError, RecursionError):
        return repr(value)
    has_comment = any(token.type == tokenize.COMMENT for token in tokens)
    if is_whole and not has_comment and "\n" not in value:
        return value
    return repr(value)


def read_override(source: Source, override: str, flag: str) -> None:
    """Adds the statement of one `NAME=VALUE`, which messages write after `flag`."""
    name, equals, value = override.partition("=")
    location = f"{flag}{name}"
    if not equals:
        raise InputError(f"{location} has no value; write {location}=VALUE.")
    if value[:1] in ("'", '"') and (len(value) < 2 or value[-1] != value[0]):
        raise InputError(f"{location} has a quotation mark that is not closed in {value}; close it or remove it.")
    for statement in _parsed(f"{name} = {literal(value)}\n", location):
        if not isinstance(statement, config_parser.BindingStatement):
            raise InputError(f"{location} is not a name that a value can be given to.")
        source.add(statement, location, is_override=True)


def read(
    files: Sequence[str], overrides: Sequence[str] = (), search_paths: Sequence[Path] = (), flag: str = "--gin."
) -> Source:
    """Returns the statements of the files, then of the `NAME=VALUE` overrides, which messages write after `flag`.

    Files are looked for in the current directory, in `search_paths`, in the repository (or what an installed package
    holds of it) and in its gin/. Raises InputError for a file that is not found, not readable or not gin.
    """
    source = Source()
    folders = _folders(search_paths)
    for name in files:
        kinds.check_local(name, "The gin file")
        _read_file(source, str(Path(os.path.expanduser(name))), folders, "", ())
    for override in overrides:
        read_override(source, override, flag)
    return source
