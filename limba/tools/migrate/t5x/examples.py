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


def fields(selector: str, **values: object) -> dict[str, str]:
    """Returns values of a class or function as gin's bindings.

    >>> fields("trainer.Trainer", num_microbatches=2)
    {'trainer.Trainer.num_microbatches': '2'}
    """
    return {f"{selector}.{name}": str(value) for name, value in values.items()}


def _train(**values: object) -> dict[str, str]:
    return fields("train_script.train", **values)


def _task(name: str, inputs: int, targets: int, dropout: float, **macros: object) -> dict[str, str]:
    lengths = {"inputs": inputs, "targets": targets}
    macros = {"MIXTURE_OR_TASK_NAME": repr(name), "TASK_FEATURE_LENGTHS": lengths, "DROPOUT_RATE": dropout, **macros}
    return {name: str(value) for name, value in macros.items()}


def _tuned(task: str, size: str, dropout: float, **macros: object) -> dict[str, str]:
    path = f"'gs://t5-data/pretrained_models/t5x/t5_1_1_{size}/checkpoint_1000000'"
    macros |= {"INITIAL_CHECKPOINT_PATH": path, "LOSS_NORMALIZING_FACTOR": 233472, "TRAIN_STEPS": 1_020_000}
    return _task(task, 256, 256, dropout, **macros)


def _seeded(batch: int, eval_steps: int) -> dict[str, str]:
    both = [fields(f"{each}/{_DATA}", batch_size=batch, seed=0, use_cached=False) for each in ("train", "train_eval")]
    return both[0] | both[1] | _train(random_seed=0, eval_steps=eval_steps)


