"""Continued pretraining of published models by their path alone: folders that transformers has saved."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import limba
from limba.cli import train
from limba.cli.gin import continued, read_run
from limba.config import ConfigError, InputError, RunConfig
from limba.data.packing import model_features
from limba.data.stream.stages import open_stages
from limba.data.task_modules import import_tasks
from limba.data.tasks import resolve_task
from limba.data.vocabulary.coverage import coverage
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.sentinels import sentinel_table
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.tools.preflight import preflight
from tests import published
from tests.data.stream.test_stages import stages_of
from tests.run.logged import losses_of

ROOT = Path(__file__).parents[2]
ROWS = "TASK_FEATURE_LENGTHS={'inputs': 48}"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny published models, text that they have pieces for, and text that they have none for."""
    folder = tmp_path_factory.mktemp("published")
    tokenizer = published.real("unigram")
    published.saved(folder / "t5", "t5", tokenizer, feed_forward_proj="gated-gelu")
    for name, texts in (("text", published.CORPUS), ("other", ["日本語のテキスト。一つの文。", "中文，没有空格"])):
        lines = [json.dumps({"text": " ".join(texts[(n + k) % len(texts)] for k in range(6))}) for n in range(200)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def arguments(shelf: Path, model: str, directory: Path, *more: str) -> list[str]:
    values = (
        f"INITIAL_CHECKPOINT_PATH={shelf / model}", f"CORPUS={shelf}/text.jsonl", f"MODEL_DIR={directory}",
        "TRAIN_STEPS=4", "BATCH_SIZE=8", "DTYPE=float32", "LOG_PERIOD=1", "Z_LOSS=0.0", "CHECKPOINT_PERIOD=2",
        "config.DataConfig.num_data_shards=2", *more,
    )  # fmt: skip
    return ["gin/continue.gin", *(f"--gin.{value}" for value in values)]


def config_of(shelf: Path, model: str, directory: Path, *more: str) -> RunConfig:
    file, *values = arguments(shelf, model, directory, *more)
    return read_run([file], [value.removeprefix("--gin.") for value in values]).config


def first_batch(config: RunConfig) -> dict[str, np.ndarray]:
    """Returns what the run's first step reads."""
    data = config.data
    with contextlib.closing(open_stages(*stages_of(data), range(data.num_shards))) as stream:
        stream.begin(0)
        shards = next(stream)
    rows = {name: np.concatenate([part[name] for part in shards.values()]) for name in shards[0]}
    return model_features(rows, data.sequence_length, data.num_predicted)


def loss_in_transformers(folder: Path, batch: Mapping[str, np.ndarray]) -> float:
    """Returns transformers' mean loss of a T5 on a batch."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    of = {name: torch.tensor(array.astype(np.int64)) for name, array in batch.items()}
    inputs = of["encoder_input_tokens"]
    targets = of["decoder_target_tokens"]
    labels = torch.where(of["decoder_loss_weights"] > 0, targets, -100)
    with torch.no_grad():
        output = model(
            input_ids=inputs,
            attention_mask=(inputs != 0).long(),
            decoder_input_ids=of["decoder_input_tokens"],
            labels=labels,
        )
    return float(output.loss)


@pytest.mark.slow
def test_one_command_continues_a_t5(
    shelf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its lines, its first loss as transformers has it, and its resumption, also when the model is gone."""
    folder = shutil.copytree(shelf / "t5", tmp_path / "t5")
    whole = arguments(tmp_path, "t5", tmp_path / "whole", ROWS, f"CORPUS={shelf}/text.jsonl")
    train.run(whole)
    said = capfd.readouterr().out.splitlines()
    num_ids = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]) + 1  # "<nl>" was added
    assert said[:4] == [
        f"Continues from {folder}: an encoder-decoder of 2 + 2 layers, width 32, 512 rows.",
        f"Vocabulary: {folder}, {num_ids} ids; a text is read as text </s>.",
        "Objective: span_corruption; 8 rows of 48 inputs and 12 targets.",
        "Learning rate: adafactor, 0.001.",
    ]
    losses = losses_of(tmp_path / "whole")
    config = config_of(tmp_path, "t5", tmp_path / "whole", ROWS, f"CORPUS={shelf}/text.jsonl")
    assert losses[1] == pytest.approx(loss_in_transformers(folder, first_batch(config)), rel=1e-4)

    again = arguments(tmp_path, "t5", tmp_path / "again", ROWS, f"CORPUS={shelf}/text.jsonl")
    train.run([*again, "--gin.TRAIN_STEPS=2"])
    shutil.rmtree(folder)
    train.run(again)
    assert losses_of(tmp_path / "again") == losses
    assert f"are taken from the run in {tmp_path}/again" in caplog.text
    file, *values = (value.removeprefix("--gin.") for value in again if "MODEL_DIR" not in value)
    elsewhere = [f"PLACE='{tmp_path}/again'", "config.RunConfig.model_dir=%PLACE"]
    assert read_run([file], [*values, *elsewhere]).config.model == config.model, "the run is found by its field too"
    first, second = (LimbaCheckpoint(tmp_path / name / "checkpoints" / "4") for name in ("whole", "again"))
    assert set(first) == set(second) and all(np.array_equal(first[name], second[name]) for name in first)


