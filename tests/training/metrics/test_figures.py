"""The figures of a logged line, and the trace of a few steps."""

import dataclasses
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest

from limba.config import (
    CheckpointConfig,
    DataConfig,
    NonFiniteError,
    RestartError,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.storage import manifest
from limba.training.introduction import details, introduction
from limba.training.metrics import advice
from limba.training.metrics.flops import sides
from limba.training.metrics.logging import Metrics
from limba.training.metrics.recent_steps import RecentSteps
from limba.training.trace import Trace
from tests import tiny
from tests.bucket_server import GoogleHandler, RefusedError, emulated
from tests.training.batch_documents import batch_documents


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    data = DataConfig("task", {"inputs": 8, "targets": 4}, batch_size=8)
    return RunConfig(tiny.MODEL, data, str(tmp_path), train_steps=100)


def metrics(loss: float, target_tokens: float, gradient_norm: float = 1.0) -> dict[str, np.float32]:
    named = dict.fromkeys(("cross_entropy", "accuracy", "learning_rate", "parameter_norm", "update_norm"), 0.5)
    named |= {"loss": loss, "target_tokens": target_tokens, "input_tokens": 30.0, "gradient_norm": gradient_norm}
    return {name: np.float32(value) for name, value in named.items()}


def test_figures_are_means_over_target_tokens(config: RunConfig) -> None:
    recent = RecentSteps(config, {"inputs": 8, "targets": 4}, num_devices=4, metrics=Metrics("", 0, None, writes=False))
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
    recent = RecentSteps(config, {"inputs": 8, "targets": 4}, num_devices=1, metrics=Metrics("", 0, None, writes=False))
    recent.add(6, {}, metrics(1.0, 1.0))
    documents = batch_documents(tmp_path, {3: [[4, 5], [4, 9, 9], [11], [12]]})
    recent.add(7, {3: {"inputs": np.arange(4)}}, metrics(1.0, 1.0, math.inf), documents)
    with pytest.raises(NonFiniteError) as error:
        recent.figures({}, [2, 5])
    path = tmp_path / "non_finite_step_7_process_0.npz"
    names = "part-07.txt.gz, document 4; part-07.txt.gz, document 5; part-07.txt.gz, document 9; and 2 more"
    assert str(error.value) == (
        "Step 7 gave loss 1, gradient norm inf and update norm 0.5; its batch"
        f" ({names}) is in {path}, the checkpoint at step 5 is good: lower ScheduleConfig.base_learning_rate, or look"
        " at the batch."
    )
    with np.load(path) as rows:
        assert rows["inputs/3"].tolist() == [0, 1, 2, 3]


def test_a_decoder_only_run_says_one_length(config: RunConfig) -> None:
    data = dataclasses.replace(config.data, task_feature_lengths={"targets": 256})
    config = dataclasses.replace(config, model=tiny.LANGUAGE_MODEL, data=data)
    assert sides(config, {"targets": 256}) == (0, 256)
    assert "A step has 8 rows of 256 tokens." in list(details(config, {"targets": 256}, 0))


def test_a_run_introduces_itself_in_a_row_and_names_its_log_on_a_terminal(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = dataclasses.replace(config, model_dir=f"{tmp_path}/runs/a")
    lengths = {"inputs": 8, "targets": 4}
    (row,) = introduction(config, lengths, 1_000_000, 20)
    assert row == f"runs/a resumes at step 20, up to step 100: 1,000,000 parameters on {len(jax.devices())} x cpu"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert list(introduction(config, lengths, 1_000_000, 0))[1:] == ["all lines go to runs/a/logs/train.log"]


@pytest.mark.parametrize(("steps", "said"), [(400, "is 0.11, by 'auto'"), (40_000, "is 0.011, by 'auto'")])
def test_a_run_says_the_rate_that_auto_is(config: RunConfig, steps: int, said: str) -> None:
    optimizer = optimizer_config("muon", ScheduleConfig(base_learning_rate="auto"), muon_by_parameter_scale=True)
    config = dataclasses.replace(config, optimizer=optimizer, train_steps=steps)
    lengths = {"inputs": 8, "targets": 4}
    assert any(said in line for line in details(config, lengths, 0))
    warned = [line for line in introduction(config, lengths, 1, 0) if "'auto'" in line]
    assert len(warned) == (steps > 12_000) and all("unproven here" in sentence for sentence in warned)


class Card(NamedTuple):
    """A device as jax describes it."""

    device_kind: str
    compute_capability: str
    platform: str = "gpu"


OfEinsum = Callable[[RunConfig, Card, Mapping[str, int]], list[str]]


@pytest.fixture
def of_einsum(monkeypatch: pytest.MonkeyPatch) -> OfEinsum:
    """Gives the sentences with which a run on eight such devices says that the einsum computes its attention."""

    def said(config: RunConfig, card: Card, lengths: Mapping[str, int]) -> list[str]:
        monkeypatch.setattr(jax, "devices", lambda: [card] * 8)
        return [sentence for sentence in introduction(config, lengths, 1_000, 0) if "einsum" in sentence]

    return said


def test_cards_without_the_kernels_are_named_once(config: RunConfig, of_einsum: OfEinsum) -> None:
    """A V100, a card of AMD, and an A100 as jax describes them."""
    lengths = {"inputs": 8, "targets": 4}
    for card in (Card("Tesla V100-SXM2-16GB", "7.0"), Card("AMD Instinct MI250X", "gfx90a")):
        (sentence,) = of_einsum(config, card, lengths)
        assert sentence.endswith(f"capability 8 or newer (A100), and this is {card.device_kind}.")
    assert of_einsum(config, Card("NVIDIA A100-SXM4-40GB", "8.0"), lengths) == []
    (sentence,) = of_einsum(config, Card("TPU v3", "", "tpu"), lengths)
    assert sentence.endswith("needs a TPU v4 or newer, and this is TPU v3.")
    assert of_einsum(config, Card("TPU v4", "", "tpu"), lengths) == []


def test_rows_and_windows_that_a_tpus_kernel_cannot_take_are_named_once(config: RunConfig, of_einsum: OfEinsum) -> None:
    tpu = Card("TPU v4", "", "tpu")
    a100 = Card("NVIDIA A100-SXM4-40GB", "8.0")
    said = "Attention is computed by the einsum: the Pallas kernel "
    assert of_einsum(config, tpu, {"inputs": 2_048, "targets": 114}) == []
    for lengths in ({"inputs": 2_049, "targets": 114}, {"inputs": 114, "targets": 2_049}):
        assert of_einsum(config, tpu, lengths) == [f"{said}takes at most 2,048 keys, and the longest rows have 2,049."]
        assert of_einsum(config, a100, lengths) == []

    def encoder(window: int) -> RunConfig:
        model = tiny.language_model(attention_mask="bidirectional", local_attention=(window, 3, 10_000.0))
        data = DataConfig("task", {"targets": 1_024}, batch_size=8, objective="masked_lm")
        return dataclasses.replace(config, model=model, data=data)

    row = {"targets": 1_024}
    assert of_einsum(encoder(512), tpu, row) == []
    assert of_einsum(encoder(1_024), a100, row) == []
    wide = f"{said}takes windows of at most 512 tokens, and ModelConfig.local_attention has 514."
    assert of_einsum(encoder(514), tpu, row) == [wide]


def test_a_job_that_ends_before_its_next_checkpoint_is_told(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(config, train_steps=10_000, checkpoint=CheckpointConfig(every_steps=1_000))
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3_600))
    told = advice.advice_on(config, 20, 1_100, {"seconds_per_step": 10.0, "data_wait": 0.0})
    assert "and the next checkpoint is due in 2 h 30 min (CheckpointConfig.every_steps is 1,000)" in told
    assert not advice.advice_on(config, 20, 1_100, {"seconds_per_step": 3.0, "data_wait": 0.0})
    assert not advice.advice_on(config, 1, 1_100, {"seconds_per_step": 10.0, "data_wait": 0.0})
    assert not advice.advice_on(config, 20, 9_990, {"seconds_per_step": 10.0, "data_wait": 0.0})
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert not advice.advice_on(config, 20, 1_100, {"seconds_per_step": 10.0, "data_wait": 0.0})


def test_the_steps_asked_for_are_traced(config: RunConfig, tmp_path: Path) -> None:
    said: list[str] = []
    trace = Trace(dataclasses.replace(config, profile_steps=2), 10, said.append)
    for step in range(11, 17):
        trace.before(step)
        trace.after(step, np.zeros(1), is_last=False)
    trace.close(16, np.zeros(1))
    assert said == [f"Traced 2 step(s) into {tmp_path}/profile"]
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


def test_a_trace_that_the_bucket_does_not_take_stays_here(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handler: GoogleHandler) -> tuple[int, bytes, dict[str, str]]:
        raise RefusedError(403)

    said: list[str] = []
    monkeypatch.setattr(GoogleHandler, "_post", refuse)
    with emulated(monkeypatch):
        trace = Trace(dataclasses.replace(config, profile_steps=2, model_dir="gs://bucket/run"), 10, said.append)
        for step in range(11, 17):
            trace.before(step)
            trace.after(step, np.zeros(1), is_last=False)
    match = re.fullmatch(r"The trace stays in (\S+): gs://bucket/run/profile/\S+ cannot be \w+ \(.*", said[0])
    assert len(said) == 1 and match and list(Path(match[1]).rglob("*.xplane.pb"))


def test_a_trace_whose_place_another_process_has_taken_ends_no_run(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(folder: Path, address: str) -> None:
        raise RestartError(f"Another process uses {address} now.")

    said: list[str] = []
    monkeypatch.setattr(manifest, "upload", lost)
    trace = Trace(dataclasses.replace(config, profile_steps=2, model_dir="gs://bucket/run"), 10, said.append)
    for step in range(11, 17):
        trace.before(step)
        trace.after(step, np.zeros(1), is_last=False)
    assert len(said) == 1
    assert re.fullmatch(r"The trace stays in \S+: Another process uses gs://bucket/run/profile/\S+ now\.", said[0])


def test_a_run_too_short_to_be_traced_says_so(config: RunConfig) -> None:
    said: list[str] = []
    trace = Trace(dataclasses.replace(config, profile_steps=2), 10, said.append)
    trace.before(11)
    trace.after(11, None, is_last=True)
    trace.close(11, None)
    assert said == ["Nothing was traced: tracing starts at step 13, and the run ended at step 11."]


def test_rows_are_counted_by_their_tokens_and_seldom_recorded(config: RunConfig, tmp_path: Path) -> None:
    rows = {"inputs": np.asarray([[5, 6, 1, 0], [5, 1, 0, 0]]), "targets": np.asarray([[7, 1], [1, 0]])}
    with Metrics(str(tmp_path), 0, 100, writes=True) as written:
        recent = RecentSteps(config, {"inputs": 8, "targets": 4}, 1, written)
        for step in range(1, 10):
            recent.add(step, {0: rows}, metrics(1.0, 1.0))
            recent.figures({}, [])
            recent.restart()
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    counted = [record for record in records if record["kind"] == "row_lengths"]
    assert [record["step"] for record in counted] == [1, 2, 4, 8]
    assert counted[-1]["rows"] == {"inputs": [[2, 8], [3, 8]], "targets": [[1, 8], [2, 8]]}
    assert records[-1]["kind"] == "end"
