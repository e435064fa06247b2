"""The encoder of a T5 alone: transformers' hidden states, the way back, vectors, bad input."""

import json

import numpy as np
import pytest
import torch
import transformers

from limba.cli import convert
from limba.config import InputError
from limba.data.objectives.labels import framed
from limba.data.vocabulary.load import encoder
from limba.data.vocabulary.train import train_vocabulary
from limba.export import proof as check
from limba.formats.huggingface import open_folder
from limba.inference.load import load
from tests import tiny
from tests.export.runs import write_run

SIZES = {"vocab_size": 1024, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64}
SHAPES = {
    "T5 1.1": {},
    "tied, plain": {"logits_via_embedding": True, "mlp_activations": ("relu",)},
    "umT5": {"relative_bias_per_layer": True},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_gives_the_states_and_the_vectors(shape, vocabulary, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(check.TOLERANCES, "float32", 2e-5)
    arrays = write_run(tmp_path / "run", tiny.model(**SIZES, **SHAPES[shape]))[5]
    convert.run([str(tmp_path / "run"), f"--vocabulary={vocabulary}", "--encoder_only"])
    folder = tmp_path / "run/encoder/step_5"
    findings = json.loads((folder / "conversion.json").read_text())["findings"]
    assert sum("passed" in line for line in findings) == 2 and "transformers 5" in findings[1]
    name = "UMT5EncoderModel" if shape == "umT5" else "T5EncoderModel"
    about = json.loads((folder / "config.json").read_text())
    assert about["architectures"] == [name] and name in (folder / "README.md").read_text()
    assert not (folder / "generation_config.json").exists()
    model = load(folder)
    found = open_folder(folder, model.network.config)
    assert set(found) == {each for each in arrays if each.startswith(("encoder/", "token_embedder/"))}
    assert all(np.array_equal(found[each], arrays[each]) for each in found)
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
    with pytest.raises(InputError, match="is no encoder-decoder, whose encoder alone could be written"):
        convert.run([str(tmp_path / "run"), f"--vocabulary={vocabulary}", "--encoder_only"])
    with pytest.raises(InputError, match=r"is 0, and so is ModelConfig\.num_encoder_layers"):
        tiny.model(num_encoder_layers=0, num_decoder_layers=0)


def test_texts_of_a_head_begin_with_cls_where_the_vocabulary_has_it(tmp_path, corpus):
    path, texts = tmp_path / "masks.model", [json.loads(line)["text"] for line in corpus.read_text().splitlines()[:100]]
    train_vocabulary(texts, 600, str(path), masks=True)
    write_run(tmp_path / "run", tiny.model(**SIZES, num_decoder_layers=0, head="classes", labels=("no", "yes")))
    convert.run([str(tmp_path / "run"), f"--vocabulary={path}"])
    (folder,) = (tmp_path / "run/huggingface").glob("step_*")
    model, tokenizer = load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("One text.", "Another text, a longer one."):
        ids = model.tokenize(text).tolist()
        assert ids == tokenizer(text).input_ids and tokenizer.convert_ids_to_tokens(ids[:1]) == ["<cls>"]
        trained = framed(model.special_ids, 64)(encoder(model.vocabulary)([text.encode()])[0])[0]
        assert ids == trained.tolist()
