"""The example files of T5X's repository and of four public Romanian runs, as facts: each becomes a run.

A case is the files that one includes, what it sets, and what of Limba's run follows, or the sentence that refuses it.
"""

from pathlib import Path
from typing import NamedTuple

import pytest

from limba.cli import flags
from limba.config import InputError

NEW = "t5x/examples/t5/t5_1_1"
SCALABLE = "t5x/examples/scalable_t5"
PRETRAIN, FINETUNE, INFER = (f"t5x/configs/runs/{name}.gin" for name in ("pretrain", "finetune", "infer"))
WMT = {"MIXTURE_OR_TASK_NAME": "'wmt_t2t_ende_v003'", "TASK_FEATURE_LENGTHS": "{'inputs': 256, 'targets': 256}"}
TUNED = {**WMT, "TRAIN_STEPS": "1_020_000", "LOSS_NORMALIZING_FACTOR": "233472", "USE_CACHED_TASKS": "False",
         "INITIAL_CHECKPOINT_PATH": "'gs://t5-data/pretrained_models/t5x/t5_1_1_base/checkpoint_1000000'"}  # fmt: skip
GENERATED = {
    "train_script.train.infer_eval_dataset_cfg": "@infer_eval/utils.DatasetConfig()",
    "infer_eval/utils.DatasetConfig.mixture_or_task_name": "%MIXTURE_OR_TASK_NAME",
    "infer_eval/utils.DatasetConfig.task_feature_lengths": "None",
    "infer_eval/utils.DatasetConfig.split": "'validation'",
    "infer_eval/utils.DatasetConfig.batch_size": "128",
    "infer_eval/utils.DatasetConfig.shuffle": "False",
    "infer_eval/utils.DatasetConfig.seed": "0",
    "infer_eval/utils.DatasetConfig.use_cached": "False",
    "seqio.Evaluator.logger_cls": "[@seqio.PyLoggingLogger, @seqio.TensorBoardLogger, @seqio.JSONLogger]",
    "seqio.Evaluator.num_examples": "None",
    "seqio.Evaluator.use_memory_cache": "True",
}
SCRATCH = {
    **WMT, **GENERATED, "TRAIN_STEPS": "50000", "DROPOUT_RATE": "0.0",
    "train/utils.DatasetConfig.seed": "0", "train/utils.DatasetConfig.use_cached": "False",
    "train_script.train.random_seed": "0", "train_script.train.use_hardware_rng": "True",
    "train_script.train.eval_period": "500", "utils.SaveCheckpointConfig.period": "5000",
    "partitioning.PjitPartitioner.num_partitions": "2",
}  # fmt: skip
CHAIN = {
    **SCRATCH, "OPTIMIZER": "@optimizers.chain()", "optax.clip.max_delta": "1.0",
    "optax.warmup_cosine_decay_schedule.peak_value": "1e-4",
}  # fmt: skip
DE = {"MIXTURE_OR_TASK_NAME": "'wmt19_ende_v003'", "MIXTURE_OR_TASK_MODULE": "'t5.data.mixtures'"}
FROM_NOTHING = {
    **DE, "TASK_FEATURE_LENGTHS": "{'inputs': 512, 'targets': 512}", "LABEL_SMOOTHING": "0.1", "DROPOUT_RATE": "0.1",
    "INITIAL_CHECKPOINT_PATH": "None", "train/utils.DatasetConfig.seed": "0", "trainer.Trainer.num_microbatches": "2",
    "train_eval/utils.DatasetConfig.pack": "False", "train_script.train.random_seed": "0",
    "train/utils.DatasetConfig.use_custom_packing_ops": "False", "utils.CheckpointConfig.restore": "None",
    "utils.SaveCheckpointConfig.keep": "1", "partitioning.PjitPartitioner.model_parallel_submesh": "(1, 1, 1, 2)",
    "models.EncoderDecoderModel.predict_batch_with_aux.num_decodes": "4",
}  # fmt: skip
TINY = {
    **DE, "TRAIN_STEPS": "3", "TASK_FEATURE_LENGTHS": "{'inputs': 32, 'targets': 32}", "DROPOUT_RATE": "0.0",
    "models.EncoderDecoderModel.z_loss": "0.0", "train/utils.DatasetConfig.pack": "False",
    "train/utils.DatasetConfig.shuffle": "False", "train/utils.DatasetConfig.batch_size": "8",
    "train_script.train.actions": "{'TRAIN_EVAL': [@trainer.TerminateOnNanAction()]}",
    "trainer.TerminateOnNanAction.task": "%MIXTURE_OR_TASK_NAME", "utils.SaveCheckpointConfig.period": "4",
}  # fmt: skip
EVALUATE = {
    "INITIAL_CHECKPOINT_PATH": "%gin.REQUIRED", "EVAL_OUTPUT_DIR": "%gin.REQUIRED", "DROPOUT_RATE": "0.0",
    "eval_script.evaluate.model": "%MODEL", "eval_script.evaluate.dataset_cfg": "@utils.DatasetConfig()",
    "eval_script.evaluate.restore_checkpoint_cfg": "@utils.RestoreCheckpointConfig()",
    "eval_script.evaluate.output_dir": "%EVAL_OUTPUT_DIR",
    "eval_script.evaluate.inference_evaluator_cls": "@seqio.Evaluator",
    "utils.DatasetConfig.mixture_or_task_name": "%MIXTURE_OR_TASK_NAME", "utils.DatasetConfig.split": "'test'",
    "utils.DatasetConfig.task_feature_lengths": "None", "utils.DatasetConfig.batch_size": "32",
    "utils.RestoreCheckpointConfig.path": "%INITIAL_CHECKPOINT_PATH",
    "models.EncoderDecoderModel.predict_batch_with_aux.num_decodes": "4",
}  # fmt: skip
LOCAL = {
    **WMT, "TASK_FEATURE_LENGTHS": "{'inputs': 8, 'targets': 8}", "TRAIN_STEPS": "3", "DROPOUT_RATE": "0.0",
    "train_script.train.random_seed": "42", "network.T5Config.head_dim": "3", "network.T5Config.emb_dim": "8",
    "trainer.Trainer.num_microbatches": "0", "utils.CheckpointConfig.restore": "None",
    "utils.CheckpointConfig.save": "None",
}  # fmt: skip
ROMANIAN = {
    "MIXTURE_OR_TASK_NAME": "'rlm_span_corruption_stream'", "TRAIN_STEPS": "2_000_000", "DROPOUT_RATE": "0.0",
    "PjitPartitioner.num_partitions": "2", "utils.SaveCheckpointConfig.keep": "3",
}  # fmt: skip
OWN_PIECES = {
    "network.T5Config.vocab_size": "64000", "VOCABULARY": "@seqio.SentencePieceVocabulary()",
    "seqio.SentencePieceVocabulary.sentencepiece_model_file": "'gs://my-bucket/ro.model'",
}  # fmt: skip
GOES_ON = {
    "utils.RestoreCheckpointConfig.path": "%INITIAL_CHECKPOINT_PATH", "utils.RestoreCheckpointConfig.mode": "'specific'"
}  # fmt: skip


