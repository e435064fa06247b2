"""The loss, the schedule of the learning rate, and the optimizer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from limba.config import kinds
from limba.config.errors import ConfigError, all_of, require
from limba.config.kinds import (
    ClosedShare,
    Limit,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Share,
    choice,
)

if TYPE_CHECKING:
    from optax import GradientTransformation as Transformation

LOGITS = ("auto", "whole", "chunked")
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

    z_loss: NonNegativeFloat = 1e-4  # weight of the squared log of the softmax's normalizer
    label_smoothing: Share = 0.0  # share of probability given to the other tokens
    # whole, chunked (some rows at a time: slower, gigabytes less), auto: chunked above 2 GiB
    logits: Annotated[str, choice(*LOGITS)] = "auto"
    # What the summed loss is divided by: tokens (real ones), all_tokens (padding too), sequences (each one's mean
    # counts the same), a number, or None (nothing, T5X's default).
    normalize_by: Annotated[str, choice("tokens", "all_tokens", "sequences")] | PositiveFloat | None = "tokens"

    def __post_init__(self) -> None:
        kinds.check(self)


# No recipe comes near: T5X's highest is 1, Tensor2Tensor's learning_rate_constant 2 (arXiv:1706.03762 has 1 before
# rsqrt(hidden size)), and a rate of 1,000 moves each weight by 1,000 of Adam's steps.
MOST_RATE = 1_000
LEAST_RATE = 1e-8  # of T5X's factors, its min_learning_rate
USUAL_RATES = "0.5 to 2 for Adafactor with rsqrt_decay, 1e-5 to 0.02 for a constant rate and for AdamW"
Rate = Annotated[
    float, Limit(lambda rate: 0 < rate <= MOST_RATE, f"a number above 0, at most {MOST_RATE:,} (usual: {USUAL_RATES})")
]

# The rate 'auto' of gin/recipes/fast.gin. Updates relative to a parameter grow it by a share of rate^2 in each step, so
# the best rate falls as the root of the steps: found for 300 to 4,800 of them (docs/board.md), as are these numbers.
AUTO, AUTO_RATE, MOST_AUTO, AUTO_STEPS = "auto", 2.2, 0.14, (300, 4_800)


OF_FACTORS = ("factors", "decay_factor", "steps_per_decay", "steps_per_cycle", "step_offset")  # read by `factors` alone
OF_CURVES = ("decay_steps",)  # read by all others
READ_BY_FACTORS = {
    "constant": ("base_learning_rate",),
    "linear_warmup": ("warmup_steps",),
    "linear_decay": ("base_learning_rate", "warmup_steps", "decay_factor"),
    "rsqrt_decay": ("warmup_steps",),
    "rsqrt_normalized_decay": ("warmup_steps",),
    "decay_every": ("decay_factor", "steps_per_decay"),
    "cosine_decay": ("warmup_steps", "steps_per_cycle"),
}


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over steps; `factors` is T5X's product of named factors."""

    # how the rate goes over the steps
    name: Annotated[str, choice("factors", "linear", "cosine", "warmup_stable_decay")] = "factors"
    # the factor 'constant', or the highest rate; 'auto': Muon's by the parameter's scale, for the steps of the run
    base_learning_rate: Rate | Literal["auto"] = 1.0
    factors: str = "constant * rsqrt_decay"  # product of T5X's factors
    warmup_steps: float = 10_000  # steps until the highest rate; below 1 a share of the run, such as 0.02
    # the last step of linear and cosine; the decay's length in warmup_stable_decay; below 1 a share of the run
    decay_steps: float | None = None
    # reached at the end by linear, cosine and warmup_stable_decay; no product of factors goes below it, or LEAST_RATE
    final_learning_rate: NonNegativeFloat = 0.0
    decay_factor: NonNegativeFloat = 0.5  # T5X: of decay_every and linear_decay
    steps_per_decay: PositiveInt = 20_000  # T5X: of decay_every
    steps_per_cycle: PositiveInt = 100_000  # T5X: of cosine_decay
    step_offset: int = 0  # subtracted from the step
    # Of a branch: from this step on the rate falls to 0, from what it is there.
    branch_step: NonNegativeInt | None = None
    branch_steps: PositiveInt | None = None  # the number of steps in which it falls
    # how: linear, 1-sqrt or cosine; constant: the rate goes on as in the run before
    branch_shape: Annotated[str, choice(*BRANCH_SHAPES)] = "1-sqrt"
    planned_steps: PositiveInt | None = None  # of the run that the rate before the branch goes by; None: this run's

    def __post_init__(self) -> None:
        kinds.check(self)
        for name in ("warmup_steps", "decay_steps"):
            value, least = getattr(self, name), "0" if name == "warmup_steps" else "1"
            require(
                value is None or (value == int(value) and value >= int(least)) or 0 < value < 1,
                f"ScheduleConfig.{name}",
                f"is {value!r}; give a whole number of steps, {least} or more, or a share of the run between 0 and 1.",
            )
        require(
            (self.branch_step is None) == (self.branch_steps is None),
            "ScheduleConfig.branch_steps",
            f"is {self.branch_steps!r}, and ScheduleConfig.branch_step is {self.branch_step!r}; give both or none.",
        )
        all_of("ScheduleConfig.factors", self.factor_names, SCHEDULE_FACTORS)

    def in_steps(self, steps: int) -> ScheduleConfig:
        """Returns the same schedule for a run of so many steps, with numbers in place of shares and of 'auto'.

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
        rate = self.base_learning_rate
        rate = min(MOST_AUTO, AUTO_RATE / math.sqrt(steps)) if rate == AUTO else rate
        decay = None if decay is None else max(1, decay)
        return replace(self, base_learning_rate=rate, warmup_steps=warmup or 0, decay_steps=decay)

    @property
    def factor_names(self) -> tuple[str, ...]:
        return tuple(factor.strip() for factor in self.factors.split("*"))


RULES: dict[str, type[OptimizerConfig]] = {}  # of each optimizer, by its name


@dataclass(frozen=True, init=False)  # a rule's own takes its fields
class OptimizerConfig:
    """The optimizer: `OptimizerConfig(NAME, …)` is an object of the rule with that name, and takes its fields too.

    A rule is a subclass with a `name`, its own fields and `build`; nothing else has to know of it. A field that only
    other rules have is a ConfigError.

    >>> OptimizerConfig("adamw", ScheduleConfig("cosine", 1e-3, warmup_steps=100), beta2=0.98).schedule.warmup_steps
    100
    """

    name: str = "adafactor"  # adafactor, adamw or muon
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)  # the learning rate by step
    weight_decay: NonNegativeFloat = 0.0  # of parameters, times the learning rate (with Adafactor, as in T5X, not)
    clip_global_norm: PositiveFloat | None = None  # of the gradient, before the optimizer
    frozen: tuple[str, ...] = ()  # patterns that frozen parameters' names begin with: 'encoder', '.*/relpos_bias'
    # patterns that names of parameters without weight decay begin with, beside scales and biases: '.*/relpos_bias'
    undecayed: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls.__name__ = "OptimizerConfig"  # for messages: the class that gin files name
        if "name" in vars(cls):
            RULES[cls.name] = cls

    def __new__(cls, name: str = "adafactor", *_: object, **fields: object) -> OptimizerConfig:
        if cls is not OptimizerConfig:
            return object.__new__(cls)
        require(name in tuple(RULES), "OptimizerConfig.name", f"is {name!r}; choose one of {', '.join(RULES)}.")
        for given in foreign_fields(name, fields):
            users = [rule for rule, kind in RULES.items() if given in kind.__dataclass_fields__]
            raise ConfigError(
                f"OptimizerConfig.{given}",
                f"is a field of {', '.join(users)}, and OptimizerConfig.name is {name!r}; leave it out, or choose"
                f" {'one of these' if users[1:] else users[0]}.",
            )
        return object.__new__(RULES[name])

    def __post_init__(self) -> None:
        kinds.check(self)
        require(
            RULES.get(self.name) is type(self),
            "OptimizerConfig.name",
            f"is {self.name!r}, and the fields are another rule's; make OptimizerConfig({self.name!r}) with its own.",
        )
        require(
            self.schedule.base_learning_rate != AUTO or getattr(self, "muon_by_parameter_scale", False),
            "ScheduleConfig.base_learning_rate",
            f"is 'auto', which is known for Muon with muon_by_parameter_scale (gin/recipes/fast.gin) and not for"
            f" {self.name}; give a number, usual: {USUAL_RATES}.",
        )
        patterns = {"undecayed": self.undecayed, "frozen": self.frozen}
        for field_name, pattern in ((name, each) for name, several in patterns.items() for each in several):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"OptimizerConfig.{field_name}",
                    f"holds {pattern!r}, which is not a regular expression ({error}); write the beginning of the names,"
                    " such as 'encoder', or put a backslash before a sign that is meant as itself.",
                ) from None

    def build(self, parts: Parts) -> list[Transformation]:
        """Returns the rule as optax transformations, from the clipped gradient to the parameters' update."""
        raise NotImplementedError(f"the rule {self.name} has no build")


