"""Broken texts and vocabularies are found, each under its code, and its fix works as it is typed; sound ones are not.

Every run is a preflight in this process that compiles nothing, on some 160 short documents.
"""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from limba.cli import main
from limba.tools.preflight import preflight
from limba.tools.preflight.checks import data
from limba.tools.preflight.texts import faults
from tests.preflight.broken_texts import PHRASES, RUNS, documents, of, pairs, vocabulary

ROOT = Path(__file__).parents[2]
SOUND = (ROOT / "tests" / "broken" / "sound.gin").read_text()
PAIRS = """
from tasks import text_to_text
MIXTURE_OR_TASK_NAME = 'text_to_text'
TASK_FEATURE_LENGTHS = {'inputs': 384, 'targets': 384}
PACK = True
"""
# What these short runs cannot do better is not about their text.
BESIDE = re.compile("epochs over the corpus|FLOPs for|warm-up|learning rate|is empty: nothing is evaluated")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "SECONDS", 0.0)
    (tmp_path / "sound.gin").write_text(SOUND)
    (tmp_path / "pairs.gin").write_text(SOUND + PAIRS)
    return tmp_path


def findings(capsys: pytest.CaptureFixture[str], argv: list[str]) -> list[dict]:
    """Returns the errors and warnings about text."""
    capsys.readouterr()
    preflight.run([*argv, "--no-compile", "--json"])
    sections = json.loads(capsys.readouterr().out)["sections"]
    lines = [line for section in sections if section["title"] in ("Config", "Data", "Vocabulary")
             for line in section["lines"]]  # fmt: skip
    return [line for line in lines if line["level"] != "ok" and not BESIDE.search(line["text"])]


def typed(fix: str, argv: list[str]) -> list[str]:
    """Does what the fix says, a command or a line of gin, and returns the run's flags after it."""
    for line in fix.splitlines():
        name, is_gin, value = line.partition(" = ")
        if line.startswith("limba "):
            assert main.main(shlex.split(line)[1:]) == 0
        elif is_gin:
            argv = [*(word for word in argv if not word.startswith(f"--gin.{name}=")), f"--gin.{name}={value}"]
        else:
            subprocess.run(line, shell=True, check=True, executable="/bin/bash")
    return argv


@pytest.mark.parametrize("name", RUNS)
def test_it_is_found_and_its_fix_works_as_it_is_typed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, files = RUNS[name]
    argv = files()
    found = findings(capsys, argv)
    lines = [line for line in found if line["code"] == code]
    assert len(lines) == 1 and lines[0]["fix"], found  # said once
    assert "…" not in lines[0]["fix"], lines  # nothing is left to choose
    left = findings(capsys, typed(lines[0]["fix"], argv))
    assert code not in [line["code"] for line in left], (lines, left)
    assert not [line for line in left if line["level"] == "error"] or code == "num-data-shards", left


@pytest.mark.parametrize("language", PHRASES)
def test_a_sound_text_raises_no_alarm(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in ([f"--gin.LANGUAGE='{language}'"], [vocabulary(language, 300)]):
        assert not findings(capsys, of(documents(language), *flags))


def test_sound_pairs_raise_no_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    assert not findings(capsys, pairs())


def test_each_rule_of_text_has_a_run() -> None:
    """But for letters that a reader has replaced already, which no file can give back."""
    assert set(faults.RULES) - {code for code, _ in RUNS.values()} == {"undecoded"}


def test_pairs_where_errors_are_corrected_may_be_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert not findings(capsys, pairs(lambda n, a, _: (a, a if n % 2 else a.replace("en", "enn", 1))))


def test_bad_input_of_clean_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    of(documents("da"))
    for flags, says in (
        (["--output=a.jsonl", "--rules=markups"], "did you mean markup?"),
        (["--output=a.txt", "--rules=markup"], "must be the name of a new .jsonl"),
        (["--output=text.jsonl", "--rules=markup"], "must be the name of a new .jsonl"),
    ):
        assert main.main(["clean", "text.jsonl", *flags]) == 2
        assert says in capsys.readouterr().err
