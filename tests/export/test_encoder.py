"""Encoders as transformers' EuroBERT: logits and top pieces, the exact way back, fills of masks, vectors, bad input."""

import dataclasses
import json

import numpy as np
import pytest
import torch
import transformers

from limba.cli import convert, generate
from limba.config import InputError
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.piece_table import PieceTable
from limba.data.vocabulary.special_ids import of_encoder
from limba.export import proof as check
from limba.export.huggingface import import_folder
from limba.formats.huggingface import open_folder
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.inference.load import load
from limba.inference.mask_filling import masked_ids
from limba.inference.source import find
from tests import tiny
from tests.export.runs import write_run
from tests.model import test_encoder

TEXT = "The value of <mask> is given by the<mask>, and the <mask> module."
SHAPES = {
    "plain": {},
    "tied": {"logits_via_embedding": True},
    "biases": {"biases": ("attention", "mlp", "logits"), "num_kv_heads": None},
    "modern": test_encoder.MODERN,
    "modern, all biases": test_encoder.MODERNBERTS["modern, all biases"],
    "modern, untied": test_encoder.MODERNBERTS["modern, untied"],
    "modern, rows of four windows": dataclasses.replace(test_encoder.MODERN, local_attention=(128, 3, 500.0)),
}


def encoder(config=None, **changes):
    if config is not None:
        return dataclasses.replace(config, vocab_size=1024)
    return tiny.language_model(attention_mask="bidirectional", vocab_size=1024, layer_norm_epsilon=1e-5, **changes)


# Logits and names of the other parameters are compared in tests/model/test_encoder.py; their folders are of the night.
@pytest.mark.parametrize(
    "shape",
    [
        "plain",
        "modern",
        pytest.param("biases", marks=pytest.mark.slow),
        pytest.param("modern, rows of four windows", marks=pytest.mark.slow),
        pytest.param("tied", marks=pytest.mark.night),
        pytest.param("modern, all biases", marks=pytest.mark.night),
        pytest.param("modern, untied", marks=pytest.mark.night),
    ],
)
@pytest.mark.slow
def test_transformers_gives_our_logits_and_the_way_back_is_exact(shape, vocabulary, tmp_path, monkeypatch):
    monkeypatch.setitem(check.TOLERANCES, "float32", 2e-5)
    shape_fields = SHAPES[shape]
    config = encoder(**shape_fields) if isinstance(shape_fields, dict) else encoder(shape_fields)
    arrays = write_run(tmp_path / "run", config)[5]
    convert.run(["export", str(tmp_path / "run"), f"--vocabulary={vocabulary}", "--extra_ids=1"])
    folder = tmp_path / "run" / "huggingface" / "step_5"
    findings = json.loads((folder / "conversion.json").read_text())["findings"]
    assert sum("passed" in line for line in findings) == 2 and "top pieces equal in 2 of 2" in findings[1]
    assert "transformers 5" in findings[1] and "AutoModelForMaskedLM" in (folder / "README.md").read_text()
    assert not (folder / "generation_config.json").exists()
    by_name = open_folder(folder, config)
    assert set(by_name) == set(arrays) and all(np.array_equal(by_name[name], arrays[name]) for name in arrays)
    import_folder(folder, tmp_path / "back")
    back = LimbaCheckpoint(tmp_path / "back" / "checkpoints" / "0")
    assert set(back) == set(arrays) and all(np.array_equal(back[name], arrays[name]) for name in arrays)
    heads = None if config.is_modernbert else config.kv_heads
    assert find(str(tmp_path / "back")).model == dataclasses.replace(config, num_kv_heads=heads)


@pytest.fixture(scope="module")
def folder(vocabulary, tmp_path_factory):
    directory = tmp_path_factory.mktemp("encoder")
    write_run(directory / "run", encoder())
    convert.run(["export", str(directory / "run"), f"--vocabulary={vocabulary}", "--extra_ids=1", "--no_check"])
    return directory / "run" / "huggingface" / "step_5"


