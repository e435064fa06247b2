"""Encoders without logits, of a T5 too: transformers' hidden states, the way back, vectors, bad input."""

import dataclasses
import json

import numpy as np
import pytest
import torch
import transformers

from limba.cli import convert
from limba.config import InputError
from limba.export import proof as check
from limba.formats.huggingface import open_folder
from limba.inference.load import load
from limba.inference.source import VocabularyName
from tests import tiny
from tests.export.runs import write_run

SIZES = {"vocab_size": 1024, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64}
SHAPES = {
    "T5 1.1": {},
    "tied, plain": {"logits_via_embedding": True, "mlp_activations": ("relu",)},
    "umT5": {"relative_bias_per_layer": True},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow
def test_transformers_gives_the_states_and_the_vectors(shape, vocabulary, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(check.TOLERANCES, "float32", 2e-5)
    arrays = write_run(tmp_path / "run", tiny.model(**SIZES, **SHAPES[shape]))[5]
    convert.run([str(tmp_path / "run"), f"--vocabulary={vocabulary}", "--encoder_only"])
    folder = tmp_path / "run/encoder/step_5"
    findings = json.loads((folder / "conversion.json").read_text())["findings"]
    assert sum("passed" in line for line in findings) == 2 and "transformers 5" in findings[1]
    name = "UMT5EncoderModel" if shape == "umT5" else "T5EncoderModel"
    settings = json.loads((folder / "config.json").read_text())
    assert settings["architectures"] == [name] and name in (folder / "README.md").read_text()
    assert not (folder / "generation_config.json").exists()
    model = load(folder)
    arrays_read = open_folder(folder, model.network.config)
    assert set(arrays_read) == {array for array in arrays if array.startswith(("encoder/", "token_embedder/"))}
    assert all(np.array_equal(arrays_read[array], arrays[array]) for array in arrays_read)
    texts = ["One text.", "Another text, a longer one."]
    network = getattr(transformers, name).from_pretrained(folder).eval()
    whole = load(tmp_path / "run", vocabulary=str(vocabulary))
    np.testing.assert_allclose(model.encode(texts), whole.encode(texts), atol=1e-5)
    for text, vector in zip(texts, model.encode(texts, "last"), strict=True):
        states = network(torch.tensor(model.tokenize(text).astype(np.int64))[None]).last_hidden_state
        np.testing.assert_allclose(vector, states[0, -1].detach().numpy(), atol=2e-5)
    with pytest.raises(InputError, match="is an encoder, which generates no text"):
        model.generate(texts)
    with pytest.raises(InputError, match="is an encoder, which fills no text"):
        model.fill("A <mask>")
    capsys.readouterr()
    convert.run([str(tmp_path / "run"), f"--vocabulary={vocabulary}", "--encoder_only"])
    assert "done before" in capsys.readouterr().out


def test_only_a_t5_has_an_encoder_to_write(tmp_path, vocabulary):
    write_run(tmp_path / "run", tiny.language_model(**SIZES | {"num_kv_heads": 2}))
    with pytest.raises(InputError, match="is not an encoder-decoder, so it has no encoder that could be written alone"):
        convert.run([str(tmp_path / "run"), f"--vocabulary={vocabulary}", "--encoder_only"])
    with pytest.raises(InputError, match=r"is 0, and so is ModelConfig\.num_encoder_layers"):
        tiny.model(num_encoder_layers=0, num_decoder_layers=0)


@pytest.mark.parametrize("shape", ["EuroBERT", pytest.param("ModernBERT", marks=pytest.mark.night)])
@pytest.mark.slow
def test_an_encoder_without_logits_is_written_as_such_and_read_again(shape, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setitem(check.TOLERANCES, "float32", 2e-5)
    whole = tiny.ENCODER if shape == "EuroBERT" else tiny.MODERN
    config = dataclasses.replace(whole, vocab_size=1024, has_logits=False)
    arrays = write_run(tmp_path / "run", config)[5]
    convert.run([str(tmp_path / "run"), f"--vocabulary={vocabulary}", "--extra_ids=1"])
    folder = tmp_path / "run/huggingface/step_5"
    findings = json.loads((folder / "conversion.json").read_text())["findings"]
    assert sum("passed" in line for line in findings) == 2 and "largest entries equal in 4 of 4" in findings[1]
    assert json.loads((folder / "config.json").read_text())["architectures"] == [f"{shape.replace('ERT', 'ert')}Model"]
    assert "last_hidden_state" in (folder / "README.md").read_text()
    arrays_read = open_folder(folder, load(folder).network.config)
    assert set(arrays_read) == set(arrays) and all(np.array_equal(arrays_read[name], arrays[name]) for name in arrays)
    network = transformers.AutoModel.from_pretrained(folder).eval()
    text = "Another text, a longer one."
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids
    mean = network(ids).last_hidden_state[0].mean(0).detach().numpy()
    for path in (folder, tmp_path / "run"):
        model = load(path, vocabulary=None if path is folder else VocabularyName(str(vocabulary), 1))
        np.testing.assert_allclose(model.encode([text])[0], mean, atol=2e-5)
