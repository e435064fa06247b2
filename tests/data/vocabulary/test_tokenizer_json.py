"""tokenizer.json gives the SentencePiece model's ids; Romanian's cedillas become commas inside the model."""

import json
import random

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

from limba.config import InputError
from limba.data.vocabulary.character_map import rules_of
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.tokenizer_json import tokenizer_json
from limba.data.vocabulary.train import train_vocabulary
from limba.tools.corpus.normalization import ROMANIAN_COMMAS, builtin_rules, normalization_tsv

SENTENCES = [
    "Toate ființele umane se nasc libere și egale în demnitate și în drepturi.",
    "Tous les êtres humains naissent libres et égaux en dignité et en droits — « l’œuvre » de 1948.",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。ﾊﾝｶｸﾓｼﾞ",
    "Їжак мовив: „щось“… ½ ① ﬁ Ⅳ ㎏ e\u0301 s\u0327 가 \u200b\u00a0x\ty\r\n",
]


@pytest.fixture(scope="module")
def texts(corpus):
    return [json.loads(line)["text"] for line in corpus.read_text().splitlines()]


def mixed(texts, count):
    """Letters of all sentences in no order: cuts that no language would ask for."""
    generator = random.Random(0)
    letters = [*"".join(SENTENCES), *"".join(texts)[:2_000], "  ", "<0x41>", "9", "99"]
    return ["".join(generator.choices(letters, k=generator.randrange(80))) for _ in range(count)]


@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
@pytest.mark.slow
def test_ids_are_sentencepieces(texts, tmp_path, byte_fallback, normalization):
    path = str(tmp_path / "v.model")
    train_vocabulary(
        [*texts[:150], *SENTENCES * 20], 900, path, byte_fallback=byte_fallback, normalization=normalization
    )
    pieces = load_vocabulary(path)
    ours = Tokenizer.from_str(tokenizer_json(path))
    # Marks in an order that is not canonical are the one difference that is known.
    lines = [*texts, *(line for text in texts for line in text.splitlines()), *SENTENCES, "", " ", "\n"]
    lines += [text for text in mixed(texts, 2_000) if "\u0301" not in text and "\u0327" not in text]
    for text in lines:
        assert ours.encode(text, add_special_tokens=False).ids == pieces.encode(text), repr(text)
    assert len(lines) > 3_000


def test_sentinels_and_the_end_are_where_seqio_has_them(vocabulary):
    ours = Tokenizer.from_str(tokenizer_json(str(vocabulary)))
    pieces = load_vocabulary(str(vocabulary))
    assert ours.get_vocab_size() == pieces.vocab_size == 900
    assert [ours.token_to_id(f"<extra_id_{number}>") for number in (0, 1, 99)] == [899, 898, 800]
    ids = ours.encode("a tail<extra_id_0> of text").ids
    assert ids[-1] == pieces.eos_id == 1
    assert 899 in ids
    for text in ("The quick brown fox.", "naïve café ☃ 語"):
        assert ours.decode(ours.encode(text).ids) == text


def test_a_model_with_sentinels_keeps_them(vocabulary, tmp_path):
    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.read_bytes())
    for number in reversed(range(100)):
        model.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=model.SentencePiece.USER_DEFINED)
    path = tmp_path / "with.model"
    path.write_bytes(model.SerializeToString())
    ours = Tokenizer.from_str(tokenizer_json(str(path)))
    assert ours.get_vocab_size() == 900
    assert ours.token_to_id("<extra_id_0>") == 899


def test_a_model_that_is_missing_or_of_whole_words_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        tokenizer_json(str(tmp_path / "absent.model"))
    with (tmp_path / "word.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["some text to train on"] * 9), model_writer=file, vocab_size=30, model_type="word",
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
    with pytest.raises(InputError, match="of type word, which tokenizer.json cannot hold"):
        tokenizer_json(str(tmp_path / "word.model"))


@pytest.mark.slow
def test_rules_are_read_back_whole(tmp_path):
    rules = builtin_rules("nmt_nfkc")
    assert len(rules) > 200_000
    assert (rules["①"], rules["ﬁ"], rules["s\u0327"], rules["\u00a0"]) == ("1", "fi", "ş", " ")
    tsv = tmp_path / "same.tsv"
    tsv.write_text(normalization_tsv("nmt_nfkc", {}))
    model = tmp_path / "same"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b"] * 9), model_prefix=str(model), vocab_size=16, hard_vocab_limit=False,
        normalization_rule_tsv=str(tsv), minloglevel=2,
    )  # fmt: skip
    made = sentencepiece_model_pb2.ModelProto.FromString(model.with_suffix(".model").read_bytes())
    assert rules_of(made.normalizer_spec.precompiled_charsmap) == rules
    assert rules_of(b"") == {}


@pytest.mark.parametrize("normalization", ["nmt_nfkc", "identity"])
@pytest.mark.slow
def test_cedillas_become_commas(tmp_path, normalization):
    old = "Şi ţara aşteaptă; ŢARĂ, s\u0327i t\u0327ie."
    new = "Și țara așteaptă; ȚARĂ, și ție."
    texts = [new, old, "ﬁn ① ﬁnal"] * 20
    path = str(tmp_path / "v.model")
    plain = str(tmp_path / "plain.model")
    train_vocabulary(texts, 320, path, rules=normalization_tsv(normalization, ROMANIAN_COMMAS))
    train_vocabulary(texts, 320, plain, normalization=normalization)
    pieces = load_vocabulary(path)
    precomposed = old.replace("s\u0327", "ş").replace("t\u0327", "ţ")
    assert pieces.encode(precomposed) == pieces.encode(new)
    assert pieces.decode(pieces.encode(precomposed)) == new
    assert load_vocabulary(plain).encode(precomposed) != load_vocabulary(plain).encode(new)
    if normalization == "nmt_nfkc":
        assert pieces.encode(old) == pieces.encode(new)
        assert pieces.decode(pieces.encode("ﬁn ①")) == "fin 1"
    else:
        assert pieces.decode(pieces.encode("ﬁn ①")) == "ﬁn ①"
    held = {pieces.tokenizer.IdToPiece(number) for number in range(320)}
    assert not any(letter in piece for piece in held for letter in ROMANIAN_COMMAS)
    ours = Tokenizer.from_str(tokenizer_json(path))
    for text in (old, new, precomposed):
        assert ours.encode(text, add_special_tokens=False).ids == pieces.encode(text)
