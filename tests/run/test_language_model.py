"""Whole runs of a decoder-only model: TFDS, a vocabulary of its own, packing, samples, resuming, prefix LM, text."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import seqio
import tensorflow as tf
import tensorflow_datasets as tfds
import transformers
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tasks.demo  # noqa: F401  registers the task
from limba.cli import convert as exports
from limba.cli import generate
from limba.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    GenerationConfig,
    InputError,
    LossConfig,
    MeshConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.data.objectives import causal_lm, tokenize_documents
from limba.data.sources import TfdsSource
from limba.data.tasks import resolve_task
from limba.evaluation.validation import loss_evaluation
from limba.inference.load import load
from limba.model import Network
from limba.run import train
from limba.sharding.mesh import batch_sharding, make_mesh
from limba.tools.pages import report as launch_report
from limba.training.metrics.logging import read_metrics
from tasks import wiki40b
from tests import tiny
from tests.run.logged import losses_of

PROMPT = "The value of"


@pytest.fixture(scope="module")
def articles(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """TensorFlow's own wiki40b builder's files, of real prose with that data set's markers; returns TFDS_DATA_DIR."""
    texts = [json.loads(line)["text"].replace("\n", "_NEWLINE_") for line in corpus.read_text().splitlines()]
    marked = [f"\n_START_ARTICLE_\nTitle {i}\n_START_PARAGRAPH_\n{text}" for i, text in enumerate(texts)]
    directory = str(tmp_path_factory.mktemp("tfds"))
    builder = tfds.builder("wiki40b/ja", data_dir=directory, file_format="array_record")
    rows = [{"wikidata_id": str(i), "version_id": "1", "text": text} for i, text in enumerate(marked)]
    splits = {"train": enumerate(rows[20:]), "validation": enumerate(rows[:20])}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(builder), "_split_generators", lambda self, dl_manager: splits)
        builder.download_and_prepare()
    vocabulary = seqio.SentencePieceVocabulary("none.model", extra_ids=0)
    seqio.TaskRegistry.add(
        "articles_here",
        source=TfdsSource("wiki40b/ja", data_dir=directory, rewrite=wiki40b.paragraphs),
        preprocessors=[tokenize_documents, causal_lm],
        output_features={name: seqio.Feature(vocabulary, dtype=tf.int32) for name in ("inputs", "targets")},
        shuffle_buffer_size=None,
    )
    return directory


@pytest.fixture
def config(tmp_path: Path, articles: str) -> RunConfig:
    data = DataConfig(
        "articles_here",
        {"targets": 32},
        batch_size=16,
        extra_ids=0,
        new_vocabulary_size=500,
        pack=True,
        num_data_shards=4,
    )
    sampling = GenerationConfig(max_tokens=6, sample=True, temperature=0.6, top_k=20)
    return RunConfig(
        model=tiny.language_model(
            vocab_size=512, emb_dim=64, num_heads=2, num_kv_heads=1, mlp_dim=96, num_decoder_layers=2
        ),
        data=data,
        model_dir=str(tmp_path / "run"),
        train_steps=20,
        optimizer=optimizer_config(
            "adamw", ScheduleConfig("factors", 5e-3, "constant * linear_warmup", 5), weight_decay=0.1
        ),
        mesh=MeshConfig(4, 2, 1),
        checkpoint=CheckpointConfig(every_steps=10),
        evaluation=EvaluationConfig(every_steps=10, num_batches=None, prompts=(PROMPT,), sampling=sampling),
        log_every_steps=1,
    )


