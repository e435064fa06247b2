"""Decoder-only networks as transformers' Llama or GPT-2: names, arrays and config.json, in both directions.

A network with rotary positions, RMS norm and a gated MLP is a Llama. One with learned or sinusoidal positions, layer
norm and a plain MLP is a GPT-2: queries, keys and values are one matrix there, sinusoids are written as a table of
positions, and missing biases as zeros. A network that is neither is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from limba.config import InputError, ModelConfig
from limba.formats.names import check_names

Arrays = Mapping[str, np.ndarray]
Rows = list[tuple[str, str, bool]]  # our name (or one of `written`'s), PyTorch's, whether transposed between them

LLAMA_ACTIVATIONS = {"silu": "silu", "gelu": "gelu_pytorch_tanh", "relu": "relu"}
GPT2_ACTIVATIONS = {"silu": "silu", "gelu": "gelu_new", "relu": "relu"}
SINUSOID_SCALE = 10_000.0
NO_LOGITS_BIAS = (
    "has no bias of the logits, which ModelConfig.biases holds; train without 'logits' there, as the shipped models do,"
    " or use this model in Limba"
)
_LAYER = re.compile(r"(decoder/layers_\d+)/self_attention/qkv/(kernel|bias)")
_GATES = ("query", "key", "value")


def kind(config: ModelConfig) -> str:
    """Returns 'llama' or 'gpt2'; InputError for a network that neither class can represent."""
    gated = len(config.mlp_activations) == 2

    def fits(condition: bool, what: str, name: str) -> None:
        if not condition:
            raise InputError(f"The network cannot be written for transformers: its {name} class {what}.")

    what = "has other positions than T5's relative ones; write it for T5X, or use it in Limba"
    fits(config.positions != "relative", what, "GPT-2 or Llama")
    if config.positions == "rotary":
        fits(config.norm == "rms", "has RMS norms, and ModelConfig.norm is 'layer'", "Llama")
        known = gated and config.mlp_activations[1] == "linear" and config.mlp_activations[0] in LLAMA_ACTIVATIONS
        fits(known, f"has a gated MLP, and mlp_activations are {config.mlp_activations}", "Llama")
        fits("logits" not in config.biases, NO_LOGITS_BIAS, "Llama")
        return "llama"
    fits(config.norm == "layer", "has layer norms, and ModelConfig.norm is 'rms'", "GPT-2")
    known = not gated and config.mlp_activations[0] in GPT2_ACTIVATIONS
    fits(known, f"has a plain MLP, and mlp_activations are {config.mlp_activations}", "GPT-2")
    fits(config.kv_heads == config.num_heads, "has keys for every head, and num_kv_heads is set", "GPT-2")
    whole = config.num_heads * config.head_dim == config.emb_dim
    fits(whole, "cuts emb_dim into heads, and num_heads times head_dim is another number", "GPT-2")
    fits("logits" not in config.biases, NO_LOGITS_BIAS, "GPT-2")
    return "gpt2"


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the network's own parameters, unstacked: name -> shape."""
    d, joined, shared = config.emb_dim, config.num_heads * config.head_dim, config.kv_heads * config.head_dim
    gates = ("wi",) if len(config.mlp_activations) == 1 else ("wi_0", "wi_1")
    found: dict[str, tuple[int, ...]] = {"token_embedder/embedding": (config.vocab_size, d)}

    def dense(name: str, shape: tuple[int, int], part: str) -> None:
        found[f"{name}/kernel"] = shape
        if part in config.biases:
            found[f"{name}/bias"] = shape[1:]

    def norm(name: str) -> None:
        found[f"{name}/scale"] = (d,)
        if config.norm == "layer":
            found[f"{name}/bias"] = (d,)

    if config.positions == "learned":
        found["decoder/position_embedding"] = (config.max_length, d)
    if config.is_t5_decoder:
        found["decoder/relpos_bias/rel_embedding"] = (config.num_heads, config.num_relpos_buckets)
    for i in range(config.num_decoder_layers):
        layer = f"decoder/layers_{i}"
        norm(f"{layer}/pre_self_attention_layer_norm")
        for name, width in zip(_GATES, (joined, shared, shared), strict=True):
            dense(f"{layer}/self_attention/{name}", (d, width), "attention")
        dense(f"{layer}/self_attention/out", (joined, d), "attention")
        norm(f"{layer}/pre_mlp_layer_norm")
        for name in gates:
            dense(f"{layer}/mlp/{name}", (d, config.mlp_dim), "mlp")
        dense(f"{layer}/mlp/wo", (config.mlp_dim, d), "mlp")
    norm("decoder/decoder_norm")
    if not config.logits_via_embedding:
        dense("decoder/logits_dense", (d, config.vocab_size), "logits")
    return found


def rows(config: ModelConfig) -> Rows:
    """Returns the table of written arrays; for GPT-2 its names are those of `written`."""
    return _llama_rows(config) if kind(config) == "llama" else _gpt2_rows(config)


