"""Every key of Hugging Face's T5 pretraining scripts that is known here: what it takes, and what it becomes.

The keys come from `run_t5_mlm_flax.py`, PyTorch scripts like it (with accelerate or torch_xla), and transformers'
TrainingArguments (versions 4 and 5).
"""

from __future__ import annotations

from collections.abc import Mapping

# Key -> the gin name that gets its value unchanged, and the value's kind.
PLAIN: Mapping[str, tuple[str, type]] = {
    "mlm_probability": ("NOISE_DENSITY", float),
    "mean_noise_span_length": ("MEAN_NOISE_SPAN_LENGTH", float),
    "validation_split_percentage": ("VALIDATION_PERCENT", float),
    "learning_rate": ("LEARNING_RATE", float),
    "weight_decay": ("WEIGHT_DECAY", float),
    "adam_beta1": ("config.OptimizerConfig.beta1", float),
    "adam_beta2": ("config.OptimizerConfig.beta2", float),
    "adam_epsilon": ("config.OptimizerConfig.epsilon", float),
    "max_grad_norm": ("config.OptimizerConfig.clip_global_norm", float),
    "label_smoothing_factor": ("LABEL_SMOOTHING", float),
    "max_train_samples": ("MAX_EXAMPLES", int),
    "seed": ("RANDOM_SEED", int),
}
# Defaults of the scripts that differ from Limba's gin files.
DEFAULTS: Mapping[str, tuple[str, float]] = {
    "learning_rate": ("LEARNING_RATE", 5e-5),
    "warmup_steps": ("WARMUP_STEPS", 0),
    "weight_decay": ("WEIGHT_DECAY", 0.0),
    "logging_steps": ("LOG_PERIOD", 500),
    "save_steps": ("CHECKPOINT_PERIOD", 500),
    "seed": ("RANDOM_SEED", 42),
}
CHECKPOINTS_KEPT = 5  # without save_total_limit; the scripts then keep all
# Periods: key -> its gin name. A number below 1 is a share of the run's steps, as in TrainingArguments.
PERIODS = {
    "logging_steps": "LOG_PERIOD",
    "save_steps": "CHECKPOINT_PERIOD",
    "checkpointing_steps": "CHECKPOINT_PERIOD",
    "eval_steps": "EVAL_PERIOD",
    "warmup_steps": "WARMUP_STEPS",
    "num_warmup_steps": "WARMUP_STEPS",
}
STRATEGIES = {
    "logging_strategy": "LOG_PERIOD",
    "save_strategy": "CHECKPOINT_PERIOD",
    "eval_strategy": "EVAL_PERIOD",
    "evaluation_strategy": "EVAL_PERIOD",
}
# Keys that only the scripts for summaries, translation and causal language models have: not taken. The page has a table
# of what each is in gin.
OF_OTHER_SCRIPTS = (
    *("source_lang", "target_lang", "source_prefix", "text_column", "summary_column", "max_source_length"),
    *("max_target_length", "val_max_target_length", "generation_max_length", "generation_num_beams", "num_beams"),
    *("generation_config", "predict_with_generate", "ignore_pad_token_for_loss", "pad_to_max_length"),
    *("sortish_sampler", "resize_position_embeddings", "lang", "forced_bos_token", "test_file", "max_predict_samples"),
    *("block_size", "config_overrides"),
)
OTHER_SCRIPTS = ("run_summarization", "run_translation", "run_clm")  # also with endings such as _no_trainer, _flax
OTHERS: Mapping[str, type] = {
    **dict.fromkeys(("model_name_or_path", "config_name", "tokenizer_name", "output_dir"), str),
    **dict.fromkeys(("dataset_name", "dataset_config_name", "dataset_revision", "model_revision"), str),
    **dict.fromkeys(("train_file", "validation_file", "text_column_name"), str),
    **dict.fromkeys(("dtype", "torch_dtype", "mixed_precision", "optim", "lr_scheduler_type"), str),
    **dict.fromkeys(STRATEGIES, str),
    **dict.fromkeys(PERIODS, float),
    **dict.fromkeys(("max_seq_length", "per_device_train_batch_size", "per_device_eval_batch_size"), int),
    **dict.fromkeys(("per_gpu_train_batch_size", "per_gpu_eval_batch_size", "gradient_accumulation_steps"), int),
    **dict.fromkeys(("max_steps", "max_train_steps", "max_eval_samples", "save_total_limit"), int),
    **dict.fromkeys(("num_train_epochs", "warmup_ratio"), float),
    **dict.fromkeys(("adafactor", "do_train", "do_eval", "do_predict", "bf16", "fp16"), bool),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), bool),
    **dict.fromkeys(("push_to_hub", "push_to_hub_final_step", "hub_private_repo"), bool),
    **dict.fromkeys(("hub_model_id", "hub_strategy", "hub_token", "hub_revision"), str),
    **dict.fromkeys(("push_to_hub_model_id", "push_to_hub_organization", "push_to_hub_token", "token"), str),
    "use_auth_token": str,
    "metric_for_best_model": str,
    "report_to": list,
    **dict.fromkeys(("load_best_model_at_end", "greater_is_better"), bool),
}
# Keys that are taken with one line: what they mean here. Keys of accelerate launch are among them.
_OF_SEVERAL = {
    "has no counterpart": (
        "log_level", "log_level_replica", "tpu_metrics_debug", "use_mps_device", "past_index", "trackio_space_id",
        "trackio_bucket_id", "trackio_static_space_id", "eval_use_gather_object", "enable_jit_checkpoint",
        "accelerator_config", "dataloader_multiprocessing_context", "mp_parameters", "ddp_static_graph", "xpu_backend",
        "dispatch_batches", "split_batches", "jit_mode_eval", "use_ipex", "ray_scope", "use_legacy_prediction_loop",
        "torchdynamo", "fsdp_transformer_layer_cls_to_wrap", "project", "debug", "main_training_function",
        "num_cpu_threads_per_process",
    ),
    "has no counterpart: XLA compiles a step as one program for all devices": (
        "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_backend", "torch_compile",
        "torch_compile_backend", "torch_compile_mode", "dynamo_backend", "downcast_bf16", "torch_empty_cache_steps",
        "low_cpu_mem_usage",
    ),
    "all devices are used, and processes find each other, without a launcher": (
        "local_rank", "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port",
        "config_file", "multi_gpu", "tpu", "cpu", "use_env", "tpu_num_cores",
    ),
    "set JAX_PLATFORMS=cpu to use the CPU": ("no_cuda", "use_cpu"),
    "has no counterpart: loss scaling is dynamic": ("fp16_opt_level", "fp16_backend", "half_precision_backend"),
    "evaluation computes in the run's dtype": ("fp16_full_eval", "bf16_full_eval"),
    "rows are full: text is cut into rows of one length": ("group_by_length", "length_column_name"),
    "evaluation keeps sums only, the loss and its figures": (
        "eval_accumulation_steps", "eval_do_concat_batches", "batch_eval_metrics", "include_for_metrics",
        "include_inputs_for_metrics", "prediction_loss_only",
    ),
    "has no counterpart: REMAT chooses": ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"),
    "the fastest kernels of the device are chosen": ("use_liger_kernel", "liger_kernel_config"),
    "the corpus is streamed, whole and in order; DataConfig.num_reader_processes adds readers": (
        "overwrite_cache", "preprocessing_num_workers", "dataloader_num_workers", "dataloader_pin_memory",
        "dataloader_drop_last", "dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_in_order",
        "streaming",
    ),
    "is always logged, to output_dir; report_to chooses who else gets the figures": (
        "with_tracking", "logging_dir", "logging_first_step", "log_on_each_node", "include_num_input_tokens_seen",
        "include_tokens_per_second", "skip_memory_metrics",
    ),
    "a run in output_dir resumes by itself, exactly where it was, and another one is refused": (
        "overwrite_output_dir", "resume_from_checkpoint", "ignore_data_skip", "restore_callback_states_from_checkpoint",
    ),
    "evaluations begin after eval_steps": ("eval_delay", "eval_on_start"),
    "a run always repeats itself: seed is for all": ("full_determinism", "data_seed"),
}  # fmt: skip
NOTED: Mapping[str, str] = {
    **{key: meaning for meaning, several in _OF_SEVERAL.items() for key in several},
    "model_type": "the model's config.json says it",
    "cache_dir": "the hub's library has HF_HOME for it",
    "use_fast_tokenizer": "there is one tokenizer, and it is fast",
    "trust_remote_code": "no code of a model or data set is run",
    "logging_nan_inf_filter": "a loss that is not finite ends the run, with a message",
    "disable_tqdm": "there is no bar: a line per logged step has the time left",
    "run_name": "the run is named after output_dir",
    "save_safetensors": "limba convert, and an upload to the hub, write safetensors",
    "save_on_each_node": "processes write their own parts of one checkpoint",
    "keep_linebreaks": "a line of a .txt file is a document",
    "remove_unused_columns": "only the text's column is read",
    "ddp_timeout": "RunConfig.step_timeout_seconds is the limit of a step",
    "tf32": "jax chooses it by jax_default_matmul_precision",
    "average_tokens_across_devices": "the loss is always divided by the tokens of all devices",
    "hub_always_push": "a failed upload is repeated",
    "label_names": "the targets are the labels",
    "train_sampling_strategy": "the corpus is shuffled again in each epoch",
    "use_cache": "the decoder's cache is used in generation alone",
}
# Keys that would change the training and have no counterpart: an error, unless their value is a default that asks for
# nothing (None, false, 0, an empty text).
_SHARED = "set config.MeshConfig.fsdp to share the state among devices"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("deepspeed", "fsdp", "fsdp_config", "fsdp_min_num_params"), _SHARED),
    "neftune_noise_alpha": "leave it out",
    "line_by_line": "text is cut into full rows; leave it out",
    "parallelism_config": "set config.MeshConfig to share the work among devices",
    "optim_args": "give adam_beta1, adam_beta2 and adam_epsilon, or config.OptimizerConfig in gin",
    "optim_target_modules": "leave it out",
    "lr_scheduler_kwargs": "set config.ScheduleConfig in gin",
    "auto_find_batch_size": "give per_device_train_batch_size and gradient_accumulation_steps",
    "save_only_model": "checkpoints hold what a run needs to resume; limba convert writes the model alone",
}
# Values of `report_to` -> what REPORT_TO gets; None: what is usual here. "all" is a default that asks for nothing.
REPORTS: Mapping[str, str | None] = {"tensorboard": "tensorboard", "wandb": "wandb", "none": "none", "all": None}
OTHER_REPORTS = (
    *("azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "mlflow", "neptune", "swanlab"),
    "trackio",
)
BY_DEFAULT = (None, False, 0, 0.0, "", [], {}, ())  # of REFUSED, and of keys that need no line
SILENT = {  # keys whose usual value needs no line
    "log_level": ("passive",), "log_level_replica": ("warning",),
    "logging_nan_inf_filter": (True,), "log_on_each_node": (True,), "remove_unused_columns": (True,),
    "dataloader_pin_memory": (True,), "dataloader_in_order": (True,), "save_safetensors": (True,),
    "skip_memory_metrics": (True,), "average_tokens_across_devices": (True,), "eval_do_concat_batches": (True,),
    "use_fast_tokenizer": (True,), "local_rank": (-1,), "past_index": (-1,), "ddp_timeout": (1800,),
    "fp16_opt_level": ("O1",), "fp16_backend": ("auto",), "half_precision_backend": ("auto",),
    "length_column_name": ("length",), "train_sampling_strategy": ("random",),
    "include_num_input_tokens_seen": ("no",), "project": ("huggingface",),
}  # fmt: skip
KINDS: Mapping[str, type] = {**{key: kind for key, (_, kind) in PLAIN.items()}, **OTHERS}
KNOWN = (*KINDS, *NOTED, *REFUSED)
# What cannot be 0; None and a key that is left out stand for the scripts' default.
ABOVE_ZERO = (
    *("max_seq_length", "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("per_gpu_train_batch_size", "per_gpu_eval_batch_size", "max_eval_samples", "max_train_samples"),
)
TOKENS = ("hub_token", "push_to_hub_token", "token", "use_auth_token")  # never printed, never written
SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "factors", "constant_with_warmup": "factors"}
WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", list: "names"}