LINES = {  # family, layout of the text and the objective, as they are printed
    ("eurobert", "roberta"): ("an encoder of 2 layers", "<s> text </s>; the mask is <mask>", "masked_lm, 30% of"),
    ("modernbert", "bert"): ("an encoder of 3 layers", "[CLS] text [SEP]; the mask is [MASK]", "masked_lm, 30% of"),
    ("llama", "llama"): ("a decoder-only model of 2 layers", "<s> text </s>", "causal_lm"),
    ("gpt2", "endoftext"): ("a decoder-only model of 2 layers", "text <|endoftext|>", "causal_lm"),
}


@pytest.mark.parametrize(("kind", "style"), LINES)
def test_encoders_and_decoders_are_known_by_their_folder(kind: str, style: str, shelf: Path, tmp_path: Path) -> None:
    """Also where padding is missing, or id 0 is a piece; rows are as long as the model's positions, 128."""
    published.saved(tmp_path / "model", kind, published.generic(style))
    file, *values = arguments(tmp_path, "model", tmp_path / "run", f"CORPUS={shelf}/text.jsonl")
    run = read_run([file], [value.removeprefix("--gin.") for value in values])
    assert run.continued is not None
    facts, layout, objective = LINES[kind, style]
    first, second, third, *_ = continued.lines(run.continued, run.config)
    assert first == f"Continues from {tmp_path}/model: {facts}, width 32, 512 rows."
    assert second.startswith(f"Vocabulary: {tmp_path}/model, ") and second.endswith(f"a text is read as {layout}.")
    assert third.startswith(f"Objective: {objective}") and third.endswith("8 rows of 128 tokens.")
    assert run.config.optimizer.name == "adamw" and run.config.data.pack


@pytest.mark.night
@pytest.mark.parametrize(("kind", "style"), LINES)
def test_encoders_and_decoders_train_and_resume_by_one_command(
    kind: str, style: str, shelf: Path, tmp_path: Path
) -> None:
    published.saved(tmp_path / "model", kind, published.generic(style))
    more = (f"CORPUS={shelf}/text.jsonl", "TASK_FEATURE_LENGTHS={'targets': 64}")
    if kind in ("llama", "gpt2"):  # a run that is told to end earlier has the same rates
        more = (*more, "config.ScheduleConfig.decay_steps=4")
    train.run(arguments(tmp_path, "model", tmp_path / "whole", *more))
    for steps in (2, 4):
        train.run(arguments(tmp_path, "model", tmp_path / "again", *more, f"TRAIN_STEPS={steps}"))
    whole, again = (LimbaCheckpoint(tmp_path / name / "checkpoints" / "4") for name in ("whole", "again"))
    assert set(whole) == set(again) and all(np.array_equal(whole[name], again[name]) for name in whole)
    assert limba.load(tmp_path / "whole").network.config.vocab_size == published.ROWS


