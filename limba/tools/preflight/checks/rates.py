"""The learning rate beside what an optimizer usually has: its height, its warm-up and its decay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from limba.api import PlannedRun
from limba.config import Fix, RunConfig, ScheduleConfig
from limba.config.schedule import AUTO
from limba.tools.preflight.checks.verdict import Line

# Rule -> the lowest and highest usual peak of the learning rate, and the peak that a fix gives (docs/settings.md).
PRETRAINING = {
    "adafactor": (1e-3, 3e-2, 1e-2),  # 1 / sqrt(10,000) by T5X's rule
    "adamw": (1e-4, 1e-3, 5e-4),
    "muon": (1e-3, 1e-2, 2e-3),
}
FINE_TUNING = {"adafactor": (1e-4, 2e-3, 1e-3), "muon by size": (1e-3, 2e-2, 5e-3)}
FINE_TUNING_OTHERS = (1e-5, 3e-4, 1e-4)
FAR = 9.99  # times outside of the range, from which on it is a warning: ten times, with room for rounding
ADAPTIVE = ("adamw", "muon")  # whose first steps are too large without a warm-up
CONTINUED = 0.5  # share of the run after which a run that continues at another's step is looked at
SAMPLES = 256


def rate_warnings(config: RunConfig) -> Iterator[Line]:
    """Yields one warning for an unusual rate, a missing warm-up or a missing decay, with one fix for all.

    A run that goes on from a checkpoint's step is judged by its second half, since its first steps are not made.
    """
    steps = config.train_steps
    schedule = config.optimizer.schedule
    name = config.optimizer.name
    if steps is None or steps < 2 or schedule.branch_step is not None:
        return
    has_checkpoint = config.initial_checkpoint_path is not None
    is_tuned = has_checkpoint and config.reset_step
    goes_on = has_checkpoint and not config.reset_step
    first = int(CONTINUED * steps) if goes_on else 0
    sampled = sorted({first + number * (steps - 1 - first) // SAMPLES for number in range(SAMPLES + 1)})
    start, *rates = PlannedRun(config).learning_rates([0, *sampled])
    if not all(rate >= 0 for rate in (start, *rates)):  # the run itself says so
        return
    highest = max(rates)
    low, high, usual, far = _range(config, is_tuned)
    is_from_scratch = not has_checkpoint
    wants_course = is_from_scratch and name in ADAPTIVE
    no_warmup = wants_course and start > 0.5 * highest
    no_decay = is_from_scratch and _never_falls(config, rates, wants_course)
    faults = []
    codes = []
    if not low / far < highest < high * far:
        kind = "to fine-tune" if is_tuned else f"and {steps:,} steps"
        faults.append(
            f"the highest learning rate is {highest:.3g}, and {low:.2g} to {high:.2g} for {name} {kind} is usual"
        )
        if is_tuned:
            codes.append("fine-tuning-rate")
        elif highest > high:
            codes.append("rate-too-high")
        else:
            codes.append("rate-too-low")
    if no_warmup:
        faults.append(f"there is no warm-up, which {name} needs in its first steps")
        codes.append("no-warm-up")
    if no_decay:
        faults.append("the learning rate never falls, which costs much of what a run's end gives")
        codes.append("no-decay")
    if not faults:
        return
    text = f"ScheduleConfig.base_learning_rate is {schedule.base_learning_rate}: {'; '.join(faults)}."
    if no_warmup or no_decay:
        fixes = _course(schedule, steps, no_warmup, no_decay)
        base = highest if low <= highest <= high else usual
    else:
        fixes = []
        peak = float(schedule.in_steps(steps).base_learning_rate)
        base = peak * usual / highest if highest else usual
    fixes.append(("ScheduleConfig.base_learning_rate", float(f"{base:.2g}")))
    yield Line("warning", text, fixes, codes[0])


def _never_falls(config: RunConfig, rates: Sequence[float], wants_course: bool) -> bool:
    """Returns whether a rate stays at its height to the end, of a run that it should fall in."""
    schedule = config.optimizer.schedule
    highest = max(rates)
    if is_flat_on_purpose(config) or rates[-1] <= 0.99 * highest:
        return False
    if rates[len(rates) // 2] <= 0.99 * highest:  # it only rises, which another check reports
        return False
    return wants_course or schedule.name != "factors" or "rsqrt" not in schedule.factors


def _course(schedule: ScheduleConfig, steps: int, no_warmup: bool, no_decay: bool) -> list[Fix]:
    """Returns a schedule with a warm-up that falls; to 0, where another one is needed for that."""
    warmup = schedule.warmup_steps
    if no_warmup or warmup >= steps / 2:
        warmup = max(1, steps // 50)
    if not no_decay and schedule.name != "factors":
        return [("ScheduleConfig.warmup_steps", warmup)]
    fixes: list[Fix] = [("ScheduleConfig.name", "cosine"), ("ScheduleConfig.warmup_steps", warmup)]
    if schedule.decay_steps is not None and schedule.name != "cosine":  # there it is a length, here the last step
        fixes.append(("ScheduleConfig.decay_steps", None))
    if schedule.final_learning_rate:
        fixes.append(("ScheduleConfig.final_learning_rate", 0.0))
    return fixes


def _range(config: RunConfig, is_tuned: bool) -> tuple[float, float, float, float]:
    """Returns the lowest, the highest and a usual rate of the rule, and how many times beyond is a warning.

    Relative to the parameter's size, 2.5 times the rate of 'auto' is too high: at three times it the loss is 0.5 higher
    (docs/development/board.md).
    """
    optimizer = config.optimizer
    rule = "muon by size" if getattr(optimizer, "muon_by_parameter_scale", False) else optimizer.name
    if not getattr(optimizer, "multiply_by_parameter_scale", True):
        rule = "adamw"  # Adafactor with absolute updates
    if is_tuned:  # what 'auto' would be there is not known
        low, high, usual = FINE_TUNING.get(rule, FINE_TUNING_OTHERS)
        return low, high, usual, 1.0 if rule == "muon by size" else FAR
    if rule in PRETRAINING:
        low, high, usual = PRETRAINING[rule]
        return low, high, usual, FAR
    auto = float(ScheduleConfig(base_learning_rate=AUTO).in_steps(config.train_steps or 1).base_learning_rate)
    return auto / 20, 2.5 * auto, auto, 1.0


def is_flat_on_purpose(config: RunConfig) -> bool:
    """Returns whether the rate stays high so that branches can decay from any step: a decay of one step."""
    schedule = config.optimizer.schedule
    return schedule.name == "warmup_stable_decay" and schedule.decay_steps == 1
