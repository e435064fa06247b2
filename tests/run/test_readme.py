"""README.md runs as pasted, block by block, and each number that it shows is one that was measured.

Tolerances: what README.md shows is exactly what `python -m benchmarks.readme` recorded. The same commands at night, on
another machine, may differ from it by LOSSES of a loss or of bits per byte, by POINTS of a percentage, and by SHARE of
what `limba new` proposes.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from benchmarks import readme
from limba.cli.gin import read_run
from limba.config import InputError
from tasks.demo import prose_corpus
from tests.cli.test_main import wheel  # noqa: F401  a fixture

ROOT = Path(__file__).parents[2]
LOSSES = 0.06  # of the loss: on other processors sums differ in their last bits, and 800 steps carry that on
POINTS = 10.0  # three seeds differ by as much
SHARE = 0.05
SHOWN = ("A tiny T5 learns", "  limba new my")  # the first and the last row of the demo
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block of README.md."""

    language: str  # bash, python, text, or "" for gin
    text: str


def blocks(*languages: str) -> list[Block]:
    all_blocks = [Block(*match) for match in FENCED.findall(readme.README.read_text())]
    return [block for block in all_blocks if not languages or block.language in languages]


def checkout(folder: Path) -> Path:
    """Returns a copy of what is in the repository, whose setup does nothing and whose .venv is this Python's.

    tests/launch/test_setup.py makes a real one. `limba train` of a new language ends after a few steps.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().splitlines():
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "launch" / "setup.sh").write_text("exit 0\n")
    programs(folder / ".venv" / "bin", folder)
    return folder


def programs(folder: Path, source: Path) -> None:
    """Writes python, limba and activate into a folder, as an environment has them; they import Limba from `source`."""
    folder.mkdir(parents=True)
    few = "--gin.TRAIN_STEPS=20 --gin.EVAL_PERIOD=10 --gin.EVAL_STEPS=1 --gin.CHECKPOINT_PERIOD=10"
    short = f'case "$*" in *"limba train gin/mine_"*) set -- "$@" {few} ;; esac'
    python = f'#!/bin/bash\nexport PYTHONPATH={source}\n{short}\nexec {sys.executable} "$@"\n'
    command = f'#!/bin/bash\nexec {folder}/python -m limba "$@"\n'
    for name, text in (("python", python), ("limba", command)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "activate").write_text(f'export PATH="{folder}:$PATH"\n')


def paste(several: Sequence[Block], folder: Path, path: str = "") -> str:
    """Pastes blocks into one shell, in order; returns what they print. Fails at the first command that does."""
    lines = ["set -eo pipefail"]
    for number, block in enumerate(several, 1):
        lines.append(f"echo '== block {number}'")
        if block.language == "python":
            (folder / f"block_{number}.py").write_text(block.text)
            lines.append(f"python block_{number}.py")
        else:
            lines.append(block.text)
    kept = {name: value for name, value in os.environ.items() if name not in ("MODEL_DIR", "CORPUS", "STEPS")}
    environment = {**kept, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PATH": f"{path}{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended.stdout


def test_readme_is_short() -> None:
    lines = readme.README.read_text().splitlines()
    assert len(lines) <= 100 and max(len(line) for line in lines) <= 120


def test_the_first_screen_says_what_one_gets() -> None:
    text = readme.README.read_text()
    first = blocks("bash")[0]
    commands = ["launch/demo.sh", "activate", "limba generate runs/demo"]
    assert [command in line for command, line in zip(commands, first.text.splitlines(), strict=True)] == [True] * 3
    begins = text[: text.index(first.text)]
    assert readme.PROPOSAL.search(begins) and "(LICENSE)" in begins and begins.count("![") == 1
    assert "tests/" not in first.text and text.count("![") == 1


def test_the_pictures_are_shown_and_small() -> None:
    pictures = json.loads((ROOT / "docs" / "pictures.json").read_text())["pictures"]
    for name, page in (("play", readme.README), ("report", ROOT / "docs" / "evaluation.md")):
        assert f"{name}.webp)" in page.read_text()
        path = ROOT / "docs" / f"{name}.webp"
        assert path.stat().st_size < 150_000
        with Image.open(path) as image:
            assert image.format == "WEBP" and image.size == (1280, pictures[name]["height"])
            darkest, lightest = image.convert("L").getextrema()
            assert isinstance(lightest, int) and lightest - darkest > 100  # something is drawn


def test_the_repository_s_address_is_written_once_or_nowhere() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    address = tomllib.loads(text)["project"].get("urls", {}).get("Repository")
    (first, *_) = blocks("bash")
    if address:
        assert first.text.startswith(f"git clone {address} limba && cd limba\n")
        return
    assert '# [project.urls]\n# Repository = ""\n' in text and "clone of this repository" in readme.README.read_text()
    pages = [readme.README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("start*.md")]
    assert not [page.name for page in pages if "git clone" in page.read_text() or "ADDRESS" in page.read_text()]


def test_every_block_parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [block.language for block in blocks()] == ["bash", "text", "bash", "python", ""]
    for block in blocks("bash"):
        done = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not done.stderr
        scripts = re.findall(r"bash (\S+\.sh)", block.text)
        # `limba new` writes launch/mine.sh.
        assert all((ROOT / script).is_file() or script == "launch/mine.sh" for script in scripts)
    for block in blocks("python"):
        compile(block.text, "README.md", "exec")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_base.gin").write_text(blocks("")[0].text)
    run = read_run(["my_base.gin"], ["MODEL_DIR=out"]).config
    assert (run.data.vocabulary, run.model.vocab_size, run.train_steps) == ("my.model", 32_128, 500_000)


def test_the_numbers_are_those_that_were_recorded() -> None:
    text = readme.README.read_text()
    recorded = readme.record()
    for line in readme.shown():
        assert readme.shown_of(line, recorded["printed"]) == line
    assert [float(number) for number in readme.PROPOSAL.findall(text)[0]] == recorded["proposal"]
    assert readme.SEEDS.findall(text) == [readme.range_of_seeds(recorded["hits"])]
    assert len(recorded["hits"]) >= 2 and recorded["hits"]["0"] == readme.hits(recorded["printed"])


def test_the_demo_prints_25_rows() -> None:
    """At most 80 columns, but for lines of progress, as recorded; at night as it prints them."""
    assert readme.num_rows(readme.record()["printed"]) <= readme.MOST_ROWS


def test_the_figures_beside_others_stand_with_their_commands() -> None:
    table = readme.README.read_text().partition("## Beside others\n")[2].partition("\n\n[")[0]
    figures = re.findall(r"(?<= )\d+\.\d+(?= )|(?<= )\d{3,}(?= )", table.replace("T5 1.1", ""))
    proof = (ROOT / "docs" / "development" / "proof.md").read_text() + (ROOT / "benchmarks" / "README.md").read_text()
    assert len(figures) > 2 and not [figure for figure in figures if figure not in proof]


def test_a_line_has_its_counterpart_by_its_form() -> None:
    printed = ["step 20/40 | loss 8.1 | ETA 3 s", "step 40/40 | loss 7.25 | ETA 0 s", "other"]
    assert readme.counterpart("step 600/600 | loss 1.0 | ETA 1 s", printed) == printed[1]
    assert readme.counterpart("step 600/600 | loss 1.0 …", printed) == "step 40/40 | loss 7.25 …"
    assert readme.counterpart("step 1/1 | losses 1.0 | ETA 1 s", printed) is None


def test_the_report_of_the_demo_is_that_of_the_run_that_readme_shows() -> None:
    (block,) = re.findall(
        r"```\nDONE .*?\n(steps .*?)```", (ROOT / "docs" / "development" / "report.md").read_text(), re.DOTALL
    )
    lines = {line[:20].strip(): line[20:] for line in block.splitlines()}
    shown = "\n".join(readme.shown())
    ((first, last, step),) = re.findall(r"^Loss ([\d.]+) to ([\d.]+) in (\d+) steps, ", shown, re.M)
    ((validated, bits),) = re.findall(rf"^step {step} validation: loss ([\d.]+) .* ([\d.]+) bits", shown, re.M)
    assert lines["steps"] == step and lines["training loss"] == f"{first} at step 1, {last} at the end"
    assert lines["validation loss"].endswith(f", {float(validated):.3f} at the end")
    assert lines["bits per byte"].split()[0] == bits


def test_a_proposal_has_its_numbers() -> None:
    more = "  more: T5 1.1 large, 848,423,936 parameters\n  20 to 40 hours; $80 to $160\n  Risk: …"
    said = f"  safe: T5 1.1 base, 247,381,248 parameters\n  3.4 to 9.7 hours; $13 to $39\n  Risk: little.\n{more}"
    assert readme.proposed(said) == [247, 3.4, 9.7, 13, 39]
    in_minutes = said.replace("9.7 hours", "9.7 minutes")
    with pytest.raises(InputError, match="names no parameters, hours or dollars"):
        readme.proposed(in_minutes)


@pytest.mark.night
def test_readme_runs_as_pasted_from_a_clone(tmp_path: Path) -> None:
    """All blocks in their order in one shell: the demo whole, a run of one's own shortened to 20 steps."""
    clone = checkout(tmp_path / "limba")
    printed = paste(blocks("bash", "python"), clone)
    assert "== The ___ returns a list.\n1. " in printed
    lines = printed.partition("== block 2\n")[0].splitlines()
    begins, ends = (next(number for number, line in enumerate(lines) if line.startswith(words)) for words in SHOWN)
    rows = [line.replace(f"{clone}/", "") for line in lines[begins : ends + 1] if " | ETA " not in line]
    assert readme.num_rows(rows) <= readme.MOST_ROWS, rows
    for line in readme.shown():
        other = readme.shown_of(line, lines)
        assert other is not None, (line, lines)
        for shown, actual in zip(readme.NUMBER.findall(line), readme.NUMBER.findall(other), strict=True):
            is_percentage = f"{shown}%" in line
            tolerance = POINTS if is_percentage else LOSSES * float(shown)
            assert float(actual) == pytest.approx(float(shown), abs=tolerance), (line, other)
    assert readme.hits(lines) > readme.floor(lines) + 8
    assert len(list(clone.glob("runs/mine_*/huggingface/step_20/model.safetensors"))) == 1
    assert (clone / "folder" / "model.safetensors").is_file()


