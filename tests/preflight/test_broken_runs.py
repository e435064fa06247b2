"""Broken runs by their configuration: found by code, and right once their fix is typed; and healthy ones."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from limba.cli.gin import read_gin
from limba.config import RunConfig
from limba.tools.preflight import preflight
from limba.tools.preflight.checks import cost, estimate, sections
from limba.tools.preflight.checks.rates import rate_warnings
from limba.tools.preflight.checks.verdict import Line, Section
from limba.tools.preflight.compiled.topologies import topology
from tests.preflight.broken_runs import BROKEN, SOUND, TUNED, Broken

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.name for path in (ROOT / "gin").glob("*.gin"))


@pytest.fixture
def place(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus and a checkpoint. Text and machine are looked at in other tests."""
    shutil.copy(corpus, tmp_path / "corpus.jsonl")
    shutil.copytree(ROOT / "tests" / "golden" / "run_06a95cb" / "run", tmp_path / "golden")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sections, "_data", lambda *_: Section("Data", []))
    monkeypatch.setattr(sections, "environment", lambda _: Section("Environment", []))
    monkeypatch.setattr(estimate, "OF_ONE_MACHINE", ("/dev/shm",))  # this folder stands for a disk that all hosts see
    return tmp_path


def wrong(place: Path, capsys: pytest.CaptureFixture[str], text: str, chips: str) -> list[dict]:
    """Returns the errors and warnings of a preflight without a compile."""
    (place / "run.gin").write_text(text)
    capsys.readouterr()
    status = preflight.run(["run.gin", "--json", "--no-compile", *([f"--topology={chips}"] if chips else [])])
    document = json.loads(capsys.readouterr().out)
    found = [line for each in document["sections"] for line in each["lines"] if line["level"] != "ok"]
    assert (status == 0) == (not found)
    return found


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_run_is_found_and_its_fix_works_as_typed(
    broken: Broken, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{broken.sound}\n{broken.lines}\n"
    (line,) = wrong(place, capsys, text, broken.chips)  # one finding, and nothing said twice
    assert line["code"] == broken.code, line
    fix = broken.answer or line["fix"]
    assert "…" not in fix and ("…" in line["fix"]) == bool(broken.answer)
    assert wrong(place, capsys, f"{text}\n{fix}\n", broken.chips) == []


@pytest.mark.parametrize(
    ("text", "chips"),
    [
        (SOUND, "v4-8"),
        (SOUND, ""),
        (SOUND, "mi300x-8"),
        (TUNED, "a100-40-1"),
        (f"{SOUND}\ninclude 'gin/recipes/fast.gin'\n", "v4-8"),
        (f"{SOUND}\ninclude 'gin/recipes/fast.gin'\nDECAY_STEPS = 1\n", "v4-8"),  # its branches decay
        (f"{SOUND}\nconfig.OptimizerConfig.name = 'adamw'\nconfig.ScheduleConfig.name = 'cosine'\n"
         "LEARNING_RATE = 0.0006\nWARMUP_STEPS = 1_000\n", "h200-8"),
        (f"{TUNED}\nconfig.OptimizerConfig.name = 'adamw'\nLEARNING_RATE = 0.00003\n", "l4-1"),
        (f"{SOUND}\nINITIAL_CHECKPOINT_PATH = 'golden'\nLEARNING_RATE = 0.5\n", "h100-16"),  # goes on from its step
    ],
)  # fmt: skip
def test_nothing_is_said_of_a_healthy_run(
    text: str, chips: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wrong(place, capsys, text, chips) == []


def judged(run: RunConfig, place: str) -> list[Line]:
    chips = topology(place)
    found = estimate.estimate(run, chips, False)
    lines = [*rate_warnings(run), *found.lines, *cost.time_and_cost(run, chips, [found], cost.Terms()).lines]
    return [line for line in lines if line.level != "ok"]


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_said_of_a_gin_file_that_is_shipped(name: str) -> None:
    text = (ROOT / "gin" / name).read_text()
    hardware = re.search(r"^# Hardware +.*?\b(v\d\w*-\d+)", text, re.MULTILINE)
    place = hardware[1] if hardware else "v5e-1" if "16 GiB" in text else "cpu-1"
    run = read_gin(f"gin/{name}", MODEL_DIR="gs://bucket/run", CORPUS="a.jsonl", VOCABULARY="a.model")
    assert judged(run, place) == []


def test_a_token_that_is_missing_is_asked_for_once(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limba.storage.servers.token", lambda: None)
    (line,) = wrong(place, capsys, f"{SOUND}\nHUB_MODEL_ID = 'me/model'\n", "v4-8")
    assert line["level"] == "error" and line["fix"] == "export HF_TOKEN=…"
