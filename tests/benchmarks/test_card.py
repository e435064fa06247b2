"""What is measured on a card or a TPU in one call: dry runs on a CPU, parts that are done, fail, or take too long."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import card
from limba.config import InputError


def commands(**texts: str) -> dict:
    """Returns parts whose only command is a Python program."""
    return {name: lambda part, text=text: {"a program": [sys.executable, "-c", text]} for name, text in texts.items()}


@pytest.mark.night
def test_a_part_is_run_once_and_a_failure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "runs.txt"
    good = f"open({str(left)!r}, 'a').write('x'); print('note'); print('{{\"mfu\": 0.5, \"size\": 3}}')"
    bad = "import sys; sys.exit('no | such card')"
    parts = commands(one=good, two=bad)
    monkeypatch.setitem(card.PARTS, "gpu", parts)
    flags = [f"--output={tmp_path}", "--dry_run"]
    assert card.main([*flags, "--parts=one"]) == 0
    assert card.main(flags) == 1 and card.main(flags) == 1
    assert left.read_text() == "x"
    written = json.loads((tmp_path / "one.json").read_text())
    assert written["device"] == "cpu" and written["runs"]["a program"]["figures"] == {"mfu": 0.5, "size": 3}
    table = (tmp_path / "card.md").read_text()
    assert "mfu 0.5 |" in table and "**failed**: ended with 1: no / such card" in table
    (tmp_path / "two.json").unlink()  # as an interrupted part leaves it
    monkeypatch.setitem(card.PARTS, "gpu", commands(one=good, two=good))
    assert card.main(flags) == 0 and left.read_text() == "xx"


@pytest.mark.night
def test_a_command_over_the_call_s_time_is_left_for_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = {"device": "cpu", "platform": "cpu", "jax": "0"}
    texts = {"short": "print(7)", "endless": "import threading; threading.Event().wait()"}
    runs = {name: [sys.executable, "-c", text] for name, text in texts.items()}
    monkeypatch.setitem(card.PARTS, "gpu", {"part": lambda part: runs})
    monkeypatch.setattr(card, "LEAST_SECONDS", 0.0)
    this_card = card.Card(tmp_path, "cpu", tmp_path, True, seconds=60.0)
    assert card._run(this_card, "part", {"short": runs["short"]}, device, seconds=60.0)
    assert not card._run(this_card, "part", runs, device, seconds=1.0)  # the rest of a call
    results = json.loads((tmp_path / "part.json").read_text())["runs"]
    assert list(results) == ["short"] and results["short"]["figures"] == {"says": "7"}
    # A command that has had a whole call is not tried again.
    whole = card.Card(tmp_path, "cpu", tmp_path, True, seconds=0.5)
    assert card._run(whole, "part", runs, device, seconds=1.0)
    assert "**failed**: over 1 s |" in (tmp_path / "card.md").read_text()
    results = json.loads((tmp_path / "part.json").read_text())["runs"]
    assert results["endless"]["exit_code"] < 0 and results["short"]["figures"] == {"says": "7"}
    assert card._run(whole, "part", runs, device, seconds=0.0)


@pytest.mark.slow
def test_an_unknown_part_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--parts has bas; did you mean base.*the parts are base, torch"):
        card.main([f"--output={tmp_path}", "--parts=bas", "--dry_run"])
    with pytest.raises(InputError, match="--parts has torch.*the parts are devices, step"):
        card.main([f"--output={tmp_path}", "--parts=torch", "--dry_run=tpu"])


def test_a_card_names_its_topology(tmp_path: Path) -> None:
    kinds = {
        "NVIDIA H100 80GB HBM3": "h100-1",
        "NVIDIA A100-SXM4-80GB": "a100-1",
        "NVIDIA GeForce RTX 4090": "rtx4090-1",
        "NVIDIA A40": "cpu-1",  # for which no description is there
        "cpu": "cpu-1",
    }
    assert {kind: card.Card(tmp_path, kind, tmp_path, False).topology for kind in kinds} == kinds
    assert card.Card(tmp_path, "TPU v4", tmp_path, False, number=4).topology == "v4-8"


@pytest.mark.night
@pytest.mark.parametrize("kind", card.PARTS)
def test_every_command_runs_in_tiny_sizes(kind: str, tmp_path: Path) -> None:
    flags = [f"--output={tmp_path}", f"--dry_run={kind}", "--seconds=3600"]
    assert card.main(flags) == 0, (tmp_path / "card.md").read_text()
    table = (tmp_path / "card.md").read_text()
    measured = {part for part in card.PARTS[kind] if (tmp_path / f"{part}.json").exists()}
    assert measured == set(card.PARTS[kind]) - {"bucket"}, table  # no bucket is given
    assert table.count("seconds_per_step") >= 3 and "**failed**" not in table
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")}
    assert card.main(flags) == 0 and {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.json")} == before
