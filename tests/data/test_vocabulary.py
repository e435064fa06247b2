"""T5's layout, sentinels counted down from the top, and the bytes that pieces stand for."""

import json

import numpy as np
import pytest
import sentencepiece
import seqio
from sentencepiece import sentencepiece_model_pb2

from limba.config import ConfigError
from limba.data.vocabulary import (
    check_vocabulary,
    load_vocabulary,
    num_sentinels,
    piece_bytes,
    sentinel_ids,
    train_vocabulary,
)


def test_layout_is_t5s(vocabulary):
    loaded = load_vocabulary(str(vocabulary), 100)
    pieces = loaded.tokenizer
    assert (pieces.pad_id(), pieces.eos_id(), pieces.unk_id(), pieces.bos_id()) == (0, 1, 2, -1)
    assert loaded.vocab_size == 900
    assert sentinel_ids(loaded, 3) == [899, 898, 897]
    assert pieces.IdToPiece(899).endswith("<extra_id_0>")
    assert num_sentinels(loaded) == 100
    assert loaded.decode(loaded.encode("snowman ☃ and text")).endswith("☃ and text")  # by byte pieces


def test_training_is_deterministic_and_small_texts_work(tmp_path, corpus):
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()][:100]
    sizes = [train_vocabulary(texts, 500, str(tmp_path / f"{name}.model")) for name in "ab"]
    assert sizes == [500, 500]
    assert (tmp_path / "a.model").read_bytes() == (tmp_path / "b.model").read_bytes()
    few = train_vocabulary(["a few words only, a few words"], 5000, str(tmp_path / "few.model"))
    assert 259 < few < 5000
    assert load_vocabulary(str(tmp_path / "few.model"), 100).vocab_size == few + 100
    assert not list(tmp_path.glob("*.tmp"))


def test_training_refuses_what_cannot_work(tmp_path):
    with pytest.raises(ConfigError, match="no text"):
        train_vocabulary([], 500, str(tmp_path / "v.model"))
    with pytest.raises(ConfigError, match="change the size"):
        train_vocabulary(["some text to train on"] * 9, 100, str(tmp_path / "v.model"))


def test_piece_bytes_add_up_to_the_text(vocabulary):
    loaded = load_vocabulary(str(vocabulary), 100)
    counts = piece_bytes(loaded, 1024)
    assert counts.shape == (1024,)
    assert counts.dtype == np.int32
    assert counts[:3].tolist() == [0, 0, 0]
    assert not counts[800:].any()
    for text in ("The quick brown fox.", "naïve café ☃ 語", "x" * 50):
        assert counts[loaded.encode(text)].sum() == len(text.encode()) + 1  # a space is put before the text
    in_bytes = seqio.ByteVocabulary(100)
    assert piece_bytes(in_bytes, 384)[in_bytes.encode("naïve ☃")].sum() == len("naïve ☃".encode())


def test_sentinels_inside_the_model_are_its_own(tmp_path, vocabulary):
    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.read_bytes())
    for number in reversed(range(100)):
        model.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=model.SentencePiece.USER_DEFINED)
    path = tmp_path / "with_sentinels.model"
    path.write_bytes(model.SerializeToString())
    loaded = load_vocabulary(str(path), 100)
    assert loaded.vocab_size == 900
    assert num_sentinels(loaded) == 100
    check_vocabulary(loaded, 1024)


def test_bytes_have_sentinels_above_them():
    loaded = load_vocabulary("byte", 100)
    assert loaded.vocab_size == 359
    assert sentinel_ids(loaded, 2) == [358, 357]
    check_vocabulary(loaded, 384)


def test_bad_vocabularies_are_refused(tmp_path, vocabulary):
    with pytest.raises(ConfigError, match="not there"):
        load_vocabulary(str(tmp_path / "absent.model"), 100)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_vocabulary(str(tmp_path), 100)
    for content in (b"", b"plain text, no model", bytes(range(256))):
        (tmp_path / "wrong.model").write_bytes(content)
        with pytest.raises(ConfigError, match="not a SentencePiece model"):
            load_vocabulary(str(tmp_path / "wrong.model"), 100)
    with pytest.raises(ConfigError, match=r"900 ids.* 800 rows.* 1024 "):
        check_vocabulary(load_vocabulary(str(vocabulary), 100), 800)
    with pytest.raises(ConfigError, match="no sentinels"):
        check_vocabulary(load_vocabulary(str(vocabulary), 0), 1024)
    with pytest.raises(ConfigError, match="no sentinels"):
        check_vocabulary(load_vocabulary("byte", 0), 384)
    with pytest.raises(ConfigError, match="100 sentinels and 101"):
        sentinel_ids(load_vocabulary(str(vocabulary), 100), 101)
    with pytest.raises(ConfigError, match="not there"):
        check_vocabulary(seqio.SentencePieceVocabulary(str(tmp_path / "absent.model"), 100), 1024)
    _without_padding(tmp_path / "unpadded.model")
    with pytest.raises(ConfigError, match="pad_id=0"):
        load_vocabulary(str(tmp_path / "unpadded.model"), 100)


def _without_padding(path):
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["some text to train on"] * 9), model_writer=file, vocab_size=30,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
