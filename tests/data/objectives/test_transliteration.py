"""Text without diacritics in many languages: ASCII, the same when stripped again, in segments that a model can hold."""

import sys
import unicodedata
from collections.abc import Callable

import pytest
import seqio
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from limba.config import InputError
from limba.data.objectives import diacritics, restore_diacritics

SENTENCES = {
    "de": ("Größe, Übermaß und „schöne“ Äcker – Straße", 'Grosse, Ubermass und "schone" Acker - Strasse'),
    "nb": ("Blåbærsyltetøy på Ålesund. Ærlig, ÆRLIG «Øl»", 'Blabaersyltetoy pa Alesund. Aerlig, AERLIG "Ol"'),
    "pl": ("Zażółć gęślą jaźń, Łódź", "Zazolc gesla jazn, Lodz"),
    "vi": ("Đặng Thị Ngọc Thịnh, quốc ngữ", "Dang Thi Ngoc Thinh, quoc ngu"),
    "tr": ("İstanbul'da ılık bir ŞÖLEN, ağır ağır", "Istanbul'da ilik bir SOLEN, agir agir"),
    "ro": ("Știința și învățătura Țării, façade…", "Stiinta si invatatura Tarii, facade..."),
}


@pytest.mark.parametrize("language", SENTENCES)
def test_latin_text_becomes_ascii_in_every_language(language: str) -> None:
    text, expected = SENTENCES[language]
    strip = diacritics.stripper(language, "ascii")
    assert strip(text) == expected
    assert strip(expected) == expected


@pytest.mark.parametrize("language", diacritics.LETTERS)
def test_every_listed_letter_is_stripped_to_ascii(language: str) -> None:
    letters = diacritics.letters_of(language)
    once = diacritics.stripped(f"{letters} {letters.upper()}", language)
    assert once.isascii() and diacritics.stripped(once, language) == once
    assert not set(letters) & set(once)


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x17F)))
def test_stripping_twice_is_stripping_once(text: str) -> None:
    strip = diacritics.to_ascii()
    once = strip(text)
    assert strip(once) == once
    assert not [letter for letter in once if not letter.isascii() and unicodedata.name(letter, "").startswith("LATIN")]


def test_a_letter_without_a_plain_form_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(diacritics.LETTERS, "xx", "éʘ")
    with pytest.raises(InputError, match="The letter 'ʘ' has no plain form"):
        restore_diacritics("xx")
    with pytest.raises(InputError, match="transliterate is 'latin'; choose one of letters, ascii, unidecode"):
        diacritics.stripper("ro", "latin")


def test_unidecode_is_asked_for_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "unidecode", None)
    with pytest.raises(InputError, match="needs the package Unidecode, .* or choose 'ascii'"):
        diacritics.stripper("ro", "unidecode")


def test_letters_of_other_languages_stay_unless_all_are_stripped() -> None:
    text = "Un café în Zürich – „bun”"
    assert diacritics.stripped(text, "ro") == "Un café in Zürich – „bun”"
    assert diacritics.stripped(text, "ro", transliterate="ascii") == 'Un cafe in Zurich - "bun"'


def test_segments_hold_as_many_bytes_as_the_vocabulary_spells(vocabulary: str) -> None:
    """With `bytes_per_token=None`, rows are as long as the model takes, and hardly one is cut."""
    pieces = seqio.SentencePieceVocabulary(str(vocabulary))
    feature = seqio.Feature(pieces, dtype=tf.int32)
    text = "Toate ființele umane se nasc libere și egale în demnitate și în drepturi, zice legea. " * 40
    documents = tf.data.Dataset.from_tensor_slices({"text": [text]})
    step = restore_diacritics("ro", bytes_per_token=None)
    lengths = {"inputs": 64, "targets": 64}
    features = {"inputs": feature, "targets": feature}
    rows = list(step(documents, lengths, features).as_numpy_iterator())
    longest = [max(len(pieces.encode(row[name].decode())) for name in lengths) for row in rows]
    assert " ".join(row["targets"].decode() for row in rows) == text.strip()
    assert max(longest) <= 63 and sum(longest) / len(longest) > 0.75 * 63


def test_nothing_is_truncated(vocabulary: str) -> None:
    """By the vocabulary's own tokens every segment fits; by a number of bytes a token it may not."""
    pieces = seqio.SentencePieceVocabulary(str(vocabulary))
    texts = [
        "Țară, „știință” și înțelepciune: " * 30 + "ș" * 90,
        "The first of all the things that are written in English. " * 30,
    ]
    lengths = {"inputs": 32, "targets": 30}
    feature = seqio.Feature(pieces, dtype=tf.int32)
    features = {"inputs": feature, "targets": feature}

    def rows(step: Callable[..., tf.data.Dataset]) -> list[dict]:
        documents = tf.data.Dataset.from_tensor_slices({"text": texts})
        return list(step(documents, sequence_length=lengths, output_features=features).as_numpy_iterator())

    from tasks import ro_diacritics  # noqa: F401

    now = rows(seqio.TaskRegistry.get("ro_diacritics").preprocessors[0])
    before = rows(restore_diacritics("ro", bytes_per_token=2.5))
    sizes = [max(len(pieces.encode(row[name].decode())) for name in lengths) for row in now]
    assert max(sizes) <= 29 and max(len(pieces.encode(row["targets"].decode())) for row in before) > 29
    words = [word for row in now for word in row["targets"].decode().split()]
    assert "".join(words) == "".join("".join(diacritics.normalized(text, "ro").split()) for text in texts)


@pytest.mark.parametrize("language", ["de", "nb", "pl", "vi", "tr", "ro"])
def test_pairs_of_letters_are_stripped_to_ascii_once_and_for_all(language: str) -> None:
    letters = diacritics.letters_of(language)
    text = " ".join(f"{a}{b} {a.upper()}{b.upper()}" for a in letters for b in letters)
    once = diacritics.stripped(text, language)
    assert once.isascii() and diacritics.stripped(once, language) == once
