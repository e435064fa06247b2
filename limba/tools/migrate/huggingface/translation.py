"""Translates the configuration of one of Hugging Face's T5 scripts to a gin file.

It reads the keys of `keys.py`. An unknown key is an error, since the run would differ without it.
docs/coming_from_huggingface.md has the table.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.cli.gin import GinRun, read_run, read_translated, statements
from limba.config import InputError, ModelConfig, RunConfig, untrusted_files, without_credentials
from limba.tools.migrate.huggingface import keys
from limba.tools.migrate.huggingface.corpus import NEVER, Translation, count_epochs, set_corpus, set_length_of_run
from limba.tools.migrate.huggingface.values import Values, read_values

DTYPES = {
    "no": "float32", "fp32": "float32", "float32": "float32", "auto": "float32",
    "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16",
}  # fmt: skip
LEAST_CAPABILITY = 8.0  # of an NVIDIA card with bfloat16: the A100 and later


def read_script(
    path: str | None, flags: Values, overrides: Sequence[str] = (), search_paths: Sequence[Path] = ()
) -> GinRun:
    """Returns the run that a JSON file or a script's flags describe, with `NAME=VALUE` overrides.

    `names` of the result are the script's keys. Writes the run, overrides included, as MODEL_DIR/from_json.gin and
    prints it. Corpus and vocabulary are only read to turn epochs into steps. Raises InputError for a file that cannot
    be read, and for invalid keys and values.
    """
    translation = _translated(*read_values(path, flags), overrides, search_paths)
    names = _keys_of(translation)
    file = _written(translation)
    run = read_run([file], overrides, search_paths, names)
    if translation.trains:
        return run
    evaluation = [f"--gin_file={file}"]
    if search_paths:
        evaluation.append(f"--gin_search_paths={','.join(map(str, search_paths))}")
    evaluation += [f"--gin.{override}" for override in overrides]
    return run._replace(evaluation=tuple(evaluation))


def _num_devices() -> int:
    """Returns the devices of all hosts: the scripts' batch sizes are per device."""
    import jax

    from limba.sharding import joining

    joining.join_hosts()
    return jax.device_count()


def _keys_of(translation: Translation) -> dict[str, str]:
    """Returns the gin names that no override sets -> the script's key that does."""
    bindings = translation.bindings
    return {name: key.partition(",")[0] for name, (_, key) in bindings.items() if name not in translation.overrides}


def _values_of(overrides: Sequence[str]) -> dict[str, object]:
    """Returns the gin names that the overrides set -> their values; InputError for what is not gin."""
    parsed = statements.Source()
    for override in overrides:
        statements.read_override(parsed, override, "--gin.")
    return {binding.name: binding.value for binding in parsed.bindings}


def _run_so_far(translation: Translation, overrides: Sequence[str], search_paths: Sequence[Path]) -> RunConfig:
    """Returns the run of the bindings and the overrides, from which steps, shares and whole batches are counted."""
    bindings = {name: (value, key) for key, (name, value) in keys.DEFAULTS.items()} | translation.bindings
    text = _text(translation, bindings)
    return read_translated(text, translation.source, overrides, _keys_of(translation), search_paths=search_paths).config


def _translated(
    values: Values,
    source: str,
    notes: Sequence[str],
    overrides: Sequence[str] = (),
    search_paths: Sequence[Path] = (),
) -> Translation:
    """Returns the gin bindings for the values and the overrides."""
    translation = Translation(values, source, notes, _values_of(overrides))
    if not translation.trains and translation.values.get("do_eval") is False:
        raise InputError(
            f"{source} gives do_train False and do_eval False, so there is nothing to do; set one to true."
        )
    _check_agreement(translation)
    for key, (name, _) in keys.PLAIN.items():
        if values.get(key) is not None:
            translation.set(name, values[key], key)
    output, key = translation.get("output_dir")
    if output is None:
        raise InputError(f"{source} has no output_dir; give the directory for checkpoints and logs.")
    translation.set("MODEL_DIR", output, key)
    _model(translation)
    set_corpus(translation)
    _optimizer(translation)
    _clipping(translation)
    num_devices = _num_devices()
    _batches(translation, num_devices)
    set_length_of_run(translation)
    _best(translation)
    translation.run = _run_so_far(translation, overrides, search_paths)
    count_epochs(translation)
    _evaluated_batches(translation)
    _periods(translation)
    _kept(translation)
    for key, (name, value) in keys.DEFAULTS.items():
        translation.bindings.setdefault(name, (value, f"{key}, as in the scripts"))
    _best_mode(translation)
    _reports(translation)
    _hub(translation)
    for name, value in translation.overrides.items():
        translation.bindings[name] = (value, f"--gin.{name}")
    if values.get("do_predict"):
        folder = translation.run.model_dir
        translation.notes.append(f"do_predict: after the run, limba generate {folder} --input=FILE writes the texts.")
    return translation


