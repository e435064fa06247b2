"""The keys and flags of Hugging Face's scripts: all known, the three forms equal, and what each becomes."""

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import MT5Config, T5Config, TrainingArguments

from limba.cli.gin import read_run, read_translated
from limba.config import InputError
from limba.data import task_modules
from limba.data.registry import TaskRegistry
from limba.formats import huggingface
from limba.storage import servers
from limba.tools.migrate.huggingface import corpus, keys, translation, values

# Of seed scripts' own lists, and of run_t5_mlm_flax.py.
OF_SCRIPTS = re.findall(
    r"\w+",
    """model_name_or_path config_name tokenizer_name dtype dataset_name dataset_config_name train_file
 validation_file max_seq_length mlm_probability mean_noise_span_length output_dir per_device_train_batch_size
 per_device_eval_batch_size learning_rate num_train_epochs warmup_steps logging_steps save_steps eval_steps
 gradient_accumulation_steps max_grad_norm mixed_precision push_to_hub push_to_hub_final_step hub_model_id hub_token
 hub_private_repo preprocessing_num_workers model_type cache_dir use_fast_tokenizer use_auth_token overwrite_cache
 train_ref_file validation_split_percentage overwrite_output_dir do_train do_eval weight_decay adam_beta1 adam_beta2
 adam_epsilon adafactor seed save_strategy logging_dir logging_first_step resume_from_checkpoint tpu_num_cores""",
)
BASE = {
    "output_dir": "out", "config_name": "small.json", "tokenizer_name": "byte", "train_file": "c.txt", "max_steps": 20,
}  # fmt: skip


