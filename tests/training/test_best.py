"""The best step of a run: what model_dir/best holds, and how a resumed run goes on with its record.

An outage at an evaluation ends no run; where the evaluation itself fails by one, a new start may help.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from gcsfs.retry import HttpError

from limba.cli.gin import read_run
from limba.config import CheckpointConfig, EvaluationConfig, InputError, RunConfig, StorageError
from limba.evaluation.text import TextEvaluation
from limba.storage import files
from limba.training import best as best_module
from limba.training.best import Best
from limba.training.loop import Loop
from tests import tiny
from tests.training.checkpoints import states

CHOICES = (
    "MODEL_DIR=gs://bucket/run", "MIXTURE_OR_TASK_NAME=t5_mlm", "TASK_FEATURE_LENGTHS={'inputs': 64}", "TRAIN_STEPS=9",
    "INITIAL_CHECKPOINT_PATH=None", "DROPOUT_RATE=0.0",
)  # fmt: skip
POSITIONS = {0: {"about": {}, "batch": 0}}
DOWN = HttpError({"code": 503, "message": "Service Unavailable"})  # no OSError


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


LEAST = (
    "loss",
    "mine/loss",
    "perplexity",
    "bits_per_byte",
    "bits_per_byte/cyrillic",
    "word_error_rate",
    "other_changes",
)
GREATEST = (None, "token_accuracy", "chrf++", "bleu-zh", "mine/exact_match", "letter/ă", "lossless")


def test_the_mode_follows_from_the_metric() -> None:
    assert {CheckpointConfig(best_metric=name).best_mode for name in LEAST} == {"min"}
    assert {CheckpointConfig(best_metric=name).best_mode for name in GREATEST} == {"max"}
    assert CheckpointConfig(best_metric="loss", best_mode="max").best_mode == "max"  # who says so means it
    for file in ("gin/runs/pretrain.gin", "gin/runs/finetune.gin"):
        for name, mode in (("loss", "min"), ("chrf++", "max")):
            run = read_run(["gin/models/t5_1_1/small.gin", file], [*CHOICES, f"BEST_METRIC={name}"])
            assert run.config.checkpoint.best_mode == mode


def test_a_later_step_that_nothing_records_is_not_taken_for_the_best(tmp_path: Path) -> None:
    """A run was killed between the commit of step 300 and its record, and goes on before it, evaluated more often."""
    best = Best(config_of(tmp_path, "loss", "min"))
    judged(best, 100, loss=3.0)
    states.save(tmp_path / "best", 300, config=CheckpointConfig(keep=None))
    assert kept(tmp_path) == ["100", "300"]
    again = Best(config_of(tmp_path, "loss", "min"))
    judged(again, 200, loss=2.5)
    assert kept(tmp_path) == ["200"] and record_in(tmp_path)["step"] == 200


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run's directory, which this process holds."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "lease").touch()
    (directory / "config.gin").write_text("first")
    files.hold(str(directory), str(directory / "lease"))
    yield directory
    files.hold(str(directory), None)


def test_a_directory_that_is_away_ends_no_run_and_loses_no_count(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(run, "loss", "min")
    best = Best(config)
    assert judged(best, 100, loss=3.0) == ""
    away = run.rename(run.with_name("away"))
    assert judged(best, 200, loss=3.5) == ""
    assert caplog.messages == [f"{run}/best/best.json cannot be written ({run} is gone); the run goes on."]
    best.write()
    assert len(caplog.messages) == 1  # of an outage
    assert not run.exists() and record_in(away)["last_step"] == 100
    away.rename(run)
    best.write()
    assert (record_in(run)["step"], record_in(run)["since"], record_in(run)["last_step"]) == (100, 1, 200)
    # A resumed run evaluates the step again, and does not count it twice.
    again = Best(config)
    assert judged(again, 200, loss=3.5) == "" and record_in(run)["since"] == 1
    assert "has not been better than 3 of step 100 for 2 evaluations" in judged(again, 300, loss=3.5)
    assert len(caplog.messages) == 1


def test_what_stands_beside_the_best_step_is_copied_with_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def down(path: object, data: object) -> None:
        raise DOWN

    best = Best(config_of(run, "loss", "min"))
    with monkeypatch.context() as patch:
        patch.setattr(best_module, "write_whole", down)
        assert judged(best, 100, loss=3.0) == ""
    # The record names only steps that are complete.
    assert kept(run) == ["100"] and not (run / "best" / "best.json").exists()
    assert caplog.messages == [f"{run}/best cannot be completed (Service Unavailable, 503); the run goes on."]
    assert judged(best, 200, loss=3.5) == ""
    assert (run / "best" / "config.gin").read_text() == "first" and record_in(run)["step"] == 100
    (run / "config.gin").write_text("second")
    judged(best, 300, loss=3.5)
    assert (run / "best" / "config.gin").read_text() == "first"
    judged(best, 400, loss=2.5)
    assert (run / "best" / "config.gin").read_text() == "second" and len(caplog.messages) == 1
    # Copied into a directory that is away, they would seem not to be there.
    best._is_copied = False
    away = run.rename(run.with_name("away"))
    best.write()
    assert not run.exists() and not best._is_copied
    away.rename(run)
    best.write()
    assert best._is_copied


def test_what_was_not_written_is_tried_again_at_saves_and_at_the_end() -> None:
    loop = object.__new__(Loop)
    committed = list[int]()
    written = list[str]()
    loop.checkpoints = SimpleNamespace(poll=lambda: committed, wait=lambda: None, directory="run")  # pyright: ignore
    loop.metrics = SimpleNamespace(saved=lambda *_: None)  # pyright: ignore
    loop.best = SimpleNamespace(write=lambda: written.append("best.json"))  # pyright: ignore
    loop._report_saves()  # after each step
    assert written == []
    committed.append(5)
    loop._report_saves()
    assert len(written) == 1
    committed.clear()
    loop._report_saves(wait=True)  # the end of the run
    assert len(written) == 2
    loop.best = None
    loop._report_saves(wait=True)


@pytest.mark.parametrize("name", ["", "test"], ids=["run", "command"])
def test_texts_that_cannot_be_written_end_no_run(name: str, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = object.__new__(TextEvaluation)
    texts._directory = run / "evaluations"  # pyright: ignore[reportAttributeAccessIssue]
    texts._examples = {"task": []}
    texts._name = name
    texts._warns = True
    task = SimpleNamespace(name="task", output_features={})
    away = run.rename(run.with_name("away"))
    if name:  # the texts are its output
        with pytest.raises(OSError, match="is gone"):
            texts._write(task, 5, {"chrf": 1.0}, [])  # pyright: ignore[reportArgumentType]
        return
    texts._write(task, 5, {"chrf": 1.0}, [])  # pyright: ignore[reportArgumentType]
    texts._write(task, 10, {"chrf": 1.0}, [])  # pyright: ignore[reportArgumentType]
    sentence = f"{run}/evaluations/task-5.jsonl cannot be written ({run} is gone); the run goes on."
    assert caplog.messages == [sentence]  # one of an outage
    away.rename(run)
    texts._write(task, 15, {"chrf": 1.0}, [])  # pyright: ignore[reportArgumentType]
    assert [path.name for path in (run / "evaluations").iterdir()] == ["task-15.jsonl"]
    run.rename(away)
    texts._write(task, 20, {"chrf": 1.0}, [])  # pyright: ignore[reportArgumentType]
    assert len(caplog.messages) == 2  # of another one


@pytest.mark.parametrize(
    ("error", "kind", "sentence"),
    [
        (
            DOWN,
            StorageError,
            r"raises HttpError \(Service Unavailable, 503\) in .*; start the same command again",
        ),
        (ConnectionResetError(104, "reset by peer"), StorageError, r"raises ConnectionResetError .*; start the same "),
        (StorageError("The shards cannot be read."), StorageError, "The shards cannot be read. "),
        (ZeroDivisionError("by zero"), InputError, r"The evaluation raises ZeroDivisionError .*; correct that. "),
        (InputError("The text is bad."), InputError, "The text is bad. "),
    ],
)
def test_an_evaluation_that_fails_by_an_outage_ends_with_its_status(
    error: Exception, kind: type[Exception], sentence: str
) -> None:
    done = list[str]()

    class OfRun(Loop):
        def __init__(self) -> None:
            pass

        def _evaluated(self, step: int, state: object) -> dict[str, float]:
            raise error

        def _save(self, step: int, state: object) -> None:
            done.append(f"save {step}")

        def _report_saves(self, wait: bool = False) -> None:
            done.append("wait")

    with pytest.raises(kind, match=f"{sentence}.*What was trained, up to step 4, is saved.") as caught:
        OfRun()._evaluate(4, states.state(4))
    assert type(caught.value) is kind and done == ["save 4", "wait"]
