"""Hugging Face folders of every family start a run, with the logits of transformers."""

import functools
import json

import jax
import msgpack
import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from limba.config import InputError, MeshConfig, optimizer_config
from limba.formats import huggingface
from limba.formats.names import Arrays, flatten, unflatten, unstack_layers
from limba.model import Network
from limba.training.checkpoints.initial import load_initial
from limba.training.optimizer import make_optimizer
from limba.training.state import abstract_state
from tests import tiny
from tests.model.test_huggingface import FAMILIES, SIZES, our_config, reference_model


@functools.cache
def prepared(config):
    model = Network(config)
    chain = make_optimizer(optimizer_config(), 10)
    mesh = tiny.mesh_of(MeshConfig(fsdp=2), 2)
    return abstract_state(model, chain, mesh), tiny.state(model, chain, mesh, 3)


def write_folder(directory, model, dtype=torch.float32, split=False):
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: value.to(dtype).contiguous() for name, value in model.state_dict().items()}
    weights = {name: value for name, value in weights.items() if "embed_tokens" not in name}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    files = {"model.safetensors": weights}
    if split:
        names = sorted(weights)
        files = {f"model-0000{i + 1}-of-00002.safetensors": {n: weights[n] for n in names[i::2]} for i in range(2)}
        index = {name: file for file, part in files.items() for name in part}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    for file, part in files.items():
        safetensors.torch.save_file(part, directory / file)
    (directory / "config.json").write_text(json.dumps(model.config.to_dict(), default=str))
    return directory


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
def test_a_folder_starts_a_run_with_its_own_logits(family, tmp_path):
    model = reference_model(family)
    config = our_config(family)
    folder = write_folder(tmp_path, model, split=family == "mt5")
    abstract, fresh = prepared(config)
    state = load_initial(str(folder), abstract, config, fresh, False)
    assert int(state.step) == 0
    batch = tiny.batch(2, inputs=9, targets=6)
    ours = jax.jit(Network(config).apply)(jax.device_get(state.params), batch)
    tokens = {name: torch.tensor(array, dtype=torch.long) for name, array in batch.items()}
    with torch.no_grad():
        theirs = model(
            input_ids=tokens["encoder_input_tokens"],
            attention_mask=(tokens["encoder_input_tokens"] > 0).long(),
            decoder_input_ids=tokens["decoder_input_tokens"],
        ).logits.numpy()
    real = batch["decoder_target_tokens"] > 0
    np.testing.assert_allclose(np.asarray(ours)[real], theirs[real], atol=1e-4)


def test_a_folder_is_opened_without_its_weights_being_read(tmp_path, monkeypatch):
    """Whether an array is there was answered by reading it."""
    write_folder(tmp_path, reference_model("umt5"))
    read = []
    monkeypatch.setattr(Arrays, "__getitem__", lambda _, name: read.append(name))
    arrays = huggingface.open_folder(tmp_path, our_config("umt5"))
    assert "token_embedder/embedding" in arrays and "token_embedder/kernel" not in arrays
    assert not read


@pytest.mark.parametrize("family", ["t5_1_0", "umt5"])
def test_flax_and_bfloat16_folders_hold_the_same(family, tmp_path):
    model = reference_model(family)
    config = our_config(family)
    full = huggingface.open_folder(write_folder(tmp_path / "full", model), config)
    half = huggingface.open_folder(write_folder(tmp_path / "half", model, torch.bfloat16), config)
    flax = {}
    for row in huggingface.rows(config):
        array = np.ascontiguousarray(full[row.t5x].T if row.t5x.endswith("rel_embedding") else full[row.t5x])
        content = msgpack.packb((array.shape, array.dtype.name, array.tobytes()))
        flax[huggingface.flax_name(row)] = msgpack.ExtType(1, content)
    (tmp_path / "flax").mkdir()
    (tmp_path / "flax" / "flax_model.msgpack").write_bytes(msgpack.packb(unflatten(flax)))
    again = huggingface.open_folder(tmp_path / "flax", config)
    for name in full:
        np.testing.assert_array_equal(again[name], full[name])
        np.testing.assert_allclose(np.float32(half[name]), full[name], rtol=1e-2, atol=1e-6)


