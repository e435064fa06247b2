"""T5X's names of classes, fields and macros, and ours for each: for a message about such a name in our gin file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from limba.config.errors import did_you_mean, nearest
from limba.config.optimizer import fields_of
from limba.tools.migrate.t5x.tables import PAGE

_DECODING = "config.GenerationConfig"
_SCHEDULE = "config.ScheduleConfig"
# their class, function or macro, and a field of theirs that has another name here
OURS = {
    "T5Config": "config.ModelConfig", "T5Config.remat_policy": "config.ModelConfig.remat",
    "TransformerConfig": "config.ModelConfig", "TransformerConfig.num_layers": "config.ModelConfig.num_decoder_layers",
    "EncoderDecoderModel": "config.LossConfig",
    "EncoderDecoderModel.loss_normalizing_factor": "config.LossConfig.normalize_by",
    "DecoderOnlyModel": "config.LossConfig",
    "DecoderOnlyModel.loss_normalizing_factor": "config.LossConfig.normalize_by", "predict_batch_with_aux": _DECODING,
    "predict_batch_with_aux.num_decodes": f"{_DECODING}.num_beams", "beam_search": _DECODING,
    "beam_search.alpha": f"{_DECODING}.length_penalty", "beam_search.num_decodes": f"{_DECODING}.num_beams",
    "temperature_sample": _DECODING, "PjitPartitioner": "config.MeshConfig",
    "PjitPartitioner.num_partitions": "config.MeshConfig.model",
    "PjitPartitioner.model_parallel_submesh": "config.MeshConfig.model",
    "standard_logical_axis_rules": "config.MeshConfig.fsdp", "DatasetConfig": "config.DataConfig",
    "DatasetConfig.split": "config.DataConfig.train_split", "DatasetConfig.use_cached": "config.DataConfig.cache_dir",
    "CheckpointConfig": "config.CheckpointConfig",
    "CheckpointConfig.restore": "config.RunConfig.initial_checkpoint_path",
    "CheckpointConfig.save": "config.CheckpointConfig.every_steps", "SaveCheckpointConfig": "config.CheckpointConfig",
    "SaveCheckpointConfig.period": "config.CheckpointConfig.every_steps",
    "RestoreCheckpointConfig": "config.RunConfig.initial_checkpoint_path",
    "RestoreCheckpointConfig.assignment_map": "config.RunConfig.reset_step", "Trainer": "config.RunConfig",
    "Trainer.learning_rate_fn": _SCHEDULE, "train": "config.RunConfig",
    "train.total_steps": "config.RunConfig.train_steps", "train.eval_period": "config.EvaluationConfig.every_steps",
    "train.stats_period": "config.RunConfig.log_every_steps", "train.use_hardware_rng": "config.RunConfig.random_bits",
    "evaluate": "config.EvaluationConfig", "infer": _DECODING, "Evaluator": "config.EvaluationConfig",
    "Adafactor": "config.OptimizerConfig", "Adafactor.beta1": "config.OptimizerConfig.momentum",
    "Adafactor.global_norm_clip_threshold": "config.OptimizerConfig.clip_global_norm",
    "adamw": "config.OptimizerConfig", "adam": "config.OptimizerConfig",
    "clip_by_global_norm": "config.OptimizerConfig.clip_global_norm", "create_learning_rate_scheduler": _SCHEDULE,
    "warmup_cosine_decay_schedule": _SCHEDULE, "SentencePieceVocabulary": "config.DataConfig.vocabulary",
    "SentencePieceVocabulary.extra_ids": "config.DataConfig.extra_ids",
    "ByteVocabulary": "config.DataConfig.vocabulary", "PassThroughVocabulary": "config.DataConfig.vocabulary",
    "LOSS_NORMALIZING_FACTOR": "config.LossConfig.normalize_by", "USE_CACHED_TASKS": "config.DataConfig.cache_dir",
    "USE_HARDWARE_RNG": "config.RunConfig.random_bits", "CHECKPOINT_PATH": "INITIAL_CHECKPOINT_PATH",
    "EVALUATOR_NUM_EXAMPLES": "config.EvaluationConfig.num_examples",
}  # fmt: skip


def advice(name: str, classes: Mapping[str, type], field: str = "") -> str:
    """Returns the end of a sentence about an unknown name: the nearest name, and the page if the name is T5X's.

    `classes` maps the names of our classes to them; `field` is what is set of the class `name`, if any.

    >>> advice("partitioning.PjitPartitioner", {}, "num_partitions")
    '; did you mean config.MeshConfig.model? docs/coming_from_t5x.md has the list.'
    >>> advice("config.LossConfg", {"config.LossConfig": None})
    '; did you mean config.LossConfig?'
    """
    last = name.rpartition(".")[2]
    if name.startswith("config.") or (last not in OURS and f"config.{last}" in classes):
        return did_you_mean(name, classes)
    near = next(iter(difflib.get_close_matches(last, OURS, n=1, cutoff=0.8)), "")  # itself, if it is there
    if not near:
        return did_you_mean(name, classes) if nearest(name, classes) else f"; {PAGE} has the list of T5X's names."
    ours = OURS.get(f"{near}.{field}") or _field(OURS[near], field, classes)
    return f"; did you mean {ours}? {PAGE} has the list."


def _field(ours: str, field: str, classes: Mapping[str, type]) -> str:
    """Returns our class with the nearest of its fields, if one is near."""
    if not field or ours not in classes:
        return ours
    near = nearest(field, fields_of(classes[ours]))
    return f"{ours}.{near}" if near else ours
