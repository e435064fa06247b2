"""Fine-tuning whole: pairs of a corpus, a start from another run, the best step, text, scores and metrics from it."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import seqio
import tensorflow as tf

from limba.cli import evaluate, flags, generate, line_flags
from limba.config import CheckpointConfig, GenerationConfig, InputError, LossConfig, MeshConfig
from limba.config.saved_config import from_text
from limba.data import metrics as text_metrics
from limba.data import run_data as validation
from limba.data.objectives.supervised import add_prefix
from limba.data.packing import model_features
from limba.data.sources import FileSource
from limba.data.stream import streams
from limba.data.tasks import resolve_task
from limba.evaluation.text import TextEvaluation
from limba.formats.limba_checkpoint import LimbaCheckpoint, checkpoints_of
from limba.inference import generate as writing
from limba.inference.load import load
from limba.inference.scoring import log_likelihoods
from limba.inference.search import banned_mask
from limba.model import Network
from limba.run import train
from limba.sharding.mesh import batch_sharding
from limba.training import placement
from limba.training.best import Best
from limba.training.checks import check_best_metric
from limba.training.step import Gradient, gradients
from tests import tiny

GIN = """from __gin__ import dynamic_registration
from limba import config
from tasks import text_to_text
include 'gin/models/byt5/tiny.gin'
include 'gin/runs/finetune.gin'
MIXTURE_OR_TASK_NAME = 'text_to_text'
TASK_FEATURE_LENGTHS = {'inputs': 40, 'targets': 36}
INITIAL_CHECKPOINT_PATH = None
VOCABULARY = 'byte'
EXTRA_IDS = 125
PREFIX = 'up: '
BATCH_SIZE = 16
DTYPE = 'float32'
EVAL_STEPS = 2
EVAL_PERIOD = 2
NUM_EXAMPLES = 8
MAX_TOKENS = 6
config.ModelConfig:
  emb_dim = 32
  num_heads = 2
  head_dim = 8
  mlp_dim = 32
  num_encoder_layers = 1
  num_decoder_layers = 1
config.DataConfig:
  num_data_shards = 4
  validation_percent = 20.0
config.MeshConfig.fsdp = 2
"""
SIDES = ("encoder_input_tokens", "decoder_target_tokens")
SMALL = tiny.model(num_encoder_layers=1, num_decoder_layers=1, emb_dim=32, num_heads=2, head_dim=8, mlp_dim=32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """Pairs of real prose and the same in capitals, as parquet, jsonl and csv; and the gin file."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = [line for text in map(json.loads, corpus.read_text().splitlines()) for line in text["text"].splitlines()]
    texts = [line.strip() for line in lines if 10 < len(line.strip()) < 60 and line.isascii()][:300]
    pyarrow.parquet.write_table(
        pyarrow.table({"low": [*texts, None], "n": range(len(texts) + 1), "up": [*(t.upper() for t in texts), "X"]}),
        folder / "pairs.parquet",
        row_group_size=64,
    )
    (folder / "run.gin").write_text(GIN)
    return folder


def arguments(files: Path, model_dir: Path, *more: str) -> list[str]:
    columns = "{'inputs': 'low', 'targets': 'up'}"
    return [
        f"--gin_file={files / 'run.gin'}",
        f"--gin.CORPUS={files / 'pairs.parquet'}",
        f"--gin.COLUMN={columns}",
        f"--gin.MODEL_DIR={model_dir}",
        *(f"--gin.{value}" for value in more),
    ]


@pytest.fixture(scope="module")
def runs(files: Path) -> tuple[Path, Path]:
    """A run from scratch, and one from its checkpoint: other optimizer, encoder frozen, stopped early."""
    first = files / "first"
    second = files / "second"
    train(*flags.parse_args(arguments(files, first, "TRAIN_STEPS=2", "NUM_EXAMPLES=0"))[:2])
    more = ("TRAIN_STEPS=20", f"INITIAL_CHECKPOINT_PATH={first}", "FROZEN=('encoder', 'token_embedder')")
    stop = ("PATIENCE=1", "BEST_MODE=max", "config.OptimizerConfig.name=adamw", "LEARNING_RATE=0.01")
    result = train(*flags.parse_args(arguments(files, second, *more, *stop))[:2])
    assert result["step"] == 4, "the loss falls from step 2 to 4, and the highest was asked for"
    assert {"exact_match", "word_f1", "chrf", "chrf++"} <= set(result["text"])
    return first, second


