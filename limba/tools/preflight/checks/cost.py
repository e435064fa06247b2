"""Time and cost: hours and money, what a preemption loses, and whether saves and evaluations come at useful times."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from limba.api import PlannedRun, size_text
from limba.config import RunConfig, prices
from limba.config.speed import BESIDE, LEAST_STEP_SECONDS, hours_of_run, in_range, in_time, number
from limba.tools.preflight.checks import estimate
from limba.tools.preflight.checks.compiler import TITLE as COMPILED
from limba.tools.preflight.checks.data import TITLE as DATA
from limba.tools.preflight.checks.findings import gathered, shorter
from limba.tools.preflight.checks.verdict import Data, Line, Section
from limba.tools.preflight.compiled.topologies import Topology

TITLE = "Time and cost"
PREEMPTIONS_A_DAY = 1.0  # an assumption: spot TPUs may live for hours or weeks
RESTART_HOURS = 0.25  # for new machines, the programs and the place in the data
MOST_LOST = 24.0  # hours that a preemption may lose
MOST_EVALUATING = 0.3  # share of the time, from which on there is a warning
WANTED_EVALUATING = 0.05  # share of the time that its fix gives
FREQUENT = 10  # steps: saves that come more often are counted
MANY_SAVES = 50
WRITTEN_A_SECOND = 200e6  # bytes that a host writes to a bucket or a disk at once, an assumption
MOST_SAVING = 0.5  # share of the time
# Tokens for each parameter, of a run from scratch.
LEAST_TOKENS = 0.1
WANTED_TOKENS = 5.0
LARGE = 10_000_000  # parameters below which a run is cheap enough to be short


@dataclasses.dataclass(frozen=True)
class Terms:
    """The price and the days that the user gives; None: the list price, and no limit of days."""

    price: float | None = None  # dollars of a chip-hour
    days: float | None = None  # of a grant


def time_and_cost(config: RunConfig, chips: Topology | None, made: Sequence[Section], terms: Terms) -> Section:
    """Returns the section of a run's time and costs, by the best estimate of a step among the sections before it."""
    figures = {section.title: section.data for section in made}
    seconds = _seconds(figures)
    of_data = figures.get(DATA, {})
    config = _in_steps(config, of_data)
    evaluation_steps = _evaluation_steps(config, of_data, seconds)
    tokens_per_step = of_data.get("tokens_per_step", 0.0) * of_data.get("text_share", 1.0)
    run = PlannedRun(config)

    def costs(data: Data) -> Iterator[Line]:
        if chips is None or config.train_steps is None:
            return iter([Line("ok", "Time and cost are not known without --topology and a number of steps.")])
        if not seconds:
            return iter([Line("ok", f"How long a step takes on {chips.name} is known once it is compiled.")])
        return _costs(run, chips, seconds, terms, data)

    return gathered(
        TITLE,
        costs,
        lambda _: _of_periods(config, evaluation_steps),
        lambda data: _lost(run, seconds, evaluation_steps, data) if seconds else (),
        lambda data: _tokens(run, tokens_per_step, data),
    )


def _in_steps(config: RunConfig, of_data: Mapping) -> RunConfig:
    """Returns the run with its end and its periods in steps, where they are epochs over a text of a known size."""
    steps = of_data.get("steps_per_epoch")
    if not steps:
        return config
    epoch = max(1, round(steps))
    # The run ends with whatever comes first.
    ends = []
    if config.train_steps:
        ends.append(config.train_steps)
    if config.data.num_epochs:
        ends.append(config.data.num_epochs * epoch)
    checkpoint = config.checkpoint
    if checkpoint.every_steps == "epoch":
        checkpoint = dataclasses.replace(checkpoint, every_steps=epoch)
    evaluation = config.evaluation
    if evaluation.every_steps == "epoch":
        evaluation = dataclasses.replace(evaluation, every_steps=epoch)
    return dataclasses.replace(config, train_steps=min(ends), checkpoint=checkpoint, evaluation=evaluation)


