"""Every start checks itself: it says what is wrong in a line, and nothing where nothing is; and the script."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import limba.run
from benchmarks.preflight import start_figures
from limba.cli import main
from limba.tools.preflight.checks import data

ROOT = Path(__file__).parents[2]
RUNNABLE = ("-cache", ".pkl", ".pickle", ".so", ".py", ".pyc")  # jax's entries end with -cache
LINEAR = ("--gin.config.ScheduleConfig.name=linear", "--gin.WARMUP_STEPS=100")


def argv(tmp_path: Path, corpus: Path, *more: str) -> list[str]:
    sizes = {"emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64}
    return [
        "train", "gin/demo.gin", f"--gin.CORPUS={corpus}", "--gin.VOCABULARY=byte", "--gin.VOCAB_SIZE=384",
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 64}", "--gin.BATCH_SIZE=8", "--gin.TRAIN_STEPS=20",
        f"--gin.MODEL_DIR={tmp_path / 'run'}", *(f"--gin.config.ModelConfig.{n}={v}" for n, v in sizes.items()), *more,
    ]  # fmt: skip


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The configurations that came to the training, which here ends at once."""
    came: list[object] = []
    ended = {"interrupted": False, "failed_exports": [], "step": 0}
    monkeypatch.setattr(limba.run, "train", lambda config, _: came.append(config) or ended)
    return came


def test_a_start_says_only_what_is_wrong(
    trained: list[object], tmp_path: Path, corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.main(argv(tmp_path, corpus)) == 0
    out, err = capfd.readouterr()
    assert out.startswith("The run had no step to take.\n") and err == "" and len(trained) == 1
    assert main.main(argv(tmp_path, corpus, *LINEAR)) == 0
    out, err = capfd.readouterr()
    assert out.startswith("The run had no step to take.\n") and (err.count("\n"), len(trained)) == (1, 2)
    assert err.startswith("Preflight: WARMUP_STEPS is 100 of 20 steps: ") and err.endswith("WARMUP_STEPS = 1\n")


@pytest.mark.night
def test_a_real_start_prints_nothing_of_it(tmp_path: Path, corpus: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.main(argv(tmp_path, corpus, "--gin.TRAIN_STEPS=2")) == 0
    assert "Preflight" not in "".join(capfd.readouterr())
    assert main.main(argv(tmp_path, corpus, "--gin.TRAIN_STEPS=4", "--gin.DROPOUT_RATE=0.2")) == 0
    said = "".join(capfd.readouterr())
    assert said.count("Preflight: ") == 1 and "This resumed run is changed: DROPOUT_RATE is 0.2 (it was 0.1)." in said
    # Nothing that a start would run is kept in a run's directory.
    kept = [path for path in (tmp_path / "run").rglob("*") if path.name.endswith(RUNNABLE)]
    assert not kept and (tmp_path / "run") not in Path(jax.config.jax_compilation_cache_dir).parents


@pytest.mark.night
def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    cold, warm = start_figures(tmp_path)
    assert 0 < cold["programs"] == warm["programs"]
    for figures in (cold, warm):
        assert 0 < figures["seconds_to_step_1"] < figures["seconds_to_step_2"]
        used = [figures[name] for name in ("cpu_seconds_to_step_1", "cpu_seconds_to_step_2", "cpu_seconds")]
        assert used[0] > 0 and used == sorted(used)


def test_the_example_of_help_runs(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main.main(["preflight", "--help"])
    text = " ".join(capsys.readouterr().out.replace("\\\n", " ").split())
    example = "gin/" + text.partition(" limba preflight gin/")[2].partition(" Ends with ")[0]
    assert "--topology v4-8" in text and "--no_compile" in text
    texts = (json.loads(line)["text"] for line in corpus.read_text().splitlines())
    (tmp_path / "data").mkdir()
    documents = list[str]()
    seen = set[tuple[str, ...]]()
    for text in sorted(texts, key=len, reverse=True):  # the demo's long pages hold some of its short ones
        words = text.split()
        runs = {tuple(words[first : first + 13]) for first in range(len(words) - 12)}
        if len(runs & seen) < 0.1 * len(runs):
            documents.append(json.dumps({"text": text}))
        seen |= runs
    for part in range(8):
        (tmp_path / "data" / f"{part}.jsonl").write_text("\n".join(documents[part::8]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "SECONDS", 0.1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of a machine that has one
    assert main.main(["preflight", *shlex.split(example)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Verdict: go.\n  fits     yes, ") and " on this machine's CPU\n" in shown
    assert "not known" not in shown and "no rent for this machine's CPU; --topology=v4-8" in shown
    assert shown.endswith(" other lines are fine; --all prints them.\n") and len(shown.splitlines()) < 10


def test_the_script_passes_its_arguments_on(tmp_path: Path) -> None:
    """With a Python that shows its arguments."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "import sys; print(sys.argv[1:])" "$@"\n')
    python.chmod(0o755)

    def started(*arguments: str) -> subprocess.CompletedProcess:
        variables = {**os.environ, "VENV": str(tmp_path), "SETUP": "no", "VOCABULARY": "ro.model"}
        command = ["bash", str(ROOT / "launch" / "preflight.sh"), *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)

    done = started("gin/ro_t5x_base.gin", "v4-8", "MODEL_DIR=gs://a/b", "--no_compile")
    flags = ["--gin.VOCABULARY=ro.model", "--topology=v4-8", "--gin.MODEL_DIR=gs://a/b", "--no_compile"]
    assert done.stdout == f"{['-m', 'limba', 'preflight', 'gin/ro_t5x_base.gin', *flags]}\n"
    assert started().returncode == 1 and "no gin file is given" in started().stderr
    assert "bash launch/preflight.sh GIN_FILE [TOPOLOGY]" in started("--help").stdout
    assert "the argument what is not known" in started("a.gin", "what").stderr