@pytest.mark.slow
def test_frozen_parameters_stay_and_the_best_step_is_kept(runs: tuple[Path, Path]) -> None:
    before, after = (LimbaCheckpoint(checkpoints_of(run)[step]) for run, step in zip(runs, (2, 4), strict=True))
    for name in before:
        frozen = name.startswith(("encoder", "token_embedder"))
        assert np.array_equal(before[name], after[name]) == frozen, name
    assert list(checkpoints_of(runs[1] / "best")) == [2]
    best = json.loads((runs[1] / "best" / "best.json").read_text())
    assert best["step"] == 2
    assert best["metric"] == "loss"
    assert best["since"] == 1
    assert (runs[1] / "best" / "config.gin").read_text() == (runs[1] / "config.gin").read_text()
    run = from_text((runs[1] / "config.json").read_text(), "config.json")
    assert (runs[1] / "best" / "config.json").read_text() == (runs[1] / "config.json").read_text()
    other = dataclasses.replace(run, checkpoint=CheckpointConfig(best_metric="bleu"))
    with pytest.raises(InputError, match="the evaluation gives chrf, loss"):
        check_best_metric(other, ("loss", "chrf"))


def test_pairs_end_once_padding_weighs_nothing_and_the_stream_resumes(files: Path, tmp_path: Path) -> None:
    config = flags.parse_args(arguments(files, tmp_path, "INITIAL_CHECKPOINT_PATH=x")).config
    task = resolve_task(config.data)
    lengths = dict(config.data.task_feature_lengths)
    vocabulary = task.output_features["targets"].vocabulary
    stream = streams.TrainStream(task, lengths, config.data, range(4))
    seen = []
    for number in range(8):
        if number == 5:
            positions = stream.positions()
        seen.append(next(stream))
    stream.close()
    texts = set()
    for row in (row for batch in seen for part in batch.values() for row in zip(*part.values(), strict=True)):
        inputs, targets = row
        for ids in (inputs, targets):
            assert (ids == 1).sum() == 1
            assert not ids[np.flatnonzero(ids == 1)[0] + 1 :].any()
        low, up = (vocabulary.decode(ids[ids > 1].tolist()) for ids in (inputs, targets))
        assert low.startswith("up: ")
        assert up[:30] == low.removeprefix("up: ").upper()[:30]
        texts.add(low)
    assert len(texts) > 100
    features = model_features(seen[0][0])
    assert ((features["decoder_target_tokens"] > 0) == features["decoder_loss_weights"]).all()
    again = streams.TrainStream(task, lengths, config.data, range(4))
    again.begin(0, positions)
    for batch in seen[5:]:
        for shard, part in next(again).items():
            for name in part:
                np.testing.assert_array_equal(part[name], batch[shard][name])
    again.close()
    ((report, is_any_cut),) = validation.truncation(task, lengths, config.data).items()
    assert is_any_cut
    assert "% of inputs are cut to 40 tokens (longest" in report


@pytest.mark.slow
def test_gradients_are_averaged_over_the_tokens_of_all_devices() -> None:
    """With unlike padding on each device: one division by all tokens, not a mean of the devices' means."""
    batch = tiny.batch()
    model = Network(SMALL)
    batch["decoder_target_tokens"][:2, 1:] = 0
    batch["decoder_loss_weights"] = (batch["decoder_target_tokens"] > 0).astype(np.int32)
    params = tiny.parameters(SMALL)
    step = jax.jit(lambda params, batch: gradients(Gradient(model, LossConfig()), params, batch, None))
    grads, sums = step(params, batch)
    # The decoder's inputs at positions without loss must not matter either.
    batch["decoder_input_tokens"] = np.where(batch["decoder_target_tokens"] > 0, batch["decoder_input_tokens"], 7)
    sharding = batch_sharding(tiny.mesh_of(MeshConfig(), 4))
    shared_grads, shared = step(params, placement.place_batch(batch, sharding))
    assert float(sums["tokens"]) == float(shared["tokens"]) == float(batch["decoder_loss_weights"].sum())
    np.testing.assert_allclose(float(shared["loss"]), float(sums["loss"]), rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), grads, shared_grads)


