"""A configuration as plain data: the text of config.json, and the configuration that such a text describes.

Each run writes its config.json; whatever takes a run's directory reads that.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from limba.config.errors import InputError, nearest, reason_of, without_credentials
from limba.config.kinds import fits, in_words
from limba.config.model import ModelConfig
from limba.config.optimizer import OptimizerConfig, fields_of, optimizer_config
from limba.config.run import RunConfig

FILE = "config.json"
FORMAT = 2
KINDS = {"run": RunConfig, "model": ModelConfig}


def to_text(config: RunConfig | ModelConfig) -> str:
    """Returns the text of config.json: every field of the configuration, with its resolved value.

    Addresses are without their credentials.

    >>> to_text(ModelConfig(256, 32, 2, 16, 64, 2, 2)).split("\\n")[:4]
    ['{', ' "format": 2,', ' "model": {', '  "vocab_size": 256,']
    """
    (kind,) = (kind for kind, owner in KINDS.items() if isinstance(config, owner))
    return json.dumps({"format": FORMAT, kind: as_data(config)}, indent=1, ensure_ascii=False, default=os.fspath) + "\n"


def from_text(text: str, path: str) -> RunConfig | ModelConfig:
    """Returns the configuration that `to_text` wrote; a field that the text leaves out has its default.

    `path` says where the text is from. Raises InputError, which names it and the field, for a text that is not JSON,
    another format, an unknown or missing field, and a value that the field does not take.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({reason_of(error)}); restore it from a copy.") from None
    kinds = [kind for kind in KINDS if isinstance(document, dict) and kind in document]
    if len(kinds) != 1 or not isinstance(document.get("format"), int):
        raise InputError(f"{path} is not a Limba configuration: it needs 'format', and 'run' or 'model'.")
    if document["format"] != FORMAT:
        is_newer = document["format"] > FORMAT
        advice = "install a newer version" if is_newer else "use the version that wrote it"
        raise InputError(
            f"{path} has format {document['format']}, and this version of Limba reads format {FORMAT}; {advice}."
        )
    return _built(document[kinds[0]], KINDS[kinds[0]], path)


def moved(run: RunConfig, directory: str) -> RunConfig:
    """Returns the run of a directory that may be a copy: the path of a vocabulary in it is updated.

    >>> from limba.config import DataConfig
    >>> data = DataConfig("corpus", {"inputs": 512}, 8, new_vocabulary_size=1000)
    >>> run = RunConfig(ModelConfig(1024, 32, 2, 16, 64, 2, 2), data, "/old/run", 100)
    >>> moved(run, "/new/run").data.vocabulary
    '/new/run/vocabulary.model'
    """
    old_directory = run.model_dir.rstrip("/")
    vocabulary = run.data.vocabulary
    if vocabulary is not None and vocabulary.startswith(f"{old_directory}/"):
        copy = directory.rstrip("/") + vocabulary.removeprefix(old_directory)
        only_the_old_exists = os.path.exists(vocabulary) and not os.path.exists(copy)
        if not only_the_old_exists:
            vocabulary = copy
    return dataclasses.replace(run, model_dir=directory, data=dataclasses.replace(run.data, vocabulary=vocabulary))


def as_data(value: object) -> Any:
    """Returns a configuration, or a value of one, as JSON gives it back; addresses are without their credentials."""
    if dataclasses.is_dataclass(value):
        return {entry.name: as_data(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, str):
        return without_credentials(value)
    return [as_data(item) for item in value] if isinstance(value, list | tuple) else value


def _built(values: object, owner: Any, path: str) -> Any:
    """Returns the dataclass `owner` with these fields."""
    name = owner.__name__
    hints = fields_of(owner)
    if not isinstance(values, dict):
        raise InputError(f"{path}: {name} is {values!r}; give its fields.")
    for unknown in sorted(set(values) - set(hints)):
        near = nearest(unknown, hints)
        advice = f"did you mean {near}?" if near else "remove it."
        raise InputError(f"{path}: {name} has no field {unknown!r}; {advice}")
    for entry in dataclasses.fields(owner):
        has_default = (entry.default, entry.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        if entry.name not in values and not has_default:
            raise InputError(f"{path}: {name}.{entry.name} is missing; add it.")
    fields = dict[str, Any]()
    for field, value in values.items():
        if dataclasses.is_dataclass(hints[field]):
            fields[field] = _built(value, hints[field], path)
        elif fits(value, hints[field]):
            fields[field] = value
        else:
            raise InputError(f"{path}: {name}.{field} is {value!r}; give {in_words(hints[field])}.")
    make = optimizer_config if owner is OptimizerConfig else owner
    try:
        return make(**fields)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
