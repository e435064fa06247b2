"""The arrays of a folder are those that transformers reads of it: which files, which names, what is passed over."""

import json
import logging

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from limba.config import InputError
from limba.formats import architectures, huggingface
from tests.formats.test_huggingface_keys import CLASSES, SIZES

SIDES = ("encoder", "decoder")
LEFT_OVER = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def saved(folder, kind, cls=None, seed=0, **changes):
    """A tiny model as transformers saves it; `cls` is another class than the one with a language head."""
    config_type, model_type = CLASSES[kind]
    torch.manual_seed(seed)
    config = getattr(transformers, config_type)(**{**SIZES[kind], **changes})
    model = getattr(transformers, cls or model_type)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    model.save_pretrained(folder)
    return folder


def edited(folder, change):
    """The folder after a change of the arrays in its file."""
    state = load_file(folder / "model.safetensors")
    save_file(change(state), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def same_as_transformers(folder, kind, cls=None):
    """Limba's arrays of a folder equal those in transformers' model, by the names and in the shapes that we write."""
    theirs = getattr(transformers, cls or CLASSES[kind][1]).from_pretrained(folder).float().state_dict()
    config = huggingface.model_config(folder)
    ours = architectures.written(huggingface.open_folder(folder, config), config)
    rows = architectures.rows(config)
    assert len(rows) > 10
    for row in rows:
        wanted = theirs[row.pytorch].numpy()
        np.testing.assert_array_equal(ours[row.t5x], wanted.T if row.transposed else wanted, err_msg=row.pytorch)


def plus(**arrays):
    return lambda state: state | {name.replace("__", "."): array for name, array in arrays.items()}


def under(old, new):
    """Each array whose name begins with `old` has another name."""
    return lambda state: {new + name[len(old) :] if name.startswith(old) else name: a for name, a in state.items()}


def moved(*names):
    """The embedding lies under these names, and under no other."""

    def change(state):
        places = ("shared.weight", "model.embed_tokens.weight", "transformer.wte.weight")
        tensor = next(state.pop(name) for name in places if name in state)
        return state | {name: tensor.clone() for name in names}

    return change


def old_gpt2(dtype):
    """The buffers of versions before 4.31."""

    def change(state):
        for layer in range(SIZES["gpt2"]["n_layer"]):
            state[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 32, 32).to(dtype)
            state[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4).to(dtype)
        return state

    return change


READ = {
    "t5 as published": ("t5", {}, lambda state: state | {LEFT_OVER: torch.ones(8, 4)}),
    "mt5 with it": ("mt5", {}, lambda state: state | {LEFT_OVER: torch.ones(8, 4)}),
    "t5 inside of a class": ("t5", {}, under("", "transformer.")),
    "t5 with all names": ("t5", {}, moved("shared.weight", *(f"{side}.embed_tokens.weight" for side in SIDES))),
    "madlad400": ("t5", {}, moved("decoder.embed_tokens.weight")),
    "t5 by its encoder": ("t5", {}, moved("encoder.embed_tokens.weight")),
    "t5 by its head": ("t5", {}, moved("lm_head.weight")),
    "umt5 by its decoder": ("umt5", {}, moved("decoder.embed_tokens.weight")),
    "openai's gpt2": ("gpt2", {}, under("transformer.", "")),
    "gpt2 before 4.31": ("gpt2", {}, old_gpt2(torch.bool)),
    "gpt2 with bytes": ("gpt2", {}, old_gpt2(torch.uint8)),
    "gpt2 with float8": ("gpt2", {}, old_gpt2(torch.float8_e4m3fn)),
    "openai's, with buffers": ("gpt2", {}, lambda state: under("transformer.", "")(old_gpt2(torch.float16)(state))),
    "gpt2 by its head": ("gpt2", {}, moved("lm_head.weight")),
    "llama before 4.31": ("llama", {}, plus(model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(2))),
    "llama by its head": ("llama", {"tie_word_embeddings": True}, moved("lm_head.weight")),
    "llama without prefix": ("llama", {}, under("model.", "")),
    "llama inside of a class": ("llama", {}, under("", "model.")),
    "modernbert without prefix": ("modernbert", {}, under("model.", "")),
    "eurobert without prefix": ("eurobert", {}, under("model.", "")),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_folder_of_these_names_is_read_as_transformers_reads_it(name, tmp_path):
    kind, changes, change = READ[name]
    same_as_transformers(edited(saved(tmp_path, kind, **changes), change), kind)


@pytest.mark.parametrize(
    ("kind", "cls", "reader"),
    [
        ("gpt2", "GPT2Model", "GPT2LMHeadModel"),
        ("llama", "LlamaModel", "LlamaForCausalLM"),
        ("eurobert", "EuroBertModel", "EuroBertModel"),
        ("modernbert", "ModernBertModel", "ModernBertModel"),
        ("t5", "T5EncoderModel", "T5EncoderModel"),
        ("umt5", "UMT5EncoderModel", "UMT5EncoderModel"),
        ("t5", "T5Model", "T5ForConditionalGeneration"),
    ],
)
def test_a_base_model_is_read_where_its_layers_are_tied(kind, cls, reader, tmp_path):
    changes = {"tie_word_embeddings": True} if kind == "llama" else {}
    same_as_transformers(saved(tmp_path, kind, cls, **changes), kind, reader)


ON_TOP = {  # kind, class of the folder, class of its encoder, what stands on top
    "eurobert, texts": ("eurobert", "EuroBertForSequenceClassification", "EuroBertModel", "classifier, dense"),
    "eurobert, tokens": ("eurobert", "EuroBertForTokenClassification", "EuroBertModel", "classifier"),
    "modernbert, texts": ("modernbert", "ModernBertForSequenceClassification", "ModernBertModel", "classifier, head"),
    "modernbert, tokens": ("modernbert", "ModernBertForTokenClassification", "ModernBertModel", "classifier, head"),
    "modernbert, answers": ("modernbert", "ModernBertForQuestionAnswering", "ModernBertModel", "classifier, head"),
    "modernbert, choices": ("modernbert", "ModernBertForMultipleChoice", "ModernBertModel", "classifier, head"),
    "t5, tokens": ("t5", "T5ForTokenClassification", "T5EncoderModel", "classifier"),
    "mt5, tokens": ("mt5", "MT5ForTokenClassification", "MT5EncoderModel", "classifier"),
    "umt5, tokens": ("umt5", "UMT5ForTokenClassification", "UMT5EncoderModel", "classifier"),
}


@pytest.mark.parametrize("name", ON_TOP)
def test_an_encoder_is_read_without_what_stands_on_top_and_that_is_said(name, tmp_path, caplog):
    kind, cls, encoder, on_top = ON_TOP[name]
    with caplog.at_level(logging.WARNING):
        same_as_transformers(saved(tmp_path, kind, cls, num_labels=3), kind, encoder)
    assert not huggingface.model_config(tmp_path).has_logits
    said = [record.getMessage() for record in caplog.records if "stands on top" in record.getMessage()]
    assert said == [
        f"{tmp_path}: its encoder is read, and what stands on top of it ({on_top}) is left out; use transformers for"
        " that."
    ]


def test_the_class_of_a_t5_for_texts_is_refused_since_it_has_its_decoder(tmp_path):
    folder = saved(tmp_path, "t5", "T5ForSequenceClassification")
    with pytest.raises(InputError, match=r"has classification_head\..* the network does not have"):
        huggingface.open_folder(folder, huggingface.model_config(folder))


def test_the_encoder_of_a_whole_t5_is_read(tmp_path):
    folder = saved(tmp_path, "t5")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "architectures": ["T5EncoderModel"]}))
    same_as_transformers(folder, "t5", "T5EncoderModel")


