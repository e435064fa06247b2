"""Every choice of a run, as frozen dataclasses; gin binds these and nothing else.

Each class checks itself when it is made, so that a wrong choice costs a second and not an hour on a
TPU. A message says what is wrong, where, and what to do. Only the standard library is imported here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

ACTIVATIONS = ("relu", "gelu", "silu", "linear")
DTYPES = ("float32", "bfloat16")
OBJECTIVES = (
    "span_corruption",
    "whole_word_span_corruption",
    "ul2",
    "prefix_lm",
    "lm_adaptation",
    "causal_lm",
)
ATTENTIONS = ("auto", "einsum", "memory_efficient", "pallas")
LOGITS = ("auto", "whole", "chunked")
RANDOM_BITS = ("threefry2x32", "rbg", "unsafe_rbg")
REMAT_POLICIES = ("none", "minimal", "full")
OPTIMIZERS = ("adafactor", "adamw_rms", "adamw")
READ_FAILURES = ("stop", "skip")
SCHEDULES = ("factors", "linear", "cosine", "warmup_stable_decay")
SCHEDULE_FACTORS = (
    "constant",
    "linear_warmup",
    "linear_decay",
    "rsqrt_decay",
    "rsqrt_normalized_decay",
    "decay_every",
    "cosine_decay",
)


class ConfigError(ValueError):
    """A choice that cannot work: one sentence saying what, where, and what to do."""


class NonFiniteError(RuntimeError):
    """The loss or the gradient is no longer a number; the batch is written down, nothing is saved after it."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _positive(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        _require(
            whole and value > 0,
            f"{type(owner).__name__}.{name} is {value!r}; give a whole number above 0.",
        )