_MODULE = {"MIXTURE_OR_TASK_MODULE": "'t5.data.mixtures'"}
_BEAMS = fields("models.EncoderDecoderModel.predict_batch_with_aux", num_decodes=4)
_EVALUATED = {
    **_BEAMS, **_train(eval_period=100),
    **fields(f"infer_eval/{_DATA}", task_feature_lengths="%TASK_FEATURE_LENGTHS", batch_size=64),
}  # fmt: skip
_SCRATCH = {
    **_task(_ENDE, 256, 256, 0.0, TRAIN_STEPS=50_000),
    **_seeded(128, 20), **fields("utils.SaveCheckpointConfig", period=5000), _PARTS: "2",
    **_train(eval_period=500, use_hardware_rng=True, infer_eval_dataset_cfg=f"@infer_eval/{_DATA}()"),
    **fields(f"infer_eval/{_DATA}", mixture_or_task_name="%MIXTURE_OR_TASK_NAME", task_feature_lengths=None),
    **fields(f"infer_eval/{_DATA}", split="'validation'", batch_size=128, shuffle=False, seed=0, use_cached=False),
}  # fmt: skip
_WMT19 = {
    **_task(_ENDE19, 512, 512, 0.1, LABEL_SMOOTHING=0.1, INITIAL_CHECKPOINT_PATH=None), **_MODULE,
    **_seeded(128, 20), **_BEAMS, **_train(eval_period=250, use_hardware_rng=True),
    **fields(f"train_eval/{_DATA}", pack=False), **fields("trainer.Trainer", num_microbatches=2),
    **fields("utils.SaveCheckpointConfig", period=500, keep=1), **fields("utils.CheckpointConfig", restore=None),
    **fields("partitioning.PjitPartitioner", model_parallel_submesh=(1, 1, 1, 2)),
}  # fmt: skip
_TINY = {
    **fields("network.T5Config", vocab_size=32128, dtype="'bfloat16'", emb_dim=8, num_heads=4, head_dim=3, mlp_dim=16),
    **fields("network.T5Config", num_encoder_layers=2, num_decoder_layers=2, mlp_activations=("gelu", "linear")),
    **fields("network.T5Config", dropout_rate=0.0, logits_via_embedding=False), "LABEL_SMOOTHING": "0.0",
    **_train(random_seed=42, eval_period=3, eval_steps=3), "TRAIN_STEPS": "3",
    **fields(f"train/{_DATA}", seed=42, batch_size=8, shuffle=False), **fields(f"train_eval/{_DATA}", batch_size=8),
    **fields(f"infer_eval/{_DATA}", task_feature_lengths="%TASK_FEATURE_LENGTHS"),
    **fields("trainer.Trainer", num_microbatches=0), **fields("utils.CheckpointConfig", restore=None),
}  # fmt: skip
_OF_T5_1_1 = {  # name -> (files included first, what it sets)
    "base_c4_pretrain": (
        (_BASE, _PRETRAIN),
        _task(_C4, 512, 114, 0.0, TRAIN_STEPS=100_000, BATCH_SIZE=256) | _train(eval_period=2000),
    ),
    "small_c4_pretrain": ((_SMALL, _PRETRAIN), _task(_C4, 512, 114, 0.0, TRAIN_STEPS=10_000, BATCH_SIZE=256)),
    "base_wmt14enfr_train": (
        (_PRETRAIN, _BASE), {**_task(_ENFR, 256, 256, 0.1, TRAIN_STEPS=100_000), **_train(eval_period=2000),
                             **fields("utils.SaveCheckpointConfig", period=200)},
    ),
    "base_wmt14enfr_finetune": ((_FINETUNE, _BASE), _tuned(_ENFR, "base", 0.1) | _EVALUATED),
    "base_wmt_finetune": ((_FINETUNE, _BASE), _tuned(_ENDE, "base", 0.1, USE_CACHED_TASKS=False) | _EVALUATED),
    "small_wmt_finetune": ((_SMALL, _FINETUNE), _tuned(_ENDE, "small", 0.0, USE_CACHED_TASKS=False)),
    "base_wmt_from_scratch": ((_BASE, _PRETRAIN), _SCRATCH | _BEAMS),
    "base_wmt19_ende_train": ((_BASE, _FINETUNE), {**_WMT19, "TRAIN_STEPS": "5000", **_train(stats_period=250)}),
    "test_train_t5_tiny": (
        (_PRETRAIN, f"{_NEW}/tiny.gin"),
        {**_task(_ENDE19, 32, 32, 0.0, TRAIN_STEPS=3, MODEL_DIR="'/tmp'"), **_MODULE, **_seeded(8, 2), _PARTS: "2",
         **fields(f"train/{_DATA}", pack=False, shuffle=False), **fields(f"train_eval/{_DATA}", pack=False),
         **fields("models.EncoderDecoderModel", z_loss=0.0), **fields("utils.SaveCheckpointConfig", period=4),
         **fields("utils.create_learning_rate_scheduler", warmup_steps=1000)},
    ),
    "base_wmt_eval": (
        (_BASE, _EVAL), {"MIXTURE_OR_TASK_NAME": repr(_ENDE), "DROPOUT_RATE": "0.0", _PARTS: "2"},
    ),
    "base_wmt14enfr_eval": (
        (_BASE, _EVAL), {"INITIAL_CHECKPOINT_PATH": "%gin.REQUIRED", "DROPOUT_RATE": "0.0", **_BEAMS,
                         **fields("utils.RestoreCheckpointConfig", path="%INITIAL_CHECKPOINT_PATH")},
    ),
    "base_wmt_infer": ((_BASE, _INFER), _task(_ENDE, 64, 64, 0.0)),
}  # fmt: skip
EXAMPLES: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {  # path -> the same
    **{f"{_NEW}/examples/{name}.gin": entry for name, entry in _OF_T5_1_1.items()},
    f"{_SCALABLE}/t5_1_1/examples/wmt19_ende_from_scratch.gin": (
        (f"{_SCALABLE}/t5_1_1/base.gin", _FINETUNE), {**_WMT19, "TRAIN_STEPS": "25000"},
    ),
    "t5x/examples/decoder_only/examples/base_wmt_from_scratch.gin": (
        ("t5x/examples/decoder_only/models/base.gin", _PRETRAIN),
        {**_SCRATCH, **fields("models.DecoderOnlyModel", inputs_bidirectional_attention=True),
         **fields("models.DecoderOnlyModel.predict_batch_with_aux", num_decodes=8)},
    ),
    "t5x/examples/t5/local_tiny.gin": (
        (), _TINY | {"utils.CheckpointConfig.save": "None", "TASK_FEATURE_LENGTHS": "{'inputs': 8, 'targets': 8}"},
    ),
    f"{_SCALABLE}/local_tiny.gin": (
        (), {**_TINY, **fields("network.T5Config", scan_layers=True, remat_policy="'minimal'"),
             "TASK_FEATURE_LENGTHS": "{'inputs': 8, 'targets': 7}"},
    ),
}  # fmt: skip