@pytest.mark.night
def test_text_in_order_resumed_and_scored(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_flags, "BATCHES_PER_WINDOW", 1)
    texts = ["a cat", "", "the longest of all the lines here", "x", *(f"line {i}" for i in range(20))]
    source = tmp_path / "in.jsonl"
    output = tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    command = [f"--gin_file={runs[1] / 'config.gin'}", f"--input={source}", f"--output={output}", "--fields=text"]
    sampled = ["--gin.config.GenerationConfig.sample=True", "--gin.config.GenerationConfig.num_samples=2"]
    generate.run([*command, *sampled])
    whole = output.read_text()
    text = source.read_text()
    records = [json.loads(line) for line in whole.splitlines()]
    assert [(r["id"], r["text"]) for r in records] == list(enumerate(texts))
    assert records[1]["prediction"] == ""
    assert len(records[0]["samples"]) == 2
    rows = whole.splitlines(keepends=True)
    for path in tmp_path.glob("out.jsonl*"):
        path.unlink()
    source.write_text("".join(text.splitlines(keepends=True)[:18]))
    generate.run([*command, *sampled])
    source.write_text(text)
    output.write_text(output.read_text() + rows[18][:7])  # as a kill would leave it
    generate.run([*command, *sampled])
    resumed = [json.loads(line) for line in output.read_text().splitlines()]
    assert [r["prediction"] for r in resumed] == [r["prediction"] for r in records]
    with pytest.raises(InputError, match="another generation"):
        generate.run(command)
    scored = tmp_path / "scored.jsonl"
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"inputs": "a cat", "targets": "A CAT"}\n{"inputs": "a cat", "targets": "A"}\n')
    generate.run([command[0], "--score", f"--input={pairs}", f"--output={scored}"])
    both = [json.loads(line) for line in scored.read_text().splitlines()]
    assert [record["tokens"] for record in both] == [6, 2]
    assert all(np.isfinite(record["log_likelihood"]) and record["log_likelihood"] < 0 for record in both)
    capsys.readouterr()
    evaluate.run([command[0], "--num_examples=8"])
    printed = capsys.readouterr().out
    evaluations = runs[1] / "evaluations"
    table = (evaluations / "evaluation-2-validation.md").read_text()
    assert "| metric | copied input | step 2 |" in table
    assert "| bits_per_byte |" in table
    assert " bits per byte" in printed and "exact_match 0.00 (the input, copied: 0.00)" in printed
    saved = json.loads((evaluations / "evaluation-2-validation.json").read_text())
    before = {path.name: path.read_text() for path in evaluations.iterdir()}
    (of_training,) = (name for name in before if name.endswith("-2.jsonl"))
    assert of_training.replace(".jsonl", "-validation.jsonl") in before, "what training wrote is still there"
    evaluate.run([command[0], "--num_examples=3"])
    now = {path.name: path.read_text() for path in evaluations.iterdir()}
    assert {name: now[name] for name in before} == before
    assert "evaluation-2-validation-2.json" in now and saved["split"] == "validation"
    assert saved["copied"]["exact_match"] == 0.0
    assert saved["figures"]["bits_per_byte"] > 0
    (tmp_path / "test.jsonl").write_text('{"low": "a cat", "up": "A CAT"}\n{"low": "a dog", "up": "A"}\n')
    splits = {"train": str(runs[1].parent / "pairs.parquet"), "test": str(tmp_path / "test.jsonl")}
    evaluate.run([command[0], f"--gin.CORPUS={splits}", "--split=test"])
    assert json.loads((evaluations / "evaluation-2-test.json").read_text())["split"] == "test"
    (of_test,) = evaluations.glob("*-test.jsonl")
    assert [json.loads(line)["target"] for line in of_test.read_text().splitlines()[1:]] == ["A CAT", "A"]