class Case(NamedTuple):
    includes: tuple[str, ...]
    settings: dict[str, str]
    found: dict[str, object] | str  # a field of RunConfig -> its value; or the sentence


CASES = {
    "base_c4_pretrain": Case(
        (f"{NEW}/base.gin", PRETRAIN),
        {"MIXTURE_OR_TASK_NAME": "'c4_v220_span_corruption'", "TRAIN_STEPS": "100000", "DROPOUT_RATE": "0.0",
         "TASK_FEATURE_LENGTHS": "{'inputs': 512, 'targets': 114}", "train_script.train.eval_period": "2000"},
        {"train_steps": 100_000, "model.num_encoder_layers": 12, "data.pack": True},
    ),
    "base_wmt14enfr_train": Case(
        (PRETRAIN, f"{NEW}/base.gin"),
        {**WMT, "TRAIN_STEPS": "100000", "DROPOUT_RATE": "0.1", "utils.SaveCheckpointConfig.period": "200"},
        {"checkpoint.every_steps": 200, "model.dropout_rate": 0.1},
    ),
    "base_wmt14enfr_finetune": Case((FINETUNE, f"{NEW}/base.gin"), {**TUNED, "DROPOUT_RATE": "0.1", **GENERATED},
                                    {"loss.normalize_by": 233_472, "generation.max_tokens": 256}),
    "small_wmt_finetune": Case((f"{NEW}/small.gin", FINETUNE), {**TUNED, "DROPOUT_RATE": "0.0"},
                               {"model.num_heads": 6, "model.dropout_rate": 0.0, "checkpoint.every_steps": 5000}),
    "base_wmt19_ende_train": Case((f"{NEW}/base.gin", FINETUNE), {**FROM_NOTHING, "TRAIN_STEPS": "5000"},
                                  {"initial_checkpoint_path": None, "num_microbatches": 2, "mesh.model": 2}),
    "base_wmt_from_scratch": Case((f"{NEW}/base.gin", PRETRAIN), SCRATCH,
                                  {"random_bits": "rbg", "mesh.model": 2, "random_seed": 0}),
    "base_wmt_from_scratch_adamw": Case(
        (f"{NEW}/base.gin", PRETRAIN), {**CHAIN, "optimizers.chain.transformations": "[@optax.clip(), @optax.adamw()]"},
        "Limba has no clip; use optax.clip_by_global_norm",
    ),
    "base_wmt_from_scratch_lion": Case(
        (f"{NEW}/base.gin", PRETRAIN), {**CHAIN, "optimizers.chain.transformations": "[@optax.clip(), @optax.lion()]"},
        "sets optimizers.chain.transformations to [@optax.clip(), @optax.lion()]: Limba has no clip",
    ),
    "base_wmt14enfr_eval": Case((f"{NEW}/base.gin",), {**EVALUATE, "MIXTURE_OR_TASK_NAME": "'wmt14_enfr_v003'"},
                                {"generation.num_beams": 4, "data.validation_split": "test"}),
    "base_wmt_infer": Case((f"{NEW}/base.gin", INFER),
                           {**WMT, "TASK_FEATURE_LENGTHS": "{'inputs': 64, 'targets': 64}", "DROPOUT_RATE": "0.0"},
                           {"generation.max_tokens": 64, "initial_checkpoint_path": "/c"}),
    "test_train_t5_tiny": Case((PRETRAIN, f"{NEW}/tiny.gin"), TINY, {"model.head_dim": 3, "loss.z_loss": 0.0}),
    "test_train_eval_t5_tiny": Case(
        (PRETRAIN, f"{NEW}/tiny.gin"),
        {**TINY, "train_script.train.run_eval_before_training": "True", "train_script.train.total_steps": "0"},
        "total_steps is 0",
    ),
    "local_tiny": Case((f"{NEW}/base.gin", PRETRAIN), LOCAL, {"model.emb_dim": 8, "num_microbatches": 1}),
    "scalable_local_tiny": Case(
        (f"{SCALABLE}/t5_1_1/base.gin", PRETRAIN),
        {**LOCAL, "network.T5Config.scan_layers": "True", "network.T5Config.remat_policy": "'minimal'"},
        {"model.remat": "minimal", "model.relative_bias_per_layer": True},
    ),
    "scalable_wmt19_ende_from_scratch": Case(
        (f"{SCALABLE}/t5_1_1/base.gin", FINETUNE), {**FROM_NOTHING, "TRAIN_STEPS": "25000"},
        {"model.relative_bias_per_layer": True, "loss.label_smoothing": 0.1},
    ),
    "tydiqa_base": Case(
        (f"{SCALABLE}/mt5/base.gin", f"{SCALABLE}/umt5/architectures/encoder_decoder.gin",
         f"{SCALABLE}/umt5/runs/finetuning_common.gin", f"{SCALABLE}/umt5/optimizer/adafactor.gin",
         f"{SCALABLE}/umt5/vocab.gin"),
        {**WMT, "INITIAL_CHECKPOINT_PATH": "'gs://t5-data/umt5_base/checkpoint_1000000'", "TRAIN_STEPS": "1_050_000",
         "LEARNING_RATE": "0.00005", "BATCH_SIZE": "32", "adafactor.Adafactor.step_offset": "1_000_000",
         "partitioning.PjitPartitioner.model_parallel_submesh": "(1, 2, 1, 1)"},
        {"optimizer.step_offset": 1_000_000, "model.vocab_size": 256_384,
         "optimizer.schedule.base_learning_rate": 5e-5},
    ),
    "decoder_only_base_wmt_from_scratch": Case(
        ("t5x/examples/decoder_only/models/base.gin", PRETRAIN),
        {**SCRATCH, "models.DecoderOnlyModel.inputs_bidirectional_attention": "True",
         "models.DecoderOnlyModel.predict_batch_with_aux.num_decodes": "8"},
        {"model.positions": "relative", "model.prefix_attention": "full", "generation.max_tokens": 256,
         "generation.num_samples": 8},
    ),
    "ro_t5x_base": Case((f"{NEW}/base.gin", PRETRAIN),
                        {**ROMANIAN, **OWN_PIECES, "TASK_FEATURE_LENGTHS": "{'inputs': 512, 'targets': 256}"},
                        {"model.vocab_size": 64_000, "data.vocabulary": "gs://my-bucket/ro.model"}),
    "ro_t5x_large": Case((f"{NEW}/large.gin", PRETRAIN),
                         {**ROMANIAN, **OWN_PIECES, "TASK_FEATURE_LENGTHS": "{'inputs': 512, 'targets': 512}",
                          "PjitPartitioner.num_partitions": "4"}, {"mesh.model": 4, "model.num_decoder_layers": 24}),
    "ro_mt5x_base": Case(
        ("t5x/examples/t5/mt5/base.gin", PRETRAIN),
        {**ROMANIAN, **GOES_ON, "TASK_FEATURE_LENGTHS": "{'inputs': 512, 'targets': 256}",
         "INITIAL_CHECKPOINT_PATH": "'gs://t5-data/pretrained_models/t5x/mt5_base/checkpoint_1000000'",
         "utils.create_learning_rate_scheduler.base_learning_rate": "0.4",
         "utils.SaveCheckpointConfig.period": "25000"},
        {"checkpoint.every_steps": 25_000, "optimizer.schedule.base_learning_rate": 0.4, "checkpoint.keep": 3},
    ),
    "ro_mt5x_large": Case(
        ("t5x/examples/t5/mt5/large.gin", PRETRAIN),
        {**ROMANIAN, **GOES_ON, "TASK_FEATURE_LENGTHS": "{'inputs': 512, 'targets': 512}",
         "INITIAL_CHECKPOINT_PATH": "'gs://t5-data/pretrained_models/t5x/mt5_large/checkpoint_1000000'"},
        {"model.vocab_size": 250_112, "model.num_heads": 16},
    ),
}  # fmt: skip


