"""Translates the JSON configuration of Hugging Face's T5 masked-language-model scripts to a gin file.

It reads the keys of `run_t5_mlm_flax.py`, of similar PyTorch scripts with accelerate, and of their TrainingArguments.
An unknown key is an error, since the run would differ without it. docs/coming_from_huggingface.md has the table.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.cli.arguments import did_you_mean
from limba.cli.gin import GinRun, read_run
from limba.config import InputError, ModelConfig, plain
from limba.config.errors import reason_of
from limba.config.secrets import without_credentials

# Keys without an effect: Limba has no such choice.
WITHOUT_MEANING = (
    *("model_type", "cache_dir", "use_fast_tokenizer", "use_auth_token", "token", "hub_token", "trust_remote_code"),
    *("overwrite_cache", "preprocessing_num_workers", "dataloader_num_workers", "report_to", "with_tracking"),
    *("per_device_eval_batch_size", "streaming", "remove_unused_columns", "ddp_find_unused_parameters"),
)
# JSON key -> the gin name that gets its value unchanged, and the value's kind.
PLAIN: Mapping[str, tuple[str, type]] = {
    "mlm_probability": ("NOISE_DENSITY", float),
    "mean_noise_span_length": ("MEAN_NOISE_SPAN_LENGTH", float),
    "validation_split_percentage": ("VALIDATION_PERCENT", float),
    "text_column_name": ("COLUMN", str),
    "learning_rate": ("LEARNING_RATE", float),
    "warmup_steps": ("WARMUP_STEPS", int),
    "num_warmup_steps": ("WARMUP_STEPS", int),
    "weight_decay": ("WEIGHT_DECAY", float),
    "adam_beta1": ("config.OptimizerConfig.beta1", float),
    "adam_beta2": ("config.OptimizerConfig.beta2", float),
    "adam_epsilon": ("config.OptimizerConfig.epsilon", float),
    "max_grad_norm": ("config.OptimizerConfig.clip_global_norm", float),
    "label_smoothing_factor": ("LABEL_SMOOTHING", float),
    "logging_steps": ("LOG_PERIOD", int),
    "save_steps": ("CHECKPOINT_PERIOD", int),
    "checkpointing_steps": ("CHECKPOINT_PERIOD", int),
    "save_total_limit": ("CHECKPOINTS_KEPT", int),
    "eval_steps": ("EVAL_PERIOD", int),
    "seed": ("RANDOM_SEED", int),
}
# Defaults of the scripts that differ from those of Limba's gin files.
DEFAULTS: Mapping[str, tuple[str, Any]] = {
    "learning_rate": ("LEARNING_RATE", 5e-5),
    "warmup_steps": ("WARMUP_STEPS", 0),
    "weight_decay": ("WEIGHT_DECAY", 0.0),
    "logging_steps": ("LOG_PERIOD", 500),
    "save_steps": ("CHECKPOINT_PERIOD", 500),
    "seed": ("RANDOM_SEED", 42),
}
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "factors", "constant_with_warmup": "factors"}
OTHERS: Mapping[str, type] = {
    **dict.fromkeys(("model_name_or_path", "config_name", "tokenizer_name", "output_dir", "hub_model_id"), str),
    **dict.fromkeys(("dataset_name", "dataset_config_name", "train_file", "validation_file"), str),
    **dict.fromkeys(("dtype", "mixed_precision", "optim", "lr_scheduler_type"), str),
    **dict.fromkeys(("evaluation_strategy", "eval_strategy"), str),
    **dict.fromkeys(("max_seq_length", "per_device_train_batch_size", "gradient_accumulation_steps"), int),
    **dict.fromkeys(("max_steps", "max_train_steps"), int),
    "num_train_epochs": float,
    **dict.fromkeys(("adafactor", "do_train", "do_eval", "bf16", "fp16", "overwrite_output_dir", "push_to_hub"), bool),
    "gradient_checkpointing": bool,
}
# What cannot be 0; None and a key that is left out stand for the scripts' default.
ABOVE_ZERO = ("max_seq_length", "per_device_train_batch_size", "gradient_accumulation_steps")
KINDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
NO_EVALUATION = 10**9  # steps between two
BYTES_COUNTED = 50_000_000  # of text, from which the rest of a corpus is estimated


class _Translation:
    """The JSON's values, and the gin bindings made of them: name -> (value, the JSON key that it comes from)."""

    def __init__(self, values: Mapping[str, Any], place: str):
        self.values, self.place = values, place
        self.bindings: dict[str, tuple[Any, str]] = {}

    def set(self, name: str, value: Any, key: str) -> None:
        before = self.bindings.get(name)
        if before is not None and before[0] != value:
            raise InputError(f"{self.place} gives {before[1]} and {key} different values; leave one out.")
        self.bindings[name] = (value, key)

    def get(self, *keys: str) -> tuple[Any, str]:
        """Returns the value of the first of the keys that has one, and that key; else (None, the first key)."""
        return next(((self.values[key], key) for key in keys if self.values.get(key) is not None), (None, keys[0]))


