"""ByT5 as transformers and T5X write it: its sentinels are 258, 257, …, and a run that begins from it keeps them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from etils import epath

import limba
from limba.config import ConfigError, InputError
from limba.data.vocabulary.published import open_address
from limba.export.card import write_card
from limba.formats import t5x
from limba.formats.huggingface_files import Form
from limba.formats.huggingface_tokenizer import extra_ids_in
from limba.inference.source import VocabularyName, find
from limba.training.checkpoints.initial import check_initial
from tests import published as folders

SIZES: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_heads": 2,
    "num_layers": 3,
    "num_decoder_layers": 1,
}
TEXT = "Propoziția <extra_id_0> număr și <extra_id_1>."


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ByT5, network and tokenizer, that transformers saved."""
    folder = tmp_path_factory.mktemp("byt5") / "folder"
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=384, **SIZES, feed_forward_proj="gated-gelu", dropout_rate=0.0, decoder_start_token_id=0
    )
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    transformers.ByT5Tokenizer().save_pretrained(folder)
    return folder


def as_google_wrote_it(folder: Path, published: Path) -> Path:
    """The tokenizer_config.json of 2021, which names no ids: transformers' ByT5 page and google/byt5-small have it."""
    folder.mkdir()
    for file in ("config.json", "model.safetensors"):
        (folder / file).write_bytes((published / file).read_bytes())
    names = [f"<extra_id_{number}>" for number in range(125)]
    settings = {"extra_ids": 125, "additional_special_tokens": names, "tokenizer_class": "ByT5Tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.night
def test_a_published_byt5_fills_the_gaps_it_was_trained_on(published: Path, tmp_path: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(published)
    assert theirs("<extra_id_0>").input_ids == [259, 1]  # what transformers makes of it, and no ByT5 was trained on
    for folder in (published, as_google_wrote_it(tmp_path / "google", published)):
        model = limba.load(folder)
        ids = model.tokenize(TEXT).tolist()
        assert ids == [*theirs("Propoziția ").input_ids[:-1], 258, *theirs(" număr și ").input_ids[:-1], 257, 49, 1]
    assert limba.load(published, vocabulary="byte").tokenize(TEXT).tolist() == ids
    targets = "<extra_id_0> prima <extra_id_1> a doua"
    reference = transformers.T5ForConditionalGeneration.from_pretrained(published).eval()
    labels = model.pair_ids(TEXT, targets)[1]
    assert labels[0] == 258
    with torch.no_grad():
        logits = reference(input_ids=torch.tensor([ids]), labels=torch.tensor([labels.tolist()])).logits[0].numpy()
    assert np.abs(model.logits([(TEXT, targets)])[0] - logits).max() < 1e-4
    (written,) = model.samples([TEXT], max_tokens=12, ban_sentinels=False)[0]
    shown = sum(number >= 248 for number in written.ids.tolist())
    assert written.text.count("<extra_id_") == shown
    assert all(number < 248 for number in model.samples([TEXT], max_tokens=12)[0][0].ids.tolist())


@pytest.mark.night
def test_its_export_gives_transformers_these_ids_and_the_card_says_it(published: Path, tmp_path: Path) -> None:
    saved = limba.load(published).save(tmp_path / "saved")
    tokens = transformers.AutoTokenizer.from_pretrained(saved)
    assert isinstance(tokens, transformers.ByT5Tokenizer)
    ids = tokens(TEXT).input_ids
    assert ids == limba.load(saved).tokenize(TEXT).tolist() and 258 in ids and max(ids) == 258
    assert tokens.decode(ids) == TEXT + "</s>"
    tokens.save_pretrained(tmp_path / "again")  # and back through transformers
    assert extra_ids_in(epath.Path(tmp_path / "again")) == 0
    for folder, says in ((saved, True), (tmp_path / "other", False)):
        Path(folder).mkdir(exist_ok=True)
        write_card(Path(folder), find(str(saved)), 0, Form(("pytorch",)), (), limba.config.CardConfig())
        text = (Path(folder) / "README.md").read_text()
        assert ("258, 257, …, 248" in text and "`<extra_id_0>` as 258" in text) == says


@pytest.mark.night
def test_an_export_of_125_extra_ids_keeps_them(published: Path, tmp_path: Path) -> None:
    saved = limba.load(published, vocabulary=VocabularyName("byte", 125)).save(tmp_path / "saved")
    transformers.AutoTokenizer.from_pretrained(saved).save_pretrained(saved)  # transformers 5 writes extra_ids 0
    assert json.loads((Path(saved) / "tokenizer_config.json").read_text())["extra_ids"] == 0
    assert limba.load(saved).tokenize("<extra_id_0><extra_id_124>").tolist() == [383, 259, 1]
    check_initial(str(saved), 125)
    with pytest.raises(
        ConfigError, match=r"extra_ids is 0, whose .* ids 258, 257, …, and .* has learned 383, 382, …; set .* 125"
    ):
        check_initial(str(saved), 0)


def test_a_run_does_not_learn_the_sentinels_again(published: Path, tmp_path: Path) -> None:
    for folder in (published, as_google_wrote_it(tmp_path / "google", published)):
        check_initial(str(folder), 0)
        check_initial(str(folder))  # without sentinels, as fine-tuning: whatever the extra ids
        with pytest.raises(
            ConfigError, match=r"extra_ids is 125, .* 383, 382, …, and .* learned 258, 257, …; set it to 0"
        ):
            check_initial(str(folder), 125)


def t5x_checkpoint(folder: Path, trained: int | None) -> str:
    """A T5X checkpoint trained with `trained` extra ids; None: without Adafactor's averages.

    T5X's Adafactor adds 1e-30 to each squared gradient: a row that no example has looked up has this and no more.
    """
    tree = {"state/step": np.int32(7), "target/token_embedder/embedding": np.ones((384, 128), np.float32)}
    if trained is not None:
        rows = np.full(384, 1e-30, np.float32)
        rows[1:248] = np.random.default_rng(0).uniform(1e-13, 1e-9, 247)
        rows[259 + trained - 11 : 259 + trained] = 1e-14
        tree["state/param_states/token_embedder/embedding/v_col"] = rows
        tree["state/param_states/token_embedder/embedding/v_row"] = np.full(128, 1e-12, np.float32)
    return str(t5x.write_legacy(folder, 7, tree))


@pytest.mark.parametrize(("trained", "wanted", "is_right"), [(0, 0, True), (0, 125, False), (125, 125, True)])
def test_the_averages_of_a_t5x_checkpoint_tell_what_was_trained(
    tmp_path: Path, trained: int, wanted: int, is_right: bool
) -> None:
    path = t5x_checkpoint(tmp_path, trained)
    for source in (path, str(tmp_path)):
        if is_right:
            check_initial(source, wanted)
        else:
            with pytest.raises(ConfigError, match="has learned 258, 257"):
                check_initial(source, wanted)


@pytest.mark.parametrize(("trained", "wanted"), [(None, 125), (125, 0)])
def test_a_t5x_checkpoint_that_does_not_tell_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trained: int | None, wanted: int
) -> None:
    check_initial(t5x_checkpoint(tmp_path, trained), wanted)
    assert "does not tell which sentinels it was trained with" in caplog.text and "from 258" in caplog.text


@pytest.mark.parametrize("special", [False, True])
def test_tokens_of_its_own_are_not_read_letter_by_letter(special: bool, published: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tagged"
    shutil.copytree(published, folder)
    tokenizer = transformers.ByT5Tokenizer()
    tokenizer.add_tokens(["<ro>", "<en>"], special_tokens=special)
    tokenizer.save_pretrained(folder)
    assert transformers.AutoTokenizer.from_pretrained(folder)("<ro>").input_ids == [384, 1]
    with pytest.raises(InputError, match=r"a ByT5 with tokens of its own \(<ro>, <en>\).* Give the vocabulary 'byte'"):
        limba.load(folder)
    with pytest.raises(InputError, match="a ByT5 with tokens of its own"):
        open_address(str(folder))
    assert limba.load(folder, vocabulary="byte").tokenize("<ro>").tolist() == [63, 117, 114, 65, 1]


def test_a_left_over_file_beside_a_byt5_is_not_read(published: Path, tmp_path: Path) -> None:
    folder = tmp_path / "left_over"
    shutil.copytree(published, folder)
    folders.generic("unigram").backend_tokenizer.save(str(folder / "tokenizer.json"))
    for text in ("a few words", "é"):
        theirs = transformers.AutoTokenizer.from_pretrained(folder)(text).input_ids
        assert limba.load(folder).tokenize(text).tolist() == theirs