def _evaluation_steps(config: RunConfig, of_data: Mapping, seconds: tuple[float, float] | None) -> float:
    """Returns how many steps' time an evaluation takes: a third of a step for as many rows, without a backward pass.

    A whole split is taken as large as what was counted of it. A token of a generated batch takes LEAST_STEP_SECONDS.
    """
    evaluation = config.evaluation
    rows = evaluation.batch_size or config.data.batch_size
    batches = evaluation.num_batches
    if batches is None:
        documents = sum(of_data.get("validation_documents", {}).values())
        tokens = documents * len(of_data.get("columns", ())) * of_data.get("tokens_per_document", 0.0)
        rows_of_split = tokens / of_data.get("tokens_per_row", math.inf)
        batches = max(1, math.ceil(rows_of_split / rows))
    steps = batches * rows / config.data.batch_size / 3
    if seconds:
        generating = math.ceil(evaluation.num_examples / rows) * config.generation.max_tokens * LEAST_STEP_SECONDS
        steps += 2 * generating / sum(seconds)
    return steps


def _seconds(figures: Mapping[str, Mapping]) -> tuple[float, float] | None:
    compiled = figures.get(COMPILED, {}).get("estimate", {})
    by_arithmetic = figures.get(estimate.TITLE, {})
    seconds = compiled.get("seconds_per_step") or by_arithmetic.get("seconds_per_step")
    return tuple(seconds) if seconds else None


def _costs(run: PlannedRun, chips: Topology, seconds: tuple[float, float], terms: Terms, data: Data) -> Iterator[Line]:
    steps = run.config.train_steps or 0
    hours = list(hours_of_run(steps, seconds))
    price = prices.price(chips.name) if terms.price is None else terms.price
    data |= {"hours": hours, "chip_hours": [num_hours * chips.chips for num_hours in hours], "price": price}
    where = "this machine's CPU" if chips.platform == "cpu" else chips.name
    text = f"{steps:,} steps take {in_time(hours)} on {where}, {BESIDE}"
    text += f"; {in_range(data['chip_hours'])} chip-hours"
    if price is not None:
        data["dollars"] = [chip_hours * price for chip_hours in data["chip_hours"]]
        source = f"list price of {prices.DATE}" if terms.price is None else "as given"
        text += f", {in_range(data['dollars'], '$')} at ${price:g} a chip-hour ({source})"
    elif chips.platform != "cpu":
        text += f"; no list price is known for {chips.kind}: give --price=DOLLARS of a chip-hour"
    yield Line("ok", f"{text}.")
    if terms.days is None:
        return
    share = [num_hours / 24 / terms.days for num_hours in hours]
    data["share_of_days"] = share
    text = f"That is {share[0]:.0%} to {share[1]:.0%} of {terms.days:g} days"
    if share[0] > 1:
        most = max(1, int(steps / share[0]))
        yield Line("warning", f"{text}: the run does not end in them.", shorter(run.config, most), "too-long")
    elif share[1] > 1:
        most = max(1, int(steps / share[1]))
        text = f"{text}: the run may not end in them"
        yield Line("warning", f"{text}.", shorter(run.config, most), "may-be-too-long")
    else:
        yield Line("ok", f"{text}.")


