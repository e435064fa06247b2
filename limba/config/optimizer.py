"""The loss, the schedule of the learning rate, and the optimizer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from limba.config import kinds
from limba.config.errors import ConfigError, above_zero, one_of, positive, require

LOGITS = ("auto", "whole", "chunked")
NORMALIZERS = ("tokens", "all_tokens", "sequences")
OPTIMIZERS = ("adafactor", "adamw_rms", "adamw", "muon", "ademamix")
ORTHOGONALIZED_IN = ("bfloat16", "float32")
MUON_OTHERS = ("adamw", "adafactor")
SCHEDULES = ("factors", "linear", "cosine", "warmup_stable_decay")
BRANCH_SHAPES = ("linear", "1-sqrt", "cosine", "constant")
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
    """Cross entropy with T5X's z-loss and label smoothing; see `limba/training/losses.py`."""

    z_loss: float = 1e-4  # weight of the squared log of the softmax's normalizer
    label_smoothing: float = 0.0  # share of probability given to the other tokens
    logits: str = "auto"  # whole, chunked (some rows at a time: slower, gigabytes less), auto: chunked above 2 GiB
    # What the summed loss is divided by: tokens (real ones), all_tokens (padding too), sequences (each one's mean
    # counts the same), a number, or None (nothing, T5X's default).
    normalize_by: str | float | None = "tokens"

    def __post_init__(self) -> None:
        kinds.check(self)
        if isinstance(self.normalize_by, str):
            one_of(self, "normalize_by", NORMALIZERS)
        require(
            self.normalize_by is None or isinstance(self.normalize_by, str) or self.normalize_by > 0,
            "LossConfig.normalize_by",
            f"is {self.normalize_by!r}; give a number above 0, {', '.join(NORMALIZERS)}, or None.",
        )
        one_of(self, "logits", LOGITS)
        require(self.z_loss >= 0, "LossConfig.z_loss", f"is {self.z_loss!r}; give 0 or more.")
        require(
            0 <= self.label_smoothing < 1,
            "LossConfig.label_smoothing",
            f"is {self.label_smoothing!r}; give a number from 0 to below 1.",
        )


# No recipe comes near: T5X's highest is 1, Tensor2Tensor's learning_rate_constant 2 (arXiv:1706.03762 has 1 before
# rsqrt(hidden size)), and a rate of 1,000 moves each weight by 1,000 of Adam's steps.
MOST_RATE = 1_000


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over steps; `factors` is T5X's product of named factors."""

    name: str = "factors"  # factors, linear, cosine or warmup_stable_decay
    base_learning_rate: float = 1.0  # the factor 'constant', or the highest rate
    factors: str = "constant * rsqrt_decay"  # product of T5X's factors
    warmup_steps: float = 10_000  # steps until the highest rate; below 1 a share of the run, such as 0.02
    # the last step of linear and cosine; the decay's length in warmup_stable_decay; below 1 a share of the run
    decay_steps: float | None = None
    final_learning_rate: float = 0.0  # reached at the end by linear, cosine and warmup_stable_decay
    decay_factor: float = 0.5  # T5X: of decay_every and linear_decay
    steps_per_decay: int = 20_000  # T5X: of decay_every
    steps_per_cycle: int = 100_000  # T5X: of cosine_decay
    step_offset: int = 0  # subtracted from the step
    min_learning_rate: float = 1e-8  # T5X: no product of factors goes below it
    # Of a branch: from this step on the rate falls to 0, from what it is there.
    branch_step: int | None = None
    branch_steps: int | None = None  # the number of steps in which it falls
    branch_shape: str = "1-sqrt"  # how: linear, 1-sqrt or cosine; constant: the rate goes on as in the run before
    planned_steps: int | None = None  # the length of the run that the rate before the branch goes by; None: this run's

    def __post_init__(self) -> None:
        kinds.check(self)
        one_of(self, "name", SCHEDULES)
        require(
            0 < self.base_learning_rate <= MOST_RATE,
            "ScheduleConfig.base_learning_rate",
            f"is {self.base_learning_rate!r}; give a number above 0, at most {MOST_RATE:,} (usual: 0.5 to 2 for"
            " Adafactor with rsqrt_decay, 1e-5 to 0.02 for a constant rate and for AdamW).",
        )
        for name in ("warmup_steps", "decay_steps"):
            value, least = getattr(self, name), "0" if name == "warmup_steps" else "1"
            require(
                value is None or (value == int(value) and value >= int(least)) or 0 < value < 1,
                f"ScheduleConfig.{name}",
                f"is {value!r}; give a whole number of steps, {least} or more, or a share of the run between 0 and 1.",
            )
        positive(self, "steps_per_decay", "steps_per_cycle")
        self._check_branch()
        for name in ("final_learning_rate", "min_learning_rate", "decay_factor"):
            require(getattr(self, name) >= 0, f"ScheduleConfig.{name}", f"is {getattr(self, name)!r}; give 0 or more.")
        for factor in self.factor_names:
            require(
                factor in SCHEDULE_FACTORS,
                "ScheduleConfig.factors",
                f"holds {factor!r}; choose from {', '.join(SCHEDULE_FACTORS)}.",
            )

    def _check_branch(self) -> None:
        one_of(self, "branch_shape", BRANCH_SHAPES)
        for name in ("branch_steps", "planned_steps"):
            if getattr(self, name) is not None:
                positive(self, name)
        require(
            (self.branch_step is None) == (self.branch_steps is None),
            "ScheduleConfig.branch_steps",
            f"is {self.branch_steps!r}, and ScheduleConfig.branch_step is {self.branch_step!r}; give both or none.",
        )
        require((self.branch_step or 0) >= 0, "ScheduleConfig.branch_step", f"is {self.branch_step!r}; give 0 or more.")

    def in_steps(self, steps: int) -> ScheduleConfig:
        """Returns the same schedule for a run of so many steps, with numbers of steps in place of shares.

        Without `decay_steps` that of `warmup_stable_decay` is a tenth of the run.

        >>> found = ScheduleConfig("warmup_stable_decay", warmup_steps=0.02, decay_steps=0.7).in_steps(600)
        >>> found.warmup_steps, found.decay_steps
        (12, 420)
        """
        decay = 0.1 if self.decay_steps is None and self.name == "warmup_stable_decay" else self.decay_steps
        warmup, decay = (
            each if each is None else int(each if each >= 1 else round(each * steps, 6))
            for each in (self.warmup_steps, decay)
        )
        return replace(self, warmup_steps=warmup or 0, decay_steps=None if decay is None else max(1, decay))

    @property
    def factor_names(self) -> tuple[str, ...]:
        return tuple(factor.strip() for factor in self.factors.split("*"))


