"""T5X's public names and values as data: what its include files set, and the defaults of the classes that they bind.

Facts of T5X of April 2026 (github.com/google-research/t5x), written as name -> value in gin's syntax. A file of T5X
that is found in the search paths is read instead.
"""

from __future__ import annotations

from collections.abc import Mapping

PAGE = "docs/coming_from_t5x.md"
LOSS_NORMALIZERS = {  # loss_normalizing_factor -> LossConfig.normalize_by
    "NUM_REAL_TARGET_TOKENS": "tokens",
    "NUM_TOTAL_TARGET_TOKENS": "all_tokens",
    "AVERAGE_PER_SEQUENCE": "sequences",
}
# how results are written
OUTPUT = ("write_inferences_to_file", "JSONLogger", "TensorBoardLogger", "summarize_gin_config")
WRITES = "Limba writes its results in its own way"
IDLE = "nothing in this run uses it"
REQUIRED = "%gin.REQUIRED"
Table = Mapping[str, str]

_SCHEDULER = "utils.create_learning_rate_scheduler"
_MESH = "partitioning.PjitPartitioner"
_SCALABLE = "t5x/examples/scalable_t5"


def fields(selector: str, **values: object) -> dict[str, str]:
    """Returns values of a class or function as gin's bindings.

    >>> fields("trainer.Trainer", num_microbatches=2)
    {'trainer.Trainer.num_microbatches': '2'}
    """
    return {f"{selector}.{name}": str(value) for name, value in values.items()}


VOCABULARIES = {
    "t5": "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model",
    "mt5": "gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model",
    "umt5": "gs://t5-data/vocabs/umt5.256000/sentencepiece.model",
}
# family -> (vocab_size, mlp_activations, logits_via_embedding, vocabulary; None: bytes)
FAMILIES = {
    "t5_1_0": (32128, "('relu',)", True, "t5"),
    "t5_1_1": (32128, "('gelu', 'linear')", False, "t5"),
    "mt5": (250112, "('gelu', 'linear')", False, "mt5"),
    "byt5": (384, "('gelu', 'linear')", False, None),
    "models": (32128, "('gelu', 'linear')", True, "t5"),  # decoder_only/models
}
_TINY = (8, 4, 2, 2, 3, 16)  # for tests; the other facts of these files are T5 1.1's in every family
_NEW = {  # of T5 1.1, mT5 and, with one stack, decoder_only
    "small": (512, 6, 8, 8, 64, 1024),
    "base": (768, 12, 12, 12, 64, 2048),
    "large": (1024, 16, 24, 24, 64, 2816),
    "xl": (2048, 32, 24, 24, 64, 5120),
    "xxl": (4096, 64, 24, 24, 64, 10240),
}
# family -> size -> (emb_dim, num_heads, num_encoder_layers, num_decoder_layers, head_dim, mlp_dim)
SIZES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "t5_1_0": {
        "tiny": _TINY,
        "small": (512, 8, 6, 6, 64, 2048),
        "base": (768, 12, 12, 12, 64, 3072),
        "large": (1024, 16, 24, 24, 64, 4096),
        "3B": (1024, 32, 24, 24, 128, 16384),
        "11B": (1024, 128, 24, 24, 128, 65536),
    },
    "t5_1_1": {"tiny": _TINY, **_NEW},
    "mt5": {"tiny": _TINY, **_NEW},
    "byt5": {
        "tiny": _TINY,
        "small": (1472, 6, 12, 4, 64, 3584),
        "base": (1536, 12, 18, 6, 64, 3968),
        "large": (1536, 16, 36, 12, 64, 3840),
        "xl": (2560, 32, 36, 12, 64, 6720),
        "xxl": (4672, 64, 36, 12, 64, 12352),
    },
    "models": {size: _NEW[size] for size in ("base", "large", "xl", "xxl")},
}
PLACES = {  # folder of models -> its families
    "t5": ("t5_1_0", "t5_1_1", "mt5", "byt5"),
    "scalable_t5": ("t5_1_1", "mt5"),
    "decoder_only": ("models",),
}
_SIZE_FIELDS = ("emb_dim", "num_heads", "num_encoder_layers", "num_decoder_layers", "head_dim", "mlp_dim")

