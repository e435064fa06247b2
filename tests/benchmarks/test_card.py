"""The parts of a card's half hour: dry runs on a CPU, parts that are done, fail, or take too long."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import card
from limba.config import InputError


def commands(**texts: str) -> dict:
    """Returns parts whose only command is a Python program."""
    return {name: lambda given, text=text: {"a program": [sys.executable, "-c", text]} for name, text in texts.items()}


@pytest.mark.slow
def test_a_part_is_run_once_and_a_failure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "runs.txt"
    good = f"open({str(left)!r}, 'a').write('x'); print('note'); print('{{\"mfu\": 0.5, \"size\": 3}}')"
    bad = "import sys; sys.exit('no | such card')"
    parts = commands(one=good, two=bad)
    monkeypatch.setattr(card, "PARTS", parts)
    flags = [f"--output={tmp_path}", "--dry_run"]
    assert card.main([*flags, "--parts=one"]) == 0
    assert card.main(flags) == 1 and card.main(flags) == 1
    assert left.read_text() == "x"
    found = json.loads((tmp_path / "one.json").read_text())
    assert found["device"] == "cpu" and found["runs"]["a program"]["figures"] == {"mfu": 0.5, "size": 3}
    table = (tmp_path / "card.md").read_text()
    assert "mfu 0.5 |" in table and "**failed**: ended with 1: no / such card" in table
    (tmp_path / "two.json").unlink()  # as an interrupted part leaves it
    monkeypatch.setattr(card, "PARTS", commands(one=good, two=good))
    assert card.main(flags) == 0 and left.read_text() == "xx"


def test_a_part_over_its_limit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "PARTS", commands(long="import threading; threading.Event().wait()"))
    monkeypatch.setattr(card, "SECONDS", 0.5)
    (tmp_path / "corpus.jsonl").write_text("")
    given = card.Card(tmp_path, "cpu", tmp_path / "corpus.jsonl", True)
    card._run(given, "long", {"device": "cpu", "platform": "cpu", "jax": "0"})
    assert "**failed**: over the part's 0.5 s" in (tmp_path / "card.md").read_text()
    assert json.loads((tmp_path / "long.json").read_text())["runs"]["a program"]["exit_code"] < 0


def test_an_unknown_part_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--parts has bas; did you mean base.*the parts are tests, base"):
        card.main([f"--output={tmp_path}", "--parts=bas"])


def test_a_card_names_its_topology(tmp_path: Path) -> None:
    kinds = {"NVIDIA H100 80GB HBM3": "h100-1", "NVIDIA A100-SXM4-80GB": "a100-1", "cpu": "cpu-1"}
    assert {kind: card.Card(tmp_path, kind, tmp_path, False).topology for kind in kinds} == kinds


@pytest.mark.night
def test_a_dry_run_of_the_cheap_parts(tmp_path: Path) -> None:
    flags = [f"--output={tmp_path}", "--dry_run", "--parts=tests,base,attention"]
    assert card.main(flags) == 0, (tmp_path / "card.md").read_text()
    table = (tmp_path / "card.md").read_text()
    assert table.count("seconds_per_step") == 2 and " passed" in table and "| memory | | not run |" in table
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert card.main(flags) == 0 and {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == before