def in_shards(state, folder, suffix="safetensors"):
    """Two files of a model and their index."""
    stem = {"safetensors": "model", "bin": "pytorch_model"}[suffix]
    names = sorted(state)
    places = {}
    for number in (0, 1):
        file = f"{stem}-0000{number + 1}-of-00002.{suffix}"
        part = {name: state[name].clone().contiguous() for name in names[number::2]}
        save_file(part, folder / file, metadata={"format": "pt"}) if suffix != "bin" else torch.save(
            part, folder / file
        )
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))


def states(tmp_path):
    """Two sets of weights of one network."""
    return [load_file(saved(tmp_path / str(seed), "t5", seed=seed) / "model.safetensors") for seed in (1, 2)]


SETS = {
    "one file, then shards": lambda one, two, folder: (one_file(one, folder), in_shards(two, folder)),
    "shards, then .bin": lambda one, two, folder: (
        in_shards(one, folder),
        torch.save(two, folder / "pytorch_model.bin"),
    ),
    "one .bin, then shards": lambda one, two, folder: (
        torch.save(one, folder / "pytorch_model.bin"),
        in_shards(two, folder, "bin"),
    ),
    "shards of both": lambda one, two, folder: (in_shards(one, folder), in_shards(two, folder, "bin")),
    "all": lambda one, two, folder: (
        one_file(one, folder),
        in_shards(two, folder),
        torch.save(two, folder / "pytorch_model.bin"),
        (folder / "flax_model.msgpack").write_bytes(b""),
    ),
}


