"""Whole runs of an encoder, by the gin files: it learns, fills masks, is evaluated, looked at before and after."""

import contextlib
import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from limba.cli import convert, evaluate, flags
from limba.cli.gin import read_model
from limba.config import ConfigError, InputError, RunConfig, saved_config
from limba.data.packing import PREDICTED
from limba.data.stream.stages import open_stages
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.inference.load import load
from limba.run import train
from limba.tools.pages import report
from limba.tools.preflight import preflight
from limba.training.checkpoints.initial import check_length
from limba.training.metrics.logging import read_metrics
from tests.data.stream.test_stages import stages_of
from tests.export.runs import write_run
from tests.run.logged import losses_of

GIN = """
from __gin__ import dynamic_registration

from tasks import t5_mlm

include 'gin/models/encoder/tiny.gin'
include 'gin/runs/pretrain_encoder.gin'

MIXTURE_OR_TASK_NAME = 't5_mlm'
TASK_FEATURE_LENGTHS = {'targets': 64}
VOCAB_SIZE = 512
NEW_VOCABULARY_SIZE = 500
BATCH_SIZE = 16
TRAIN_STEPS = 30
WARMUP_STEPS = 5
LEARNING_RATE = 0.005
LOG_PERIOD = 1
EVAL_PERIOD = 30
CHECKPOINT_PERIOD = 15
PROMPTS = ('The value of the <mask> is a string.',)
"""


def arguments(tmp_path: Path, corpus: Path, *more: str) -> list[str]:
    (tmp_path / "encoder.gin").write_text(GIN)
    return [str(tmp_path / "encoder.gin"), f"--gin.MODEL_DIR={tmp_path}/run", f"--gin.CORPUS={corpus}", *more]


