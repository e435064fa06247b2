"""Fills of gaps: a search over known probabilities, and the words of a text that are hidden."""

import dataclasses
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest

import limba
from limba.config import InputError
from limba.data.vocabulary import sentences
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.piece_table import PieceTable
from limba.data.vocabulary.special_ids import SpecialIds
from limba.inference import gap_filling, gap_pieces
from limba.inference.source import VocabularyName
from tests import tiny
from tests.export.runs import write_run
from tests.inference.test_load import config_of


class Known:
    """A model over bytes whose next piece is known by the pieces since the last sentinel."""

    def __init__(self, table: dict[str, dict[str, float]], pieces: gap_pieces.Pieces, num_rows: int):
        self.table = table
        self.pieces = pieces
        self.num_rows = num_rows
        self.asked = list[list[int]]()

    def __call__(self, beginnings):
        rows = np.full((len(beginnings), self.num_rows), math.log(1e-9))
        for row, beginning in zip(rows, beginnings, strict=True):
            self.asked.append(list(beginning))
            start = max(i for i, token in enumerate(beginning) if token in self.pieces.sentinels)
            written = bytes(token - 3 for token in beginning[start + 1 :]).decode("utf-8", "replace")
            for text, probability in self.table.get(written, {"</s>": 1.0}).items():
                token = {"</s>": 1, "<next>": self.pieces.sentinels[1]}.get(text)
                row[token if token is not None else text.encode()[0] + 3] = math.log(probability)
        return rows


def answered(search: gap_filling.Search, next_logits) -> list[list[gap_pieces.Fill]]:
    """Returns what a search finds with a function from beginnings to the logits after each."""
    try:
        asked = next(search)
        while True:
            asked = search.send(next_logits(asked))
    except StopIteration as ended:
        return ended.value


def test_the_most_likely_words_are_found_with_their_probabilities() -> None:
    pieces = gap_pieces.pieces_of(load_vocabulary("byte"), 384, SpecialIds())
    table = {
        "": {"<next>": 0.5, ".": 0.2, "a": 0.12, "i": 0.09, "o": 0.06, "u": 0.03},  # the likeliest is not a word
        "a": {"<next>": 0.25, "n": 0.75},
        "an": {"</s>": 0.6, "<next>": 0.4},
        "i": {"n": 1.0},
        "in": {"<next>": 0.9, " ": 0.1},
        "o": {"<next>": 1.0},
        "u": {".": 1.0},
    }
    known = Known(table, pieces, 384)
    first, second = answered(gap_filling.fills("x <extra_id_0> y <extra_id_1>", pieces), known)
    expected = [("an", 0.12 * 0.75), ("in", 0.09 * 0.9), ("o", 0.06)]
    assert [fill.text for fill in first] == [text for text, _ in expected]
    np.testing.assert_allclose([fill.probability for fill in first], [p for _, p in expected], rtol=1e-3)
    assert [fill.text for fill in second] == ["an", "in", "o"]
    # The second gap is filled after the best fill of the first.
    sentinels = pieces.sentinels
    letters = [ord("a") + 3, ord("n") + 3]
    assert [0, sentinels[0], *letters, sentinels[1]] in known.asked


def test_no_fill_is_half_a_letter_or_without_one() -> None:
    pieces = gap_pieces.pieces_of(load_vocabulary("byte"), 384, SpecialIds())
    table = {"": {"ă": 0.6, "b": 0.4}}  # the first byte of two, then the end
    (fills,) = answered(gap_filling.fills("<extra_id_0>", pieces), Known(table, pieces, 384))
    assert [fill.text for fill in fills][:1] == ["b"] and all(fill.text.isalnum() for fill in fills)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Această traducere este documentație gratuită și poate fi citită de oricine.", 2),
        ("文書の名前を表示するが、削除はしないファイルの一覧である。", 2),
        ("ผู้ใช้สามารถเปลี่ยนการตั้งค่าได้ตลอดเวลา", 2),
        ("مرحبا بكم في هذا المكان الجميل جدا", 2),
        ("two words", 0),
        ("", 0),
    ],
)
def test_words_are_hidden_in_any_script(text: str, count: int) -> None:
    hidden = sentences.hidden_words(text)
    if not count:
        assert hidden is None
        return
    assert hidden is not None and hidden == sentences.hidden_words(text) and len(hidden.words) == count
    joined = hidden.masked
    for index, word in enumerate(hidden.words):
        assert len(word) >= 2 and f"<extra_id_{index}>" in joined
        joined = joined.replace(f"<extra_id_{index}>", word)
    assert joined == text