@pytest.fixture
def translated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function from overrides and keys to the translation, in a folder with a small config.json."""
    monkeypatch.chdir(tmp_path)
    Path("small.json").write_text(json.dumps({"d_model": 64, "num_layers": 2}))
    monkeypatch.setattr(translation, "_num_devices", lambda: 2)
    monkeypatch.delenv("HF_TOKEN", raising=False)

    def of(*overrides: str, **changes: Any) -> translation.Translation:
        return translation._translated(*values.read_values(None, {**BASE, **changes}), overrides)

    return of


def bound(result: translation.Translation) -> dict[str, Any]:
    return {name: value for name, (value, _) in result.bindings.items()}


def test_every_key_is_known_and_every_harmless_one_has_one_line() -> None:
    of_arguments = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert not of_arguments - set(keys.KNOWN)
    assert not set(OF_SCRIPTS) - set(keys.KNOWN) - {"train_ref_file"}
    for key in keys.NOTED:
        (line,) = values.read_values(None, {key: "something else"})[2]
        assert line.startswith(f"{key} 'something else': ") and "\n" not in line
    for key in keys.REFUSED:
        with pytest.raises(InputError, match=f"gives {key} 'x', which has no counterpart here; "):
            values.read_values(None, {key: "x"})


def test_the_defaults_of_training_arguments_ask_for_nothing() -> None:
    """A dump of a whole TrainingArguments, as it is often saved."""
    arguments = {
        field.name: field.default
        for field in dataclasses.fields(TrainingArguments)
        if field.default is not dataclasses.MISSING and not hasattr(field.default, "value")
    }
    read, _, notes = values.read_values(None, {key: value for key, value in arguments.items() if key != "debug"})
    assert read["learning_rate"] == 5e-5 and not notes


@pytest.mark.parametrize("word", ["False", "false", "no", "0", "0.0", "None", "null", "{}", ""])
def test_a_flag_that_spells_nothing_asks_for_nothing(word: str) -> None:
    for key in (*keys.REFUSED, *keys.NOTED):
        for argv in ([f"--{key}={word}"], [f"--{key}", word]):
            parsed = values.parse(argv)
            assert parsed is not None
            assert values.read_values(None, parsed.flags) == ({}, values.COMMAND_LINE, []), key


def test_a_flag_that_spells_the_usual_value_needs_no_line() -> None:
    for key, usual in keys.SILENT.items():
        for value in usual:
            assert not values.read_values(None, {key: str(value)})[2], key
    assert values.read_values(None, {"neftune_noise_alpha": 0.0})[2] == []
    for flag in ("--save_only_model", "--save_only_model=1", "--neftune_noise_alpha=5"):
        with pytest.raises(InputError, match="which has no counterpart here"):
            values.read_values(None, values.parse([flag]).flags)


@pytest.mark.parametrize("word", ["False", "no", "0", "None", "null", "True", "yes", "1", ""])
def test_a_token_that_is_a_truth_value_is_the_login(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    for key in keys.TOKENS:
        assert values.read_values(None, {key: word})[0] == {}
        assert "HF_TOKEN" not in os.environ


@pytest.mark.parametrize("kind", [T5Config, MT5Config])
def test_a_config_that_lacks_keys_has_the_defaults_of_transformers(kind: Any, tmp_path: Path) -> None:
    theirs = kind()
    names = {
        "vocab_size": "vocab_size", "d_model": "emb_dim", "d_kv": "head_dim", "d_ff": "mlp_dim",
        "num_layers": "num_encoder_layers", "num_decoder_layers": "num_decoder_layers", "num_heads": "num_heads",
        "relative_attention_num_buckets": "num_relpos_buckets",
        "relative_attention_max_distance": "relpos_max_distance",
        "layer_norm_epsilon": "layer_norm_epsilon", "tie_word_embeddings": "logits_via_embedding",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind.model_type}))
    ours = huggingface.model_config(path)
    for their, our in names.items():
        assert getattr(ours, our) == getattr(theirs, their), their
    assert (len(ours.mlp_activations) == 2) is theirs.is_gated_act
    # Each key alone, with a value of its own.
    for their, our in names.items():
        value = not getattr(theirs, their) if isinstance(getattr(theirs, their), bool) else getattr(theirs, their) * 2
        path.write_text(json.dumps({"model_type": kind.model_type, their: value}))
        assert getattr(huggingface.model_config(path), our) == value, their
    path.write_text(json.dumps({"hidden_size": 96, "num_attention_heads": 3}))
    assert huggingface.model_config(path, kind="t5").emb_dim == 96
    with pytest.raises(InputError, match="describes a None"):
        huggingface.model_config(path)


def test_json_and_command_line_are_one_thing(translated, tmp_path: Path) -> None:
    settings = {**BASE, "learning_rate": 3e-4, "do_train": True, "bf16": True, "logging_steps": 7, "seed": 3}
    Path("a.json").write_text(json.dumps(settings))
    flags = [part for key, value in settings.items() for part in (f"--{key}", *([] if value is True else [str(value)]))]
    wanted = translated(**settings).bindings
    for argv in (flags, ["run_t5_mlm.py", *flags], [f"--{key}={value}" for key, value in settings.items()]):
        parsed = values.parse(argv)
        assert parsed is not None and not parsed.rest and parsed.json is None
        result = translation._translated(*values.read_values(None, parsed.flags))
        assert result.bindings == wanted
    for argv in (["a.json"], ["run_t5_mlm.py", "a.json"], ["a.json", "--gin.TRAIN_STEPS=3"]):
        parsed = values.parse(argv)
        assert parsed is not None and parsed.json == "a.json"
        assert parsed.rest == [argument for argument in argv if argument.startswith("--gin.")]
        result = translation._translated(*values.read_values(parsed.json, parsed.flags))
        assert result.bindings == wanted
    assert values.parse(["gin/demo.gin", "--gin.CORPUS=a.json"]) is None
    assert values.parse(["gin/demo.gin"]) is None
    with_gin = values.parse(["a.json", "--gin_search_paths", "x", "--gin.A=1", "--max_steps=-1", "--no_do_eval"])
    assert with_gin.rest == ["--gin_search_paths", "x", "--gin.A=1"]
    assert with_gin.flags == {"max_steps": "-1", "do_eval": False}


def test_strings_are_numbers_and_periods_may_be_shares(translated) -> None:
    values_read = bound(
        translated(learning_rate="5e-5", max_steps="200", save_steps=0.25, warmup_ratio=0.1, bf16="true")
    )
    assert (
        values_read["LEARNING_RATE"] == 5e-5
        and values_read["TRAIN_STEPS"] == 200
        and values_read["DTYPE"] == "bfloat16"
    )
    assert values_read["CHECKPOINT_PERIOD"] == 50 and values_read["WARMUP_STEPS"] == 20
    values_read = bound(translated(max_steps=90, save_strategy="no", logging_strategy="steps"))
    assert values_read["CHECKPOINT_PERIOD"] > 90 and values_read["LOG_PERIOD"] == 500


@pytest.fixture
def rows_of_a_file(translated) -> Any:
    """A function from keys to the bindings of a run of 400 texts, each of which fills a row; none is for validation."""
    lines = [
        json.dumps({"text": f"{number:0568d}"}) for number in range(400)
    ]  # bytes that span corruption makes 512 of
    Path("rows.jsonl").write_text("\n".join(lines) + "\n")
    Path("some.jsonl").write_text(lines[0] + "\n")
    files = {"train_file": "rows.jsonl", "validation_file": "some.jsonl", "max_steps": None}

    def of(*overrides: str, **changes: Any) -> dict[str, Any]:
        return bound(translated(*overrides, **files | {"per_device_train_batch_size": 10} | changes))

    return of


@pytest.mark.parametrize("override", ["TRAIN_STEPS=1000", "config.RunConfig.train_steps=1000"])
def test_shares_are_of_the_steps_that_the_run_has(translated, override: str) -> None:
    shares = {"max_steps": 100_000, "warmup_ratio": 0.1, "save_steps": 0.1, "eval_steps": 0.05, "logging_steps": 0.01}
    names = ("WARMUP_STEPS", "CHECKPOINT_PERIOD", "EVAL_PERIOD", "LOG_PERIOD")
    assert [bound(translated(**shares))[name] for name in names] == [10_000, 10_000, 5_000, 1_000]
    assert [bound(translated(override, **shares))[name] for name in names] == [100, 100, 50, 10]
    assert bound(translated(override, "WARMUP_STEPS=7", **shares))["WARMUP_STEPS"] == 7


@pytest.mark.parametrize(
    ("override", "steps"),
    [
        ("NUM_EPOCHS=10", 201),
        ("BATCH_SIZE=10", 121),
        ("config.DataConfig.batch_size=10", 121),
        ("TASK_FEATURE_LENGTHS={'inputs': 1024}", 30),
        ("MAX_EXAMPLES=100", 16),
        ("CORPUS={'train': 'some.jsonl', 'validation': 'some.jsonl'}", 1),
        ("NOISE_DENSITY=0.5", 45),
        ("TRAIN_STEPS=None", 61),
        ("LOG_PERIOD=3", 61),
    ],
)
def test_epochs_are_counted_with_what_is_overridden(rows_of_a_file, override: str, steps: int) -> None:
    rows = rows_of_a_file(override, num_train_epochs=3, save_steps=0.5)
    counted = rows["TRAIN_STEPS"] or 61
    assert counted == steps and rows["CHECKPOINT_PERIOD"] == max(1, round(steps / 2))
    assert rows["NUM_EPOCHS"] == (10 if override == "NUM_EPOCHS=10" else 3)


def test_a_try_of_two_steps_and_the_run_that_resumes_it_have_the_same_epochs(rows_of_a_file) -> None:
    """A run that resumes must have the same DataConfig.num_epochs."""
    rows = rows_of_a_file("TRAIN_STEPS=2")
    assert (rows["TRAIN_STEPS"], rows["NUM_EPOCHS"]) == (2, 3)
    assert rows_of_a_file()["NUM_EPOCHS"] == 3


def test_train_steps_are_the_run_s_and_epochs_stay_unless_an_override_takes_them_away(rows_of_a_file) -> None:
    rows = rows_of_a_file("TRAIN_STEPS=1000", num_train_epochs=3, warmup_ratio=0.1)
    assert (rows["TRAIN_STEPS"], rows["WARMUP_STEPS"], rows["NUM_EPOCHS"]) == (1_000, 100, 3)
    rows = rows_of_a_file("TRAIN_STEPS=1000", "NUM_EPOCHS=None", num_train_epochs=3)
    assert (rows["TRAIN_STEPS"], rows["NUM_EPOCHS"]) == (1_000, None)
    rows = rows_of_a_file("BATCH_SIZE=10", max_steps=90, save_strategy="epoch")
    assert (rows["TRAIN_STEPS"], rows["CHECKPOINT_PERIOD"]) == (90, 40)
    with pytest.raises(InputError, match="An epoch's steps are counted from CORPUS, VOCABULARY and"):
        rows_of_a_file("CORPUS=None", num_train_epochs=3)


def test_a_billion_steps_are_steps(rows_of_a_file, translated) -> None:
    """It is also what stands for a length that is not counted yet."""
    billion = 10**9
    rows = rows_of_a_file("NUM_EPOCHS=None", f"TRAIN_STEPS={billion}", num_train_epochs=3, warmup_ratio=0.1)
    assert (rows["TRAIN_STEPS"], rows["WARMUP_STEPS"]) == (billion, billion // 10)
    result = translated(f"config.RunConfig.train_steps={billion}", max_steps=None)
    assert result.bindings["TRAIN_STEPS"] == (billion, "--gin.config.RunConfig.train_steps")
    assert translated(max_steps=billion).bindings["TRAIN_STEPS"] == (billion, "max_steps")


@pytest.mark.parametrize("name", ["MODEL_DIR", "config.RunConfig.model_dir"])
def test_the_file_and_the_notes_name_the_folder_that_the_run_has(translated, tmp_path: Path, name: str) -> None:
    translated()  # writes the model's config.json
    Path("c.txt").write_text("One text.\n")
    run = translation.read_script(None, BASE | {"do_predict": True}, [f"{name}=runs/other"])
    folder = tmp_path / "runs" / "other"
    assert run.config.model_dir == str(folder) and not Path("out").exists()
    assert f"limba generate {folder} --input=FILE" in (folder / "from_json.gin").read_text()
    Path("file").touch()
    key = "output_dir" if name != "MODEL_DIR" else "--gin.MODEL_DIR"
    with pytest.raises(InputError, match=f"^{key} .*/file cannot be written"):
        translation.read_script(None, BASE, [f"{name}=file"])


def test_what_follows_from_an_overridden_choice_follows_the_override(translated) -> None:
    assert bound(translated("BATCH_SIZE=4", max_eval_samples=100))["EVAL_STEPS"] == 25
    assert bound(translated("config.EvaluationConfig.batch_size=50", max_eval_samples=100))["EVAL_STEPS"] == 2
    best = bound(translated("config.CheckpointConfig.best_metric=chrf", load_best_model_at_end=True))
    assert best["config.CheckpointConfig.best_mode"] == "max"
    assert bound(translated("MODEL_DIR=runs/other", push_to_hub=True))["HUB_MODEL_ID"] == "other"
    rule = "config.OptimizerConfig.name"
    adafactor = bound(translated(f"{rule}=adafactor", weight_decay=0.1, adam_beta1=0.8))
    assert adafactor == bound(translated(adafactor=True, weight_decay=0.1))
    adamw = bound(translated(f"{rule}=adamw", adafactor=True, weight_decay=0.1))
    assert adamw == bound(translated(weight_decay=0.1)) | {rule: "adamw"}


def test_the_written_file_is_the_run_with_its_overrides(rows_of_a_file) -> None:
    rows_of_a_file()  # writes the corpus
    flags = BASE | {"max_steps": 100_000, "warmup_ratio": 0.1, "train_file": "rows.jsonl"}
    overrides = ["TRAIN_STEPS=1000", "config.DataConfig.num_data_shards=8", "LEARNING_RATE=0.5"]
    run = translation.read_script(None, flags, overrides)
    assert run.config.optimizer.schedule.warmup_steps == 100
    assert read_run(["out/from_json.gin"]).config == run.config
    assert "TRAIN_STEPS = 1000  # --gin.TRAIN_STEPS" in Path("out/from_json.gin").read_text()


def test_a_period_of_an_epoch_is_the_corpus_s_whatever_max_steps_is(rows_of_a_file) -> None:
    for length in ({"num_train_epochs": 7}, {"max_steps": 90}, {"max_steps": 90, "num_train_epochs": 7}):
        rows = rows_of_a_file(**length, eval_strategy="epoch", save_strategy="epoch", logging_strategy="epoch")
        assert [rows[name] for name in ("EVAL_PERIOD", "CHECKPOINT_PERIOD", "LOG_PERIOD")] == [20] * 3
    assert rows_of_a_file(num_train_epochs=7)["TRAIN_STEPS"] == 7 * 20 + 1  # NUM_EPOCHS ends it at 140


def test_max_train_samples_are_the_first_examples(rows_of_a_file) -> None:
    rows = rows_of_a_file(num_train_epochs=3, max_train_samples=100, eval_strategy="epoch")
    assert (rows["MAX_EXAMPLES"], rows["EVAL_PERIOD"], rows["NUM_EPOCHS"]) == (100, 5, 3)
    assert rows["TRAIN_STEPS"] == 16
    assert rows_of_a_file(num_train_epochs=3, max_train_samples=10_000)["TRAIN_STEPS"] == 61
    with pytest.raises(InputError, match="max_train_samples 0; give a whole number above 0"):
        rows_of_a_file(max_train_samples=0)


@pytest.mark.parametrize(
    ("report_to", "wanted"),
    [("wandb", "wandb"), (["tensorboard", "wandb"], "tensorboard,wandb"), ("tensorboard,wandb", "tensorboard,wandb"),
     ("none", "none"), (["none"], "none"), ("all", None), ([], None), (None, None), ("tensorboard", "tensorboard")],
)  # fmt: skip
def test_report_to_chooses_who_gets_the_figures(translated, report_to: Any, wanted: str | None) -> None:
    assert bound(translated(report_to=report_to)).get("REPORT_TO") == wanted


def test_reports_that_are_not_there_are_said(translated) -> None:
    result = translated(report_to=["mlflow", "wandb"])
    assert bound(result)["REPORT_TO"] == "wandb" and any(note.startswith("report_to 'mlflow'") for note in result.notes)
    with pytest.raises(InputError, match="report_to 'wandbb'; give tensorboard, wandb, none, all"):
        translated(report_to="wandbb")


def test_a_missing_key_has_the_default_of_training_arguments(translated) -> None:
    """Or is one of the page's exceptions."""
    arguments = {
        field.name: field.default
        for field in dataclasses.fields(TrainingArguments)
        if field.default is not dataclasses.MISSING and not hasattr(field.default, "value")
    }
    for name in (*BASE, "debug", "do_train", "do_eval"):
        arguments.pop(name, None)
    hub = {"push_to_hub": True, "hub_model_id": "me/t5"}
    given = arguments | hub | {"eval_strategy": "no", "hub_strategy": "every_save"}  # whose defaults are enumerations

    def fields_of(**changes: Any) -> dict[str, Any]:
        result = translated(**changes)
        run = read_translated(translation._text(result, result.bindings), "a test").config
        whole = dataclasses.asdict(run)
        parts: dict[str, Any] = {}
        for part, fields in whole.items():
            if isinstance(fields, dict):
                parts |= {f"{part}.{name}": value for name, value in fields.items()}
        return whole | parts

    ours = fields_of(**hub)
    theirs = fields_of(**given)
    different = {name for name, value in ours.items() if value != theirs[name] and not isinstance(value, dict)}
    assert different == {"evaluation.every_steps", "evaluation.batch_size", "hub_strategy", "report_to"}
    assert (ours["evaluation.every_steps"], ours["checkpoint.keep"], ours["report_to"]) == (1_000, 5, "tensorboard")


