"""The schedule of the learning rate: its choices, and which of them each form of the schedule reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from limba.config import kinds
from limba.config.errors import all_of, require
from limba.config.kinds import Limit, NonNegativeFloat, NonNegativeInt, PositiveInt, choice

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

# No recipe comes near: T5X's highest is 1, Tensor2Tensor's learning_rate_constant 2 (arXiv:1706.03762 has 1 before
# rsqrt(hidden size)), and a rate of 1,000 moves each weight by 1,000 of Adam's steps.
MOST_RATE = 1_000
LEAST_RATE = 1e-8  # of T5X's factors, its min_learning_rate
USUAL_RATES = "0.5 to 2 for Adafactor with rsqrt_decay, 1e-5 to 0.02 for a constant rate and for AdamW"
Rate = Annotated[
    float, Limit(lambda rate: 0 < rate <= MOST_RATE, f"a number above 0, at most {MOST_RATE:,} (usual: {USUAL_RATES})")
]

# The rate 'auto' of gin/recipes/fast.gin. Updates relative to a parameter grow it by a share of rate^2 in each step, so
# the best rate falls as the root of the steps: found for 300 to 4,800 of them, as are these numbers
# (docs/development/board.md).
AUTO = "auto"
AUTO_RATE = 2.2  # divided by the root of the run's steps
MOST_AUTO = 0.14
AUTO_STEPS = (300, 4_800)  # the fewest and the most steps that it was measured for

# Which schedule reads which fields: a field that a run sets and its schedule does not read is refused.
OF_FACTORS = ("factors", "decay_factor", "steps_per_decay", "steps_per_cycle", "step_offset")  # only by 'factors'
OF_CURVES = ("decay_steps",)  # by every schedule but 'factors'
READ_BY_FACTORS = {  # factor: the fields that it reads
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
    """The learning rate over steps; `factors` is T5X's product of named factors.

    >>> ScheduleConfig("cosine", base_learning_rate=3e-4, warmup_steps=0.02).final_learning_rate
    0.0
    """

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
    # In a branch, the rate falls to 0 from this step on, beginning with its value there.
    branch_step: NonNegativeInt | None = None
    branch_steps: PositiveInt | None = None  # the number of steps in which it falls
    # how: linear, 1-sqrt or cosine; constant: the rate goes on as in the run before
    branch_shape: Annotated[str, choice(*BRANCH_SHAPES)] = "1-sqrt"
    planned_steps: PositiveInt | None = None  # of the run that the rate before the branch goes by; None: this run's

    def __post_init__(self) -> None:
        kinds.check(self)
        _check_steps("warmup_steps", self.warmup_steps, least=0)
        if self.decay_steps is not None:
            _check_steps("decay_steps", self.decay_steps, least=1)
        require(
            (self.branch_step is None) == (self.branch_steps is None),
            "ScheduleConfig.branch_steps",
            f"is {self.branch_steps!r}, and ScheduleConfig.branch_step is {self.branch_step!r}; give both or none.",
        )
        all_of("ScheduleConfig.factors", self.factor_names, SCHEDULE_FACTORS)

    def in_steps(self, steps: int) -> ScheduleConfig:
        """Returns the same schedule for a run of `steps` steps, with numbers in place of shares and of 'auto'.

        Without `decay_steps`, the decay of `warmup_stable_decay` takes a tenth of the run.

        >>> schedule = ScheduleConfig("warmup_stable_decay", warmup_steps=0.02, decay_steps=0.7).in_steps(600)
        >>> schedule.warmup_steps, schedule.decay_steps
        (12, 420)
        """
        decay = self.decay_steps
        if decay is None and self.name == "warmup_stable_decay":
            decay = 0.1
        if decay is not None:
            decay = max(1, _whole_steps(decay, steps))
        rate = self.base_learning_rate
        if rate == AUTO:
            rate = min(MOST_AUTO, AUTO_RATE / math.sqrt(steps))
        warmup = _whole_steps(self.warmup_steps, steps)
        return replace(self, base_learning_rate=rate, warmup_steps=warmup, decay_steps=decay)

    @property
    def factor_names(self) -> tuple[str, ...]:
        return tuple(factor.strip() for factor in self.factors.split("*"))


def _check_steps(name: str, steps: float, least: int) -> None:
    """Raises ConfigError for what is neither a number of steps, `least` or more, nor a share of a run."""
    is_number = steps == int(steps) and steps >= least
    is_share = 0 < steps < 1
    require(
        is_number or is_share,
        f"ScheduleConfig.{name}",
        f"is {steps!r}; give a whole number of steps, {least} or more, or a share of the run between 0 and 1.",
    )


def _whole_steps(length: float, steps: int) -> int:
    """Returns a length in steps; one below 1 is a share of a run of `steps` steps.

    Without the rounding, 0.07 of 100 steps, 7.000000000000001 in floating point, could become one step less or more.
    """
    if length >= 1:
        return int(length)
    return int(round(length * steps, 6))


def unread_fields(values: Mapping[str, object]) -> list[str]:
    """Returns which of these fields of ScheduleConfig a schedule with these values does not read.

    >>> unread_fields({"name": "linear", "factors": "constant", "decay_steps": 9}), unread_fields({"decay_steps": 9})
    (['factors'], ['decay_steps'])
    >>> unread_fields({"factors": "constant", "base_learning_rate": 0.1, "warmup_steps": 9, "decay_factor": 0.5})
    ['warmup_steps', 'decay_factor']
    """
    if values.get("name", ScheduleConfig.name) != "factors":
        return [field for field in values if field in OF_FACTORS]
    factors = str(values.get("factors", ScheduleConfig.factors)).split("*")
    read = set[str]()
    for factor in factors:
        read.update(READ_BY_FACTORS.get(factor.strip(), ()))
    of_some_factor = set[str]().union(*READ_BY_FACTORS.values())
    unread = of_some_factor - read
    return [field for field in values if field in OF_CURVES or field in unread]
