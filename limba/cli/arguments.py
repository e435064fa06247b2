"""The flags of a command: its one object first, then `--name=value` and `--gin.NAME=VALUE`."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NoReturn

from limba.config import InputError


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Returns `; did you mean A?` where a choice is near, or a full stop.

    >>> did_you_mean("--outptu", ["--input", "--output"]), did_you_mean("x", ["--input"])
    ('; did you mean --output?', '.')
    """
    upper = {choice.upper(): choice for choice in choices}
    near = difflib.get_close_matches(name.upper(), list(upper), n=1, cutoff=0.6)
    return f"; did you mean {upper[near[0]]}?" if near else "."


class Parser(argparse.ArgumentParser):
    """A command's parser, whose errors are one sentence, an InputError, and not the whole usage.

    `parse` gives the flags, and as `gin` the NAME=VALUE of each `--gin.NAME=VALUE`.
    """

    def __init__(self, command: str, about: str):
        super().__init__(
            prog=f"limba {command}".strip(),
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[:1].upper()}{message[1:]}; --help lists what there is.")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Returns the flags of a command line; InputError with the nearest name for one that is not known."""
        dashes = [re.sub(r"^-(?=[A-Za-z_]{2})", "--", argument) for argument in argv]
        gin = [argument.removeprefix("--gin.") for argument in dashes if argument.startswith("--gin.")]
        given, unknown = self.parse_known_args([each for each in dashes if not each.startswith("--gin.")])
        if unknown:
            name = unknown[0].partition("=")[0]
            near = did_you_mean(name, [flag for flag in self._option_string_actions if flag.startswith("--")])
            raise InputError(f"The argument {unknown[0]} is not known{near.rstrip('.?')}; --help lists what there is.")
        given.gin = gin
        return given