@pytest.mark.parametrize("key", ["eval_strategy", "evaluation_strategy"])
def test_without_eval_steps_logging_steps_count(translated, key: str) -> None:
    assert bound(translated(**{key: "steps"}, logging_steps=100))["EVAL_PERIOD"] == 100
    assert bound(translated(**{key: "steps"}, logging_steps=100, eval_steps=0))["EVAL_PERIOD"] == 100
    assert bound(translated(**{key: "steps"}, logging_steps=0.1))["EVAL_PERIOD"] == 2
    assert bound(translated(**{key: "steps"}))["EVAL_PERIOD"] == 500
    assert bound(translated(**{key: "steps"}, logging_steps=100, eval_steps=30))["EVAL_PERIOD"] == 30
    assert "EVAL_PERIOD" not in bound(translated(logging_steps=100))
    assert bound(translated(**{key: "no"}, logging_steps=100))["EVAL_PERIOD"] > 20


def test_a_limit_of_checkpoints_that_is_not_given_is_named(translated) -> None:
    kept, origin = translated().bindings["CHECKPOINTS_KEPT"]
    assert kept == 5
    assert origin == "save_total_limit, which is not given; the scripts keep all (CHECKPOINTS_KEPT = None)"
    assert translation._keys_of(translated())["CHECKPOINTS_KEPT"] == "save_total_limit"
    for limit, wanted in ((2, 2), (0, None), (-1, None), ("3", 3)):
        assert bound(translated(save_total_limit=limit))["CHECKPOINTS_KEPT"] == wanted


