"""The runs among T5X's example files as data, for gin files that include one: which files it includes, what it sets.

Facts of T5X of April 2026, in gin's syntax. Left out is what the included files already say.
"""

from __future__ import annotations

from collections.abc import Mapping

_NEW, _SCALABLE = "t5x/examples/t5/t5_1_1", "t5x/examples/scalable_t5"
_PRETRAIN, _FINETUNE, _EVAL, _INFER = (
    f"t5x/configs/runs/{run}.gin" for run in ("pretrain", "finetune", "eval", "infer")
)
_BASE, _SMALL = f"{_NEW}/base.gin", f"{_NEW}/small.gin"
_DATA, _PARTS = "utils.DatasetConfig", "partitioning.PjitPartitioner.num_partitions"
_ENDE, _ENFR, _ENDE19, _C4 = "wmt_t2t_ende_v003", "wmt14_enfr_v003", "wmt19_ende_v003", "c4_v220_span_corruption"


def _of(selector: str, **values: object) -> dict[str, str]:
    return {f"{selector}.{name}": str(value) for name, value in values.items()}


def _task(name: str, inputs: int, targets: int, dropout: float = 0.0, steps: int | None = None) -> dict[str, str]:
    table = {"MIXTURE_OR_TASK_NAME": repr(name), "DROPOUT_RATE": str(dropout)}
    table["TASK_FEATURE_LENGTHS"] = str({"inputs": inputs, "targets": targets})
    return table | ({} if steps is None else {"TRAIN_STEPS": str(steps)})


def _train(**values: object) -> dict[str, str]:
    return _of("train_script.train", **values)


def _published(size: str) -> dict[str, str]:
    path = f"'gs://t5-data/pretrained_models/t5x/t5_1_1_{size}/checkpoint_1000000'"
    return {"INITIAL_CHECKPOINT_PATH": path, "LOSS_NORMALIZING_FACTOR": "233472"}


def _seeded(batch: int, eval_steps: int) -> dict[str, str]:
    both = [_of(f"{each}/{_DATA}", batch_size=batch, seed=0, use_cached=False) for each in ("train", "train_eval")]
    return both[0] | both[1] | _train(random_seed=0, eval_steps=eval_steps)


