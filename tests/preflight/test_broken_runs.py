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
from limba.tools.preflight.checks import cost, data, estimate, sections
from limba.tools.preflight.checks.rates import rate_warnings
from limba.tools.preflight.checks.verdict import Line, Section
from limba.tools.preflight.compiled.topologies import topology
from tests.preflight import broken_texts
from tests.preflight.broken_runs import BROKEN, LOCAL, OTHERS, SOUND, TUNED, Broken

ROOT = Path(__file__).parents[2]
OF_A_MODEL = "continue.gin"  # has no size and no vocabulary of its own: tests/run/test_continue.py looks at it
SHIPPED = sorted(path.name for path in (ROOT / "gin").glob("*.gin") if path.name != OF_A_MODEL)


@pytest.fixture
def workdir(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus and a checkpoint. Text and machine are looked at in other tests."""
    shutil.copy(corpus, tmp_path / "corpus.jsonl")
    shutil.copytree(ROOT / "tests" / "golden" / "run" / "run", tmp_path / "golden")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sections, "_data", lambda *_: Section("Data", []))
    monkeypatch.setattr(sections, "environment", lambda _: Section("Environment", []))
    monkeypatch.setattr(estimate, "OF_ONE_MACHINE", ("/dev/shm",))  # this folder stands for a disk that all hosts see
    return tmp_path


def wrong(workdir: Path, capsys: pytest.CaptureFixture[str], text: str, chips: str) -> list[dict]:
    """Returns the errors and warnings of a preflight without a compile."""
    (workdir / "run.gin").write_text(text)
    capsys.readouterr()
    status = preflight.run(["run.gin", "--json", "--no_compile", *([f"--topology={chips}"] if chips else [])])
    document = json.loads(capsys.readouterr().out)
    lines = [line for part in document["sections"] for line in part["lines"] if line["level"] != "ok"]
    assert status == any(line["level"] == "error" for line in lines)  # 1; a warning ends it with 0
    assert (document["verdict"] == "go") == (not lines)
    return lines


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_broken_run_is_found_and_its_fix_works_as_typed(
    broken: Broken, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{broken.sound}\n{broken.lines}\n"
    (line,) = wrong(workdir, capsys, text, broken.chips)  # one finding, and nothing said twice
    assert line["code"] == broken.code, line
    fix = broken.answer or line["fix"]
    assert "…" not in fix and ("…" in line["fix"]) == bool(broken.answer)
    assert wrong(workdir, capsys, f"{text}\n{fix}\n", broken.chips) == []


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
        (f"{SOUND}\nBATCH_SIZE = 256\nREMAT = 'minimal'\n", "b200-8"),
        (f"{SOUND}\nINITIAL_CHECKPOINT_PATH = 'golden'\nLEARNING_RATE = 0.5\n", "h100-16"),  # goes on from its step
    ],
)  # fmt: skip
def test_nothing_is_said_of_a_healthy_run(
    text: str, chips: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wrong(workdir, capsys, text, chips) == []


def judged(run: RunConfig, chips_name: str) -> list[Line]:
    chips = topology(chips_name)
    estimated = estimate.estimate(run, chips, False)
    lines = [*rate_warnings(run), *estimated.lines, *cost.time_and_cost(run, chips, [estimated], cost.Terms()).lines]
    return [line for line in lines if line.level != "ok"]


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_is_said_of_a_gin_file_that_is_shipped(name: str) -> None:
    text = (ROOT / "gin" / name).read_text()
    hardware = re.search(r"^# Hardware +.*?\b(v\d\w*-\d+)", text, re.MULTILINE)
    if hardware:
        devices = hardware[1]
    else:
        devices = "v5e-1" if "16 GiB" in text else "h100-1"
    run = read_gin(f"gin/{name}", MODEL_DIR="gs://bucket/run", CORPUS="a.jsonl", VOCABULARY="a.model")
    assert judged(run, devices) == []


@pytest.mark.parametrize(
    ("name", "language", "flags"),
    [
        ("demo", "en", ["--gin.config.DataConfig.new_vocabulary_size=900"]),
        ("fr_capitals_tiny", "es", []),
        ("fr_diacritics_tiny", "es", []),
        ("nb_encoder_base", "da", ["--gin.LANGUAGE='da'", "--gin.NEW_VOCABULARY_SIZE=900", "--gin.VOCAB_SIZE=1024"]),
    ],
)
@pytest.mark.slow
def test_nothing_is_said_of_a_shipped_run_on_sound_text(
    name: str, language: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Every section is looked at; the only finding is that so little text is read too often."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "SECONDS", 0.0)
    path = broken_texts.write("text.jsonl", broken_texts.documents(language, 600))
    flags = [f"--gin.CORPUS={path!r}", "--gin.MODEL_DIR='run'", "--topology=v3-8", *flags]
    preflight.run([f"gin/{name}.gin", "--json", "--no_compile", *flags])
    document = json.loads(capsys.readouterr().out)
    wrong = [line for part in document["sections"] for line in part["lines"] if line["level"] != "ok"]
    assert {line["code"] for line in wrong} <= {"too-many-epochs"}, wrong
    assert not [text for text in document["figures"].values() if "not known" in text]


def test_a_token_that_is_missing_is_asked_for_once(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("limba.storage.servers.token", lambda: None)
    (line,) = wrong(workdir, capsys, f"{SOUND}\nHUB_MODEL_ID = 'me/model'\n", "v4-8")
    assert line["level"] == "error" and line["fix"] == "export HF_TOKEN=…"


@pytest.mark.parametrize("broken", OTHERS, ids=lambda broken: broken.name)
def test_a_run_that_its_machine_or_text_breaks_is_found_too(
    broken: Broken, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every section is looked at; other findings are about what this small text cannot do better."""
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "SECONDS", 0.0)
    broken_texts.write("corpus.jsonl", broken_texts.documents("da", 400))
    texts = broken_texts.documents("el", 900, sentences=1)
    Path("short.txt").write_text("".join(f"{number} {text[:30]}\n" for number, text in enumerate(texts)))
    text = f"{LOCAL}\n{broken.lines}\n"
    line, *others = [line for line in wrong(tmp_path, capsys, text, broken.chips) if line["code"] == broken.code]
    assert not others
    fix = broken.answer or line["fix"]
    assert fix and "…" not in fix and ("…" in line["fix"]) == bool(broken.answer), line
    if fix.startswith("export "):
        monkeypatch.setenv(*fix.removeprefix("export ").split("="))
    else:
        text += f"{fix}\n"
    text = text.replace(broken.lines, "") if broken.code == "gin-file" else text  # the name is typed anew
    assert broken.code not in [line["code"] for line in wrong(tmp_path, capsys, text, broken.chips)]


