"""What becomes of every key of a config.json: it is read, irrelevant, or refused unless it has one of some values.

Plain data, for the configuration classes of transformers 4.57.6 and 5.23, by model_type. Keys that are in no table are
those that transformers' classes do not know: it keeps them as attributes that no network looks at, so they are passed
over here too. tests/formats/test_huggingface_keys.py walks the classes' own keys, so that a new one fails until it is
decided, and changes each value: a key that is called irrelevant leaves transformers' logits as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from limba.config import InputError
from limba.formats.names import Json

READ = "read"  # by `model_fields` of huggingface_config.py, or the weights or ids that are read depend on it
IRRELEVANT = "irrelevant"  # no logits depend on it


class Only(NamedTuple):
    """A key that changes the network in a way that Limba does not have, unless its value is one of these."""

    values: tuple[object, ...]
    of_each_layer: str | None = None  # a list of this alone is allowed too

    def allows(self, value: object) -> bool:
        """Returns whether the network is Limba's.

        >>> FULL_ATTENTION.allows(["full_attention"] * 2), FULL_ATTENTION.allows(["sliding_attention"] * 2)
        (True, False)
        """
        if isinstance(value, list) and value and self.of_each_layer is not None:
            return all(kind == self.of_each_layer for kind in value)
        return value in self.values


Decision = str | Only
Decisions = Mapping[str, Decision]
NOT_SET = Only((None,))
FULL_ATTENTION = Only((None,), of_each_layer="full_attention")


def _all(decision: Decision, names: str) -> dict[str, Decision]:
    return dict.fromkeys(names.split(), decision)


# What a text is generated with, in a config.json of an older version; transformers 5 leaves it out of the network.
_GENERATION = """
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
"""
# Keys by which classes of other model_types change their numbers (Granite, Gemma, Cohere, OLMo, …). The classes here do
# not look at them, whatever they say.
_OF_OTHERS = """
    logit_scale logits_scaling embedding_multiplier residual_multiplier attention_multiplier attn_logit_softcapping
    final_logit_softcapping query_pre_attn_scalar scale_embeddings scale_emb clip_qkv qk_norm use_qk_norm
    parallel_residual use_parallel_residual no_rope_layers position_embedding_type tie_encoder_decoder
    cross_attention_hidden_size