def fields_of(kind: type) -> dict[str, object]:
    """Returns the type hint of each field of a configuration; of OptimizerConfig, with those of all rules.

    >>> fields_of(OptimizerConfig)["muon_rms"]
    <class 'float'>
    """
    rules = RULES.values() if kind is OptimizerConfig else ()
    return {name: hint for each in (kind, *rules) for name, hint in kinds.hints_of(each).items()}


def foreign_fields(name: object, given: Iterable[str]) -> list[str]:
    """Returns those of the given fields that other rules have and the named one has not; none for an unknown name.

    >>> foreign_fields("adafactor", ["momentum", "muon_beta", "unknown"])
    ['muon_beta']
    """
    own = next((kind for rule, kind in RULES.items() if rule == name), None)
    known = set() if own is None else fields_of(OptimizerConfig).keys() - fields_of(own).keys()
    return [field for field in given if field in known]


def unread_fields(given: Mapping[str, object]) -> list[str]:
    """Returns those of the given fields of ScheduleConfig that a schedule with these values does not read.

    >>> unread_fields({"name": "linear", "factors": "constant", "decay_steps": 9}), unread_fields({"decay_steps": 9})
    (['factors'], ['decay_steps'])
    >>> unread_fields({"factors": "constant", "base_learning_rate": 0.1, "warmup_steps": 9, "decay_factor": 0.5})
    ['warmup_steps', 'decay_factor']
    """
    if given.get("name", ScheduleConfig.name) != "factors":
        return [field for field in given if field in OF_FACTORS]
    factors = str(given.get("factors", ScheduleConfig.factors)).split("*")
    read = {field for name in factors for field in READ_BY_FACTORS.get(name.strip(), ())}
    known = {field for fields in READ_BY_FACTORS.values() for field in fields}
    return [field for field in given if field in OF_CURVES or field in known - read]


