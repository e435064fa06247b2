"""A configuration as plain data: the text of config.json, and the configuration that such a text describes.

Each run writes its config.json; whatever takes a run's directory reads that. Format 1 is that of version 0.2: a run
that began with it reads it here, and writes it as format 2 when it resumes.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import typing
from collections.abc import Mapping
from typing import Any

from limba.config.errors import InputError, reason_of
from limba.config.kinds import fits, in_words
from limba.config.model import ModelConfig
from limba.config.run import RunConfig
from limba.config.secrets import without_credentials

FILE = "config.json"
FORMAT = 2
GONE = {"DataConfig.segments": "vocabulary"}  # a field of format 1 -> its value in the runs that go on as they began
KINDS = {"run": RunConfig, "model": ModelConfig}


def to_text(config: RunConfig | ModelConfig) -> str:
    """Returns the text of config.json: every field of the configuration, with its resolved value.

    Addresses are without their credentials.

    >>> to_text(ModelConfig(256, 32, 2, 16, 64, 2, 2)).split("\\n")[:4]
    ['{', ' "format": 2,', ' "model": {', '  "vocab_size": 256,']
    """
    (kind,) = (kind for kind, owner in KINDS.items() if isinstance(config, owner))
    return json.dumps({"format": FORMAT, kind: _plain(config)}, indent=1, ensure_ascii=False, default=os.fspath) + "\n"


def from_text(text: str, place: str) -> RunConfig | ModelConfig:
    """Returns the configuration that `to_text` wrote; a field that the text leaves out has its default.

    `place` is the text's path. Raises InputError, which names the place and the field, for a text that is not JSON,
    a newer format, an unknown or missing field, and a value that the field does not take.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is not JSON ({reason_of(error)}); restore it from a copy.") from None
    kinds = [kind for kind in KINDS if isinstance(document, dict) and kind in document]
    if len(kinds) != 1 or not isinstance(document.get("format"), int):
        raise InputError(f"{place} is not a Limba configuration: it needs 'format', and 'run' or 'model'.")
    if document["format"] > FORMAT:
        raise InputError(
            f"{place} has format {document['format']}, and this version of Limba reads formats up to {FORMAT};"
            " install a newer version."
        )
    values, owner = document[kinds[0]], KINDS[kinds[0]]
    return _built(_upgraded(values, owner, place) if document["format"] < FORMAT else values, owner, place)


def _upgraded(values: Any, owner: Any, place: str) -> Any:
    """Returns the fields of a dataclass in format 1 as those of today."""
    if not isinstance(values, dict):
        return values
    hints, kept = typing.get_type_hints(owner), dict[str, Any]()
    for name, value in values.items():
        if not is_gone(f"{owner.__name__}.{name}", value, place):
            inner = hints.get(name)
            kept[name] = _upgraded(value, inner, place) if dataclasses.is_dataclass(inner) else value
    return kept


def is_gone(field: str, value: Any, place: str) -> bool:
    """Returns whether version 0.2 had this field and the run goes on without it; InputError for another value.

    >>> is_gone("DataConfig.segments", "vocabulary", "config.json"), is_gone("DataConfig.seed", 1, "config.json")
    (True, False)
    """
    if field in GONE and value != GONE[field]:
        raise InputError(
            f"{place}: {field} is {value!r}, which this version of Limba cannot do; resume the run with version 0.2."
        )
    return field in GONE


def moved(run: RunConfig, directory: str) -> RunConfig:
    """Returns the run of a directory that may be a copy: the path of a vocabulary in it is updated.

    >>> from limba.config import DataConfig
    >>> data = DataConfig("corpus", {"inputs": 512}, 8, new_vocabulary_size=1000)
    >>> run = RunConfig(ModelConfig(1024, 32, 2, 16, 64, 2, 2), data, "/old/run", 100)
    >>> moved(run, "/new/run").data.vocabulary
    '/new/run/vocabulary.model'
    """
    before, vocabulary = run.model_dir.rstrip("/"), run.data.vocabulary
    if vocabulary is not None and vocabulary.startswith(f"{before}/"):
        name = vocabulary.removeprefix(before)
        here = directory.rstrip("/") + name
        vocabulary = vocabulary if os.path.exists(vocabulary) and not os.path.exists(here) else here
    return dataclasses.replace(run, model_dir=directory, data=dataclasses.replace(run.data, vocabulary=vocabulary))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return without_credentials(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _built(values: Any, owner: Any, place: str) -> Any:
    """Returns the dataclass `owner` with these fields."""
    name, hints = owner.__name__, typing.get_type_hints(owner)
    if not isinstance(values, dict):
        raise InputError(f"{place}: {name} is {values!r}; give its fields.")
    for unknown in sorted(set(values) - set(hints)):
        near = difflib.get_close_matches(unknown, hints, n=1)
        advice = f"did you mean {near[0]}?" if near else "remove it."
        raise InputError(f"{place}: {name} has no field {unknown!r}; {advice}")
    fields = {}
    for entry in dataclasses.fields(owner):
        if entry.name not in values:
            if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING:
                raise InputError(f"{place}: {name}.{entry.name} is missing; add it.")
            continue
        value, hint = values[entry.name], hints[entry.name]
        if dataclasses.is_dataclass(hint):
            fields[entry.name] = _built(value, hint, place)
        elif fits(value, hint):
            fields[entry.name] = _tuples(value)
        else:
            raise InputError(f"{place}: {name}.{entry.name} is {value!r}; give {in_words(hint)}.")
    try:
        return owner(**fields)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
