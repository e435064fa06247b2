"""What takes long shows how far it is: on a terminal in a line that changes, in a file in plain lines or not at all."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.terminal import shown_on

ROOT = Path(__file__).parents[2]

# Commands one after the other in one process, whose imports they share; work of any length is shown.
PROGRAM = """
import json, sys
from limba.config import waiting
waiting.FIRST_SECONDS = 0.001
from limba.cli.main import main
for name, command in json.loads(sys.argv[1]).items():
    print(f"== {name}", flush=True)
    if status := main(command):
        sys.exit(status)
"""
SMALL = [
    "--gin.VOCAB_SIZE=1024", "--gin.TASK_FEATURE_LENGTHS={'inputs': 32}", "--gin.BATCH_SIZE=8", "--gin.EVAL_STEPS=1",
    "--gin.config.ModelConfig.num_encoder_layers=1", "--gin.config.ModelConfig.num_decoder_layers=1",
]  # fmt: skip


def commands(corpus: Path, to: Path) -> dict[str, tuple[list[str], str]]:
    """Returns, by what is done, a command and what a terminal shows of it."""
    train = ["train", "gin/demo.gin", f"--gin.CORPUS={corpus}", f"--gin.VOCABULARY={to}/v.model", *SMALL]
    train.append(f"--gin.MODEL_DIR={to}/run")
    return {
        "vocabulary": (
            ["vocabulary", str(corpus), "--size=900", f"--output={to}/v.model"],
            "training the vocabulary: ",
        ),
        "compile": ([*train, "--gin.TRAIN_STEPS=1"], "compiling the training step: "),
        "restore": ([*train, "--gin.TRAIN_STEPS=2"], f"restoring {to}/run/checkpoints/1: "),
        "convert": (["convert", f"{to}/run", f"{to}/out"], "proving it: "),
    }


def program_of(commands: Mapping[str, Sequence[str]]) -> tuple[list[str], dict[str, str]]:
    """Returns a program that runs the commands one after another, and its environment."""
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # else a command starts the process again
    return [sys.executable, "-c", PROGRAM, json.dumps(commands)], environment


def by_command(written: str) -> dict[str, str]:
    parts = re.split(r"== (\w+)\r?\n", written)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def on_a_terminal(commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns what each command writes to a terminal of its own."""
    program, environment = program_of(commands)
    status, drawn, _ = shown_on(program, ROOT, environment, columns=100)
    assert status == 0, drawn
    return by_command(drawn)


@pytest.mark.night
def test_long_work_shows_how_far_it_is(corpus: Path, tmp_path: Path) -> None:
    for name in ("terminal", "file"):
        (tmp_path / name).mkdir()
    there = commands(corpus, tmp_path / "terminal")
    written = on_a_terminal({what: command for what, (command, _) in there.items()})
    for what, (_, shown) in there.items():
        assert re.search(rf"\r[^\r\n]*{re.escape(shown)}", written[what]), (what, written[what])
    in_a_file = commands(corpus, tmp_path / "file")
    log = tmp_path / "log"
    quickest = {what: in_a_file[what][0] for what in ("vocabulary", "compile")}
    program, environment = program_of(quickest)
    with log.open("wb") as file:
        ended = subprocess.run(program, stdout=file, stderr=file, cwd=ROOT, env=environment, check=False)
    assert ended.returncode == 0, log.read_text()
    for what, text in by_command(log.read_text()).items():
        assert text and not re.search(r"[\r\x1b]", text), (what, text)
