"""What arithmetic says about a run on given chips before anything is compiled: whether it divides, and fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from limba.api import PlannedRun
from limba.config import ConfigError, Fix, Open, RunConfig
from limba.tools.preflight.checks.findings import gathered
from limba.tools.preflight.checks.verdict import Data, Line, Section
from limba.tools.preflight.compiled import arithmetic, changes
from limba.tools.preflight.compiled.memory import size_in_words
from limba.tools.preflight.compiled.topologies import Topology, limit_bytes

TITLE = "Estimate"
HOURS_OF_A_CPU = 31 * 24  # a run that takes longer on a CPU is meant for other chips
ERROR = 1.15  # the estimate of memory may be off by this factor
OF_ONE_MACHINE = ("/tmp/", "/var/tmp/", "/dev/shm/", "/scratch/local/")  # each host has its own


def estimate(config: RunConfig, chips: Topology, is_compiled: bool) -> Section:
    """Returns the section by arithmetic alone; where the step is compiled after it, memory is only said here."""
    problems = list(divides(config, chips))
    return gathered(
        TITLE,
        lambda _: problems,
        lambda _: shared_directory(config, chips),
        lambda data: () if problems else memory_lines(config, chips, is_compiled, data),
    )


def on_this_cpu(config: RunConfig, chips: Topology) -> Section | None:
    """Returns the figures of a run that this machine's CPU can do in a month; None for a larger one."""
    section = estimate(config, chips, False)
    seconds = section.data.get("seconds_per_step")
    if not seconds or any(line.level != "ok" for line in section.lines):
        return None
    hours = (config.train_steps or 0) * seconds[0] / 3600
    return section if hours <= HOURS_OF_A_CPU else None


def divides(config: RunConfig, chips: Topology) -> Iterator[Line]:
    """Yields one error where mesh, batch, micro-batches, shards and hosts do not divide, with a fix for all of them."""
    try:
        data, fsdp, _ = config.mesh.sizes(chips.devices)
    except ConfigError as error:
        yield Line("error", str(error), _mesh_that_divides(config, chips.devices), "mesh-does-not-divide")
        return
    groups = data * fsdp
    parts = config.num_microbatches
    needed = parts * groups
    batch = config.data.batch_size
    shards = config.data.num_data_shards or 1
    said = []
    if batch % needed:
        said.append(
            f"DataConfig.batch_size is {batch}, which does not divide into RunConfig.num_microbatches {parts} parts"
            f" over the {groups} groups of devices of {chips.name}"
        )
    if shards % chips.hosts:
        said.append(f"DataConfig.num_data_shards is {shards}, which {chips.hosts} hosts cannot share evenly")
    if said:
        yield Line("error", f"{'; '.join(said)}.", _that_divides(batch, shards, needed, chips.hosts), "does-not-divide")


def _that_divides(batch: int, shards: int, needed: int, hosts: int) -> list[Fix]:
    """Returns a batch and shards near the run's: the batch is a multiple of `needed` and of the shards."""
    if shards % hosts == 0:
        return [("DataConfig.batch_size", _near(batch, math.lcm(needed, shards)))]
    if batch % needed == 0:  # other shards alone may do
        fitting = [number for number in range(hosts, batch + 1, hosts) if batch % number == 0]
        if fitting:
            not_fewer = [number for number in fitting if number >= shards]
            return [("DataConfig.num_data_shards", not_fewer[0] if not_fewer else fitting[-1])]
    number = math.ceil(shards / hosts) * hosts
    rows = _near(batch, math.lcm(needed, number))
    return [("DataConfig.num_data_shards", number), ("DataConfig.batch_size", rows)]


def _near(number: int, step: int) -> int:
    """Returns the multiple of a step that is nearest to a number, at least one.

    >>> _near(24, 16), _near(3, 16)
    (32, 16)
    """
    return max(1, round(number / step)) * step


def _mesh_that_divides(config: RunConfig, devices: int) -> list[Fix]:
    """Returns the sizes next to the run's that these devices can make."""
    model = math.gcd(config.mesh.model, devices)
    fsdp = math.gcd(config.mesh.fsdp, devices // model)
    sizes = {"data": -1, "fsdp": fsdp, "model": model}
    return [(f"MeshConfig.{name}", size) for name, size in sizes.items() if getattr(config.mesh, name) != size]


def shared_directory(config: RunConfig, chips: Topology) -> Iterator[Line]:
    """Yields what is wrong with a directory of one machine for several hosts, which all write their part to it."""
    directory = config.model_dir
    if chips.hosts == 1 or "://" in directory:
        return
    text = f"RunConfig.model_dir is {directory}, and {chips.name} has {chips.hosts} hosts, which must all see it"
    fix = ("RunConfig.model_dir", Open("gs://bucket/name, or a disk that all hosts see"))
    if str(Path(directory).expanduser().absolute()).startswith(OF_ONE_MACHINE):
        yield Line("error", f"{text}: each machine has its own {directory}.", fix, "directory-not-shared")
    elif chips.platform == "tpu":
        yield Line("warning", f"{text}: hosts of a TPU share no disk of their own.", fix, "directory-not-shared")
    else:
        yield Line("ok", f"{text}.")


def memory_lines(config: RunConfig, chips: Topology, is_compiled: bool, data: Data) -> Iterator[Line]:
    """Yields memory by arithmetic beside what a device has, and the largest batch; the seconds of a step as figures.

    Where it does not fit, and nothing is compiled that says so, the line has what other choices need.
    """
    run = PlannedRun(config)
    limit = limit_bytes(chips)
    memory = arithmetic.memory(run, chips)
    most = arithmetic.largest_batch(run, chips, limit)
    seconds = arithmetic.seconds_per_step(run, chips)
    data |= {"topology": chips.name, "limit_bytes": limit, "live_bytes": memory.total, "largest_batch": most}
    data |= dataclasses.asdict(memory)
    data["seconds_per_step"] = seconds
    parts = ", ".join(f"{name} {size_in_words(size)}" for name, size in dataclasses.asdict(memory).items())
    text = f"By arithmetic a device of {chips.name} needs {size_in_words(memory.total)} of {size_in_words(limit)}"
    text += f" ({parts}); at most {most:,} rows fit"
    if seconds:
        text += f", and a step takes {seconds[0]:.2g} s at least"
    if memory.total <= limit or is_compiled:
        yield Line("ok", f"{text}.")
        return
    level = "error" if memory.total > ERROR * limit else "warning"
    device = changes.Device(chips, limit)
    text = f"{text}.\n{changes.table(config, device)}"
    yield Line(level, text, changes.that_fits(config, device), "does-not-fit")
