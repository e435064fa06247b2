"""`limba completion`: prints a script with which bash, zsh or fish completes commands, flags, values and files."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Sequence
from typing import NamedTuple

from limba.cli.arguments import Parser, parser_of
from limba.cli.task_modules import ROOT
from limba.config import InputError

ABOUT = """Prints the script with which a shell completes limba's commands, flags, their values, gin names and files.

    limba completion bash > ~/.local/share/bash-completion/completions/limba
    limba completion zsh > ~/.zfunc/_limba           # a folder of $fpath, before compinit
    limba completion fish > ~/.config/fish/completions/limba.fish

For this shell only: source <(limba completion bash)"""
SHELLS = ("bash", "zsh", "fish")
FORMS = {"convert": ((), ("--to=t5x",), ("--to=list",))}  # arguments that decide which flags a command has
ALTERNATIVES = re.compile(r"[a-z][a-z0-9_-]*(?:\|[a-z][a-z0-9_-]*)+")  # of a metavar, as in array_record|parquet


class Flag(NamedTuple):
    """A flag of a command; `values` are those that it can have, if they are few and known."""

    name: str
    about: str
    takes_value: bool
    values: tuple[str, ...]


class Command(NamedTuple):
    name: str
    about: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]  # that may stand in the place of its object
    takes_files: bool  # there, too
    takes_gin: bool


def run(argv: Sequence[str]) -> None:
    """Prints the script; raises InputError."""
    parser = Parser("completion", ABOUT)
    parser.add_object("shell", "bash|zsh|fish", "the shell")
    given = parser.parse(argv)
    if given.shell not in SHELLS:
        raise InputError(f"The shell is {given.shell}; give bash, zsh or fish, as in limba completion bash.")
    print({"bash": bash, "zsh": zsh, "fish": fish}[given.shell](commands()), end="")


def commands() -> list[Command]:
    """Returns the commands of limba with their flags, as their parsers have them."""
    from limba.cli.main import COMMANDS

    runs = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "gin").glob("*.gin"))
    found = []
    for name, (module, about) in COMMANDS.items():
        flags: dict[str, Flag] = {}
        for form in FORMS.get(name, ((),)):
            with contextlib.redirect_stdout(io.StringIO()):  # one command prints its usage
                parser = parser_of(importlib.import_module(module).run, form)
            for flag in _flags(parser) if parser else ():
                flags.setdefault(flag.name, flag)
        takes_gin = flags.pop("--gin.NAME", None) is not None
        words = tuple(runs) if name == "train" else SHELLS if name == "completion" else ()
        takes_files = name not in ("new", "doctor", "completion")
        found.append(Command(name, about, tuple(flags.values()), words, takes_files, takes_gin))
    return found


def _flags(parser: Parser) -> list[Flag]:
    found = []
    for action in parser._actions:
        names = [name for name in action.option_strings if name.startswith("--") and name != "--helpfull"]
        values = tuple(map(str, action.choices or ()))
        if not values and isinstance(action.metavar, str) and ALTERNATIVES.fullmatch(action.metavar):
            values = tuple(action.metavar.split("|"))
        about = "" if action.help in (None, "==SUPPRESS==") else " ".join(str(action.help).split())
        found += [Flag(name, about.replace("%%", "%"), action.nargs != 0, values) for name in names]
    return found


def gin_names() -> list[str]:
    """Returns the names that gin files set for users, such as TRAIN_STEPS."""
    files = (ROOT / "gin").rglob("*.gin")
    return sorted({name for file in files for name in re.findall(r"^([A-Z_]+) =", file.read_text(), re.MULTILINE)})


def bash(table: Sequence[Command]) -> str:
    """Returns the script for bash, which splits a word at `=`."""
    cases, values = [], []
    for command in table:
        flags = [f"{flag.name}=" if flag.takes_value else flag.name for flag in command.flags]
        gin = [f"--gin.{name}=" for name in gin_names()] if command.takes_gin else []
        words, files = " ".join(command.words), "yes" * command.takes_files
        cases.append(f"    {command.name}) flags='{' '.join([*flags, *gin])}' words='{words}' files={files} ;;")
        values += [
            f"    {command.name}:{flag.name}) values='{' '.join(flag.values)}' ;;"
            for flag in command.flags
            if flag.values
        ]
    lines = [
        "# Completion of limba's commands, flags, values and files for bash; made by `limba completion bash`.",
        "_limba() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}",
        "  local flag= flags= words= values= files=",
        "  COMPREPLY=()",
        "  if [ \"$COMP_CWORD\" -eq 1 ]; then",
        f"    COMPREPLY=($(compgen -W '{' '.join(command.name for command in table)} --help' -- \"$word\"))",
        "    return",
        "  fi",
        "  if [ \"$word\" = '=' ]; then flag=$before word=",
        "  elif [ \"$before\" = '=' ]; then flag=${COMP_WORDS[COMP_CWORD-2]}",
        "  elif [[ $before == --* ]]; then flag=$before; fi",
        "  case $command:$flag in",
        *values,
        "  esac",
        "  if [ -n \"$values\" ]; then COMPREPLY=($(compgen -W \"$values\" -- \"$word\")); return; fi",
        "  if [ \"$before\" = '=' ] || [ \"${COMP_WORDS[COMP_CWORD]}\" = '=' ]; then",
        "    compopt -o filenames 2>/dev/null",
        "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")",
        "    return",
        "  fi",
        "  case $command in",
        *cases,
        "  esac",
        "  if [[ $word == -* ]]; then",
        "    COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))",
        "    if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace 2>/dev/null; fi",
        "    return",
        "  fi",
        "  mapfile -t COMPREPLY < <(",
        "    { compgen -W \"$words\" -- \"$word\"; [ -z \"$files\" ] || compgen -f -- \"$word\"; } | sort -u",
        "  )",
        "  compopt -o filenames 2>/dev/null",
        "}",
        "complete -F _limba limba",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def zsh(table: Sequence[Command]) -> str:
    """Returns the script for zsh, by its own `_arguments`."""

    def spelled(text: str) -> str:
        return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")

    lines = [
        "#compdef limba",
        "# Completion of limba's commands, flags, values and files for zsh; made by `limba completion zsh`.",
        "_limba() {",
        "  local -a commands",
        "  commands=(",
        *(f"    '{command.name}:{spelled(command.about)}'" for command in table),
        "  )",
        "  if (( CURRENT == 2 )); then _describe command commands; return; fi",
        "  local command=$words[2]",
        "  shift words",
        "  (( CURRENT-- ))",
        "  case $command in",
    ]
    for command in table:
        specs = []
        for flag in command.flags:
            value = f":value:({' '.join(flag.values)})" if flag.values else ":value:_files"
            sign = "=" if flag.takes_value else ""
            specs.append(f"'*{flag.name}{sign}[{spelled(flag.about)}]{value if flag.takes_value else ''}'")
        if command.takes_gin:
            specs += [f"'*--gin.{name}=-[of the gin files]:value:_files'" for name in gin_names()]
        words = f"compadd -- {' '.join(command.words)}" if command.words else ""
        actions = [each for each in (words, "_files" * command.takes_files) if each]
        if actions:
            specs.append(f"'*:argument:{{{'; '.join(actions)}}}'")
        lines += [
            f"    {command.name})",
            "      _arguments \\",
            *(f"        {spec} \\" for spec in specs),
            "        && return ;;",
        ]
    return "\n".join([*lines, "  esac", "}", "if [ \"$funcstack[1]\" = _limba ]; then _limba \"$@\"; else compdef _limba limba; fi", ""])  # noqa: E501  # fmt: skip


def fish(table: Sequence[Command]) -> str:
    """Returns the script for fish."""

    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = ["# Completion of limba's commands, flags, values and files for fish; made by `limba completion fish`."]
    for command in table:
        about = quoted(command.about)
        lines.append(f"complete -c limba -n __fish_use_subcommand -f -a {command.name} -d {about}")
    for command in table:
        start = f"complete -c limba -n '__fish_seen_subcommand_from {command.name}'"
        for flag in command.flags:
            value = f" -x -a {quoted(' '.join(flag.values))}" if flag.values else " -r" if flag.takes_value else ""
            lines.append(f"{start} -l {flag.name[2:]}{value} -d {quoted(flag.about)}")
        if command.takes_gin:
            gin = " ".join(f"--gin.{name}=" for name in gin_names())  # no option of fish's: its value needs the `=`
            lines.append(f"{start} -a {quoted(gin)} -d 'of the gin files'")
        if command.words or not command.takes_files:
            only = "" if command.takes_files else " -f"
            lines.append(f"{start}{only} -a {quoted(' '.join(command.words))}")
    return "\n".join(lines) + "\n"
