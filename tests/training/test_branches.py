"""The rate of a branch, which branch a command means, and what cannot be branched from; no run is trained."""

import argparse
import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from limba.cli import branch as branch_module
from limba.cli import main
from limba.config import (
    ConfigError,
    DataConfig,
    InputError,
    RunConfig,
    ScheduleConfig,
    StorageError,
    optimizer_config,
    saved_config,
)
from limba.config.schedule import BRANCH_SHAPES
from limba.formats import hub_models, limba_checkpoint
from limba.storage import manifest
from limba.training.checkpoints import branches, step_directory
from limba.training.checkpoints.branches import Branch
from limba.training.checkpoints.directory import Checkpoints
from limba.training.schedule import make_schedule
from tests import tiny
from tests.training.checkpoints import states

SCHEDULES = [
    ScheduleConfig("factors", warmup_steps=20),
    ScheduleConfig("warmup_stable_decay", 0.01, warmup_steps=10, decay_steps=30),
    ScheduleConfig("linear", 0.1, warmup_steps=5),
    ScheduleConfig("cosine", 0.1, warmup_steps=5, decay_steps=120),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("shape", ["linear", "1-sqrt", "cosine", "constant"])
def test_the_rate_is_the_runs_up_to_the_branch_and_falls_to_zero(schedule: ScheduleConfig, shape: str) -> None:
    start = 50
    length = 25
    planned = 100
    branch = dataclasses.replace(
        schedule, branch_step=start, branch_steps=length, branch_shape=shape, planned_steps=planned
    )
    steps = np.arange(90)
    before = np.asarray(jax.vmap(make_schedule(schedule, planned))(steps))
    rates = np.asarray(jax.jit(jax.vmap(make_schedule(branch, start + length)))(steps))  # as a branch's run makes it
    if shape == "constant":
        np.testing.assert_allclose(rates, before, rtol=1e-6)
        return
    np.testing.assert_allclose(rates[: start + 1], before[: start + 1], rtol=1e-6)
    part = np.arange(length + 1) / length
    left = {"linear": 1 - part, "1-sqrt": 1 - np.sqrt(part), "cosine": (1 + np.cos(np.pi * part)) / 2}[shape]
    np.testing.assert_allclose(rates[start : start + length + 1], before[start] * left, rtol=1e-5, atol=1e-8)
    assert (rates[start + length :] == 0).all() and rates.dtype == np.float32


def test_the_fields_are_checked() -> None:
    assert set(BRANCH_SHAPES) == {"linear", "1-sqrt", "cosine", "constant"}
    for fields, sentence in (
        ({"branch_step": 5}, "branch_steps is None, and ScheduleConfig.branch_step is 5; give both or none"),
        ({"branch_step": 5, "branch_steps": 0}, "branch_steps is 0"),
        ({"branch_step": -1, "branch_steps": 4}, "branch_step is -1; give 0 or more"),
        ({"branch_shape": "sqrt"}, "branch_shape is 'sqrt'"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            ScheduleConfig(**fields)  # type: ignore[arg-type]


def config_of(directory: Path, schedule: ScheduleConfig | None = None, **data: object) -> RunConfig:
    task = DataConfig("t", {"inputs": 8}, batch_size=4, **data)  # type: ignore[arg-type]
    optimizer = optimizer_config(schedule=schedule or SCHEDULES[1])
    return RunConfig(tiny.MODEL, task, str(directory), train_steps=100, optimizer=optimizer)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with checkpoints at the steps 20 and 40."""
    states.save(tmp_path / "run", 20, 40)
    (tmp_path / "run" / saved_config.FILE).write_text(saved_config.to_text(config_of(tmp_path / "run")))
    (tmp_path / "run" / "skipped_batches.jsonl").write_text("")
    return tmp_path / "run"


def begin(branch: Branch, out: str) -> None:
    config = config_of(Path(out))
    with branches.begun(branch, config, {"config.gin": "# text\n"}):
        pass


def test_a_branch_begins_with_a_whole_copy(run: Path) -> None:
    branch = branches.chosen(str(run), [20, 40], 8, "linear", 20, None)
    out = Path(branch.name())
    assert out == run.parent / "run-decay-20-8-linear" and branch.end == 28
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    begin(branch, str(out))
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert json.loads((out / "checkpoints" / "20" / manifest.FILE).read_text())["step"] == 20
    assert manifest.check(str(out / "checkpoints" / "20")) == [] and (out / "skipped_batches.jsonl").exists()
    with Checkpoints(str(out), states.CONFIG, states.DATA) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 20)
    assert branches.found_at(str(out)) == branch
    assert [child.name for child in (out / "checkpoints").iterdir()] == ["20"]


def test_the_same_command_means_the_branch_that_has_not_ended(run: Path) -> None:
    first = branches.chosen(str(run), [20, 40], 8, "linear", None, None)
    assert first.step == 40
    begin(first, first.name())
    choose = lambda there, shape="linear", steps=8: branches.chosen(str(run), there, steps, shape, None, None)
    assert choose([60, 80]) == first  # resumed, though the run has gone on and removed that step
    assert choose([60, 80], "1-sqrt").step == choose([60, 80], steps=9).step == 80
    states.save(Path(first.name()), 48)
    assert choose([60, 80]).step == 80  # it has ended
    again = branches.chosen(str(run), [60, 80], 8, "linear", 40, None)
    assert again == first


def test_a_branch_is_found_beside_a_run_whose_name_could_be_a_pattern(run: Path, tmp_path: Path) -> None:
    named = Path(shutil.copytree(run, tmp_path / "a [1]" / "run[2]"))
    first = branches.chosen(str(named), [20, 40], 8, "linear", None, None)
    begin(first, first.name())
    assert branches.chosen(str(named), [60, 80], 8, "linear", None, None) == first


def test_a_branch_whose_run_is_gone_is_resumed_without_the_hub(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is named as a hub id could be."""
    begun = branches.chosen(str(run), [20, 40], 8, "1-sqrt", 20, None)
    begin(begun, begun.name())
    shutil.rmtree(run)
    monkeypatch.chdir(run.parents[1])
    monkeypatch.setattr(hub_models, "download", lambda path, weights: pytest.fail(f"the hub is asked for {path}"))
    name = f"{run.parent.name}/{run.name}"
    args = argparse.Namespace(model=name, step=None, decay=8, shape="1-sqrt", output=None)
    assert hub_models.is_id(name) and branch_module._chosen(args) == begun


def test_what_cannot_be_branched_from_is_said_in_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no checkpoint at step 30 in .*run: it holds 20, 40 \(CheckpointConfig.keep"):
        branches.chosen(str(run), [20, 40], 8, "linear", 30, None)
    with pytest.raises(InputError, match="holds no checkpoint to branch from"):
        branches.chosen(str(run), [], 8, "linear", None, None)
    with pytest.raises(InputError, match="is not empty, and it is not a branch; name a new directory"):
        branches.chosen(str(run), [20], 8, "linear", None, str(run))
    out = str(tmp_path / "out")
    begin(Branch(str(run), 20, 8, "linear"), out)
    with pytest.raises(InputError, match="is another branch: of .*/run from step 20, linear over 8 steps"):
        branches.chosen(str(run), [20, 40], 9, "linear", None, out)
    assert branches.chosen(str(run), [40], 8, "linear", None, out).step == 20
    with pytest.raises(InputError, match="has no checkpoint at step 30 any more"):
        begin(Branch(str(run), 30, 8, "linear"), str(tmp_path / "late"))
    file = next((run / "checkpoints" / "40" / "state").rglob("d/*"))
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(InputError, match="checkpoints/40 is damaged"):
        begin(Branch(str(run), 40, 8, "linear"), str(tmp_path / "damaged"))


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("_commit", OSError(28, "No space left")),
        ("_commit", ValueError("UNAVAILABLE: Error writing gs://bucket/run HTTP 503")),  # tensorstore's
        ("copy_step", TimeoutError("a request has not ended after 60 s")),  # the lease's
        ("steps_in", OSError(116, "Stale file handle")),
    ],
)
def test_an_interrupted_beginning_is_repeated(
    place: str, error: Exception, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    branch = Branch(str(run), 40, 8, "linear")
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(limba_checkpoint if place == "steps_in" else step_directory, place, fail)
        with pytest.raises(StorageError, match="checkpoints/40 cannot be copied to"):
            begin(branch, str(out))
    assert branches.chosen(str(run), [20, 40], 8, "linear", None, str(out)) == branch
    begin(branch, str(out))
    with Checkpoints(str(out), states.CONFIG, states.DATA) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 40)


def test_the_schedule_before_is_that_of_the_whole_run(tmp_path: Path) -> None:
    original = config_of(tmp_path / "run")  # its own decay begins at step 70 of 100
    for step, share in ((60, 1.0), (85, 0.5)):
        schedule = branches.schedule_of(original, Branch("run", step, 50, "linear"))
        rate = make_schedule(schedule, step + 50)
        assert np.asarray(rate(step)) == pytest.approx(share * 0.01)
        assert np.asarray(rate(step + 25)) == pytest.approx(share * 0.005)
    with pytest.raises(InputError, match="rate of run has already reached its end at step 100; branch from an earlier"):
        branches.schedule_of(original, Branch("run", 100, 50, "linear"))
    branched = dataclasses.replace(original.optimizer, schedule=schedule)
    branched = dataclasses.replace(original, optimizer=branched)
    with pytest.raises(InputError, match="run is a branch itself, whose rate falls since step 85"):
        branches.schedule_of(branched, Branch("run", 90, 50, "linear"))
    again = branches.schedule_of(branched, Branch("run", 85, 10, "1-sqrt"))
    assert again.planned_steps == 100 and (again.branch_step, again.branch_steps) == (85, 10)


def test_a_flag_that_changes_the_rate_before_the_branch_is_refused(tmp_path: Path) -> None:
    """Of the gin names alone config.ScheduleConfig.… was refused, and LEARNING_RATE let the rate jump."""
    of_branch = branches.schedule_of(config_of(tmp_path / "run"), Branch("run", 60, 50, "linear"))
    branch_module._check_schedule(of_branch, of_branch)
    chosen = dataclasses.replace(of_branch, base_learning_rate=5.0)
    sentence = r"^ScheduleConfig.base_learning_rate is 5.0 by a --gin flag, and 0.01 in the run, .* leave that flag out"
    with pytest.raises(InputError, match=sentence):
        branch_module._check_schedule(chosen, of_branch)


def test_a_branch_does_not_end_after_its_data(tmp_path: Path) -> None:
    original = config_of(tmp_path / "run", num_epochs=2)
    (tmp_path / "run").mkdir()
    deal = {"counts": {}, "rows": 120, "is_exact": True, "reason": "", "marks_corpora": False}
    (tmp_path / "run" / "rows.json").write_text(json.dumps({"corpora": "", "deal": deal}))
    branch = Branch(str(tmp_path / "run"), 40, 20, "linear")
    branches.check_data(original, branch)  # 2 epochs x 120 rows / 4 are 60 steps
    longer = dataclasses.replace(branch, decay_steps=21)
    with pytest.raises(ConfigError, match="is 2, which ends after step 60, and the branch would end after step 61: 20"):
        branches.check_data(original, longer)
    more = dataclasses.replace(original, data=dataclasses.replace(original.data, num_epochs=3))
    branches.check_data(more, longer)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "No --decay is given, the number of steps; write limba branch {run} --decay=STEPS."),
        (["--decay=0"], "0 is not a whole number above 0"),
        (["--decay=8", "--step=30"], "There is no checkpoint at step 30 in {run}: it holds 20, 40 (CHECKPOINTS_KEPT"),
        (["--decay=8", "--gin.TRAIN_STEPS=9"], "--gin.TRAIN_STEPS is what --decay of a branch says; leave it out."),
        (["--decay=8", "--gin.config.ScheduleConfig.name=linear"], "is what --decay, --step and --shape of a branch"),
        (["--decay=8", "--gin.BATCH_SIZE=9"], "--gin.BATCH_SIZE changes a run's config.gin, and {run} has none"),
        (["--decay=8", "--output={run}"], "{run} is not empty, and it is not a branch; name a new directory."),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(
    flags: list[str],
    sentence: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main.main(["branch", str(run), *(flag.format(run=run) for flag in flags)])
    errors = capsys.readouterr().err
    assert status == 2 and sentence.format(run=run) in errors and len(errors.splitlines()) == 1, errors
    assert [child.name for child in run.parent.iterdir()] == ["run"]
