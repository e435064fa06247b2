"""Objective and schedule: lengths, FLOPs spent on padding, and the learning rate over the run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from limba.api import Mixture, PlannedRun, RunData, Task, flops_per_sequence, text_curve
from limba.config import InputError, RunConfig, ScheduleConfig
from limba.tools.preflight.checks.findings import gathered, logged
from limba.tools.preflight.checks.rates import rate_warnings
from limba.tools.preflight.checks.verdict import Data, Line, Section

TITLE = "Objective and schedule"
WASTE = 0.05  # share of the FLOPs from which on it is called wasteful
# Of the curve of the learning rate, in characters.
POINTS = 64
HEIGHT = 6
RISING = ("linear_warmup", "linear_decay")  # T5X's factors that begin at 0
FALLING = ("rsqrt_decay", "rsqrt_normalized_decay")  # those that are constant up to the end of the warm-up
LONG_WARMUP = 0.5  # share of the run
EARLY = 0.05  # share of the run that is trained after the rate has come to its end
DECAY = "decay-steps"


def objective_and_schedule(config: RunConfig, task: Task | Mixture | None) -> Section:
    """Returns the section about lengths, padding and the learning rate; without a task about the rate alone."""

    def lengths(data: Data) -> Iterator[Line]:
        if task is None:
            yield Line("ok", "Lengths are not checked: the task is not known.")
        else:
            yield from lengths_of(config, task, data)

    return gathered(
        TITLE,
        lengths,
        lambda data: rate_over_steps(config, data),
        lambda _: schedule_warnings(config),
        lambda _: rate_warnings(config),
    )


def lengths_of(config: RunConfig, task: Task | Mixture, data: Data) -> Iterator[Line]:
    """Yields the lengths of a row, and the share of its FLOPs that is padding by its objective."""
    configured = config.data.task_feature_lengths
    run = RunData(config.data, task)
    with logged():  # its warning about padding; a line below says more
        lengths = run.lengths()
    data["lengths"] = lengths
    if config.data.sequence_length is not None:
        yield Line("ok", f"A row is one sequence of {config.data.sequence_length} tokens.")
        yield from _predicted(config)
        return
    needed = needed_targets(run, lengths["inputs"])
    if needed is None:
        yield Line("ok", f"{_text(lengths)}: as given; the section Data shows how much of it is padding.")
        return
    share = wasted_share(config, lengths["inputs"], needed, lengths["targets"])
    data |= {"targets_needed": needed, "padding_flops_share": share}
    origin = "derived from the objective" if "targets" not in configured else "as given"
    if share < WASTE:
        also = f"; {share:.1%} of the FLOPs are spent on padding" if share else ", all of it used"
        yield Line("ok", f"{_text(lengths)}, {origin}{also}.")
        return
    text = f"{_text(lengths)}, and the objective fills {needed} targets: {share:.0%} of a step's FLOPs are spent on"
    fix = ("DataConfig.task_feature_lengths", {"inputs": lengths["inputs"]})
    yield Line("warning", f"{text} padding.", fix, "padding")


def _predicted(config: RunConfig) -> Iterator[Line]:
    """Yields how many tokens of an encoder's rows are predicted, in a step and in the run."""
    data = config.data
    most = data.num_predicted
    if not most or data.sequence_length is None:
        return
    stages = data.predicted(config.train_steps or 0)
    for begins, _, masked, causal in stages:
        where = f"From step {begins:,} on about" if begins else "About"
        also = f", and all {causal:,.0f} of causal rows" if causal else ""
        row = f"{masked / data.batch_size:.0f} of a row"
        yield Line("ok", f"{where} {masked:,.0f} tokens a step are masked and predicted ({row}){also}.")
    if not config.train_steps:
        yield Line("ok", f"The output layer computes {most} of a row.")
        return
    masked_in_all = sum(steps * masked for _, steps, masked, _ in stages)
    causal_in_all = sum(steps * causal for _, steps, _, causal in stages)
    both = f"{masked_in_all:,.0f} masked"
    if causal_in_all:
        both += f" and {causal_in_all:,.0f} causal"
    yield Line("ok", f"In the run these are {both} tokens; the output layer computes {most} of a row.")