"""
_GENERAL: Decisions = {
    **_all(READ, "model_type architectures transformers_version"),
    # The special ids: what begins, ends, fills and masks a text.
    **_all(READ, "bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id"),
    **_all(
        IRRELEVANT,
        """
        name_or_path _name_or_path _commit_hash dtype torch_dtype return_dict output_hidden_states
        output_attentions use_cache torchscript use_bfloat16 chunk_size_feed_forward is_encoder_decoder
        attn_implementation _attn_implementation experts_implementation tie_last_hidden_states auto_map tokenizer_class
        task_specific_params finetuning_task prefix initializer_range initializer_factor gradient_checkpointing
        id2label label2id num_labels problem_type
        allow_global_per_layer_attribute_access serialize_explicit_per_layer_config
        """,
    ),
    **_all(IRRELEVANT, _GENERATION),
    **_all(IRRELEVANT, _OF_OTHERS),
    # Other weights, or another file, or layers that differ from each other.
    **_all(NOT_SET, "quantization_config transformers_weights configuration_files fusion_config"),
    "per_layer_config": Only((None, {})),
    "pruned_heads": Only((None, {})),
}
# The mask of a decoder, and the window of what it remembers while it generates.
_OF_DECODERS: Decisions = {
    "is_causal": Only((True,)),
    **_all(NOT_SET, "sliding_window attention_chunk_size"),
    "layer_types": FULL_ATTENTION,
}
_OF_ENCODERS: Decisions = {
    "is_causal": Only((False,)),
    # How a head of labels pools, which is left out.
    **_all(IRRELEVANT, "is_decoder add_cross_attention attention_chunk_size classifier_pooling"),
}
_OF_T5: Decisions = {
    **_GENERAL,
    **_OF_DECODERS,
    **_all(
        READ,
        """
        vocab_size d_model d_kv d_ff num_layers num_decoder_layers num_heads relative_attention_num_buckets
        relative_attention_max_distance layer_norm_epsilon feed_forward_proj dense_act_fn is_gated_act
        tie_word_embeddings is_decoder is_encoder_decoder
        """,
    ),
    **_all(READ, "hidden_size num_attention_heads num_hidden_layers head_dim"),  # other names of four of these
    **_all(IRRELEVANT, "dropout_rate classifier_dropout add_cross_attention rope_scaling"),
}
_OF_LLAMA: Decisions = {
    **_GENERAL,
    **_all(
        READ,
        """
        vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
        hidden_act max_position_embeddings rms_norm_eps attention_bias mlp_bias tie_word_embeddings
        rope_parameters rope_scaling rope_theta
        """,
    ),
    # Version 4.57 rotates a part of each head, version 5 the whole.
    "partial_rotary_factor": Only((None, 1, 1.0)),
    **_all(IRRELEVANT, "attention_dropout pretraining_tp"),  # the second cuts matrix products into parts
}
KEYS: Mapping[str, Decisions] = {
    # Version 5 takes "scale_decoder_outputs" for a t5, and looks at nothing of the kind for mt5 and umt5.
    "t5": {**_OF_T5, "scale_decoder_outputs": READ},
    "mt5": {**_OF_T5, "scale_decoder_outputs": IRRELEVANT},
    "umt5": {**_OF_T5, "scale_decoder_outputs": IRRELEVANT},
    "llama": {**_OF_LLAMA, **_OF_DECODERS, **_all(IRRELEVANT, "is_decoder add_cross_attention")},
    "eurobert": {
        **_OF_LLAMA,
        **_OF_ENCODERS,
        "mask_token_id": READ,
        **_all(IRRELEVANT, "sliding_window layer_types label2id"),
    },
    "gpt2": {
        **_GENERAL,
        **_OF_DECODERS,
        **_all(
            READ,
            """
            vocab_size n_positions n_embd n_layer n_head n_inner activation_function layer_norm_epsilon
            scale_attn_weights scale_attn_by_inverse_layer_idx tie_word_embeddings limba_positions limba_biases
            """,
        ),
        **_all(READ, "hidden_size max_position_embeddings num_attention_heads num_hidden_layers"),  # other names
        "add_cross_attention": Only((False, None)),
        **_all(
            IRRELEVANT,
            """
            resid_pdrop embd_pdrop attn_pdrop n_ctx reorder_and_upcast_attn is_decoder summary_type summary_use_proj
            summary_activation summary_proj_to_labels summary_first_dropout rope_scaling
            """,
        ),
    },
    "modernbert": {
        **_GENERAL,
        **_OF_ENCODERS,
        **_all(
            READ,
            """
            vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_activation
            max_position_embeddings norm_eps norm_bias attention_bias mlp_bias decoder_bias classifier_bias
            classifier_activation layer_types global_attn_every_n_layers local_attention sliding_window head_dim
            rope_parameters rope_scaling global_rope_theta local_rope_theta tie_word_embeddings
            mask_token_id cls_token_id
            """,
        ),
        "partial_rotary_factor": Only((None, 1, 1.0)),
        **_all(
            IRRELEVANT,
            """
            attention_dropout embedding_dropout mlp_dropout classifier_dropout initializer_cutoff_factor rope_theta
            deterministic_flash_attn sparse_prediction sparse_pred_ignore_index reference_compile
            repad_logits_with_grad layer_norm_eps label2id
            """,
        ),
    },
}
# Other names of keys (`attribute_map`). Where a file has both, the other name counts: transformers sets it last.
_OTHER_NAMES_OF_T5 = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
ALIASES: Mapping[str, Mapping[str, str]] = {
    "t5": _OTHER_NAMES_OF_T5,
    "mt5": _OTHER_NAMES_OF_T5,
    "umt5": _OTHER_NAMES_OF_T5,
    "gpt2": {
        "hidden_size": "n_embd",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    },
}
# transformers' names of activations (`ACT2FN`) -> ModelConfig's. Those by tanh differ in the last digits of a constant.
ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu_exact",
    "gelu_python": "gelu_exact",
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_fast"), "gelu"),
}


def check(hf_config: Json, kind: str) -> None:
    """Raises InputError for a key whose value makes another network than Limba has."""
    decisions = KEYS[kind]
    for key, value in hf_config.items():
        decision = decisions.get(key, IRRELEVANT)
        if isinstance(decision, Only) and not decision.allows(value):
            values = list(decision.values)
            if decision.of_each_layer is not None:
                values.append([decision.of_each_layer])
            refuse(key, value, values)


def refuse(key: str, value: object, values: Iterable[object]) -> None:
    """Raises InputError for a key that is read with some values only."""
    known = " or ".join("null" if allowed is None else repr(allowed) for allowed in values)
    raise InputError(f"{key} is {value!r}, and only {known} is supported; use a model without it, or transformers.")


def by_own_names(hf_config: Json, kind: str) -> Json:
    """Returns a config.json with each key under the name that its class gives it.

    >>> by_own_names({"n_embd": 8, "hidden_size": 16}, "gpt2")
    {'n_embd': 16}
    """
    aliases = ALIASES.get(kind, {})
    renamed = {key: value for key, value in hf_config.items() if key not in aliases}
    return renamed | {aliases[key]: value for key, value in hf_config.items() if key in aliases}


def activation(key: str, name: object) -> str:
    """Returns ModelConfig's name of an activation; InputError for one that it does not have."""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise InputError(
            f"{key} is {name!r}, and the activations that are read are {', '.join(ACTIVATIONS)}; use a model with one"
            " of these, or transformers."
        )
    return ACTIVATIONS[name]