def read_json(path: str, overrides: Sequence[str] = (), search_paths: Sequence[Path] = ()) -> GinRun:
    """Returns the run that the JSON describes, with `NAME=VALUE` overrides; `names` are the JSON's keys.

    Writes the run as OUTPUT_DIR/from_json.gin and prints it. Corpus and vocabulary are only read to turn epochs into
    steps. Raises InputError for a file that cannot be read, and for invalid keys and values.
    """
    translation = _translated(path)
    overridden = {override.partition("=")[0] for override in overrides}
    keys = {name: key.partition(",")[0] for name, (_, key) in translation.bindings.items() if name not in overridden}
    return read_run([_written(translation, translation.values["output_dir"])], overrides, search_paths, keys)


def _num_devices() -> int:
    """Returns the devices of all hosts: the JSON's batch sizes are per device."""
    import jax

    from limba.sharding import multihost

    multihost.join_hosts()
    return jax.device_count()


def _translated(path: str) -> _Translation:
    """Returns the gin bindings for the JSON."""
    translation = _Translation(_values(path), path)
    for key, (name, _) in PLAIN.items():
        if translation.values.get(key) is not None:
            translation.set(name, translation.values[key], key)
    for key, (name, value) in DEFAULTS.items():
        translation.bindings.setdefault(name, (value, f"{key}, as in the scripts"))
    output, key = translation.get("output_dir")
    if output is None:
        raise InputError(f"{path} has no output_dir; give the directory for checkpoints and logs.")
    translation.set("MODEL_DIR", output, key)
    _model(translation)
    _corpus(translation)
    _optimizer(translation)
    _batches(translation, _num_devices())
    _length_of_run(translation)
    if translation.values.get("do_eval") is False or "no" in (translation.get("eval_strategy", "evaluation_strategy")):
        translation.bindings["EVAL_PERIOD"] = (NO_EVALUATION, "do_eval")
    if translation.values.get("push_to_hub"):
        name = translation.values.get("hub_model_id") or "USER/NAME"
        print(f"push_to_hub: after training, bash convert/convert.sh {output} --push={name}", flush=True)
    return translation


def _values(path: str) -> dict[str, Any]:
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--json={path} cannot be read as JSON ({reason_of(error)}); give a JSON object.") from error
    if not isinstance(values, dict):
        raise InputError(f"--json={path} holds no JSON object; give one of keys and values.")
    kinds = {**{key: kind for key, (_, kind) in PLAIN.items()}, **OTHERS}
    for key, value in values.items():
        if key in WITHOUT_MEANING or value is None:
            continue
        if key not in kinds:
            raise InputError(f"{path} has the key {key!r}, which is not known{did_you_mean(key, kinds)}")
        kind = kinds[key]
        if not plain.fits(value, kind):
            raise InputError(f"{path} gives {key} {value!r}; give {KINDS[kind]}.")
        if key in ABOVE_ZERO and value < 1:
            raise InputError(f"{path} gives {key} {value!r}; give a whole number above 0.")
        if value == "" or (isinstance(value, float) and not math.isfinite(value)):
            raise InputError(f"{path} gives {key} {value!r}; give {KINDS[kind]}, or leave it out.")
    if values.get("do_train") is False:
        raise InputError(f"{path} gives do_train False, and this trains; set it to true, or run limba evaluate.")
    return values


def _folder(name: str, weights: bool) -> Path:
    """Returns a local folder, or the folder that a hub id is downloaded to."""
    from limba.formats import hub

    local = Path(os.path.expanduser(name))
    return local if local.exists() else hub.download(name, weights)


