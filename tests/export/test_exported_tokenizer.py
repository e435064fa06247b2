"""An exported tokenizer gives the ids of the training: SentencePiece models of every kind, read by transformers."""

import dataclasses
import json
import re

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from limba.config import ConfigError, DataConfig, InputError, RunConfig
from limba.data.vocabulary import exported
from limba.data.vocabulary.around_gaps import encode_parts
from limba.data.vocabulary.load import PieceTable, load_vocabulary, mask_id
from limba.data.vocabulary.vocabularies import SentencePieceVocabulary, parse_model
from limba.export import at_end, proof
from limba.formats.huggingface_files import write_tokenizer
from limba.inference.generate import text_ids
from tests import tiny

TEXTS = [
    f"Line {number} of a small text: it has words, signs and a few letters like ærlig or ăâî, 日本語, told again."
    for number in range(200)
]
SYMBOLS = ["\n", "\t", "<tag>", "日本"]
FLAGS = {
    "plain": {},
    "keeps spaces": {"remove_extra_whitespaces": False},
    "no dummy prefix": {"add_dummy_prefix": False},
    "keeps spaces, no dummy prefix": {"remove_extra_whitespaces": False, "add_dummy_prefix": False},
    "symbols": {"user_defined_symbols": SYMBOLS},
    "keeps spaces, symbols": {"user_defined_symbols": [*SYMBOLS, "  ", "    "], "remove_extra_whitespaces": False},
    "bytes, symbols": {"byte_fallback": True, "vocab_size": 500, "user_defined_symbols": SYMBOLS},
    "identity": {"normalization_rule_name": "identity"},
    "case folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "own rules": {"normalization_rule_tsv": "rules.tsv"},
    "own sentinels": {"user_defined_symbols": [f"▁<extra_id_{number}>" for number in (2, 1, 0)]},
    "spaces as they are": {},
}
KINDS = [("unigram", flags) for flags in FLAGS]
KINDS += [("bpe", flags) for flags in ("plain", "keeps spaces, symbols", "bytes, symbols", "no dummy prefix")]
KINDS += [("char", flags) for flags in ("plain", "symbols", "own rules")]


def run(folder):
    return RunConfig(tiny.model(), DataConfig("any", {"inputs": 64}, batch_size=8), str(folder), train_steps=10)


def train(folder, flags=None, **choices):
    """The path of a small model."""
    path = folder / "v.model"
    rules = folder / "rules.tsv"
    rules.write_text("61 62\t78\n71\t6B\n")  # ab becomes x, q becomes k
    given = {"vocab_size": 300, "hard_vocab_limit": False, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    given |= FLAGS[flags] if flags else {}
    given |= choices
    if "normalization_rule_tsv" in given:
        given["normalization_rule_tsv"] = str(rules)
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS), model_writer=file, minloglevel=2, **given
        )
    if flags == "spaces as they are":
        model = parse_model(path.read_bytes())
        model.normalizer_spec.escape_whitespaces = False
        for piece in model.pieces:
            piece.piece = piece.piece.replace("▁", " ")
        path.write_bytes(model.SerializeToString())
    return str(path)


@pytest.mark.parametrize(("kind", "flags"), KINDS)
def test_transformers_gives_the_ids_of_training(kind, flags, tmp_path):
    path = train(tmp_path, flags, model_type=kind)
    write_tokenizer(tmp_path, path, 100)
    vocabulary = load_vocabulary(path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    gaps = exported.sentinels_of(vocabulary)
    assert len(gaps) == 2 and exported.num_texts(vocabulary, gaps) > 45
    assert not exported.differences(vocabulary, lambda text: theirs(text, add_special_tokens=False).input_ids, gaps)
    text = "It has words, signs\nand letters."
    assert theirs(text).input_ids == [*vocabulary.encode(text), 1]
    if "keeps spaces" not in flags:
        assert theirs.decode(vocabulary.encode(TEXTS[0])) == vocabulary.decode(vocabulary.encode(TEXTS[0]))


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"model_type": "word"}, "is a SentencePiece model of type word, which tokenizer.json cannot hold"),
        ({"treat_whitespace_as_suffix": True}, "cannot be exported: 'in a wo<extra_id_0>rd"),
        ({"user_defined_symbols": ["  "]}, r"cannot be exported: .* texts differ"),
    ],
)
def test_what_tokenizer_json_cannot_say_is_refused_before_the_run_and_in_the_folder(choices, sentence, tmp_path):
    path = train(tmp_path, **choices)
    with pytest.raises(InputError, match=sentence):
        write_tokenizer(tmp_path, path, 100)
    config = run(tmp_path / "run")
    vocabulary = SentencePieceVocabulary(path, 100)
    exporting = dataclasses.replace(config, export_to=str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=f"RunConfig.export_to is set, and the vocabulary .*{sentence}"):
        at_end.check_vocabulary(exporting, vocabulary)