@dataclass(frozen=True)
class OptimizerConfig:
    """Adafactor by T5X's rule, AdamW with RMS-scaled steps (nanoT5), AdamW, Muon with one of them, or AdEMAMix.

    >>> OptimizerConfig("adamw", ScheduleConfig("cosine", 1e-3, warmup_steps=100)).schedule.base_learning_rate
    0.001
    """

    name: str = "adafactor"  # adafactor, adamw, adamw_rms, muon or ademamix
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)  # the learning rate by step
    weight_decay: float = 0.0  # of parameters, times the learning rate
    clip_global_norm: float | None = None  # of the gradient, before the optimizer
    # Adafactor
    decay_rate: float = 0.8
    multiply_by_parameter_scale: bool = True  # Adafactor: updates relative to the parameter's size
    clipping_threshold: float | None = 1.0  # of an update's root mean square, per parameter and layer
    min_dim_size_to_factor: int = 128  # Adafactor: smaller matrices keep a full second moment
    epsilon1: float = 1e-30  # Adafactor: added to squared gradients
    epsilon2: float = 1e-3  # Adafactor: smallest parameter scale
    momentum: float | None = None  # Adafactor: of the first moment; None: none
    step_offset: int = 0  # T5X: at this step the moving averages begin anew, so that they forget quickly
    frozen: tuple[str, ...] = ()  # patterns that frozen parameters' names begin with: 'encoder', '.*/relpos_bias'
    # AdamW
    beta1: float = 0.9
    beta2: float = 0.999  # AdamW: of the second moment
    epsilon: float = 1e-8  # AdamW: added to the root of the second moment
    # Muon, for the layers' matrices
    muon_others: str = "adamw"  # the rule of the other parameters; adafactor: without momentum, next to no state
    muon_beta: float = 0.95  # of the momentum (Nesterov's)
    muon_rms: float = 0.2  # root mean square of a matrix's update, before the learning rate; Adam's is about as large
    muon_steps: int = 5  # Newton-Schulz iterations that make the momentum orthogonal
    muon_dtype: str = "bfloat16"  # of these iterations; or float32
    muon_by_parameter_scale: bool = False  # updates relative to the parameter's size, as with adamw_rms
    # AdEMAMix: AdamW whose update also holds a slow average of the gradient, times alpha
    ademamix_alpha: float = 5.0
    beta3: float = 0.9999  # of the slow average
    ademamix_warmup_steps: int | None = None  # over which alpha and beta3 rise; None: the whole run

    def __post_init__(self) -> None:
        kinds.check(self)
        object.__setattr__(self, "frozen", tuple(self.frozen))
        self._check_frozen()
        one_of(self, "name", OPTIMIZERS)
        for name in (
            "weight_decay",
            "epsilon1",
            "epsilon2",
            "epsilon",
            "min_dim_size_to_factor",
            "step_offset",
            "ademamix_alpha",
        ):
            value = getattr(self, name)
            require(value >= 0, f"OptimizerConfig.{name}", f"is {value!r}; give 0 or more.")
        positive(self, "muon_steps")
        above_zero(self, "muon_rms")
        one_of(self, "muon_dtype", ORTHOGONALIZED_IN)
        one_of(self, "muon_others", MUON_OTHERS)
        for name in ("clip_global_norm", "clipping_threshold"):
            value = getattr(self, name)
            require(
                value is None or value > 0, f"OptimizerConfig.{name}", f"is {value!r}; give a number above 0, or None."
            )
        if self.ademamix_warmup_steps is not None:
            positive(self, "ademamix_warmup_steps")
        require(0 < self.beta3 < 1, "OptimizerConfig.beta3", f"is {self.beta3!r}; give a number above 0 and below 1.")
        for name in ("beta1", "beta2", "momentum", "muon_beta"):
            value = getattr(self, name)
            require(
                value is None or 0 <= value < 1,
                f"OptimizerConfig.{name}",
                f"is {value!r}; give a number from 0 to below 1.",
            )
        require(
            0 <= self.decay_rate <= 1,
            "OptimizerConfig.decay_rate",
            f"is {self.decay_rate!r}; give a number from 0 to 1.",
        )

    def _check_frozen(self) -> None:
        for pattern in self.frozen:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    "OptimizerConfig.frozen",
                    f"holds {pattern!r}, which is not a regular expression ({error}); write the beginning of the names,"
                    " such as 'encoder', or put a backslash before a sign that is meant as itself.",
                ) from None
