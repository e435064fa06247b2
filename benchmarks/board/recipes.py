"""The recipes that the board compares: an optimizer, its schedule, and what may be set of them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.board.sizes import ROWS_MULTIPLE, Size
from limba.config import InputError, OptimizerConfig, ScheduleConfig, did_you_mean, optimizer_config
from limba.config.optimizer import fields_of

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Recipe:
    """An optimizer with its schedule. Lengths of the schedule are shares of the run's steps.

    Results name what differs from a recipe: one whose values change needs a new name.
    """

    about: str
    optimizer: Settings  # fields of OptimizerConfig
    schedule: str  # ScheduleConfig.name
    learning_rate: float  # at sizes.REFERENCE_DEPTH
    exponent: float  # of the learning rate's fall with depth: 1 for steps of one size, 0 for relative ones
    warmup: float = 0.05  # share of the steps; T5X's rule: the steps themselves
    decay: float = 0.2  # share of the steps at the end, by warmup_stable_decay
    causal: float | None = None  # of an encoder: the share of its steps that are causal, before the masked ones
    hybrid: float | None = None  # of an encoder: the share of its texts that are causal, in every step
    is_encoder: bool = False


RECIPES: Mapping[str, Recipe] = {
    "adafactor": Recipe(
        "Adafactor at 1/sqrt(step): T5X's rule, with its 10,000 steps of a constant rate first",
        {"name": "adafactor"}, "factors", 1.0, 0.0, warmup=10_000,
    ),
    "adafactor_wsd": Recipe(
        "Adafactor, warm-up, constant, linear decay",
        {"name": "adafactor"}, "warmup_stable_decay", 0.05, 0.0,
    ),
    "adamw_wsd": Recipe(
        "AdamW; warm-up, constant, linear decay",
        {"name": "adamw"}, "warmup_stable_decay", 0.005, 1.0,
    ),
    "muon_wsd": Recipe(
        "Muon for the layers' matrices, AdamW for the rest; warm-up, constant, linear decay",
        {"name": "muon"}, "warmup_stable_decay", 0.02, 1.0,
    ),
    "muon_cosine": Recipe(
        "Muon for the layers' matrices, AdamW for the rest; warm-up, cosine to 0",
        {"name": "muon"}, "cosine", 0.02, 1.0,
    ),
    "masked": Recipe(
        "an encoder of as many layers, 30 % of its tokens hidden; AdamW, warm-up, constant, linear decay",
        {"name": "adamw"}, "warmup_stable_decay", 0.005, 1.0, is_encoder=True,
    ),
    "causal_then_masked": Recipe(
        "`masked`, whose first half is a causal language model's",
        {"name": "adamw"}, "warmup_stable_decay", 0.005, 1.0, is_encoder=True, causal=0.5,
    ),
    "hybrid": Recipe(
        "`masked`, and half of the texts causal in every step, with one head (GPT-BERT)",
        {"name": "adamw"}, "warmup_stable_decay", 0.005, 1.0, is_encoder=True, hybrid=0.5,
    ),
    "fast": Recipe(
        "gin/recipes/fast.gin: Muon for the layers' matrices, Adafactor for the rest, steps relative to the parameter's"
        " RMS, a rate that falls for most of the run",
        {"name": "muon", "muon_by_parameter_scale": True, "muon_others": "adafactor", "muon_rms": 0.1,
         "muon_beta": 0.9},
        "warmup_stable_decay", 0.1, 0.0, warmup=0.02, decay=0.7,
    ),
    "muon_rms_long": Recipe(
        "`muon_rms_wsd` with shorter momenta, and a higher rate that falls for most of the run",
        {"name": "muon", "muon_by_parameter_scale": True, "muon_rms": 0.1, "beta1": 0.8, "muon_beta": 0.9},
        "warmup_stable_decay", 0.1, 0.0, warmup=0.02, decay=0.7,
    ),
    "muon_rms_wsd": Recipe(
        "Muon for the layers' matrices, AdamW for the rest, steps relative to the parameter's RMS; warm-up, constant,"
        " linear decay",
        {"name": "muon", "muon_by_parameter_scale": True}, "warmup_stable_decay", 0.1, 0.0,
    ),
}  # fmt: skip
OWN = ("learning_rate", "warmup", "decay")  # fields of a recipe that may be set; the others are OptimizerConfig's
ROWS = "rows"  # of a batch, in place of the size's own
OF_OPTIMIZER = tuple(name for name in fields_of(OptimizerConfig) if name not in ("name", "schedule"))


def recipe_of(name: str) -> Recipe:
    """Returns a recipe; InputError for a name that no recipe has."""
    if name not in RECIPES:
        raise InputError(f"--recipe is {name}{did_you_mean(name, RECIPES)[:-1]}; the recipes are {', '.join(RECIPES)}.")
    return RECIPES[name]


def own_settings(recipe: Recipe, settings: Settings) -> dict[str, Any]:
    """Returns the settings that differ from the recipe's, in the order of their names."""
    defaults = optimizer_config(recipe.optimizer["name"])

    def default(name: str) -> Any:
        return getattr(recipe, name) if name in OWN else recipe.optimizer.get(name, getattr(defaults, name, None))

    return {name: value for name, value in sorted(settings.items()) if value != default(name)}


