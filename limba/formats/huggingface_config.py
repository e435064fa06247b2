"""config.json of transformers' classes from a network, and a network's fields from config.json.

`huggingface_keys.py` says what becomes of each key that is read. Written files are for transformers 4.57 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping

from limba.config import InputError, ModelConfig
from limba.formats import huggingface_keys as keys
from limba.formats.architectures import class_of, family_of, kind
from limba.formats.names import Json

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
    hf_config |= {theirs: getattr(config, ours) for ours, (theirs, _) in _FIELDS[family_of(name)].items()}
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
        fields["has_logits"] = has_logits(hf_config, name)
        fields |= _of_modernbert(hf_config, width, fields["num_decoder_layers"], with_head=fields["has_logits"])
        return fields | {"head_dim": width}
    if name == "gpt2":
        activation = keys.activation("activation_function", hf_config.get("activation_function", "gelu_new"))
        fields["mlp_dim"] = fields["mlp_dim"] or 4 * fields["emb_dim"]
        return fields | {"head_dim": width, "mlp_activations": (activation,), "norm": "layer"}
    activation = keys.activation("hidden_act", hf_config.get("hidden_act", "silu"))
    biases = tuple(part for part in ("attention", "mlp") if hf_config.get(f"{part}_bias"))
    if name == "eurobert":
        fields |= {"attention_mask": "bidirectional", "has_logits": has_logits(hf_config, name)}
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


def has_logits(hf_config: Json, name: str) -> bool:
    """Returns whether a config.json's class has the vocabulary's logits; without them its encoder alone is read.

    >>> has_logits({"architectures": ["EuroBertForSequenceClassification"]}, "eurobert")
    False
    """
    theirs = str((hf_config.get("architectures") or [""])[0])
    return not theirs.endswith(_ENCODERS_OF_T5 if name.endswith("t5") else _ENCODERS)


def keys_of(field: str, name: str) -> str:
    """Returns the keys of a config.json by which a field of ModelConfig is read, for a sentence; the field without.

    >>> keys_of("num_relpos_buckets", "umt5"), keys_of("biases", "llama")
    ('relative_attention_num_buckets', 'attention_bias and mlp_bias')
    """
    if field == "biases":
        parts = _BIASES if name == "modernbert" else ("attention", "mlp")
        return " and ".join(_BIASES[part] for part in parts)
    own = {"local_attention": " and ".join(_LOCAL)} if name == "modernbert" else {}
    return own.get(field, _FIELDS[family_of(name)].get(field, (field, None))[0])


def _fields(hf_config: Json, name: str) -> Json:
    """Returns the fields of ModelConfig that have a key of their own; KeyError for a missing key without a default."""
    defaults = _OTHERS.get(name, {})
    fields: Json = {}
    for ours, (theirs, default) in _FIELDS[family_of(name)].items():
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
    if not has_logits(hf_config, name):
        if hf_config.get("is_decoder"):
            keys.refuse("is_decoder", hf_config["is_decoder"], [False])
        fields["num_decoder_layers"] = 0
    elif not hf_config.get("is_encoder_decoder", True):
        keys.refuse("is_encoder_decoder", hf_config["is_encoder_decoder"], [True])
    fields["mlp_activations"] = (activation, "linear") if is_gated else (activation,)
    return fields | {"relative_bias_per_layer": name == "umt5"}


def _check_rope(key: str, rope: Json) -> None:
    """Raises InputError for rotary positions that are scaled, or that rotate a part of each head."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    is_unscaled = kind == "default" or (kind == "linear" and rope.get("factor") == 1)
    if not is_unscaled:
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


def _of_modernbert(hf_config: Json, head_dim: int, num_layers: int, with_head: bool) -> Json:
    """Returns a ModernBERT's fields that are not in `_FIELDS`, or that transformers 5 writes by other keys.

    The classifier's activation is the output layer's, which an encoder that is read alone has not.
    """
    if hf_config.get("head_dim") not in (None, head_dim):
        keys.refuse("head_dim", hf_config["head_dim"], [head_dim])
    width, every, base = (hf_config.get(key, default) for key, default in _LOCAL.items())
    # Half of the window, by a name that only version 5 knows.
    if hf_config.get("sliding_window") not in (None, width // 2):
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
    of_head = hf_config.get("classifier_activation", "gelu")
    if with_head and keys.activation("classifier_activation", of_head) != activation:
        raise InputError(
            f"The activations in config.json are {hf_config.get('hidden_activation', 'gelu')} and {of_head}; only one"
            " for both is supported."
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