def register_judged(path: Path) -> None:
    """A task with all that seqio's metrics may be: of predictions, scores and both, and with a text postprocessed."""

    def longest(text: str, example: dict, is_target: bool) -> str:
        words = [text, example["targets_pretokenized"].decode()[:3]] if is_target else [text]
        return max(" ".join(words).split() or [""], key=len)

    def of_predictions(targets: list, predictions: list) -> dict:
        lengths = [len(t) * len(p.encode()) for t, p in zip(targets, predictions, strict=True)]
        return {"lengths": seqio.metrics.Scalar(sum(lengths)), "sample": seqio.metrics.Text(predictions[0]), "x": 1e400}

    def of_scores(targets: list, scores: np.ndarray) -> dict:
        return {"score": np.dot(scores, [len(target) for target in targets])}

    def of_both(targets: list, predictions: list, aux_values: dict) -> dict:
        letters = [len(t) - len(p) for t, p in zip(targets, predictions, strict=True)]
        return {"both": float(np.dot(aux_values["scores"], letters))}

    vocabulary = seqio.ByteVocabulary(extra_ids=125)
    seqio.TaskRegistry.add(
        "judged",
        source=FileSource(str(path), column={"inputs": "low", "targets": "up"}, validation_percent=20.0),
        preprocessors=[
            functools.partial(add_prefix, prefix="up: "),
            functools.partial(seqio.preprocessors.tokenize, with_eos=False),
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features=dict.fromkeys(("inputs", "targets"), seqio.Feature(vocabulary, dtype=tf.int32)),
        postprocess_fn=longest,
        metric_fns=[of_predictions, of_scores, of_both],
        metric_objs=[seqio.metrics.PassthroughLegacyMetric.from_metric_fn(text_metrics.chrf, longest).empty()],
        shuffle_buffer_size=None,
    )


@pytest.mark.slow
def test_figures_are_those_of_seqios_evaluator(runs: tuple[Path, Path], files: Path) -> None:
    register_judged(files / "pairs.parquet")
    gin = [f"--gin_file={runs[1] / 'config.gin'}", "--gin.MIXTURE_OR_TASK_NAME=judged"]
    config = flags.parse_args(gin).config
    trained = load(config.model_dir, config=config)
    vocabulary = trained.vocabulary
    judge = TextEvaluation(config, trained.task, trained.lengths, trained.network, trained.mesh)
    ours = judge(trained.params, trained.step)

    def examples(dataset: tf.data.Dataset) -> list:
        return list(dataset.as_numpy_iterator())

    def written(dataset: tf.data.Dataset) -> tuple[list, dict]:
        numbers, rows = zip(*examples(dataset), strict=True)
        inputs = jnp.asarray(np.stack([row["encoder_input_tokens"] for row in rows]))
        banned = banned_mask(config.model.vocab_size, vocabulary.vocab_size, range(259, vocabulary.vocab_size))
        plan = writing.Plan(trained.network, config.generation)
        result = writing.generate(plan, trained.params, writing.ProgramInputs(inputs, banned))
        return list(zip(numbers, result.tokens[:, 0].tolist(), strict=True)), {"scores": result.scores[:, 0].tolist()}

    def scored(dataset: tf.data.Dataset) -> list:
        rows = [(number, [row[name] for name in SIDES]) for number, row in examples(dataset)]
        pairs = [tuple(ids[ids > 0] for ids in sides) for _, sides in rows]
        scores = log_likelihoods(trained.network, trained.params, trained.mesh, pairs, len(pairs))
        return [(number, float(score)) for (number, _), score in zip(rows, scores, strict=True)]

    evaluator = seqio.Evaluator(
        "judged",
        seqio.EncDecFeatureConverter(pack=False),
        sequence_length=trained.lengths,
        num_examples=config.evaluation.num_examples,
    )
    theirs, _ = evaluator.evaluate(
        compute_metrics=True,
        predict_fn=lambda dataset: written(dataset)[0],
        score_fn=scored,
        predict_with_aux_fn=written,
    )
    expected = {name: getattr(value, "value", value) for name, value in theirs.result()["judged"].items()}
    assert set(judge.names) == {*ours, "x"}  # known before any text is generated; x is never finite
    assert set(ours) == set(expected) - {"sample", "x"} == {"lengths", "score", "both", "chrf", "chrf++"}
    for name, figure in ours.items():
        np.testing.assert_allclose(figure, expected[name], rtol=1e-5, err_msg=name)
    assert set(judge.copied()) == {"lengths", "chrf", "chrf++"}


@pytest.mark.slow
def test_scores_of_written_text_are_its_log_likelihood() -> None:
    """Greedy's own score, token by token, is what the whole decoder says of the same text."""
    config = SMALL
    model = Network(SMALL)
    params = tiny.parameters(SMALL, seed=3)  # one text ends, and none has a padding id
    inputs = tiny.batch(rows=4)["encoder_input_tokens"]
    banned = jnp.zeros(config.vocab_size, bool)
    plan = writing.Plan(model, GenerationConfig(max_tokens=7))
    result = writing.generate(plan, params, writing.ProgramInputs(jnp.asarray(inputs), banned))
    mesh = tiny.mesh_of(MeshConfig(), 4)
    pairs = [(ids[ids > 0], tokens[0]) for ids, tokens in zip(inputs, np.asarray(result.tokens), strict=True)]
    expected = log_likelihoods(model, params, mesh, pairs, num_rows=4)
    np.testing.assert_allclose(result.scores[:, 0], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("FROZEN=('nothing_like_it',)",), "no parameter's name begins"),
        (("COLUMN=low",), "reads 2 columns"),
        (("PATIENCE=2", "BEST_METRIC=None"), "PATIENCE waits"),
    ],
)
def test_choices_that_cannot_work_are_named(files: Path, tmp_path: Path, more: tuple, words: str) -> None:
    with pytest.raises(InputError, match=words):
        train(*flags.parse_args(arguments(files, tmp_path, *more))[:2])