@pytest.mark.core
@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_is_a_bijection_onto_the_network(family):
    config = our_config(family)
    table = huggingface.rows(config)
    shapes = jax.eval_shape(Network(config).init, jax.random.key(0))
    arrays = {name: np.empty(leaf.shape, np.bool_) for name, leaf in flatten(shapes).items()}
    assert {row.t5x for row in table} == set(unstack_layers(arrays))
    assert len({row.pytorch for row in table}) == len(table) == len({huggingface.flax_name(row) for row in table})
    theirs = {name for name in reference_model(family).state_dict() if "embed_tokens" not in name}
    if config.logits_via_embedding:
        theirs -= {"lm_head.weight"}
    assert {row.pytorch for row in table} == theirs


@pytest.mark.slow
def test_bad_folders_are_refused(tmp_path):
    model = reference_model("t5_1_1")
    config = our_config("t5_1_1")
    folder = write_folder(tmp_path / "good", model)
    abstract, fresh = prepared(config)
    tied = our_config("t5_1_0")
    with pytest.raises(InputError, match="lacks|also has|has no|does not have"):
        load_initial(str(folder), *[prepared(tied)[0]], tied, prepared(tied)[1], False)
    with pytest.raises(InputError, match="set ModelConfig.vocab_size"):
        bigger = type(config)(**{**vars(config), "vocab_size": 384})
        load_initial(str(folder), prepared(bigger)[0], bigger, prepared(bigger)[1], False)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(InputError, match="truncated"):
        load_initial(str(folder), abstract, config, fresh, False)
    weights.write_bytes(b"\x01")
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        load_initial(str(folder), abstract, config, fresh, False)
    for content, message in (
        ('{"model_type": "bart"}', "only mt5, t5, umt5"),
        ('{"model_type": "llama"}', "no 'vocab_size'"),
    ):
        (folder / "config.json").write_text(content)
        with pytest.raises(InputError, match=message):
            huggingface.model_config(folder)


@pytest.mark.parametrize("family", ["t5_1_0", "mt5", "umt5"])
def test_config_json_describes_the_network(family, tmp_path):
    folder = write_folder(tmp_path, reference_model(family))
    read = huggingface.model_config(folder)
    assert read == our_config(family) and read.emb_dim == SIZES["d_model"]


def own_head_saved_by_5(tmp_path, family="t5_1_1", **choices):
    """A T5 with an output layer of its own, saved by this transformers: (its arrays, that layer)."""
    config_type, model_type, feed_forward, _ = FAMILIES[family]
    torch.manual_seed(1)
    model = model_type(config_type(**SIZES, feed_forward_proj=feed_forward, tie_word_embeddings=False)).eval()
    model.lm_head.weight = torch.nn.Parameter(torch.randn(SIZES["vocab_size"], SIZES["d_model"]) * 0.1)
    model.save_pretrained(tmp_path, **choices)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["tie_word_embeddings"] is True and int(settings["transformers_version"].partition(".")[0]) >= 5
    return model.state_dict(), model.lm_head.weight.detach().numpy()


@pytest.mark.parametrize("choices", [{}, {"max_shard_size": "100KB"}])
def test_the_bytes_decide_whether_the_output_layer_is_tied(choices, tmp_path, caplog):
    _, head = own_head_saved_by_5(tmp_path, **choices)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == bool(choices)
    config = huggingface.model_config(tmp_path)
    assert not config.logits_via_embedding
    arrays = huggingface.open_folder(tmp_path, config)
    np.testing.assert_array_equal(arrays[huggingface.HEAD], head.T)
    (line,) = [record.message for record in caplog.records]  # one, although the folder was looked at twice
    assert line.startswith(f"{tmp_path}: config.json ties the output layer to the embedding, but lm_head.weight is")
    tied = type(config)(**{**vars(config), "logits_via_embedding": True})
    with pytest.raises(InputError, match=r"has lm_head\.weight, which the network does not have"):
        huggingface.open_folder(tmp_path, tied)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_copy_in_any_dtype_is_tied(dtype, form, is_own, tmp_path):
    """A head in another dtype than the embedding; a file of torch.save holds it beside the embedding that it is."""
    weights, _ = own_head_saved_by_5(tmp_path)
    weights = {name: value for name, value in weights.items() if "embed_tokens" not in name}
    head = weights["shared.weight"].clone()
    if is_own:
        head[-1, -1] += 1  # in the last block of rows, if there are several
    weights["lm_head.weight"] = head.to(dtype)
    (tmp_path / "model.safetensors").unlink()
    if form == "bin":
        torch.save(weights, tmp_path / "pytorch_model.bin")
    else:
        safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "scale_decoder_outputs": True}))
    config = huggingface.model_config(tmp_path)
    assert config.logits_via_embedding == (not is_own)
    arrays = huggingface.open_folder(tmp_path, config)
    assert (huggingface.HEAD in arrays) == is_own
    if is_own:  # and scaled, as the writer says
        expected = head.to(dtype).float().numpy().T / np.float32(SIZES["d_model"] ** 0.5)
        np.testing.assert_array_equal(arrays[huggingface.HEAD], expected)
    else:
        untied = type(config)(**{**vars(config), "logits_via_embedding": False})
        with pytest.raises(InputError, match=r"has no lm_head\.weight"):
            huggingface.open_folder(tmp_path, untied)


