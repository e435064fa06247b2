"""Rows of several columns, text without its diacritics, a Hugging Face tokenizer as vocabulary, and figures of text."""

import csv
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import tensorflow as tf

from limba.config import InputError
from limba.data import metrics as text_metrics
from limba.data.bridge.seqio_objects import vocabulary_as_seqio
from limba.data.objectives import diacritics
from limba.data.sources import FileSource
from limba.data.vocabulary.load import check_vocabulary, load_vocabulary
from limba.data.vocabulary.sentinels import num_sentinels
from limba.data.vocabulary.spelling import piece_bytes
from limba.data.vocabulary.tokenizers import TokenizersVocabulary

ROWS = [(f"one, {i}\n\0two", f"ună „{i}”") for i in range(90)]
COLUMNS = {"inputs": "a", "targets": "b"}


def write(path: Path, rows: list[tuple]) -> str:
    if path.suffix == ".parquet":
        a, b = zip(*rows, strict=True)
        pyarrow.parquet.write_table(pyarrow.table({"b": b, "n": range(len(a)), "a": a}), path, row_group_size=40)
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("b", "n", "a"), *((b, 0, (a or "").replace("\n", " ")) for a, b in rows)])
    else:
        path.write_text("".join(json.dumps({"n": 0, "a": a, "b": b}) + "\n" for a, b in rows))
    return str(path)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv"])
def test_rows_keep_their_columns_together(tmp_path: Path, suffix: str) -> None:
    rows = [*ROWS[:50], ("", "left out"), *ROWS[50:]] + ([] if suffix == ".csv" else [("x", None)])
    path = write(tmp_path / f"rows{suffix}", rows)
    source = FileSource(path, column=COLUMNS)
    pairs = []
    for shard in range(2):
        documents = source.documents("train", shard=shard, num_shards=2, seed=1, num_epochs=1)
        pairs += [(e["inputs"].decode(), e["targets"].decode()) for e in documents]
    validation_texts = [e["inputs"].decode() for e in source.documents("validation", num_epochs=1)]
    clean = [(a.replace("\0", "").replace("\n", " " if suffix == ".csv" else "\n"), b) for a, b in ROWS]
    assert sorted(pairs) == sorted(row for row in clean if row[0] not in validation_texts)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(InputError, match="no column 'c'"):
        FileSource(path, column={"inputs": "a", "targets": "c"}).check("train")
    (tmp_path / "rows.txt").write_text("one\n")
    with pytest.raises(InputError, match="has no columns"):
        FileSource(str(tmp_path / "rows.txt"), column=COLUMNS).check("train")


def test_diacritics_are_stripped_and_cedillas_read_as_commas() -> None:
    assert diacritics.stripped("ȘTIINȚĂ și înghețată", "ro") == "STIINTA si inghetata"
    assert diacritics.normalized("ştiinţa s\u0326i", "ro") == "știința și"
    assert diacritics.stripped("Où est l'été ? Ça, là.", "fr") == "Ou est l'ete ? Ca, la."
    text = "însă mâine și poimâine vor fi învățați așa cum știți, fără îndoială " * 5
    half = diacritics.stripped(text, "ro", 0.5)
    assert half == diacritics.stripped(text, "ro", 0.5)
    changed = sum(a != b for a, b in zip(text.split(), half.split(), strict=True))
    assert 0.25 < changed / len(text.split()) < 0.65
    with pytest.raises(InputError, match="choose one of az, ca"):
        diacritics.letters_of("xx")


def test_pairs_are_made_on_the_fly_and_fit() -> None:
    text = "Toate ființele umane se nasc libere și egale în demnitate și în drepturi. " * 9
    documents = tf.data.Dataset.from_tensor_slices({"text": [text, "1234 !!", "ş"]})
    step = diacritics.restore_diacritics("ro", bytes_per_token=1.0)
    rows = [
        (r["inputs"].decode(), r["targets"].decode())
        for r in step(documents, {"inputs": 60, "targets": 50}).as_numpy_iterator()
    ]
    assert len(rows) > 10
    assert rows[-1] == ("s", "ș")
    assert all(len(target.encode()) <= 49 for _, target in rows)
    assert " ".join(target for _, target in rows[:-1]) == text.strip()
    assert all(source == diacritics.stripped(target, "ro") for source, target in rows)
    capitals = diacritics.restore_diacritics("ro", bytes_per_token=1.0, capitals=True)
    first = next(capitals(documents, {"inputs": 60, "targets": 50}).as_numpy_iterator())
    assert first["inputs"].decode() == diacritics.stripped(rows[0][1], "ro").upper()
    assert first["targets"].decode() == rows[0][1]