def one_file(state, folder):
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("name", SETS)
def test_of_two_sets_of_weights_that_of_transformers_is_read_and_said(name, tmp_path, caplog):
    folder = saved(tmp_path / "folder", "t5")
    (folder / "model.safetensors").unlink()
    SETS[name](*states(tmp_path), folder)
    with caplog.at_level(logging.WARNING, logger="limba"):
        same_as_transformers(folder, "t5")
    said = [line for line in caplog.messages if "sets of weights" in line]
    assert len(said) == 1 and "is read, as transformers does" in said[0], caplog.messages


def test_weights_of_one_set_and_our_own_copy_of_a_bin_are_not_two(tmp_path, caplog):
    folder = saved(tmp_path / "folder", "t5")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    for _ in range(2):
        same_as_transformers(folder, "t5")
    assert (folder / "model.safetensors").exists() and not any("sets of weights" in line for line in caplog.messages)


def quantized(state):
    name = "model.layers.0.mlp.up_proj.weight"
    return state | {name: (state[name] * 10).to(torch.int8)}


def without(part):
    return lambda state: {name: array for name, array in state.items() if part not in name}


NORM = torch.ones(4)
CROSS = plus(transformer__h__0__crossattention__c_attn__bias=torch.ones(4))
EMBEDDING = torch.ones(48, 16)
REFUSED = {
    "another array": ("gpt2", plus(transformer__h__0__attn__q_norm__weight=NORM), "has transformer.h.0.attn.q_norm"),
    "cross-attention": ("gpt2", CROSS, "has transformer.h.0.crossattention.c_attn"),
    "a side's own embedding": ("t5", plus(encoder__embed_tokens__weight=EMBEDDING), "two different matrices"),
    "twice": ("gpt2", plus(wte__weight=EMBEDDING), "holds transformer.wte.weight twice"),
    "quantized": ("llama", quantized, "holds model.layers.0.mlp.up_proj.weight as I8"),
    "an untied base model": ("llama", without("lm_head"), "has no lm_head"),
    "an untied one by its head": ("llama", without("embed_tokens"), "has no model.embed_tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_network_does_not_have_is_refused_by_name(name, tmp_path):
    kind, change, sentence = REFUSED[name]
    folder = edited(saved(tmp_path, kind), change)
    with pytest.raises(InputError, match=sentence):
        huggingface.open_folder(folder, huggingface.model_config(folder))


def test_an_adapter_is_refused(tmp_path):
    folder = saved(tmp_path, "llama")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds adapter_config\.json.*merge_and_unload"):
        huggingface.model_config(folder)
