"""T5's layout, sentinels counted down from the top, and the bytes that pieces stand for."""

import json

import numpy as np
import pytest
import sentencepiece
import seqio
import transformers
from sentencepiece import sentencepiece_model_pb2

from limba.config import InputError
from limba.data.bridge.seqio_objects import vocabulary_as_seqio
from limba.data.dataset import TEXT, Elements
from limba.data.objectives import tokenize_documents
from limba.data.registry import Feature
from limba.data.vocabulary.character_sets import SETS, CharacterSets, document_starts
from limba.data.vocabulary.load import check_vocabulary, load_vocabulary
from limba.data.vocabulary.piece_table import PieceTable
from limba.data.vocabulary.sentinels import begin_id, mask_id, num_sentinels, sentinel_ids
from limba.data.vocabulary.special_ids import of_encoder
from limba.data.vocabulary.spelling import has_dummy_space, piece_bytes
from limba.data.vocabulary.train import NewVocabulary, train_vocabulary
from limba.formats.huggingface_tokenizer import write_tokenizer
from limba.inference.mask_filling import masked_ids


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


def test_another_file_at_the_same_path_is_another_vocabulary(tmp_path, corpus, monkeypatch):
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()][:100]
    for folder, size in (("a", 400), ("b", 420)):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        train_vocabulary(texts, size, "own.model")
        assert load_vocabulary("own.model", 10).vocab_size == size + 10  # a relative path, in two directories
    train_vocabulary(texts, 440, "own.model")  # again, as a notebook's cell does
    loaded = load_vocabulary("own.model", 10)
    assert loaded.vocab_size == 450
    assert loaded.encode(texts[0]) == vocabulary_as_seqio(loaded).encode_tf(texts[0]).numpy().tolist()


def test_training_refuses_what_cannot_work(tmp_path):
    with pytest.raises(InputError, match="no text"):
        train_vocabulary([], 500, str(tmp_path / "v.model"))
    with pytest.raises(InputError, match="change the size"):
        train_vocabulary(["some text to train on"] * 9, 100, str(tmp_path / "v.model"))


def test_piece_bytes_are_the_text(vocabulary):
    loaded = load_vocabulary(str(vocabulary), 100)
    pieces = piece_bytes(loaded, 1024)
    assert len(pieces) == 1024
    assert not any([*pieces[:3], *pieces[800:]])
    for text in ("The quick brown fox.", "naïve café ☃ 語", "x" * 50):
        assert b"".join(pieces[i] for i in loaded.encode(text)) == f" {text}".encode()  # a space is put before it
    in_bytes = seqio.ByteVocabulary(100)
    spelled = piece_bytes(in_bytes, 384)
    assert b"".join(spelled[i] for i in in_bytes.encode("naïve ☃")) == "naïve ☃".encode()


@pytest.mark.parametrize("kind", ["pieces", "bytes"])
def test_character_sets_of_tokens(vocabulary, kind):
    """By hand: in pieces of the English vocabulary Japanese is spelled in bytes, which no single token tells."""
    loaded = load_vocabulary(str(vocabulary) if kind == "pieces" else "byte", 100)
    sets = CharacterSets(piece_bytes(loaded, 1024))
    cut = loaded.encode("語")[-2:]  # a character's last two bytes alone
    ids = [*loaded.encode("Seeのコーク 々。é"), 1, loaded.vocab_size - 1, *cut]
    counts = sets.counts(np.array([ids, [0] * len(ids)], np.int32))
    space = 1 if kind == "pieces" else 0  # put before the text, in the piece of "See" or its own
    total = dict(zip(SETS, counts[0].sum(axis=0).tolist(), strict=True))
    assert total == {"latin": 3 + 2, "hiragana": 3, "katakana": 9, "kanji": 3, "other": space + 1 + 3 + 2 + 2}
    assert counts[1].tolist() == [[0, 0, 0, 0, 1]] * len(ids)
    in_bytes = ids.index(loaded.encode("の")[-3])
    assert counts[0, in_bytes : in_bytes + 3].tolist() == [[0, 1, 0, 0, 0]] * 3
    weights = np.array([[0] + [1] * (len(ids) - 1)])
    expected = counts[0].sum(axis=0) - counts[0, 0] - [0, 0, 0, 0, 2]  # without the end of sequence and the sentinel
    assert sets.num_bytes(np.array([ids], np.int32), weights).tolist() == expected.tolist()


def test_the_dummy_space_is_no_byte_of_the_text(vocabulary):
    """Rows of a language model, pairs and packed pairs: the bytes of the texts are counted, and nothing else."""
    loaded = load_vocabulary(str(vocabulary), 0)
    pieces = piece_bytes(loaded, 1024)
    in_bytes = load_vocabulary("byte", 0)
    assert has_dummy_space(loaded, pieces) and not has_dummy_space(in_bytes, piece_bytes(in_bytes, 384))
    sets = CharacterSets(pieces, True)
    texts = ["The sea is wide.", "海", "A second one, and longer.", "x"]
    num_bytes = sum(len(text.encode()) for text in texts)
    stream = [number for text in texts for number in (*loaded.encode(text), 1)]
    stream += [0] * (-len(stream) % 8)
    rows = np.array(stream, np.int32).reshape(-1, 8)
    batches = [{"decoder_target_tokens": part, "decoder_loss_weights": part} for part in (rows[:2], rows[2:])]
    starts = document_starts(batches, 1, False, True)

    def total(batches, starts):
        names = ("decoder_target_tokens", "decoder_loss_weights")
        return sum(sets.num_bytes(*(b[n] for n in names), s).sum() for b, s in zip(batches, starts, strict=True))

    assert sum(start.sum() for start in starts) == len(texts) and total(batches, starts) == num_bytes
    counts = np.concatenate([sets.counts(b["decoder_target_tokens"], s) for b, s in zip(batches, starts, strict=True)])
    assert counts.sum(axis=-1).min() == 1, "every token's loss goes somewhere"
    width = max(len(loaded.encode(text)) for text in texts) + 1
    pairs = np.array([[*loaded.encode(text), 1] + [0] * (width - 1 - len(loaded.encode(text))) for text in texts])
    pair = {"decoder_target_tokens": pairs, "decoder_loss_weights": (pairs > 0).astype(np.int32)}
    assert total([pair], document_starts([pair], 1, True, False)) == num_bytes
    packed = {name: array.reshape(2, -1) for name, array in pair.items()}
    segments = np.repeat([[1, 2]], width, axis=1) * np.ones([2, 1], np.int32)
    packed["decoder_segment_ids"] = np.where(packed["decoder_target_tokens"] > 0, segments, 0)
    assert total([packed], document_starts([packed], 1, True, False)) == num_bytes