def _model(translation: _Translation) -> None:
    """Sets sizes from a model or a Hugging Face configuration, the vocabulary, and the initial checkpoint."""
    from limba.formats.huggingface import model_config

    start, start_key = translation.get("model_name_or_path")
    sizes, key = translation.get("config_name", "model_name_or_path")
    if sizes is None:
        raise InputError(
            f"{translation.place} names neither model_name_or_path nor config_name; give one, for the model's sizes."
        )
    folder = _folder(sizes, weights=sizes == start)
    model = model_config(folder)
    about = json.loads((folder / "config.json" if folder.is_dir() else folder).read_text())
    for name in ("emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers"):
        translation.set(f"config.ModelConfig.{name}", getattr(model, name), key)
    _other_sizes(translation, model, key)
    translation.set("VOCAB_SIZE", model.vocab_size, key)
    translation.set("DROPOUT_RATE", float(about.get("dropout_rate", 0.1)), key)
    if start is not None:
        translation.set("INITIAL_CHECKPOINT_PATH", start, start_key)
    precision, key = translation.get("mixed_precision", "dtype")
    if translation.values.get("fp16") or precision in ("fp16", "float16"):
        raise InputError(f"{translation.place} sets float16, in which T5 overflows; give bf16 or float32.")
    known = {"no": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16", None: "float32"}
    if precision not in known:
        raise InputError(f"{translation.place} gives {key} {precision!r}; give no, bf16 or float32.")
    dtype = "bfloat16" if translation.values.get("bf16") else known[precision]
    translation.set("DTYPE", dtype, "bf16" if translation.values.get("bf16") else key)
    if translation.values.get("gradient_checkpointing"):
        translation.set("REMAT", "full", "gradient_checkpointing")
    tokenizer, key = translation.get("tokenizer_name", "model_name_or_path")
    if tokenizer is None:
        raise InputError(f"{translation.place} names no tokenizer_name; give a SentencePiece model or a folder of one.")
    translation.set("VOCABULARY", _vocabulary(tokenizer, key), key)


def _other_sizes(translation: _Translation, model: ModelConfig, key: str) -> None:
    """Sets the fields in which the network differs from T5 1.1."""
    sizes = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers")
    usual = ModelConfig(**dict.fromkeys(sizes, 1))
    for name in (
        *("mlp_activations", "logits_via_embedding", "relative_bias_per_layer", "num_relpos_buckets"),
        *("relpos_max_distance", "layer_norm_epsilon"),
    ):
        if getattr(model, name) != getattr(usual, name):
            translation.set(f"config.ModelConfig.{name}", getattr(model, name), key)


def _vocabulary(name: str, key: str) -> str:
    if name.endswith((".model", ".json")) or name == "byte":
        return name
    folder = _folder(name, weights=False)
    for file in ("spiece.model", "tokenizer.json"):
        if (folder / file).is_file():
            return str(folder / file)
    raise InputError(
        f"{key} {name} holds neither spiece.model nor tokenizer.json; give the tokenizer's folder or file."
    )


def _corpus(translation: _Translation) -> None:
    train, key = translation.get("train_file")
    validation, _ = translation.get("validation_file")
    dataset, dataset_key = translation.get("dataset_name")
    if (train is None) == (dataset is None):
        given = "both" if train else "neither"
        raise InputError(f"{translation.place} must give one of train_file and dataset_name; it gives {given}.")
    if dataset is not None:
        # The hub has a branch with each data set as parquet.
        folder = f"hf://datasets/{dataset}@~parquet/{translation.values.get('dataset_config_name') or 'default'}"
        translation.set("CORPUS", {"train": f"{folder}/train/*.parquet"}, dataset_key)
    else:
        translation.set("CORPUS", {"train": train, "validation": validation} if validation else train, key)


def _optimizer(translation: _Translation) -> None:
    name, key = translation.get("optim")
    if translation.values.get("adafactor") or name == "adafactor":
        translation.set("config.OptimizerConfig.name", "adafactor", "adafactor")
        # In T5X's rule weight decay is a share of the weights per step; the Flax script's Adafactor ignores it.
        translation.bindings["WEIGHT_DECAY"] = (0.0, "weight_decay, which the Flax script's Adafactor ignores")
    elif name is not None and not name.startswith("adamw"):
        raise InputError(f"{translation.place} gives {key} {name!r}; give adamw_torch or adafactor.")
    schedule, key = translation.get("lr_scheduler_type")
    if schedule is None:
        return
    if schedule not in SCHEDULES:
        raise InputError(f"{translation.place} gives {key} {schedule!r}; give one of {', '.join(SCHEDULES)}.")
    translation.set("config.ScheduleConfig.name", SCHEDULES[schedule], key)
    if SCHEDULES[schedule] == "factors":
        factors = "constant" if schedule == "constant" else "constant * linear_warmup"
        translation.set("LEARNING_RATE_FACTORS", factors, key)


def _batches(translation: _Translation, num_devices: int) -> None:
    rows, key = translation.get("per_device_train_batch_size")
    parts, parts_key = translation.get("gradient_accumulation_steps")
    rows, parts = 8 if rows is None else rows, 1 if parts is None else parts
    translation.set("BATCH_SIZE", rows * parts * num_devices, f"{key} x {parts_key} x {num_devices} devices")
    translation.set("NUM_MICROBATCHES", parts, parts_key)
    length, key = translation.get("max_seq_length")
    translation.set("TASK_FEATURE_LENGTHS", {"inputs": 512 if length is None else length}, key)


def _length_of_run(translation: _Translation) -> None:
    steps, key = translation.get("max_steps", "max_train_steps")
    if steps is not None and steps > 0:
        translation.set("TRAIN_STEPS", steps, key)
        return
    epochs, key = translation.get("num_train_epochs")
    epochs = 3.0 if epochs is None else epochs
    if not epochs > 0:
        raise InputError(f"{translation.place} gives {key} {epochs!r}; give a number above 0, or max_steps.")
    steps = int(epochs * steps_per_epoch(translation.bindings)) + 1
    translation.set("TRAIN_STEPS", steps, f"{key} {epochs:g}, by the corpus's size")
    if epochs == int(epochs):
        translation.set("NUM_EPOCHS", int(epochs), key)


def steps_per_epoch(bindings: Mapping[str, tuple[Any, str]]) -> float:
    """Returns the optimizer steps of one pass over CORPUS, estimated from its first files."""
    from limba.data.objectives.spans import span_corruption_lengths
    from limba.data.tasks import source_of_files
    from limba.data.vocabulary.load import encoder, load_vocabulary

    choices = {name: value for name, (value, _) in bindings.items()}
    source = source_of_files(choices["CORPUS"], choices.get("COLUMN", "text"), choices.get("VALIDATION_PERCENT", 5.0))
    encode = encoder(load_vocabulary(choices["VOCABULARY"]))
    raw = span_corruption_lengths(
        choices["TASK_FEATURE_LENGTHS"]["inputs"],
        choices.get("NOISE_DENSITY", 0.15),
        choices.get("MEAN_NOISE_SPAN_LENGTH", 3.0),
    )[0]
    tokens = num_bytes = num_read = 0
    units = source.units("train")
    for num_read, unit in enumerate(units, 1):  # noqa: B007
        chunk = 0
        while (documents := source.read("train", unit, chunk)) is not None:
            tokens += sum(len(encode(text)) for text in documents)
            num_bytes += sum(map(len, documents))
            chunk += 1
        if num_bytes > BYTES_COUNTED:
            break
    if not tokens:
        raise InputError(f"train_file {choices['CORPUS']} holds no text; give files with text in them.")
    return tokens * len(units) / num_read / raw / choices["BATCH_SIZE"]


def _written(translation: _Translation, output: str) -> str:
    lines = [
        f"# Made from {translation.place}; limba train with this file makes the same run.",
        "from __gin__ import dynamic_registration",
        "",
        "from limba import config",
        "",
        "include 'gin/t5_mlm.gin'",
        "",
        *(f"{name} = {value!r}  # {key}" for name, (value, key) in translation.bindings.items()),
    ]
    text = "\n".join(lines) + "\n"
    print(without_credentials(text), end="", flush=True)
    from limba.storage.files import write_whole

    folder = Path(tempfile.mkdtemp()) if "://" in output else Path(os.path.expanduser(output))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "from_json.gin"
        write_whole(path, text)
    except OSError as error:
        raise InputError(f"output_dir {output} cannot be written ({error.strerror}); give another.") from error
    return os.fspath(path.resolve())
