"""The optimizer: a frozen dataclass for each update rule, and `optimizer_config`, which finds a rule by its name.

`limba/training/rules.py` makes the rules of optax's transformations. A wrong field is refused before jax is imported,
which takes a second, so nothing here needs jax or optax.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from limba.config import kinds
from limba.config.errors import ConfigError, require
from limba.config.kinds import ClosedShare, NonNegativeFloat, NonNegativeInt, PositiveFloat, Share, choice
from limba.config.schedule import AUTO, USUAL_RATES, ScheduleConfig


@dataclass(frozen=True)
class OptimizerConfig:
    """What every rule has: its name, the schedule of the learning rate, and what goes around the rule.

    Each rule is a subclass with fields of its own, which `optimizer_config` finds by its name. In gin files all of them
    are `config.OptimizerConfig`. Raises ConfigError for a value beyond a field's limit.

    >>> optimizer_config("adamw", weight_decay=0.1).clip_global_norm is None
    True
    """

    CLASS_NAME = "OptimizerConfig"  # in gin files and messages, for the subclasses too; not a field: it has no type

    name: str = "adafactor"  # adafactor, adamw or muon
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)  # the learning rate by step
    weight_decay: NonNegativeFloat = 0.0  # of parameters, times the learning rate (with Adafactor, as in T5X, not)
    clip_global_norm: PositiveFloat | None = None  # of the gradient, before the optimizer
    frozen: tuple[str, ...] = ()  # patterns that frozen parameters' names begin with: 'encoder', '.*/relpos_bias'
    # patterns that names of parameters without weight decay begin with, besides scales and biases: '.*/relpos_bias'
    undecayed: tuple[str, ...] = ()

    def __new__(cls, *values: object, **fields: object) -> Self:
        """Raises ConfigError for a field that only a rule has: Python itself would only say that it is unexpected."""
        for name in fields:
            users = [user for user, rule in RULES.items() if name in rule.__dataclass_fields__]
            if cls.__name__ == OptimizerConfig.__name__ and users and name not in cls.__dataclass_fields__:
                name_value = fields.get("name", values[0] if values else None)
                rule_name = name_value if name_value in users else users[0]
                raise ConfigError(
                    f"OptimizerConfig.{name}",
                    f"is a field of {', '.join(users)}, and OptimizerConfig has only the fields common to all rules;"
                    f" write limba.optimizer_config({rule_name!r}, {name}={fields[name]!r}).",
                )
        return object.__new__(cls)

    def __post_init__(self) -> None:
        kinds.check(self)
        rule = rule_named(self.name)
        require(
            rule is type(self),
            "OptimizerConfig.name",
            f"is {self.name!r}, and the fields are another rule's; make optimizer_config({self.name!r}) with its own.",
        )
        require(
            self.schedule.base_learning_rate != AUTO or self.takes_the_rate_auto,
            "ScheduleConfig.base_learning_rate",
            f"is 'auto', which is known for Muon with muon_by_parameter_scale (gin/recipes/fast.gin) and not for"
            f" {self.name}; give a number, usual: {USUAL_RATES}.",
        )
        _check_patterns("undecayed", self.undecayed)
        _check_patterns("frozen", self.frozen)

    @property
    def takes_the_rate_auto(self) -> bool:
        """Whether the learning rate 'auto' was measured for this rule."""
        return False


def _check_patterns(field_name: str, patterns: Iterable[str]) -> None:
    """Raises ConfigError for a pattern that is not a regular expression."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"OptimizerConfig.{field_name}",
                f"holds {pattern!r}, which is not a regular expression ({error}); write the beginning of the names,"
                " such as 'encoder', or put a backslash before a sign that is meant as itself.",
            ) from None


@dataclass(frozen=True)
class Factored(OptimizerConfig):
    """Adafactor's factored second moments and clipped updates: not a rule, but a part of `adafactor` and `muon`."""

    decay_rate: ClosedShare = 0.8  # of the second moment, which forgets the slower the later the step
    clipping_threshold: PositiveFloat | None = 1.0  # of an update's root mean square, per parameter and layer
    min_dim_size_to_factor: NonNegativeInt = 128  # smaller matrices keep a full second moment
    step_offset: NonNegativeInt = 0  # T5X: at this step the moving averages start again, so that they forget quickly


@dataclass(frozen=True)
class Adafactor(Factored):
    """Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) by T5X's rule."""

    name: str = "adafactor"
    multiply_by_parameter_scale: bool = True  # updates relative to the parameter's size
    momentum: Share | None = None  # of the first moment; None: none


@dataclass(frozen=True)
class AdamW(OptimizerConfig):
    """AdamW (arXiv:1711.05101)."""

    name: str = "adamw"
    beta1: Share = 0.9  # of the first moment
    beta2: Share = 0.999  # of the second moment
    epsilon: NonNegativeFloat = 1e-8  # added to the root of the second moment


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

    @property
    def takes_the_rate_auto(self) -> bool:
        return self.muon_by_parameter_scale


# Every rule by its name; TRANSFORMATIONS of `limba/training/rules.py` has the same names.
RULES: dict[str, type[OptimizerConfig]] = {
    "adafactor": Adafactor,
    "adamw": AdamW,
    "muon": Muon,
}


def rule_named(name: object) -> type[OptimizerConfig]:
    """Returns the class of a rule; ConfigError for a name without one."""
    for known, rule in RULES.items():  # a gin file may name a list, which cannot be the key of a dict
        if known == name:
            return rule
    raise ConfigError("OptimizerConfig.name", f"is {name!r}; choose one of {', '.join(RULES)}.")


def optimizer_config(name: str = "adafactor", *values: object, **fields: object) -> OptimizerConfig:
    """Returns the rule with that name; `values` and `fields` are its other fields, as its class takes them.

    Raises ConfigError for an unknown name, a field that only other rules have, and a value beyond a field's limit.

    >>> optimizer_config("adamw", ScheduleConfig("cosine", 1e-3, warmup_steps=100), beta2=0.98).schedule.warmup_steps
    100
    """
    rule = rule_named(name)
    for foreign in foreign_fields(name, fields):
        users = [other for other, kind in RULES.items() if foreign in kind.__dataclass_fields__]
        choices = "one of these" if len(users) > 1 else users[0]
        raise ConfigError(
            f"OptimizerConfig.{foreign}",
            f"is a field of {', '.join(users)}, and OptimizerConfig.name is {name!r}; leave it out, or choose"
            f" {choices}.",
        )
    make: Any = rule  # its own fields are not among those that pyright knows of every rule
    return make(name, *values, **fields)


def fields_of(kind: type) -> dict[str, object]:
    """Returns the type hint of each field of a configuration; for OptimizerConfig, the fields of all rules.

    >>> fields_of(OptimizerConfig)["muon_rms"]
    <class 'float'>
    """
    hints = dict(kinds.hints_of(kind))
    if kind is OptimizerConfig:
        for rule in RULES.values():
            hints.update(kinds.hints_of(rule))
    return hints


def foreign_fields(name: object, fields: Iterable[str]) -> list[str]:
    """Returns which of these fields only other rules have than the named one; none for an unknown name.

    >>> foreign_fields("adafactor", ["momentum", "muon_beta", "unknown"])
    ['muon_beta']
    """
    try:
        rule = rule_named(name)
    except ConfigError:
        return []
    foreign = fields_of(OptimizerConfig).keys() - fields_of(rule).keys()
    return [field for field in fields if field in foreign]
