"""What a run says and writes of itself before its first step: on the console, in its log and in its records."""

import platform
import sys
from collections.abc import Iterator, Mapping

import jax

from limba import tool_registry
from limba.config import RunConfig, environment
from limba.config.schedule import AUTO, AUTO_STEPS
from limba.data import run_data
from limba.model.kernels.choose import unfit
from limba.sharding.consistency import installed
from limba.storage.files import as_typed_here
from limba.training.metrics.flops import flops_per_row, sides
from limba.training.metrics.logging import Metrics
from limba.training.metrics.records import LOG
from limba.training.start import Plan, write_config
from limba.training.state import TrainState, count_parameters

PROGRAMS = ("limba", "jax", "jaxlib", "flax", "optax", "tensorstore", "seqio", "tensorflow", "numpy", "libtpu")


def introduce(
    metrics: Metrics,
    config: RunConfig,
    gin_text: str,
    plan: Plan,
    lengths: Mapping[str, int],
    abstract: TrainState,
    start: int,
    num_devices: int,
) -> None:
    """Writes model_dir's config.json and config.gin, and says what the run is: on the console, in its log and records.

    `abstract` is the state without arrays, `start` the step that the run begins at.
    """
    num_parameters = count_parameters(abstract.params)
    if metrics.writes:
        write_config(config, gin_text, [stage.task for stage in plan.stages])
        truncation = run_data.truncation(plan.stages[0].task, lengths, config.data)
        for sentence, is_any_cut in truncation.items():
            if is_any_cut:
                metrics.say(sentence)
            else:
                metrics.detail(sentence)
    for sentence in (*plan.notes, *introduction(plan.planned, lengths, num_parameters, start)):
        metrics.say(sentence)
    for line in details(plan.planned, lengths, start):
        metrics.detail(line)
    metrics.record("start", start, facts(config, num_parameters, lengths, num_devices))


def introduction(config: RunConfig, lengths: Mapping[str, int], num_parameters: int, start: int) -> Iterator[str]:
    """Yields the sentences that introduce a run on the console before its first step."""
    devices = jax.devices()
    where = f"resumes at step {start:,}" if start else "starts"
    end = f"up to step {config.train_steps:,}" if config.train_steps else f"for {config.data.num_epochs} epochs"
    processes = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
    directory = as_typed_here(config.model_dir)
    machine = f"{len(devices)} x {devices[0].device_kind}{processes}"
    yield f"{directory} {where}, {end}: {num_parameters:,} parameters on {machine}"
    if sys.stdout.isatty():  # elsewhere the rows themselves are kept in a log
        yield f"all lines go to {directory}/{LOG}"
    reason = unfit(config.model, devices[0], keys=max(sides(config, lengths)))
    if reason:
        yield reason
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")  # None for the devices of a CPU
    check = tool_registry.find("check")
    if limit and check:
        yield from check.of_memory(config, devices, limit)
    schedule = config.optimizer.schedule
    if schedule.base_learning_rate == AUTO:
        steps = schedule.planned_steps or config.train_steps or 1
        least, most = AUTO_STEPS
        if not least <= steps <= most:
            yield (
                f"The highest learning rate is {schedule.in_steps(steps).base_learning_rate:.3g}, by 'auto' for"
                f" {steps:,} steps; its rule was found for {least:,} to {most:,} and is unproven here: see that |param|"
                " does not grow tenfold."
            )


def details(config: RunConfig, lengths: Mapping[str, int], start: int) -> Iterator[str]:
    """Yields the lines that follow the introduction in the log alone."""
    inputs, targets = sides(config, lengths)
    tokens = f"{inputs} inputs and {targets} targets" if inputs else f"{targets} tokens"
    predicted = config.data.num_predicted
    of_them = f", {config.data.batch_size * predicted:,} predicted at most" if predicted else ""
    yield f"A step has {config.data.batch_size} rows of {tokens}{of_them}."
    yield f"The text is read in {config.data.num_data_shards} data shards."
    schedule = config.optimizer.schedule
    if schedule.base_learning_rate == AUTO:
        steps = schedule.planned_steps or config.train_steps or 1
        yield f"The highest learning rate is {schedule.in_steps(steps).base_learning_rate:.3g}, by 'auto'."
    if config.train_steps is None or start < config.train_steps:
        yield "Compiling the step; the first line follows it."


def facts(config: RunConfig, num_parameters: int, lengths: Mapping[str, int], num_devices: int) -> dict[str, object]:
    """Returns the record of a start in metrics.jsonl: the sizes of the run, its devices, the versions of programs."""
    inputs, targets = sides(config, lengths)
    flops = flops_per_row(config, lengths) * config.data.batch_size
    return {
        "parameters": num_parameters,
        "rows_per_step": config.data.batch_size,
        "inputs_length": inputs,
        "targets_length": targets,
        "flops_per_step": flops,
        "environment": {
            "devices": f"{num_devices} x {jax.devices()[0].device_kind}",
            "processes": jax.process_count(),
            "cores of the first process": environment.num_cores(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "Python": platform.python_version(),
            **installed(PROGRAMS),
        },
    }
