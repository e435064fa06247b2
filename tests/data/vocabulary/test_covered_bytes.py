"""Bytes of texts by the tokenizers' own offsets, and vocabularies whose pieces do not say them."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from limba.config import InputError
from limba.data.vocabulary.covered_bytes import covered_bytes
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.spelling import piece_bytes

TEXTS = ["The fox doesn't jump (over 3 dogs), U.S. ones too.", "Lângă ființele șapte, două ță."] * 40
SPECIAL = ["<pad>", "</s>", "<unk>"]


def word_piece():
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.normalizer = normalizers.Lowercase()
    return made, trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL)


def end_of_word():
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.BPEDecoder()
    return made, trainers.BpeTrainer(vocab_size=150, special_tokens=SPECIAL, end_of_word_suffix="</w>")


def byte_level():
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return made, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)


def decomposed():
    made, trainer = byte_level()
    made.normalizer = normalizers.NFD()
    return made, trainer


@pytest.mark.parametrize(
    ("kind", "says_bytes"), [(word_piece, False), (end_of_word, False), (byte_level, True), (decomposed, False)]
)
def test_bytes_of_a_tokenizer_json(kind, says_bytes, tmp_path):
    made, trainer = kind()
    made.train_from_iterator(TEXTS, trainer)
    path = str(tmp_path / "v.json")
    made.save(path)
    vocabulary = load_vocabulary(path)
    if says_bytes:
        pieces = piece_bytes(vocabulary, vocabulary.vocab_size)
        assert all(sum(len(pieces[n]) for n in vocabulary.encode(text)) == len(text.encode()) for text in TEXTS[:2])
    else:
        with pytest.raises(InputError, match="do not say the bytes of a text .* which has .* no bits per byte"):
            piece_bytes(vocabulary, vocabulary.vocab_size)
    for text in TEXTS[:2]:
        size = len(vocabulary.encode(text))
        counts = [covered_bytes(vocabulary, text, count) for count in range(size + 1)]
        assert counts[0] == 0 and counts[-1] == len(text.encode()) == covered_bytes(vocabulary, text)
        assert (np.diff(counts) >= 0).all() and counts[size // 2] < counts[-1]


def test_a_byte_level_piece_may_have_letters_of_no_byte(tmp_path):
    made, trainer = byte_level()
    made.train_from_iterator(TEXTS, trainer)
    state = json.loads(made.to_str())
    state["model"]["vocab"]["<\uff5creserved\uff5c>"] = len(state["model"]["vocab"])
    (tmp_path / "v.json").write_text(json.dumps(state))
    vocabulary = load_vocabulary(str(tmp_path / "v.json"))
    pieces = piece_bytes(vocabulary, vocabulary.vocab_size)
    assert sum(len(pieces[n]) for n in vocabulary.encode(TEXTS[0])) == len(TEXTS[0].encode())


def test_a_space_at_an_end_counts_where_a_token_covers_it(tmp_path):
    """The target of a language model begins with a space, which is the first letter of a byte-level piece."""
    for kind, is_covered in ((byte_level, True), (word_piece, False)):
        made, trainer = kind()
        made.train_from_iterator(TEXTS, trainer)
        made.save(str(tmp_path / "v.json"))
        vocabulary = load_vocabulary(str(tmp_path / "v.json"))
        for text, size in ((" fox", 4 if is_covered else 3), ("fox  ", 5 if is_covered else 3)):
            assert covered_bytes(vocabulary, text) == size, (kind, text)
            assert covered_bytes(vocabulary, text, len(vocabulary.encode(text))) == size, (kind, text)


@pytest.mark.parametrize("name", ["sentencepiece", "byte"])
def test_sentinels_cover_their_names_and_spaces_at_the_ends_are_no_text(name, vocabulary):
    loaded = load_vocabulary("byte" if name == "byte" else str(vocabulary))
    assert covered_bytes(loaded, "a dog<extra_id_0> runs, ăâ") == len("a dog<extra_id_0> runs, ăâ".encode())
    text = "ăâî and then more words"
    ids = loaded.encode(text)
    counts = [covered_bytes(loaded, text, count) for count in range(len(ids) + 1)]
    assert counts[-1] == len(text.encode()) and (np.diff(counts) >= 0).all()
    cut = covered_bytes(loaded, f"<extra_id_0>{text}<extra_id_1>", 3)  # a sentinel and two tokens
    assert len("<extra_id_0>") < cut < len("<extra_id_0>") + len(text.encode())
    if name != "byte":
        assert covered_bytes(loaded, f"  {text}   ") == len(text.encode())
        assert covered_bytes(loaded, "ﬁ") == 3, "bytes of the text, not of what it is normalized to"
