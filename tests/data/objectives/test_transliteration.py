"""Text without diacritics in many languages: ASCII, the same when stripped again, in segments that a model can hold."""

import dataclasses
import json
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest
import seqio
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from limba.config import DataConfig, InputError, ModelConfig, RunConfig, plain
from limba.data.objectives import diacritics, restore_diacritics, transliteration
from limba.training.start import as_begun

GOLDEN = Path(__file__).parents[2] / "golden"
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
    strip = transliteration.to_ascii()
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
    step, lengths = restore_diacritics("ro", bytes_per_token=None), {"inputs": 64, "targets": 64}
    features = {"inputs": feature, "targets": feature}
    rows = list(step(documents, lengths, features).as_numpy_iterator())
    longest = [max(len(pieces.encode(row[name].decode())) for name in lengths) for row in rows]
    assert " ".join(row["targets"].decode() for row in rows) == text.strip()
    assert max(longest) <= 63 and sum(longest) / len(longest) > 0.75 * 63


def test_nothing_is_truncated_and_earlier_runs_keep_their_segments(vocabulary: str) -> None:
    """By the vocabulary's own tokens every segment fits; with DataConfig.segments 'bytes' they are as they were."""
    pieces = seqio.SentencePieceVocabulary(str(vocabulary))
    texts = [
        "Țară, „știință” și înțelepciune: " * 30 + "ș" * 90,
        "The first of all the things that are written in English. " * 30,
    ]
    lengths = {"inputs": 32, "targets": 30}
    feature = seqio.Feature(pieces, dtype=tf.int32)
    features = {"inputs": feature, "targets": feature}

    def rows(task: seqio.Task) -> list[dict]:
        documents = tf.data.Dataset.from_tensor_slices({"text": texts})
        step = task.preprocessors[0]
        return list(step(documents, sequence_length=lengths, output_features=features).as_numpy_iterator())

    from tasks import ro_diacritics  # noqa: F401

    task = seqio.TaskRegistry.get("ro_diacritics")
    now, before = rows(diacritics.with_segments(task, "vocabulary")), rows(diacritics.with_segments(task, "bytes"))
    sizes = [max(len(pieces.encode(row[name].decode())) for name in lengths) for row in now]
    assert max(sizes) <= 29 and max(len(pieces.encode(row["targets"].decode())) for row in before) > 29
    words = [word for row in now for word in row["targets"].decode().split()]
    assert "".join(words) == "".join("".join(diacritics.normalized(text, "ro").split()) for text in texts)
    earlier = restore_diacritics("ro", bytes_per_token=2.5)
    documents = tf.data.Dataset.from_tensor_slices({"text": texts})
    assert before == list(earlier(documents, lengths, features).as_numpy_iterator())
    in_bytes = seqio.TaskRegistry.get("ro_diacritics_bytes")
    assert diacritics.with_segments(in_bytes, "bytes") is in_bytes, "a task that names its bytes keeps them"


def test_a_config_of_an_earlier_version_keeps_its_segments(tmp_path) -> None:
    run = RunConfig(
        ModelConfig(384, 32, 2, 16, 64, 2, 2), DataConfig("ro_diacritics", {"inputs": 64, "targets": 64}, 8), "m", 9
    )
    text = plain.to_text(run)
    document = json.loads(text)
    del document["run"]["data"]["segments"]
    assert plain.from_text(text, "new").data.segments == "vocabulary"
    assert plain.from_text(json.dumps(document), "old").data.segments == "bytes"
    here = dataclasses.replace(run, model_dir=str(tmp_path))
    assert as_begun(here).data.segments == "vocabulary", "nothing was begun"
    shutil.copytree(GOLDEN / "run_aa13acc" / "run" / "checkpoints", tmp_path / "checkpoints")
    assert as_begun(here).data.segments == "bytes", "a run that has no config.json is of an earlier version"
    (tmp_path / "config.json").write_text(json.dumps(document))
    assert as_begun(here).data.segments == "bytes"
    (tmp_path / "config.json").write_text(text)
    assert as_begun(here).data.segments == "vocabulary"


@pytest.mark.parametrize("language", ["de", "nb", "pl", "vi", "tr", "ro"])
def test_pairs_of_letters_are_stripped_to_ascii_once_and_for_all(language: str) -> None:
    letters = diacritics.letters_of(language)
    text = " ".join(f"{a}{b} {a.upper()}{b.upper()}" for a in letters for b in letters)
    once = diacritics.stripped(text, language)
    assert once.isascii() and diacritics.stripped(once, language) == once
