"""The section Config: what the gin files resolve to, what they replace of the files that they include, and errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from limba.cli.gin.statements import REQUIRED, Binding, Source
from limba.config import InputError, RunConfig, without_credentials
from limba.config.kinds import class_name
from limba.tools.preflight.checks.verdict import Data, Line, Section

TITLE = "Config"
SHOWN = 60  # characters of a value


def of_error(error: InputError) -> Section:
    """Returns the section for gin files that describe no run."""
    from limba.tools.preflight.checks.findings import error_line

    line = error_line(error)
    if not error.field:
        line = dataclasses.replace(line, code="gin-file")
    return Section(TITLE, [line]).worded(error.names)


def resolved(config: RunConfig, names: Mapping[str, str], source: Source | None) -> Section:
    """Returns the section of a run that could be read, with the statements of its gin files if it has some."""
    from limba.tools.preflight.checks.differences import with_saved_run
    from limba.tools.preflight.checks.findings import gathered

    def values(data: Data) -> Iterator[Line]:
        data["macros"] = {macro: _text(_value(config, field)) for field, macro in sorted(names.items())}
        yield Line("ok", _summary(config))

    def replaced(data: Data) -> Iterator[Line]:
        rows = [] if source is None else replacements(source)
        data["replaced"] = [list(row) for row in rows]
        if rows:
            lines = [f"{name} = {now}, in place of {before} ({location})" for name, now, before, location in rows]
            yield Line("ok", "\n".join(["Set in place of the included files' values:", *lines]))

    return gathered(TITLE, values, replaced, lambda data: with_saved_run(config, data))


def _summary(config: RunConfig) -> str:
    model = config.model
    data = config.data
    layers = f"{model.num_encoder_layers} + {model.num_decoder_layers}"
    if model.is_encoder:
        kind = "encoder"
    elif model.is_decoder_only:
        kind = "decoder-only"
    else:
        kind = "encoder-decoder"
    end = f"{config.train_steps:,} steps" if config.train_steps else f"{data.num_epochs} epochs"
    return (
        f"{data.mixture_or_task_name}: {kind}, {layers} layers of width {model.emb_dim:,}, {model.vocab_size:,} rows,"
        f" {model.dtype}; {end} of {data.batch_size:,} rows {dict(data.task_feature_lengths)},"
        f" {config.optimizer.name}, in {without_credentials(config.model_dir)}."
    )


def _value(config: RunConfig, field: str) -> object:
    """Returns the value of a field, as "DataConfig.batch_size"."""
    owner, _, name = field.partition(".")
    for part in (config, *(getattr(config, entry.name) for entry in dataclasses.fields(config))):
        if class_name(part) == owner:
            return getattr(part, name)
    return None


def replacements(source: Source) -> list[tuple[str, str, str, str]]:
    """Returns (name, value, the value before, where that was) of each name whose value a later statement replaces."""
    last: dict[str, Binding] = {binding.name: binding for binding in source.bindings}
    rows = {}
    for binding in source.bindings:
        now = last[binding.name]
        has_other_value = binding.value != REQUIRED and binding.value != now.value
        if has_other_value and _file(binding.location) != _file(now.location):
            rows[binding.name] = (binding.name, _text(now.value), _text(binding.value), binding.location)
    return list(rows.values())


def _file(location: str) -> str:
    return location.partition(" line ")[0]


def _text(value: object) -> str:
    text = without_credentials(repr(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
