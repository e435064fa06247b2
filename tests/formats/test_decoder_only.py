"""Decoder-only networks in transformers' Llama and GPT-2: equal logits, an exact way back, and what is refused."""

import json

import jax
import numpy as np
import pytest
import torch
import transformers

from limba.config import InputError
from limba.data.vocabulary.load import load_vocabulary
from limba.export.huggingface import import_folder
from limba.formats import architectures, huggingface, huggingface_files, huggingface_tokenizer
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.formats.names import flatten, unflatten, unstack_layers
from limba.model import Network
from tests import tiny
from tests.tiny import stack_layers

GPT2 = tiny.language_model(
    num_decoder_layers=2,
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
    "llama": (tiny.language_model(num_decoder_layers=2), "LlamaForCausalLM"),
    "llama, biases, tied": (
        tiny.language_model(
            num_decoder_layers=1, biases=("attention",), logits_via_embedding=True, rotary_base=500_000.0
        ),
        "LlamaForCausalLM",
    ),
    "gpt2": (GPT2, "GPT2LMHeadModel"),
    "lm1b": (
        tiny.language_model(
            num_decoder_layers=1,
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
    return tiny.parameters(config)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_transformers_and_the_way_back_is_exact(layout, tmp_path):
    config, architecture = LAYOUTS[layout]
    params = parameters(config)
    arrays = {name: np.asarray(array) for name, array in unstack_layers(flatten(params)).items()}
    assert {name: array.shape for name, array in arrays.items()} == architectures.shapes(config)
    huggingface_files.write_configs(tmp_path, config, "float32")
    huggingface_files.write_pytorch(tmp_path, arrays, config)

    back = huggingface.open_folder(tmp_path, huggingface.model_config(tmp_path))
    assert set(back) == set(arrays) and all(np.array_equal(back[name], arrays[name]) for name in arrays)
    read = huggingface.model_config(tmp_path)
    assert read == tiny.language_model(**{**vars(config), "num_kv_heads": read.num_kv_heads})

    import_folder(str(tmp_path), tmp_path / "imported")
    imported = LimbaCheckpoint(tmp_path / "imported/checkpoints/0")
    assert all(np.array_equal(imported[name], arrays[name]) for name in arrays) and set(imported) == set(arrays)

    model, loading = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(model).__name__ == architecture and not loading["missing_keys"] and not loading["unexpected_keys"]
    ids = np.random.default_rng(1).integers(2, 250, (2, 150)).astype(np.int32)
    ids[:, 0] = 0
    with torch.no_grad():
        expected = model.eval()(input_ids=torch.tensor(ids, dtype=torch.long)).logits.numpy()
    features = {"decoder_input_tokens": ids, "decoder_target_tokens": np.ones_like(ids)}
    logits = np.asarray(jax.jit(Network(config).apply)(unflatten(stack_layers(back)), features))
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
            "its GPT-2 class has no bias of the logits, which ModelConfig.biases holds",
        ),
    ],
)
def test_what_no_class_can_hold_is_said(changes, said):
    with pytest.raises(InputError, match=said):
        architectures.kind(tiny.language_model(**changes))


def test_folders_that_do_not_fit_are_said(tmp_path):
    config = GPT2
    arrays = {name: np.zeros(shape, np.float32) for name, shape in architectures.shapes(config).items()}
    huggingface_files.write_configs(tmp_path, config, "float32")
    huggingface_files.write_pytorch(tmp_path, arrays, config)
    with pytest.raises(InputError, match=r"has no transformer.h.2.ln_1.weight, and .* more"):
        huggingface.open_folder(tmp_path, tiny.language_model(**{**vars(config), "num_decoder_layers": 3}))
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "activation_function": "tanh"}))
    with pytest.raises(InputError, match="activation"):
        huggingface.model_config(tmp_path)


def test_bytes_have_a_tokenizer(tmp_path):
    """ByT5's ids, padding before a text and no end of sequence behind it, sentinels at the top."""
    huggingface_files.write_configs(tmp_path, tiny.language_model(vocab_size=384), "float32")
    huggingface_tokenizer.write_tokenizer(tmp_path, "byte", 2, starts=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    vocabulary = load_vocabulary("byte", 2)
    texts = ["昔々、あるところに", "naïve  ☃ 🙂\n\tx", "", " a\u0000\x7f\u00ad", "".join(map(chr, range(0x21, 0x2000)))]
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        assert ids == [0, *vocabulary.encode(text)]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer("<extra_id_1><extra_id_0></s>")["input_ids"] == [0, 259, 260, 1]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 0)
    assert tokenizer(["ab", "c"], padding=True)["input_ids"] == [[0, 100, 101], [0, 102, 0]]
    read = load_vocabulary(str(tmp_path / "tokenizer.json"))
    assert read.encode(texts[1]) == vocabulary.encode(texts[1]) and read.eos_id == 1
