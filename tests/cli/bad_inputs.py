"""Bad input of every command: what is typed, and a fragment that the sentence must contain.

`tests/cli/bad_files.py` has the bad files. `tests/cli/test_bad_inputs.py` runs both, and counts them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRAIN = (
    "train gin/demo.gin --gin.CORPUS=corpus.jsonl --gin.VOCABULARY=byte --gin.VOCAB_SIZE=384 --gin.MODEL_DIR=out"
    " --gin.BATCH_SIZE=8 --gin.TRAIN_STEPS=2"
)
LANGUAGE_MODEL = (
    "train gin/models/lm/tiny.gin gin/runs/pretrain.gin --gin.MIXTURE_OR_TASK_NAME=any --gin.MODEL_DIR=out"
    " --gin.TASK_FEATURE_LENGTHS=\"{'targets': 64}\" --gin.DROPOUT_RATE=0.0 --gin.TRAIN_STEPS=2"
)


@dataclass(frozen=True)
class Case:
    """One command in a folder of its own, in which `files` are written or changed first."""

    argv: tuple[str, ...]
    says: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    change: Callable[[Path], None] | None = None  # of the folder
    code: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return " ".join(self.argv)[-70:] + " | " + ",".join(self.files)


# --gin.NAME=VALUE of a T5's run -> what is said.
SETTINGS = {
    # numbers
    "TRAIN_STEPS=0": "TRAIN_STEPS is 0; give a whole number above 0",
    "TRAIN_STEPS=-5": "TRAIN_STEPS is -5; give a whole number above 0",
    "TRAIN_STEPS=1e6": "a whole number",
    "TRAIN_STEPS=many": "gives 'many'",
    "TRAIN_STEPS=True": "a whole number",
    "TRAIN_STEPS=None": "a whole number",
    "TRAIN_STEPS=3000000000": "give a whole number up to 2,147,483,647",
    "BATCH_SIZE=0": "BATCH_SIZE is 0; give a whole number above 0",
    "BATCH_SIZE=-8": "BATCH_SIZE is -8",
    "BATCH_SIZE=10000000000000000000000": "give a whole number up to",
    "BATCH_SIZE=9": "BATCH_SIZE 9 does not divide by DataConfig.num_data_shards 8",
    "BATCH_SIZE=8.0": "a whole number",
    "BATCH_SIZE=(8,)": "a whole number",
    "NUM_MICROBATCHES=0": "NUM_MICROBATCHES is 0",
    "NUM_MICROBATCHES=3": "does not divide by NUM_MICROBATCHES 3",
    "RANDOM_SEED=-1": "is -1; give a whole number, 0 or more",
    "RANDOM_SEED=99999999999999999999": "give a whole number up to 9,223,372,036,854,775,807",
    "RANDOM_SEED=0.5": "a whole number",
    "LOG_PERIOD=0": "LOG_PERIOD is 0",
    "CHECKPOINT_PERIOD=0": "CHECKPOINT_PERIOD is 0",
    "CHECKPOINT_PERIOD=-1": "CHECKPOINT_PERIOD is -1",
    "CHECKPOINTS_KEPT=0": "CHECKPOINTS_KEPT is 0; give a number above 0, or None",
    "CHECKPOINTS_KEPT=all": "a whole number or None",
    "EVAL_PERIOD=0": "EVAL_PERIOD is 0",
    "EVAL_STEPS=0": "EVAL_STEPS is 0",
    "EVAL_STEPS=-1": "EVAL_STEPS is -1",
    "EXTRA_IDS=-1": "EXTRA_IDS is -1; give 0 or more",
    "VOCAB_SIZE=0": "VOCAB_SIZE is 0",
    "VOCAB_SIZE=100": "has 359 ids, sentinels included, and the model 100 rows; set VOCAB_SIZE to 384",
    "EXTRA_IDS=0": "has no sentinels (<extra_id_0>, …); set VOCABULARY",
    "WARMUP_STEPS=-1": "WARMUP_STEPS is -1; give 0 or more",
    "WARMUP_STEPS=0.5": "a whole number",
    "LEARNING_RATE=1e999": "LEARNING_RATE is inf; give a finite number",
    "LEARNING_RATE=-1e999": "LEARNING_RATE is -inf; give a finite number",
    "LEARNING_RATE=1e300": "LEARNING_RATE is 1e+300; give a number below 3.4e+38",
    "LEARNING_RATE=0": "LEARNING_RATE is 0; give a number above 0",
    "LEARNING_RATE=-0.1": "LEARNING_RATE is -0.1",
    "LEARNING_RATE=nan": "gives 'nan'",
    "LEARNING_RATE=True": "a number",
    "LEARNING_RATE=[0.1]": "a number",
    "Z_LOSS=1e999": "Z_LOSS is inf; give a finite number",
    "Z_LOSS=-1e-4": "Z_LOSS is -0.0001; give 0 or more",
    "Z_LOSS=none": "a number",
    "LABEL_SMOOTHING=1.0": "LABEL_SMOOTHING is 1.0; give a number from 0 to below 1",
    "LABEL_SMOOTHING=-0.1": "LABEL_SMOOTHING is -0.1",
    "DROPOUT_RATE=1": "DROPOUT_RATE is 1; give a number from 0 to below 1",
    "DROPOUT_RATE=-0.1": "DROPOUT_RATE is -0.1",
    "DROPOUT_RATE=1e999": "DROPOUT_RATE is inf",
    "config.OptimizerConfig.decay_rate=5": "OptimizerConfig.decay_rate is 5; give a number from 0 to 1",
    "config.OptimizerConfig.decay_rate=-1": "OptimizerConfig.decay_rate is -1",
    "config.OptimizerConfig.weight_decay=-1": "OptimizerConfig.weight_decay is -1",
    "config.OptimizerConfig.weight_decay=1e999": "OptimizerConfig.weight_decay is inf",
    "config.OptimizerConfig.clip_global_norm=0": "OptimizerConfig.clip_global_norm is 0",
    "config.OptimizerConfig.clip_global_norm=1e999": "OptimizerConfig.clip_global_norm is inf",
    "config.OptimizerConfig.clipping_threshold=-1": "OptimizerConfig.clipping_threshold is -1",
    "config.OptimizerConfig.epsilon1=-1e-30": "OptimizerConfig.epsilon1 is -1e-30",
    "config.OptimizerConfig.epsilon2=1e999": "OptimizerConfig.epsilon2 is inf",
    "config.OptimizerConfig.epsilon=-1": "OptimizerConfig.epsilon is -1",
    "config.OptimizerConfig.min_dim_size_to_factor=-1": "OptimizerConfig.min_dim_size_to_factor is -1",
    "config.OptimizerConfig.beta1=1": "OptimizerConfig.beta1 is 1; give a number from 0 to below 1",
    "config.OptimizerConfig.beta2=1.5": "OptimizerConfig.beta2 is 1.5",
    "config.OptimizerConfig.momentum=-0.9": "OptimizerConfig.momentum is -0.9",
    "config.ScheduleConfig.decay_steps=0": "ScheduleConfig.decay_steps is 0",
    "config.ScheduleConfig.final_learning_rate=-1": "ScheduleConfig.final_learning_rate is -1",
    "config.ScheduleConfig.min_learning_rate=1e999": "ScheduleConfig.min_learning_rate is inf",
    "config.ScheduleConfig.steps_per_decay=0": "ScheduleConfig.steps_per_decay is 0",
    "config.ScheduleConfig.steps_per_cycle=-1": "ScheduleConfig.steps_per_cycle is -1",
    "config.ScheduleConfig.decay_factor=-1": "ScheduleConfig.decay_factor is -1",
    "config.ModelConfig.emb_dim=0": "ModelConfig.emb_dim is 0",
    "config.ModelConfig.num_heads=-2": "ModelConfig.num_heads is -2",
    "config.ModelConfig.head_dim=1.5": "a whole number",
    "config.ModelConfig.mlp_dim=0": "ModelConfig.mlp_dim is 0",
    "config.ModelConfig.num_decoder_layers=0": "ModelConfig.num_decoder_layers is 0",
    "config.ModelConfig.num_encoder_layers=-1": "ModelConfig.num_encoder_layers is -1",
    "config.ModelConfig.layer_norm_epsilon=0": "ModelConfig.layer_norm_epsilon is 0; give a number above 0",
    "config.ModelConfig.layer_norm_epsilon=-1": "ModelConfig.layer_norm_epsilon is -1",
    "config.ModelConfig.num_relpos_buckets=2": "give at least 4 buckets",
    "config.ModelConfig.relpos_max_distance=16": "a distance above half of them",
    "config.MeshConfig.data=0": "MeshConfig.data is 0",
    "config.MeshConfig.data=3": "does not fit 8 devices",
    "config.MeshConfig.fsdp=0": "MeshConfig.fsdp is 0",
    "config.MeshConfig.model=-1": "MeshConfig.model is -1",
    "config.MeshConfig.memory_gib=16": "set MeshConfig.auto, which it is for",
    "config.DataConfig.validation_percent=100": "DataConfig.validation_percent is 100",
    "config.DataConfig.validation_percent=-1": "DataConfig.validation_percent is -1",
    "config.DataConfig.num_data_shards=0": "DataConfig.num_data_shards is 0",
    "config.DataConfig.num_data_shards=16": "does not divide by DataConfig.num_data_shards 16",
    "config.DataConfig.num_reader_processes=0": "DataConfig.num_reader_processes is 0",
    "config.DataConfig.read_timeout_seconds=0": "DataConfig.read_timeout_seconds is 0",
    "config.DataConfig.read_timeout_seconds=1e999": "DataConfig.read_timeout_seconds is inf",
    "config.DataConfig.read_attempts=0": "DataConfig.read_attempts is 0",
    "config.DataConfig.shuffle_buffer=-1": "DataConfig.shuffle_buffer is -1",
    "config.DataConfig.num_epochs=0": "DataConfig.num_epochs is 0",
    "config.DataConfig.mixture_temperature=0.5": "DataConfig.mixture_temperature is 0.5; give 1 (by size) or more",
    "config.DataConfig.noise_density=0": "DataConfig.noise_density is 0",
    "config.DataConfig.noise_density=1": "DataConfig.noise_density is 1",
    "config.DataConfig.mean_noise_span_length=0.5": "a mean of 1 or more",
    "config.DataConfig.mean_noise_span_length=1e999": "is inf; give a finite number",
    "config.DataConfig.new_vocabulary_size=50": "give more ids than sentinels",
    "config.DataConfig.new_vocabulary_coverage=0": "DataConfig.new_vocabulary_coverage is 0",
    "config.GenerationConfig.max_tokens=0": "GenerationConfig.max_tokens is 0",
    "config.GenerationConfig.num_beams=0": "GenerationConfig.num_beams is 0",
    "config.GenerationConfig.top_p=2": "GenerationConfig.top_p is 2",
    "config.GenerationConfig.top_k=0": "GenerationConfig.top_k is 0",
    "config.GenerationConfig.temperature=-1": "GenerationConfig.temperature is -1",
    "config.GenerationConfig.seed=-1": "GenerationConfig.seed is -1",
    "config.GenerationConfig.banned_ids=(-1,)": "give token ids, 0 or more",
    "config.GenerationConfig.num_samples=2": "more than GenerationConfig.num_beams 1",
    "config.EvaluationConfig.num_examples=-1": "EvaluationConfig.num_examples is -1",
    "config.EvaluationConfig.patience=3": "waits for a better CheckpointConfig.best_metric",
    "config.RunConfig.profile_steps=-1": "RunConfig.profile_steps is -1",
    "config.RunConfig.step_timeout_seconds=0": "RunConfig.step_timeout_seconds is 0",
    "config.RunConfig.host_timeout_seconds=-1": "RunConfig.host_timeout_seconds is -1",
    "config.CheckpointConfig.save_timeout_seconds=0": "CheckpointConfig.save_timeout_seconds is 0",
    # texts
    "MODEL_DIR=": "MODEL_DIR is ''; give a text that is not empty",
    "MODEL_DIR=5": "a string",
    "MODEL_DIR=gss://bucket/run": "begins with gss://",
    "MODEL_DIR=http://host/run": "begins with http://",
    "MODEL_DIR=corpus.jsonl": "cannot be written",
    "MODEL_DIR=corpus.jsonl/run": "cannot be written",
    "MODEL_DIR=/proc/none/run": "cannot be written",
    "MODEL_DIR='a\\x00b'": "without NUL characters",
    "MODEL_DIR='\\udcff'": "give text in UTF-8",
    "config.CheckpointConfig.fallback_dir=s4://bucket": "begins with s4://",
    "config.CheckpointConfig.fallback_dir=": "CheckpointConfig.fallback_dir is ''",
    "config.CheckpointConfig.verify=never": "choose one of checksums, sizes",
    "config.CheckpointConfig.best_mode=highest_of_all": "choose one of max, min",
    "config.CheckpointConfig.best_metric=": "CheckpointConfig.best_metric is ''",
    "MIXTURE_OR_TASK_NAME=": "MIXTURE_OR_TASK_NAME is ''",
    "MIXTURE_OR_TASK_NAME=demo_span_corruptoin": "did you mean demo_span_corruption",
    "MIXTURE_OR_TASK_NAME=None": "a string",
    "OBJECTIVE=mlm": "choose one of span_corruption",
    "OBJECTIVE=causal_lm": "gives no inputs, and the model has an encoder",
    "TASK_FEATURE_LENGTHS={}": "give {'inputs': 512}",
    "TASK_FEATURE_LENGTHS={'input': 64}": "give {'inputs': 512}",
    "TASK_FEATURE_LENGTHS={'inputs': 0}": "gives 0 for 'inputs'",
    "TASK_FEATURE_LENGTHS={'inputs': -64}": "gives -64 for 'inputs'",
    "TASK_FEATURE_LENGTHS={'inputs': 1}": "TASK_FEATURE_LENGTHS",
    "TASK_FEATURE_LENGTHS={'inputs': 'long'}": "a mapping such as",
    "TASK_FEATURE_LENGTHS={'targets': 64}": "and the model has an encoder",
    "TASK_FEATURE_LENGTHS=512": "a mapping such as",
    "VOCABULARY=": "VOCABULARY is ''",
    "VOCABULARY=none.model": "The vocabulary none.model does not exist; set VOCABULARY",
    "VOCABULARY=.": "cannot be read",
    "CORPUS=": "CORPUS is ''",
    "CORPUS=()": "CORPUS is (); give the path of a file",
    "CORPUS={}": "CORPUS is {}",
    "CORPUS=none-*.jsonl": "none-*.jsonl",
    "CORPUS={'trian': 'corpus.jsonl'}": "trian",
    "CORPUS=zzz://bucket/a.jsonl": "zzz",
    "COLUMN=": "COLUMN is ''",
    "COLUMN=txt": "txt",
    "COLUMN={'inputs': 'en', 'targets': 'ro'}": "reads one column; name one",
    "INITIAL_CHECKPOINT_PATH=": "INITIAL_CHECKPOINT_PATH is ''",
    "INITIAL_CHECKPOINT_PATH=nowhere": "nowhere",
    "INITIAL_CHECKPOINT_PATH=gss://bucket/run": "begins with gss://",
    "INITIAL_CHECKPOINT_PATH=.": "which has no Limba checkpoint",
    "LEARNING_RATE_FACTORS=constant * linear_warm": "holds 'linear_warm'; choose from",
    "LEARNING_RATE_FACTORS=": "is ''",
    "DTYPE=float16": "choose one of float32, bfloat16",
    "SCAN_LAYERS=false": "True or False",
    "PACK=yes": "True or False",
    "SHUFFLE_TRAIN_EXAMPLES=1": "True or False",
    "config.ModelConfig.remat=some": "choose one of none, minimal, full",
    "config.ModelConfig.attention=flash": "choose one of auto, einsum",
    "config.ModelConfig.positions=alibi": "choose one of relative, rotary",
    "config.ModelConfig.norm=batch": "choose one of rms, layer",
    "config.ModelConfig.mlp_activations=('tanh',)": "holds 'tanh'; choose from relu",
    "config.ModelConfig.mlp_activations=()": "has 0 entries",
    "config.ModelConfig.mlp_activations=gelu": "a list, each a string",
    "config.ModelConfig.num_kv_heads=1": "an encoder-decoder has None",
    "config.ModelConfig.biases=('mlp',)": "an encoder-decoder has ()",
    "config.OptimizerConfig.name=sgd": "choose one of adafactor",
    "config.OptimizerConfig.frozen=('(',)": "holds '(', which is not a regular expression",
    "config.OptimizerConfig.frozen=('.*',)": "so nothing would be trained",
    "config.OptimizerConfig.frozen=('encodr',)": "no parameter's name begins with it",
    "config.OptimizerConfig.frozen=encoder": "a list, each a string",
    "config.ScheduleConfig.name=step": "choose one of factors, linear",
    "config.LossConfig.logits=half": "choose one of auto, whole, chunked",
    "config.RunConfig.random_bits=mersenne": "choose one of threefry2x32",
    "config.RunConfig.gradient_reduce_dtype=float16": "choose one of auto",
    "config.DataConfig.on_read_failure=retry": "choose one of stop, skip",
    "config.DataConfig.on_changed_corpus=ignore": "choose one of refuse, new_epoch",
    "config.DataConfig.train_split=": "DataConfig.train_split is ''",
    "config.DataConfig.train_split=tarin": "tarin",
    "config.DataConfig.cache_dir=cache": "leave out one of them",
    "config.DataConfig.validation_split=dev": "dev",
    "config.EvaluationConfig.prompts=('Once',)": "the model has an encoder, which continues none",
    "config.MeshConfig.auto=yes": "True or False",
    # names
    "TRAIN_STEP=5": "did you mean TRAIN_STEPS?",
    "batch_size=5": "did you mean BATCH_SIZE?",
    "ZZZ=5": "which nothing uses",
    "BATCH_SIZE": "write --gin.BATCH_SIZE=VALUE",
    "A B=5": "not gin",
    "=5": "not gin",
    "BATCH_SIZE=%BATCH": "uses %BATCH, which nothing sets",
    "BATCH_SIZE=%BATCH_SIZE": "defines BATCH_SIZE by itself",
    "BATCH_SIZE=%gin.REQUIRED": "BATCH_SIZE is not set",
    'MODEL_DIR="/tmp': "a quotation mark that is not closed",
    "config.ModelConfig.embdim=5": "did you mean emb_dim?",
    "config.ModelConfg.emb_dim=5": "did you mean config.ModelConfig?",
    "ModelConfig.emb_dim=5": "did you mean config.ModelConfig?",
    "big/config.ModelConfig.emb_dim=5": "does not use",
    "config.RunConfig.data=@config.DataConfig": "write @config.DataConfig()",
    "config.RunConfig.data=@config.Data()": "not a class of limba/config/",
    "config.RunConfig.data=@config.ModelConfig()": "which config.RunConfig does not use",
    "config.RunConfig.model=None": "which config.RunConfig does not use",
}
# The same for a decoder-only model.
SETTINGS_OF_LANGUAGE_MODEL = {
    "config.ModelConfig.positions=relative": "choose rotary, learned or sinusoidal",
    "config.ModelConfig.attention=pallas": "is for encoder-decoders",
    "config.ModelConfig.rotary_base=1": "ModelConfig.rotary_base is 1; give a number above 1",
    "config.ModelConfig.rotary_base=-1": "ModelConfig.rotary_base is -1",
    "config.ModelConfig.num_kv_heads=3": "give a multiple",
    "config.ModelConfig.num_kv_heads=0": "ModelConfig.num_kv_heads is 0",
    "config.ModelConfig.biases=('norm',)": "holds 'norm'; choose from attention, mlp, logits",
    "TASK_FEATURE_LENGTHS={'inputs': 64}": "the model is decoder-only",
    "TASK_FEATURE_LENGTHS={'targets': 1e3}": "a mapping such as",
    "OBJECTIVE=span_corruption": "without inputs; choose one of prefix_lm",
}
# Arguments of `limba train` and of no command.
ARGUMENTS = {
    "": "usage",
    "trian": "did you mean train?",
    "xyzzy": "limba --help lists them",
    "train": "No gin file is given",
    "train --gin_file": "--gin_file has no value",
    "train gin/demos.gin": "did you mean gin/demo.gin?",
    "train --gin_file=": "does not exist",
    "train gin": "gin",
    "train gin/demo.gin --gin_fil=x": "did you mean --gin_file",
    "train gin/demo.gin TRAIN_STEPS=5": "write --gin.TRAIN_STEPS=5",
    "train gin/demo.gin --alsologtostderr": "--help lists the arguments",
    "train gin/demo.gin --json=a.json": "Both --json and --gin_file are given",
    "train --json=none.json": "cannot be read as JSON (No such file or directory)",
    "train --json=.": "cannot be read as JSON (Is a directory)",
    "train gin/demo.gin --profile=few": "write --profile or --profile=5",
    "train gin/demo.gin --profile=0": "is not a number of steps",
    "train gin/demo.gin --profile=-1": "is not a number of steps",
    "train gin/demo.gin --gin_search_paths=nowhere": "--gin_search_paths names nowhere, which is not a folder",
    "train gin/demo.gin --gin_search_paths=.,corpus.jsonl": "corpus.jsonl, which is not a folder",
    "train gin/models/byt5/small.gin": "RunConfig",
    "train gin/runs/pretrain.gin": "is not set",
}


def train_cases() -> list[Case]:
    cases = [Case((*shlex.split(TRAIN), f"--gin.{setting}"), says) for setting, says in SETTINGS.items()]
    language_model = shlex.split(LANGUAGE_MODEL)
    cases += [Case((*language_model, f"--gin.{setting}"), says) for setting, says in SETTINGS_OF_LANGUAGE_MODEL.items()]
    return cases + [Case(tuple(shlex.split(line)), says) for line, says in ARGUMENTS.items() if line]


# One key of a JSON configuration of Hugging Face's scripts -> what is said. None removes the key.
JSON: dict[str, Any] = {
    "output_dir": "out",
    "config_name": "hf",
    "tokenizer_name": "byte",
    "train_file": "corpus.jsonl",
    "max_steps": 2,
    "max_seq_length": 64,
    "per_device_train_batch_size": 1,
}
KEYS: list[tuple[dict[str, Any], str]] = [
    ({"max_seq_length": 0}, "gives max_seq_length 0; give a whole number above 0"),
    ({"max_seq_length": -1}, "gives max_seq_length -1"),
    ({"max_seq_length": "long"}, "gives max_seq_length 'long'; give a whole number"),
    ({"max_seq_length": 64.0}, "give a whole number"),
    ({"per_device_train_batch_size": 0}, "gives per_device_train_batch_size 0"),
    ({"per_device_train_batch_size": True}, "give a whole number"),
    ({"gradient_accumulation_steps": 0}, "gives gradient_accumulation_steps 0"),
    ({"do_train": False}, "gives do_train False"),
    ({"do_train": "yes"}, "give true or false"),
    ({"do_eval": 1}, "give true or false"),
    ({"learning_rate": 0}, "learning_rate is 0; give a number above 0"),
    ({"learning_rate": float("nan")}, "gives learning_rate nan; give a number"),
    ({"learning_rate": float("inf")}, "gives learning_rate inf"),
    ({"learning_rate": "5e-5"}, "give a number"),
    ({"mlm_probability": 0}, "is 0 and"),
    ({"mlm_probability": 1.5}, "1.5"),
    ({"mean_noise_span_length": 0}, "a mean of 1 or more"),
    ({"weight_decay": -1}, "weight_decay is -1"),
    ({"warmup_steps": -1}, "warmup_steps is -1"),
    ({"adam_beta1": 1}, "adam_beta1 is 1"),
    ({"max_grad_norm": -1}, "max_grad_norm is -1"),
    ({"label_smoothing_factor": 1}, "label_smoothing_factor is 1"),
    ({"logging_steps": 0}, "logging_steps is 0"),
    ({"save_steps": 0}, "save_steps is 0"),
    ({"save_total_limit": 0}, "save_total_limit is 0"),
    ({"eval_steps": -1}, "eval_steps is -1"),
    ({"validation_split_percentage": 100}, "validation_split_percentage is 100"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 10**20}, "give a whole number up to"),
    ({"max_steps": None, "num_train_epochs": 0}, "gives num_train_epochs 0"),
    ({"output_dir": None}, "has no output_dir"),
    ({"output_dir": ""}, "gives output_dir ''; give a string"),
    ({"output_dir": "corpus.jsonl"}, "cannot be written"),
    ({"config_name": None}, "names neither model_name_or_path nor config_name"),
    ({"config_name": "corpus.jsonl"}, "cannot be read"),
    ({"tokenizer_name": None}, "names no tokenizer_name"),
    ({"tokenizer_name": "empty"}, "holds neither spiece.model nor tokenizer.json"),
    ({"tokenizer_name": "none.model"}, "The vocabulary none.model does not exist"),
    ({"train_file": None}, "must give one of train_file and dataset_name; it gives neither"),
    ({"dataset_name": "a/b"}, "it gives both"),
    ({"train_file": "none.jsonl"}, "none.jsonl"),
    ({"dtype": "int8"}, "gives dtype 'int8'"),
    ({"fp16": True}, "sets float16, in which T5 overflows"),
    ({"optim": "lion"}, "give adamw_torch or adafactor"),
    ({"lr_scheduler_type": "polynomial"}, "gives lr_scheduler_type 'polynomial'"),
    ({"lerning_rate": 1}, "did you mean learning_rate?"),
    ({"save_steps": 5, "checkpointing_steps": 6}, "different values; leave one out"),
    ({"text_column_name": "txt"}, "txt"),
]
TEXTS_OF_JSON = {
    b"": "cannot be read as JSON",
    b"[1]": "holds no JSON object",
    b"{'a': 1}": "cannot be read as JSON",
    b"\xff\xfe": "cannot be read as JSON",
    b"[" * 100_000: "cannot be read as JSON",
    b'{"seed": 1e999}': "give a whole number",
}


def json_cases() -> list[Case]:
    cases = []
    for change, says in KEYS:
        values = {key: value for key, value in {**JSON, **change}.items() if value is not None}
        cases.append(Case(("train", "--json=a.json"), says, {"a.json": json.dumps(values).encode()}))
    return cases + [Case(("train", "--json=a.json"), says, {"a.json": text}) for text, says in TEXTS_OF_JSON.items()]