def test_a_run_starts_from_the_own_layer_of_a_folder_by_5(tmp_path):
    _, head = own_head_saved_by_5(tmp_path)
    config = our_config("t5_1_1")
    state = load_initial(str(tmp_path), prepared(config)[0], config, prepared(config)[1], False)
    np.testing.assert_array_equal(np.asarray(state.params["decoder"]["logits_dense"]["kernel"]), head.T)


def test_what_4_57_computes_of_a_umt5_for_5_is_what_it_saves(tmp_path):
    """It keeps the entry by which Limba multiplied the layer, and does not divide."""
    _, head = own_head_saved_by_5(tmp_path, "umt5")
    settings = json.loads((tmp_path / "config.json").read_text())
    scale = SIZES["d_model"] ** 0.5
    for changes, divided in (
        ({}, scale),
        ({huggingface.HEAD_SCALE: scale}, scale),
        ({huggingface.HEAD_SCALE: "wrong"}, scale),
        ({"transformers_version": "4.57.6", "tie_word_embeddings": False, huggingface.HEAD_SCALE: scale}, 1.0),
        ({"transformers_version": "4.57.6", "tie_word_embeddings": False}, 1.0),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**settings, **changes}))
        arrays = huggingface.open_folder(tmp_path, huggingface.model_config(tmp_path))
        np.testing.assert_array_equal(arrays[huggingface.HEAD], head.T / np.float32(divided))


def test_a_umt5_by_5_whose_file_unties_it_is_read_as_it_was_trained(tmp_path, caplog):
    """transformers 5 takes the key for true and scales the logits: the log says so."""
    _, head = own_head_saved_by_5(tmp_path, "umt5")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": False}))
    arrays = huggingface.open_folder(tmp_path, huggingface.model_config(tmp_path))
    np.testing.assert_array_equal(arrays[huggingface.HEAD], head.T)
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path}: config.json has tie_word_embeddings false") and "d_model^-0.5" in line


def test_nothing_is_said_of_an_output_layer_that_a_class_has_not(tmp_path, caplog):
    torch.manual_seed(0)
    transformers.MT5EncoderModel(transformers.MT5Config(**SIZES)).save_pretrained(tmp_path)
    assert not huggingface.model_config(tmp_path).has_logits
    assert caplog.messages == []


def test_the_line_about_an_own_layer_has_the_name_of_its_array(tmp_path, caplog):
    torch.manual_seed(0)
    sizes = {
        **{"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "pad_token_id": 0},
        **{"num_attention_heads": 2, "tie_word_embeddings": False, "cls_token_id": 0, "sep_token_id": 1},
        **{"bos_token_id": 0, "eos_token_id": 1},
    }
    transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**sizes)).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    assert not huggingface.model_config(tmp_path).logits_via_embedding
    (line,) = caplog.messages
    assert "but decoder.weight is another matrix" in line


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("t5", {"relative_attention_num_buckets": 3}, "relative_attention_num_buckets"),
        ("eurobert", {"tie_word_embeddings": True, "mlp_bias": True}, "attention_bias and mlp_bias"),
        ("modernbert", {"local_attention": 1}, "local_attention and global_attn_every_n_layers and local_rope_theta"),
    ],
)
def test_a_network_that_limba_has_not_is_told_by_the_keys_of_the_file(kind, changes, named, tmp_path):
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **sizes, "num_attention_heads": 2, **changes}))
    with pytest.raises(InputError, match=rf"config.json: {named} does not give a network of Limba's \(Model"):
        huggingface.model_config(tmp_path)