@pytest.mark.slow
def test_a_metric_that_fails_is_named_with_its_place(runs: tuple[Path, Path], files: Path) -> None:
    """Before anything is generated: the metrics are computed of the targets themselves."""

    def halves(targets: list, predictions: list) -> dict[str, float]:
        return {"half": 1 / (len(targets) - len(predictions))}

    config = from_text((runs[1] / "config.json").read_text(), "config.json")
    task = resolve_task(config.data)
    wrong = [seqio.metrics.PassthroughLegacyMetric.from_metric_fn(halves, None).empty()]
    task = task.replace(metric_objs=wrong, metric_fns=[])
    mesh = tiny.mesh_of(MeshConfig(), 1)
    judge = TextEvaluation(config, task, dict(config.data.task_feature_lengths), Network(config.model, mesh), mesh)
    with pytest.raises(InputError, match=r"task text_to_text raises ZeroDivisionError .*test_finetune\.py, line \d+;"):
        _ = judge.names


def judge_of(runs: tuple[Path, Path], **changes: object) -> TextEvaluation:
    config = from_text((runs[1] / "config.json").read_text(), "config.json")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))
    task = resolve_task(config.data)
    mesh = tiny.mesh_of(MeshConfig(), 1)
    return TextEvaluation(config, task, dict(config.data.task_feature_lengths), Network(config.model, mesh), mesh)


@pytest.mark.slow
def test_the_copied_input_is_without_the_tasks_prefix(runs: tuple[Path, Path]) -> None:
    """The targets are the inputs in capitals: "up: a text" copied has five letters that are wrong, "a text" none."""
    with_prefix = judge_of(runs)
    without = judge_of(runs, prefix="")
    examples = with_prefix._examples["text_to_text"]
    assert all(example["inputs_pretokenized"].startswith(b"up: ") for example in examples)
    assert with_prefix.copied() == without.copied()


@pytest.mark.slow
def test_without_validation_examples_nothing_is_generated(runs: tuple[Path, Path], files: Path) -> None:
    name = "without_validation"
    if name not in seqio.TaskRegistry.names():
        part = seqio.get_mixture_or_task("text_to_text")
        source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, splits=("train",))
        seqio.TaskRegistry.add_provider(name, part.replace(name=name, source=source))
    config = from_text((runs[1] / "config.json").read_text(), "config.json")
    task = seqio.get_mixture_or_task(name)
    mesh = tiny.mesh_of(MeshConfig(), 1)
    lengths = dict(config.data.task_feature_lengths)
    judge = TextEvaluation(config, task, lengths, Network(config.model, mesh), mesh)
    assert not judge.tasks and judge.names == () and judge.copied() == {}


@pytest.mark.night
def test_a_run_without_validation_examples_trains(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 64 rows none is taken for validation."""
    rows = pyarrow.parquet.read_table(files / "pairs.parquet").slice(0, 64)
    pyarrow.parquet.write_table(rows, tmp_path / "few.parquet")
    gin = ["TRAIN_STEPS=2", f"CORPUS={tmp_path / 'few.parquet'}", "config.DataConfig.validation_percent=0.001"]
    with pytest.raises(InputError, match="'loss', and there is no validation text; .* or set .*best_metric to None"):
        train(*flags.parse_args(arguments(files, tmp_path / "best", *gin))[:2])
    result = train(*flags.parse_args(arguments(files, tmp_path / "run", *gin, "BEST_METRIC=None"))[:2])
    assert result["step"] == 2 and not result.get("text")
    assert "has no text: nothing is evaluated. A larger DataConfig.validation_percent" in caplog.text


@pytest.mark.slow
def test_a_figure_that_is_no_number_is_no_improvement(runs: tuple[Path, Path], tmp_path: Path) -> None:
    run = from_text((runs[1] / "config.json").read_text(), "config.json")
    patient = dataclasses.replace(run.evaluation, patience=2)
    best = CheckpointConfig(best_metric="chrf")
    config = dataclasses.replace(run, checkpoint=best, evaluation=patient, model_dir=str(tmp_path))
    (tmp_path / "best").mkdir()
    judge = Best(config)
    assert judge.judge(2, {"chrf": float("nan")}, None, dict) == ""
    assert "chrf has not been a finite number for 2 evaluations" in judge.judge(4, {"loss": 1.0}, None, dict)
