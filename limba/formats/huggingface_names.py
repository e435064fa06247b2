"""The names of a folder's arrays as transformers resolves them: its prefixes, its tied copies, and what it passes over.

Facts of transformers 4.57.6 and 5.23, by model_type. A class stores its base model's arrays with the prefix of that
model or without, and `from_pretrained` takes both (`rename_source_key` in core_model_loading.py): openai's gpt2 and
what `LlamaModel.save_pretrained` writes have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from limba.config import InputError
from limba.formats.names import Arrays


class Names(NamedTuple):
    """What the classes of a model_type call their arrays."""

    prefix: str  # `base_model_prefix`
    base: tuple[str, ...]  # the parts of the base model
    head: tuple[str, ...]  # the parts of the classes on top of it
    has_prefix: bool  # whether the class with a language head stores the prefix
    # One matrix under several names (`_tied_weights_keys`): transformers reads the first that a folder holds.
    embedding: tuple[str, ...]
    output: str  # the output layer, which may be another name of that matrix
    # What the classes pass over: `_keys_to_ignore_on_load_unexpected`, and buffers that older versions saved.
    passed_over: tuple[str, ...]


# Published T5s hold a relative bias of the cross-attention, which no network has (transformers#8933). Listed by
# {T5,MT5}Model, …ForConditionalGeneration, …ForSequenceClassification, …ForQuestionAnswering, and by two of UMT5's.
_LEFT_OVER = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
_OF_T5 = Names(
    prefix="transformer",
    base=("shared", "encoder", "decoder"),
    head=("lm_head", "classifier"),
    has_prefix=False,
    embedding=("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    output="lm_head.weight",
    passed_over=(_LEFT_OVER,),
)
# Until version 4.31 each layer of a Llama saved the frequencies of its rotary positions.
_OF_LLAMA = Names(
    prefix="model",
    base=("embed_tokens", "layers", "norm", "rotary_emb"),
    head=("lm_head", "dense", "classifier"),
    has_prefix=True,
    embedding=("model.embed_tokens.weight",),
    output="lm_head.weight",
    passed_over=(r".*rotary_emb\.inv_freq",),
)
NAMES = {
    "t5": _OF_T5,
    "mt5": _OF_T5,
    "umt5": _OF_T5,
    "llama": _OF_LLAMA,
    "eurobert": _OF_LLAMA,
    "gpt2": Names(
        prefix="transformer",
        base=("wte", "wpe", "h", "ln_f"),
        head=("lm_head",),
        has_prefix=True,
        embedding=("transformer.wte.weight",),
        output="lm_head.weight",
        # The causal mask: `attn.bias` is listed by version 5; versions before 4.31 saved both, as bytes or booleans.
        passed_over=(r"transformer\.h\.\d+\.(attn|crossattention)\.(bias|masked_bias)",),
    ),
    "modernbert": Names(
        prefix="model",
        base=("embeddings", "layers", "final_norm", "rotary_emb"),
        head=("head", "decoder", "classifier"),
        has_prefix=True,
        embedding=("model.embeddings.tok_embeddings.weight",),
        output="decoder.weight",
        passed_over=(r".*rotary_emb\.\w*inv_freq", r"(.*\.)?position_ids"),
    ),
}
# T5EncoderModel lists r"decoder": it takes the encoder out of a whole T5. MT5's and UMT5's pass over it with a warning.
PASSED_OVER_BY_ENCODERS = (r"decoder\..*",)


def canonical(name: str, kind: str) -> str:
    """Returns the name that the class with a language head gives to an array of a folder.

    >>> canonical("wte.weight", "gpt2"), canonical("transformer.shared.weight", "t5")
    ('transformer.wte.weight', 'shared.weight')
    """
    names = NAMES[kind]
    dot = f"{names.prefix}."
    inner = name.removeprefix(dot)
    if inner.startswith(dot) or inner.partition(".")[0] in names.head:  # the whole class inside of another one
        name = inner
        inner = name.removeprefix(dot)
    if inner.partition(".")[0] not in names.base:
        return name
    return dot + inner if names.has_prefix else inner


def renamed(stored: Arrays, kind: str, where: str) -> Arrays:
    """Returns arrays by their canonical names; InputError for two that have the same one."""
    canonical_arrays = {}
    origin: dict[str, str] = {}
    for name, array in stored.stored.items():
        new = canonical(name, kind)
        if new in canonical_arrays:
            raise InputError(
                f"{where} holds {new} twice, as {origin[new]} and {name}; remove one of them, or give another folder."
            )
        canonical_arrays[new] = array
        origin[new] = name
    return Arrays(canonical_arrays)


def embedding_of(names: Iterable[str], kind: str) -> str:
    """Returns under which name the embedding is read; "" where there is none.

    A folder whose layers are tied may hold the matrix under the name of its output layer alone.
    """
    present = set(names)
    candidates = (*NAMES[kind].embedding, NAMES[kind].output)
    return next((name for name in candidates if name in present), "")


def is_of_head(name: str, kind: str) -> bool:
    """Returns whether an array, by its canonical name, belongs to what a class has on top of its base model.

    >>> is_of_head("classifier.weight", "eurobert"), is_of_head("model.norm.weight", "eurobert")
    (True, False)
    """
    return name.partition(".")[0] in NAMES[kind].head


def is_passed_over(name: str, kind: str, is_encoder: bool = False) -> bool:
    """Returns whether a folder is read as if an array were not there, as transformers does.

    With `is_encoder` the encoder alone is read: without a T5's decoder, and without what stands on top.
    """
    patterns = NAMES[kind].passed_over
    if is_encoder:
        if is_of_head(name, kind):
            return True
        if kind.endswith("t5"):
            patterns = (*patterns, *PASSED_OVER_BY_ENCODERS)
    return any(re.fullmatch(pattern, name) for pattern in patterns)