def _check_agreement(translation: Translation) -> None:
    """Raises InputError for keys that contradict each other; keys of one meaning are checked where they are read."""
    values = translation.values
    translation.one_of("eval_strategy", "evaluation_strategy")
    strategy, key = translation.get("eval_strategy", "evaluation_strategy")
    optimizer = values.get("optim")
    contradictions = (
        (values.get("adafactor") is True and optimizer not in (None, "adafactor"), "adafactor", "optim"),
        (bool(values.get("warmup_ratio")) and bool(values.get("warmup_steps")), "warmup_ratio", "warmup_steps"),
        (values.get("do_eval") is False and strategy not in (None, "no"), "do_eval", key),
    )
    for contradict, first, second in contradictions:
        if contradict:
            raise InputError(
                f"{translation.source} gives {first} {values[first]!r} and {second} {values[second]!r}, which"
                " contradict each other; leave one out."
            )


def dtype_of(translation: Translation) -> tuple[str, str]:
    """Returns the dtype of the activations and what it comes from; InputError for keys that disagree.

    float16 becomes bfloat16 where the device has it: as fast, and nothing overflows.
    """
    claims: dict[str, str] = {}  # key -> dtype
    for key in ("mixed_precision", "dtype", "torch_dtype"):
        value = translation.values.get(key)
        if value is None:
            continue
        if value not in DTYPES:
            raise InputError(f"{translation.source} gives {key} {value!r}; give no, bf16, fp16 or float32.")
        claims[key] = DTYPES[value]
    for key, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
        if translation.values.get(key):
            claims[key] = dtype
    if len(set(claims.values())) > 1:
        first, *others = claims
        other = next(key for key in others if claims[key] != claims[first])
        raise InputError(
            f"{translation.source} gives {first} {translation.values[first]!r} and {other}"
            f" {translation.values[other]!r}, which are {claims[first]} and {claims[other]}; leave one out."
        )
    if not claims:
        return "float32", "mixed_precision"
    key, dtype = next(iter(claims.items()))
    if dtype != "float16":
        return dtype, key
    name = lacks_bfloat16()
    if name:
        translation.notes.append(f"{key}: {name} has no bfloat16, so float16 with dynamic loss scaling.")
        return "float16", key
    translation.notes.append(f"{key}: this device has bfloat16, which is as fast as float16 and does not overflow.")
    return "bfloat16", key


def lacks_bfloat16() -> str:
    """Returns the name of this process's device if it computes in float16 and not in bfloat16, else an empty text."""
    import jax

    from limba.model.kernels.choose import compute_capability

    device = jax.devices()[0]
    is_older_card = 0 < compute_capability(device) < LEAST_CAPABILITY  # 0 for what is not an NVIDIA card
    return device.device_kind if is_older_card else ""


def folder_of(name: str, weights: bool) -> Path:
    """Returns a local folder, or the folder that a hub id is downloaded to."""
    from limba.formats import hub_models

    local = Path(os.path.expanduser(name))
    return local if local.exists() else hub_models.download(name, weights)


def _with_revision(translation: Translation, name: str) -> str:
    """Returns the name of a model with model_revision, where that is one of the hub and has no revision yet."""
    revision = translation.values.get("model_revision")
    if revision in (None, "main"):
        return name
    is_local = os.path.exists(os.path.expanduser(name))
    return name if is_local or "@" in name else f"{name}@{revision}"