class Parts(NamedTuple):
    """What a rule is built of besides optax; `limba/training/optimizer.py` fills it."""

    rate: Transformation  # the transformation that multiplies by minus the learning rate
    decay_and_rate: list[Transformation]  # the same after weight decay, if there is any
    decay: Callable[[float], Transformation]  # adds this part of each parameter but norms' scales and biases
    per_layer: Callable[[Transformation], Transformation]  # each layer of a stack as a parameter of its own
    by_parameter_rms: Callable[[float], Transformation]  # times its root mean square, at least this number
    muon: Callable[[Muon, Transformation], Transformation]  # Muon of the layers' matrices, another rule of the rest


# Rules. A configuration is read without jax, so they import it and optax in `build`.

# Adafactor's two (section 10 of arXiv:1804.04235): added to squared gradients, and the smallest scale of a parameter.
# No recipe has others.
EPSILON, LEAST_SCALE = 1e-30, 1e-3


@dataclass(frozen=True)
class Factored(OptimizerConfig):
    """Adafactor's factored second moments and clipped updates: no rule, but a part of `adafactor` and `muon`."""

    decay_rate: ClosedShare = 0.8  # of the second moment, which forgets the slower the later the step
    clipping_threshold: PositiveFloat | None = 1.0  # of an update's root mean square, per parameter and layer
    min_dim_size_to_factor: NonNegativeInt = 128  # smaller matrices keep a full second moment
    step_offset: NonNegativeInt = 0  # T5X: at this step the moving averages start again, so that they forget quickly

    def factored(self) -> list[Transformation]:
        import optax

        rule = optax.scale_by_factored_rms(
            decay_rate=self.decay_rate,
            step_offset=self.step_offset,
            min_dim_size_to_factor=self.min_dim_size_to_factor,
            epsilon=EPSILON,
        )
        threshold = self.clipping_threshold
        return [rule] if threshold is None else [rule, optax.clip_by_block_rms(threshold)]