def test_fills_are_the_likeliest_pieces_of_transformers(folder):
    ours = load(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    assert tokenizer.mask_token == "<extra_id_0>" and model.config.mask_token_id == tokenizer.mask_token_id
    plain = "A text without a mask, and its end."
    assert tokenizer(plain).input_ids == masked_ids(plain, ours.vocabulary, ours.special_ids).tolist()
    ids = tokenizer(TEXT.replace("<mask>", "<extra_id_0>"), return_tensors="pt").input_ids
    likely = model(ids).logits.softmax(-1)[0, ids[0] == tokenizer.mask_token_id].detach().numpy()
    gaps = ours.fill(TEXT)
    alone = ours.fill(["A short <mask>", TEXT, TEXT])
    assert len(gaps) == 3 and [len(fills) for fills in gaps] == [5, 5, 5]
    pieces = [PieceTable(ours.vocabulary).name(number) for number in range(ours.vocabulary.vocab_size)]
    has_letter = [any(map(str.isalnum, piece)) and piece[0] != "<" for piece in pieces]
    for row, gap, with_space in zip(likely, gaps, (True, False, True), strict=True):
        allowed = [n for n, piece in enumerate(pieces) if has_letter[n] and piece.startswith("▁") == with_space]
        best = sorted(allowed, key=lambda number: -row[number])[:5]
        assert [fill.ids[0] for fill in gap] == best
        np.testing.assert_allclose([fill.probability for fill in gap], row[best], rtol=1e-4)
        assert [fill.text for fill in gap] == [pieces[number].removeprefix("▁") for number in best]
    for one, other in zip(gaps, alone[1], strict=True):  # a text's fills do not depend on the others
        assert [fill.ids for fill in one] == [fill.ids for fill in other]


def test_a_mask_takes_the_place_of_a_piece(vocabulary):
    vocabulary = load_vocabulary(str(vocabulary), 1)
    special = of_encoder(vocabulary)
    mask = vocabulary.vocab_size - 1
    words = vocabulary.encode("The value of a thing, which is.")
    masked = masked_ids("The value ___ a thing, which is.", vocabulary, special).tolist()
    assert words[:2] == masked[:2] and masked[2] == mask and masked[3:-1] == words[3:] and masked[-1] == 1
    for text in ("<mask>, which", "<extra_id_3>, which", "[MASK], which"):
        assert masked_ids(text, vocabulary, special).tolist() == [mask, *vocabulary.encode("a, which")[1:], 1]
    assert len(masked_ids("The <mask> " * 50, vocabulary, special, 16)) == 16


@pytest.mark.slow
def test_vectors_are_pooled_states(folder):
    ours = load(folder)
    texts = ["One text.", "Another text, a longer one."]
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for pooling, of in (("mean", lambda x: x.mean(0)), ("first", lambda x: x[0]), ("last", lambda x: x[-1])):
        vectors = ours.encode(texts, pooling)
        for text, vector in zip(texts, vectors, strict=True):
            ids = torch.tensor(ours.tokenize(text).astype(np.int64))[None]
            states = model(ids).last_hidden_state[0].detach().numpy()
            np.testing.assert_allclose(vector, of(states), atol=2e-5)
    with pytest.raises(InputError, match="choose one of mean, first, last"):
        ours.encode(texts, "median")


def test_what_an_encoder_does_not_do_is_one_sentence(folder, vocabulary):
    model = load(folder)
    with pytest.raises(InputError, match="is an encoder, which generates no text; call `fill`"):
        model.generate(["A text"])
    with pytest.raises(InputError, match="from left to right; call `log_likelihoods` for .*, `fill` for"):
        model.score([("", "A text")])
    with pytest.raises(InputError, match="is an encoder, which generates no text"):
        generate.run([str(folder), "--prompt=A text"])
    with pytest.raises(InputError, match="'A text' has no mask to fill; write <mask>"):
        model.fill(["A <mask>", "A text"])
    short = load(folder, config=dataclasses.replace(model.network.config, max_length=8))
    with pytest.raises(InputError, match=r"A text has \d+ tokens, and the encoder reads 8; give a shorter one"):
        short.fill(["A <mask>", "The <mask> of a value is a string."])
    bare = load(folder, vocabulary=str(vocabulary))
    with pytest.raises(InputError, match="has no <mask> and no <extra_id_0>"):
        bare.fill(["A <mask>"])
    with pytest.raises(InputError, match="has a bias of the logits where its MLPs have one"):
        convert_of(encoder(biases=("mlp",)))
    with pytest.raises(InputError, match="EuroBERT class has rotary positions"):
        convert_of(encoder(positions="learned", norm="layer", mlp_activations=("gelu",), num_kv_heads=None))


def convert_of(config):
    from limba.formats.huggingface_config import config_json

    return config_json(config)
