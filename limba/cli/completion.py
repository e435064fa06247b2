"""What a shell offers for a line of limba: the script of `register-python-argcomplete limba` asks for it."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from argcomplete.completers import FilesCompleter, SuppressCompleter
from argcomplete.finders import CompletionFinder

from limba.cli.arguments import Parser
from limba.cli.gin.macros import macro_names
from limba.data.task_modules import ROOT

ALTERNATIVES = re.compile(r"[a-z][a-z0-9_-]*(?:\|[a-z][a-z0-9_-]*)+")  # a metavar such as array_record|parquet


class Finder(CompletionFinder):
    """Offers a flag that takes a value with its `=`."""

    def filter_completions(self, completions: list[str]) -> list[str]:
        flags = self.active_parsers[-1]._option_string_actions
        takes_value = {flag for flag, action in flags.items() if flag.startswith("--") and action.nargs != 0}
        offered = super().filter_completions(completions)
        return [f"{word}=" if word in takes_value else word for word in offered]


def answer(descriptions: Mapping[str, str], program_of: Callable[[str], Callable[[Sequence[str]], object]]) -> None:
    """Writes the completions of the line that the shell's script has put into the environment, and ends the process.

    `descriptions` has each command, and `program_of` returns a command's function of the arguments.
    """
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    words = line.split()[1:]  # after limba
    begins_word = line[-1].isspace()
    if len(words) > 1 or (words and begins_word):
        name, *arguments = words
        os.environ["_ARGCOMPLETE"] = "2"  # the words count from the command on
        Parser.complete = complete  # the command's own parser calls it before it parses
        if name in descriptions:
            whole = arguments if begins_word else arguments[:-1]
            program_of(name)(whole)
        sys.exit(0)
    limba = argparse.ArgumentParser("limba")
    commands = limba.add_subparsers()
    for name, description in descriptions.items():
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
