"""The networks as transformers' classes: names and shapes of their arrays, one table for both directions.

They are T5, umT5, Llama, EuroBERT, ModernBERT and GPT-2. A decoder with rotary positions, RMS norm and a gated MLP is
a Llama, and without its causal mask a EuroBERT, whose output layer has a bias if its MLPs have one. With a window, a
norm of the embeddings and a head of its own it is a ModernBERT, whose matrices are fused as a GPT-2's. One with learned
or sinusoidal positions, layer norm and a plain MLP is a GPT-2: queries, keys and values are one matrix there, sinusoids
are written as a table of positions, and missing biases as zeros. Any other network is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from limba.config import InputError, ModelConfig
from limba.formats.names import Arrays, Json, Stored, check_names

SINUSOID_SCALE = 10_000.0
EMBEDDING = "token_embedder/embedding"
# The output layer: its name here, in transformers' classes, and in those that call it otherwise.
HEAD = "decoder/logits_dense/kernel"
STORED_HEAD = "lm_head.weight"
HEADS = {"modernbert": "decoder.weight"}
NO_LOGITS_BIAS = (
    "has no bias of the logits, which ModelConfig.biases holds; train without 'logits' there, as the shipped models do,"
    " or use this model in Limba"
)
CLASSES = {
    "t5": "T5ForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
    "llama": "LlamaForCausalLM",
    "eurobert": "EuroBertForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
}
# The classes of encoders without an output layer, which give hidden states.
CLASSES_OF_STATES = {
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
    "eurobert": "EuroBertModel",
    "modernbert": "ModernBertModel",
}
_GATES = ("query", "key", "value")
_BRANCHES = ("wi_0", "wi_1")
# Classes with one matrix for several of ours: its name, and ours in their order.
_FUSIONS = {"gpt2": {"qkv": _GATES}, "modernbert": {"qkv": _GATES, "wi": _BRANCHES}}
_EMBEDDING_NORM = "decoder/layers_0/pre_self_attention_layer_norm"
_LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "rel_embedding": "weight"}
# The parts of a parameter's name: T5X's, and PyTorch's.
_PARTS: Mapping[str, Mapping[str, str]] = {
    "t5": {
        "token_embedder": "shared", "layers": "block", "query": "q", "key": "k", "value": "v", "out": "o",
        "attention": "layer.0.SelfAttention", "pre_attention_layer_norm": "layer.0.layer_norm",
        "self_attention": "layer.0.SelfAttention", "pre_self_attention_layer_norm": "layer.0.layer_norm",
        "encoder_decoder_attention": "layer.1.EncDecAttention", "pre_cross_attention_layer_norm": "layer.1.layer_norm",
        "relpos_bias": "layer.0.SelfAttention.relative_attention_bias",
        "encoder_norm": "final_layer_norm", "decoder_norm": "final_layer_norm",
    },
    "llama": {
        "token_embedder": "model.embed_tokens", "decoder": "model", "layers": "layers", "decoder_norm": "norm",
        "self_attention": "self_attn", "query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj",
        "pre_self_attention_layer_norm": "input_layernorm", "pre_mlp_layer_norm": "post_attention_layernorm",
        "wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj",
    },
    "gpt2": {
        "token_embedder": "transformer.wte", "decoder": "transformer", "layers": "h", "decoder_norm": "ln_f",
        "position_embedding": "wpe.weight", "pre_self_attention_layer_norm": "ln_1", "pre_mlp_layer_norm": "ln_2",
        "self_attention": "attn", "qkv": "c_attn", "out": "c_proj", "wi": "c_fc", "wo": "c_proj",
    },
    "modernbert": {
        "token_embedder": "model.embeddings.tok_embeddings", "decoder": "model", "layers": "layers",
        "decoder_norm": "final_norm", "pre_self_attention_layer_norm": "attn_norm", "pre_mlp_layer_norm": "mlp_norm",
        "self_attention": "attn", "qkv": "Wqkv", "out": "Wo", "wi": "Wi", "wo": "Wo",
        "head_dense": "head.dense", "head_norm": "head.norm",
    },
}  # fmt: skip


class Row(NamedTuple):
    """One array's names on both sides, its shape in T5X, and whether PyTorch's is transposed."""

    t5x: str
    pytorch: str
    transposed: bool
    shape: tuple[int, ...]


def kind(config: ModelConfig) -> str:
    """Returns a key of CLASSES; InputError for a network that none of these can represent."""
    if not config.is_decoder_only:
        return "umt5" if config.relative_bias_per_layer else "t5"
    if config.is_modernbert:
        key = "modernbert"
    elif config.is_encoder:
        key = "eurobert"
    elif config.positions == "rotary":
        key = "llama"
    else:
        key = "gpt2"
    reason = next(_reasons_against(config, key), None)
    if reason is not None:
        titles = {"modernbert": "ModernBERT", "eurobert": "EuroBERT", "llama": "Llama", "gpt2": "GPT-2"}
        name = "GPT-2 or Llama" if config.is_t5_decoder else titles[key]
        raise InputError(f"The network cannot be written for transformers: its {name} class {reason}.")
    return key


def _reasons_against(config: ModelConfig, key: str) -> Iterator[str]:
    """Yields how a class of transformers differs from this network of one stack, to follow "its … class"."""
    is_modern = key == "modernbert"
    is_gated = config.positions == "rotary"  # a Llama's or EuroBERT's MLP
    if config.is_t5_decoder:
        yield "has other positions than T5's relative ones; write it for T5X, or use it in Limba"
    if config.is_encoder and config.positions != "rotary":
        yield "has rotary positions, and ModelConfig.positions is not 'rotary'"
    if config.predicts_next:
        yield "predicts a mask at its own place, and ModelConfig.attention_mask is 'hybrid'; use it in Limba"

    norms = ("rms",) if is_gated else ("layer",)
    if is_modern:
        norms = ("layer", "layer_scale")
    if config.norm not in norms:
        yield f"has {' or '.join(norms).replace('rms', 'RMS')} norms, and ModelConfig.norm is {config.norm!r}"
    first, *gate = config.mlp_activations
    if first == "linear" or gate != (["linear"] if is_gated else []):
        yield f"has a {'gated' if is_gated else 'plain'} MLP, and mlp_activations are {config.mlp_activations}"

    # ModernBERT and GPT-2 store query, key and value as one matrix of the model's width each.
    if is_modern or not is_gated:
        if config.kv_heads != config.num_heads:
            yield "has keys for every head, and num_kv_heads is set"
        if config.num_heads * config.head_dim != config.emb_dim:
            yield "cuts emb_dim into heads, and num_heads times head_dim is another number"

    # EuroBertForMaskedLM has one switch, `mlp_bias`, for the MLPs and its output layer.
    if config.is_encoder and config.has_logits and not is_modern:
        if not config.logits_via_embedding and ("mlp" in config.biases) != ("logits" in config.biases):
            yield (
                "has a bias of the logits where its MLPs have one; put both 'mlp' and 'logits' into"
                " ModelConfig.biases, or none"
            )
        if config.logits_via_embedding and "mlp" in config.biases:
            yield "has a bias of the logits where its MLPs have one, and ModelConfig.logits_via_embedding is True"
    if "logits" in config.biases and not config.is_encoder:
        yield NO_LOGITS_BIAS


def family_of(name: str) -> str:
    return {"mt5": "t5", "umt5": "t5", "eurobert": "llama"}.get(name, name)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns a network's parameters by T5X's names, unstacked: name -> shape."""
    d = config.emb_dim
    joined = config.num_heads * config.head_dim  # queries of all heads
    shared = config.kv_heads * config.head_dim  # keys, and values, which several heads may share
    gates = ("wi",) if len(config.mlp_activations) == 1 else ("wi_0", "wi_1")
    shape_of: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, d)}

    def dense(name: str, shape: tuple[int, int], part: str) -> None:
        shape_of[f"{name}/kernel"] = shape
        if part in config.biases:
            shape_of[f"{name}/bias"] = shape[1:]

    def norm(name: str) -> None:
        shape_of[f"{name}/scale"] = (d,)
        if config.norm == "layer":
            shape_of[f"{name}/bias"] = (d,)

    def relative_bias(module: str) -> None:
        shape_of[f"{module}/relpos_bias/rel_embedding"] = (config.num_heads, config.num_relpos_buckets)

    if config.positions == "learned":
        shape_of["decoder/position_embedding"] = (config.max_length, d)
    # Of each side: its layers, and of each layer the attentions and the norms before them.
    encoder = {"attention": "pre_attention_layer_norm"}
    decoder = {"self_attention": "pre_self_attention_layer_norm"}
    cross = {"encoder_decoder_attention": "pre_cross_attention_layer_norm"}
    sides = [("encoder", config.num_encoder_layers, encoder), ("decoder", config.num_decoder_layers, decoder | cross)]
    if config.is_decoder_only:
        sides = [("decoder", config.num_decoder_layers, decoder)]
    elif config.is_t5_encoder:
        del sides[1]
    for side, num_layers, attentions in sides:
        for i in range(num_layers):
            layer = f"{side}/layers_{i}"
            for attention, norm_before in attentions.items():
                norm(f"{layer}/{norm_before}")
                for name, width in zip(_GATES, (joined, shared, shared), strict=True):
                    dense(f"{layer}/{attention}/{name}", (d, width), "attention")
                dense(f"{layer}/{attention}/out", (joined, d), "attention")
            norm(f"{layer}/pre_mlp_layer_norm")
            for name in gates:
                dense(f"{layer}/mlp/{name}", (d, config.mlp_dim), "mlp")
            dense(f"{layer}/mlp/wo", (config.mlp_dim, d), "mlp")
            if config.relative_bias_per_layer:
                relative_bias(layer)
        if config.positions == "relative" and not config.relative_bias_per_layer:
            relative_bias(side)
        norm(f"{side}/{side}_norm")
    if not config.has_logits:
        return shape_of
    if config.is_modernbert:
        dense("decoder/head_dense", (d, d), "head")
        norm("decoder/head_norm")
    if not config.logits_via_embedding:
        dense("decoder/logits_dense", (d, config.vocab_size), "logits")
    elif "logits" in config.biases:
        shape_of["decoder/logits_dense/bias"] = (config.vocab_size,)
    return shape_of


