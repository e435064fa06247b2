"""An exported tokenizer gives the ids of the training: SentencePiece models of every kind, read by transformers."""

import dataclasses
import json
import re

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers

from limba.config import ConfigError, DataConfig, InputError, RunConfig
from limba.data.vocabulary import export_check
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.piece_table import PieceTable
from limba.data.vocabulary.sentinels import mask_id
from limba.data.vocabulary.vocabularies import SentencePieceVocabulary, parse_model
from limba.export import end_of_run, proof
from limba.formats.huggingface_tokenizer import write_tokenizer
from limba.inference.token_ids import text_ids
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
    "identity, keeps spaces": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "nfkc, no dummy prefix": {"normalization_rule_name": "nfkc", "add_dummy_prefix": False},
    "case folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "own rules": {"normalization_rule_tsv": "rules.tsv"},
    "own sentinels": {"user_defined_symbols": [f"▁<extra_id_{number}>" for number in (2, 1, 0)]},
    "spaces as they are": {},
}
KINDS = [("unigram", flags) for flags in FLAGS]
KINDS += [("bpe", flags) for flags in ("plain", "keeps spaces, symbols", "bytes, symbols", "no dummy prefix")]
KINDS += [("bpe", "identity"), *(("char", flags) for flags in ("plain", "symbols", "own rules"))]


def run(folder):
    return RunConfig(tiny.model(), DataConfig("any", {"inputs": 64}, batch_size=8), str(folder), train_steps=10)


def train(folder, flags=None, **choices):
    """The path of a small model."""
    path = folder / "v.model"
    rules = folder / "rules.tsv"
    rules.write_text("61 62\t78\n71\t6B\n")  # ab becomes x, q becomes k
    options = {"vocab_size": 300, "hard_vocab_limit": False, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    options |= FLAGS[flags] if flags else {}
    options |= choices
    if "normalization_rule_tsv" in options:
        options["normalization_rule_tsv"] = str(rules)
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS), model_writer=file, minloglevel=2, **options
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
    gaps = export_check.sentinels_of(vocabulary)
    assert len(gaps) == 2 and export_check.num_texts(vocabulary, gaps) > 45
    assert not export_check.differences(vocabulary, lambda text: theirs(text, add_special_tokens=False).input_ids, gaps)
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
        end_of_run.check_vocabulary(exporting, vocabulary)


def test_a_run_that_exports_nothing_is_warned(tmp_path, caplog):
    config = run(tmp_path / "run")
    end_of_run.check_vocabulary(config, SentencePieceVocabulary(train(tmp_path), 100))
    assert not caplog.records
    end_of_run.check_vocabulary(config, SentencePieceVocabulary(train(tmp_path, model_type="word"), 100))
    assert "can be exported without its tokenizer only" in caplog.text


def test_a_suffix_model_without_gaps_is_exact(tmp_path):
    """A language model's text has no gaps; a T5's gaps would be cut otherwise, and are refused."""
    path = train(tmp_path, treat_whitespace_as_suffix=True)
    write_tokenizer(tmp_path, path, 0, starts=True)
    vocabulary = load_vocabulary(path, 0)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert not export_check.differences(vocabulary, lambda text: theirs(text).input_ids[1:], [])
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
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["normalizer"]["normalizers"] = document["normalizer"]["normalizers"][1:]  # "\n" hides no more
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
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


def byte_level(has_prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=has_prefix)


WORDS = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])  # T5's
LLAMA = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
ADDED = [AddedToken("signs", single_word=True), AddedToken("told", lstrip=True), AddedToken("<nl>", normalized=False)]
ODD_FLAGS = {"lstrip": True, "rstrip": True, "single_word": True, "normalized": True}
TOKENIZERS = {  # normalizer, pre-tokenizer, the sentinels' flags, tokens of the user's
    "byte-level": (None, byte_level(), {}, []),
    "byte-level, a space before a text": (None, byte_level(True), {}, []),
    "byte-level, NFC": (normalizers.NFC(), byte_level(), {}, []),
    "byte-level, flags of sentinels": (None, byte_level(), ODD_FLAGS, []),
    "byte-level, tokens of the user's": (None, byte_level(True), {}, ADDED),
    "a mark before each word": (None, pre_tokenizers.Metaspace(), {}, []),
    "a mark before the first word": (None, pre_tokenizers.Metaspace(prepend_scheme="first"), {}, ADDED),
    "words": (normalizers.NFKC(), WORDS, {}, []),
    "spaces stripped": (normalizers.Strip(), pre_tokenizers.Metaspace(), {}, []),
    "Llama's": (LLAMA, None, {}, []),
}