def test_batches_are_per_device_in_training_and_evaluation(translated) -> None:
    values_read = bound(
        translated(per_device_train_batch_size=4, gradient_accumulation_steps=3, per_device_eval_batch_size=16)
    )
    assert values_read["BATCH_SIZE"] == 24 and values_read["config.EvaluationConfig.batch_size"] == 32
    assert bound(translated(max_eval_samples=100, per_device_eval_batch_size=16))["EVAL_STEPS"] == 4


def test_gradients_are_clipped_as_in_each_script(translated) -> None:
    name = "config.OptimizerConfig.clip_global_norm"
    assert bound(translated())[name] == 1.0 and bound(translated(max_grad_norm=0.5))[name] == 0.5
    assert name not in bound(translated(adafactor=True)) and name not in bound(translated(max_grad_norm=0))


@pytest.mark.parametrize(
    ("capability", "wanted"), [(7.0, "float16"), (7.5, "float16"), (8.0, "bfloat16"), (0.0, "bfloat16")]
)
def test_fp16_is_bfloat16_where_the_device_has_it(translated, monkeypatch, capability: float, wanted: str) -> None:
    monkeypatch.setattr("limba.model.kernels.choose.compute_capability", lambda device: capability)
    for precision in ({"fp16": True}, {"mixed_precision": "fp16"}, {"dtype": "float16"}):
        result = translated(**precision)
        assert bound(result)["DTYPE"] == wanted
        assert any("bfloat16" in note for note in result.notes)
    assert translation.dtype_of(translated(mixed_precision="no"))[0] == "float32"