@pytest.mark.night
def test_a_second_stage_has_longer_rows_and_another_base(shelf: Path, tmp_path: Path) -> None:
    """It continues from the first one's run by gin/recipes/longer_rows.gin, and reads that run's own vocabulary."""
    published.saved(tmp_path / "model", "eurobert", published.generic("roberta"))
    more = (f"CORPUS={shelf}/text.jsonl", "TASK_FEATURE_LENGTHS={'targets': 64}")
    train.run(arguments(tmp_path, "model", tmp_path / "first", *more))
    _, *values = arguments(tmp_path, "first", tmp_path / "longer", *more[:1], "TASK_FEATURE_LENGTHS={'targets': 256}")
    train.run(["gin/continue.gin", "gin/recipes/longer_rows.gin", *values])
    second = limba.load(tmp_path / "longer")
    assert isinstance(second.config, RunConfig)
    assert second.config.model.rotary_base == 160_000.0 and second.config.data.sequence_length == 256
    assert second.config.optimizer.schedule.base_learning_rate == 0.0003 and second.step == 4


@pytest.mark.night
@pytest.mark.parametrize("kind", ["mt5", "umt5"])
def test_other_t5s_begin_with_their_loss(kind: str, shelf: Path, tmp_path: Path) -> None:
    published.saved(tmp_path / kind, kind, published.real("unigram"))
    more = (ROWS, f"CORPUS={shelf}/text.jsonl", "TRAIN_STEPS=1")
    train.run(arguments(tmp_path, kind, tmp_path / "run", *more))
    batch = first_batch(config_of(tmp_path, kind, tmp_path / "run", *more))
    assert losses_of(tmp_path / "run")[1] == pytest.approx(loss_in_transformers(tmp_path / kind, batch), rel=1e-4)


def test_a_gin_line_overrides_what_the_model_says(shelf: Path, tmp_path: Path) -> None:
    config = config_of(shelf, "t5", tmp_path / "run", ROWS, "OBJECTIVE=ul2", "EXTRA_IDS=0", "LEARNING_RATE=0.01")
    assert config.data.objective == "ul2" and config.data.extra_ids == 0
    assert config.optimizer.schedule.base_learning_rate == 0.01 and config.reset_step
    assert config.model.vocab_size == published.ROWS and config.model.mlp_activations == ("gelu", "linear")
    deeper = config_of(shelf, "t5", tmp_path / "run", ROWS, "config.ModelConfig.relpos_max_distance=64")
    assert dataclasses.replace(deeper.model, relpos_max_distance=128) == config.model


