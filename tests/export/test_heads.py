"""Encoders with heads of their own as transformers' classes: proof, outputs in transformers, the exact way back."""

import dataclasses
import json

import numpy as np
import pytest
import torch
import transformers

from limba.cli import convert
from limba.export import proof as check
from limba.formats.huggingface import model_config, open_folder
from limba.inference.load import load
from tests.export.runs import write_run
from tests.model import test_heads

TEXTS = ["One text.", "Another text, a longer one."]
SHAPES = {name: dataclasses.replace(config, vocab_size=1024) for name, config in test_heads.SHAPES.items()}
# Each head and each class lands once: tests/model/test_heads.py compares the outputs and names of all of them.
LANDING = ("EuroBERT, classes", "ModernBERT, tags", "T5, score", "EuroBERT, vectors")


@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=[pytest.mark.night] * (name not in LANDING)) for name in SHAPES]
)
def test_transformers_gives_the_outputs_and_the_way_back_is_exact(shape, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setitem(check.TOLERANCES, "float32", 2e-5)
    config = SHAPES[shape]
    arrays = write_run(tmp_path / "run", config)[5]
    convert.run([str(tmp_path / "run"), f"--vocabulary={vocabulary}", "--extra_ids=1"])
    (folder,) = (tmp_path / "run/huggingface").glob("step_*")
    about = json.loads((folder / "config.json").read_text())
    findings = json.loads((folder / "conversion.json").read_text())["findings"]
    assert sum("passed" in line for line in findings) == 2 and "transformers 5" in findings[1]
    found = open_folder(folder, config)
    assert set(found) == set(arrays) and all(np.array_equal(found[name], arrays[name]) for name in arrays)
    back = model_config(folder)
    if not (config.is_t5_encoder and config.head == "vectors"):  # which is the encoder alone, too
        assert (back.head, back.labels, back.pooling) == (config.head, config.labels, config.pooling)
    assert back.is_t5_encoder == config.is_t5_encoder
    network = getattr(transformers, about["architectures"][0]).from_pretrained(folder).eval()
    model, tokenizer = load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        given = tokenizer(text, return_tensors="pt")
        assert given.input_ids[0].tolist() == model.tokenize(text).tolist()
        with torch.no_grad():
            theirs = network(**given)
        if config.head == "vectors":
            mean = theirs.last_hidden_state[0].mean(0).numpy()
            np.testing.assert_allclose(model.encode([text])[0], mean, atol=2e-5)
            continue
        outputs = theirs.logits[0]
        if config.is_t5_encoder and config.head != "tags":  # its class gives logits of tokens
            outputs = outputs[0] if config.pooling == "first" else outputs.mean(0)
        if config.head == "tags":
            words = text.split(" ")
            starts = [number for number, piece in enumerate(tokenizer.tokenize(text)) if piece[0] == "▁"]
            assert model.tag([words]) == [[config.labels[int(outputs[place].argmax())] for place in starts]]
        elif config.head == "score":
            assert model.classify([text])[0]["score"] == pytest.approx(float(outputs[0]), abs=2e-5)
        else:
            of_each = dict(zip(config.labels, outputs.softmax(-1).tolist(), strict=True))
            assert model.classify([text])[0] == pytest.approx(of_each, abs=2e-5)