def test_the_hub_keys_become_gin_names_and_the_token_is_never_shown(translated, capsys) -> None:
    result = translated(push_to_hub=True, hub_token="hf_secret", hub_private_repo=True)
    assert bound(result)["HUB_MODEL_ID"] == "out" and bound(result)["HUB_PRIVATE"] is True
    assert os.environ["HF_TOKEN"] == "hf_secret" and bound(result)["HUB_STRATEGY"] == "end"
    translation._written(result)
    assert "secret" not in Path("out/from_json.gin").read_text() + capsys.readouterr().out
    values_read = bound(translated(push_to_hub=True, hub_model_id="me/t5", hub_strategy="every_save"))
    assert values_read["HUB_MODEL_ID"] == "me/t5" and values_read["HUB_STRATEGY"] == "every_save"
    assert bound(translated(push_to_hub_final_step=True, hub_model_id="me/t5"))["HUB_STRATEGY"] == "end"
    assert "HUB_MODEL_ID" not in bound(translated(hub_model_id="me/t5"))
    os.environ.pop("HF_TOKEN")


OTHER = (
    r"of Hugging Face's scripts for summaries, .*; write a gin file: docs/coming_from_huggingface.md, Other scripts,"
)


@pytest.mark.parametrize("key", keys.OF_OTHER_SCRIPTS)
def test_flags_of_other_scripts_name_the_table(key: str) -> None:
    page = (Path(__file__).parents[2] / values.PAGE).read_text()
    table = page.partition("## Other scripts")[2].partition("\n## ")[0]
    assert f"`{key}`" in table
    parsed = values.parse(["--model_name_or_path", "t5-small", f"--{key}", "x"])
    assert parsed is not None
    with pytest.raises(InputError, match=f"^The command line gives {key}, a flag {OTHER}"):
        values.read_values(None, parsed.flags)
    assert values.parse([f"--{key}=x"]) is not None  # also alone


