"""A hybrid, which is an encoder and a language model: it generates, scores, and is exported as both."""

import dataclasses
import json
from fnmatch import fnmatch

import numpy as np
import pytest
import torch
import transformers

from limba.cli import convert
from limba.config import InputError
from limba.data.vocabulary.sentinels import begin_id
from limba.data.vocabulary.train import NewVocabulary
from limba.export.destinations import OF_EXPORTS
from limba.inference.load import load
from tests import tiny
from tests.export.runs import write_run

TEXTS = ["It has a line, and another one.", "x"]


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    """A hybrid whose vocabulary has <cls> and <mask>, and the folder of its export."""
    directory = tmp_path_factory.mktemp("hybrid")
    new = NewVocabulary(str(directory / "v.model"))
    new.train(corpus.read_bytes().splitlines(), 512, masks=True)
    config = tiny.language_model(attention_mask="hybrid", vocab_size=512, max_length=96)
    write_run(directory / "run", config)
    convert.run(["export", str(directory / "run"), f"--vocabulary={new.path}", "--extra_ids=0"])
    return str(directory / "run"), new.path, directory / "run/huggingface/step_5"


@pytest.mark.slow
def test_it_is_exported_as_a_proved_language_model_and_a_proved_encoder(run):
    findings = json.loads((run[2] / "conversion.json").read_text())["findings"]
    assert not any("FAILED" in line for line in findings)
    assert sum("hidden states differ by" in line and "passed" in line for line in findings) == 2
    assert any("TrainedModel.fill fills them" in line for line in findings)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (run[2], run[2] / "encoder")]
    assert [config["architectures"] for config in configs] == [["LlamaForCausalLM"], ["EuroBertModel"]]
    assert configs[1]["rms_norm_eps"] == configs[0]["rms_norm_eps"] and configs[1]["bos_token_id"] == 0
    assert configs[1]["max_position_embeddings"] == 96
    modules = json.loads((run[2] / "encoder/modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling"]
    pooling = json.loads((run[2] / "encoder/1_Pooling/config.json").read_text())
    assert pooling == {"word_embedding_dimension": 128, "pooling_mode_mean_tokens": True}
    assert not (run[2] / "modules.json").exists()


@pytest.mark.slow
def test_each_file_of_the_export_is_one_that_a_newer_upload_removes(run):
    names = {str(path.relative_to(run[2])) for path in run[2].rglob("*") if path.is_file()}
    assert "encoder/1_Pooling/config.json" in names
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in OF_EXPORTS)] == []


@pytest.mark.slow
def test_it_generates_and_scores_as_the_language_model_that_transformers_reads(run):
    ours = load(run[0], vocabulary=run[1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(run[2])
    model = transformers.AutoModelForCausalLM.from_pretrained(run[2]).eval()
    ids = tokenizer("It has").input_ids
    assert ids[:2] == [0, begin_id(ours.vocabulary)] and ours.decoder.tokenize("It has").tolist() == ids
    inputs = tokenizer(
        "It has", return_tensors="pt"
    )  # the start is padding too: its attention mask says that it is read
    written = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, len(ids) :]
    assert ours.samples(["It has"], max_tokens=6)[0][0].ids.tolist()[: len(written)] == written.tolist()
    (score,) = ours.score([("It has", " a line.")])
    read, target = ours.pair_ids("It has", " a line.")
    whole = torch.tensor([[*read, *target]], dtype=torch.long)
    with torch.no_grad():
        rows = torch.log_softmax(model(whole).logits[0, len(read) - 1 : -1], dim=-1)
    expected = float(rows[torch.arange(len(target)), whole[0, len(read) :]].sum())
    np.testing.assert_allclose(score.log_likelihood, expected, rtol=1e-4)


@pytest.mark.slow
def test_its_vectors_are_those_of_the_exported_encoder(run):
    ours = load(run[0], vocabulary=run[1])
    folder = run[2] / "encoder"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    vectors = ours.encode(TEXTS)
    np.testing.assert_allclose(load(folder).encode(TEXTS), vectors, atol=1e-5)
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(states.mean(dim=0).numpy(), vector, atol=1e-5)


@pytest.mark.slow
def test_what_an_encoder_cannot_do_is_said_with_what_it_can(run, vocabulary, tmp_path):
    config = tiny.language_model(attention_mask="bidirectional", vocab_size=1024)
    write_run(tmp_path / "run", config)
    encoder = load(str(tmp_path / "run"), vocabulary=str(vocabulary))
    with pytest.raises(InputError, match="call `log_likelihoods` for the pseudo log likelihoods of texts, `fill` for"):
        encoder.score([("a", "b")])
    with pytest.raises(InputError, match="generates no text; call `fill`"):
        encoder.generate(["a"])
    assert dataclasses.replace(config, attention_mask="hybrid").predicts_next