@pytest.fixture(scope="module")
def byt5(shelf: Path) -> Path:
    """A tiny ByT5 as transformers saves one."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    config = transformers.T5Config(vocab_size=384, feed_forward_proj="gated-gelu", **sizes)
    transformers.T5ForConditionalGeneration(config).save_pretrained(shelf / "byt5")
    transformers.ByT5Tokenizer().save_pretrained(shelf / "byt5")
    return shelf / "byt5"


def test_a_byt5_has_longer_spans_than_a_t5(byt5: Path, shelf: Path, tmp_path: Path) -> None:
    """No more of them in a row than it has sentinels that are in no text; other objectives have no such choice."""
    file, *values = (value.removeprefix("--gin.") for value in arguments(shelf, "byt5", tmp_path / "run"))
    run = read_run([file], values)
    assert run.continued is not None
    _, layout, objective, _ = continued.lines(run.continued, run.config)
    assert layout == "Vocabulary: byte, 259 ids; a text is read as text </s>."
    assert objective == "Objective: span_corruption, spans of 20 tokens; 8 rows of 1,024 inputs and 189 targets."
    vocabulary = resolve_task(run.config.data).output_features["targets"].vocabulary
    batch = first_batch(run.config)
    sentinels = sentinel_table(vocabulary)
    gaps = batch["encoder_input_tokens"] >= min(sentinels)
    assert len(sentinels) == 11 and set(gaps.sum(axis=1)) == {9}

    t5 = config_of(shelf, "t5", tmp_path / "run")
    assert t5.data.mean_noise_span_length is None and t5.data.task_feature_lengths == {"inputs": 512}
    for name in ("ul2", "prefix_lm", "lm_adaptation"):
        config = config_of(shelf, "byt5", tmp_path / "run", f"OBJECTIVE={name}")
        assert config.data.objective == name and config.data.mean_noise_span_length is None
        resolve_task(config.data)
    shorter = config_of(shelf, "byt5", tmp_path / "run", "MEAN_NOISE_SPAN_LENGTH=16")
    assert shorter.data.mean_noise_span_length == 16
    with pytest.raises(ConfigError, match="mean_noise_span_length is set, and the objective of task t5_mlm has no"):
        resolve_task(config_of(shelf, "byt5", tmp_path / "run", "OBJECTIVE=ul2", "MEAN_NOISE_SPAN_LENGTH=16").data)
    of_task = config_of(shelf, "byt5", tmp_path / "run", "OBJECTIVE=None")  # it has made its choices already
    assert of_task.data.mean_noise_span_length is None


def test_a_t5x_byt5_is_known_by_the_vocabulary_that_is_given(byt5: Path, shelf: Path, tmp_path: Path) -> None:
    limba.load(byt5).save(tmp_path / "t5x", format="t5x")
    (checkpoint,) = (tmp_path / "t5x").glob("checkpoint_*")
    given = [f"INITIAL_CHECKPOINT_PATH={checkpoint}", f"CORPUS={shelf}/text.jsonl", f"MODEL_DIR={tmp_path}/run"]
    config = read_run(["gin/continue.gin"], [*given, "VOCABULARY=byte", "EXTRA_IDS=0"]).config
    assert config.data.mean_noise_span_length == 20 and config.data.vocabulary == "byte"


@pytest.mark.night
def test_a_run_leaves_its_spans_to_the_objective_that_it_had(shelf: Path, tmp_path: Path) -> None:
    """Whoever continues a run of shorter spans by another objective has not chosen these."""
    more = (ROWS, "config.DataConfig.mean_noise_span_length=2", "config.DataConfig.noise_density=0.2", "TRAIN_STEPS=1")
    train.run(arguments(shelf, "t5", tmp_path / "first", *more))
    of_run = (f"CORPUS={shelf}/text.jsonl",)
    again = config_of(tmp_path, "first", tmp_path / "run", *of_run)
    assert (again.data.noise_density, again.data.mean_noise_span_length) == (0.2, 2)
    other = config_of(tmp_path, "first", tmp_path / "run", *of_run, "OBJECTIVE=lm_adaptation")
    assert (other.data.noise_density, other.data.mean_noise_span_length) == (None, None)
    resolve_task(other.data)


@pytest.mark.night
def test_a_run_on_bytes_without_spans_keeps_its_objective_s_own(byt5: Path, shelf: Path, tmp_path: Path) -> None:
    """The recipe's spans of 20 bytes are a published ByT5's."""
    own = "config.DataConfig.mean_noise_span_length=None"
    train.run(arguments(shelf, "byt5", tmp_path / "first", ROWS, own, "TRAIN_STEPS=1"))
    of_run = (f"CORPUS={shelf}/text.jsonl",)
    assert config_of(tmp_path, "first", tmp_path / "run", *of_run).data.mean_noise_span_length is None
    chosen = config_of(tmp_path, "first", tmp_path / "run", *of_run, "MEAN_NOISE_SPAN_LENGTH=16")
    assert chosen.data.mean_noise_span_length == 16


def test_its_config_gin_needs_no_model(shelf: Path, tmp_path: Path) -> None:
    file, *values = arguments(shelf, "t5", tmp_path / "run", ROWS)
    run = read_run([file], [value.removeprefix("--gin.") for value in values])
    (tmp_path / "config.gin").write_text(run.text)
    again = read_run([str(tmp_path / "config.gin")])
    assert again.config == run.config and again.continued is None and run.continued is not None


def test_a_path_without_a_model_is_one_sentence(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no_model does not exist: looked there for a Limba run"):
        config_of(shelf, "no_model", tmp_path / "run")
    with pytest.raises(InputError, match=r"INITIAL_CHECKPOINT_PATH is not set: the model: a hub id, a folder"):
        read_run(["gin/continue.gin"], ["CORPUS=x", "MODEL_DIR=x"])
    with pytest.raises(ConfigError, match=r"is None, and the run continues from a model; give a hub id"):
        read_run(["gin/continue.gin"], ["INITIAL_CHECKPOINT_PATH=None", "CORPUS=x", "MODEL_DIR=x"])


def test_an_objective_of_another_family_is_one_sentence(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        config_of(shelf, "t5", tmp_path / "run", "OBJECTIVE=masked_lm")
    assert str(refused.value) == (
        f"OBJECTIVE is 'masked_lm', and {shelf}/t5 is an encoder-decoder of 2 + 2 layers, width 32, which learns 5 of"
        " the 8 objectives: choose span_corruption, whole_word_span_corruption, ul2, prefix_lm, lm_adaptation."
    )


def test_of_two_sets_of_weights_it_is_said_which_is_read(
    shelf: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(shelf / "t5", tmp_path / "twice")
    (folder / "flax_model.msgpack").write_bytes(b"another one")
    config_of(tmp_path, "twice", tmp_path / "run", ROWS, f"CORPUS={shelf}/text.jsonl")
    said = "holds 2 sets of weights, model.safetensors, flax_model.msgpack: model.safetensors is read"
    assert f"{folder} {said}" in caplog.text


def test_a_tokenizer_with_more_ids_than_rows_is_refused(shelf: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(shelf / "t5", tmp_path / "small")
    state = json.loads((folder / "tokenizer.json").read_text())
    state["model"]["vocab"] += [[f"piece{number}", -9.0] for number in range(published.ROWS)]
    (folder / "tokenizer.json").write_text(json.dumps(state))
    config = config_of(tmp_path, "small", tmp_path / "run", ROWS, f"CORPUS={shelf}/text.jsonl")
    with pytest.raises(InputError, match=r"The tokenizer of .*small has 579 ids, and the model 512 rows"):
        limba.train(config)


def test_text_of_another_language_is_a_warning_with_counts(shelf: Path, tmp_path: Path) -> None:
    file, *values = arguments(shelf, "t5", tmp_path / "run", ROWS, f"CORPUS={shelf}/other.jsonl")
    run = read_run([file], [value.removeprefix("--gin.") for value in values])
    assert run.continued is not None
    *_, warning = continued.lines(run.continued, run.config)
    assert warning.startswith("Warning: ") and "tokens of a sample" in warning and "日本語" in warning
    fitting = config_of(shelf, "t5", tmp_path / "run", ROWS)
    assert not any(line.startswith("Warning") for line in continued.lines(run.continued, fitting))


def test_documents_that_are_tokenized_have_no_language(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens.jsonl").write_text(json.dumps({"tokens": [7, 8, 2, 2, 2]}) + "\n")
    more = (ROWS, f"CORPUS={tmp_path}/tokens.jsonl", "COLUMN=tokens")
    file, *values = arguments(shelf, "t5", tmp_path / "run", *more)
    run = read_run([file], [value.removeprefix("--gin.") for value in values])
    assert run.continued is not None
    *_, last = continued.lines(run.continued, run.config)
    assert last.startswith("Learning rate")


def test_what_a_vocabulary_has_pieces_for(shelf: Path) -> None:
    vocabulary = load_vocabulary(str(shelf / "t5" / "tokenizer.json"), 100)
    assert coverage(vocabulary, published.CORPUS[:5]).share == 1
    counted = coverage(vocabulary, ["日本語 a few words", "日本語"])
    assert counted.unknown == 2 and counted.examples == ("日本語",) and 0 < counted.share < 1
    assert coverage(vocabulary, []).share == 1


def test_replay_mixes_other_text_in(shelf: Path, tmp_path: Path) -> None:
    """Of the rows that a run reads, the given share holds the unknown piece of the text in another script."""
    more = (ROWS, f"REPLAY={shelf}/other.jsonl", "REPLAY_SHARE=0.25")
    file, *values = arguments(shelf, "t5", tmp_path / "run", *more)
    run = read_run([file], [value.removeprefix("--gin.") for value in values])
    assert run.continued is not None
    assert f"Replay: 25% of the rows come from {shelf}/other.jsonl." in list(continued.lines(run.continued, run.config))
    (stage,), _ = stages_of(run.config.data)
    unknown = stage.task.output_features["targets"].vocabulary.unk_id
    with contextlib.closing(open_stages(*stages_of(run.config.data), range(2))) as stream:
        stream.begin(0)
        rows = np.concatenate([part["inputs"] for _ in range(40) for part in next(stream).values()])
    share = float(np.mean((rows == unknown).any(axis=1)))
    assert len(rows) == 320 and share == pytest.approx(0.25, abs=0.08)  # three standard deviations


def test_replay_beside_a_mixture_is_refused(shelf: Path, tmp_path: Path) -> None:
    config = config_of(shelf, "t5", tmp_path / "run", ROWS, f"REPLAY={shelf}/other.jsonl")
    data = dataclasses.replace(config.data, mixture_or_task_name="en_ms_both", data_files=None)
    import_tasks("tasks.en_ms", "this test names")
    with pytest.raises(ConfigError, match="is mixed into the text of one task, and en_ms_both is a mixture of several"):
        resolve_task(data)


@pytest.mark.night
def test_preflight_knows_what_the_model_says(shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = arguments(shelf, "t5", tmp_path / "run", ROWS, "EVAL_PERIOD=2")
    assert preflight.run([*argv, "--no_compile", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    lines = [line for section in document["sections"] for line in section["lines"]]
    assert not [line for line in lines if line["level"] == "error"]
    assert any(str(shelf / "t5") in line["text"] for line in lines)


@pytest.mark.night
def test_python_continues_and_resumes_by_the_same_call(shelf: Path, tmp_path: Path) -> None:
    texts = [json.loads(line)["text"] for line in (shelf / "text.jsonl").read_text().splitlines()]
    choices: dict[str, Any] = {
        "model_dir": tmp_path / "run", "BATCH_SIZE": 8, "DTYPE": "float32", "LOG_PERIOD": 1,
        "TASK_FEATURE_LENGTHS": {"inputs": 48}, "CHECKPOINT_PERIOD": 1,
    }  # fmt: skip
    limba.pretrain(texts, start=shelf / "t5", steps=2, **choices)
    model = limba.pretrain(texts, start=str(shelf / "t5"), steps=3, **choices)
    assert set(losses_of(tmp_path / "run")) == {1, 2, 3} and model.step == 3
    assert isinstance(model.config, RunConfig) and model.config.model.vocab_size == published.ROWS


def test_a_t5x_checkpoint_names_no_vocabulary(shelf: Path, tmp_path: Path) -> None:
    """Its arrays tell the network; the vocabulary is asked for in one sentence."""
    limba.load(shelf / "t5").save(tmp_path / "t5x", format="t5x")
    (checkpoint,) = (tmp_path / "t5x").glob("checkpoint_*")
    values = [f"INITIAL_CHECKPOINT_PATH={checkpoint}", f"CORPUS={shelf}/text.jsonl", f"MODEL_DIR={tmp_path}/run"]
    with pytest.raises(InputError, match=r"VOCABULARY is not set: .* names none; give the path of its file, or 'byte'"):
        read_run(["gin/continue.gin"], values)
    config = read_run(["gin/continue.gin"], [*values, f"VOCABULARY={shelf}/t5/tokenizer.json"]).config
    network = config_of(shelf, "t5", tmp_path / "run").model
    assert config.data.objective == "span_corruption"
    assert dataclasses.replace(config.model, dtype="float32") == network