def argv_of(name: str, folder: Path) -> list[str]:
    """Returns the arguments: the case as a gin file, and what is given on the command line."""
    includes, settings, _ = CASES[name]
    lines = [
        *(f"include '{include}'" for include in includes),
        *(f"{key} = {value}" for key, value in settings.items()),
    ]
    (folder / "theirs.gin").write_text("\n".join(["import __main__ as train_script", *lines, ""]))
    values = {"MODEL_DIR": folder}
    if "eval" in name and "train" not in name:
        values = {"INITIAL_CHECKPOINT_PATH": "/c", "EVAL_OUTPUT_DIR": folder}
    elif name == "base_wmt_infer":
        values = {"CHECKPOINT_PATH": "/c", "INFER_OUTPUT_DIR": folder}
    return [str(folder / "theirs.gin"), *(f"--gin.{key}={value}" for key, value in values.items())]


@pytest.mark.parametrize("name", CASES)
def test_each_example_becomes_a_run_or_is_refused(name, tmp_path):
    argv = argv_of(name, tmp_path)
    wanted = CASES[name].found
    if isinstance(wanted, str):
        with pytest.raises(InputError) as error:
            flags.parse_args(argv)
        assert wanted in str(error.value) and "\n" not in str(error.value)
        return
    config = flags.parse_args(argv).config
    for field, value in wanted.items():
        value_read = config
        for part in field.split("."):
            value_read = getattr(value_read, part)
        assert value_read == value, field