def test_chips_that_no_reader_feeds_are_found(
    workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Number 61. Its fix is as many processes as may read, which do not suffice for all chips."""
    monkeypatch.undo()
    monkeypatch.chdir(workdir)
    monkeypatch.setattr(data, "SECONDS", 0.0)
    narrow = "config.ModelConfig:\n  emb_dim = 8\n  mlp_dim = 8\n  num_encoder_layers = 1\n  num_decoder_layers = 1\n"
    lines = wrong(workdir, capsys, f"{LOCAL}\nBATCH_SIZE = 32_768\n{narrow}", "h100-8")
    (fix,) = [line["fix"] for line in lines if line["code"] == "reading-too-slow"]
    assert fix == "config.DataConfig.num_reader_processes = 16"


def test_the_tables_have_all_runs_but_one() -> None:
    """Float16 was thought to be broken, number 5, and is not; 61 has a test of its own; others datatrove looks for."""
    names = [*(broken.name for broken in (*BROKEN, *OTHERS)), *broken_texts.RUNS, *broken_texts.BY_HAND]
    numbers = sorted(int(name[:2]) for name in names if name[:2].isdigit())
    of_datatrove = {22, 24, 25, 27, 28, 38, 40, 41, 42, 43, 44, 56}
    assert numbers == [number for number in range(1, 63) if number not in {5, 61, *of_datatrove}]