def save_tokenizer(path, normalizer, pre_tokenizer, flags=None, added=(), special=("<pad>", "</s>", "<unk>"), gaps=2):
    """Writes a tokenizer.json with its sentinels at the top."""
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet() if "ByteLevel" in str(pre_tokenizer) else []
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=[*special], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.add_special_tokens([AddedToken(f"<extra_id_{number}>", **(flags or {})) for number in reversed(range(gaps))])
    made.add_tokens([*added])
    made.save(str(path))
    return str(path)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_json_cuts_around_gaps_as_training_does(kind, tmp_path):
    """A row of span corruption is a text's ids with a sentinel instead of a word's; line ends and tabs stay."""
    path = save_tokenizer(tmp_path / "own.json", *TOKENIZERS[kind])
    write_tokenizer(tmp_path, path, 0)
    vocabulary = load_vocabulary(path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert proof.check_tokenizer(tmp_path, vocabulary, ([], [1]))[0]
    read = tokenizers.Tokenizer.from_file(path)
    gap = export_check.sentinels_of(vocabulary)[0][1]
    compared = 0
    for before, word, after in (
        ("It has ", "words", ", signs and a few letters"),
        ("signs\n", "words", "\nand a\tfew"),
        ("two  ", "words", "  told again."),
        ("", "Line", ", signs"),
        ("a \t ", "words", " ăâî"),
    ):
        encoding = read.encode(before + word + after, add_special_tokens=False)
        edges = len(before.removesuffix(" ")), len(before + word)
        hidden = [index for index, (start, end) in enumerate(encoding.offsets) if end > edges[0] and start < edges[1]]
        is_whole = all(
            edges[0] <= encoding.offsets[index][0] and encoding.offsets[index][1] <= edges[1] for index in hidden
        )
        if not is_whole:
            continue  # a token of which a part stays is never hidden
        row = [*encoding.ids[: hidden[0]], gap, *encoding.ids[hidden[-1] + 1 :]]
        text = f"{before}<extra_id_0>{after}"
        assert text_ids(text, vocabulary) == row, text
        assert theirs(text, add_special_tokens=False).input_ids == row, text
        compared += 1
    assert compared >= (1 if kind == "Llama's" else 4)  # whose tokens go over spaces


@pytest.mark.parametrize("kind", ["plain", "keeps spaces", "byte-level, a space before a text", "words", "Llama's"])
def test_an_exported_tokenizer_json_is_a_vocabulary_and_exported_again(kind, tmp_path):
    if kind in FLAGS:
        path = train(tmp_path, kind)
    else:
        path = save_tokenizer(tmp_path / "own.json", *TOKENIZERS[kind])
    write_tokenizer(tmp_path, path, 100)
    (tmp_path / "again").mkdir()
    write_tokenizer(tmp_path / "again", str(tmp_path / "tokenizer.json"), 0)
    first, again = (
        tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (tmp_path, tmp_path / "again")
    )
    for text in ("It  has <extra_id_0>, signs\n", "two  <extra_id_0>  b", " <extra_id_0>\n <extra_id_1>."):
        assert first.encode(text).ids == again.encode(text).ids


@pytest.mark.parametrize("kind", ["spm", "byte-level, a space before a text"])
def test_a_tokenizer_without_gaps_keeps_its_spaces(kind, tmp_path):
    path = train(tmp_path) if kind == "spm" else save_tokenizer(tmp_path / "own.json", *TOKENIZERS[kind], gaps=0)
    write_tokenizer(tmp_path, path, 0, starts=True)
    vocabulary = load_vocabulary(path, 0)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert not export_check.differences(vocabulary, lambda text: theirs(text).input_ids[1:], [])


def test_a_mask_is_a_gap_of_an_encoders_tokenizer_json(tmp_path):
    path = save_tokenizer(tmp_path / "own.json", None, byte_level(), special=("<pad>", "</s>", "<unk>", "<mask>"))
    vocabulary = load_vocabulary(path)
    write_tokenizer(tmp_path, path, 0, mask_id=mask_id(vocabulary))
    assert proof.check_tokenizer(tmp_path, vocabulary, ([], [1]))[0]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = vocabulary.encode("signs\n words, told")
    assert len(vocabulary.encode(" words")) == 1
    assert theirs("signs\n <mask>, told", add_special_tokens=False).input_ids == [
        mask_id(vocabulary) if number == vocabulary.encode(" words")[0] else number for number in ids
    ]


def test_a_space_before_each_part_of_a_text_cannot_be_told_from_one_after_a_gap(tmp_path, caplog):
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.Metaspace()])
    path = save_tokenizer(tmp_path / "own.json", None, pre_tokenizer)
    sentence = "puts a space before each part of a text"
    with pytest.raises(InputError, match=sentence):
        write_tokenizer(tmp_path, path, 0)
    text_ids("It has <extra_id_0>, signs", load_vocabulary(path))
    assert sentence in caplog.text


def test_text_around_a_gap_has_the_ids_of_span_corruption(vocabulary, corpus):
    """Each word before a sign is hidden once: the text with that gap has the ids of the row that training makes."""
    loaded = load_vocabulary(str(vocabulary))
    table = PieceTable(loaded)
    compared = 0
    for line in corpus.read_text().splitlines()[:60]:
        text = " ".join(json.loads(line)["text"].split())[:200]
        ids = [int(number) for number in loaded.encode(text)]
        spelled = [table.name(number) for number in ids]
        for index in range(1, len(ids)):
            if spelled[index] not in (",", ".", ";", ":", ")") or any("<0x" in piece for piece in spelled):
                continue
            begin = next(n for n in range(index - 1, -1, -1) if spelled[n].startswith("▁"))
            before, after = ("".join(part).replace("▁", " ") for part in (spelled[:begin], spelled[index:]))
            row = [*ids[:begin], loaded.vocab_size - 1, *ids[index:]]
            assert text_ids(f"{before.strip()} <extra_id_0>{after}", loaded) == row, text
            compared += 1
    assert compared > 100
