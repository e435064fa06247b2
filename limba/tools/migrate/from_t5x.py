"""Reads T5X's config.gin beside a checkpoint: the fields of its T5Config, and the vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from etils import epath

from limba.cli.gin.statements import Macro, Reference, Source, read_text
from limba.config import ModelConfig
from limba.inference.source import VocabularyName
from limba.storage import files
from limba.tools.migrate.t5x.model import own_activations

_FIELDS = {entry.name for entry in dataclasses.fields(ModelConfig)}
_TRAINING_ONLY = {"dropout_rate", "dtype", "remat", "scan_layers", "attention"}


def read(folders: Sequence[epath.Path], network: ModelConfig) -> tuple[ModelConfig, VocabularyName | None]:
    """Returns the network and the vocabulary that the first config.gin in the folders describes.

    `network` is what follows from the arrays' shapes; fields that config.gin sets replace its own.
    """
    file = next((folder / "config.gin" for folder in folders if (folder / "config.gin").exists()), None)
    if file is None:
        return network, None
    source = Source()
    read_text(source, files.read_text(file), str(file))
    fields = _fields(source, "T5Config", "TransformerConfig")
    if fields:
        fields.setdefault("mlp_activations", ("relu",))  # T5X's own default
    known = {name: value for name, value in fields.items() if name in _FIELDS - _TRAINING_ONLY}
    activations = known.get("mlp_activations")
    if isinstance(activations, list | tuple):
        known["mlp_activations"] = own_activations(activations)
    if network.is_decoder_only and not _fields(source, "DecoderOnlyModel").get("inputs_bidirectional_attention"):
        known["prefix_attention"] = "causal"
    return dataclasses.replace(network, **known), _vocabulary(source, str(file))


def _fields(source: Source, *names: str) -> dict[str, object]:
    """Returns the bound fields of the classes of these names, in whatever module, with macros replaced."""
    macros = {binding.name: binding.value for binding in source.bindings if not binding.field}
    values = {}
    for binding in source.bindings:
        if binding.field and binding.owner.rpartition(".")[2] in names:
            value = binding.value
            for _ in range(8):  # a macro may name another
                if isinstance(value, Macro):
                    value = macros.get(value.name, value)
            if not isinstance(value, Macro | Reference):
                values[binding.field] = value
    return values


def _vocabulary(source: Source, where: str) -> VocabularyName | None:
    """Returns the vocabulary that the config names, seqio's SentencePiece or bytes, or None."""
    bindings = _fields(source, "SentencePieceVocabulary")
    path = bindings.get("sentencepiece_model_file")
    extra_ids = bindings.get("extra_ids")
    if isinstance(path, str):
        return VocabularyName(path, extra_ids if isinstance(extra_ids, int) else None, where)
    used = {binding.value.name for binding in source.bindings if isinstance(binding.value, Reference)}
    if any(name.rpartition(".")[2] == "ByteVocabulary" for name in used):
        extra_ids = _fields(source, "ByteVocabulary").get("extra_ids")
        return VocabularyName("byte", extra_ids if isinstance(extra_ids, int) else 0, where)
    return None