@pytest.mark.parametrize("script", ["run_summarization.py", "a/run_translation_no_trainer.py", "run_clm_flax.py"])
def test_other_scripts_name_the_table(script: str) -> None:
    with pytest.raises(InputError, match=f"^{script} is one {OTHER}"):
        values.parse([script, "--model_name_or_path", "t5-small"])


def test_the_gin_file_of_the_page_is_a_run_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As run_translation.py has it by default: AdamW, linear, 3 epochs."""
    root = Path(__file__).parents[2]
    section = (root / values.PAGE).read_text().partition("## Other scripts")[2]
    (tmp_path / "theirs.gin").write_text(section.partition("```gin\n")[2].partition("```")[0])
    monkeypatch.chdir(tmp_path)
    run = read_run([str(tmp_path / "theirs.gin")], [], [root]).config
    task_modules.import_all(["tasks.text_to_text"])
    assert run.data.mixture_or_task_name in TaskRegistry.names()
    assert run.data.column == {"inputs": "translation.en", "targets": "translation.ro"}
    assert (run.optimizer.name, run.optimizer.schedule.name, run.data.num_epochs) == ("adamw", "linear", 3)
    assert run.data.prefix == "translate English to Romanian: " and run.train_steps is None


def test_words_are_read_from_a_column_named_tokens(translated) -> None:
    assert bound(translated(text_column_name="tokens"))["COLUMN"] == "tokens[]"
    assert bound(translated(text_column_name="body"))["COLUMN"] == "body"


def test_names_without_an_owner_offline(monkeypatch) -> None:
    servers.full_name.cache_clear()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert servers.full_name("t5-11b", "model") == "google-t5/t5-11b"
    assert servers.full_name("wikitext", "dataset") == "Salesforce/wikitext"
    assert servers.full_name("me/own", "model") == "me/own"
    with pytest.raises(
        InputError, match="my_corpus has no owner, and the hub cannot be reached: .*; give user/name"
    ) as caught:
        servers.full_name("my_corpus", "dataset")
    assert "secret" not in str(caught.value)
    servers.full_name.cache_clear()


def test_a_local_folder_of_a_data_set_keeps_its_splits(translated, tmp_path: Path) -> None:
    for split in ("train", "validation"):
        path = tmp_path / "set" / f"{split}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"text": "One text."}\n')
    by_split = corpus._files_of(str(tmp_path / "set"), None)
    assert {split: Path(files).name for split, files in by_split.items()} == {
        "train": "train.jsonl",
        "validation": "validation.jsonl",
    }
    assert bound(translated(train_file=None, dataset_name="set"))["CORPUS"].keys() == {"train", "validation"}
