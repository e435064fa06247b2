"""Every choice of a run, as frozen dataclasses; gin binds these and nothing else.

Each class checks itself when it is made, so that a wrong choice costs a second and not an hour on a
TPU. A message says what is wrong, where, and what to do. Only the standard library is imported here.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from limba.checks import ConfigError as ConfigError
from limba.checks import NonFiniteError as NonFiniteError
from limba.checks import one_of as _one_of
from limba.checks import positive as _positive
from limba.checks import require as _require
from limba.model_config import ModelConfig as ModelConfig

OBJECTIVES = (
    "span_corruption",
    "whole_word_span_corruption",
    "ul2",
    "prefix_lm",
    "lm_adaptation",
    "causal_lm",
)
SEQUENCE_OBJECTIVES = ("prefix_lm", "lm_adaptation", "causal_lm")  # those that a decoder alone can learn
LOGITS = ("auto", "whole", "chunked")
REDUCTIONS = ("auto", "float32", "bfloat16")
RANDOM_BITS = ("threefry2x32", "rbg", "unsafe_rbg")
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
    (114), so that nothing is padding. {'targets': 256} alone is for a decoder-only model: rows are single
    sequences of that length. `vocabulary` and `data_files` replace what the task names.
    """

    mixture_or_task_name: str
    task_feature_lengths: Mapping[str, int]
    batch_size: int
    vocabulary: str | None = None  # a SentencePiece model's path, 'byte', or None: the task's own
    extra_ids: int = 100  # sentinels above the pieces of `vocabulary`
    new_vocabulary_size: int | None = None  # ids, sentinels included, of one trained where `vocabulary` has none yet
    new_vocabulary_bytes: int = 400_000_000  # of the training split's text, at most, that it is trained on
    new_vocabulary_coverage: float = 0.9995  # share of letters with a piece of their own; the rest is spelt in bytes
    objective: str | None = None  # one of OBJECTIVES instead of the task's own; None keeps that
    noise_density: float | None = None  # share of tokens that span corruption hides (T5: 0.15); None: the task's own
    mean_noise_span_length: float | None = None  # in tokens (T5: 3); None: the task's own
    pack: bool = False  # several short examples in a row, kept apart by segment ids
    data_files: str | tuple[str, ...] | Mapping[str, str] | None = None  # read instead of the task's source
    column: str | Mapping[str, str] = "text"  # of data_files that have columns; {'inputs': 'en', 'targets': 'ms'}
    prefix: str | None = None  # before each input of a task with inputs and targets; None: the task's own
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
    num_reader_processes: int = 1  # of a host, that read its shards; may change from start to start
    task_modules: tuple[str, ...] = ()  # that register the tasks, for those processes; launch.train fills it in

    def __post_init__(self) -> None:
        _require(
            isinstance(self.mixture_or_task_name, str) and bool(self.mixture_or_task_name),
            f"MIXTURE_OR_TASK_NAME is {self.mixture_or_task_name!r}; give the name of a registered task.",
        )
        lengths = self.task_feature_lengths
        _require(
            isinstance(lengths, Mapping) and bool(lengths) and set(lengths) <= {"inputs", "targets"},
            f"TASK_FEATURE_LENGTHS is {lengths!r}; give {{'inputs': 512}}, or with 'targets' too, or {{'targets': 256}}"
            " for a decoder-only model.",
        )
        for name, length in lengths.items():
            _require(
                isinstance(length, int) and not isinstance(length, bool) and length > 0,
                f"TASK_FEATURE_LENGTHS gives {length!r} for {name!r}; give a whole number above 0.",
            )
        _positive(self, "batch_size", "new_vocabulary_bytes")
        if self.objective is not None:
            _one_of(self, "objective", OBJECTIVES)
        density, span = self.noise_density, self.mean_noise_span_length
        _require(
            (density is None or 0 < density < 1) and (span is None or span >= 1),
            f"DataConfig.noise_density is {density!r} and mean_noise_span_length {span!r}; give a share between 0 and 1"
            " and a mean of 1 or more.",
        )
        if self.sequence_length is not None and self.objective is not None:
            _require(
                self.objective in SEQUENCE_OBJECTIVES,
                f"OBJECTIVE is {self.objective!r} and TASK_FEATURE_LENGTHS {dict(lengths)}, without inputs; choose one"
                f" of {', '.join(SEQUENCE_OBJECTIVES)}, or give {{'inputs': 512}}.",
            )
        if self.new_vocabulary_size is not None:
            _positive(self, "new_vocabulary_size")
            _require(
                self.new_vocabulary_size > self.extra_ids and self.vocabulary != "byte",
                f"DataConfig.new_vocabulary_size is {self.new_vocabulary_size} with extra_ids {self.extra_ids} and"
                f" vocabulary {self.vocabulary!r}; give more ids than sentinels, and a path that is not 'byte'.",
            )
        _require(
            0 < self.new_vocabulary_coverage <= 1,
            f"DataConfig.new_vocabulary_coverage is {self.new_vocabulary_coverage!r}; give a share above 0, up to 1.",
        )
        _require(isinstance(self.pack, bool), f"DataConfig.pack is {self.pack!r}; give True or False.")
        _require(self.extra_ids >= 0, f"DataConfig.extra_ids is {self.extra_ids}; give 0 or more.")
        _require(
            isinstance(self.seed, int) and self.seed >= 0,
            f"DataConfig.seed is {self.seed!r}; give a whole number, 0 or more: unseeded shuffles cannot be resumed.",
        )
        _require(
            0 <= self.validation_percent < 100,
            f"DataConfig.validation_percent is {self.validation_percent!r}; give a percentage from 0 to below 100.",
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
        _positive(self, "num_data_shards", "num_reader_processes")
        _require(
            self.batch_size % self.num_data_shards == 0,
            f"BATCH_SIZE {self.batch_size} does not divide by num_data_shards {self.num_data_shards};"
            " make it a multiple.",
        )

    @property
    def sequence_length(self) -> int | None:
        """Tokens of a row that is one sequence, for a decoder-only model; None where an encoder reads inputs."""
        return None if "inputs" in self.task_feature_lengths else self.task_feature_lengths["targets"]


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
    frozen: tuple[str, ...] = ()  # what names of parameters that stay begin with: 'encoder', '.*/relpos_bias'
    # AdamW
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        object.__setattr__(self, "frozen", tuple(self.frozen))
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
    auto: bool = False  # fsdp, then model: the smallest that fit the devices' memory by the compiler's account
    memory_gib: float | None = None  # of a device, for auto; None: 95 % of what the devices tell

    def __post_init__(self) -> None:
        _positive(self, "fsdp", "model")
        _require(
            not self.auto or (self.data, self.fsdp, self.model) == (-1, 1, 1),
            f"MeshConfig.auto chooses the sizes, and data {self.data}, fsdp {self.fsdp}, model {self.model} are given;"
            " leave one of both out.",
        )
        _require(
            self.memory_gib is None or (self.auto and self.memory_gib > 0),
            f"MeshConfig.memory_gib is {self.memory_gib!r}; give a number above 0, and set auto, which it is for.",
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
    best_metric: str | None = None  # of the evaluations: 'loss', 'chrf', …; its best step is kept in MODEL_DIR/best
    best_is: str = "highest"  # or lowest

    def __post_init__(self) -> None:
        _positive(self, "every_steps")
        _one_of(self, "best_is", ("highest", "lowest"))
        _require(
            self.keep is None or self.keep > 0,
            f"CheckpointConfig.keep is {self.keep!r}; give a number above 0, or None for all.",
        )


@dataclass(frozen=True)
class EvaluationConfig:
    """Loss, accuracy, perplexity and bits per byte on the validation split; for tasks with metrics, those of written
    text; for language models, samples."""

    every_steps: int = 1_000
    num_batches: int | None = 20  # at most; None, or a smaller split: all of it
    num_examples: int = 0  # of the split that text is written for, to be judged by the task's metrics; 0: none
    patience: int | None = None  # evaluations without a better best_metric after which the run ends; None: never
    prompts: tuple[str, ...] = ()  # that a decoder-only model goes on with at each evaluation
    sampling: GenerationConfig = field(
        default_factory=lambda: GenerationConfig(max_tokens=64, sample=True, temperature=0.6, top_k=20)
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", (self.prompts,) if isinstance(self.prompts, str) else tuple(self.prompts))
        _positive(self, "every_steps")
        if self.num_batches is not None:
            _positive(self, "num_batches")
        _require(
            isinstance(self.num_examples, int) and self.num_examples >= 0,
            f"EvaluationConfig.num_examples is {self.num_examples!r}; give a whole number, 0 or more.",
        )
        if self.patience is not None:
            _positive(self, "patience")


@dataclass(frozen=True)
class GenerationConfig:
    """How text is written, token by token; the rules of `limba/decoding.py` are those of transformers' `generate`.

    Greedy by default; `num_beams` above 1 searches by beams, `sample` draws. Raises ConfigError for both at once.
    """

    max_tokens: int = 128  # written per input at most, the end of sequence included
    num_beams: int = 1
    length_penalty: float = 1.0  # a beam's score is its log probability / length^penalty
    early_stopping: bool | str = False  # True: once num_beams have ended; False: when better is unlikely; 'never'
    sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None  # draw among that many likeliest tokens
    top_p: float | None = None  # draw among the likeliest tokens that together have this probability
    num_samples: int = 1  # texts per input: drawn ones, or the best of the beams
    no_repeat_ngram_size: int = 0  # 0: any may be repeated
    ban_sentinels: bool = True  # <extra_id_…> are no text; False for filling gaps
    banned_ids: tuple[int, ...] = ()
    seed: int = 0  # of draws; an input's draws do not depend on its batch

    def __post_init__(self) -> None:
        object.__setattr__(self, "banned_ids", tuple(self.banned_ids))
        _positive(self, "max_tokens", "num_beams", "num_samples")
        _require(
            not (self.sample and self.num_beams > 1),
            f"GenerationConfig has sample and num_beams {self.num_beams}; draw with num_beams 1, or search without.",
        )
        _require(
            self.sample or self.num_samples <= self.num_beams,
            f"GenerationConfig.num_samples is {self.num_samples}, more than num_beams {self.num_beams} gives; raise"
            " num_beams, or set sample.",
        )
        _require(
            self.early_stopping in (True, False, "never"),
            f"GenerationConfig.early_stopping is {self.early_stopping!r}; give True, False or 'never'.",
        )
        _require(
            self.temperature > 0,
            f"GenerationConfig.temperature is {self.temperature!r}; give a number above 0 (greedy is sample False).",
        )
        if self.top_k is not None:
            _positive(self, "top_k")
        _require(
            self.top_p is None or 0 < self.top_p <= 1,
            f"GenerationConfig.top_p is {self.top_p!r}; give a probability above 0, at most 1, or None.",
        )
        unused = self.temperature != 1.0 or self.top_k is not None or self.top_p is not None
        _require(
            self.sample or not unused,
            "GenerationConfig has a temperature, top_k or top_p, which only drawing uses; set sample to True.",
        )
        for name, value in (("no_repeat_ngram_size", self.no_repeat_ngram_size), ("seed", self.seed)):
            _require(
                isinstance(value, int) and value >= 0,
                f"GenerationConfig.{name} is {value!r}; give a whole number, 0 or more.",
            )
        _require(
            all(isinstance(i, int) and i >= 0 for i in self.banned_ids),
            f"GenerationConfig.banned_ids is {self.banned_ids!r}; give token ids, 0 or more.",
        )


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
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    # Start from a checkpoint of Limba's or T5X's, or a folder or hub id of Hugging Face's, when model_dir holds none
    initial_checkpoint_path: str | None = None
    reset_step: bool = False  # begin at step 0 with a fresh optimizer, whatever the initial checkpoint's step is
    num_microbatches: int = 1
    reduce_gradients_in: str = "auto"  # or float32, bfloat16: in which devices add them up; see train_step.gradients
    log_every_steps: int = 100
    random_seed: int = 0
    random_bits: str = "threefry2x32"  # dropout's generator; rbg and unsafe_rbg are a TPU's own: faster, other numbers
    profile_steps: int = 0  # so many steps, from the third on, are traced into MODEL_DIR/profile

    def __post_init__(self) -> None:
        _one_of(self, "random_bits", RANDOM_BITS)
        _one_of(self, "reduce_gradients_in", REDUCTIONS)
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
        self._check_sides()
        _require(
            self.loss.logits != "chunked" or "logits" not in self.model.biases,
            "LossConfig.logits is 'chunked' and ModelConfig.biases holds 'logits', which chunks do without; choose"
            " whole or auto.",
        )
        if self.data.vocabulary is None and self.data.new_vocabulary_size is not None:
            data = dataclasses.replace(self.data, vocabulary=f"{self.model_dir.rstrip('/')}/vocabulary.model")
            object.__setattr__(self, "data", data)
        _require(
            self.evaluation.patience is None or self.checkpoint.best_metric is not None,
            "EvaluationConfig.patience waits for a better CheckpointConfig.best_metric, which is None; name one, such"
            " as 'loss'.",
        )
        _require(
            self.data.batch_size % self.num_microbatches == 0,
            f"BATCH_SIZE {self.data.batch_size} does not divide by num_microbatches {self.num_microbatches};"
            " make it a multiple.",
        )

    def _check_sides(self) -> None:
        """Raises ConfigError where the rows are not what the network reads."""
        length, model = self.data.sequence_length, self.model
        if not model.is_decoder_only:
            _require(
                self.data.objective != "causal_lm",
                "OBJECTIVE is 'causal_lm', which gives no inputs, and the model has an encoder that reads them; choose"
                " prefix_lm or lm_adaptation, or include a file of gin/models/lm.",
            )
            _require(
                length is None,
                f"TASK_FEATURE_LENGTHS is {dict(self.data.task_feature_lengths)!r}, and the model has an encoder; give"
                " {'inputs': 512}, or with 'targets' too.",
            )
            return
        _require(
            length is not None,
            f"TASK_FEATURE_LENGTHS is {dict(self.data.task_feature_lengths)!r}, and the model is a decoder alone, which"
            " reads one sequence; give {'targets': 256}.",
        )
        _require(
            model.positions != "learned" or length is None or length <= model.max_length,
            f"TASK_FEATURE_LENGTHS gives rows of {length} tokens and the model has {model.max_length} learned"
            " positions; set ModelConfig.max_length.",
        )