def test_figures_of_diacritics() -> None:
    metric = text_metrics.diacritics("ro")
    target = "Și așa, fată mare"
    perfect = metric([target], [target])
    assert perfect["word_accuracy"] == perfect["letter/ș"] == 100
    assert perfect["other_changes"] == 0
    copied = metric([target, target], ["Si asa, fata mare", target])
    assert copied["word_accuracy"] == 100 * 5 / 8
    assert copied["letter/ș"] == copied["letter/ă"] == 50
    assert copied["letter/a"] == 100
    assert copied["other_changes"] == 0
    wrong = metric([target], ["Și așa, fată tare"])
    assert wrong["word_accuracy"] == 75
    assert wrong["other_changes"] == pytest.approx(100 / len(target))
    blank = metric(["", " "], ["a", ""])
    assert set(blank.values()) == {0.0}, "no target has a word"


def test_figures_of_text_are_the_libraries() -> None:
    targets = ["The cat sat on the mat today.", "A dog ran."]
    predictions = ["The cat sat on a mat today.", "A dog ran."]
    assert text_metrics.bleu(targets, targets)["bleu"] == pytest.approx(100)
    assert 30 < text_metrics.bleu(targets, predictions)["bleu"] < 90
    figures = text_metrics.chrf(targets, predictions)
    assert 50 < figures["chrf"] < figures["chrf++"] < 100
    assert text_metrics.rouge(["ăsta e un rezumat"], ["ăsta e alt rezumat"])["rouge1"] == pytest.approx(75)
    assert text_metrics.exact_match(targets, predictions)["exact_match"] == 50
    assert text_metrics.word_f1(["a b c d"], ["d c x"])["word_f1"] == pytest.approx(100 * 4 / 7)
    assert text_metrics.error_rates(["a b c d", ""], ["a x c", "y"])["word_error_rate"] == pytest.approx(50)
    classes = text_metrics.accuracy(["yes", "yes", "no"], ["yes", "no", "no"])
    assert classes == pytest.approx({"accuracy": 200 / 3, "macro_f1": 200 / 3})


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE as Hugging Face's models have it, trained here."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sentinels = [f"<extra_id_{i}>" for i in range(3)]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Toți oamenii se nasc liberi și egali. " * 20], trainer)
    tokenizer.add_special_tokens(sentinels[::-1])
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_hugging_face_tokenizer_is_a_vocabulary(tokenizer_file: Path) -> None:
    vocabulary = load_vocabulary(str(tokenizer_file))
    text = "Oamenii </s> liberi, <extra_id_0> ș 🙂"
    ids = vocabulary.encode(text)
    assert vocabulary.eos_id == 1
    assert not {0, 1, *vocabulary.special_ids} & set(ids), "what a text spells is text"
    assert vocabulary.decode(ids) == text
    assert vocabulary_as_seqio(vocabulary).encode_tf(tf.constant(text)).numpy().tolist() == ids
    assert num_sentinels(vocabulary) == 3
    pieces = piece_bytes(vocabulary, 512)
    assert b"".join(pieces[number] for number in ids) == text.encode()
    assert vocabulary == TokenizersVocabulary(str(tokenizer_file))
    check_vocabulary(vocabulary, 512)
    with pytest.raises(InputError, match="set ModelConfig.vocab_size"):
        check_vocabulary(vocabulary, 128)


def test_files_that_are_no_vocabulary_are_named(tmp_path: Path, tokenizer_file: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    content = json.loads(tokenizer_file.read_text())
    content["added_tokens"] = [t for t in content["added_tokens"] if t["id"] != 0]
    (tmp_path / "pad.json").write_text(json.dumps(content))
    for name, words in (
        ("none.json", "does not exist"),
        ("bad.json", "not a tokenizer.json"),
    ):
        with pytest.raises(InputError, match=words):
            load_vocabulary(str(tmp_path / name))
    with pytest.raises(InputError, match="must be padding for training"):
        check_vocabulary(load_vocabulary(str(tmp_path / "pad.json")), 512)