# Defaults of T5X's classes where a gin file leaves a field out.
T5_CONFIG = {
    "dtype": "float32", "emb_dim": 512, "num_heads": 8, "num_encoder_layers": 6, "num_decoder_layers": 6,
    "head_dim": 64, "mlp_dim": 2048, "mlp_activations": ("relu",), "dropout_rate": 0.1,
    "logits_via_embedding": False,
}  # fmt: skip
SCHEDULE = {
    "factors": "constant * linear_warmup * rsqrt_decay", "base_learning_rate": 0.5, "warmup_steps": 1000,
    "decay_factor": 0.5, "steps_per_decay": 20_000, "steps_per_cycle": 100_000, "step_offset": 0,
    "min_learning_rate": 1e-8,
}  # fmt: skip
ADAMW = {"b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 1e-4}


def _model(folder: str, family: str, size: str) -> Table:
    vocab_size, activations, is_tied, vocabulary = FAMILIES["t5_1_1" if size == "tiny" else family]
    is_decoder = folder == "decoder_only"
    config = "network.TransformerConfig" if is_decoder else "network.T5Config"
    model = "models.DecoderOnlyModel" if is_decoder else "models.EncoderDecoderModel"
    module = "network.DecoderWrapper" if is_decoder else "network.Transformer"
    sizes = dict(zip(_SIZE_FIELDS, SIZES[family][size], strict=True))
    if is_decoder:
        sizes = {**sizes, "num_layers": sizes["num_decoder_layers"]}
        del sizes["num_encoder_layers"], sizes["num_decoder_layers"]
    kind = "ByteVocabulary" if vocabulary is None else "SentencePieceVocabulary"
    vocabularies = ("vocabulary",) if is_decoder else ("input_vocabulary", "output_vocabulary")
    bindings = {
        "z_loss": "%Z_LOSS", "label_smoothing": "%LABEL_SMOOTHING", "optimizer_def": "%OPTIMIZER",
        "loss_normalizing_factor": "%LOSS_NORMALIZING_FACTOR", **dict.fromkeys(vocabularies, "%VOCABULARY"),
    }  # fmt: skip
    table = {
        "Z_LOSS": "0.0001", "LABEL_SMOOTHING": "0.0", "LOSS_NORMALIZING_FACTOR": "None", "DROPOUT_RATE": REQUIRED,
        "VOCABULARY": f"@seqio.{kind}()", "OPTIMIZER": "@adafactor.Adafactor()", "MODEL": f"@{model}()",
        **fields("adafactor.Adafactor", decay_rate=0.8, step_offset=0),
        **fields("adafactor.Adafactor", logical_factor_rules="@adafactor.standard_logical_factor_rules()"),
        **fields(model, module=f"@{module}()", **bindings), **fields(module, config=f"@{config}()"),
        **fields(config, vocab_size=vocab_size, dtype="'bfloat16'", dropout_rate="%DROPOUT_RATE", **sizes),
        **fields(config, mlp_activations=activations, logits_via_embedding=is_tied),
    }  # fmt: skip
    if vocabulary is not None:
        table["seqio.SentencePieceVocabulary.sentencepiece_model_file"] = repr(VOCABULARIES[vocabulary])
    if folder == "scalable_t5":
        table |= fields(config, scan_layers=True, remat_policy="'minimal'")
    if is_decoder:
        table |= fields(model, decode_fn="@decoding.temperature_sample")
        table |= fields("decoding.temperature_sample", temperature=1.0, topk=40)
    return table


def _dataset(scope: str, split: str, seed: str = "42", **others: str) -> Table:
    values = {
        "mixture_or_task_name": "%MIXTURE_OR_TASK_NAME", "task_feature_lengths": "%TASK_FEATURE_LENGTHS",
        "split": repr(split), "batch_size": "%BATCH_SIZE", "shuffle": "False", "seed": seed, "pack": "True",
        "use_cached": "%USE_CACHED_TASKS", "module": "%MIXTURE_OR_TASK_MODULE", **others,
    }  # fmt: skip
    return fields(f"{scope}utils.DatasetConfig", **values)


_RULES = fields(_MESH, num_partitions=1, logical_axis_rules="@partitioning.standard_logical_axis_rules()")
_TRAIN = {
    **dict.fromkeys(("TRAIN_STEPS", "MODEL_DIR", "MIXTURE_OR_TASK_NAME", "TASK_FEATURE_LENGTHS"), REQUIRED),
    "MIXTURE_OR_TASK_MODULE": "None", "BATCH_SIZE": "128", "USE_CACHED_TASKS": "True", "USE_HARDWARE_RNG": "False",
    "RANDOM_SEED": "None", "TRAIN_STEPS_RELATIVE": "None",
    **fields("train_script.train", model="%MODEL", model_dir="%MODEL_DIR", trainer_cls="@trainer.Trainer",
             train_dataset_cfg="@train/utils.DatasetConfig()", checkpoint_cfg="@utils.CheckpointConfig()",
             train_eval_dataset_cfg="@train_eval/utils.DatasetConfig()", partitioner=f"@{_MESH}()",
             total_steps="%TRAIN_STEPS", relative_steps="%TRAIN_STEPS_RELATIVE", random_seed="%RANDOM_SEED",
             use_hardware_rng="%USE_HARDWARE_RNG"),
    **_RULES, **fields(_MESH, model_parallel_submesh=None), **_dataset("train_eval/", "validation"),
    **fields("utils.CheckpointConfig", restore="@utils.RestoreCheckpointConfig()"),
    **fields("utils.CheckpointConfig", save="@utils.SaveCheckpointConfig()"),
    **fields("utils.SaveCheckpointConfig", dtype="'float32'", keep=None, save_dataset=False),
    **fields("trainer.Trainer", num_microbatches=None, learning_rate_fn=f"@{_SCHEDULER}()"),
}  # fmt: skip
_PRETRAIN = {
    **_TRAIN, "SHUFFLE_TRAIN_EXAMPLES": "True",
    **fields("train_script.train", infer_eval_dataset_cfg=None, eval_steps=20, eval_period=1000),
    **_dataset("train/", "train", "None", shuffle="%SHUFFLE_TRAIN_EXAMPLES"),
    **fields("utils.RestoreCheckpointConfig", path=[]), **fields("utils.SaveCheckpointConfig", period=1000),
    **fields(_SCHEDULER, factors="'constant * rsqrt_decay'", base_learning_rate=1.0, warmup_steps=10000),
}  # fmt: skip
_FINETUNE = {
    **_TRAIN, "INITIAL_CHECKPOINT_PATH": REQUIRED, "DROPOUT_RATE": "0.1", "EVAL_STEPS": "20", "EVAL_PERIOD": "1000",
    "EVALUATOR_USE_MEMORY_CACHE": "True", "EVALUATOR_NUM_EXAMPLES": "None", "JSON_WRITE_N_RESULTS": "None",
    **fields("train_script.train", infer_eval_dataset_cfg="@infer_eval/utils.DatasetConfig()"),
    **fields("train_script.train", eval_steps="%EVAL_STEPS", eval_period="%EVAL_PERIOD"),
    **fields("train_script.train", inference_evaluator_cls="@seqio.Evaluator"),
    **fields("seqio.Evaluator", num_examples="%EVALUATOR_NUM_EXAMPLES", use_memory_cache="%EVALUATOR_USE_MEMORY_CACHE"),
    **fields("seqio.JSONLogger", write_n_results="%JSON_WRITE_N_RESULTS"),
    **_dataset("train/", "train", "None", shuffle="True"),
    **_dataset("infer_eval/", "validation", task_feature_lengths="None", pack="False"),
    **fields("utils.RestoreCheckpointConfig", path="%INITIAL_CHECKPOINT_PATH", mode="'specific'", dtype="'float32'"),
    **fields("utils.SaveCheckpointConfig", period=5000),
    **fields(_SCHEDULER, factors="'constant'", base_learning_rate=0.001, warmup_steps=1000),
}  # fmt: skip


def _use(script: str, output: str, lengths: str, seed: str) -> dict[str, str]:
    rows = {"batch_size": "32", "use_cached": "False", "pack": "False"}
    return {
        **dict.fromkeys(("MIXTURE_OR_TASK_NAME", "CHECKPOINT_PATH", output), REQUIRED),
        "TASK_FEATURE_LENGTHS": lengths, "MIXTURE_OR_TASK_MODULE": "None",
        **fields(script, model="%MODEL", dataset_cfg="@utils.DatasetConfig()", partitioner=f"@{_MESH}()",
                 restore_checkpoint_cfg="@utils.RestoreCheckpointConfig()", output_dir=f"%{output}"),
        **_RULES, **_dataset("", "test", seed, **rows),
        **fields("utils.RestoreCheckpointConfig", path="%CHECKPOINT_PATH", mode="'specific'"),
    }  # fmt: skip


_UMT5_RUN = {
    "TRAIN_STEPS": "1_000_000", "DROPOUT_RATE": "0.0", "RANDOM_SEED": "0",
    "LOSS_NORMALIZING_FACTOR": "'NUM_REAL_TARGET_TOKENS'",
    **fields("train_script.train", stats_period=500, eval_steps=20, random_seed=0),
    **fields("train/utils.DatasetConfig", seed=42),
}  # fmt: skip
_SHARDED_PARAMETERS = fields(
    "partitioning.standard_logical_axis_rules", activation_partitioning_dims=1, parameter_partitioning_dims=2
)
_OTHERS: Mapping[str, tuple[tuple[str, ...], Table]] = {  # path -> (files included first, what it sets)
    "t5x/configs/runs/pretrain.gin": ((), _PRETRAIN),
    # Named by umT5's files, and not in the public repository: pretraining whose data order is saved.
    "t5x/configs/runs/pretrain_deterministic.gin": ((), _PRETRAIN),
    "t5x/configs/runs/finetune.gin": ((), _FINETUNE),
    "t5x/configs/runs/eval.gin": (
        (),
        _use("eval_script.evaluate", "EVAL_OUTPUT_DIR", "None", "42")
        | fields("eval_script.evaluate", inference_evaluator_cls="@seqio.Evaluator")
        | fields("seqio.Evaluator", num_examples=None, use_memory_cache=True),
    ),
    "t5x/configs/runs/infer.gin": (
        (),
        _use("infer_script.infer", "INFER_OUTPUT_DIR", REQUIRED, "0")
        | fields("infer_script.infer", mode="'predict'")
        | fields("utils.RestoreCheckpointConfig", dtype="'bfloat16'"),
    ),
    f"{_SCALABLE}/umt5/architectures/encoder_decoder.gin": ((), {"network.T5Config.vocab_size": "%VOCAB_SIZE"}),
    f"{_SCALABLE}/umt5/optimizer/adafactor.gin": ((), {"OPTIMIZER": "@adafactor.Adafactor()"}),
    f"{_SCALABLE}/umt5/optimizer/adafactor_momentum_nofactor.gin": (
        (),
        {"OPTIMIZER": "@adafactor.Adafactor()"}
        | fields("adafactor.Adafactor", beta1=0.9, factored=False, global_norm_clip_threshold=1.0),
    ),
    f"{_SCALABLE}/umt5/vocab.gin": (
        (),
        {"VOCABULARY": "@seqio.SentencePieceVocabulary()", "VOCAB_SIZE": "256384"}
        | fields("seqio.SentencePieceVocabulary", sentencepiece_model_file=repr(VOCABULARIES["umt5"]), extra_ids=300),
    ),
    f"{_SCALABLE}/umt5/runs/pretraining_common.gin": (
        ("t5x/configs/runs/pretrain_deterministic.gin",),
        {
            **_UMT5_RUN, "TASK_FEATURE_LENGTHS": "None", "BATCH_SIZE": "1024", "USE_CACHED_TASKS_TRAIN_EVAL": "False",
            **fields("train/utils.DatasetConfig", pack=False, use_cached=True),
            **fields("train_eval/utils.DatasetConfig", mixture_or_task_name="%TRAIN_EVAL_MIXTURE_OR_TASK_NAME"),
            **fields("train_eval/utils.DatasetConfig", pack=False, use_cached="%USE_CACHED_TASKS_TRAIN_EVAL"),
            **fields("train_script.train", eval_period=2000), **fields("utils.SaveCheckpointConfig", period=2000),
        },
    ),
    f"{_SCALABLE}/umt5/runs/finetuning_common.gin": (
        ("t5x/configs/runs/finetune.gin",),
        {
            **_UMT5_RUN, "TRAIN_STEPS": REQUIRED, "DROPOUT_RATE": "0.1", "BATCH_SIZE": "64",
            "TASK_FEATURE_LENGTHS": "{'inputs': 512, 'targets': 512}", "USE_CACHED_TASKS": "False",
            "LEARNING_RATE": "0.0005", **fields("train_script.train", eval_period=1000, stats_period=1000),
            **fields("utils.SaveCheckpointConfig", period=1000, save_dataset=True, keep_dataset_checkpoints=3),
            **fields(_SCHEDULER, base_learning_rate="%LEARNING_RATE"),
        },
    ),
    **{
        f"{_SCALABLE}/umt5/pretrain_{size}.gin": (
            (
                f"{_SCALABLE}/mt5/{size}.gin",
                f"{_SCALABLE}/umt5/architectures/encoder_decoder.gin",
                f"{_SCALABLE}/umt5/runs/pretraining_common.gin",
                f"{_SCALABLE}/umt5/optimizer/adafactor{'_momentum_nofactor' if size == 'xxl' else ''}.gin",
                f"{_SCALABLE}/umt5/vocab.gin",
            ),
            {
                "partitioning.PjitPartitioner.model_parallel_submesh": f"(1, 1, {8 if size == 'xxl' else 1}, 1)",
                "MIXTURE_OR_TASK_NAME": REQUIRED, "TRAIN_EVAL_MIXTURE_OR_TASK_NAME": REQUIRED,
                "TASK_FEATURE_LENGTHS": "{'inputs': 1024, 'targets': 229}", "USE_CACHED_TASKS": "True",
                "TRAIN_STEPS": "1_000_000", **(_SHARDED_PARAMETERS if size == "xxl" else {}),
            },
        )
        for size in _NEW
    },
}  # fmt: skip
PATHS = (
    *_OTHERS,
    *(f"t5x/examples/{folder}/{family}/{size}.gin" for folder in PLACES for family in PLACES[folder]
      for size in SIZES[family] if not (folder == "scalable_t5" and size == "tiny")),
)  # fmt: skip


def include_file(path: str) -> tuple[tuple[str, ...], Table] | None:
    """Returns the files that T5X's file at this path includes first, and what it sets; None for other paths.

    >>> include_file("t5x/examples/t5/t5_1_1/small.gin")[1]["network.T5Config.mlp_dim"]
    '1024'
    """
    if path in _OTHERS:
        return _OTHERS[path]
    if path not in PATHS:
        return None
    _, _, folder, family, size = path.removesuffix(".gin").split("/")
    return (), _model(folder, family, size)


def network_of(path: str) -> str | None:
    """Returns the folder of T5X's networks whose `network` a file of T5X imports: t5, scalable_t5 or decoder_only."""
    parts = path.split("/")
    return parts[2] if path in PATHS and len(parts) > 2 and parts[2] in PLACES else None