@pytest.mark.night
def test_readme_runs_as_pasted_after_pip_install(tmp_path: Path, wheel: Path) -> None:  # noqa: F811
    """What the text names for an installed Limba, in an empty folder with a text: all blocks but the demo's."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    programs(tmp_path / "bin", tmp_path / "site")
    folder = tmp_path / "empty"
    (folder / "data").mkdir(parents=True)
    prose_corpus(folder / "data" / "a.jsonl")
    install, python = blocks("bash", "python")[1:]
    copied, _, rest = install.text.partition("\n")
    assert copied.startswith("mkdir -p data && cp runs/demo/")  # in its place: a text of one's own
    printed = paste([Block("bash", rest), python], folder, f"{tmp_path}/bin:")
    assert "== block 2" in printed and (folder / "folder" / "model.safetensors").is_file()
    assert len(list(folder.glob("runs/mine_*/huggingface/step_20/model.safetensors"))) == 1


@pytest.mark.night
def test_the_hours_and_dollars_are_those_of_limba_new(tmp_path: Path) -> None:
    assert readme.proposal(tmp_path) == pytest.approx(readme.record()["proposal"], rel=SHARE)


@pytest.mark.slow
def test_the_gin_file_leads_to_a_converted_model(corpus: Path, tmp_path: Path) -> None:
    (block,) = blocks("")
    (tmp_path / "my_base.gin").write_text(block.text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(corpus.read_bytes())
    small = ["TRAIN_STEPS=4", "BATCH_SIZE=8", "VOCAB_SIZE=1024", "DTYPE='float32'", "SCAN_LAYERS=True"]
    model = ["num_encoder_layers=1", "num_decoder_layers=1", "emb_dim=32", "num_heads=2", "head_dim=16", "mlp_dim=64"]
    (vocabulary,) = re.findall(r"# limba (vocabulary .*)", block.text)
    commands = [vocabulary.replace("'", "").replace("32000", "800").split()]
    commands.append(["train", "my_base.gin", "--gin.MODEL_DIR=run", *(f"--gin.{choice}" for choice in small)])
    commands[1] += [f"--gin.config.ModelConfig.{choice}" for choice in model]
    commands.append(["convert", "run", "out"])
    for command in commands:
        ended = subprocess.run(
            [sys.executable, "-m", "limba", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, (command, ended.stdout[-2000:], ended.stderr[-2000:])
    (folder,) = (tmp_path / "out").glob("step_*")
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 1024