def _lost(run: PlannedRun, seconds: tuple[float, float], evaluation_steps: float, data: Data) -> Iterator[Line]:
    """Yields when the first save and evaluation come, what both take, and what a preemption loses."""
    config = run.config
    steps = config.train_steps
    period = config.checkpoint.every_steps
    evaluated = config.evaluation.every_steps
    if not isinstance(period, int) or steps is None:
        return
    period = min(period, steps)
    middle = sum(seconds) / 2  # of a step
    lost = period * middle / 3600
    preemptions = PREEMPTIONS_A_DAY * steps * middle / 3600 / 24
    saves = steps // period + 1
    size = run.num_bytes
    saving = size / WRITTEN_A_SECOND / (period * middle)
    data["saving_share"] = saving
    data |= {"hours_lost_at_most": lost, "preemptions": preemptions, "checkpoint_traffic_bytes": saves * size}
    text = f"The first checkpoint comes after {in_time([lost])}"
    if isinstance(evaluated, int) and evaluated <= steps:
        share = evaluation_steps / (evaluation_steps + evaluated)
        data["evaluating_share"] = share
        text += f", the first evaluation after {in_time([evaluated * middle / 3600])}; evaluating takes {share:.1%}"
        text += " of the time"
    text += f"; {saves:,} saves write {size_text(saves * size)}, for {min(saving, 1):.1%} of it beside training"
    text += f". A preemption costs {in_time([lost])} of training or less and about {in_time([RESTART_HOURS])} of a new"
    text += f" start; at {PREEMPTIONS_A_DAY:g} a day (an assumption)"
    in_all = preemptions * (lost / 2 + RESTART_HOURS)  # on average half of a period is lost
    text += f" {preemptions:.1f} are expected, {in_time([in_all])} in all"
    an_hour = max(1, int(float(f"{3600 / middle:.1g}")))  # steps, as a round number
    if lost > MOST_LOST:
        yield Line("warning", f"{text}.", ("CheckpointConfig.every_steps", an_hour), "period-too-long")
    elif saving > MOST_SAVING and FREQUENT <= period < steps // FREQUENT:  # shorter periods have a warning of their own
        text = f"A checkpoint of {size_text(size)} every {period:,} steps is more than a host writes beside training"
        better = min(steps // FREQUENT, an_hour)
        yield Line("warning", f"{text}.", ("CheckpointConfig.every_steps", better), "saves-too-often")
    else:
        yield Line("ok", f"{text}.")


def _of_periods(config: RunConfig, evaluation_steps: float) -> Iterator[Line]:
    """Yields periods that a run of its length does not reach, and periods that take much of its time."""
    steps = config.train_steps
    if steps is None:
        return
    tenth = max(1, steps // 10)
    saved = config.checkpoint.every_steps
    evaluated = config.evaluation.every_steps
    if isinstance(saved, int) and saved > steps:
        text = f"CheckpointConfig.every_steps is {saved:,} of {steps:,} steps: nothing is saved before the end."
        yield Line("warning", text, ("CheckpointConfig.every_steps", tenth), "never-saves")
    elif isinstance(saved, int) and saved < FREQUENT and steps // saved > MANY_SAVES:
        text = f"CheckpointConfig.every_steps is {saved:,}: {steps // saved:,} saves, one every few steps."
        yield Line("warning", text, ("CheckpointConfig.every_steps", max(FREQUENT, tenth)), "saves-too-often")
    if not isinstance(evaluated, int):
        return
    if evaluated > steps:
        text = f"EvaluationConfig.every_steps is {evaluated:,} of {steps:,} steps: nothing is evaluated before the end."
        yield Line("warning", text, ("EvaluationConfig.every_steps", tenth), "never-evaluates")
        return
    share = evaluation_steps / (evaluation_steps + evaluated)
    if share > MOST_EVALUATING and steps // evaluated > 2:
        text = f"EvaluationConfig.every_steps is {evaluated:,}, and an evaluation takes as long as"
        text += f" {evaluation_steps:,.1f} steps: {share:.0%} of the time."
        better = min(int(evaluation_steps / WANTED_EVALUATING) + 1, max(steps // 2, 1))
        yield Line("warning", text, ("EvaluationConfig.every_steps", better), "evaluates-too-often")


def _tokens(run: PlannedRun, per_step: float, data: Data) -> Iterator[Line]:
    """Yields the tokens for each parameter; a run from scratch should have several."""
    steps = run.config.train_steps
    parameters = run.num_parameters
    if steps is None:
        return
    per_step = per_step or float(run.config.data.batch_size * sum(run.row_lengths))
    ratio = steps * per_step / parameters
    data["tokens_per_parameter"] = ratio
    text = f"{number(ratio)} tokens for each of {parameters:,} parameters"
    if ratio >= LEAST_TOKENS or parameters < LARGE or run.config.initial_checkpoint_path:
        yield Line("ok", f"{text}.")
        return
    wanted = int(WANTED_TOKENS * parameters / per_step) + 1
    fix = ("RunConfig.train_steps", wanted)
    yield Line("warning", f"{text}: so short a run from scratch learns next to nothing.", fix, "too-few-tokens")
