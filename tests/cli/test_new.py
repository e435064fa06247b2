"""`limba new`: the proposed size and steps, the written files, which train, and bad input."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from benchmarks.breaking.start import QUICK
from limba.cli.gin.read import read_run
from limba.cli.main import main
from limba.config import InputError
from limba.model import Network
from limba.tools.corpus import sizes
from limba.tools.corpus.preparation.survey import Survey
from limba.training.metrics.flops import flops_per_sequence

ROOT = Path(__file__).parents[2]


def corpus(size: float, unspaced: float = 0.0) -> Survey:
    letters = round(size * (0.85 if unspaced < 0.5 else 0.35))
    return Survey("text", ("text",), 8, max(1, round(size / 2_000)), round(size), letters, unspaced, False)


@pytest.mark.parametrize("size", sizes.SIZES)
def test_parameters_by_formula_are_the_networks(size: str) -> None:
    config = sizes.model_of(size, 32_128)
    shapes = jax.eval_shape(Network(config).init, jax.random.key(0))
    assert sizes.num_parameters(config) == sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("name", "gigabytes", "days", "expected"),
    [
        ("v4-8", 20, 7, "base"),
        ("h100", 20, 7, "base"),
        ("8xh100", 300, 14, "xl"),
        ("v4-32", 5, 7, "small"),  # the text is the limit
        ("cpu", 1, 1, "tiny"),
        ("v4-24", 20, 7, "base"),  # 12 chips: the batch divides among them
        ("v5p-512", 3_000, 30, "xxl"),  # 64 hosts: each has a data shard
    ],
)
def test_the_largest_size_that_sees_20_tokens_a_parameter(
    name: str, gigabytes: float, days: float, expected: str
) -> None:
    found, machine = corpus(gigabytes * 1e9), sizes.hardware(name)
    plan = sizes.plan(found, machine, days)
    assert plan.size == expected
    tokens = sizes.num_tokens(found)[1]
    config = sizes.model_of(plan.size, plan.rows)
    row = 568 if plan.inputs == 512 else 141
    flops = plan.steps * plan.batch * flops_per_sequence(config, *((512, 114) if row == 568 else (128, 29)))
    assert flops <= machine.devices * machine.flops * days * 86_400 * 1.06  # the steps are rounded
    assert plan.hours <= days * 24 * 1.06 and plan.epochs <= 4.2
    assert plan.epochs == pytest.approx(plan.steps * plan.batch * row / tokens)
    assert plan.tokens >= 19 * plan.parameters
    following = [*sizes.SIZES, None][sizes.SIZES.index(plan.size) + 1]
    if following is not None:
        larger = sizes.plan(found, machine, days, following)
        assert larger.tokens < 20 * larger.parameters
    assert plan.batch % plan.microbatches == 0 and plan.batch % machine.devices == 0
    assert plan.batch // plan.microbatches % machine.devices == 0
    assert plan.batch % plan.shards == 0 and plan.shards >= min(16, machine.devices // 4, plan.batch & -plan.batch)
    assert plan.rows % 128 == 0 and plan.rows >= plan.vocabulary
    assert any("2305.16264" in reason for reason in plan.reasons) and any("2203.15556" in r for r in plan.reasons)


def test_hardware_by_its_name() -> None:
    assert [sizes.hardware(name).devices for name in ("v2-8", "v3-8", "v4-8", "v5e-8", "v5p-8", "v6e-8", "a100x4")] == [
        8, 8, 4, 8, 4, 8, 4,
    ]  # fmt: skip
    assert sizes.hardware("H200").flops == pytest.approx(0.4 * 989e12)
    assert sizes.hardware(None).name == "cpu"
    for name in ("v9-8", "gtx", "0xh100", "v4-0x"):
        with pytest.raises(InputError, match="--hardware"):
            sizes.hardware(name)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of a machine that has one


@pytest.fixture
def place(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(corpus.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_two_commands_lead_to_a_training_run(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": QUICK}
    (place / "bin").mkdir()
    (place / "bin" / "limba").write_text(f'#!/bin/sh\nexec {sys.executable} -m limba "$@"\n')
    (place / "bin" / "limba").chmod(0o755)
    environment["PATH"] = f"{place}/bin:{environment['PATH']}"

    def ran(*command: str) -> str:
        ended = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, (command, ended.stdout[-2000:], ended.stderr[-3000:])
        return ended.stdout

    told = ran("limba", "new", "nb", "--corpus=data/*.jsonl", "--days=0.01")
    assert "1 file; columns" in told and "Proposed for cpu: T5 1.1 tiny" in told and "bash launch/nb.sh" in told
    assert os.access("launch/nb.sh", os.X_OK)
    small = [f"--gin.config.ModelConfig.{name}=1" for name in ("num_encoder_layers", "num_decoder_layers", "num_heads")]
    written = ran("bash", "launch/nb.sh", "TRAIN_STEPS=4", "--gin.BATCH_SIZE=16", "--gin.EVAL_STEPS=1", *small)
    assert "There is no vocabulary at" in written and "runs/nb_tiny/vocabulary.model" in written
    assert "step 4 saved in" in written
    assert (place / "runs" / "nb_tiny" / "checkpoints" / "4" / "manifest.json").is_file()
    config = json.loads((place / "runs" / "nb_tiny" / "config.json").read_text())
    assert "nb_span_corruption" in json.dumps(config)


def test_written_files_are_a_run_and_are_not_overwritten(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["new", "sv_2", "--corpus=data/a.jsonl", "--hardware=v4-8", "--days=2", "--size=base"]) == 0
    told = capsys.readouterr()
    assert "documents" in told.out and told.err == ""
    files = {path: path.read_text() for path in (place / "tasks" / "sv_2.py", place / "gin" / "sv_2_base.gin")}
    assert all(len(line) <= 120 for text in files.values() for line in text.splitlines())
    config = read_run(["gin/sv_2_base.gin"], ["MODEL_DIR=runs/x"]).config
    assert config.model.emb_dim == 768 and config.data.new_vocabulary_size is not None
    assert config.data.mixture_or_task_name == "sv_2_span_corruption" and config.num_microbatches == 2
    assert config.model.vocab_size >= config.data.new_vocabulary_size
    assert main(["new", "sv_2", "--corpus=data/a.jsonl"]) == 2
    assert "tasks/sv_2.py and launch/sv_2.sh exist already" in capsys.readouterr().err
    assert {path: path.read_text() for path in files} == files


def test_in_the_repository_the_script_sets_up_too(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "launch", place / "launch")
    assert main(["new", "nn", "--corpus=data/a.jsonl"]) == 0
    text = (place / "launch" / "nn.sh").read_text()
    assert 'LIMBA_SCRIPT="launch/nn.sh" exec bash launch/pretrain.sh gin/nn_tiny.gin "$@"' in text
    help_text = subprocess.run(
        ["bash", "launch/nn.sh", "--help"], cwd=place, capture_output=True, text=True, check=True
    )
    assert (
        help_text.stdout.startswith("Trains gin/nn_tiny.gin on cpu") and "MODEL_DIR is runs/nn_tiny" in help_text.stdout
    )
    refused = subprocess.run(["bash", "launch/nn.sh", "ACCELERATOR=x"], cwd=place, capture_output=True, text=True)
    assert refused.returncode == 2 and "ACCELERATOR is x" in refused.stderr


def test_nothing_is_left_of_files_that_cannot_be_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "gin").mkdir()
    (place / "gin" / "da_tiny.gin").write_text("# mine\n")
    assert main(["new", "da", "--corpus=data/a.jsonl"]) == 2
    assert "gin/da_tiny.gin exists already" in capsys.readouterr().err
    assert not (place / "tasks" / "da.py").exists() and (place / "gin" / "da_tiny.gin").read_text() == "# mine\n"


def test_an_accelerator_must_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert main(["new", "nb", "--corpus=none.jsonl"]) == 2
    assert "This machine has an accelerator; name it" in capsys.readouterr().err
    assert main(["new", "nb", "--corpus=none.jsonl", "--hardware=cpu"]) == 2
    assert "none.jsonl matches no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "No name is given; write limba new nb --corpus='data/*.jsonl'."),
        (["nb"], "No corpus is named; give --corpus='data/*.jsonl', or user/name of the hub."),
        (["New-one", "--corpus=a"], "The name New-one cannot be that of a Python module"),
        (["../x", "--corpus=a"], "The name ../x cannot be that of a Python module"),
        (["class", "--corpus=a"], "The name class cannot be that of a Python module"),
        (["ro", "--corpus=a"], "Limba has a task module tasks/ro.py of its own; choose another name."),
        (["nb", "--corpus=a", "--hardware=toaster"], "--hardware=toaster is not known"),
        (["nb", "--corpus=a", "--days=0"], "--days=0 is not a time; give a number above 0."),
        (["nb", "--corpus=a", "--days=nan"], "--days=nan is not a time"),
        (["nb", "--corpus=a", "--size=huge"], "--size=huge is not known; give one of tiny"),
        (["nb", "--corpus=none/*.jsonl"], "The corpus path none/*.jsonl matches no file"),
        (["nb", "--corpus=two.jsonl"], "set --column to one of 'en', 'nb'"),
        (["nb", "--corpus=empty.jsonl"], "holds no document with text"),
        (["nb", "--corpus=two.jsonl", "--column=en"], "two.jsonl holds 1 letters, too few to train on"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    argv: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.jsonl").write_text('{"en": "a", "nb": "b"}\n')
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    assert main(["new", *argv]) == 2
    said = capsys.readouterr().err.strip()
    assert told in said and "\n" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.jsonl", "two.jsonl"]
