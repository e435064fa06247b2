"""`limba branch`: a branch sees what the run would have seen, resumes bit by bit, and leaves the run as it is."""

import json
from pathlib import Path

import numpy as np
import pytest

import limba
import limba.run
from limba.cli import main
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.training.metrics.logging import read_metrics

FIELDS = ("vocab_size=384", "emb_dim=32", "num_heads=2", "head_dim=8", "mlp_dim=32")
SMALL = (
    *(f"config.ModelConfig.{field}" for field in (*FIELDS, "num_encoder_layers=1", "num_decoder_layers=1")),
    "VOCABULARY=byte",
    "TASK_FEATURE_LENGTHS={'inputs': 32}",
    "BATCH_SIZE=8",
    "WARMUP_STEPS=2",
    "CHECKPOINT_PERIOD=2",
    "CHECKPOINTS_KEPT=None",
    "EVAL_PERIOD=100",
    "LOG_PERIOD=1",
    "config.DataConfig.num_data_shards=2",
    "config.OptimizerConfig.name=adamw",
)
STABLE = ("config.ScheduleConfig.name=warmup_stable_decay", "LEARNING_RATE=0.01")
CHANGING = {"seconds_per_step", "tokens_per_second", "time", "mfu", "eta_seconds", "data_wait"}


def limba_(*words: object) -> None:
    assert main.main([str(word) for word in words]) == 0


def arrays(run: Path, step: int) -> dict[str, np.ndarray]:
    stored = LimbaCheckpoint(run / "checkpoints" / str(step)).tree
    return {name: stored[name] for name in stored}


def figures(run: Path) -> dict[int, tuple[float, ...]]:
    names = ("loss", "gradient_norm", "learning_rate")
    lines = [record for record in read_metrics(str(run)) if record["kind"] == "train"]
    return {line["step"]: tuple(line[name] for name in names if name in line) for line in lines}


def files(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def assert_same(one: Path, other: Path, step: int) -> None:
    first = arrays(one, step)
    second = arrays(other, step)
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)
    data = [json.loads((run / "checkpoints" / str(step) / "data" / "metadata").read_text()) for run in (one, other)]
    for data_item in data:  # tests/data/test_streams.py compares what is read from them
        data_item.pop("positions")
    assert data[0] == data[1]


@pytest.mark.night
@pytest.mark.parametrize(
    "schedule",
    [pytest.param((), id="factors", marks=pytest.mark.night), pytest.param(STABLE, id="warmup-stable-decay")],
)
def test_a_branch_equals_the_run_and_resumes_itself(
    schedule: tuple[str, ...], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train = ["train", "gin/demo.gin", f"--gin.CORPUS={corpus}", f"--gin.MODEL_DIR={run}"]
    train += [f"--gin.{choice}" for choice in (*SMALL, *schedule)]
    limba_(*train, "--gin.TRAIN_STEPS=8")
    before = files(run)

    # Without another rate, a branch is the run.
    limba_("branch", run, "--decay=4", "--step=4", "--shape=constant")
    control = tmp_path / "run-decay-4-4-constant"
    assert figures(control) == {step: record for step, record in figures(run).items() if step > 4}
    assert_same(run, control, 8)

    # With one, its rate falls, and it resumes bit by bit.
    limba_("branch", run, "--decay=4", "--step=4", f"--output={tmp_path / 'whole'}", "--gin.EVAL_PERIOD=3")
    assert '"every_steps": 3' in (tmp_path / "whole" / "config.json").read_text()
    global_batch = limba.run.placement.global_batch
    batches = iter(range(3))  # the fourth is never placed

    def ends(*arguments: object, **named: object) -> object:
        if next(batches, None) is None:
            raise LookupError("ended by the test")
        return global_batch(*arguments, **named)  # type: ignore[arg-type]

    command = ["branch", run, "--decay=4", "--gin.CHECKPOINT_PERIOD=1"]
    with monkeypatch.context() as patched:
        patched.setattr(limba.run.placement, "global_batch", ends)
        with pytest.raises(LookupError, match="ended by the test"):
            main.main([*map(str, command), "--step=4"])
    killed = tmp_path / "run-decay-4-4-1-sqrt"
    assert files(run) == before
    limba_(*train, "--gin.TRAIN_STEPS=10")  # the run goes on, to a newer step
    limba_(*command)
    assert [child.name for child in tmp_path.glob("run-decay-*-1-sqrt")] == [killed.name]
    whole = figures(tmp_path / "whole")
    resumed = figures(killed)
    assert whole == resumed and set(whole) == {5, 6, 7, 8}
    assert_same(tmp_path / "whole", killed, 8)
    rates = [values[-1] for values in whole.values()]
    np.testing.assert_allclose(rates, rates[0] * (1 - np.sqrt(np.arange(4) / 4)), rtol=1e-5)
    assert whole[5] == figures(run)[5] and whole[6] != figures(run)[6]
    # It has ended, so the next one begins at the newest step; the rate of a stable run is 0 there.
    status = main.main([*map(str, command)])
    assert status == (2 if schedule else 0)
    assert (tmp_path / "run-decay-10-4-1-sqrt" / "checkpoints" / "14").exists() == (not schedule)
    if not schedule:
        # An average is read by whatever reads a run, and can be started from.
        merged = tmp_path / "merged"
        limba_("merge", run, "--steps=6,8,10", "--weights=wsm", f"--output={merged}")
        trained = limba.load(merged)
        assert trained.step == 10 and len(trained.generate(["A <extra_id_0> is here."], max_tokens=4)) == 1
        start = [f"--gin.MODEL_DIR={tmp_path / 'started'}", f"--gin.INITIAL_CHECKPOINT_PATH={merged}"]
        limba_(*train, *start, "--gin.TRAIN_STEPS=11")
        assert set(figures(tmp_path / "started")) == {11}
