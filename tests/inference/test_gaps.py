"""Fills of gaps: a search over known probabilities, and the words of a text that are hidden."""

import math

import numpy as np
import pytest

from limba.data.vocabulary.load import load_vocabulary
from limba.inference import gaps


class Known:
    """A model over bytes whose next piece is known by the pieces since the last sentinel."""

    def __init__(self, table: dict[str, dict[str, float]], pieces: gaps.Pieces, num_rows: int):
        self.table, self.pieces, self.num_rows, self.asked = table, pieces, num_rows, list[list[int]]()

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


def test_the_most_likely_words_are_found_with_their_probabilities() -> None:
    pieces = gaps.pieces_of(load_vocabulary("byte"), 384)
    table = {
        "": {"<next>": 0.5, ".": 0.2, "a": 0.12, "i": 0.09, "o": 0.06, "u": 0.03},  # the likeliest is no word
        "a": {"<next>": 0.25, "n": 0.75},
        "an": {"</s>": 0.6, "<next>": 0.4},
        "i": {"n": 1.0},
        "in": {"<next>": 0.9, " ": 0.1},
        "o": {"<next>": 1.0},
        "u": {".": 1.0},
    }
    known = Known(table, pieces, 384)
    first, second = gaps.fills("x <extra_id_0> y <extra_id_1>", known, pieces)
    expected = [("an", 0.12 * 0.75), ("in", 0.09 * 0.9), ("o", 0.06)]
    assert [fill.text for fill in first] == [text for text, _ in expected]
    np.testing.assert_allclose([fill.probability for fill in first], [p for _, p in expected], rtol=1e-3)
    assert [fill.text for fill in second] == ["an", "in", "o"]
    # The second gap is filled after the best fill of the first.
    sentinels, letters = pieces.sentinels, [ord("a") + 3, ord("n") + 3]
    assert [0, sentinels[0], *letters, sentinels[1]] in known.asked


def test_no_fill_is_half_a_letter_or_without_one() -> None:
    pieces = gaps.pieces_of(load_vocabulary("byte"), 384)
    table = {"": {"ă": 0.6, "b": 0.4}}  # the first byte of two, then the end
    (found,) = gaps.fills("<extra_id_0>", Known(table, pieces, 384), pieces)
    assert [fill.text for fill in found][:1] == ["b"] and all(fill.text.isalnum() for fill in found)


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
    hidden = gaps.hidden_words(text)
    if not count:
        assert hidden is None
        return
    assert hidden is not None and hidden == gaps.hidden_words(text) and len(hidden.words) == count
    joined = hidden.masked
    for place, word in enumerate(hidden.words):
        assert len(word) >= 2 and f"<extra_id_{place}>" in joined
        joined = joined.replace(f"<extra_id_{place}>", word)
    assert joined == text


def test_sentences_are_prose() -> None:
    prose = "The model reads a text and writes what is missing in each of its gaps."
    documents = [
        "x = 1; y = [2, 3]; z = {4: 5}; print(x, y, z, sep='---') # 6 7 8 9 10",
        f"Short. {prose}",
        prose,
        prose,
    ]
    found = list(gaps.sentences(documents, 2))
    assert [hidden.text for hidden in found] == [prose, prose]
