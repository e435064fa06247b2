"""Every key of every configuration class is decided, and each decision is true: of the real transformers.

A key that is called irrelevant leaves transformers' logits as they are whatever its value; one that is read, or refused
unless it has some values, gives transformers' logits in Limba, or one sentence that names it.
"""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest
import torch
import transformers

from limba.config import InputError, ModelConfig
from limba.formats import huggingface, huggingface_config, huggingface_keys
from limba.formats.huggingface_keys import IRRELEVANT, KEYS, READ, Only
from limba.formats.names import unflatten
from limba.model import Network
from tests.tiny import stack_layers

# The name of rotary positions in older files, which version 5 takes with a warning.
pytestmark = pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")
CLASSES = {
    "t5": ("T5Config", "T5ForConditionalGeneration"),
    "mt5": ("MT5Config", "MT5ForConditionalGeneration"),
    "umt5": ("UMT5Config", "UMT5ForConditionalGeneration"),
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
    "eurobert": ("EuroBertConfig", "EuroBertForMaskedLM"),
    "modernbert": ("ModernBertConfig", "ModernBertForMaskedLM"),
}
_T5 = {
    "vocab_size": 48, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4,
    "feed_forward_proj": "relu", "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
}  # fmt: skip
_OF_MOST = {
    "vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4,
    "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
_LLAMA = {**_OF_MOST, "num_hidden_layers": 2, "num_key_value_heads": 2}
_GPT2 = {"vocab_size": 48, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 32}
SIZES = {
    **dict.fromkeys(("t5", "mt5", "umt5"), _T5),
    "llama": _LLAMA,
    "eurobert": {**_LLAMA, "pad_token_id": 0, "mask_token_id": 2},
    "gpt2": {**_GPT2, "bos_token_id": 0, "eos_token_id": 1},
    "modernbert": {
        **_OF_MOST, "num_hidden_layers": 4, "local_attention": 4, "global_attn_every_n_layers": 3,
        "pad_token_id": 0, "cls_token_id": 0, "sep_token_id": 1,
    },
}  # fmt: skip
ROW = [5, 9, 40, 7, 33, 12, 21, 8, 30, 14]
START = [0, 7, 22, 31, 4]
TOGETHER = 10  # so many irrelevant keys of a configuration are changed at once: each model takes a while to make
# What transformers' own class does not keep as a key, or keeps of itself.
INTERNAL = {"_name_or_path", "model_type"}


def made(kind: str, changes: dict) -> tuple[torch.nn.Module, dict]:
    """A tiny model of transformers with a config.json of these keys, as its file says them; and that file."""
    config = {**SIZES[kind], **changes}
    config_type, model_type = (getattr(transformers, name) for name in CLASSES[kind])
    torch.manual_seed(0)
    model = model_type(config_type.from_dict(dict(config))).eval()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            scale = 0.5 if parameter.ndim > 1 else 0.2
            # By its name, so that another key does not move the numbers of the others.
            random = torch.Generator().manual_seed(sum(map(ord, name)) * 7919 % 65521)
            parameter.copy_(torch.randn(parameter.shape, generator=random) * scale + (parameter.ndim == 1) * 1.0)
    return model, {"model_type": kind, "architectures": [CLASSES[kind][1]], **config}


def theirs(model: torch.nn.Module, kind: str, state: dict | None = None) -> np.ndarray:
    if state is not None:
        model.load_state_dict(state)
    decoder = {"decoder_input_ids": torch.tensor([START])} if kind.endswith("t5") else {}
    with torch.no_grad():
        output = model(input_ids=torch.tensor([ROW]), **decoder)
    return (output[0] if isinstance(output, tuple) else output.logits).float().numpy()[0]


@functools.cache
def apply_of(config):
    return jax.jit(Network(config).apply)


def ours(folder, model: torch.nn.Module, settings: dict) -> np.ndarray:
    """Limba's logits of a folder with this config.json and the model's weights."""
    from safetensors.torch import save_file

    (folder / "config.json").write_text(json.dumps(settings))
    state = {name: value.clone().contiguous() for name, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    config = huggingface.model_config(folder)
    arrays = huggingface.open_folder(folder, config)
    params = unflatten(stack_layers({name: np.asarray(arrays[name], np.float32) for name in arrays}))
    if config.is_decoder_only:
        row = np.int32([ROW])
        batch = {"decoder_input_tokens": row, "decoder_target_tokens": np.maximum(row, 1)}
    else:
        batch = {"encoder_input_tokens": np.int32([ROW]), "decoder_input_tokens": np.int32([START])}
        batch["decoder_target_tokens"] = np.int32([[*START[1:], 1]])
    batch = {name: jax.numpy.asarray(array) for name, array in batch.items()}
    return np.asarray(apply_of(config)(jax.tree.map(jax.numpy.asarray, params), batch))[0]


# Other values of the keys that are irrelevant; of the rest a bool is turned, and a number becomes another one.
OTHER = {
    "id2label": {"0": "a", "1": "b", "2": "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
    "problem_type": "regression",
    "classifier_pooling": "mean",
    "architectures": ["AnotherModel"],
    "auto_map": {"AutoModel": "of_somebody.Else"},
    "summary_type": "mean",
    "summary_activation": "tanh",
    "dtype": "float16",
    "torch_dtype": "bfloat16",
    "attn_implementation": "eager",
    "_attn_implementation": "eager",
    "rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0},
    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0},
    "rope_theta": 9.0,
    "experts_implementation": None,
    "output_attentions": False,
    "layer_types": ["full_attention", "full_attention"],
    "sliding_window": 3,
    "is_causal": True,
    "chunk_size_feed_forward": 2,
    "initializer_range": 0.5,
}


def other_value(config: transformers.PretrainedConfig, key: str) -> object:
    if key in OTHER:
        return OTHER[key]
    value = getattr(config, key, None)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 3
    if isinstance(value, float):
        return value / 2 + 0.25
    return 3  # of a key that the class does not know


@pytest.mark.parametrize("kind", CLASSES)
def test_every_key_of_the_class_is_decided(kind):
    config_type = getattr(transformers, CLASSES[kind][0])
    fields = {field.name for field in dataclasses.fields(config_type)}
    known = fields | set(config_type().to_dict()) | set(config_type.attribute_map)
    known |= {name for name in dir(transformers.PretrainedConfig) if not name.startswith("_") and _is_set(name)}
    assert sorted(known - set(KEYS[kind])) == []
    wanted = config_type.attribute_map
    assert huggingface_keys.ALIASES.get(kind, {}) == wanted


def _is_set(name: str) -> bool:
    """Whether a config.json can set it: a property with a setter."""
    attribute = getattr(transformers.PretrainedConfig, name, None)
    return isinstance(attribute, property) and attribute.fset is not None


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.slow
def test_an_irrelevant_key_changes_no_logits_of_transformers(kind):
    base, _ = made(kind, {})
    wanted = theirs(base, kind)
    state = base.state_dict()
    # return_dict says in which form a class gives its logits, and False is an error of some classes.
    keys = sorted(key for key, decision in KEYS[kind].items() if decision == IRRELEVANT and key != "return_dict")
    assert len(keys) > 50
    # Up to the rounding of another order of sums, by which attention's implementations differ.
    limit = 4e-6 * np.abs(wanted).max()

    for begin in range(0, len(keys), TOGETHER):
        changes = {key: other_value(base.config, key) for key in keys[begin : begin + TOGETHER]}
        logits = theirs(made_without_weights(kind, changes), kind, state)
        np.testing.assert_allclose(logits, wanted, rtol=0, atol=limit, err_msg=", ".join(changes))


def made_without_weights(kind: str, changes: dict) -> torch.nn.Module:
    config = {**SIZES[kind], **changes}
    config_type, model_type = (getattr(transformers, name) for name in CLASSES[kind])
    return model_type(config_type.from_dict(dict(config))).eval()


@pytest.mark.parametrize("kind", CLASSES)
def test_a_key_with_a_value_that_the_network_does_not_have_is_refused(kind):
    refused = {key: decision for key, decision in KEYS[kind].items() if isinstance(decision, Only)}
    assert len(refused) >= 6
    for key, decision in refused.items():
        for value in decision.values:
            huggingface_keys.check({key: value}, kind)
        for value in ({"a": 1}, 7, "x", [1]):
            with pytest.raises(InputError, match=f"^{key} is .*, and only .* is supported"):
                huggingface_keys.check({key: value}, kind)


@pytest.mark.parametrize("kind", ["t5", "llama", "gpt2"])
def test_full_attention_in_every_layer_is_every_networks(kind):
    huggingface_keys.check({"layer_types": ["full_attention", "full_attention"]}, kind)
    for kinds in ([], ["full_attention", "sliding_attention"]):
        with pytest.raises(InputError, match=r"^layer_types is .*, and only null or \['full_attention'\] is supported"):
            huggingface_keys.check({"layer_types": kinds}, kind)


def test_positions_that_are_scaled_by_1_are_not_scaled():
    for scaled in ({"rope_type": "linear", "factor": 1.0}, {"type": "linear", "factor": 1}):
        fields = huggingface_config.model_fields({**SIZES["llama"], "rope_scaling": scaled}, "llama")
        assert fields["rotary_base"] == 10_000.0
    for scaled in ({"type": "linear"}, {"type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 1.0}):
        with pytest.raises(InputError, match="rope_scaling scales the rotary positions"):
            huggingface_config.model_fields({**SIZES["llama"], "rope_scaling": scaled}, "llama")


def test_the_keys_that_matter_are_named_for_each_class():
    """A key that was forgotten above would be passed over: these are those that scale or mask somewhere."""
    for kind, decisions in KEYS.items():
        for key in ("quantization_config", "tie_word_embeddings", "pruned_heads", "per_layer_config", "is_causal"):
            assert key in decisions, (kind, key)


# Values of the keys that are read. A list of several is tried one after the other; each gives transformers' logits in
# Limba, or one sentence.
IDS = {key: [3] for kinds in KEYS.values() for key in kinds if key.endswith("_token_id")}
IDS |= {"model_type": [], "architectures": [], "transformers_version": ["5.23.0"]}
ACTIVATIONS = ["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate", "swish", "quick_gelu", "relu6"]
OF_T5 = {
    "vocab_size": [56],
    "d_model": [24],
    "d_kv": [8],
    "d_ff": [32],
    "num_layers": [3],
    "num_decoder_layers": [1, None],
    "num_heads": [2],
    "relative_attention_num_buckets": [4],
    "relative_attention_max_distance": [6],
    "layer_norm_epsilon": [0.3],
    "feed_forward_proj": ["gelu", "gelu_new", "gated-gelu", "gated-silu", "gated-gelu_new", "tanh", "swish"],
    "dense_act_fn": ACTIVATIONS,
    "is_gated_act": [True],
    "tie_word_embeddings": [False],
    "scale_decoder_outputs": [False],
    "is_decoder": [True],
    "is_encoder_decoder": [False],
    "hidden_size": [24],
    "num_attention_heads": [2],
    "num_hidden_layers": [1],
    "head_dim": [8],
}
OF_LLAMA = {
    "vocab_size": [56],
    "hidden_size": [24],
    "intermediate_size": [32],
    "num_hidden_layers": [3],
    "num_attention_heads": [2],
    "num_key_value_heads": [1, 4],
    "head_dim": [8],
    "hidden_act": ACTIVATIONS,
    "max_position_embeddings": [64],
    "rms_norm_eps": [0.3],
    "attention_bias": [True],
    "mlp_bias": [True],
    "tie_word_embeddings": [True],
    "rope_theta": [50.0],
    "rope_parameters": [
        {"rope_theta": 50.0, "rope_type": "default"},
        {"rope_theta": 50.0, "rope_type": "linear", "factor": 4.0},
        {"rope_theta": 50.0, "rope_type": "default", "partial_rotary_factor": 0.5},
    ],
    "rope_scaling": [
        {"type": "default", "rope_theta": 50.0},
        {"type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8},
    ],
}  # fmt: skip
CHANGES = {
    "t5": OF_T5,
    "mt5": OF_T5,
    "umt5": OF_T5,
    "llama": OF_LLAMA,
    "eurobert": OF_LLAMA,
    "gpt2": {
        "vocab_size": [56],
        "n_positions": [40],
        "n_embd": [24],
        "n_layer": [3],
        "n_head": [2],
        "n_inner": [20],
        "activation_function": ACTIVATIONS,
        "layer_norm_epsilon": [0.3],
        "scale_attn_weights": [False],
        "scale_attn_by_inverse_layer_idx": [True],
        "tie_word_embeddings": [False],
        "hidden_size": [24],
        "max_position_embeddings": [40],
        "num_attention_heads": [2],
        "num_hidden_layers": [3],
        "limba_positions": [],  # Limba's own
        "limba_biases": [],
    },
    "modernbert": {
        "vocab_size": [56],
        "hidden_size": [24],
        "intermediate_size": [32],
        "max_position_embeddings": [64],
        "num_hidden_layers": [5],
        "num_attention_heads": [2],
        "hidden_activation": ["gelu_new", "silu", "tanh"],
        "classifier_activation": ["relu"],
        "norm_eps": [0.3],
        "norm_bias": [True],
        "attention_bias": [True],
        "mlp_bias": [True],
        "decoder_bias": [False],
        "classifier_bias": [True],
        "layer_types": [
            ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
            ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
            ["full_attention"] * 4,
        ],
        "global_attn_every_n_layers": [2],
        "local_attention": [6, 5],
        "sliding_window": [2, 3],
        "head_dim": [8],
        "rope_parameters": [
            {"full_attention": {"rope_theta": 50.0, "rope_type": "default"}},
            {"sliding_attention": {"rope_theta": 50.0, "rope_type": "default"}},
            {"sliding_attention": {"rope_theta": 50.0, "rope_type": "linear", "factor": 4.0}},
        ],
        "rope_scaling": [{"rope_theta": 50.0}, {"rope_type": "linear", "factor": 4.0}],
        "global_rope_theta": [50.0],
        "local_rope_theta": [50.0],
        "tie_word_embeddings": [False],
    },
}  # fmt: skip
# Two keys of one file that say something together.
PAIRS = {
    "t5": [
        {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"},
        {"feed_forward_proj": "gated-gelu", "is_gated_act": False},
        {"d_model": 8, "hidden_size": 16},
        {"num_hidden_layers": 3, "num_layers": 1},
        {"scale_decoder_outputs": True, "tie_word_embeddings": False},
    ],
    "mt5": [{"tie_word_embeddings": False, "feed_forward_proj": "gelu"}],
    "llama": [
        {"rope_theta": 50.0, "rope_parameters": {"rope_theta": 900.0, "rope_type": "default"}},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 9.0}, "rope_parameters": {"rope_theta": 900.0}},
        {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True},
    ],
    "gpt2": [
        {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "n_layer": 3},
        {"n_embd": 8, "hidden_size": 16},
        {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True, "attn_implementation": "eager"},
    ],
    "modernbert": [{"hidden_activation": "gelu_new", "classifier_activation": "gelu_new"}],
}


@pytest.mark.parametrize("kind", CLASSES)
def test_each_key_that_is_read_has_values_here(kind):
    read = {key for key, decision in KEYS[kind].items() if decision == READ}
    assert sorted(read - set(CHANGES[kind]) - set(IDS)) == []


def tried(kind: str, changes: dict, folder) -> str:
    """Returns "equal", or what Limba says; it fails where Limba's logits are others than transformers'."""
    folder.mkdir()
    model, config = made(kind, changes)
    try:
        wanted = theirs(model, kind)
    except RuntimeError:  # shapes that do not fit, which Limba has to refuse
        wanted = np.full((1, 1), np.nan)
    try:
        logits = ours(folder, model, config)
    except InputError as error:
        sentence = str(error)
    else:
        sentence = ""
    if sentence:
        assert "\n" not in sentence and str(folder) in sentence
        return f"refused: {sentence}"
    np.testing.assert_allclose(logits, wanted, atol=1e-4 * max(1.0, np.abs(wanted).max()), err_msg=str(changes))
    return "equal"


@pytest.mark.night
@pytest.mark.parametrize("kind", CLASSES)
def test_a_key_that_is_read_gives_the_logits_of_transformers(kind, tmp_path):
    changes = [{}, *PAIRS.get(kind, [])]
    changes += [{key: value} for key, values in {**CHANGES[kind], **IDS}.items() for value in values]
    with jax.disable_jit():
        results = {str(change): tried(kind, change, tmp_path / str(n)) for n, change in enumerate(changes)}
    refused = [change for change, result in results.items() if result != "equal"]
    assert results["{}"] == "equal" and len(refused) < len(results) / 3, refused


@pytest.mark.parametrize("kind", [pytest.param("t5", marks=pytest.mark.slow), "gpt2"])
@pytest.mark.slow
def test_keys_that_say_something_together_give_the_logits_of_transformers(kind, tmp_path):
    """Other names, activations with a gate of their own, scores that are scaled by layer: one class of each layout."""
    with jax.disable_jit():
        results = [tried(kind, change, tmp_path / str(n)) for n, change in enumerate(PAIRS[kind])]
    assert set(results) == {"equal"}


@pytest.mark.parametrize("kind", CLASSES)
def test_an_activation_is_written_as_it_is_read(kind):
    """The exact gelu too, which version 4.57 and 5 of a T5 take from `dense_act_fn`."""
    for activation in ("relu", "gelu", "gelu_new", "silu"):
        settings = {**SIZES[kind], "feed_forward_proj": f"gated-{activation}", "dense_act_fn": activation}
        settings |= dict.fromkeys(("hidden_act", "activation_function"), activation)
        settings |= dict.fromkeys(("hidden_activation", "classifier_activation"), activation)
        config = ModelConfig(**huggingface_config.model_fields(settings, kind))
        written = huggingface_config.config_json(config, mask_id=2)
        again = ModelConfig(**huggingface_config.model_fields(written, written["model_type"]))
        assert again.mlp_activations == config.mlp_activations
        theirs = getattr(transformers, CLASSES[written["model_type"]][0]).from_dict(dict(written))
        keys = ("dense_act_fn", "hidden_act", "activation_function", "hidden_activation")
        key = next(key for key in keys if key in written)
        assert huggingface_keys.ACTIVATIONS[getattr(theirs, key)] == config.mlp_activations[0]
