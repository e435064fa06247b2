"""The demo's run, by its recipe (Muon), goes through every command that takes a run."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import limba
from limba.formats import t5x
from limba.formats.limba_checkpoint import LimbaCheckpoint
from tests.sharding.processes import xla_flags

pytestmark = pytest.mark.night
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(), "HF_HUB_OFFLINE": "1"}
SHORT = ["--gin.TRAIN_STEPS=4", "--gin.CHECKPOINT_PERIOD=2", "--gin.EVAL_PERIOD=4", "--gin.EVAL_STEPS=1"]
TEXT = "The <extra_id_0> of the language"


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of what launch/demo.sh starts."""
    directory = tmp_path_factory.mktemp("demo") / "run"
    names = [f"--gin.MODEL_DIR={directory}", f"--gin.CORPUS={corpus}"]
    command = [sys.executable, "-m", "limba", "train", "gin/demo_gaps.gin", *names, *SHORT]
    ended = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert json.loads((directory / "config.json").read_text())["run"]["optimizer"]["name"] == "muon"
    return directory


COMMANDS = {
    "status": "status RUN",
    "verify": "status RUN --verify",
    "report": "report RUN",
    "generate": "generate RUN --input=texts.txt --output=texts.jsonl --max_tokens=4 --keep_sentinels",
    "score": "generate RUN --score --input=pairs.jsonl --output=scored.jsonl",
    "evaluate": "evaluate RUN --num_examples=2",
    "to transformers": "convert RUN out --steps=2 --no_check",
    "to t5x": "convert RUN t5x --to=t5x",
    "to limba": "convert out/step_2 again --to=limba",
    "to list": "convert RUN --to=list --npz=arrays.npz",
    "merge": "merge RUN --last=2 --output=merged",
    "branch": "branch RUN --step=2 --decay=2 --output=branched --gin.EVAL_STEPS=1",
    "the branch": "status branched --verify",
    "the merged": "generate merged --score --input=pairs.jsonl --output=merged.jsonl",
}


@pytest.fixture(scope="module")
def printed(run: Path) -> dict[str, str]:
    """What each command prints; all have ended with 0."""
    here = run.parent
    (here / "texts.txt").write_text(f"{TEXT}\nA second <extra_id_0>.\n")
    (here / "pairs.jsonl").write_text(json.dumps({"inputs": TEXT, "targets": "<extra_id_0> rules"}) + "\n")
    (here / "commands.json").write_text(json.dumps([line.replace("RUN", "run").split() for line in COMMANDS.values()]))
    command = [sys.executable, "-m", "tests.run.doors", str(here / "commands.json")]
    path = {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=ENVIRONMENT | path, cwd=here, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    statuses = json.loads((here / "statuses.json").read_text())
    wrong = [name for name, status in zip(COMMANDS, statuses, strict=True) if status]
    assert not wrong, (wrong, ended.stderr[-3000:])
    return {name: (here / f"{number}.out").read_text() for number, name in enumerate(COMMANDS)}


def test_what_looks_at_the_run(run: Path, printed: dict[str, str]) -> None:
    assert re.search(r"step +4\b", printed["status"]), printed["status"]
    assert re.search(r"\b2\b.*\n.*\b4\b", printed["verify"]), printed["verify"]
    assert (run / "report.html").stat().st_size > 100_000 and (run / "loss.png").stat().st_size > 5_000
    assert "loss" in printed["report"]


def test_what_the_model_says(run: Path, printed: dict[str, str]) -> None:
    here = run.parent
    written = [json.loads(line) for line in (here / "texts.jsonl").read_text().splitlines()]
    assert len(written) == 2 and written[0] != written[1]
    (scored,) = [json.loads(line) for line in (here / "scored.jsonl").read_text().splitlines()]
    trained = limba.load(run)
    (again,) = trained.score([(TEXT, "<extra_id_0> rules")])
    assert scored["log_likelihood"] == pytest.approx(again.log_likelihood, rel=1e-5) and scored["log_likelihood"] < -1
    (result,) = (run / "evaluations").glob("*.json")
    assert "loss" in result.read_text() and "loss" in printed["evaluate"]


def test_each_form_has_the_run_s_numbers(run: Path, printed: dict[str, str]) -> None:
    here = run.parent
    checkpoint = LimbaCheckpoint(run / "checkpoints" / "4")
    assert "out/step_2" in printed["to transformers"] and "again" in printed["to limba"]
    half = LimbaCheckpoint(run / "checkpoints" / "2")
    back = LimbaCheckpoint(here / "again" / "checkpoints" / "0")
    assert set(half) == set(back) and all(np.array_equal(half[name], back[name]) for name in half)
    for form in ("to t5x", "to list"):
        assert "without optimizer state, which is not plain Adafactor's" in printed[form]
    tree = t5x.open_checkpoint(here / "t5x" / "checkpoint_4")
    tree.check_whole()
    assert set(tree) == {"state/step", *(f"target/{name}" for name in checkpoint)} and tree.step == 4
    with np.load(here / "arrays.npz") as listed:
        assert set(listed.files) == set(tree)
        for name in checkpoint:
            for arrays in (tree, listed):
                assert np.array_equal(arrays[f"target/{name}"], checkpoint[name]), name


def test_runs_that_come_of_it(run: Path, printed: dict[str, str]) -> None:
    here = run.parent
    first = LimbaCheckpoint(run / "checkpoints" / "2")
    last = LimbaCheckpoint(run / "checkpoints" / "4")
    merged = LimbaCheckpoint(here / "merged" / "checkpoints" / "4")
    for name in ("token_embedder/embedding", "encoder/layers_0/mlp/wi_0/kernel"):
        np.testing.assert_allclose(merged[name], (first[name] + last[name]) / 2, atol=1e-6)
    assert (here / "merged.jsonl").read_text() != (here / "scored.jsonl").read_text()
    branched = LimbaCheckpoint(here / "branched" / "checkpoints" / "4")
    name = "encoder/layers_0/mlp/wi_0/kernel"
    assert not any(np.array_equal(branched[name], parameters[name]) for parameters in (first, last))
    assert re.search(r"\b4\b", printed["the branch"])


def test_play_answers(run: Path) -> None:
    playing = subprocess.Popen(
        [sys.executable, "-u", "-m", "limba", "play", str(run)], env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert playing.stdout is not None
    try:
        port = next(match[1] for line in playing.stdout if (match := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=300)
        connection.request("GET", "/api/models")
        (model,) = json.loads(connection.getresponse().read())
        asked = {"model": model["name"], "text": TEXT, "way": "greedy", "max_tokens": 4}
        connection.request("POST", "/api/texts", json.dumps(asked), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        assert model["name"] == "run, step 4" and answer["texts"][0]["filled"].startswith("The [")
        playing.send_signal(signal.SIGINT)
        assert playing.wait(300) == 0
    finally:
        playing.kill()
        playing.stdout.close()