def _model(translation: Translation) -> None:
    """Sets sizes from a model or a Hugging Face configuration, the vocabulary, and the initial checkpoint."""
    from limba.formats.huggingface import model_config

    start, start_key = translation.get("model_name_or_path")
    sizes, key = translation.get("config_name", "model_name_or_path")
    if sizes is None:
        raise InputError(
            f"{translation.source} names neither model_name_or_path nor config_name; give one, for the model's sizes."
        )
    folder = folder_of(_with_revision(translation, sizes), weights=sizes == start)
    model = model_config(folder, kind="t5")
    file = folder / "config.json" if folder.is_dir() else folder  # config_name may be the file itself
    config = json.loads(untrusted_files.bytes_of(file))
    for name in ("emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers"):
        translation.set(f"config.ModelConfig.{name}", getattr(model, name), key)
    _other_sizes(translation, model, key)
    translation.set("VOCAB_SIZE", model.vocab_size, key)
    translation.set("DROPOUT_RATE", float(config.get("dropout_rate", 0.1)), key)
    if start is not None:
        translation.set("INITIAL_CHECKPOINT_PATH", _with_revision(translation, start), start_key)
    dtype, key = dtype_of(translation)
    translation.set("DTYPE", dtype, key)
    if translation.get("gradient_checkpointing", "activation_checkpointing")[0]:
        translation.set("REMAT", "full", "gradient_checkpointing")
    tokenizer, key = translation.get("tokenizer_name", "model_name_or_path")
    if tokenizer is None:
        raise InputError(
            f"{translation.source} names no tokenizer_name; give a SentencePiece model or a folder of one."
        )
    translation.set("VOCABULARY", _vocabulary(translation, tokenizer, key), key)


def _other_sizes(translation: Translation, model: ModelConfig, key: str) -> None:
    """Sets the fields in which the network differs from T5 1.1."""
    sizes = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers")
    usual = ModelConfig(**dict.fromkeys(sizes, 1))
    for name in (
        *("mlp_activations", "logits_via_embedding", "relative_bias_per_layer", "num_relpos_buckets"),
        *("relpos_max_distance", "layer_norm_epsilon"),
    ):
        if getattr(model, name) != getattr(usual, name):
            translation.set(f"config.ModelConfig.{name}", getattr(model, name), key)


def _vocabulary(translation: Translation, name: str, key: str) -> str:
    if name.endswith((".model", ".json")) or name == "byte":
        return name
    folder = folder_of(_with_revision(translation, name), weights=False)
    for file in ("spiece.model", "tokenizer.json"):
        if (folder / file).is_file():
            return str(folder / file)
    raise InputError(
        f"{key} {name} holds neither spiece.model nor tokenizer.json; give the tokenizer's folder or file."
    )


def _optimizer(translation: Translation) -> None:
    name, key = translation.get("optim")
    is_adafactor = translation.values.get("adafactor") or name == "adafactor"
    if not (is_adafactor or name is None or name.startswith("adamw")):
        raise InputError(f"{translation.source} gives {key} {name!r}; give adamw_torch or adafactor.")
    rule = translation.overrides.get("config.OptimizerConfig.name", "adafactor" if is_adafactor else "adamw")
    if rule == "adafactor":
        translation.set("config.OptimizerConfig.name", "adafactor", "adafactor")
        # In T5X's rule weight decay is a share of the weights per step; the Flax script's Adafactor ignores it.
        translation.bindings["WEIGHT_DECAY"] = (0.0, "weight_decay, which the Flax script's Adafactor ignores")
        of_adam = [name for name in keys.PLAIN if name.startswith("adam_")]
        keys_of_adam = [name for name in of_adam if translation.values.get(name) is not None]
        for key_of_adam in keys_of_adam:
            del translation.bindings[keys.PLAIN[key_of_adam][0]]
        if keys_of_adam:
            translation.notes.append(f"{', '.join(keys_of_adam)}: Adafactor has none, here and in the scripts.")
    if rule == "adamw":  # transformers' Trainer decays no parameter whose name has "bias" in it
        origin = "weight_decay, of which transformers' Trainer leaves out relative_attention_bias"
        translation.bindings["config.OptimizerConfig.undecayed"] = ((".*relpos_bias",), origin)
    schedule, key = translation.get("lr_scheduler_type")
    if schedule is None:
        return
    if schedule not in keys.SCHEDULES:
        raise InputError(f"{translation.source} gives {key} {schedule!r}; give one of {', '.join(keys.SCHEDULES)}.")
    translation.set("config.ScheduleConfig.name", keys.SCHEDULES[schedule], key)
    if keys.SCHEDULES[schedule] == "factors":
        factors = "constant" if schedule == "constant" else "constant * linear_warmup"
        translation.set("LEARNING_RATE_FACTORS", factors, key)