_BEAMS = _of("models.EncoderDecoderModel.predict_batch_with_aux", num_decodes=4)
_TUNED = {
    **_published("base"), **_BEAMS, **_train(eval_period=100),
    **_of(f"infer_eval/{_DATA}", task_feature_lengths="%TASK_FEATURE_LENGTHS", batch_size=64),
}  # fmt: skip
_SCRATCH = {
    **_seeded(128, 20), **_of("utils.SaveCheckpointConfig", period=5000), _PARTS: "2",
    **_train(eval_period=500, use_hardware_rng=True, infer_eval_dataset_cfg=f"@infer_eval/{_DATA}()"),
    **_of(f"infer_eval/{_DATA}", mixture_or_task_name="%MIXTURE_OR_TASK_NAME", task_feature_lengths=None),
    **_of(f"infer_eval/{_DATA}", split="'validation'", batch_size=128, shuffle=False, seed=0, use_cached=False),
}  # fmt: skip
_WMT19 = {
    **_seeded(128, 20), **_BEAMS, **_train(eval_period=250, use_hardware_rng=True),
    **_of(f"train_eval/{_DATA}", pack=False), **_of("trainer.Trainer", num_microbatches=2),
    **_of("utils.SaveCheckpointConfig", period=500, keep=1), **_of("utils.CheckpointConfig", restore=None),
    **_of("utils.create_learning_rate_scheduler", warmup_steps=1000), "LABEL_SMOOTHING": "0.1",
    **_of("partitioning.PjitPartitioner", model_parallel_submesh=(1, 1, 1, 2)),
    "INITIAL_CHECKPOINT_PATH": "None", "MIXTURE_OR_TASK_MODULE": "'t5.data.mixtures'",
}  # fmt: skip
_TINY = {
    **_of("network.T5Config", vocab_size=32128, dtype="'bfloat16'", emb_dim=8, num_heads=4, head_dim=3, mlp_dim=16),
    **_of("network.T5Config", num_encoder_layers=2, num_decoder_layers=2, mlp_activations=("gelu", "linear")),
    **_of("network.T5Config", dropout_rate=0.0, logits_via_embedding=False), "LABEL_SMOOTHING": "0.0",
    **_train(random_seed=42, eval_period=3, eval_steps=3), "TRAIN_STEPS": "3",
    **_of(f"train/{_DATA}", seed=42, batch_size=8, shuffle=False), **_of(f"train_eval/{_DATA}", batch_size=8),
    **_of(f"infer_eval/{_DATA}", task_feature_lengths="%TASK_FEATURE_LENGTHS"),
    **_of("trainer.Trainer", num_microbatches=0), **_of("utils.CheckpointConfig", restore=None),
}  # fmt: skip
EXAMPLES: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {  # path -> (files included first, what it sets)
    f"{_NEW}/examples/base_c4_pretrain.gin": (
        (_BASE, _PRETRAIN), {**_task(_C4, 512, 114, 0.0, 100_000), "BATCH_SIZE": "256", **_train(eval_period=2000)},
    ),
    f"{_NEW}/examples/small_c4_pretrain.gin": (
        (_SMALL, _PRETRAIN), {**_task(_C4, 512, 114, 0.0, 10_000), "BATCH_SIZE": "256"},
    ),
    f"{_NEW}/examples/base_wmt14enfr_train.gin": (
        (_PRETRAIN, _BASE), {**_task(_ENFR, 256, 256, 0.1, 100_000), **_train(eval_period=2000),
                             **_of("utils.SaveCheckpointConfig", period=200)},
    ),
    f"{_NEW}/examples/base_wmt14enfr_finetune.gin": (
        (_FINETUNE, _BASE), {**_task(_ENFR, 256, 256, 0.1, 1_020_000), **_TUNED},
    ),
    f"{_NEW}/examples/base_wmt_finetune.gin": (
        (_FINETUNE, _BASE), {**_task(_ENDE, 256, 256, 0.1, 1_020_000), **_TUNED, "USE_CACHED_TASKS": "False"},
    ),
    f"{_NEW}/examples/small_wmt_finetune.gin": (
        (_SMALL, _FINETUNE),
        {**_task(_ENDE, 256, 256, 0.0, 1_020_000), **_published("small"), "USE_CACHED_TASKS": "False"},
    ),
    f"{_NEW}/examples/base_wmt_from_scratch.gin": (
        (_BASE, _PRETRAIN), {**_task(_ENDE, 256, 256, 0.0, 50_000), **_SCRATCH, **_BEAMS},
    ),
    f"{_NEW}/examples/base_wmt19_ende_train.gin": (
        (_BASE, _FINETUNE), {**_task(_ENDE19, 512, 512, 0.1, 5000), **_WMT19, **_train(stats_period=250)},
    ),
    f"{_SCALABLE}/t5_1_1/examples/wmt19_ende_from_scratch.gin": (
        (f"{_SCALABLE}/t5_1_1/base.gin", _FINETUNE), {**_task(_ENDE19, 512, 512, 0.1, 25_000), **_WMT19},
    ),
    "t5x/examples/decoder_only/examples/base_wmt_from_scratch.gin": (
        ("t5x/examples/decoder_only/models/base.gin", _PRETRAIN),
        {**_task(_ENDE, 256, 256, 0.0, 50_000), **_SCRATCH,
         **_of("models.DecoderOnlyModel.predict_batch_with_aux", num_decodes=8),
         **_of("models.DecoderOnlyModel", inputs_bidirectional_attention=True)},
    ),
    f"{_NEW}/examples/test_train_t5_tiny.gin": (
        (_PRETRAIN, f"{_NEW}/tiny.gin"),
        {**_task(_ENDE19, 32, 32, 0.0, 3), **_seeded(8, 2), _PARTS: "2", "MODEL_DIR": "'/tmp'",
         **_of(f"train/{_DATA}", pack=False, shuffle=False), **_of(f"train_eval/{_DATA}", pack=False),
         **_of("models.EncoderDecoderModel", z_loss=0.0), **_of("utils.SaveCheckpointConfig", period=4),
         **_of("utils.create_learning_rate_scheduler", warmup_steps=1000),
         "MIXTURE_OR_TASK_MODULE": "'t5.data.mixtures'"},
    ),
    f"{_NEW}/examples/base_wmt_eval.gin": (
        (_BASE, _EVAL), {"MIXTURE_OR_TASK_NAME": repr(_ENDE), "DROPOUT_RATE": "0.0", _PARTS: "2"},
    ),
    f"{_NEW}/examples/base_wmt14enfr_eval.gin": (
        (_BASE, _EVAL), {"INITIAL_CHECKPOINT_PATH": "%gin.REQUIRED", "DROPOUT_RATE": "0.0", **_BEAMS,
                         **_of("utils.RestoreCheckpointConfig", path="%INITIAL_CHECKPOINT_PATH")},
    ),
    f"{_NEW}/examples/base_wmt_infer.gin": ((_BASE, _INFER), _task(_ENDE, 64, 64)),
    "t5x/examples/t5/local_tiny.gin": (
        (), {**_TINY, **_of("utils.CheckpointConfig", save=None),
             "TASK_FEATURE_LENGTHS": "{'inputs': 8, 'targets': 8}"},
    ),
    f"{_SCALABLE}/local_tiny.gin": (
        (), {**_TINY, **_of("network.T5Config", scan_layers=True, remat_policy="'minimal'"),
             "TASK_FEATURE_LENGTHS": "{'inputs': 8, 'targets': 7}"},
    ),
}  # fmt: skip
