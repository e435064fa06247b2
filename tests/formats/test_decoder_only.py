"""Decoder-only networks in transformers' Llama and GPT-2: equal logits, an exact way back, and what is refused."""

import json

import jax
import numpy as np
import pytest
import torch
import transformers

from limba.config import ConfigError
from limba.formats import decoder_only, huggingface, huggingface_files
from limba.formats.names import flatten, stack_layers, unflatten, unstack_layers
from limba.model import Model
from tests import tiny

GPT2 = tiny.language_model(
    positions="learned",
    norm="layer",
    biases=("attention", "mlp"),
    mlp_activations=("gelu",),
    num_kv_heads=None,
    logits_via_embedding=True,
    max_length=160,
    layer_norm_epsilon=1e-5,
)
LAYOUTS = {
    "llama": (tiny.LANGUAGE_MODEL, "LlamaForCausalLM"),
    "llama, biases, tied": (
        tiny.language_model(biases=("attention",), logits_via_embedding=True, rotary_base=500_000.0),
        "LlamaForCausalLM",
    ),
    "gpt2": (GPT2, "GPT2LMHeadModel"),
    "lm1b": (
        tiny.language_model(
            positions="sinusoidal",
            norm="layer",
            biases=("mlp",),
            mlp_activations=("relu",),
            num_kv_heads=None,
            max_length=160,
        ),
        "GPT2LMHeadModel",
    ),
}


def parameters(config):
    params = jax.jit(Model(config).init)(jax.random.key(0))
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), params)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_transformers_and_the_way_back_is_exact(layout, tmp_path):
    config, architecture = LAYOUTS[layout]
    params = parameters(config)
    arrays = {name: np.asarray(array) for name, array in unstack_layers(flatten(params)).items()}
    assert {name: array.shape for name, array in arrays.items()} == decoder_only.shapes(config)
    huggingface_files.write_configs(tmp_path, config, "float32")
    huggingface_files.write_pytorch(tmp_path, arrays, config)

    back = huggingface.open_folder(tmp_path, huggingface.model_config(tmp_path))
    assert set(back) == set(arrays) and all(np.array_equal(back[name], arrays[name]) for name in arrays)
    read = huggingface.model_config(tmp_path)
    assert read == tiny.language_model(**{**vars(config), "num_kv_heads": read.num_kv_heads})

    model, about = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(model).__name__ == architecture and not about["missing_keys"] and not about["unexpected_keys"]
    ids = np.random.default_rng(1).integers(2, 250, (2, 150)).astype(np.int32)
    ids[:, 0] = 0
    with torch.no_grad():
        expected = model.eval()(input_ids=torch.tensor(ids, dtype=torch.long)).logits.numpy()
    features = {"decoder_input_tokens": ids, "decoder_target_tokens": np.ones_like(ids)}
    logits = np.asarray(jax.jit(Model(config).apply)(unflatten(stack_layers(back)), features))
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norm": "layer"}, "its Llama class has RMS norms"),
        ({"biases": ("logits",)}, "its Llama class has no bias of the logits"),
        ({"positions": "sinusoidal", "norm": "layer"}, "its GPT-2 class has a plain MLP"),
        (
            {**vars(LAYOUTS["lm1b"][0]), "biases": ("mlp", "logits")},
            "its GPT-2 class has no bias of the logits, which ModelConfig.biases asks for",
        ),
    ],
)
def test_what_no_class_can_hold_is_said(changes, said):
    with pytest.raises(ConfigError, match=said):
        decoder_only.kind(tiny.language_model(**changes))


def test_folders_that_do_not_fit_are_said(tmp_path):
    config = GPT2
    arrays = {name: np.zeros(shape, np.float32) for name, shape in decoder_only.shapes(config).items()}
    huggingface_files.write_configs(tmp_path, config, "float32")
    huggingface_files.write_pytorch(tmp_path, arrays, config)
    with pytest.raises(ConfigError, match=r"lacks transformer.h.3.ln_1.weight and .* more"):
        huggingface.open_folder(tmp_path, tiny.language_model(**{**vars(config), "num_decoder_layers": 4}))
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**about, "activation_function": "tanh"}))
    with pytest.raises(ConfigError, match="activation"):
        huggingface.model_config(tmp_path)
