"""The figures of a logged line, and the trace of a few steps."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from limba.config import DataConfig, NonFiniteError, RunConfig
from limba.training.metrics.figures import RecentSteps, introduction, sides
from limba.training.metrics.tracing import Trace
from tests import tiny


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    data = DataConfig("task", {"inputs": 8, "targets": 4}, batch_size=8)
    return RunConfig(tiny.MODEL, data, str(tmp_path), train_steps=100)


def metrics(loss: float, target_tokens: float, gradient_norm: float = 1.0) -> dict[str, np.float32]:
    named = dict.fromkeys(("cross_entropy", "accuracy", "learning_rate", "parameter_norm", "update_norm"), 0.5)
    named |= {"loss": loss, "target_tokens": target_tokens, "input_tokens": 30.0, "gradient_norm": gradient_norm}
    return {name: np.float32(value) for name, value in named.items()}


def test_figures_are_means_over_target_tokens(config: RunConfig) -> None:
    recent = RecentSteps(config, {"inputs": 8, "targets": 4}, num_devices=4)
    with recent.waiting():
        recent.add(1, {}, metrics(8.0, 10.0, 3.0))
        recent.add(2, {}, metrics(2.0, 30.0, 5.0))
    figures = recent.figures({"task": 0.25}, [])
    assert figures["loss"] == pytest.approx((8.0 * 10 + 2.0 * 30) / 40)
    assert figures["gradient_norm"] == 5.0 and figures["epochs/task"] == 0.25
    assert figures["tokens_per_second"] == pytest.approx(100 / (2 * figures["seconds_per_step"]))
    assert figures["sequences_per_second_per_device"] == pytest.approx(2 / figures["seconds_per_step"])
    assert 0 < figures["data_wait"] <= 1
    recent.restart()
    assert len(recent) == 0


def test_a_step_that_is_not_finite_is_reported_with_its_rows(config: RunConfig, tmp_path: Path) -> None:
    recent = RecentSteps(config, {"inputs": 8, "targets": 4}, num_devices=1)
    recent.add(6, {}, metrics(1.0, 1.0))
    recent.add(7, {3: {"inputs": np.arange(4)}}, metrics(1.0, 1.0, math.inf))
    with pytest.raises(NonFiniteError, match=r"Step 7 gave loss 1, gradient norm inf .* the checkpoint at step 5 is"):
        recent.figures({}, [2, 5])
    rows = np.load(tmp_path / "non_finite_step_7_process_0.npz")
    assert rows["inputs/3"].tolist() == [0, 1, 2, 3]


def test_a_decoder_only_run_says_one_length(config: RunConfig) -> None:
    data = dataclasses.replace(config.data, task_feature_lengths={"targets": 256})
    config = dataclasses.replace(config, model=tiny.LANGUAGE_MODEL, data=data)
    assert sides(config, {"targets": 256}) == (0, 256)
    sentences = list(introduction(config, 1_000_000, {"targets": 256}, start=20))
    assert "8 rows of 256 tokens a step" in sentences[1] and sentences[2].endswith("resumes at step 20, up to step 100")


def test_the_steps_asked_for_are_traced(config: RunConfig, tmp_path: Path) -> None:
    said: list[str] = []
    trace = Trace(dataclasses.replace(config, profile_steps=2), 10, said.append)
    for step in range(11, 17):
        trace.before(step)
        trace.after(step, np.zeros(1), is_last=False)
    trace.close(16, np.zeros(1))
    assert said == [f"Traced 2 step(s) into {tmp_path}/profile"]
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_a_run_too_short_to_be_traced_says_so(config: RunConfig) -> None:
    said: list[str] = []
    trace = Trace(dataclasses.replace(config, profile_steps=2), 10, said.append)
    trace.before(11)
    trace.after(11, None, is_last=True)
    trace.close(11, None)
    assert said == ["Nothing was traced: tracing starts at step 13, and the run ended at step 11."]
