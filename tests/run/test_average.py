"""A whole run by the rules of gin/recipes/fast.gin whose average of the weights is evaluated, resumed, and used."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import tasks.demo  # noqa: F401  registers the task
from limba.cli import main
from limba.config import (
    CheckpointConfig,
    EvaluationConfig,
    MeshConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.evaluation.text import evaluate
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.inference import load
from limba.run import train
from limba.training.metrics.logging import read_metrics
from tests import tiny


@pytest.mark.night
def test_the_average_is_evaluated_resumed_and_is_the_model(tmp_path: Path, corpus: Path, vocabulary: Path) -> None:
    config = RunConfig(
        tiny.model(vocab_size=1024, emb_dim=32, num_heads=2, head_dim=16, mlp_dim=48, num_decoder_layers=2),
        tiny.demo_data(corpus, vocabulary),
        str(tmp_path / "whole"),
        train_steps=12,
        optimizer=optimizer_config(
            "muon",
            ScheduleConfig("linear", 0.1, warmup_steps=0, decay_steps=100),
            muon_by_parameter_scale=True,
            muon_rms=0.1,
            muon_others="adafactor",
            muon_beta=0.9,
        ),
        mesh=MeshConfig(8),
        checkpoint=CheckpointConfig(every_steps=6, best_metric="loss", best_mode="min"),
        evaluation=EvaluationConfig(every_steps=6, num_batches=2, average=0.8),
        log_every_steps=1,
    )
    result = train(config)
    stopped = dataclasses.replace(config, model_dir=str(tmp_path / "stopped"))
    for steps in (5, 12):
        train(dataclasses.replace(stopped, train_steps=steps))
    whole, resumed = (
        {
            (record["kind"], record["step"]): {name: record[name] for name in ("loss", "accuracy")}
            for record in read_metrics(run.model_dir)
            if record["kind"] in ("train", "validation") and record["step"] in (1, 2, 6, 7, 11, 12)
        }
        for run in (config, stopped)
    )
    assert resumed == whole  # bit for bit
    assert whole["train", 12]["loss"] < whole["train", 1]["loss"] - 0.3

    split = config.data.validation_split
    for path in (config.model_dir, f"{config.model_dir}/best"):
        used, _ = evaluate(load.load(path), num_examples=0, split=split)
        assert used["loss"] == pytest.approx(result["validation"]["loss"], rel=1e-4)
    plain = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, average=None))
    as_trained, _ = evaluate(load.load(config.model_dir, config=plain), num_examples=0, split=split)
    assert abs(as_trained["loss"] - used["loss"]) > 1e-3

    # Of two checkpoints `limba merge` averages both the weights and their online average, which is then the model.
    merged = tmp_path / "merged"
    assert main.main(["merge", config.model_dir, "--steps=6,12", f"--output={merged}"]) == 0
    places = [Path(config.model_dir) / "checkpoints" / step for step in ("6", "12")]
    for online in (True, False):
        first, last, mean = (LimbaCheckpoint(path, average=online) for path in (*places, merged / "checkpoints" / "12"))
        assert mean.has_average and set(mean) == set(first)
        for name in mean:
            wanted = (np.asarray(first[name], np.float64) + np.asarray(last[name], np.float64)) / 2
            np.testing.assert_array_equal(mean[name], wanted.astype(np.float32))
    both, _ = evaluate(load.load(str(merged)), num_examples=0, split=split)
    trained, _ = evaluate(load.load(str(merged), config=plain), num_examples=0, split=split)
    assert len({round(figures["loss"], 4) for figures in (both, trained, used)}) == 3