def _both(ours: str, theirs: str, transposed: bool, parts: tuple[str, str], has_bias: bool) -> Rows:
    weight, bias = parts
    table = [(f"{ours}/{weight}", f"{theirs}.weight", transposed)]
    return [*table, (f"{ours}/{bias}", f"{theirs}.bias", False)] if has_bias else table


def _llama_rows(config: ModelConfig) -> Rows:
    dense = ("kernel", "bias")
    table: Rows = [("token_embedder/embedding", "model.embed_tokens.weight", False)]
    for i in range(config.num_decoder_layers):
        ours, theirs = f"decoder/layers_{i}", f"model.layers.{i}"
        table.append((f"{ours}/pre_self_attention_layer_norm/scale", f"{theirs}.input_layernorm.weight", False))
        for name, letter in (*zip(_GATES, "qkv", strict=True), ("out", "o")):
            place = f"{theirs}.self_attn.{letter}_proj"
            table += _both(f"{ours}/self_attention/{name}", place, True, dense, "attention" in config.biases)
        table.append((f"{ours}/pre_mlp_layer_norm/scale", f"{theirs}.post_attention_layernorm.weight", False))
        for name, part in (("wi_0", "gate"), ("wi_1", "up"), ("wo", "down")):
            table += _both(f"{ours}/mlp/{name}", f"{theirs}.mlp.{part}_proj", True, dense, "mlp" in config.biases)
    table.append(("decoder/decoder_norm/scale", "model.norm.weight", False))
    return table if config.logits_via_embedding else [*table, ("decoder/logits_dense/kernel", "lm_head.weight", True)]


def _gpt2_rows(config: ModelConfig) -> Rows:
    dense, norm = ("kernel", "bias"), ("scale", "bias")
    table: Rows = [("token_embedder/embedding", "transformer.wte.weight", False)]
    table.append(("decoder/position_embedding", "transformer.wpe.weight", False))
    for i in range(config.num_decoder_layers):
        ours, theirs = f"decoder/layers_{i}", f"transformer.h.{i}"
        table += _both(f"{ours}/pre_self_attention_layer_norm", f"{theirs}.ln_1", False, norm, True)
        table += _both(f"{ours}/self_attention/qkv", f"{theirs}.attn.c_attn", False, dense, True)
        table += _both(f"{ours}/self_attention/out", f"{theirs}.attn.c_proj", False, dense, True)
        table += _both(f"{ours}/pre_mlp_layer_norm", f"{theirs}.ln_2", False, norm, True)
        table += _both(f"{ours}/mlp/wi", f"{theirs}.mlp.c_fc", False, dense, True)
        table += _both(f"{ours}/mlp/wo", f"{theirs}.mlp.c_proj", False, dense, True)
    table += _both("decoder/decoder_norm", "transformer.ln_f", False, norm, True)
    return table if config.logits_via_embedding else [*table, ("decoder/logits_dense/kernel", "lm_head.weight", True)]


def written_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each of Limba's arrays in `rows`."""
    own = shapes(config)
    found = {}
    for name, _, _ in rows(config):
        match = _LAYER.fullmatch(name)
        if match:
            width = sum(own[f"{match[1]}/self_attention/{gate}/kernel"][1] for gate in _GATES)
            found[name] = (config.emb_dim, width) if match[2] == "kernel" else (width,)
        elif name == "decoder/position_embedding":
            found[name] = (config.max_length, config.emb_dim)
        else:
            found[name] = own.get(name) or own[f"{name.removesuffix('bias')}kernel"][1:]
    return found


def sinusoid_table(length: int, width: int) -> np.ndarray:
    """Returns the embeddings of positions 0 to length - 1, float32 [length, width]."""
    half = width // 2
    frequencies = SINUSOID_SCALE ** (-np.arange(half) / max(half - 1, 1))
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    return np.pad(table, ((0, 0), (0, width - 2 * half)))


class _Computed(Mapping[str, np.ndarray]):
    """Arrays by name, each computed on access."""

    def __init__(self, names: list[str], make: Callable[[str], np.ndarray]):
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def written(arrays: Arrays, config: ModelConfig) -> Arrays:
    """Returns the network's arrays by the names in `rows`, computed one at a time."""
    if kind(config) == "llama":
        return arrays
    wanted = written_shapes(config)

    def make(name: str) -> np.ndarray:
        if name in arrays:
            return np.asarray(arrays[name])
        match = _LAYER.fullmatch(name)
        if match and (match[2] == "kernel" or "attention" in config.biases):
            parts = [np.asarray(arrays[f"{match[1]}/self_attention/{gate}/{match[2]}"]) for gate in _GATES]
            return np.concatenate(parts, axis=-1)
        if name == "decoder/position_embedding":
            return sinusoid_table(config.max_length, config.emb_dim)
        return np.zeros(wanted[name], np.float32)

    return _Computed(list(wanted), make)


