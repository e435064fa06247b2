"""The best step of a run: what model_dir/best holds, and how a resumed run goes on with its record."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from limba.config import CheckpointConfig, EvaluationConfig, RunConfig
from limba.training.best import Best
from tests import tiny
from tests.training.checkpoints import states

POSITIONS = {0: {"about": {}, "batch": 0}}


def config_of(model_dir: Path, metric: str, mode: str) -> RunConfig:
    checkpoint = dataclasses.replace(states.CONFIG, best_metric=metric, best_mode=mode)
    patient = EvaluationConfig(patience=2)
    return RunConfig(
        tiny.model(), states.DATA, str(model_dir), train_steps=1_000, checkpoint=checkpoint, evaluation=patient
    )


def judged(best: Best, step: int, **figures: float) -> str:
    return best.judge(step, figures, states.state(step), lambda: POSITIONS)


def kept(model_dir: Path) -> list[str]:
    return sorted(path.name for path in (model_dir / "best" / "checkpoints").iterdir())


def record_in(model_dir: Path) -> dict[str, object]:
    return json.loads((model_dir / "best" / "best.json").read_text())


@pytest.mark.parametrize(
    ("metric", "mode", "figure"), [("loss", "min", 3.0), ("bits_per_byte", "max", 0.9)], ids=["metric", "mode"]
)
def test_another_metric_is_not_compared_with_the_old_one_s_value(
    metric: str, mode: str, figure: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = Best(config_of(tmp_path, "bits_per_byte", "min"))
    assert judged(before, 100, bits_per_byte=1.1) == judged(before, 200, bits_per_byte=1.2) == ""
    best = Best(config_of(tmp_path, metric, mode))
    (sentence,) = caplog.messages
    assert sentence == (
        f"{tmp_path}/best/best.json is about bits_per_byte (min), and now the best step is looked for by {metric}"
        f" ({mode}): the record begins anew, and what is in {tmp_path}/best stays until a step is saved there."
    )
    assert kept(tmp_path) == ["100"] and record_in(tmp_path)["step"] == 100
    assert judged(best, 200, **{metric: figure}) == ""  # it was judged before, and is not again
    assert kept(tmp_path) == ["100"]
    # Without a figure nothing is saved, and the old value is in no sentence.
    assert judged(best, 250) == ""
    assert judged(best, 300, other=1.0) == ""
    assert (record_in(tmp_path)["since"], record_in(tmp_path)["last_step"]) == (1, 300)
    assert f"{metric} has not been a finite number for 2 evaluations" in judged(best, 350, other=1.0)
    assert judged(best, 400, **{metric: figure}) == ""
    assert kept(tmp_path) == ["400"]
    wanted = {"metric": metric, "mode": mode, "value": figure, "step": 400, "since": 0, "last_step": 400}
    assert record_in(tmp_path) == {**wanted, "figures": {metric: figure}}
    caplog.clear()
    assert Best(config_of(tmp_path, metric, mode))._record == record_in(tmp_path) and not caplog.messages


def test_a_record_without_a_mode_is_of_this_run_s(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "best").mkdir()
    old = {"metric": "loss", "value": 2.0, "step": 5, "figures": {}, "since": 1, "last_step": 10}
    for record in (old, {"since": 1, "last_step": 10}):
        (tmp_path / "best" / "best.json").write_text(json.dumps(record))
        assert Best(config_of(tmp_path, "loss", "max"))._record == record and not caplog.messages
    (tmp_path / "best" / "best.json").write_text(json.dumps(old))
    assert Best(config_of(tmp_path, "chrf", "max"))._record == {"last_step": 10}
    assert "is about loss (max), and now the best step is looked for by chrf (max)" in caplog.text


def test_a_later_step_that_nothing_records_is_not_taken_for_the_best(tmp_path: Path) -> None:
    """A run was killed between the commit of step 300 and its record, and goes on before it, evaluated more often."""
    best = Best(config_of(tmp_path, "loss", "min"))
    judged(best, 100, loss=3.0)
    states.save(tmp_path / "best", 300, config=CheckpointConfig(keep=None))
    assert kept(tmp_path) == ["100", "300"]
    again = Best(config_of(tmp_path, "loss", "min"))
    judged(again, 200, loss=2.5)
    assert kept(tmp_path) == ["200"] and record_in(tmp_path)["step"] == 200