def _text(lengths: dict[str, int]) -> str:
    return f"A row has {' and '.join(f'{length} {name}' for name, length in lengths.items())}"


def needed_targets(run: RunData, inputs: int) -> int | None:
    """Returns the targets that the objective fills for inputs of this length; None if that depends on the text."""
    if run.has_pairs:
        return None
    try:
        return run.lengths({"inputs": inputs})["targets"]
    except InputError:
        return None  # an objective of the user's own


def wasted_share(config: RunConfig, inputs: int, needed: float, targets: int, filled: float | None = None) -> float:
    """Returns the share of a row's FLOPs that is spent on padding, if `needed` targets of `targets` are tokens.

    `filled` are the inputs that are tokens; None: all. For T5 1.1 base with 64,000 rows, 512 inputs and 256 targets of
    which span corruption fills 114, it is 0.24.
    """
    whole = flops_per_sequence(config.model, inputs, targets)
    read_inputs = inputs if filled is None else round(filled)
    return 1 - flops_per_sequence(config.model, read_inputs, round(needed)) / whole


def rate_over_steps(config: RunConfig, data: Data) -> Iterator[Line]:
    """Yields the learning rate as a small drawing, and its values at the first, the highest and the last step."""
    steps = config.train_steps
    if steps is None:
        yield Line(
            "ok",
            "The learning rate is not drawn: the run ends with its epochs, whose number of steps is not known here.",
        )
        return
    sampled = np.unique(np.linspace(0, steps - 1, 4 * POINTS).astype(int)).tolist()
    rates = PlannedRun(config).learning_rates(sampled)
    data["learning_rate"] = [[step, rate] for step, rate in zip(sampled, rates, strict=True)]
    schedule = config.optimizer.schedule
    kind = schedule.factors if schedule.name == "factors" else schedule.name
    highest = int(np.argmax(rates))
    text = f"Learning rate, {kind}: {rates[0]:.3g} at step 1"
    text += f", at most {rates[highest]:.3g} at step {sampled[highest] + 1:,}, {rates[-1]:.3g} at step {steps:,}"
    scale = 10.0 ** math.floor(math.log10(max(rates))) if max(rates) > 0 else 1.0
    points = [(step + 1, rate / scale) for step, rate in zip(sampled, rates, strict=True)]
    drawing = "\n".join(text_curve(points, POINTS, HEIGHT))
    yield Line("ok", f"{text}. In units of {scale:.0e}:\n{drawing}")
    yield Line("ok", course(schedule, steps))


def course(schedule: ScheduleConfig, steps: int) -> str:
    """Returns the sentence that sets warm-up and decay beside the length of the run.

    >>> course(ScheduleConfig("cosine", warmup_steps=1_000), 100_000)
    'Warm-up takes 1,000 of 100,000 steps (1.0%); the decay ends with the run.'
    >>> course(ScheduleConfig(warmup_steps=10_000), 100_000)
    'The rate is constant for 10,000 of 100,000 steps (10.0%), as in T5, and then falls to the end.'
    """
    schedule = schedule.in_steps(steps)
    warmup = int(schedule.warmup_steps)
    decay = int(schedule.decay_steps or 0)
    names = schedule.factor_names
    if schedule.branch_step is not None:
        return f"The rate of the run before falls from step {schedule.branch_step:,} on: {schedule.branch_shape}."
    share = f"{warmup:,} of {steps:,} steps ({warmup / steps:.1%})"
    if schedule.name == "warmup_stable_decay":
        return f"Warm-up takes {share}, the decay the last {decay:,} steps."
    if schedule.name != "factors":
        end = f"at step {decay:,}" if decay else "with the run"
        return f"Warm-up takes {share}; the decay ends {end}."
    if any(name in RISING for name in names):
        return f"Warm-up takes {share}."
    if not any(name in FALLING for name in names):
        return "There is no warm-up."
    if warmup >= steps - schedule.step_offset:
        return f"The rate is the same at all steps: it falls only after step {warmup + schedule.step_offset:,}."
    return f"The rate is constant for {share}, as in T5, and then falls to the end."