def read(stored: Arrays, config: ModelConfig, where: str) -> Arrays:
    """Maps arrays from PyTorch's names to Limba's; InputError for a missing or an unknown array."""
    table = {ours: (theirs, transposed) for ours, theirs, transposed in rows(config)}
    known = {theirs for theirs, _ in table.values()} | ({"lm_head.weight"} if config.logits_via_embedding else set())
    missing = [theirs for theirs, _ in table.values() if theirs not in stored]
    extra = [name for name in stored if name not in known and not name.endswith(("rotary_emb.inv_freq", "attn.bias"))]
    check_names(missing, extra, where)

    def make(name: str) -> np.ndarray:
        match = re.fullmatch(r"(.*/self_attention)/(query|key|value)/(kernel|bias)", name)
        if match and name not in table:
            theirs, _ = table[f"{match[1]}/qkv/{match[3]}"]
            return np.split(stored[theirs], 3, axis=-1)[_GATES.index(match[2])]
        theirs, transposed = table[name]
        return stored[theirs].T if transposed else stored[theirs]

    return _Computed(list(shapes(config)), make)


def config_json(config: ModelConfig, dtype: str, eos_id: int = 1) -> dict[str, Any]:
    """Returns config.json for transformers. The start id is padding, 0, as in training."""
    common = {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.logits_via_embedding,
        "bos_token_id": 0,
        "eos_token_id": eos_id,
        "pad_token_id": 0,
        "use_cache": True,
        "torch_dtype": dtype,
    }
    if kind(config) == "llama":
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": config.emb_dim,
            "intermediate_size": config.mlp_dim,
            "num_hidden_layers": config.num_decoder_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "hidden_act": LLAMA_ACTIVATIONS[config.mlp_activations[0]],
            "max_position_embeddings": config.max_length,
            "rms_norm_eps": config.layer_norm_epsilon,
            "rope_theta": config.rotary_base,
            "attention_bias": "attention" in config.biases,
            "mlp_bias": "mlp" in config.biases,
            **common,
        }
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": config.emb_dim,
        "n_inner": config.mlp_dim,
        "n_layer": config.num_decoder_layers,
        "n_head": config.num_heads,
        "n_positions": config.max_length,
        "activation_function": GPT2_ACTIVATIONS[config.mlp_activations[0]],
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "attn_pdrop": config.dropout_rate,
        "embd_pdrop": config.dropout_rate,
        "resid_pdrop": config.dropout_rate,
        # transformers has no fields for these two; they record which arrays are parameters of the network.
        "limba_positions": config.positions,
        "limba_biases": list(config.biases),
        **common,
    }


def model_fields(about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of ModelConfig from config.json of a Llama or GPT-2; InputError for other models."""
    tied = about.get("tie_word_embeddings", about["model_type"] == "gpt2")
    common = {"vocab_size": about["vocab_size"], "num_encoder_layers": 0, "logits_via_embedding": tied}
    if about["model_type"] == "gpt2":
        names = {theirs: ours for ours, theirs in GPT2_ACTIVATIONS.items()}
        activation = names.get(about.get("activation_function", "gelu_new"))
        fields = {
            "emb_dim": about["n_embd"],
            "num_heads": about["n_head"],
            "head_dim": about["n_embd"] // about["n_head"],
            "mlp_dim": about.get("n_inner") or 4 * about["n_embd"],
            "num_decoder_layers": about["n_layer"],
            "mlp_activations": (activation,),
            "positions": about.get("limba_positions", "learned"),
            "norm": "layer",
            "biases": tuple(about.get("limba_biases", ("attention", "mlp"))),
            "max_length": about["n_positions"],
            "layer_norm_epsilon": about.get("layer_norm_epsilon", 1e-5),
        }
    else:
        names = {theirs: ours for ours, theirs in LLAMA_ACTIVATIONS.items()}
        activation = names.get(about.get("hidden_act", "silu"))
        rope = about.get("rope_parameters") or about.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise InputError(
                "The Llama's rotary positions are scaled (rope_scaling), which is not supported; use a model without."
            )
        heads = about["num_attention_heads"]
        fields = {
            "emb_dim": about["hidden_size"],
            "num_heads": heads,
            "head_dim": about.get("head_dim") or about["hidden_size"] // heads,
            "mlp_dim": about["intermediate_size"],
            "num_decoder_layers": about["num_hidden_layers"],
            "mlp_activations": (activation, "linear"),
            "positions": "rotary",
            "rotary_base": float(about.get("rope_theta") or rope.get("rope_theta", 10_000.0)),
            "num_kv_heads": about.get("num_key_value_heads") or heads,
            "biases": tuple(part for part in ("attention", "mlp") if about.get(f"{part}_bias")),
            "max_length": about.get("max_position_embeddings", 2048),
            "layer_norm_epsilon": about.get("rms_norm_eps", 1e-6),
        }
    if activation is None:
        raise InputError("The activation in config.json is not supported; only relu, gelu (tanh) and silu are.")
    return {**common, **fields}
