"""The commands of docs/development/huggingface_scripts.md, each run for 20 steps against a hub of this machine's."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import published_t5
from tests.hub_server import hub, write_data_set

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "development" / "huggingface_scripts.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = [text for _, text in BLOCKS if re.match(r"(python|accelerate launch) run_t5", text)]
JSON = [text for kind, text in BLOCKS if kind == "json"]
FILES = dict(zip(("config.json", "small_t5_config.json"), JSON, strict=False))
PARTS = 3  # processes that share the commands
SMALL = {
    "emb_dim": 32, "mlp_dim": 64, "num_heads": 2, "head_dim": 16, "num_encoder_layers": 1, "num_decoder_layers": 1
}  # fmt: skip


@pytest.fixture(scope="module")
def shelf(corpus: Path, vocabulary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the hub has: google-t5/t5-small as published but for its sizes, and two configurations of wikitext."""
    folder = tmp_path_factory.mktemp("hub") / "served"
    published_t5.write(folder / "google-t5" / "t5-small" / "main", vocabulary, **published_t5.SMALL)
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    splits = {"train": texts[40:], "validation": texts[:20], "test": texts[20:40]}
    write_data_set(folder, "Salesforce/wikitext", {"wikitext-2-raw-v1": splits, "wikitext-103-raw-v1": splits})
    return folder


def run_all(commands: list[list[str]], folder: Path, environment: dict[str, str]) -> str:
    """Runs the commands in one process with one device; returns what they print."""
    folder.mkdir()
    for number in range(len(commands)):
        (folder / str(number)).mkdir()
        for name, text in FILES.items():
            (folder / str(number) / name).write_text(text)
    cleared = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "HF_TOKEN")}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.cli.script_commands", json.dumps(commands), str(folder)],
        env={**cleared, "PYTHONPATH": str(ROOT), **environment}, cwd=ROOT, text=True, timeout=1500, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return ended.stdout


def argv_of(command: str) -> list[str]:
    words = shlex.split(command.replace("accelerate launch", "python").replace("\\\n", " "))
    assert words[0] == "python"
    argv = ["train", *words[1:], "--gin.TRAIN_STEPS=20", "--gin.LOG_PERIOD=5", "--gin.LEARNING_RATE=0.003"]
    argv += ["--gin.config.DataConfig.num_data_shards=2"]
    if "small_t5_config.json" in words:
        argv += [f"--gin.config.ModelConfig.{name}={size}" for name, size in SMALL.items()]
    return argv


@pytest.mark.night
@pytest.mark.parametrize("part", range(PARTS))
def test_every_command_of_the_page(part: int, shelf: Path, tmp_path: Path) -> None:
    assert len(COMMANDS) > 5 and len(FILES) > 1
    chosen = COMMANDS[part::PARTS]
    with hub(shelf) as (_, environment):
        commands = [argv_of(command) for command in chosen]
        out = run_all(commands, tmp_path / "runs", {**environment, "HF_TOKEN": "good"})
    assert out.count("=== ended 0") == len(chosen), out[-6000:]
    for number, command in enumerate(chosen):
        (metrics,) = (tmp_path / "runs" / str(number)).rglob("metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        losses = [row["loss"] for row in rows if row["kind"] == "train"]
        assert rows[-1]["step"] == 20 and losses[-1] < losses[0], (command, losses)
        assert any(row["kind"] == "validation" for row in rows)
        revisions = json.loads((metrics.parent / "data_revisions.json").read_text())
        assert set(revisions.values()) == {"c" * 40}
    pushes = any("--push_to_hub" in command for command in chosen)
    assert (shelf / "me" / "mine" / "main" / "model.safetensors").exists() == pushes
    assert ("the model is in http" in out) == pushes and "good" not in out
