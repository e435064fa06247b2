"""The command itself, in processes of its own: through a compile, in text and JSON, and by its script."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from limba.cli import main
from limba.tools.preflight.checks import compiler, data, sample

ROOT = Path(__file__).parents[2]
SECTIONS = ["Config", "Data", "Vocabulary", "Objective and schedule", "Storage", "Environment"]
COMPILED = [*SECTIONS, "Estimate", "Memory and speed", "Time and cost"]
TINY = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "num_encoder_layers": 1, "num_decoder_layers": 1}


@pytest.fixture
def choices(corpus: Path, tmp_path: Path) -> dict[str, Any]:
    """The values of a small run of gin/demo.gin."""
    values = {"CORPUS": corpus, "VOCABULARY": "byte", "VOCAB_SIZE": 384, "TASK_FEATURE_LENGTHS": "{'inputs': 64}"}
    values |= {"BATCH_SIZE": 8, "TRAIN_STEPS": 20, "CHECKPOINT_PERIOD": 10, "EVAL_PERIOD": 10}
    values |= {"MODEL_DIR": tmp_path / "run"}
    return values | {f"config.ModelConfig.{name}": value for name, value in TINY.items()}


def ended(command: list[str], folder: Path, **variables: str) -> tuple[int, str]:
    """Returns the status of a process that starts in Limba's folder, and what it printed on stdout."""
    known = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        done = subprocess.run(command, cwd=ROOT, env=known | variables, stdout=out, stderr=err, check=False)
    assert (folder / "err").read_text() == "", (folder / "err").read_text()[-3000:]
    return done.returncode, (folder / "out").read_text()


@pytest.mark.night
def test_a_compile_is_in_the_json(choices: dict[str, Any], tmp_path: Path) -> None:
    flags = [f"--gin.{name}={value}" for name, value in choices.items()]
    flags += ["--topology=cpu-1", "--json"]
    command = [sys.executable, "-m", "limba", "preflight", "gin/demo.gin", *flags]
    status, printed = ended(command, tmp_path, COMPILE_CACHE="off")
    document = json.loads(printed)
    sections = {section["title"]: section for section in document["sections"]}
    assert list(sections) == COMPILED and document["topology"] == "cpu-1"
    lines = [line for section in document["sections"] for line in section["lines"]]
    levels = {line["level"] for line in lines}
    assert "error" not in levels, [line for line in lines if line["level"] == "error"]
    assert status == document["exit_status"] == 0
    assert document["verdict"] == ("works, but wasteful" if "warning" in levels else "go")

    figures = sections["Memory and speed"]["data"]
    assert figures["topology"] == "cpu-1" and figures["mesh"] == [1, 1, 1]
    assert 0 < figures["state_bytes"] < figures["live_bytes"] < figures["limit_bytes"]
    sizes = [array["bytes"] for array in figures["largest"]]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] > 0
    slow, fast = figures["estimate"]["tokens_per_second"]
    assert 0 < slow < fast and figures["estimate"]["days"][0] > 0
    texts = "\n".join(line["text"] for line in sections["Memory and speed"]["lines"])
    for said in ("The step needs ", "Estimate, not a promise: ", "Compiled for cpu-1 in "):
        assert said in texts
    assert not Path(choices["MODEL_DIR"]).exists()


@pytest.mark.night
def test_the_script_goes_through_a_compile(choices: dict[str, Any], tmp_path: Path) -> None:
    wasteful = {"config.ScheduleConfig.name": "linear", "WARMUP_STEPS": 100}
    flags = [f"{name}={value}" for name, value in (choices | wasteful).items() if not name.startswith("config.")]
    flags.append("--all")
    flags += [f"--gin.{name}={value}" for name, value in (choices | wasteful).items() if name.startswith("config.")]
    command = ["bash", "launch/preflight.sh", "gin/demo.gin", "cpu-1", *flags]
    status, text = ended(command, tmp_path, SETUP="no", VENV=sys.prefix)
    assert status == 0 and re.search(r"\nVerdict: works, but wasteful \(\d warnings?\)\.\n$", text), text
    assert re.findall(r"^\w.*$", text, re.MULTILINE)[:-1] == COMPILED
    assert "WARMUP_STEPS is 100 of 20 steps" in text and "Fix: WARMUP_STEPS = 1\n" in text
    memory = text.partition("\nMemory and speed\n")[2]
    assert re.search(r"ok +The step needs [\d.]+ MiB a device of the [\d.]+ GiB that cpu-1 has for programs", memory)
    assert re.search(r"ok +Estimate, not a promise: [\d,]+ to [\d,]+ tokens a second", memory)
    status, text = ended(["bash", "launch/preflight.sh", "gin/demo.gin", "--list_topologies"], tmp_path, SETUP="no",
                         VENV=sys.prefix)  # fmt: skip
    assert status == 0 and {"v4-8", "v6e-16", "h100-8", "cpu-1"} <= set(text.split()) and " " not in text


@pytest.mark.parametrize(
    ("vocabulary", "fixes"),
    [
        ({"VOCABULARY": "gs://bucket/ro.model"}, {"Vocabulary": "VOCABULARY", "Storage": "MODEL_DIR"}),
        (  # one that is trained in the run's directory is not looked for twice
            {"VOCABULARY": "gs://bucket/run/a.model", "config.DataConfig.new_vocabulary_size": 500},
            {"Storage": "MODEL_DIR"},
        ),
    ],
)
def test_a_bucket_that_does_not_answer_is_an_error(
    vocabulary: dict, fixes: dict, choices: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr(data, "SECONDS", 0.0)
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 20_000)
    bindings = choices | {"MODEL_DIR": "gs://bucket/run"} | vocabulary
    flags = [f"--gin.{name}={value}" for name, value in bindings.items()]
    assert main.main(["preflight", "gin/demo.gin", "--json", *flags]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [section["title"] for section in document["sections"]][:6] == SECTIONS
    errors = {
        section["title"]: line["fix"]
        for section in document["sections"]
        for line in section["lines"]
        if line["level"] == "error" and "cannot be reached: 127.0.0.1 does not answer" in line["text"]
    }
    assert errors == {where: f"{name} = …  # an address that this machine reaches" for where, name in fixes.items()}


def test_a_quoted_figure_names_its_command_and_is_that_of_its_table() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    command = compiler.MEASURED_BY.partition(" --remat")[0]
    table = text.partition(f"`{command} [choices]`")[2].split("\n\n")[1]
    rows = [[cell.strip(" `*") for cell in row.split("|")] for row in table.splitlines()]
    figures = {row[1]: (float(row[4]), float(row[5])) for row in rows if row[1].startswith("--remat")}
    scanned = figures["--remat=minimal"]
    unrolled = figures["--remat=minimal --no-scan"]
    shares = tuple(round(ours / other, 2) for ours, other in zip(unrolled, scanned, strict=True))
    assert shares == compiler.UNROLLED
    page = " ".join((ROOT / "docs" / "development" / "preflight.md").read_text().split())
    assert f"`{command} --remat=minimal`, without and with `--no-scan`" in page
