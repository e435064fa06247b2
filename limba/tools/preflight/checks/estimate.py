"""What arithmetic says of a run on given chips before anything is compiled: whether it divides, and fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

from limba.api import PlannedRun
from limba.config import ConfigError, Fix, Open, RunConfig
from limba.tools.preflight.checks.findings import gathered
from limba.tools.preflight.checks.verdict import Data, Line, Section
from limba.tools.preflight.compiled import instant
from limba.tools.preflight.compiled.memory import size_in_words
from limba.tools.preflight.compiled.topologies import Topology, limit_bytes

TITLE = "Estimate"
ERROR = 1.15  # the estimate may be off by as much
MOST_MICROBATCHES = 64
OF_ONE_MACHINE = ("/tmp", "/var/tmp", "/dev/shm", "/scratch/local")  # each host has its own


def estimate(config: RunConfig, chips: Topology, is_compiled: bool) -> Section:
    """Returns the section by arithmetic alone; where the step is compiled after it, memory is only said here."""
    problems = list(divides(config, chips))
    return gathered(
        TITLE,
        lambda _: problems,
        lambda _: shared_directory(config, chips),
        lambda data: () if problems else memory_lines(config, chips, is_compiled, data),
    )


def divides(config: RunConfig, chips: Topology) -> Iterator[Line]:
    """Yields one error where mesh, batch, micro-batches, shards and hosts do not divide, with a fix for all of them."""
    try:
        data, fsdp, _ = config.mesh.sizes(chips.devices)
    except ConfigError as error:
        yield Line("error", str(error), _mesh_that_divides(config, chips.devices), "mesh-does-not-divide")
        return
    shards, hosts, batch = config.data.num_data_shards or 1, chips.hosts, config.data.batch_size
    parts, groups = config.num_microbatches, data * fsdp
    needed, said = parts * groups, []
    if batch % needed:
        said.append(
            f"DataConfig.batch_size is {batch}, which does not divide into RunConfig.num_microbatches {parts} parts"
            f" over the {groups} groups of devices of {chips.name}"
        )
    if shards % hosts:
        said.append(f"DataConfig.num_data_shards is {shards}, which {hosts} hosts cannot share evenly")
    if not said:
        return
    fitting = [each for each in range(hosts, batch + 1, hosts) if batch % each == 0 and batch % needed == 0]
    if shards % hosts == 0:
        fixes: list[Fix] = [("DataConfig.batch_size", _near(batch, math.lcm(needed, shards)))]
    elif fitting:
        fixes = [("DataConfig.num_data_shards", next((each for each in fitting if each >= shards), fitting[-1]))]
    else:
        number = -(-shards // hosts) * hosts
        rows = _near(batch, math.lcm(needed, number))
        fixes = [("DataConfig.num_data_shards", number), ("DataConfig.batch_size", rows)]
    yield Line("error", f"{'; '.join(said)}.", fixes, "does-not-divide")


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
    place = config.model_dir
    if chips.hosts == 1 or "://" in place:
        return
    text = f"RunConfig.model_dir is {place}, and {chips.name} has {chips.hosts} hosts, which must all see it"
    fix = ("RunConfig.model_dir", Open("gs://bucket/name, or a disk that all hosts see"))
    if str(Path(place).expanduser().absolute()).startswith(tuple(f"{each}/" for each in OF_ONE_MACHINE)):
        yield Line("error", f"{text}: each machine has its own {place}.", fix, "directory-not-shared")
    elif chips.platform == "tpu":
        yield Line("warning", f"{text}: hosts of a TPU share no disk of their own.", fix, "directory-not-shared")
    else:
        yield Line("ok", f"{text}.")


def memory_lines(config: RunConfig, chips: Topology, is_compiled: bool, data: Data) -> Iterator[Line]:
    """Yields memory by arithmetic beside what a device has, and the largest batch; the seconds of a step as figures."""
    run, limit = PlannedRun(config), limit_bytes(chips)
    found = instant.memory(run, chips, config)
    most = instant.largest_batch(run, chips, limit, config)
    data |= {"topology": chips.name, "limit_bytes": limit, "live_bytes": found.total, "largest_batch": most}
    seconds = instant.seconds_per_step(run, chips)
    data |= dataclasses.asdict(found) | {"seconds_per_step": seconds}
    parts = ", ".join(f"{name} {size_in_words(size)}" for name, size in dataclasses.asdict(found).items())
    text = f"By arithmetic a device of {chips.name} needs {size_in_words(found.total)} of {size_in_words(limit)}"
    text += f" ({parts}); at most {most:,} rows fit"
    text += f", and a step takes {seconds[0]:.2g} s at least" if seconds else ""
    if found.total <= limit or is_compiled:
        yield Line("ok", f"{text}.")
    else:
        level = "error" if found.total > ERROR * limit else "warning"
        yield Line(level, f"{text}.", _that_fits(run, config, chips, limit), "does-not-fit")
    if found.total > limit:
        yield _meshes_that_fit(run, chips, limit)


def _meshes_that_fit(run: PlannedRun, chips: Topology, limit: float) -> Line:
    """Returns the line with all meshes of these chips on which the run, unchanged but for the mesh, fits."""
    found = []
    for mesh in run.meshes(chips.devices):
        data, fsdp, model = mesh.sizes(chips.devices)
        if run.config.data.batch_size % (run.config.num_microbatches * data * fsdp):
            continue
        needed = instant.memory(run, chips, dataclasses.replace(run.config, mesh=mesh)).total
        if needed <= limit:
            found.append(f"data {data} x fsdp {fsdp} x model {model} ({size_in_words(needed)} a device)")
    if not found:
        return Line("ok", f"By arithmetic no mesh of the {chips.devices} devices of {chips.name} fits.")
    return Line("ok", f"Meshes that fit by arithmetic: {', '.join(found)}.")


def _that_fits(run: PlannedRun, config: RunConfig, chips: Topology, limit: float) -> list[Fix]:
    """Returns the least change that fits: remat, micro-batches, then parameters shared by all devices."""
    remats = {"none": ("minimal", "full"), "minimal": ("full",)}.get(config.model.remat, ())
    shared = dataclasses.replace(config.mesh, data=-1, fsdp=chips.devices, model=1)
    meshes = [config.mesh, *([shared] if chips.devices > 1 else [])]
    for mesh in meshes:
        groups = math.prod(mesh.sizes(chips.devices)[:2])
        for parts in (config.num_microbatches << power for power in range(MOST_MICROBATCHES.bit_length())):
            if config.data.batch_size % (parts * groups):
                break
            for remat in (config.model.remat, *remats):
                model = dataclasses.replace(config.model, remat=remat)
                changed = dataclasses.replace(config, mesh=mesh, model=model, num_microbatches=parts)
                if instant.memory(run, chips, changed).total <= limit:
                    fixes: list[Fix] = [("ModelConfig.remat", remat)] if remat != config.model.remat else []
                    fixes += [("RunConfig.num_microbatches", parts)] if parts != config.num_microbatches else []
                    return fixes + ([("MeshConfig.fsdp", mesh.fsdp)] if mesh.fsdp != config.mesh.fsdp else [])
    return [("DataConfig.batch_size", Open("a smaller one, a smaller model, or more chips"))]
