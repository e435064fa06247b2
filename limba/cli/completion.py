"""`limba completion`: prints a script with which bash, zsh or fish asks limba, by argcomplete, to complete a line."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from argcomplete.completers import FilesCompleter, SuppressCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.shell_integration import shellcode

from limba.cli.arguments import Parser
from limba.cli.gin.macros import macro_names
from limba.config import InputError
from limba.data.task_modules import ROOT

ABOUT = """Prints the script with which a shell completes limba's commands, flags, their values, gin names and files.

    limba completion bash > ~/.local/share/bash-completion/completions/limba
    limba completion zsh > ~/.zfunc/_limba           # a folder of $fpath, before compinit
    limba completion fish > ~/.config/fish/completions/limba.fish

For this shell only: source <(limba completion bash)"""
SHELLS = ("bash", "zsh", "fish")
ALTERNATIVES = re.compile(r"[a-z][a-z0-9_-]*(?:\|[a-z][a-z0-9_-]*)+")  # a metavar such as array_record|parquet


def run(argv: Sequence[str]) -> None:
    """Prints the script; raises InputError."""
    parser = Parser("completion", ABOUT)
    parser.add_object("shell", "|".join(SHELLS), "the shell")
    args = parser.parse(argv)
    if args.shell not in SHELLS:
        raise InputError(f"The shell is {args.shell}; give bash, zsh or fish, as in limba completion bash.")
    print(shellcode(["limba"], use_defaults=False, shell=args.shell))  # offers nothing where nothing fits


class Finder(CompletionFinder):
    """Offers a flag that takes a value with its `=`."""

    def filter_completions(self, completions: list[str]) -> list[str]:
        flags = self.active_parsers[-1]._option_string_actions
        takes_value = {flag for flag, action in flags.items() if flag.startswith("--") and action.nargs != 0}
        offered = super().filter_completions(completions)
        return [f"{word}=" if word in takes_value else word for word in offered]


def answer() -> None:
    """Writes the completions of the line that the shell's script has put into the environment, and ends the process."""
    from limba.cli.main import COMMANDS, program_of

    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    words = line.split()[1:]  # after limba
    begins_word = line[-1].isspace()
    if len(words) > 1 or (words and begins_word):
        name, *arguments = words
        os.environ["_ARGCOMPLETE"] = "2"  # the words count from the command on
        Parser.complete = complete  # the command's own parser calls it before it parses
        if name in COMMANDS:
            whole = arguments if begins_word else arguments[:-1]
            program_of(name)(whole)
        sys.exit(0)
    limba = argparse.ArgumentParser("limba")
    commands = limba.add_subparsers()
    for name, (_, description) in COMMANDS.items():
        commands.add_parser(name, help=description)
    Finder()(limba, always_complete_options=False)


def complete(self: Parser) -> None:
    """Writes the completions of a command's line, and ends the process."""
    name = self.prog.rpartition(" ")[2]
    for action in list[Any](self._actions):
        if action.option_strings == ["--gin.NAME"]:
            action.help = argparse.SUPPRESS
            for gin_name in macro_names():
                self.add_argument(f"--gin.{gin_name}", help="of the gin files")
        elif isinstance(action.metavar, str) and ALTERNATIVES.fullmatch(action.metavar) and not action.choices:
            action.choices = action.metavar.split("|")
        elif not action.option_strings and name == "train":
            action.completer = _runs_and_files
        elif not action.option_strings and name == "new":
            action.completer = SuppressCompleter()
    Finder()(self, always_complete_options=False)


def _runs_and_files(prefix: str, **_: object) -> list[str]:
    runs = [path.relative_to(ROOT).as_posix() for path in (ROOT / "gin").glob("*.gin")]
    return sorted({*runs, *FilesCompleter()(prefix)})