def check_arrays(arrays: Arrays, config: ModelConfig, where: str, advice: str) -> None:
    """Raises InputError for the first array that is missing, unknown, or of another shape."""
    present = arrays.shapes
    wanted = shapes(config)
    check_names(
        [name for name in wanted if name not in present], [name for name in present if name not in wanted], where
    )
    for name, shape in present.items():
        if shape != wanted[name]:
            raise InputError(
                f"{where} holds {name} as {shape}, and its configuration makes it {wanted[name]}; {advice}."
            )


def _pytorch_name(name: str, family: str) -> str:
    if name.startswith("decoder/logits_dense"):
        return HEADS.get(family, STORED_HEAD).replace("weight", "weight" if name == HEAD else "bias")
    if family == "modernbert":
        name = name.replace(_EMBEDDING_NORM, "model.embeddings.norm").replace("decoder/head_", "head_")
    parts = dict(_PARTS[family])
    if family == "t5":
        layer = "layer.1" if name.startswith("encoder") else "layer.2"
        parts |= {"mlp": f"{layer}.DenseReluDense", "pre_mlp_layer_norm": f"{layer}.layer_norm"}
        name = re.sub(r"^(\w+)/relpos_bias", r"\1/layers_0/relpos_bias", name)  # one for all layers is the first's
    *path, leaf = re.sub(r"/layers_(\d+)/", rf"/{parts['layers']}.\1/", name).split("/")
    return ".".join([*(parts.get(part, part) for part in path), parts.get(leaf, _LEAVES.get(leaf, leaf))])


