"""The flags of a command: first its object, then `--name=value` and `--gin.NAME=VALUE`."""

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from typing import NoReturn

from limba.config import InputError, did_you_mean


def with_two_dashes(argv: Sequence[str]) -> list[str]:
    """Returns the arguments with -name as --name; several words that begin with a dash are left alone.

    >>> with_two_dashes(["-input=a", "-h", "-1", "-Ce faci?"])
    ['--input=a', '-h', '-1', '-Ce faci?']
    """
    return [re.sub(r"^-(?=[A-Za-z_][\w./-]+(=|$))", "--", argument) for argument in argv]


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

    def __init__(self, command: str, description: str, program: str = "limba", add_help: bool = True):
        super().__init__(
            prog=f"{program} {command}".strip(),
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=add_help,
        )
        self._object = ""  # the name of the command's object, once add_object has given it one
        self._takes_several = False
        self._needs_run = False

    def add_object(
        self, name: str, metavar: str, description: str, takes_several: bool = False, is_run: bool = False
    ) -> None:
        """Adds the object of the command: its argument without a flag, or `--name=`. It is None if not given.

        With `takes_several` it is a list. With `is_run` it is a run, and required.
        """
        self._object = name
        self._takes_several = takes_several
        self._needs_run = is_run
        help_text = f"{description}; --{name}={metavar} means the same"
        self.add_argument("objects", nargs="*" if takes_several else "?", metavar=metavar, help=help_text)
        self.add_argument(f"--{name}", action="append", metavar=metavar, help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        match = re.fullmatch(r"argument (--\w+): expected one argument", message)
        if match:
            value = self._option_string_actions[match[1]].metavar or "VALUE"
            raise InputError(f"{match[1]} has no value; write {match[1]}={value}.")
        raise InputError(f"{message[:1].upper()}{message[1:]}; --help lists the arguments.")

    def complete(self) -> None:
        """Does nothing; when a shell asks how a line goes on, `limba/cli/completion.py` puts its answer here."""

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Returns the flags of a command line; InputError with the nearest name for one that is not known."""
        self.complete()
        # argparse would need each gin name declared, so these arguments are taken out before it parses.
        dashes = with_two_dashes(argv)
        gin = [argument.removeprefix("--gin.") for argument in dashes if argument.startswith("--gin.")]
        rest = [argument for argument in dashes if not argument.startswith("--gin.")]
        if gin and "--gin.NAME" not in self._option_string_actions:
            raise InputError(f"--gin.{gin[0]} is a flag of limba train; --help lists the flags of this command.")
        args, unknown = self.parse_known_intermixed_args(rest)
        if unknown:
            self._refuse(unknown[0])
        if self._object:
            self._take_object(args, rest)
        if self._needs_run and not getattr(args, self._object):
            raise InputError(f"No run is given; write {self.prog} MODEL_DIR.")
        args.gin = gin
        return args

    def _refuse(self, argument: str) -> NoReturn:
        """Raises InputError for an argument that the command does not have, with what was most likely meant."""
        name, sign, value = argument.partition("=")
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        macro = self._macro(name)
        if macro:
            advice = f"; write --gin.{macro}={value if sign else 'VALUE'}"
        elif argument.startswith("-"):
            advice = did_you_mean(name, flags).rstrip(".?")
        elif "=" in argument:
            advice = f"; write --gin.{argument}"
        elif "--prompt" in flags:
            advice = f"; write --prompt={shlex.quote(argument)}"
        else:  # most likely the shell has replaced a pattern by the files that match it
            advice = "; put quotation marks around a pattern"
        raise InputError(f"The argument {argument} is not known{advice}; --help lists the arguments.")

    def _macro(self, flag: str) -> str:
        """Returns the gin name that a user has typed as a flag, such as --batch-size; "" for any other flag."""
        if "--gin.NAME" not in self._option_string_actions or not flag.startswith("--"):
            return ""
        from limba.cli.gin.macros import macro_names

        name = flag.removeprefix("--").replace("-", "_").upper()
        return name if name in macro_names() else ""

    def _take_object(self, args: argparse.Namespace, typed: Sequence[str]) -> None:
        """Sets the object, whether it was given without a flag or as `--name=`; InputError for one too many."""
        if self._takes_several:
            objects = args.objects
        else:
            objects = [args.objects] if args.objects else []
        for argument in objects:
            # NAME=VALUE is a gin override without its --gin., unless a file has such a name.
            if re.match(r"[A-Za-z_][\w.]*=", argument) and not os.path.exists(argument):
                self._refuse(argument)
        from_flags = getattr(args, self._object) or []
        values = _in_order(typed, f"--{self._object}", from_flags, objects)
        if self._takes_several:
            setattr(args, self._object, values)
            return
        if len(values) > 1:
            raise InputError(f"{values[0]} and {values[1]} are both given as --{self._object}; leave one out.")
        setattr(args, self._object, values[0] if values else None)


def _in_order(typed: Sequence[str], flag: str, from_flags: Sequence[str], objects: Sequence[str]) -> list[str]:
    """Returns the objects of a command line in the order in which they were typed, with `flag` and without.

    argparse parses all flags first.

    >>> _in_order(["a.gin", "--profile=2", "--gin_file=b.gin", "c.gin"], "--gin_file", ["b.gin"], ["a.gin", "c.gin"])
    ['a.gin', 'b.gin', 'c.gin']
    """
    with_flag = list(from_flags)
    without = list(objects)
    values = []
    for argument in typed:
        if with_flag and (argument == flag or argument.startswith(f"{flag}=")):
            values.append(with_flag.pop(0))
        elif without and argument == without[0]:
            values.append(without.pop(0))
    return values + with_flag + without
