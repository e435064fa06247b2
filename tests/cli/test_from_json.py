"""The JSON of Hugging Face's T5 scripts: its runs learn, and invalid values are errors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from limba.cli.flags import parse_args
from limba.config import InputError
from limba.formats import huggingface_files
from limba.formats.names import flatten, unstack_layers
from limba.run import train
from tests import tiny

SIZES = {
    **{"model_type": "t5", "vocab_size": 1024, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 1},
    **{"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "dropout_rate": 0.0},
}


@pytest.fixture
def values(corpus: Path, vocabulary: Path, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    (tmp_path / "corpus.txt").write_text("\n".join(" ".join(text.split()) for text in texts))
    return {
        "config_name": str(tmp_path / "config.json"),
        "tokenizer_name": str(vocabulary),
        "train_file": str(tmp_path / "corpus.txt"),
        "output_dir": str(tmp_path / "run"),
        "max_seq_length": 64,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.01,
        "warmup_steps": 5,
        "max_steps": 50,
        "eval_steps": 50,
        "save_steps": 50,
        "logging_steps": 10,
        "cache_dir": "anywhere",
    }


def argument(values: dict[str, Any], folder: Path) -> str:
    (folder / "train.json").write_text(json.dumps(values))
    return str(folder / "train.json")


@pytest.mark.night
def test_a_run_from_scratch_and_one_from_a_model(values: dict[str, Any], tmp_path: Path, capsys) -> None:
    few_shards = "--gin.config.DataConfig.num_data_shards=8"
    config, operative_config, *_ = parse_args([argument(values, tmp_path), few_shards])
    assert config.data.batch_size == 4 * jax.device_count() and config.num_microbatches == 2
    assert config.optimizer.name == "adamw" and config.optimizer.schedule.name == "linear"
    assert config.model.emb_dim == 32 and config.model.dtype == "float32"
    assert "LEARNING_RATE = 0.01  # learning_rate" in capsys.readouterr().out
    again = parse_args([f"--gin_file={tmp_path / 'run' / 'from_json.gin'}", few_shards]).config
    assert again == config
    figures = train(config, operative_config)
    assert figures["step"] == 50 and figures["train"]["loss"] < 6.0 < 7.4  # ln 1024 + 0.5 at first
    assert figures["validation"]["loss"] < 6.3

    from limba.cli import convert

    convert.run(
        ["export", str(tmp_path / "run"), str(tmp_path / "published"), "--formats=pytorch", "--no_check", "--dropout=0"]
    )
    (folder,) = (path.parent for path in (tmp_path / "published").rglob("model.safetensors"))
    values |= {"model_name_or_path": str(folder), "output_dir": str(tmp_path / "on"), "do_eval": False}
    del values["config_name"], values["tokenizer_name"]
    config = parse_args([argument(values, tmp_path), few_shards]).config
    assert config.initial_checkpoint_path == str(folder)
    assert train(config)["train"]["loss"] < figures["train"]["loss"] - 0.1


def test_epochs_become_steps_and_choices_reach_the_objective(
    values: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del values["max_steps"], values["learning_rate"]
    values |= {"num_train_epochs": 2, "mlm_probability": 0.3, "mean_noise_span_length": 5.0, "bf16": True}
    values |= {
        "adafactor": True,
        "weight_decay": 0.001,
        "adam_beta1": 0.9,
        "adam_epsilon": 1e-8,
        "do_eval": False,
        "validation_split_percentage": 10,
    }
    config = parse_args([argument(values, tmp_path)]).config
    assert config.data.num_epochs == 2 and 3 < config.train_steps < 1_000
    assert (config.data.noise_density, config.data.mean_noise_span_length) == (0.3, 5.0)
    assert config.optimizer.weight_decay == 0.0  # the Flax script's Adafactor does not take it
    assert config.optimizer.name == "adafactor" and config.model.dtype == "bfloat16"
    assert "# adam_beta1, adam_epsilon: Adafactor has none, here and in the scripts." in capsys.readouterr().out
    assert config.optimizer.schedule.base_learning_rate == 5e-5 and config.random_seed == 42  # those scripts' own
    assert config.data.validation_percent == 10 and config.evaluation.every_steps > config.train_steps
    from limba.data.objectives import derive_lengths
    from limba.data.tasks import resolve_task

    lengths = derive_lengths(resolve_task(config.data), config.data.task_feature_lengths)
    assert lengths["targets"] > 20  # of 0.15 and 3: 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"learnin_rate": 1.0},
            r"'learnin_rate', which is not known; did you mean learning_rate\? \(docs/coming_from_huggingface\.md",
        ),
        ({"max_steps": "many"}, "max_steps 'many'; give a whole number"),
        ({"fp16": True, "bf16": True}, "gives bf16 True and fp16 True, which are bfloat16 and float16; leave one out"),
        ({"dtype": "float32", "mixed_precision": "bf16"}, "gives mixed_precision 'bf16' and dtype 'float32'"),
        ({"per_device_eval_batch_size": 0}, "per_device_eval_batch_size 0; give a whole number above 0"),
        ({"deepspeed": "ds.json"}, "has no counterpart here; set config.MeshConfig.fsdp"),
        ({"do_train": False, "do_eval": False}, "nothing to do"),
        ({"max_source_length": 64}, "gives max_source_length, a flag of Hugging Face's scripts for summaries"),
        ({"train_file": None}, "one of train_file and dataset_name; it gives neither"),
        ({"dataset_name": "a/b"}, "it gives both"),
        ({"output_dir": None}, "no output_dir"),
        ({"learning_rate": -1.0}, r"^learning_rate is -1.0; give a number above 0, at most 1,000 \(usual: .*\)\.$"),
        ({"adam_beta1": 2.0}, "^adam_beta1 is 2.0; "),
        ({"config_name": None}, "neither model_name_or_path nor config_name"),
        ({"config_name": "/nowhere/config.json"}, "/nowhere/config.json"),
        ({"tokenizer_name": "/nowhere"}, "/nowhere"),
        ({"lr_scheduler_type": "polynomial"}, "give one of linear, cosine"),
        ({"optim": "lion"}, "give adamw_torch or adafactor"),
        ({"num_warmup_steps": 7}, "gives warmup_steps and num_warmup_steps different values"),
        ({"warmup_ratio": 0.1}, "gives warmup_ratio 0.1 and warmup_steps 5, which contradict each other"),
        ({"adafactor": True, "optim": "adamw_torch"}, "gives adafactor True and optim 'adamw_torch'"),
        ({"do_eval": False, "eval_strategy": "steps"}, "gives do_eval False and eval_strategy 'steps'"),
        ({"eval_strategy": "no", "evaluation_strategy": "steps"}, "eval_strategy and evaluation_strategy different"),
        ({"max_steps": None, "train_file": "/nowhere.txt"}, "/nowhere.txt"),
    ],
)
def test_what_cannot_be_meant_is_said(values: dict[str, Any], tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_args([argument(values | change, tmp_path)])


@pytest.mark.night
def test_do_train_false_only_evaluates(values: dict[str, Any], vocabulary: Path, tmp_path: Path) -> None:
    """The model that is named where output_dir holds no run, else that run; nothing is trained or overwritten."""
    folder = tmp_path / "t5"
    run = Path(values["output_dir"])
    root = Path(__file__).parents[2]
    folder.mkdir()
    sizes = {"emb_dim": 32, "mlp_dim": 64, "num_heads": 4, "head_dim": 8, "num_encoder_layers": 1}
    model = tiny.model(vocab_size=1024, num_decoder_layers=1, **sizes)
    leaves = {name: np.asarray(leaf) for name, leaf in flatten(tiny.parameters(model)).items()}
    huggingface_files.write_configs(folder, model, "float32")
    huggingface_files.write_pytorch(folder, unstack_layers(leaves), model)
    (folder / "spiece.model").write_bytes(vocabulary.read_bytes())
    del values["config_name"], values["tokenizer_name"]
    values |= {"model_name_or_path": str(folder), "do_train": False, "do_eval": True, "per_device_eval_batch_size": 2}
    trained = values | {"do_train": True, "max_steps": 4, "eval_strategy": "no"}
    commands = []
    for number, settings in enumerate((values, trained, values)):
        (tmp_path / f"{number}.json").write_text(json.dumps(settings))
        commands.append(["train", str(tmp_path / f"{number}.json"), "--gin.config.DataConfig.num_data_shards=2"])
    program = [sys.executable, "-m", "tests.cli.script_commands", json.dumps(commands), str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    with (tmp_path / "said.txt").open("w+") as said:
        subprocess.run(
            program, env={**environment, "PYTHONPATH": str(root)}, cwd=root, stdout=said, stderr=said, timeout=600,
            check=False,
        )  # fmt: skip
        said.seek(0)
        printed = said.read()
    assert printed.count("=== ended 0") == 3, printed[-4000:]
    first, _, again = printed.split("=== ended 0")[:3]
    assert " step 0, validation" in first and "bits per byte" in first and " step 4, validation" in again
    reports = sorted((run / "evaluations").glob("evaluation-*-validation.json"))
    losses = [json.loads(report.read_text())["figures"]["loss"] for report in reports]
    assert [report.name.split("-")[1] for report in reports] == ["0", "4"] and losses[1] < losses[0]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["4"]


def test_files_that_are_no_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(InputError, match="holds no JSON object"):
        parse_args([str(tmp_path / "a.json")])
    with pytest.raises(InputError, match="cannot be read as JSON"):
        parse_args([str(tmp_path / "none.json")])
    with pytest.raises(InputError, match="give one"):
        parse_args([str(tmp_path / "a.json"), "--gin_file=gin/demo.gin"])