def rows(config: ModelConfig) -> list[Row]:
    """Returns the table of the arrays that are written for a network; `written` computes a GPT-2's from Limba's."""
    name = kind(config)
    table = []
    if name == "gpt2":
        config = dataclasses.replace(config, biases=("attention", "mlp"), positions="learned")
    for ours, shape in shapes(config).items():
        whole, parts = _fusion(ours, name)
        if parts and f"/{parts[0]}/" not in ours:
            continue
        if parts:
            ours = whole
            shape = (*shape[:-1], len(parts) * shape[-1])
        is_transposed = ours.endswith(("kernel", "rel_embedding")) and (name != "gpt2" or ours == HEAD)
        theirs = _pytorch_name(ours, family_of(name))
        if not config.has_logits:  # a class without an output layer stores no prefix
            theirs = theirs.removeprefix("model.")
        table.append(Row(ours, theirs, is_transposed, shape))
    return table


def _fusion(ours: str, name: str) -> tuple[str, tuple[str, ...]]:
    """Returns the name of the class's array that contains one of ours, and the names of all its parts in order.

    An array that the class stores as Limba does gives its own name and ().
    """
    for fused, parts in _FUSIONS.get(name, {}).items():
        part = re.search(rf"/({'|'.join(parts)})/(kernel|bias)$", ours)
        if part is not None:
            return ours.replace(f"/{part[1]}/", f"/{fused}/"), parts
    return ours, ()