def _clipping(translation: Translation) -> None:
    """Clips gradients at 1.0, as the PyTorch scripts do by default; the Flax script, with Adafactor, does not."""
    name = "config.OptimizerConfig.clip_global_norm"
    is_flax = translation.bindings.get("config.OptimizerConfig.name", ("",))[0] == "adafactor"
    if translation.values.get("max_grad_norm") == 0:  # torch's trainers then clip nothing
        del translation.bindings[name]
    elif name not in translation.bindings and not is_flax:
        translation.bindings[name] = (1.0, "max_grad_norm, as in the PyTorch scripts")


def _batches(translation: Translation, num_devices: int) -> None:
    rows, key = translation.one_of("per_device_train_batch_size", "per_gpu_train_batch_size")
    parts, parts_key = translation.get("gradient_accumulation_steps")
    rows = 8 if rows is None else rows
    parts = 1 if parts is None else parts
    translation.set("BATCH_SIZE", rows * parts * num_devices, f"{key} x {parts_key} x {num_devices} devices")
    translation.set("NUM_MICROBATCHES", parts, parts_key)
    evaluated, key = translation.one_of("per_device_eval_batch_size", "per_gpu_eval_batch_size")
    if evaluated is not None:
        size = evaluated * num_devices
        translation.set("config.EvaluationConfig.batch_size", size, f"{key} x {num_devices} devices")
    length, key = translation.get("max_seq_length")
    translation.set("TASK_FEATURE_LENGTHS", {"inputs": 512 if length is None else length}, key)


