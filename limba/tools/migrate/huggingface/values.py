"""The values of a script's configuration, from JSON and from its command line: checked, each of its key's kind."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.api import did_you_mean
from limba.config import InputError, plain
from limba.config.errors import reason_of
from limba.tools.migrate.huggingface.keys import (
    ABOVE_ZERO,
    BY_DEFAULT,
    KINDS,
    KNOWN,
    NOTED,
    REFUSED,
    SILENT,
    TOKENS,
    WORDS,
)

PAGE = "docs/coming_from_huggingface.md"
COMMAND_LINE = "The command line"


def read_values(path: str | None, flags: Mapping[str, Any]) -> tuple[dict[str, Any], str, list[str]]:
    """Returns (the values, the name of their place, a line for each key that has no choice here).

    `flags` replace the values of the JSON at `path`. A token among them is set as HF_TOKEN and left out. Raises
    InputError for a file that cannot be read, an unknown key, and a value of another kind.
    """
    given = {**(_json(path) if path else {}), **flags}
    place = path or COMMAND_LINE
    values, notes = {}, []
    for key, value in given.items():
        if key not in KNOWN:
            near = did_you_mean(key, KNOWN).rstrip(".")
            raise InputError(f"{place} has the key {key!r}, which is not known{near or ';'} ({PAGE} lists them).")
        if value is None or key in REFUSED or key in NOTED:
            notes += _note(place, key, value)
        elif key in TOKENS:
            _use_token(place, key, value)
        else:
            values[key] = checked(place, key, value)
    return values, place, notes


def _json(path: str) -> dict[str, Any]:
    try:
        values = json.loads(Path(os.path.expanduser(path)).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--json={path} cannot be read as JSON ({reason_of(error)}); give a JSON object.") from error
    if not isinstance(values, dict):
        raise InputError(f"--json={path} holds no JSON object; give one of keys and values.")
    if "format" in values and ("run" in values or "model" in values):
        raise InputError(
            f"{path} is the config.json of a run of Limba; limba train MODEL_DIR/config.gin trains it, and a"
            " configuration of Hugging Face's scripts has keys such as model_name_or_path."
        )
    return values


def _note(place: str, key: str, value: Any) -> list[str]:
    """Returns the line of a key without a choice here; none for a value that asks for nothing."""
    usual = (None, *BY_DEFAULT, *SILENT.get(key, ()))
    if any(value == each and type(value) is type(each) for each in usual):
        return []
    if key in REFUSED:
        raise InputError(f"{place} gives {key} {value!r}, which has no counterpart here; {REFUSED[key]} ({PAGE}).")
    return [f"{key} {value!r}: {NOTED[key]}."] if key in NOTED else []


def _use_token(place: str, key: str, value: Any) -> None:
    """Sets HF_TOKEN for this process and those that it starts; true stands for the login of this machine."""
    if value in (False, "", "false", "False") or value in (True, "true", "True"):
        return
    if not isinstance(value, str):
        raise InputError(f"{place} gives a {key} that is no text; give a token of the hub, or leave it out.")
    os.environ["HF_TOKEN"] = value


def checked(place: str, key: str, value: Any) -> Any:
    """Returns a value as its key's kind; InputError for another one. Strings may spell numbers, true and false.

    >>> checked("a.json", "learning_rate", "5e-5"), checked("a.json", "max_steps", "20")
    (5e-05, 20)
    """
    kind = KINDS[key]
    value = _spelled(kind, value)
    if not (isinstance(value, kind) if kind is list else plain.fits(value, kind)):
        raise InputError(f"{place} gives {key} {value!r}; give {WORDS[kind]}.")
    if key in ABOVE_ZERO and value < 1:
        raise InputError(f"{place} gives {key} {value!r}; give a whole number above 0.")
    if value == "" or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{place} gives {key} {value!r}; give {WORDS[kind]}, or leave it out.")
    return value


def _spelled(kind: type, value: Any) -> Any:
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
    return int(number) if kind is int and math.isfinite(number) and number == int(number) else number