@pytest.mark.slow
def test_a_run_learns_and_fills(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = arguments(tmp_path, corpus, "--gin.OBJECTIVE=whole_word_masked_lm")
    config = flags.parse_args(run).config
    result = train(config)
    records = read_metrics(config.model_dir)
    losses = losses_of(config)
    assert abs(losses[1] - math.log(512) - 0.5) < 0.6 and losses[30] < losses[1] - 0.5
    assert 1.0 < result["validation"]["bits_per_byte"] < 8.0
    (sample,) = [record["texts"] for record in records if record["kind"] == "samples"]
    (text,) = sample["The value of the <mask> is a string."]
    assert re.fullmatch(r"The value of the \[\S+\] is a string\.", text)
    model = load(config.model_dir)
    assert model.encode(["A text."]).shape == (1, 128)
    report.run([config.model_dir])
    page = (Path(config.model_dir) / "report.html").read_text()
    assert "about 307.2 a step (30%); 9,216 in the run; at most 384 a step" in page
    capsys.readouterr()
    evaluate.run([config.model_dir])
    shown = re.search(r"loss ([\d.]+) \|", capsys.readouterr().out)
    assert shown and float(shown[1]) == pytest.approx(result["validation"]["loss"], abs=0.02)  # which is bfloat16's


@pytest.mark.night
def test_a_run_resumes_with_the_vocabulary_of_another(tmp_path: Path, corpus: Path) -> None:
    config = flags.parse_args(arguments(tmp_path, corpus, "--gin.OBJECTIVE=whole_word_masked_lm")).config
    train(config)
    again = dataclasses.replace(config, model_dir=f"{tmp_path}/again", train_steps=15)
    vocabulary = dataclasses.replace(config.data, vocabulary=f"{config.model_dir}/vocabulary.model")
    again = dataclasses.replace(again, data=vocabulary)
    train(again)
    train(dataclasses.replace(again, train_steps=30))
    assert losses_of(again) == pytest.approx(losses_of(config), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [(4,), pytest.param((3, 4, 5), marks=pytest.mark.night)], ids=["at", "around"])
def test_causal_then_masked_resumes_at_the_border_bit_by_bit(
    steps: tuple[int, ...], tmp_path: Path, corpus: Path, vocabulary: Path
) -> None:
    run = arguments(
        tmp_path,
        corpus,
        f"--gin.VOCABULARY={vocabulary}",
        "--gin.VOCAB_SIZE=1024",
        "--gin.OBJECTIVE='causal_lm'",
        "--gin.CHECKPOINT_PERIOD=100",
        "--gin.TRAIN_STEPS=8",
        "--gin.config.DataConfig.stages=((4, 't5_mlm', 'masked_lm'),)",
    )
    whole = flags.parse_args(run).config
    result = train(whole)
    for stop in steps:
        again = dataclasses.replace(whole, model_dir=f"{tmp_path}/{stop}")
        for end in (stop, 8):  # the first one saves before, at or after the border, the second one resumes
            train(dataclasses.replace(again, train_steps=end))
        assert losses_of(again) == losses_of(whole)
        ours, theirs = (LimbaCheckpoint(Path(config.model_dir) / "checkpoints" / "8") for config in (again, whole))
        assert all(np.array_equal(ours[array], theirs[array]) for array in theirs)
    assert result["validation"]["target_tokens"] < 0.35 * 20 * 16 * 64  # masked, whatever the stage
    report.run([whole.model_dir])
    said = "about 1,024 a step (100%); from step 4 on about 307.2 a step (30%); 5,325 in the run; at most 1,024 a step"
    assert said in (Path(whole.model_dir) / "report.html").read_text()


@pytest.mark.night
def test_the_share_of_hidden_tokens_falls_at_a_step_and_resumes_there(
    tmp_path: Path, corpus: Path, vocabulary: Path
) -> None:
    run = arguments(
        tmp_path,
        corpus,
        f"--gin.VOCABULARY={vocabulary}",
        "--gin.VOCAB_SIZE=1024",
        "--gin.NOISE_DENSITY=0.5",
        "--gin.CHECKPOINT_PERIOD=100",
        "--gin.TRAIN_STEPS=6",
        "--gin.config.DataConfig.stages=((2, 't5_mlm', 'masked_lm', 0.25), (4, 't5_mlm', 'masked_lm', 0.125))",
    )
    whole = flags.parse_args(run).config
    assert whole.data.num_predicted == 32 and whole.data.named_stages[1] == (2, "t5_mlm (0.25)")
    train(whole)
    with contextlib.closing(open_stages(*stages_of(whole.data), range(whole.data.num_shards))) as stream:
        stream.begin(0)
        batches = [np.concatenate([rows["inputs"] for rows in next(stream).values()]) for _ in range(6)]
    shares = [float(np.mean(inputs >= PREDICTED)) for inputs in batches]
    assert shares == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.125, 0.125], abs=0.02)
    again = dataclasses.replace(whole, model_dir=f"{tmp_path}/again")
    for end in (2, 3, 6):  # at a border, and after it
        train(dataclasses.replace(again, train_steps=end))
    assert losses_of(again) == losses_of(whole)


@pytest.mark.slow
def test_a_hybrid_learns_both_in_one_batch_and_becomes_a_llama(tmp_path: Path, corpus: Path, vocabulary: Path) -> None:
    run = arguments(
        tmp_path,
        corpus,
        f"--gin.VOCABULARY={vocabulary}",
        "--gin.VOCAB_SIZE=1024",
        "--gin.TRAIN_STEPS=10",
        "--gin.CAUSAL_SHARE=0.5",
        "--gin.config.ModelConfig.attention_mask='hybrid'",
    )
    config = flags.parse_args(run).config
    train(config)
    losses = losses_of(config)
    assert abs(losses[1] - math.log(1024) - 0.5) < 0.6 and losses[10] < losses[1] - 0.5
    assert load(config.model_dir).fill("The value of <mask> is.", top=2)[0][0].probability > 0
    convert.run([config.model_dir])
    (folder,) = (Path(config.model_dir) / "huggingface").iterdir()
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert load(folder).generate(["The value"], max_tokens=4)[0].startswith("The value")