def test_a_run_that_exports_nothing_is_warned(tmp_path, caplog):
    config = run(tmp_path / "run")
    at_end.check_vocabulary(config, SentencePieceVocabulary(train(tmp_path), 100))
    assert not caplog.records
    at_end.check_vocabulary(config, SentencePieceVocabulary(train(tmp_path, model_type="word"), 100))
    assert "can be exported without its tokenizer only" in caplog.text


def test_a_suffix_model_without_gaps_is_exact(tmp_path):
    """A language model's text has no gaps; those of a T5 would be cut otherwise, and are refused."""
    path = train(tmp_path, treat_whitespace_as_suffix=True)
    write_tokenizer(tmp_path, path, 0, starts=True)
    vocabulary, theirs = load_vocabulary(path, 0), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert not exported.differences(vocabulary, lambda text: theirs(text).input_ids[1:], [])
    ids = vocabulary.encode(TEXTS[0])
    assert theirs.decode(ids) == vocabulary.decode(ids).removesuffix(" ")
    assert theirs.decode([0], skip_special_tokens=True) == ""


def test_the_proof_of_a_conversion_fails_for_other_ids(tmp_path):
    path = train(tmp_path, user_defined_symbols=["\n"])
    write_tokenizer(tmp_path, path, 100)
    vocabulary = load_vocabulary(path)
    passed, said = proof.check_tokenizer(tmp_path, vocabulary, ([], [1]))
    assert passed and re.search(r"equal ids in (\d+) of \1 texts", said)
    passed, said = proof.check_tokenizer(tmp_path, vocabulary, ([0], []))
    assert not passed and "where the model learned [0, " in said
    about = json.loads((tmp_path / "tokenizer.json").read_text())
    about["normalizer"]["normalizers"] = about["normalizer"]["normalizers"][1:]  # "\n" hides no more
    (tmp_path / "tokenizer.json").write_text(json.dumps(about))
    passed, said = proof.check_tokenizer(tmp_path, vocabulary, ([], [1]))
    assert not passed and "other ids in" in said and "\\n" in said


def test_rules_of_seqio_beside_the_model_are_found_out(tmp_path):
    """seqio's normalizer_spec_overrides are not in the file that is exported."""
    path = train(tmp_path)
    rules = parse_model(b"").normalizer_spec
    rules.add_dummy_prefix = False
    trained = SentencePieceVocabulary(path, 100, rules)
    with pytest.raises(InputError, match="cannot be exported: .* in training and .* in the exported folder"):
        write_tokenizer(tmp_path, path, 100, trained=trained)


def test_bytes_and_an_encoders_masks(tmp_path, vocabulary):
    write_tokenizer(tmp_path, "byte", 0)
    read = load_vocabulary("byte", 0)
    assert proof.check_tokenizer(tmp_path, read, ([], [1]))[0]
    loaded = load_vocabulary(str(vocabulary))
    write_tokenizer(tmp_path, str(vocabulary), 100, mask_id=mask_id(loaded))
    assert proof.check_tokenizer(tmp_path, loaded, ([], [1]))[0]


def test_a_tokenizer_json_cuts_around_gaps_as_training_does(tmp_path):
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    sentinels = [f"<extra_id_{number}>" for number in (1, 0)]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"])
    made.train_from_iterator(TEXTS, trainer)
    made.add_special_tokens(sentinels)
    path = str(tmp_path / "own.json")
    made.save(path)
    vocabulary = load_vocabulary(path)
    (tmp_path / "out").mkdir()
    write_tokenizer(tmp_path / "out", path, 0)
    assert proof.check_tokenizer(tmp_path / "out", vocabulary, ([], [1]))[0]
    pieces = [PieceTable(vocabulary).name(number) for number in encode_parts(vocabulary, ["it has ", ", signs"])[1]]
    assert pieces[0] == ","


def test_text_around_a_gap_has_the_ids_of_span_corruption(vocabulary, corpus):
    """Each word before a sign is hidden once: the text with that gap has the ids of the row that training makes."""
    loaded = load_vocabulary(str(vocabulary))
    table, compared = PieceTable(loaded), 0
    for line in corpus.read_text().splitlines()[:60]:
        text = " ".join(json.loads(line)["text"].split())[:200]
        ids = [int(number) for number in loaded.encode(text)]
        spelled = [table.name(number) for number in ids]
        for place in range(1, len(ids)):
            if spelled[place] not in (",", ".", ";", ":", ")") or any("<0x" in piece for piece in spelled):
                continue
            begin = next(n for n in range(place - 1, -1, -1) if spelled[n].startswith("▁"))
            before, after = ("".join(part).replace("▁", " ") for part in (spelled[:begin], spelled[place:]))
            row = [*ids[:begin], loaded.vocab_size - 1, *ids[place:]]
            assert text_ids(f"{before.strip()} <extra_id_0>{after}", loaded) == row, text
            compared += 1
    assert compared > 100