def settings_of(assignments: Sequence[str]) -> dict[str, Any]:
    """Returns what FIELD=VALUE flags set; InputError for a field that does not exist or a wrong value.

    >>> settings_of(["learning_rate=0.1", "beta2=0.95", "multiply_by_parameter_scale=False"])
    {'beta2': 0.95, 'learning_rate': 0.1, 'multiply_by_parameter_scale': False}
    """
    settings = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if name not in (*OWN, ROWS, *OF_OPTIMIZER):
            raise InputError(
                f"--set={assignment} names no field{did_you_mean(name, (*OWN, ROWS, *OF_OPTIMIZER))[:-1]}; write"
                f" --set=FIELD=VALUE with {', '.join(OWN)}, {ROWS} or a field of OptimizerConfig."
            )
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
        if name in OWN and (isinstance(settings[name], bool) or not isinstance(settings[name], int | float)):
            raise InputError(f"--set={assignment} gives no number; write --set={name}=0.1.")
        if name != ROWS:
            continue
        rows = settings[ROWS]
        if not (isinstance(rows, int) and rows > 0 and rows % ROWS_MULTIPLE == 0):
            raise InputError(f"--set={assignment}: rows are a multiple of {ROWS_MULTIPLE}, the shards that fill them.")
    return dict(sorted(settings.items()))


def optimizer_of(recipe: Recipe, settings: Settings, size: Size, steps: int) -> OptimizerConfig:
    """Returns the optimizer of a run; raises ConfigError for values that it refuses, InputError for shares above 1."""
    shares = {name: settings.get(name, getattr(recipe, name)) for name in OWN}
    rate = size.rate(shares["learning_rate"], recipe.exponent)
    if recipe.schedule == "factors":
        schedule = ScheduleConfig("factors", rate, "constant * rsqrt_decay", warmup_steps=int(shares["warmup"]))
    else:
        if not (0 <= shares["warmup"] < 1 and 0 < shares["decay"] <= 1 and shares["warmup"] + shares["decay"] <= 1):
            raise InputError(
                f"warmup is {shares['warmup']:g} and decay {shares['decay']:g};"
                " give shares of the steps, together at most 1."
            )
        warmup = round(shares["warmup"] * steps)
        decay = max(1, round(shares["decay"] * steps))
        is_stable = recipe.schedule == "warmup_stable_decay"
        schedule = ScheduleConfig(
            recipe.schedule, rate, warmup_steps=warmup, decay_steps=min(decay, steps - warmup) if is_stable else None
        )
    others = {name: value for name, value in settings.items() if name not in (*OWN, ROWS)}
    return optimizer_config(**{**recipe.optimizer, **others}, schedule=schedule)