def _evaluated_batches(translation: Translation) -> None:
    """Sets EVAL_STEPS, the validation batches in which max_eval_samples are."""
    most, key = translation.get("max_eval_samples")
    if most is None:
        return
    run = translation.run
    size = run.data.batch_size if run.evaluation.batch_size is None else run.evaluation.batch_size
    translation.set("EVAL_STEPS", -(-most // size), f"{key} {most}, in batches of {size} rows")


def _periods(translation: Translation) -> None:
    """Sets periods in steps; a number below 1 is a share of the run's steps, and `epoch` a pass over the corpus."""
    steps = translation.bindings["TRAIN_STEPS"][0]
    for key, name in keys.PERIODS.items():
        value = translation.values.get(key)
        strategy, _ = translation.get("eval_strategy", "evaluation_strategy")
        if key == "eval_steps" and strategy == "steps" and not value:
            value, _ = translation.get("logging_steps")
            value = keys.DEFAULTS["logging_steps"][1] if value is None else value
            key = "logging_steps, as in transformers without eval_steps"
        if value is None:
            continue
        if 0 < value < 1:
            translation.set(name, max(1, round(value * steps)), f"{key} {value:g} of {steps} steps")
        elif value != int(value):
            raise InputError(f"{translation.source} gives {key} {value!r}; give a whole number, or a share below 1.")
        else:
            translation.set(name, int(value), key)
    share, key = translation.get("warmup_ratio")
    if share:
        translation.bindings["WARMUP_STEPS"] = (round(share * steps), f"{key} {share:g} of {steps} steps")
    for key, name in keys.STRATEGIES.items():
        value = translation.values.get(key)
        what = f"{translation.source} gives {key}"
        if value == "epoch":
            # `num_train_epochs` says nothing about an epoch's steps where max_steps counts more than it.
            period = max(1, round(translation.steps_per_epoch)) if translation.trains else steps
            translation.bindings[name] = (period, f"{key} epoch, by the corpus's size")
        elif value == "no":
            translation.bindings[name] = (NEVER, f"{key} no, but the last step counts all the same")
        elif value == "best" and key == "save_strategy":
            translation.notes.append("save_strategy 'best': save_steps are kept too; the best is in output_dir/best.")
        elif value not in (None, "steps"):
            raise InputError(f"{what} {value!r}; give steps, epoch or no.")
    if translation.values.get("do_eval") is False:
        translation.bindings["EVAL_PERIOD"] = (NEVER, "do_eval")


def _kept(translation: Translation) -> None:
    """Sets how many checkpoints are kept; where no limit is given, Limba's number, since all would fill a disk."""
    limit, key = translation.get("save_total_limit")
    if limit is None:
        origin = f"{key}, which is not given; the scripts keep all (CHECKPOINTS_KEPT = None)"
        translation.set("CHECKPOINTS_KEPT", keys.CHECKPOINTS_KEPT, origin)
    elif limit <= 0:  # as transformers' Trainer
        translation.set("CHECKPOINTS_KEPT", None, key)
    else:
        translation.set("CHECKPOINTS_KEPT", limit, key)


def _best(translation: Translation) -> None:
    """Keeps the best step, if the script loads it at its end."""
    metric, key = translation.get("metric_for_best_model")
    if translation.values.get("load_best_model_at_end") or metric is not None:
        metric = (metric or "loss").removeprefix("eval_")
        translation.set("config.CheckpointConfig.best_metric", metric, key)


def _best_mode(translation: Translation) -> None:
    """Sets which value of the metric is the best, if the script keeps the best step."""
    metric = translation.run.checkpoint.best_metric
    if metric is None or "config.CheckpointConfig.best_metric" not in translation.bindings:
        return
    greater = translation.values.get("greater_is_better")
    if greater is None:  # as transformers' TrainingArguments guess it
        greater = not metric.endswith("loss")
    translation.set("config.CheckpointConfig.best_mode", "max" if greater else "min", "greater_is_better")


def _reports(translation: Translation) -> None:
    """Sets who gets the figures beside metrics.jsonl."""
    names, key = translation.get("report_to")
    known = [name for name in names or () if name in keys.REPORTS]
    for name in names or ():
        if name in keys.OTHER_REPORTS:
            translation.notes.append(f"report_to {name!r}: has no counterpart; metrics.jsonl holds every figure.")
        elif name not in known:
            raise InputError(f"{translation.source} gives report_to {name!r}; give {', '.join(keys.REPORTS)}.")
    reports = [keys.REPORTS[name] for name in known]
    chosen = [report for report in reports if report]  # 'all' leaves Limba's default
    if chosen:
        translation.set("REPORT_TO", ",".join(chosen), key)


def _hub(translation: Translation) -> None:
    """Sets the model of the hub that gets the run's model."""
    values = translation.values
    if not (values.get("push_to_hub") or values.get("push_to_hub_final_step")):
        return
    name, key = translation.one_of("hub_model_id", "push_to_hub_model_id")
    if name is None:
        name = os.path.basename(translation.run.model_dir.rstrip("/"))
        key = "push_to_hub, output_dir's name"
    owner = values.get("push_to_hub_organization")
    if owner and "/" not in name:
        name = f"{owner}/{name}"
    translation.set("HUB_MODEL_ID", name, key)
    if values.get("hub_private_repo"):
        translation.set("HUB_PRIVATE", True, "hub_private_repo")
    strategy = values.get("hub_strategy")
    if strategy not in (None, "end", "every_save", "checkpoint", "all_checkpoints"):
        raise InputError(f"{translation.source} gives hub_strategy {strategy!r}; give end or every_save.")
    if values.get("hub_revision") not in (None, "main"):
        raise InputError(f"{translation.source} gives hub_revision {values['hub_revision']!r}; leave it out: main.")
    if values.get("push_to_hub_final_step") or strategy in (None, "end"):
        translation.set("HUB_STRATEGY", "end", translation.get("push_to_hub_final_step", "push_to_hub")[1])
    else:
        translation.set("HUB_STRATEGY", "every_save", f"hub_strategy {strategy}")


def _text(translation: Translation, bindings: Mapping[str, tuple[Any, str]]) -> str:
    """Returns the gin file of the bindings."""
    lines = [
        f"# Made from {translation.source}; limba train with this file makes the same run.",
        *(f"# {note}" for note in translation.notes),
        "from __gin__ import dynamic_registration",
        "",
        "from limba import config",
        "",
        "include 'gin/t5_mlm.gin'",
        "",
        *(f"{name} = {value!r}  # {key}" for name, (value, key) in bindings.items()),
    ]
    return "\n".join(lines) + "\n"


def _written(translation: Translation) -> str:
    """Writes the gin file into the run's folder and prints it; returns its path."""
    output = translation.run.model_dir
    text = _text(translation, translation.bindings)
    print(without_credentials(text), end="", flush=True)
    from limba.api import write_whole

    is_bucket = "://" in output
    folder = Path(tempfile.mkdtemp()) if is_bucket else Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "from_json.gin"
        write_whole(path, text)
    except OSError as error:
        key = translation.bindings["MODEL_DIR"][1]
        raise InputError(f"{key} {output} cannot be written ({error.strerror}); give another.") from error
    return os.fspath(path.resolve())