def test_sentences_are_prose() -> None:
    prose = "The model reads a text and writes what is missing in each of its gaps."
    documents = [
        "x = 1; y = [2, 3]; z = {4: 5}; print(x, y, z, sep='---') # 6 7 8 9 10",
        f"Short. {prose}",
        prose,
        prose,
    ]
    all_sentences = list(sentences.sentences(documents, 2))
    assert [hidden.text for hidden in all_sentences] == [prose, prose]
    several = sentences.sentences([f"{prose} {prose} {prose}", prose, prose], 3, of_document=2)
    assert [hidden.text for hidden in several] == [prose] * 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> limba.TrainedModel:
    folder = tmp_path_factory.mktemp("fill") / "run"
    write_run(folder, config_of(), steps=(9,))
    return limba.load(folder, vocabulary="byte")


@pytest.mark.slow
def test_texts_side_by_side_are_filled_as_each_alone(trained: limba.TrainedModel) -> None:
    texts = [f"The {'long ' * (number % 5)}text <extra_id_0> number {number} ___." for number in range(20)]
    together = trained.fill(texts, top=9)
    for text, together_fills in zip(texts[::6], together[::6], strict=True):
        alone = trained.fill(text, top=9)
        assert len(alone) == 2 and all(len(gap) == 9 for gap in alone)
        for gap, other in zip(together_fills, alone, strict=True):
            assert [fill.text for fill in gap] == [fill.text for fill in other]
            np.testing.assert_allclose([f.probability for f in gap], [f.probability for f in other], rtol=1e-5)
    assert trained.fill([]) == []
    (one,) = trained.fill("<mask>", top=1)
    assert len(one) == 1 and trained.fill(["[MASK]", "___", "<|mask|>"], top=1) == [[one]] * 3


@pytest.mark.slow
def test_a_probability_is_that_of_the_pieces_and_of_any_end(trained: limba.TrainedModel) -> None:
    text = "A text with <extra_id_0> gap."
    (gap,) = trained.fill(text)
    ends = [*PieceTable(trained.vocabulary).sentinels, 1]
    for fill in gap:
        targets = np.asarray([ends[0], *fill.ids, 1], np.int32)
        (logits,) = trained.logits_of_ids([(trained.tokenize(text), targets)])
        logs = np.asarray(jax.nn.log_softmax(logits))[1:]
        pieces = logs[np.arange(len(fill.ids)), fill.ids].sum()
        assert fill.probability == pytest.approx(np.exp(pieces) * np.exp(logs[-1, ends]).sum(), rel=1e-5)
        assert fill.text == " ".join(trained.vocabulary.decode(list(fill.ids)).split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No gap.", "The text 'No gap.' has no gap; write <extra_id_0>, or ___, in place of a word."),
        ("", "The text '' has no gap"),
        ("A <extra_id_1> b <extra_id_0>.", "Gap 1 of the text 'A <extra_id_1> b <extra_id_0>.' is <extra_id_1>; write"),
        ("A ___ b <extra_id_0>.", "Gap 2 of the text 'A ___ b <extra_id_0>.' is <extra_id_0>; write <extra_id_1>"),
        ("___ " * 200, "holds <extra_id_199>, and the vocabulary has 128 sentinels"),
        (f"{'x' * 600} ___", "603 tokens, and the model reads 512; give a shorter one."),
    ],
)
def test_a_text_that_cannot_be_filled_is_said(text: str, words: str, trained: limba.TrainedModel) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        trained.fill(text)
    with pytest.raises(InputError, match=re.escape(words)):
        trained.fill(["A ___ here.", text])


def test_a_model_that_fills_no_gaps_says_so(tmp_path: Path, vocabulary: Path, trained: limba.TrainedModel) -> None:
    with pytest.raises(InputError, match="`top` is 0; give a whole number above 0"):
        trained.fill("___", top=0)
    write_run(tmp_path / "lm", tiny.language_model(vocab_size=384, num_decoder_layers=1))
    with pytest.raises(InputError, match="is a decoder-only model, which continues texts and fills no gaps"):
        limba.load(tmp_path / "lm", vocabulary="byte").fill("A ___.")
    plain = load_vocabulary(str(vocabulary), extra_ids=0)
    with pytest.raises(InputError, match=r"has no sentinels \(<extra_id_0>, …\), so it fills no gaps"):
        dataclasses.replace(trained, tokenizer=(VocabularyName(str(vocabulary)), plain)).fill("A ___.")
