"""The values of a script's configuration, from JSON and from its command line: checked, each of its key's kind.

`python` or `accelerate launch` before a script becomes `limba train`; the script's own name may stay.
"""

from __future__ import annotations

import difflib
import itertools
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from limba.config import InputError, did_you_mean, kinds, reason_of
from limba.tools.migrate.huggingface import keys

Values = dict[str, Any]  # of keys or flags

PAGE = "docs/coming_from_huggingface.md"
COMMAND_LINE = "The command line"
WITH_SEVERAL = ("report_to", "include_for_metrics", "label_names", "fsdp", "debug")  # flags with several values
OWN_FLAGS = ("gin_file", "gin_search_paths", "profile", "help", "helpfull", "h")  # of limba train
TRUTHS = {
    **dict.fromkeys(("true", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0"), False),
}
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)


def read_values(path: str | None, flags: Values) -> tuple[Values, str, list[str]]:
    """Returns (the values, where they are from, a line for each key that has no choice here).

    `flags` replace the values of the JSON at `path`. A token among them is set as HF_TOKEN and left out. Raises
    InputError for a file that cannot be read, an unknown key, and a value of another kind.
    """
    from_user = {**(_json(path) if path else {}), **flags}
    source = path or COMMAND_LINE
    values = {}
    notes = []
    for key, value in from_user.items():
        if key in keys.OF_OTHER_SCRIPTS:
            raise _of_another_script(f"{source} gives {key}, a flag")
        if key not in keys.KNOWN:
            near = did_you_mean(key, keys.KNOWN).rstrip(".")
            raise InputError(f"{source} has the key {key!r}, which is not known{near or ';'} ({PAGE} lists them).")
        if value is None or key in keys.REFUSED or key in keys.NOTED:
            notes += _note(source, key, value)
        elif key in keys.TOKENS:
            _use_token(source, key, value)
        else:
            values[key] = checked(source, key, value)
    return values, source, notes


def _of_another_script(subject: str) -> InputError:
    return InputError(
        f"{subject} of Hugging Face's scripts for summaries, translation or causal language models, which limba train"
        f" does not take; write a gin file: {PAGE}, Other scripts, has what each of their flags is there."
    )


def _json(path: str) -> Values:
    try:
        values = json.loads(Path(os.path.expanduser(path)).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({reason_of(error)}); give a JSON object.") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no JSON object; give one of keys and values.")
    if "format" in values and ("run" in values or "model" in values):
        raise InputError(
            f"{path} is the config.json of a run of Limba; limba train MODEL_DIR/config.gin trains it, and a"
            " configuration of Hugging Face's scripts has keys such as model_name_or_path."
        )
    return values


def _note(source: str, key: str, value: object) -> list[str]:
    """Returns the line of a key without a choice here; none for a value that asks for nothing."""
    defaults = (*keys.BY_DEFAULT, *keys.SILENT.get(key, ()))
    for meaning in (value, _meant(value)):
        if any(meaning == default and type(meaning) is type(default) for default in defaults):  # 0 is not False here
            return []
    if key in keys.REFUSED:
        raise InputError(
            f"{source} gives {key} {value!r}, which has no counterpart here; {keys.REFUSED[key]} ({PAGE})."
        )
    return [f"{key} {value!r}: {keys.NOTED[key]}."] if key in keys.NOTED else []


def _meant(value: object) -> object:
    """Returns the truth value, number or None that a string spells: the flag of a key that has no kind stays a string.

    >>> _meant("False"), _meant("0"), _meant("-1"), _meant("none"), _meant("O1"), _meant([0])
    (False, False, -1, None, 'O1', [0])
    """
    if not isinstance(value, str):
        return value
    word = value.lower()
    if word in ("none", "null", "{}", "[]"):
        return None
    if word in TRUTHS:
        return TRUTHS[word]
    return _spelled(int, value)


def _use_token(source: str, key: str, value: object) -> None:
    """Sets HF_TOKEN for this process and those that it starts; true stands for the login of this machine."""
    if value == "" or isinstance(_meant(value), bool | None):
        return
    if not isinstance(value, str):
        raise InputError(f"{source} gives a {key} that is not a str; give a token of the hub, or leave it out.")
    os.environ["HF_TOKEN"] = value


def checked(source: str, key: str, value: Any) -> Any:
    """Returns a value as the kind that its key takes; InputError if it is of another kind.

    Strings may spell numbers, true and false.

    >>> checked("a.json", "learning_rate", "5e-5"), checked("a.json", "max_steps", "20")
    (5e-05, 20)
    """
    kind = keys.KINDS[key]
    value = _spelled(kind, value)
    fits = isinstance(value, list) if kind is list else kinds.fits(value, kind)
    if not fits:
        raise InputError(f"{source} gives {key} {value!r}; give {keys.WORDS[kind]}.")
    if key in keys.ABOVE_ZERO and value < 1:
        raise InputError(f"{source} gives {key} {value!r}; give a whole number above 0.")
    if value == "" or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{source} gives {key} {value!r}; give {keys.WORDS[kind]}, or leave it out.")
    return value


def _spelled(kind: type, value: object) -> object:
    if not isinstance(value, str) or kind is str:
        return value
    if kind is list:
        return [name.strip() for name in value.split(",")]
    if kind is bool:
        return {"true": True, "false": False}.get(value.lower(), value)
    try:
        number = float(value)
    except ValueError:
        return value
    is_whole = math.isfinite(number) and number == int(number)
    return int(number) if kind is int and is_whole else number


class Arguments(NamedTuple):
    """What a script's command line gives, and the rest of it, which is for `limba train`."""

    json: str | None
    flags: Values
    rest: list[str]


def parse(argv: Sequence[str]) -> Arguments | None:
    """Returns what the arguments of a script, or of a .json file, give; None if they are neither.

    Raises InputError for a flag without its value, and for a gin file beside them.

    >>> parse(["run_t5_mlm.py", "--model_name_or_path", "t5-small", "--do_train", "--max_steps=20"]).flags
    {'model_name_or_path': 't5-small', 'do_train': True, 'max_steps': '20'}
    >>> parse(["gin/demo.gin", "--gin.TRAIN_STEPS=20"]) is None, parse(["config.json"]).json
    (True, 'config.json')
    """
    if not _is_of_script(argv):
        return None
    json_file = None
    flags = {}
    rest = []
    waiting = list(argv)
    while waiting:
        argument = waiting.pop(0)
        match = _FLAG.fullmatch(argument)
        if match is None or argument.startswith("--gin."):
            if argument.endswith(".json") and json_file is None:
                json_file = argument
            elif not argument.endswith(".py"):
                rest.append(argument)
            elif os.path.basename(argument).startswith(keys.OTHER_SCRIPTS):
                raise _of_another_script(f"{argument} is one")
            continue
        name = match["name"].replace("-", "_")
        value = match["value"]
        if name in OWN_FLAGS:
            rest.append(argument)
            if value is None and name in ("gin_file", "gin_search_paths") and waiting:
                rest.append(waiting.pop(0))
        elif name.startswith("no_") and name.removeprefix("no_") in keys.KNOWN and name not in keys.KNOWN:
            flags[name.removeprefix("no_")] = False
        else:
            flags[name] = _value(name, value, waiting)
    for argument in rest:
        if argument.endswith(".gin"):
            script = json_file or f"--{next(iter(flags))}"
            raise InputError(f"Both {script} and the gin file {argument} are given; give one, and --gin.NAME=VALUE.")
    for argument in rest:
        if not _is_flag(argument) and argument not in _values_of(rest):
            raise InputError(f"The argument {argument} is not known: no flag takes it; write --NAME VALUE.")
    return Arguments(json_file, flags, rest)


def _values_of(rest: Sequence[str]) -> list[str]:
    """Returns the arguments that follow a flag of limba train."""
    return [after for flag, after in itertools.pairwise(rest) if flag.startswith("--") and "=" not in flag]


def _value(name: str, value: str | None, waiting: list[str]) -> object:
    """Returns a flag's value, from behind its `=` or from the arguments that follow, which it then removes."""
    is_bool = keys.KINDS.get(name) is bool
    values = []
    if value is not None:
        values.append(value)
    else:
        while waiting and not _is_flag(waiting[0]):
            if values and name not in WITH_SEVERAL:
                break
            if is_bool and waiting[0].lower() not in TRUTHS:  # --do_train config.json: the file is not its value
                break
            values.append(waiting.pop(0))
    if not values:
        takes_value = name in keys.KINDS and not is_bool and name != "use_auth_token"
        if takes_value:
            raise InputError(f"--{name} has no value; write --{name}=VALUE.")
        return True
    if is_bool:
        if values[0].lower() not in TRUTHS:
            raise InputError(f"--{name} is {values[0]}; give true or false, or only --{name}.")
        return TRUTHS[values[0].lower()]
    return values[0] if len(values) == 1 else values


def _is_flag(argument: str) -> bool:
    return _FLAG.fullmatch(argument) is not None or argument.startswith("--gin.")


def _is_of_script(argv: Sequence[str]) -> bool:
    """Returns whether a command line is a script's: it names a .json or .py file, or one of the scripts' flags."""
    if any(argument.endswith((".json", ".py")) and not argument.startswith("-") for argument in argv):
        return True
    names = []
    for argument in argv:
        match = _FLAG.fullmatch(argument)
        if match is not None:
            names.append(match["name"].replace("-", "_"))
    if any(name in keys.KNOWN or name in keys.OF_OTHER_SCRIPTS for name in names):
        return True
    if any(argument.endswith(".gin") or argument.startswith("--gin_file") for argument in argv):
        return False
    # A flag that nobody knows, and that is nearly one of the scripts': their reader names the right one.
    unknown = [name for name in names if name not in OWN_FLAGS and not difflib.get_close_matches(name, OWN_FLAGS)]
    return any(difflib.get_close_matches(name, keys.KNOWN, cutoff=0.8) for name in unknown)