def _one_of(owner: object, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(owner, name)
    _require(
        value in choices,
        f"{type(owner).__name__}.{name} is {value!r}; choose one of {', '.join(choices)}.",
    )


@dataclass(frozen=True)
class ModelConfig:
    """The network: T5 1.0, T5 1.1, mT5, umT5 and ByT5 differ only in these fields.

    Raises ConfigError for sizes below 1, unknown activations, dtypes or remat policies.
    """

    vocab_size: int  # rows of the embedding, a multiple of 128 for the TPU's sake
    emb_dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    num_encoder_layers: int
    num_decoder_layers: int
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    logits_via_embedding: bool = False  # tied head, its input scaled by emb_dim^-1/2 (T5 1.0)
    relative_bias_per_layer: bool = False  # umT5
    num_relpos_buckets: int = 32
    relpos_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    dropout_rate: float = 0.0
    dtype: str = "bfloat16"  # of activations; parameters, softmax, logits and loss are float32
    scan_layers: bool = True  # compiles in a fraction of the time; False runs faster
    remat: str = "none"  # what the backward pass recomputes: none, minimal (all but matmuls and attention), full
    attention: str = "auto"  # einsum, memory_efficient, pallas (TPU; both keep no scores), auto: the platform's fastest

    def __post_init__(self) -> None:
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
        _positive(
            self,
            "vocab_size",
            "emb_dim",
            "num_heads",
            "head_dim",
            "mlp_dim",
            "num_encoder_layers",
            "num_decoder_layers",
            "num_relpos_buckets",
            "relpos_max_distance",
        )
        _require(
            self.num_relpos_buckets >= 4 and self.relpos_max_distance > self.num_relpos_buckets // 2,
            f"ModelConfig.num_relpos_buckets is {self.num_relpos_buckets} and relpos_max_distance"
            f" {self.relpos_max_distance}; give at least 4 buckets and a distance above half of them.",
        )
        for activation in self.mlp_activations:
            _require(
                activation in ACTIVATIONS,
                f"ModelConfig.mlp_activations holds {activation!r}; choose from {', '.join(ACTIVATIONS)}.",
            )
        _require(
            len(self.mlp_activations) in (1, 2),
            f"ModelConfig.mlp_activations has {len(self.mlp_activations)} entries; give one, or two for a gated MLP.",
        )
        _require(
            0.0 <= self.dropout_rate < 1.0,
            f"ModelConfig.dropout_rate is {self.dropout_rate!r}; give a share from 0 up to, not including, 1.",
        )
        _one_of(self, "dtype", DTYPES)
        _one_of(self, "remat", REMAT_POLICIES)
        _one_of(self, "attention", ATTENTIONS)


@dataclass(frozen=True)
class LossConfig:
    """Cross entropy with T5X's z-loss and label smoothing; see `limba/losses.py`."""

    z_loss: float = 1e-4
    label_smoothing: float = 0.0
    logits: str = "auto"  # whole, chunked (some rows at a time: slower, gigabytes less), auto: chunked above 2 GiB

    def __post_init__(self) -> None:
        _one_of(self, "logits", LOGITS)
        _require(self.z_loss >= 0, f"LossConfig.z_loss is {self.z_loss!r}; give 0 or more.")
        _require(
            0 <= self.label_smoothing < 1,
            f"LossConfig.label_smoothing is {self.label_smoothing!r}; give a share from 0 up to, not including, 1.",
        )


@dataclass(frozen=True)
class DataConfig:
    """What is read, and how a global batch is made of it.

    `task_feature_lengths` may be {'inputs': 512} alone: span corruption then derives the targets
    (114), so that nothing is padding. `vocabulary` and `data_files` replace what the task names.
    """

    mixture_or_task_name: str
    task_feature_lengths: Mapping[str, int]
    batch_size: int
    vocabulary: str | None = None  # a SentencePiece model's path, 'byte', or None: the task's own
    extra_ids: int = 100  # sentinels above the pieces of `vocabulary`
    objective: str | None = None  # one of OBJECTIVES instead of the task's own; None keeps that
    pack: bool = False  # several short examples in a row, kept apart by segment ids
    data_files: str | tuple[str, ...] | Mapping[str, str] | None = None  # read instead of the task's source
    column: str = "text"  # of data_files that have columns
    validation_percent: float = 1.0  # of data_files without a validation split, carved out by document hash
    read_timeout_seconds: float = 60.0  # of one request for part of a remote file
    read_attempts: int = 6  # of a request, with growing pauses
    on_read_failure: str = "stop"  # then, and where a file is damaged; 'skip' leaves out the rest of the unit
    train_split: str = "train"
    validation_split: str = "validation"
    shuffle: bool = True
    seed: int = 0
    num_epochs: int | None = None  # the run ends when its corpora have been read so often; None: they are repeated
    mixture_temperature: float | None = None  # a mixture's rates from its corpora's sizes (mT5: 3.33); None: its own
    num_data_shards: int | None = (
        None  # fixed for the life of a run; None: 16, or the largest power of two that divides batch_size
    )

    def __post_init__(self) -> None:
        _require(
            isinstance(self.mixture_or_task_name, str) and bool(self.mixture_or_task_name),
            f"MIXTURE_OR_TASK_NAME is {self.mixture_or_task_name!r}; give the name of a registered task.",
        )
        lengths = self.task_feature_lengths
        _require(
            isinstance(lengths, Mapping) and "inputs" in lengths and set(lengths) <= {"inputs", "targets"},
            f"TASK_FEATURE_LENGTHS is {lengths!r}; give {{'inputs': 512}}, or with 'targets' too.",
        )
        for name, length in lengths.items():
            _require(
                isinstance(length, int) and not isinstance(length, bool) and length > 0,
                f"TASK_FEATURE_LENGTHS gives {length!r} for {name!r}; give a whole number above 0.",
            )
        _positive(self, "batch_size")
        if self.objective is not None:
            _one_of(self, "objective", OBJECTIVES)
        _require(isinstance(self.pack, bool), f"DataConfig.pack is {self.pack!r}; give True or False.")
        _require(self.extra_ids >= 0, f"DataConfig.extra_ids is {self.extra_ids}; give 0 or more.")
        _require(
            isinstance(self.seed, int) and self.seed >= 0,
            f"DataConfig.seed is {self.seed!r}; give a whole number, 0 or more: unseeded shuffles cannot be resumed.",
        )
        _require(
            0 < self.validation_percent < 100,
            f"DataConfig.validation_percent is {self.validation_percent!r}; give a percentage between 0 and 100.",
        )
        _require(
            self.data_files is not None or self.column == "text",
            f"DataConfig.column is {self.column!r} and there are no data_files it could be of; set CORPUS too.",
        )
        if self.num_epochs is not None:
            _positive(self, "num_epochs")
        _require(
            self.mixture_temperature is None or self.mixture_temperature >= 1,
            f"DataConfig.mixture_temperature is {self.mixture_temperature!r}; give 1 (by size) or more, or None.",
        )
        _require(
            isinstance(self.read_timeout_seconds, int | float) and 0 < self.read_timeout_seconds < math.inf,
            f"DataConfig.read_timeout_seconds is {self.read_timeout_seconds!r}; give a number above 0.",
        )
        _positive(self, "read_attempts")
        _one_of(self, "on_read_failure", READ_FAILURES)
        if self.num_data_shards is None:
            object.__setattr__(self, "num_data_shards", math.gcd(self.batch_size, 16))
        _positive(self, "num_data_shards")
        _require(
            self.batch_size % self.num_data_shards == 0,
            f"BATCH_SIZE {self.batch_size} does not divide by num_data_shards {self.num_data_shards};"
            " make it a multiple.",
        )


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over steps; `factors` is T5X's product of named factors."""

    name: str = "factors"
    base_learning_rate: float = 1.0
    factors: str = "constant * rsqrt_decay"
    warmup_steps: int = 10_000
    decay_steps: int | None = None  # where linear and cosine end, length of the last phase of warmup_stable_decay
    final_learning_rate: float = 0.0  # reached at the end by linear, cosine and warmup_stable_decay
    decay_factor: float = 0.5  # T5X: of decay_every and linear_decay
    steps_per_decay: int = 20_000  # T5X: of decay_every
    steps_per_cycle: int = 100_000  # T5X: of cosine_decay
    step_offset: int = 0
    min_learning_rate: float = 1e-8  # T5X: no product of factors goes below it

    def __post_init__(self) -> None:
        _one_of(self, "name", SCHEDULES)
        _require(
            self.base_learning_rate > 0,
            f"ScheduleConfig.base_learning_rate is {self.base_learning_rate!r}; give a number above 0.",
        )
        _require(self.warmup_steps >= 0, f"ScheduleConfig.warmup_steps is {self.warmup_steps!r}; give 0 or more.")
        _positive(self, "steps_per_decay", "steps_per_cycle")
        if self.decay_steps is not None:
            _positive(self, "decay_steps")
        for name in ("final_learning_rate", "min_learning_rate"):
            _require(getattr(self, name) >= 0, f"ScheduleConfig.{name} is {getattr(self, name)!r}; give 0 or more.")
        for factor in self.factor_names:
            _require(
                factor in SCHEDULE_FACTORS,
                f"ScheduleConfig.factors holds {factor!r}; choose from {', '.join(SCHEDULE_FACTORS)}.",
            )

    @property
    def factor_names(self) -> tuple[str, ...]:
        return tuple(factor.strip() for factor in self.factors.split("*"))


@dataclass(frozen=True)
class OptimizerConfig:
    """Adafactor by T5X's rule, AdamW with RMS-scaled steps (nanoT5), or AdamW."""

    name: str = "adafactor"
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    weight_decay: float = 0.0
    clip_global_norm: float | None = None  # of the gradient, before the optimizer
    # Adafactor
    decay_rate: float = 0.8
    multiply_by_parameter_scale: bool = True
    clipping_threshold: float | None = 1.0  # of an update's root mean square, per parameter and layer
    min_dim_size_to_factor: int = 128
    epsilon1: float = 1e-30
    epsilon2: float = 1e-3
    momentum: float | None = None
    # AdamW
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _one_of(self, "name", OPTIMIZERS)
        for name in ("weight_decay", "epsilon1", "epsilon2", "epsilon"):
            value = getattr(self, name)
            _require(value >= 0, f"OptimizerConfig.{name} is {value!r}; give 0 or more.")
        for name in ("clip_global_norm", "clipping_threshold"):
            value = getattr(self, name)
            _require(
                value is None or value > 0, f"OptimizerConfig.{name} is {value!r}; give a number above 0, or None."
            )
        for name in ("beta1", "beta2", "momentum"):
            value = getattr(self, name)
            _require(
                value is None or 0 <= value < 1,
                f"OptimizerConfig.{name} is {value!r}; give a number from 0 up to, not including, 1.",
            )


@dataclass(frozen=True)
class MeshConfig:
    """Sizes of the device mesh's axes. -1 on `data` takes the devices that the other two leave."""

    data: int = -1
    fsdp: int = 1
    model: int = 1
    split_update: bool = False  # each device of `data` updates a part of the parameters, which are then gathered

    def __post_init__(self) -> None:
        _positive(self, "fsdp", "model")
        _require(
            isinstance(self.split_update, bool),
            f"MeshConfig.split_update is {self.split_update!r}; give True or False.",
        )
        _require(
            self.data == -1 or self.data > 0,
            f"MeshConfig.data is {self.data!r}; give a whole number above 0, or -1 for all devices that are left.",
        )

    def sizes(self, num_devices: int) -> tuple[int, int, int]:
        """Returns (data, fsdp, model) for that many devices; ConfigError where they do not divide."""
        rest = self.fsdp * self.model
        data = num_devices // rest if self.data == -1 else self.data
        _require(
            data * rest == num_devices,
            f"A mesh of data {self.data} x fsdp {self.fsdp} x model {self.model} does not fit {num_devices} devices; "
            "change MeshConfig so that the product equals the number of devices.",
        )
        return data, self.fsdp, self.model


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state and the data position are saved, and how many are kept."""

    every_steps: int = 10_000
    keep: int | None = 5  # the newest ones; None keeps all

    def __post_init__(self) -> None:
        _positive(self, "every_steps")
        _require(
            self.keep is None or self.keep > 0,
            f"CheckpointConfig.keep is {self.keep!r}; give a number above 0, or None for all.",
        )


@dataclass(frozen=True)
class EvaluationConfig:
    """Loss, token accuracy and bits per byte on the validation split."""

    every_steps: int = 1_000
    num_batches: int = 20  # at most; a smaller split is read whole

    def __post_init__(self) -> None:
        _positive(self, "every_steps", "num_batches")


@dataclass(frozen=True)
class RunConfig:
    """One complete training run; `limba.train.run` takes it whole."""

    model: ModelConfig
    data: DataConfig
    model_dir: str
    train_steps: int
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    # Start from a checkpoint of Limba's or T5X's, or a folder of Hugging Face's, when model_dir holds none
    initial_checkpoint_path: str | None = None
    reset_step: bool = False  # begin at step 0 with a fresh optimizer, whatever the initial checkpoint's step is
    num_microbatches: int = 1
    log_every_steps: int = 100
    random_seed: int = 0
    random_bits: str = "threefry2x32"  # dropout's generator; rbg and unsafe_rbg are a TPU's own: faster, other numbers
    profile_steps: int = 0  # so many steps, from the third on, are traced into MODEL_DIR/profile

    def __post_init__(self) -> None:
        _one_of(self, "random_bits", RANDOM_BITS)
        _require(
            isinstance(self.profile_steps, int) and self.profile_steps >= 0,
            f"RunConfig.profile_steps is {self.profile_steps!r}; give a whole number, 0 or more.",
        )
        _require(
            isinstance(self.model_dir, str) and bool(self.model_dir),
            f"MODEL_DIR is {self.model_dir!r}; give a directory or a gs:// path.",
        )
        if "://" not in self.model_dir:
            object.__setattr__(self, "model_dir", os.path.abspath(os.path.expanduser(self.model_dir)))
        _positive(self, "train_steps", "num_microbatches", "log_every_steps")
        _require(
            self.data.objective != "causal_lm",
            "OBJECTIVE is 'causal_lm', which gives no inputs, and the model has an encoder that reads them; choose "
            "prefix_lm or lm_adaptation.",
        )
        _require(
            self.data.batch_size % self.num_microbatches == 0,
            f"BATCH_SIZE {self.data.batch_size} does not divide by num_microbatches {self.num_microbatches};"
            " make it a multiple.",
        )