@pytest.mark.slow
def test_preflight_looks_at_an_encoder(tmp_path: Path, corpus: Path, vocabulary: Path, capsys) -> None:
    run = arguments(tmp_path, corpus, f"--gin.VOCABULARY={vocabulary}", "--gin.VOCAB_SIZE=1024")
    code = preflight.run([*run, "--no_compile", "--all"])
    shown = capsys.readouterr().out
    assert code == 0 and "Verdict: go." in shown, shown
    assert "t5_mlm: encoder, 0 + 4 layers" in shown and "A row is one sequence of 64 tokens" in shown
    assert "About 307 tokens a step are masked and predicted (19 of a row)." in shown
    assert "In the run these are 9,216 masked tokens; the output layer computes 24 of a row." in shown


@pytest.mark.slow
def test_what_an_encoder_s_run_cannot_do_is_said_before_it_starts(
    tmp_path: Path, corpus: Path, vocabulary: Path
) -> None:
    run = arguments(tmp_path, corpus, f"--gin.VOCABULARY={vocabulary}", "--gin.VOCAB_SIZE=1024")
    with pytest.raises(InputError, match="has no <mask> and no <extra_id_0> to hide tokens with"):
        train(flags.parse_args([*run, "--gin.EXTRA_IDS=0"]).config)
    with pytest.raises(ConfigError, match="is an encoder, which does not continue a prompt; write <mask>"):
        train(flags.parse_args([*run, "--gin.PROMPTS=('A text',)"]).config)
    with pytest.raises(ConfigError, match="gives rows of 8,200 tokens, and the encoder reads at most 8,192; give"):
        train(flags.parse_args([*run, "--gin.TASK_FEATURE_LENGTHS={'targets': 8200}", "--gin.PACK=True"]).config)
    with pytest.raises(ConfigError, match="an encoder, which is 'bidirectional', learns masked_lm or"):
        flags.parse_args([*run, "--gin.OBJECTIVE='causal_lm'"])


def test_rows_longer_than_an_encoder_has_learned_are_refused(tmp_path: Path, corpus: Path, vocabulary: Path) -> None:
    network = read_model("gin/models/encoder/tiny.gin")
    write_run(tmp_path / "pretrained", dataclasses.replace(network, vocab_size=1024))

    def of(start: Path, length: int, *more: str) -> RunConfig:
        flags_given = [
            f"--gin.VOCABULARY={vocabulary}", "--gin.EXTRA_IDS=1", "--gin.VOCAB_SIZE=1024",
            f"--gin.TASK_FEATURE_LENGTHS={{'targets': {length}}}", f"--gin.INITIAL_CHECKPOINT_PATH={start}",
        ]  # fmt: skip
        return flags.parse_args([*arguments(tmp_path, corpus, *flags_given), *more]).config

    def written_by(run: RunConfig, name: str) -> Path:
        shutil.copytree(tmp_path / "pretrained", tmp_path / name)
        (tmp_path / name / saved_config.FILE).write_text(saved_config.to_text(run))
        return tmp_path / name

    first = written_by(dataclasses.replace(of(tmp_path, 24), initial_checkpoint_path=None), "first")
    sentence = "gives rows of 32 tokens, .* was trained with 24; .* at most 24, or .*rotary_base above its 250000"
    with pytest.raises(ConfigError, match=sentence):
        train(of(first, 32))
    base = "--gin.config.ModelConfig.rotary_base"
    with pytest.raises(ConfigError, match=sentence):
        check_length(of(first / "checkpoints/5", 32, f"{base}=250_000.0"))
    check_length(of(first, 24))
    check_length(of(first, 32, f"{base}=1_000_000.0"))
    second = written_by(of(first, 16), "second")  # 24 is still what it has learned, as far as that can be seen
    check_length(of(second, 24))
    with pytest.raises(ConfigError, match="second was trained with 24"):
        check_length(of(second, 25))
    check_length(of(written_by(of(tmp_path / "gone", 16), "third"), 2_000))

    flags_of_export = [f"--vocabulary={vocabulary}", "--extra_ids=1", "--no_check"]
    convert.run([str(tmp_path / "pretrained"), str(tmp_path / "out"), *flags_of_export])
    folder = tmp_path / "out/step_5"
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 16}))
    check_length(of(folder, 16))
    with pytest.raises(ConfigError, match="step_5 was trained with 16"):
        check_length(of(folder, 17))
