"""A run of a mixture records the tokens of each corpus, counts on when it is resumed, and its report shows them."""

import dataclasses
import re
from pathlib import Path

import pytest
import seqio
import tensorflow as tf

from limba.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.sources import FileSource
from limba.run import train
from limba.tools.pages.page.page import page_of
from limba.training.metrics.logging import read_metrics
from tests import tiny
from tests.data.text_files import write
from tests.evaluation.report_runs import opened


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    features = {side: seqio.Feature(seqio.ByteVocabulary(100), dtype=tf.int32) for side in ("inputs", "targets")}
    for name, text in (("ro", "Limba noastră e o comoară"), ("en", "A language is a treasure")):
        lines = [f"{number} {text} {number * number}" for number in range(400)]
        source = FileSource(str(write(tmp_path / f"{name}.txt", lines)), validation_percent=5.0)
        seqio.TaskRegistry.add(
            f"mixture_{name}",
            source=source,
            preprocessors=[tokenize_documents, span_corruption],
            output_features=features,
            shuffle_buffer_size=None,
        )
    seqio.MixtureRegistry.add("mixture_both", [("mixture_ro", 3.0), ("mixture_en", 1.0)])
    small = {"vocab_size": 384, "emb_dim": 32, "num_heads": 2, "head_dim": 8, "mlp_dim": 32}
    return RunConfig(
        tiny.model(**small, num_encoder_layers=1, num_decoder_layers=1),
        DataConfig("mixture_both", {"inputs": 32}, batch_size=16, vocabulary="byte", num_data_shards=2),
        str(tmp_path / "whole"),
        train_steps=8,
        optimizer=optimizer_config("adamw", ScheduleConfig("linear", 0.01, warmup_steps=0, decay_steps=8)),
        checkpoint=CheckpointConfig(every_steps=100),
        evaluation=EvaluationConfig(every_steps=100, num_batches=1),
        log_every_steps=1,
    )


@pytest.mark.night
def test_the_tokens_of_each_corpus_are_recorded_and_shown(config: RunConfig, tmp_path: Path) -> None:
    train(config)
    resumed = dataclasses.replace(config, model_dir=str(tmp_path / "resumed"))
    for steps in (3, 8):
        train(dataclasses.replace(resumed, train_steps=steps))
    whole, again = (
        [record for record in read_metrics(run.model_dir) if record["kind"] == "train"] for run in (config, resumed)
    )
    assert [record["step"] for record in whole] == [record["step"] for record in again] == list(range(1, 9))
    for one, other in zip(whole, again, strict=True):
        for corpus in ("ro", "en"):
            assert one[f"tokens/mixture_{corpus}"] == other[f"tokens/mixture_{corpus}"]
    all_tokens = sum(record["tokens_per_second"] * record["seconds_per_step"] for record in whole)
    tokens_of = {corpus: whole[-1][f"tokens/mixture_{corpus}"] for corpus in ("ro", "en")}
    assert sum(tokens_of.values()) == pytest.approx(all_tokens) and 0.6 < tokens_of["ro"] / all_tokens < 0.9
    text = page_of(opened(Path(resumed.model_dir)))
    assert "Tokens of each corpus" in text
    for corpus, tokens in tokens_of.items():
        cells = rf'<th scope="row">mixture_{corpus}</th><td dir="auto">[\d.]*</td><td dir="auto">{tokens:,.0f}</td>'
        assert re.search(cells, text), corpus