def sinusoid_table(length: int, width: int) -> np.ndarray:
    """Returns the embeddings of positions 0 to length - 1, float32 [length, width]."""
    half = width // 2
    frequencies = SINUSOID_SCALE ** (-np.arange(half) / max(half - 1, 1))
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    return np.pad(table, ((0, 0), (0, width - 2 * half)))


def written(arrays: Mapping[str, np.ndarray], config: ModelConfig) -> Mapping[str, np.ndarray]:
    """Returns the network's arrays by T5X's names in `rows`, computed one at a time.

    They come in the order in which `arrays` has what they are computed from.
    """
    name = kind(config)
    if name not in _FUSIONS:
        return arrays
    parts_of: dict[str, list[str]] = {}
    for ours in arrays:
        parts_of.setdefault(_fusion(ours, name)[0], []).append(ours)

    def make(row: Row) -> np.ndarray:
        if row.t5x in arrays:
            return np.asarray(arrays[row.t5x])
        if row.t5x in parts_of:
            _, order = _fusion(parts_of[row.t5x][0], name)
            parts = sorted(parts_of[row.t5x], key=lambda ours: order.index(ours.split("/")[-2]))
            return np.concatenate([np.asarray(arrays[part]) for part in parts], axis=-1)
        if row.t5x == "decoder/position_embedding":
            return sinusoid_table(config.max_length, config.emb_dim)
        return np.zeros(row.shape, np.float32)

    row_of = {row.t5x: row for row in rows(config)}
    computed: dict[str, Stored] = {}
    for ours in (*parts_of, *row_of):
        row = row_of.pop(ours, None)
        if row is not None:
            computed[ours] = Stored(row.shape, np.dtype("float32"), partial(make, row))
    return Arrays(computed)


def unfused(stored: Mapping[str, Stored], config: ModelConfig) -> dict[str, Stored]:
    """Returns the arrays of the network from those in `rows`, both by T5X's names: the way back from `written`."""

    def cut(read: Callable[[], np.ndarray], number: int, count: int) -> np.ndarray:
        return np.split(read(), count, axis=-1)[number]

    class_name = kind(config)
    arrays_of_network = {}
    for name in shapes(config):
        fused, parts = _fusion(name, class_name)
        whole = stored[fused]
        if parts:
            shape = (*whole.shape[:-1], whole.shape[-1] // len(parts))
            number = parts.index(name.split("/")[-2])
            whole = Stored(shape, whole.dtype, partial(cut, whole.read, number, len(parts)))
        arrays_of_network[name] = whole
    return arrays_of_network


def class_of(config: ModelConfig) -> str:
    """Returns transformers' class of a network; InputError for one that it lacks."""
    return (CLASSES if config.has_logits else CLASSES_OF_STATES)[kind(config)]


def has_flax_class(config: ModelConfig) -> bool:
    """Returns whether transformers 4 has a Flax class of a network, as of T5 and mT5; version 5 has none at all."""
    return not (config.is_decoder_only or config.is_t5_encoder or config.relative_bias_per_layer)


def query_scale(hf_config: Json, head_dim: int, layer: int) -> float:
    """Returns by what a GPT-2's queries are multiplied in a layer so that Limba, which divides by sqrt(C), agrees.

    `scale_attn_weights` False divides by nothing; `scale_attn_by_inverse_layer_idx` divides by the number of the layer
    too, from 1 on (stanford-crfm's models, https://github.com/stanford-crfm/mistral).
    """
    scale = 1.0 if hf_config.get("scale_attn_weights", True) else head_dim**0.5
    return scale / (layer + 1) if hf_config.get("scale_attn_by_inverse_layer_idx", False) else scale
