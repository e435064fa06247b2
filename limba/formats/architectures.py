"""The networks as transformers' classes: names, shapes, config.json, one table for both directions.

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
from limba.formats import huggingface_keys as keys
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
# Classes of which the encoder is read alone, by the ends of their names: those above, and those that put something else
# than the vocabulary's logits on top of it. The class that a T5 has for labels of texts has its decoder too.
_ENCODERS_OF_T5 = ("EncoderModel", "ForTokenClassification")
_ENCODERS = (
    "Model",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
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
# Fields of ModelConfig: the key of config.json, and what transformers has without it; REQUIRED: it has nothing.
REQUIRED = object()
_FIELDS: Mapping[str, Mapping[str, tuple[str, object]]] = {
    "t5": {
        "vocab_size": ("vocab_size", 32128), "emb_dim": ("d_model", 512), "head_dim": ("d_kv", 64),
        "mlp_dim": ("d_ff", 2048), "num_heads": ("num_heads", 8), "num_encoder_layers": ("num_layers", 6),
        "num_decoder_layers": ("num_decoder_layers", None),
        "num_relpos_buckets": ("relative_attention_num_buckets", 32),
        "relpos_max_distance": ("relative_attention_max_distance", 128),
        "layer_norm_epsilon": ("layer_norm_epsilon", 1e-6), "logits_via_embedding": ("tie_word_embeddings", True),
    },
    "llama": {
        "vocab_size": ("vocab_size", REQUIRED), "emb_dim": ("hidden_size", REQUIRED),
        "mlp_dim": ("intermediate_size", REQUIRED), "num_decoder_layers": ("num_hidden_layers", REQUIRED),
        "num_heads": ("num_attention_heads", REQUIRED), "num_kv_heads": ("num_key_value_heads", None),
        "head_dim": ("head_dim", None), "max_length": ("max_position_embeddings", 2048),
        "layer_norm_epsilon": ("rms_norm_eps", 1e-6), "rotary_base": ("rope_theta", None),
        "logits_via_embedding": ("tie_word_embeddings", False),
    },  # and of "eurobert", whose other defaults are _OTHERS
    "modernbert": {
        "vocab_size": ("vocab_size", 50368), "emb_dim": ("hidden_size", 768), "mlp_dim": ("intermediate_size", 1152),
        "num_decoder_layers": ("num_hidden_layers", 22), "num_heads": ("num_attention_heads", 12),
        "max_length": ("max_position_embeddings", 8192), "layer_norm_epsilon": ("norm_eps", 1e-5),
        "rotary_base": ("global_rope_theta", 160_000.0), "logits_via_embedding": ("tie_word_embeddings", True),
    },
    "gpt2": {
        "vocab_size": ("vocab_size", REQUIRED), "emb_dim": ("n_embd", REQUIRED), "mlp_dim": ("n_inner", None),
        "num_decoder_layers": ("n_layer", REQUIRED), "num_heads": ("n_head", REQUIRED),
        "max_length": ("n_positions", REQUIRED), "layer_norm_epsilon": ("layer_norm_epsilon", 1e-5),
        "logits_via_embedding": ("tie_word_embeddings", True), "positions": ("limba_positions", "learned"),
        "biases": ("limba_biases", ("attention", "mlp")),
    },  # transformers has no keys for the last two
}  # fmt: skip
_OF_MT5 = {"vocab_size": 250112, "mlp_dim": 1024, "num_encoder_layers": 8, "num_heads": 6}
_OTHERS = {  # other defaults than T5's, or a Llama's
    "mt5": _OF_MT5,
    "umt5": _OF_MT5,
    "eurobert": {"max_length": 8192, "layer_norm_epsilon": 1e-5},
}
_BIASES = {"attention": "attention_bias", "mlp": "mlp_bias", "logits": "decoder_bias", "head": "classifier_bias"}
_LOCAL = {"local_attention": 128, "global_attn_every_n_layers": 3, "local_rope_theta": 10_000.0}
# transformers' names of our activations; that by tanh has several.
_GELU = {
    **dict.fromkeys(("t5", "umt5", "gpt2"), "gelu_new"),
    **dict.fromkeys(("llama", "eurobert", "modernbert"), "gelu_pytorch_tanh"),
}


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


def _family(name: str) -> str:
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
        theirs = _pytorch_name(ours, _family(name))
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
    """Returns the network's arrays by T5X's names in `rows`, computed one at a time."""
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

    return Arrays({row.t5x: Stored(row.shape, np.dtype("float32"), partial(make, row)) for row in rows(config)})


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


def config_json(config: ModelConfig, dtype: str = "float32", eos_id: int = 1, mask_id: int | None = None) -> Json:
    """Returns config.json for transformers 4.57 and 5; InputError for a network that they lack.

    `eos_id` is the vocabulary's end of sequence, `mask_id` an encoder's mask; the start id is padding, 0, as trained.
    Without a bias in every layer it is always a `t5`, also for mT5: transformers' `mt5` never scales the logits of a
    tied head. `scale_decoder_outputs` is what version 5 reads instead of `tie_word_embeddings`.
    """
    name = kind(config)
    first, *gate = config.mlp_activations
    if not config.is_decoder_only and gate not in ([], ["linear"]):
        raise InputError(
            f"mlp_activations are {config.mlp_activations}, and transformers' T5 has only a linear second one;"
            " use the model in Limba."
        )
    activation = {"gelu": _GELU[name], "gelu_exact": "gelu"}.get(first, first)
    hf_config: Json = {"architectures": [class_of(config)], "model_type": name}
    hf_config |= {theirs: getattr(config, ours) for ours, (theirs, _) in _FIELDS[_family(name)].items()}
    hf_config |= {"eos_token_id": eos_id, "pad_token_id": 0, "use_cache": True, "torch_dtype": dtype}
    if name == "modernbert":
        hf_config |= dict(zip(_LOCAL, config.local_attention or (), strict=True)) | {
            "norm_bias": config.norm == "layer"
        }
        hf_config |= {key: part in config.biases for part, key in _BIASES.items()}
        hf_config |= dict.fromkeys(("hidden_activation", "classifier_activation"), activation)
        if mask_id is not None:
            hf_config["mask_token_id"] = mask_id
        return hf_config | dict.fromkeys(("bos_token_id", "cls_token_id", "sep_token_id"))
    if name in ("llama", "eurobert"):
        hf_config |= {"num_key_value_heads": config.kv_heads, "hidden_act": activation, "bos_token_id": 0}
        if config.is_encoder:
            rope = {"rope_type": "default", "rope_theta": config.rotary_base}
            hf_config |= {"bos_token_id": None, "use_cache": False, "rope_parameters": rope}
            hf_config |= {} if mask_id is None else {"mask_token_id": mask_id}  # transformers 5 refuses null
        return hf_config | {f"{part}_bias": part in config.biases for part in ("attention", "mlp")}
    if name == "gpt2":
        hf_config |= dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), config.dropout_rate)
        return hf_config | {"activation_function": activation, "bos_token_id": 0}
    if config.is_t5_encoder:
        hf_config |= {"num_decoder_layers": None, "use_cache": False}
    return hf_config | {
        # transformers takes `gelu` to be the exact one, and `gated-gelu` the one by tanh, unless the next key differs.
        "feed_forward_proj": f"gated-{first.removesuffix('_exact')}" if gate else activation,
        "dense_act_fn": activation,
        "is_gated_act": bool(gate),
        "dropout_rate": config.dropout_rate,
        "scale_decoder_outputs": config.logits_via_embedding,
        "is_encoder_decoder": not config.is_t5_encoder,
        "initializer_factor": 1.0,
        "decoder_start_token_id": 0,
    }


def model_fields(hf_config: Json, name: str) -> Json:
    """Returns the fields of ModelConfig from the config.json of an mt5, or of a key of CLASSES.

    huggingface_keys.py says what becomes of each key; InputError for a value that Limba's networks do not have.
    """
    keys.check(hf_config, name)
    if name.endswith("t5"):
        return _of_t5(hf_config, name)
    hf_config = keys.by_own_names(hf_config, name)
    fields = {"num_encoder_layers": 0} | _fields(hf_config, name)
    width = fields["emb_dim"] // fields["num_heads"]
    if name == "modernbert":
        fields |= _of_modernbert(hf_config, width, fields["num_decoder_layers"])
        return fields | {"head_dim": width, "has_logits": _has_logits(hf_config, name)}
    if name == "gpt2":
        activation = keys.activation("activation_function", hf_config.get("activation_function", "gelu_new"))
        fields["mlp_dim"] = fields["mlp_dim"] or 4 * fields["emb_dim"]
        return fields | {"head_dim": width, "mlp_activations": (activation,), "norm": "layer"}
    activation = keys.activation("hidden_act", hf_config.get("hidden_act", "silu"))
    biases = tuple(part for part in ("attention", "mlp") if hf_config.get(f"{part}_bias"))
    if name == "eurobert":
        fields |= {"attention_mask": "bidirectional", "has_logits": _has_logits(hf_config, name)}
        if fields["has_logits"] and "mlp" in biases:
            biases += ("logits",)
    return fields | {
        "mlp_activations": (activation, "linear"),
        "positions": "rotary",
        "biases": biases,
        "head_dim": fields["head_dim"] or width,
        "num_kv_heads": fields["num_kv_heads"] or fields["num_heads"],
        "rotary_base": _rotary_base(hf_config),
    }


def _has_logits(hf_config: Json, name: str) -> bool:
    """Returns whether a config.json's class has the vocabulary's logits; without them its encoder alone is read.

    >>> _has_logits({"architectures": ["EuroBertForSequenceClassification"]}, "eurobert")
    False
    """
    theirs = str((hf_config.get("architectures") or [""])[0])
    return not theirs.endswith(_ENCODERS_OF_T5 if name.endswith("t5") else _ENCODERS)


def _fields(hf_config: Json, name: str) -> Json:
    """Returns the fields of ModelConfig that have a key of their own; KeyError for one without which none is known."""
    defaults = _OTHERS.get(name, {})
    fields: Json = {}
    for ours, (theirs, default) in _FIELDS[_family(name)].items():
        if default is REQUIRED:
            fields[ours] = hf_config[theirs]
        else:
            fields[ours] = hf_config.get(theirs, defaults.get(ours, default))
    return fields


def _of_t5(hf_config: Json, name: str) -> Json:
    """Returns the fields of a T5, mT5 or umT5.

    `dense_act_fn` and `is_gated_act` follow from `feed_forward_proj`, and count before it where a file has them too.
    """
    # transformers takes as many decoder layers before it looks at the other names of the keys.
    num_layers = hf_config.get("num_layers", _fields({}, name)["num_encoder_layers"])
    hf_config = keys.by_own_names(hf_config, name)
    fields = _fields(hf_config, name)
    if fields["num_decoder_layers"] is None:
        fields["num_decoder_layers"] = num_layers
    projection = hf_config.get("feed_forward_proj", "gated-gelu" if name in _OTHERS else "relu")
    first, *rest = projection.split("-")
    if len(rest) > 1 or (rest and first != "gated"):
        raise InputError(f"feed_forward_proj is {projection!r}; transformers reads gated-NAME or NAME: copy it again.")
    by_projection = "gelu_new" if projection == "gated-gelu" else (first, *rest)[-1]
    key = "dense_act_fn" if "dense_act_fn" in hf_config else "feed_forward_proj"
    activation = keys.activation(key, hf_config.get("dense_act_fn", by_projection))
    is_gated = hf_config.get("is_gated_act", first == "gated")
    if not _has_logits(hf_config, name):
        if hf_config.get("is_decoder"):
            keys.refuse("is_decoder", hf_config["is_decoder"], [False])
        fields["num_decoder_layers"] = 0
    elif not hf_config.get("is_encoder_decoder", True):
        keys.refuse("is_encoder_decoder", hf_config["is_encoder_decoder"], [True])
    fields["mlp_activations"] = (activation, "linear") if is_gated else (activation,)
    return fields | {"relative_bias_per_layer": name == "umt5"}


def query_scale(hf_config: Json, head_dim: int, layer: int) -> float:
    """Returns by what a GPT-2's queries are multiplied in a layer so that Limba, which divides by sqrt(C), agrees.

    `scale_attn_weights` False divides by nothing; `scale_attn_by_inverse_layer_idx` divides by the number of the layer
    too, from 1 on (stanford-crfm's models, https://github.com/stanford-crfm/mistral).
    """
    scale = 1.0 if hf_config.get("scale_attn_weights", True) else head_dim**0.5
    return scale / (layer + 1) if hf_config.get("scale_attn_by_inverse_layer_idx", False) else scale


def _check_rope(key: str, rope: Json) -> None:
    """Raises InputError for rotary positions that are scaled, or that rotate a part of each head."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise InputError(f"{key} scales the rotary positions ({kind!r}), which is not supported; use a model without.")
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        keys.refuse(f"{key}'s partial_rotary_factor", rope["partial_rotary_factor"], [1.0])
    for name, value in rope.items():
        if isinstance(value, dict):
            raise InputError(f"{key} has positions of its own for {name!r}, which is not supported; use another model.")


def _rotary_base(hf_config: Json) -> float:
    """Returns the base of a Llama's or a EuroBERT's positions; `rope_scaling` counts before `rope_parameters`."""
    key = "rope_scaling" if hf_config.get("rope_scaling") else "rope_parameters"
    rope = hf_config.get(key) or {}
    _check_rope(key, rope)
    return float(rope.get("rope_theta") or hf_config.get("rope_theta") or 10_000.0)


def _of_modernbert(hf_config: Json, head_dim: int, num_layers: int) -> Json:
    """Returns a ModernBERT's fields that are not in `_FIELDS`, or that transformers 5 writes by other keys."""
    if hf_config.get("head_dim") not in (None, head_dim):
        keys.refuse("head_dim", hf_config["head_dim"], [head_dim])
    width, every, base = (hf_config.get(key, default) for key, default in _LOCAL.items())
    if hf_config.get("sliding_window") not in (
        None,
        width // 2,
    ):  # half of the window, by a name that only version 5 knows
        keys.refuse("sliding_window", hf_config["sliding_window"], [width // 2])
    kinds = hf_config.get("layer_types")
    if kinds is not None:
        every = next((n for n, kind in enumerate(kinds) if n and kind == "full_attention"), len(kinds))
        repeated = ["sliding_attention" if n % every else "full_attention" for n in range(num_layers)]
        if kinds != repeated:
            raise InputError("The layer_types in config.json do not repeat, which is not supported; use another model.")
    bases = {"full_attention": hf_config.get("global_rope_theta", 160_000.0), "sliding_attention": base}
    for name in bases:
        rope = dict((hf_config.get("rope_parameters") or {}).get(name) or {})
        rope |= hf_config.get("rope_scaling") or {}
        _check_rope("rope_scaling" if hf_config.get("rope_scaling") else f"rope_parameters of {name}", rope)
        bases[name] = float(rope.get("rope_theta", bases[name]))
    activation = keys.activation("hidden_activation", hf_config.get("hidden_activation", "gelu"))
    of_head = keys.activation("classifier_activation", hf_config.get("classifier_activation", "gelu"))
    if activation != of_head:
        raise InputError(
            f"The activations in config.json are {hf_config.get('hidden_activation', 'gelu')} and"
            f" {hf_config.get('classifier_activation', 'gelu')}; only one for both is supported."
        )
    return {
        "rotary_base": bases["full_attention"],
        "mlp_activations": (activation, "linear"),
        "positions": "rotary",
        "attention_mask": "bidirectional",
        "norm": "layer" if hf_config.get("norm_bias", False) else "layer_scale",
        "biases": tuple(part for part, key in _BIASES.items() if hf_config.get(key, part == "logits")),
        "local_attention": (width // 2 * 2, every, bases["sliding_attention"]),
    }
