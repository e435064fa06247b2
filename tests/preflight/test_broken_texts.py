"""Broken texts and vocabularies are found, each under its code, and its fix works as it is typed; sound ones are not.

Every run is a preflight in this process that compiles nothing, on some 160 short documents.
"""

import re
from pathlib import Path

import pytest

from limba.cli import main
from limba.tools.preflight.checks import data
from limba.tools.preflight.texts import faults
from tests.preflight.broken_texts import (
    PAIRS,
    PHRASES,
    RUNS,
    SOUND,
    documents,
    of,
    pairs,
    typed,
    vocabulary,
    wrong,
)

# What these short runs cannot do better is not about their text.
BESIDE = re.compile("epochs over the corpus|FLOPs for|warm-up|learning rate|is empty: nothing is evaluated")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "SECONDS", 0.0)
    (tmp_path / "sound.gin").write_text(SOUND)
    (tmp_path / "pairs.gin").write_text(SOUND + PAIRS)
    return tmp_path


def findings(argv: list[str]) -> list[dict]:
    """Returns the errors and warnings about text."""
    lines = [line for line in wrong(argv) if line["section"] in ("Config", "Data", "Vocabulary")]
    return [line for line in lines if not BESIDE.search(line["text"])]


@pytest.mark.parametrize("name", RUNS)
def test_it_is_found_and_its_fix_works_as_it_is_typed(name: str) -> None:
    code, language, files = RUNS[name]
    argv = files(language)
    found = findings(argv)
    lines = [line for line in found if line["code"] == code]
    assert len(lines) == 1 and lines[0]["fix"], found  # said once
    assert sum(line["level"] == "error" for line in found) == (lines[0]["level"] == "error"), found  # of one fault
    assert "…" not in lines[0]["fix"], lines  # nothing is left to choose
    left = findings(typed(lines[0]["fix"], argv))
    assert code not in [line["code"] for line in left], (lines, left)
    assert not [line for line in left if line["level"] == "error"] or code == "num-data-shards", left


@pytest.mark.parametrize("language", PHRASES)
def test_a_sound_text_raises_no_alarm(language: str) -> None:
    for flags in ([f"--gin.LANGUAGE='{language}'"], [vocabulary(language, 300)]):
        assert not findings(of(documents(language), *flags))


def test_sound_pairs_raise_no_alarm() -> None:
    assert not findings(pairs("da"))


def test_text_that_is_nothing_is_one_error() -> None:
    (line,) = findings(of([" "] * 40))
    assert line["level"] == "error" and "holds no document" in line["text"]


def test_each_rule_of_text_has_a_run() -> None:
    """But for letters that a reader has replaced already, which no file can give back."""
    assert set(faults.RULES) - {code for code, *_ in RUNS.values()} == {"undecoded"}


def test_pairs_where_errors_are_corrected_may_be_equal() -> None:
    assert not findings(pairs("da", lambda n, a, _: (a, a if n % 2 else a.replace("en", "enn", 1))))


def test_bad_input_of_clean_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    of(documents("da"))
    for flags, says in (
        (["--output=a.jsonl", "--rules=markups"], "did you mean markup?"),
        (["--output=a.txt", "--rules=markup"], "must be the name of a new .jsonl"),
        (["--output=text.jsonl", "--rules=markup"], "must be the name of a new .jsonl"),
    ):
        assert main.main(["clean", "text.jsonl", *flags]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "left"),
    [
        ("Tel. 030/98765012", "Tel. ***"),
        ("le 06 12 34 56 78.", "le ***."),
        ("電話03-1234-0001まで", "電話***まで"),
        ("電話０３－１２３４－５６７８", "電話***"),
        ("連絡はa@b.jpまで", "連絡は***まで"),
        ("CNP 1960101123001, tel. 0722.123.001", "CNP ***, tel. ***"),
        ("am 01.02.2018, Seite 12", "am 01.02.2018, Seite 12"),
    ],
)
def test_numbers_of_persons_are_those_of_several_countries(number: str, left: str) -> None:
    assert faults.PERSONAL.sub("***", number) == left


def test_one_wrong_letter_in_a_long_text_is_decoded_again() -> None:
    """Between its apostrophe's bytes are control characters, which the text must not lose alone."""
    (text,) = documents("en", 1, sentences=20)
    wrong = f"{text} It’s late.".encode().decode("latin-1")
    assert [code for code, share, *_ in faults.broken([wrong], 1) if share] == ["mojibake"]
    assert faults.change_by("mojibake", [], 1)(wrong) == f"{text} It’s late."


def test_a_long_page_between_two_tags_is_html_and_a_manual_with_one_is_not() -> None:
    text = "The ferry waited for us all day long. " * 80
    clean = faults.change_by("markup", [], 1)
    assert clean(f"<html><p>{text}</p></html>") == text.strip() and clean(f"{text}<p>") == f"{text}<p>"
