"""Broken runs on real text: each is found with all sections looked at, its fix works as typed; sound ones pass.

The runs come from broken_texts.py and broken_runs.py, whose own tests have made-up sentences. Here their documents
are of Python's manual, and each run is looked at as a user would, without a compile.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from limba.tools.preflight.checks import data, estimate
from tests.preflight import broken_runs, broken_texts
from tests.preflight.broken_texts import REAL, documents, typed, wrong

pytestmark = pytest.mark.night

ROOT = Path(__file__).parents[2]
OWN = "en"
MACHINE = "Environment"  # what is wrong with this machine is not about the runs
LITTLE = {"too-many-epochs", "too-few-tokens", "unused-rows"}  # said of any run on so little text
NARROW = """
BATCH_SIZE = 32_768
config.ModelConfig:
  emb_dim = 8
  mlp_dim = 8
  num_encoder_layers = 1
  num_decoder_layers = 1
"""
SLOW = broken_runs.Broken("61 reading is too slow", NARROW, "h100-8", "reading-too-slow", sound=broken_runs.LOCAL)
GIN = {broken.name: broken for broken in (*broken_runs.BROKEN, *broken_runs.OTHERS, SLOW)}
# English has no letters to decompose, and this manual is what the other vocabulary is made of.
NOT_OF_ENGLISH = ("38 NFD", "46 vocabulary of another language")
TEXTS = [name for name in broken_texts.RUNS if name not in NOT_OF_ENGLISH]


@pytest.fixture(scope="module")
def manual(corpus: Path) -> list[str]:
    """Parts of Python's manual: 600 or more documents without a paragraph that another one has too."""
    parts: list[str] = []
    seen: set[str] = set()
    for line in corpus.read_text().splitlines():
        part = ""
        for paragraph in json.loads(line)["text"].split("\n\n"):
            if paragraph in seen:
                continue
            seen.add(paragraph)
            part = f"{part}\n\n{paragraph}".strip()
            if len(part) > 300:
                parts.append(part)
                part = ""
    assert len(parts) >= 600
    return parts


@pytest.fixture(autouse=True)
def workdir(tmp_path: Path, manual: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the files that all runs have; keys and tokens of this machine are hidden."""
    monkeypatch.setitem(REAL, OWN, manual)
    monkeypatch.setitem(broken_texts.OTHER, OWN, "da")
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "SECONDS", 0.0)  # reading is not timed
    monkeypatch.setattr(estimate, "OF_ONE_MACHINE", ("/dev/shm",))  # this folder stands for a disk that all hosts see
    shutil.copytree(ROOT / "tests" / "golden" / "run" / "run", "golden")
    Path("sound.gin").write_text(broken_texts.SOUND)
    Path("pairs.gin").write_text(broken_texts.SOUND + broken_texts.PAIRS)


def is_found(code: str, argv: list[str]) -> dict:
    """Returns the finding of a code; fails unless there is exactly one."""
    problems = wrong(argv)
    lines = [line for line in problems if line["code"] == code]
    assert len(lines) == 1, problems
    return lines[0]


def is_mended(code: str, argv: list[str]) -> None:
    """Fails if the finding, or an error that is not this machine's, is left."""
    left = wrong(argv)
    assert code not in [line["code"] for line in left], left
    errors = [line for line in left if line["level"] == "error" and line["section"] != MACHINE]
    assert not errors or code == "num-data-shards", errors


@pytest.mark.parametrize("name", TEXTS)
def test_a_broken_text_is_found_and_mended(name: str) -> None:
    code, _, files = broken_texts.RUNS[name]
    argv = files(OWN)
    fix = is_found(code, argv)["fix"]
    assert fix and "…" not in fix
    is_mended(code, typed(fix, argv))


@pytest.mark.parametrize("name", GIN)
def test_a_broken_configuration_is_found_and_mended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = GIN[name]
    broken_texts.write("corpus.jsonl", documents(OWN, 400))
    lines = [line[:30] for text in documents(OWN, 600) for line in text.splitlines()][:900]
    Path("short.txt").write_text("".join(f"{number} {line}\n" for number, line in enumerate(lines)))
    sound = broken_runs.LOCAL if broken in broken_runs.OTHERS else broken.sound
    text = f"{sound}\n{broken.lines}\n"
    Path("run.gin").write_text(text)
    argv = ["run.gin", *([f"--topology={broken.chips}"] if broken.chips else [])]
    line = is_found(broken.code, argv)
    fix = broken.answer or line["fix"]
    assert fix and "…" not in fix and ("…" in line["fix"]) == bool(broken.answer)
    if broken is SLOW:  # its fix is work for hours
        return
    if broken.code == "gin-file":  # the name is typed anew
        Path("run.gin").write_text(text.replace("config.OptimizerConfig.weigth_decay", fix.partition(" = ")[0]))
    elif fix.startswith("export "):
        monkeypatch.setenv(*fix.removeprefix("export ").split("="))
    else:
        argv = typed(fix, argv)
    is_mended(broken.code, argv)


NEW = ["--gin.MODEL_DIR='run'", "--topology=v3-8"]


def _text() -> str:
    return broken_texts.corpus(broken_texts.write("text.jsonl", documents(OWN, 600)))


SOUND: dict[str, Callable[[], list[str]]] = {
    "bytes": lambda: broken_texts.changed(OWN, lambda _, text: text, f"--gin.LANGUAGE={OWN!r}"),
    "vocabulary": lambda: broken_texts.changed(
        OWN, lambda _, text: text, broken_texts.vocabulary(OWN, 1_000), "--gin.VOCAB_SIZE=4096"
    ),
    "pairs": lambda: [
        *broken_texts.pairs(OWN), "--gin.TASK_FEATURE_LENGTHS={'inputs': 4096, 'targets': 4096}"
    ],
    "demo": lambda: ["gin/demo.gin", _text(), *NEW, "--gin.config.DataConfig.new_vocabulary_size=4000"],
    "encoder": lambda: ["gin/nb_encoder_base.gin", _text(), *NEW, f"--gin.LANGUAGE={OWN!r}",
                        "--gin.NEW_VOCABULARY_SIZE=4000", "--gin.VOCAB_SIZE=4096"],
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_of_a_sound_run(name: str) -> None:
    said = [line for line in wrong(SOUND[name]()) if line["section"] != MACHINE]
    assert not [line for line in said if line["code"] not in LITTLE], said
