"""A configuration as plain data: the text of config.json, and the configuration that such a text describes.

Each run writes its config.json; whatever takes a run's directory reads that. Format 1 is that of version 0.2: a run
that began with it reads it here, and writes it as format 2 when it resumes.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from limba.config.errors import InputError, nearest, reason_of, without_credentials
from limba.config.kinds import fits, in_words
from limba.config.model import ModelConfig
from limba.config.optimizer import OptimizerConfig, fields_of, foreign_fields
from limba.config.run import RunConfig

FILE = "config.json"
FORMAT = 2
RESUME = "which this version of Limba cannot do; resume the run with version 0.2"
# A field of format 1 -> its value in the runs that go on as they began, and what is said of another value.
GONE: dict[str, tuple[object, str]] = {
    "DataConfig.segments": ("vocabulary", RESUME),
    "GenerationConfig.banned_ids": ([], "which no search takes any more; remove it"),
    "MeshConfig.memory_gib": (None, "which is a part of MeshConfig.auto now; remove it, and give the number there"),
    "OptimizerConfig.ademamix_warmup_steps": (None, RESUME),
    "OptimizerConfig.epsilon1": (1e-30, RESUME),
    "OptimizerConfig.epsilon2": (1e-3, RESUME),
    "OptimizerConfig.muon_steps": (5, RESUME),
    "ScheduleConfig.min_learning_rate": (1e-8, "which is ScheduleConfig.final_learning_rate now; rename it"),
}
KINDS = {"run": RunConfig, "model": ModelConfig}


def to_text(config: RunConfig | ModelConfig) -> str:
    """Returns the text of config.json: every field of the configuration, with its resolved value.

    Addresses are without their credentials.

    >>> to_text(ModelConfig(256, 32, 2, 16, 64, 2, 2)).split("\\n")[:4]
    ['{', ' "format": 2,', ' "model": {', '  "vocab_size": 256,']
    """
    (kind,) = (kind for kind, owner in KINDS.items() if isinstance(config, owner))
    return json.dumps({"format": FORMAT, kind: as_data(config)}, indent=1, ensure_ascii=False, default=os.fspath) + "\n"


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
    return _built(_upgraded(values, owner, place, document["format"] < FORMAT), owner, place)


def _upgraded(values: object, owner: Any, place: str, lists_all: bool) -> object:
    """Returns the fields of a dataclass without those that are gone.

    Format 1 `lists_all` fields of all optimizers, and ignored them.
    """
    if not isinstance(values, dict):
        return values
    hints, kept = fields_of(owner), dict[str, object]()
    ignored = foreign_fields(values.get("name", owner.name), values) if lists_all and owner is OptimizerConfig else ()
    for name, value in values.items():
        if name not in ignored and not is_gone(f"{owner.__name__}.{name}", value, place):
            inner = hints.get(name)
            kept[name] = _upgraded(value, inner, place, lists_all) if dataclasses.is_dataclass(inner) else value
    return kept


def is_gone(field: str, value: object, place: str) -> bool:
    """Returns whether version 0.2 had this field and the run goes on without it; InputError for another value.

    >>> is_gone("DataConfig.segments", "vocabulary", "config.json"), is_gone("DataConfig.seed", 1, "config.json")
    (True, False)
    """
    kept, sentence = GONE.get(field, (None, ""))
    if field in GONE and (list(value) if isinstance(value, tuple) else value) != kept:
        raise InputError(f"{place}: {field} is {value!r}, {sentence}.")
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


def as_data(value: object) -> Any:
    """Returns a configuration, or a value of one, as JSON gives it back; addresses are without their credentials."""
    if dataclasses.is_dataclass(value):
        return {entry.name: as_data(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: as_data(item) for key, item in value.items()}
    if isinstance(value, str):
        return without_credentials(value)
    return [as_data(item) for item in value] if isinstance(value, list | tuple) else value


def _built(values: object, owner: Any, place: str) -> Any:
    """Returns the dataclass `owner` with these fields."""
    name, hints = owner.__name__, fields_of(owner)
    if not isinstance(values, dict):
        raise InputError(f"{place}: {name} is {values!r}; give its fields.")
    for unknown in sorted(set(values) - set(hints)):
        near = nearest(unknown, hints)
        advice = f"did you mean {near}?" if near else "remove it."
        raise InputError(f"{place}: {name} has no field {unknown!r}; {advice}")
    for entry in dataclasses.fields(owner):
        has_default = (entry.default, entry.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        if entry.name not in values and not has_default:
            raise InputError(f"{place}: {name}.{entry.name} is missing; add it.")
    fields = dict[str, object]()
    for field, value in values.items():
        if dataclasses.is_dataclass(hints[field]):
            fields[field] = _built(value, hints[field], place)
        elif fits(value, hints[field]):
            fields[field] = value
        else:
            raise InputError(f"{place}: {name}.{field} is {value!r}; give {in_words(hints[field])}.")
    try:
        return owner(**fields)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
