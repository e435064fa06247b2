"""The flags of a command: first its object, then `--name=value` and `--gin.NAME=VALUE`."""

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from typing import NoReturn

from limba.config import InputError, did_you_mean


def with_two_dashes(argv: Sequence[str]) -> list[str]:
    """Returns the arguments with -name as --name.

    >>> with_two_dashes(["-input=a", "-h", "-1"])
    ['--input=a', '-h', '-1']
    """
    return [re.sub(r"^-(?=[A-Za-z_]{2})", "--", argument) for argument in argv]


class Parser(argparse.ArgumentParser):
    """The parser of a command; its errors are InputErrors of one sentence, not the whole usage.

    `parse` returns the flags; its `gin` has the NAME=VALUE of each `--gin.NAME=VALUE`.

    >>> parser = Parser("generate", "Writes text.")
    >>> parser.add_object("model", "MODEL_DIR", "a run")
    >>> _ = parser.add_argument("--gin.NAME")  # where it takes them
    >>> given = parser.parse(["runs/ro", "--gin.BATCH_SIZE=8"])
    >>> given.model, given.gin, parser.parse(["--model=runs/ro"]).model
    ('runs/ro', ['BATCH_SIZE=8'], 'runs/ro')
    """

    def __init__(self, command: str, about: str, program: str = "limba", add_help: bool = True):
        super().__init__(
            prog=f"{program} {command}".strip(),
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=add_help,
        )
        self._object = ""
        self._takes_several = self._needs_run = False

    def add_object(
        self, name: str, metavar: str, about: str, takes_several: bool = False, is_run: bool = False
    ) -> None:
        """Adds the object of the command: its argument without a flag, or `--name=`. It is None if not given.

        With `takes_several` it is a list. With `is_run` it is a run, and has to be given.
        """
        self._object = name
        self._takes_several = takes_several
        self._needs_run = is_run
        help_text = f"{about}; --{name}={metavar} means the same"
        self.add_argument("objects", nargs="*" if takes_several else "?", metavar=metavar, help=help_text)
        self.add_argument(f"--{name}", action="append", metavar=metavar, help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        if match := re.fullmatch(r"argument (--\w+): expected one argument", message):
            value = self._option_string_actions[match[1]].metavar or "VALUE"
            raise InputError(f"{match[1]} has no value; write {match[1]}={value}.")
        raise InputError(f"{message[:1].upper()}{message[1:]}; --help lists the arguments.")

    def complete(self) -> None:
        """Where a shell asks how the line goes on, `limba/cli/completion.py` answers, and ends the process."""

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Returns the flags of a command line; InputError with the nearest name for one that is not known."""
        self.complete()
        dashes = with_two_dashes(argv)
        gin = [argument.removeprefix("--gin.") for argument in dashes if argument.startswith("--gin.")]
        rest = [argument for argument in dashes if not argument.startswith("--gin.")]
        if gin and "--gin.NAME" not in self._option_string_actions:
            raise InputError(f"--gin.{gin[0]} is a flag of limba train; --help lists the flags of this command.")
        given, unknown = self.parse_known_intermixed_args(rest)
        if unknown:
            self._refuse(unknown[0])
        if self._object:
            self._take_object(given)
        if self._needs_run and not getattr(given, self._object):
            raise InputError(f"No run is given; write {self.prog} MODEL_DIR.")
        given.gin = gin
        return given

    def _refuse(self, argument: str) -> NoReturn:
        name, sign, value = argument.partition("=")
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        if macro := self._macro(name):
            advice = f"; write --gin.{macro}={value if sign else 'VALUE'}"
        elif argument.startswith("-"):
            advice = did_you_mean(name, flags).rstrip(".?")
        elif "=" in argument:
            advice = f"; write --gin.{argument}"
        elif "--prompt" in flags:
            advice = f"; write --prompt={shlex.quote(argument)}"
        else:
            advice = "; put quotation marks around a pattern"
        raise InputError(f"The argument {argument} is not known{advice}; --help lists the arguments.")

    def _macro(self, flag: str) -> str:
        """Returns the gin name that is typed as a flag of a command that takes gin names; "" if it is none."""
        if "--gin.NAME" not in self._option_string_actions or not flag.startswith("--"):
            return ""
        from limba.cli.gin.macros import macro_names

        name = flag.removeprefix("--").replace("-", "_").upper()
        return name if name in macro_names() else ""

    def _take_object(self, given: argparse.Namespace) -> None:
        if self._takes_several:
            objects = given.objects
        else:
            objects = [given.objects] if given.objects else []
        for argument in objects:
            if re.match(r"[A-Za-z_][\w.]*=", argument) and not os.path.exists(argument):
                self._refuse(argument)
        found = [*(getattr(given, self._object) or []), *objects]
        if len(found) > 1 and not self._takes_several:
            raise InputError(f"{found[0]} and {found[1]} are both given as --{self._object}; leave one out.")
        setattr(given, self._object, found if self._takes_several else next(iter(found), None))