@pytest.mark.night
def test_a_run_from_tfds_learns_resumes_and_writes(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(config)
    expected = losses_of(config)
    assert (Path(config.model_dir) / "vocabulary.model").is_file()
    assert abs(expected[1] - math.log(512) - 0.5) < 0.6
    figures = result["validation"]
    assert figures["perplexity"] == pytest.approx(math.exp(figures["cross_entropy"])) and figures["perplexity"] < 400
    assert 1.0 < figures["bits_per_byte"] < 8.0
    by_set = {name.partition("/")[2]: name for name in figures if name.startswith("bytes/")}
    bits = sum(figures[f"bits_per_byte/{name}"] * figures[f"bytes/{name}"] for name in by_set)
    assert bits == pytest.approx(figures["bits_per_byte"] * sum(figures[name] for name in by_set.values()), rel=1e-5)
    samples = [record for record in read_metrics(config.model_dir) if record["kind"] == "samples"]
    assert [record["step"] for record in samples] == [10, 20]
    assert samples[-1]["texts"][PROMPT][0].startswith(PROMPT)

    board = EventAccumulator(f"{config.model_dir}/tensorboard").Reload()
    assert {f"validation/bits_per_byte/{name}" for name in by_set} <= set(board.Tags()["scalars"])
    shown = board.Tensors("samples/0/text_summary")
    assert [(event.step, event.tensor_proto.string_val[0].decode()) for event in shown] == [
        (record["step"], record["texts"][PROMPT][0]) for record in samples
    ]
    capsys.readouterr()
    launch_report.run(["--gin_file=gin/ja_lm_0.1b.gin", f"--gin.MODEL_DIR={config.model_dir}"])
    summary = " ".join(capsys.readouterr().out.split())
    assert (Path(config.model_dir) / "loss.png").is_file()
    with pytest.raises(InputError, match="has no figures of training yet"):
        launch_report.run(["--gin_file=gin/ja_lm_0.1b.gin", f"--gin.MODEL_DIR={tmp_path}/none"])
    for record in samples:
        assert f"step {record['step']} {' '.join(record['texts'][PROMPT][0].split())}" in summary
    mesh = make_mesh(config.mesh)
    at_ten = load(config.model_dir, step=10, config=config, mesh=mesh)
    sharding = batch_sharding(mesh)
    task = resolve_task(config.data)
    again = loss_evaluation(config, task, {"targets": 32}, Network(config.model, mesh), sharding)(at_ten.params)
    first = next(record for record in read_metrics(config.model_dir) if record["kind"] == "validation")
    assert at_ten.step == 10 and again["loss"] == first["loss"]

    stopped = dataclasses.replace(config, model_dir=str(tmp_path / "stopped"))  # the vocabulary's path stays
    train(dataclasses.replace(stopped, train_steps=10))
    train(stopped)
    assert losses_of(stopped) == expected  # bit for bit

    named = f"--vocabulary={config.data.vocabulary}"

    def written(model: str) -> str:
        capsys.readouterr()
        generate.run([f"--model={model}", named, f"--prompt={PROMPT}", "--num=2", "--max_tokens=5", "--seed=1"])
        return capsys.readouterr().out

    text = written(config.model_dir)
    assert text == written(config.model_dir) and f"1. {PROMPT}" in text and f"2. {PROMPT}" in text
    exports.run(["export", config.model_dir, str(tmp_path / "out"), named, "--extra_ids=0"])
    printed = capsys.readouterr().out
    assert "transformers" in printed and "FAILED" not in printed and "greedy text equal in 2 of 2" in printed
    folder = tmp_path / "out/step_20"
    assert written(str(folder)) == text
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    vocabulary = seqio.SentencePieceVocabulary(config.data.vocabulary, extra_ids=0)
    assert tokenizer(PROMPT)["input_ids"] == [0, *vocabulary.encode(PROMPT)]
    assert "AutoModelForCausalLM" in (folder / "README.md").read_text()


@pytest.mark.slow
def test_prefix_lm_counts_the_continuation_alone(config: RunConfig) -> None:
    data = dataclasses.replace(config.data, objective="prefix_lm", pack=False)
    result = train(dataclasses.replace(config, data=data, train_steps=2, evaluation=EvaluationConfig(2, 1)))
    assert 0 < result["validation"]["target_tokens"] < 0.8 * 16 * 32
    assert math.isfinite(result["train"]["loss"])


def test_choices_that_do_not_go_together(config: RunConfig) -> None:
    def fails(match: str, **changes: object) -> None:
        with pytest.raises(InputError, match=match):
            dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))

    fails("is decoder-only, which reads one sequence", task_feature_lengths={"inputs": 32})
    fails("choose one of prefix_lm, lm_adaptation, causal_lm", objective="span_corruption")
    with pytest.raises(InputError, match="the model has an encoder; give"):
        dataclasses.replace(config, model=tiny.MODEL)
    with pytest.raises(InputError, match="raise ModelConfig.max_length"):
        dataclasses.replace(config, model=tiny.language_model(positions="learned", max_length=16))
    biased = tiny.language_model(biases=("logits",))
    with pytest.raises(InputError, match="choose whole or auto"):
        dataclasses.replace(config, model=biased, loss=LossConfig(logits="chunked"))
    corrupted = dataclasses.replace(
        config.data, mixture_or_task_name="demo_span_corruption", vocabulary="byte", new_vocabulary_size=None
    )
    with pytest.raises(InputError, match="is span_corruption, whose inputs an encoder reads"):
        train(dataclasses.replace(config, data=corrupted))