@pytest.mark.slow
def test_one_with_masks_puts_texts_between_cls_and_sep_in_rows_and_in_transformers(tmp_path, corpus):
    new = NewVocabulary(str(tmp_path / "masks.model"))
    count = new.train(corpus.read_bytes().splitlines(), 600, masks=True)
    loaded = load_vocabulary(new.path, 0)
    table = PieceTable(loaded)
    assert count == loaded.vocab_size == 600 and [table.name(n) for n in range(5)] == [
        "<pad>",
        "<sep>",
        "<unk>",
        "<mask>",
        "<cls>",
    ]
    assert (mask_id(loaded), begin_id(loaded), loaded.eos_id) == (3, 4, 1)
    # A text that holds the names has no such pieces: they stand for nothing in it.
    assert not {1, 3, 4} & set(loaded.encode("A <mask> and <cls>, <sep>."))
    texts = ["The value of a thing.", "Another text, a longer one"]
    documents = Elements([{"text": text.encode()} for text in (*texts, "")], {"text": TEXT})
    features = dict.fromkeys(("inputs", "targets"), Feature(loaded))
    (row,) = tokenize_documents(documents, features, append_eos=True, begins=True)
    expected = [number for text in texts for number in (4, *loaded.encode(text), 1)]
    assert row["targets"].tolist() == expected
    features = {"decoder_target_tokens": np.array([[*expected, 0]]), "decoder_loss_weights": np.array([[1]])}
    (starts,) = document_starts([features], 1, False, True, begin_id=4)
    assert np.flatnonzero(starts).tolist() == [1, expected.index(4, 1) + 1]
    # transformers, from the file beside it and from an exported folder.
    special = of_encoder(loaded)
    alone = transformers.PreTrainedTokenizerFast(tokenizer_file=new.json)
    write_tokenizer(tmp_path, new.path, 0, mask_id=3)
    for tokenizer in (alone, transformers.AutoTokenizer.from_pretrained(tmp_path)):
        for text in texts:
            ids = tokenizer(text).input_ids
            assert ids == [4, *loaded.encode(text), 1] == masked_ids(text, loaded, special).tolist()
        assert tokenizer(texts[0], texts[1]).input_ids == [4, *loaded.encode(texts[0]), 1, *loaded.encode(texts[1]), 1]
    roles = {name: getattr(tokenizer, f"{name}_token") for name in ("mask", "cls", "sep", "eos", "pad", "unk")}
    assert roles == {"eos": "<sep>"} | {name: f"<{name}>" for name in ("mask", "cls", "sep", "pad", "unk")}
    masked = "The value of <mask> which is"
    assert tokenizer(masked).input_ids == masked_ids(masked, loaded, special).tolist()
    assert masked_ids("The <mask> " * 50, loaded, special, 16).tolist()[::15] == [4, 1]
    # The folder's tokenizer.json alone is the same vocabulary.
    back = load_vocabulary(str(tmp_path / "tokenizer.json"))
    assert (back.eos_id, mask_id(back), begin_id(back)) == (1, 3, 4) and back.encode(texts[0]) == loaded.encode(
        texts[0]
    )


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
    with pytest.raises(InputError, match="does not exist"):
        load_vocabulary(str(tmp_path / "absent.model"), 100)
    with pytest.raises(InputError, match=r"is a folder without config\.json"):
        load_vocabulary(str(tmp_path), 100)
    for content in (b"", b"plain text, no model", bytes(range(256))):
        (tmp_path / "wrong.model").write_bytes(content)
        with pytest.raises(InputError, match="not a SentencePiece model"):
            load_vocabulary(str(tmp_path / "wrong.model"), 100)
    with pytest.raises(InputError, match=r"900 ids.* 800 rows.* 1024,"):
        check_vocabulary(load_vocabulary(str(vocabulary), 100), 800)
    with pytest.raises(InputError, match="no sentinels"):
        check_vocabulary(load_vocabulary(str(vocabulary), 0), 1024)
    check_vocabulary(load_vocabulary("byte", 0), 384)  # the last bytes' ids, as in T5X
    with pytest.raises(InputError, match="<extra_id_100>, and the vocabulary has 100 sentinels"):
        sentinel_ids(load_vocabulary(str(vocabulary), 100), 101)
    with pytest.raises(InputError, match="does not exist"):
        check_vocabulary(seqio.SentencePieceVocabulary(str(tmp_path / "absent.model"), 100), 1024)
    _without_padding(tmp_path / "unpadded.model")
    with pytest.raises(InputError, match="pad_id=0"):
        load_vocabulary(str(tmp_path / "unpadded.model"), 100)


def _without_padding(path):
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["some text to train on"] * 9), model_writer=file, vocab_size=30,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