def schedule_warnings(config: RunConfig) -> Iterator[Line]:
    """Yields what is wrong with the schedule for the length of the run; computes nothing on a device."""
    if config.train_steps is None:
        return
    schedule = config.optimizer.schedule
    if schedule.branch_step is not None:  # it was looked at when the run before it began
        return
    offset = schedule.step_offset if schedule.name == "factors" else 0
    steps = max(1, config.train_steps - offset)
    schedule = schedule.in_steps(steps)
    yield from _of_warmup(schedule, steps)
    if schedule.name == "factors":
        yield from _of_linear_factor(schedule, steps)
    elif config.optimizer.schedule.decay_steps is not None:
        yield from _of_decay(schedule, int(schedule.decay_steps or 0), steps)


def _of_warmup(schedule: ScheduleConfig, steps: int) -> Iterator[Line]:
    rises = schedule.name != "factors" or any(name in RISING for name in schedule.factor_names)
    warmup = int(schedule.warmup_steps)
    fix = ("ScheduleConfig.warmup_steps", max(1, steps // 50))
    if not rises or warmup <= LONG_WARMUP * steps:
        return
    text = f"ScheduleConfig.warmup_steps is {warmup:,} of {steps:,} steps"
    if warmup >= steps:
        yield Line("warning", f"{text}: the learning rate only rises, and never reaches its peak.", fix, "long-warm-up")
    else:
        yield Line("warning", f"{text}: {warmup / steps:.0%} of the run is warm-up.", fix, "long-warm-up")


def _of_decay(schedule: ScheduleConfig, decay: int, steps: int) -> Iterator[Line]:
    warmup = int(schedule.warmup_steps)
    if schedule.name == "warmup_stable_decay":
        if decay + warmup > steps:
            text = f"Warm-up ({warmup:,}) and decay ({decay:,}) are longer than the run of {steps:,} steps"
            fix = ("ScheduleConfig.decay_steps", max(1, steps // 10))
            yield Line("warning", f"{text}: the rate falls before it is at its peak.", fix, DECAY)
        return
    after = steps - decay
    if after > EARLY * steps:
        text = f"The decay ends at step {decay:,} of {steps:,}: {after:,} steps are trained at a learning rate of"
        yield Line("warning", f"{text} {schedule.final_learning_rate:g}.", ("ScheduleConfig.decay_steps", None), DECAY)
    elif after < -EARLY * steps:
        text = f"The decay ends at step {decay:,}, after the run's {steps:,} steps: the learning rate does not come to"
        yield Line("warning", f"{text} its end.", ("ScheduleConfig.decay_steps", None), DECAY)


def _of_linear_factor(schedule: ScheduleConfig, steps: int) -> Iterator[Line]:
    """Yields the end of T5X's factor linear_decay, 1 + decay_factor (warmup_steps - step), if it comes early."""
    warmup = schedule.warmup_steps
    factor = schedule.decay_factor
    if "linear_decay" not in schedule.factor_names or not factor:
        return
    end = warmup + 1 / factor
    if end < (1 - EARLY) * steps:
        text = f"The factor linear_decay is 0 from step {end:,.0f} of {steps:,} on, as ScheduleConfig.decay_factor is"
        fix = ("ScheduleConfig.decay_factor", float(f"{1 / max(steps - warmup, 1):.3g}"))
        yield Line("warning", f"{text} {factor:g}.", fix, DECAY)
