"""README.md shows what its commands do: the demo's lines, and a language of one's own in five steps."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import limba
from benchmarks import readme

ROOT = Path(__file__).parents[2]


def test_readme_is_short() -> None:
    lines = readme.README.read_text().splitlines()
    assert len(lines) <= 90 and readme.PICTURE.is_file()
    assert max(len(line) for line in lines) <= 120


def test_the_pictures_are_shown_and_small() -> None:
    text = readme.README.read_text()
    for name in ("report", "play", "front"):
        assert f"](docs/{name}.webp)" in text
        path = ROOT / "docs" / f"{name}.webp"
        assert path.stat().st_size < 150_000
        with Image.open(path) as image:
            assert image.format == "WEBP" and image.size == (1280, 960)
            darkest, lightest = image.convert("L").getextrema()
            assert isinstance(lightest, int) and lightest - darkest > 100  # something is drawn


def test_a_line_has_its_counterpart_by_its_form() -> None:
    printed = ["step 20/40 | loss 8.1 | ETA 3 s", "step 40/40 | loss 7.25 | ETA 0 s", "other"]
    assert readme.counterpart("step 600/600 | loss 1.0 | ETA 1 s", printed) == printed[1]
    assert readme.counterpart("step 600/600 | loss 1.0 …", printed) == "step 40/40 | loss 7.25 …"
    assert readme.counterpart("step 1/1 | losses 1.0 | ETA 1 s", printed) is None


def test_the_python_that_trains_reads_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", readme.README.read_text(), re.DOTALL)
    trained = []

    def train(config: limba.RunConfig) -> dict[str, dict[str, float]]:
        trained.append(config)
        return {"validation": {"bits_per_byte": 2.5}}

    monkeypatch.setattr(limba, "train", train)  # tests/run/test_train.py runs the same of docs/recipes.md
    exec(compile("import limba\nconfig = " + block.partition("config = ")[2], "README.md", "exec"), {})
    (config,) = trained
    assert Path(config.model_dir) == Path("runs/mine").absolute()
    assert (config.data.data_files, config.data.vocabulary) == ("corpus.jsonl", "byte")
    assert config.model.vocab_size == 384 and capsys.readouterr().out == "2.5\n"


def test_the_report_of_the_demo_is_that_of_the_run_that_readme_shows() -> None:
    (block,) = re.findall(r"```\nDONE .*?\n(steps .*?)```", (ROOT / "docs" / "report.md").read_text(), re.DOTALL)
    lines = {line[:20].strip(): line[20:] for line in block.splitlines()}
    shown = "\n".join(readme.shown())
    ((first, last, step),) = re.findall(r"^Loss ([\d.]+) to ([\d.]+) in (\d+) steps, ", shown, re.M)
    ((validated, bits),) = re.findall(rf"^step {step} validation: loss ([\d.]+) .* ([\d.]+) bits", shown, re.M)
    assert lines["steps"] == step and lines["training loss"] == f"{first} at step 1, {last} at the end"
    assert lines["validation loss"].endswith(f", {float(validated):.3f} at the end")
    assert lines["bits per byte"].split()[0] == bits


@pytest.mark.night
def test_the_output_in_the_readme_is_the_demos(tmp_path: Path) -> None:
    """Each step of launch/demo.sh, shortened, from the text that Python brings to a model that writes."""
    few = ("--gin.EVAL_PERIOD=8", "--gin.EVAL_STEPS=1", "--gin.CHECKPOINT_PERIOD=8")
    printed = readme.demo(tmp_path, *few, STEPS="8")
    shown = [line for line in readme.shown() if line != readme.CUT]
    assert len(shown) >= 6
    for line in shown:
        assert any(readme.kind(line) == readme.kind(other) for other in printed), line
    assert len(printed) <= 40 and max(map(len, printed)) <= 200, printed
    run = tmp_path / "runs" / "demo"
    assert (run / "huggingface" / "step_8" / "model.safetensors").is_file()
    assert "(passed, limit 1e-04)" in (run / "logs" / "convert.log").read_text()
    assert "| |grad| " in (run / "logs" / "train.log").read_text()


@pytest.mark.slow
def test_five_steps_lead_to_a_converted_model(corpus: Path, tmp_path: Path) -> None:
    text = readme.README.read_text()
    (block,) = re.findall(r"   ```\n(   from __gin__.*?)   ```", text, re.DOTALL)
    (tmp_path / "my_base.gin").write_text("\n".join(line[3:] for line in block.splitlines()) + "\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(corpus.read_bytes())
    small = ["TRAIN_STEPS=4", "BATCH_SIZE=8", "VOCAB_SIZE=1024", "DTYPE='float32'", "SCAN_LAYERS=True"]
    model = ["num_encoder_layers=1", "num_decoder_layers=1", "emb_dim=32", "num_heads=2", "head_dim=16", "mlp_dim=64"]
    steps = [
        re.search(r"`limba (inspect [^`]+)`", text),
        re.search(r"`limba (vocabulary [^`]+)`", text),
    ]
    commands = [match[1].replace("'", "").split() for match in steps if match]
    assert len(commands) == 2
    commands[1] = [word.replace("32000", "800") for word in commands[1]]
    commands.append(["train", "my_base.gin", "--gin.MODEL_DIR=run", *(f"--gin.{choice}" for choice in small)])
    commands[2] += [f"--gin.config.ModelConfig.{choice}" for choice in model]
    commands.append(["convert", "run", "out"])
    for command in commands:
        ended = subprocess.run(
            [sys.executable, "-m", "limba", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, (command, ended.stdout[-2000:], ended.stderr[-2000:])
    (folder,) = (tmp_path / "out").glob("step_*")
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 1024
