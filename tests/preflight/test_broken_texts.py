"""Broken texts and vocabularies are found, each under its code, and its fix works as it is typed; sound ones are not.

Every run is a preflight in this process that compiles nothing, on some 160 short documents.
"""

import re
from pathlib import Path

import pytest

from limba.tools.preflight.checks import data
from limba.tools.preflight.checks.markup import without_tags
from tests.preflight.broken_texts import (
    BY_HAND,
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
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
@pytest.mark.slow
def test_it_is_found_and_its_fix_works_as_it_is_typed(name: str) -> None:
    code, language, files = RUNS[name]
    argv = files(language)
    found_lines = findings(argv)
    lines = [line for line in found_lines if line["code"] == code]
    assert len(lines) == 1 and lines[0]["fix"], found_lines  # said once
    assert sum(line["level"] == "error" for line in found_lines) == (lines[0]["level"] == "error"), (
        found_lines
    )  # of one fault
    assert "…" not in lines[0]["fix"], lines  # nothing is left to choose
    left = findings(typed(lines[0]["fix"], argv))
    assert code not in [line["code"] for line in left], (lines, left)
    assert not [line for line in left if line["level"] == "error"] or code == "num-data-shards", left


@pytest.mark.parametrize("name", BY_HAND)
def test_text_that_its_owner_has_to_change_is_found_and_right_when_that_is_done(name: str) -> None:
    code, language, files, mended = BY_HAND[name]
    found_lines = findings(files(language))
    lines = [line for line in found_lines if line["code"] == code]
    assert len(lines) == 1 and lines[0]["fix"], found_lines
    assert sum(line["level"] == "error" for line in found_lines) == (lines[0]["level"] == "error"), (
        found_lines
    )  # of one fault
    assert code not in [line["code"] for line in findings(mended(language))]


@pytest.mark.parametrize("language", PHRASES)
def test_a_sound_text_raises_no_alarm(language: str) -> None:
    for flags in ([f"--gin.LANGUAGE='{language}'"], [vocabulary(language, 300)]):
        assert not findings(of(documents(language), *flags))


def test_sound_pairs_raise_no_alarm() -> None:
    assert not findings(pairs("da"))


def test_text_that_is_nothing_is_one_error() -> None:
    (line,) = findings(of([" "] * 40))
    assert line["level"] == "error" and "holds no document" in line["text"]


def test_a_long_page_between_two_tags_is_html_and_a_manual_with_one_is_not() -> None:
    text = "The ferry waited for us all day long. " * 80
    assert without_tags(f"<html><p>{text}</p></html>") == text.strip()
    assert without_tags(f"{text}<p>") == f"{text}<p>"