@dataclass(frozen=True)
class Adafactor(Factored):
    """Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) by T5X's rule."""

    name: str = "adafactor"
    multiply_by_parameter_scale: bool = True  # updates relative to the parameter's size
    momentum: Share | None = None  # of the first moment; None: none

    def build(self, parts: Parts) -> list[Transformation]:
        import optax

        scale = [parts.by_parameter_rms(LEAST_SCALE)] if self.multiply_by_parameter_scale else []
        steps = [parts.per_layer(optax.chain(*self.factored(), *scale)), parts.rate]
        if self.momentum is not None:
            steps.append(optax.ema(self.momentum, debias=False, accumulator_dtype="float32"))
        return [*steps, parts.decay(-self.weight_decay)] if self.weight_decay else steps  # not times the learning rate


@dataclass(frozen=True)
class AdamW(OptimizerConfig):
    """AdamW (arXiv:1711.05101)."""

    name: str = "adamw"
    beta1: Share = 0.9  # of the first moment
    beta2: Share = 0.999  # of the second moment
    epsilon: NonNegativeFloat = 1e-8  # added to the root of the second moment

    def adam(self) -> Transformation:
        import optax

        return optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)

    def build(self, parts: Parts) -> list[Transformation]:
        return [self.adam(), *parts.decay_and_rate]


@dataclass(frozen=True)
class Muon(Factored, AdamW):
    """Muon for the layers' matrices (`limba/training/muon.py`), AdamW or Adafactor for all else."""

    name: str = "muon"
    # the rule of the other parameters; adafactor: without momentum, next to no state
    muon_others: Annotated[str, choice("adamw", "adafactor")] = "adamw"
    muon_beta: Share = 0.95  # of the momentum (Nesterov's)
    muon_rms: PositiveFloat = 0.2  # RMS of a matrix's update, before the learning rate; Adam's is about as large
    # of the Newton-Schulz iterations that make the momentum orthogonal
    muon_dtype: Annotated[str, choice("bfloat16", "float32")] = "bfloat16"
    muon_by_parameter_scale: bool = False  # updates relative to the parameter's size

    def build(self, parts: Parts) -> list[Transformation]:
        import optax

        others = self.adam() if self.muon_others == "adamw" else parts.per_layer(optax.chain(*self.factored()))
        scale = [parts.per_layer(parts.by_parameter_rms(LEAST_SCALE))] if self.muon_by_parameter_scale else []
        return [parts.muon(self, others), *scale, *parts.decay_and_rate]
