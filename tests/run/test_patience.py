"""A run that its patience has ended: a new start trains nothing, and its best step is what is published."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import limba
import tasks.demo  # noqa: F401  registers the task
from limba.cli import main
from limba.config import CheckpointConfig, DataConfig, EvaluationConfig, InputError, MeshConfig, RunConfig
from limba.export.huggingface import chosen_steps
from tests import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, corpus: Path, vocabulary: Path) -> RunConfig:
    """A run that looks for the highest loss: its first evaluation is the best, and the third one ends it."""
    folder = tmp_path_factory.mktemp("patience")
    data = DataConfig(
        "demo_span_corruption", {"inputs": 32}, 8, str(vocabulary), data_files=str(corpus), task_modules=("tasks.demo",)
    )
    return RunConfig(
        model=tiny.model(vocab_size=1024, emb_dim=32, num_heads=2, mlp_dim=64, num_decoder_layers=2),
        data=data,
        model_dir=str(folder / "run"),
        train_steps=40,
        mesh=MeshConfig(data=8),
        checkpoint=CheckpointConfig(every_steps=100, best_metric="loss", best_mode="max"),
        evaluation=EvaluationConfig(every_steps=2, num_batches=1, patience=2),
        export_to=str(folder / "out"),
    )


def saved(run: RunConfig) -> list[str]:
    return sorted(path.name for path in Path(run.model_dir, "checkpoints").iterdir())


@pytest.fixture(scope="module")
def result(run: RunConfig) -> dict:
    return dict(limba.train(run))


def test_the_best_step_is_exported(run: RunConfig, result: dict) -> None:
    assert result["step"] == 6 and saved(run) == ["6"]
    assert run.export_to
    folder = Path(run.export_to[0]) / "step_2"
    assert (result["exports"], result["failed_exports"]) == ([str(folder)], [])
    texts = ["The parser reads a file and", "Returns a list of"]
    best, last, exported = (
        limba.load(path).encode(texts) for path in (run.model_dir, f"{run.model_dir}/checkpoints/6", folder)
    )
    np.testing.assert_allclose(exported, best, atol=1e-5)
    assert np.abs(best - last).max() > 1e-3


def test_a_new_start_trains_nothing(run: RunConfig, result: dict, capfd: pytest.CaptureFixture) -> None:
    best = Path(run.model_dir, "best", "best.json")
    record = best.read_bytes()
    again = limba.train(run)
    assert (again["step"], again["exports"]) == (6, result["exports"])
    assert saved(run) == ["6"] and best.read_bytes() == record
    said = capfd.readouterr().out
    assert "loss has not been better than" in said and "step 2: done before" in said
    more = dataclasses.replace(run, evaluation=dataclasses.replace(run.evaluation, patience=3), export_to=None)
    assert limba.train(more)["step"] == 8  # one evaluation more
    assert json.loads(best.read_bytes())["since"] == 3


def test_convert_takes_the_best_step_unless_another_is_named(
    run: RunConfig, result: dict, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    newest = saved(run)[-1]
    for flags, step in (((), "2"), (("--steps=best",), "2"), (("--steps=2",), "2"), (("--steps=latest",), newest)):
        out = tmp_path / "-".join(["out", *flags]).replace("=", "")
        assert main.main(["convert", run.model_dir, str(out), "--no_check", "--formats=pytorch", *flags]) == 0
        assert [folder.name for folder in out.glob("step_*")] == [f"step_{step}"]
        is_said = f"step 2: the run's best one; --steps=latest is step {newest}" in capfd.readouterr().out
        assert is_said == (not flags)


def test_the_choice_of_steps() -> None:
    assert chosen_steps("all", [10, 20], best=7) == [7, 10, 20]
    with pytest.raises(InputError, match="keeps no best step"):
        chosen_steps("best", [10, 20])
    with pytest.raises(InputError, match=r"no checkpoint at step 8; choose from \[7, 10, 20\]"):
        chosen_steps("8", [10, 20], best=7)
