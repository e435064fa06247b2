"""What a run that does not fit can change: a device's memory with each remat policy, micro-batches and meshes.

All of it is arithmetic (`arithmetic.py`). Where the run's own step was compiled, each size is scaled by how far the
compiler's figure of that step is from the arithmetic's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from limba.api import PlannedRun
from limba.config import Fix, MeshConfig, Open, RunConfig
from limba.tools.preflight.compiled import arithmetic
from limba.tools.preflight.compiled.memory import size_in_words
from limba.tools.preflight.compiled.topologies import Topology

POLICIES = ("none", "minimal", "full")  # of remat, each with less memory and more time than the one before
MOST_MICROBATCHES = 64
MODEL_GROUPS = (1, 2, 4, 8)  # devices that share a matrix product; more than a host's seldom pay
MESHES_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Device:
    """One device of the chips that the run is planned for, and the bytes that a step may take of it."""

    chips: Topology
    limit: float
    scale: float = 1.0  # the compiler's bytes of the run's own step over the arithmetic's

    def bytes_of(self, run: PlannedRun, changed: RunConfig) -> float:
        """Returns the bytes that a step of the changed run takes."""
        return self.scale * arithmetic.memory(run, self.chips, changed).total

    def fits(self, run: PlannedRun, changed: RunConfig) -> bool:
        """Returns whether a step of the changed run fits."""
        return self.bytes_of(run, changed) <= self.limit


def table(config: RunConfig, device: Device) -> str:
    """Returns lines of text: the memory with each remat policy and number of micro-batches, and the meshes that fit.

    Each is the only change of the run. Micro-batches end with the first number that fits.
    """
    run = PlannedRun(config)
    lines = ["With one choice changed a device needs, by arithmetic:"]
    for policy in POLICIES:
        line = _line(f"ModelConfig.remat = {policy!r}", run, _with_policy(config, policy), device)
        if policy == config.model.remat:
            line += ", as it is"
        lines.append(line)
    for parts in _micro_batches(config, device.chips):
        if parts == config.num_microbatches:
            continue
        changed = dataclasses.replace(config, num_microbatches=parts)
        lines.append(_line(f"RunConfig.num_microbatches = {parts}", run, changed, device))
        if device.fits(run, changed):
            break
    lines.append(_meshes_line(run, device))
    return "\n".join(lines)


def that_fits(config: RunConfig, device: Device) -> list[Fix]:
    """Returns the changes that cost the least speed and fit; a smaller batch, as an open choice, where none does.

    Stronger remat comes before more micro-batches, and both before parameters that are shared by all devices.
    """
    run = PlannedRun(config)
    stronger = POLICIES[POLICIES.index(config.model.remat) :]
    for mesh in _own_and_shared_mesh(config, device.chips):
        in_mesh = dataclasses.replace(config, mesh=mesh)
        for parts in _micro_batches(in_mesh, device.chips):
            in_parts = dataclasses.replace(in_mesh, num_microbatches=parts)
            for policy in stronger:
                changed = _with_policy(in_parts, policy)
                if device.fits(run, changed):
                    return _differences(config, changed)
    return [("DataConfig.batch_size", Open("a smaller one, a smaller model, or more chips"))]


def _line(name: str, run: PlannedRun, changed: RunConfig, device: Device) -> str:
    line = f"  {name}: {size_in_words(device.bytes_of(run, changed))}"
    if device.fits(run, changed):
        line += ", fits"
    return line


def _meshes_line(run: PlannedRun, device: Device) -> str:
    """Returns one line with the meshes that fit; with remat full where none does with the run's own policy."""
    config = run.config
    full = _with_policy(config, "full")
    for changed, condition in ((config, ""), (full, " with ModelConfig.remat = 'full'")):
        fitting = []
        for mesh in _meshes(changed, device.chips):
            in_mesh = dataclasses.replace(changed, mesh=mesh)
            if device.fits(run, in_mesh):
                fitting.append(f"{_in_words(mesh)} ({size_in_words(device.bytes_of(run, in_mesh))})")
        if fitting:
            return f"  Meshes that fit{condition}: {', '.join(fitting[:MESHES_SHOWN])}"
    return "  No mesh of these devices fits, with any ModelConfig.remat"


def _meshes(config: RunConfig, chips: Topology) -> Iterator[MeshConfig]:
    """Yields the meshes over which the run's batch and heads divide, from the least sharding on."""
    if config.gradient_reduce_dtype != "auto":  # on other meshes XLA places the reductions
        return
    for model in MODEL_GROUPS:
        if chips.devices % model or config.model.num_heads % model:
            continue
        for fsdp in _divisors(chips.devices // model):
            mesh = dataclasses.replace(config.mesh, data=-1, fsdp=fsdp, model=model)
            if mesh.sizes(chips.devices) == config.mesh.sizes(chips.devices):
                continue
            if _divides(config, mesh, config.num_microbatches, chips):
                yield mesh


def _own_and_shared_mesh(config: RunConfig, chips: Topology) -> list[MeshConfig]:
    """Returns the run's mesh, and the one whose devices all share the parameters."""
    if chips.devices == 1 or config.gradient_reduce_dtype != "auto":
        return [config.mesh]
    return [config.mesh, dataclasses.replace(config.mesh, data=-1, fsdp=chips.devices, model=1)]


def _micro_batches(config: RunConfig, chips: Topology) -> Iterator[int]:
    """Yields the run's number of micro-batches and its doubles, while the batch divides into them."""
    parts = config.num_microbatches
    while parts <= MOST_MICROBATCHES and _divides(config, config.mesh, parts, chips):
        yield parts
        parts *= 2


def _divides(config: RunConfig, mesh: MeshConfig, parts: int, chips: Topology) -> bool:
    """Returns whether the run's batch divides into so many micro-batches over the groups of devices of a mesh."""
    data, fsdp, _ = mesh.sizes(chips.devices)
    return config.data.batch_size % (parts * data * fsdp) == 0


def _divisors(number: int) -> list[int]:
    """Returns the numbers that divide another one, from 1 on.

    >>> _divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    large = [number // divisor for divisor in reversed(small)]
    return list(dict.fromkeys(small + large))


def _with_policy(config: RunConfig, policy: str) -> RunConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, remat=policy))


def _differences(config: RunConfig, changed: RunConfig) -> list[Fix]:
    """Returns the fields that a changed run has other values of."""
    fixes: list[Fix] = []
    if changed.model.remat != config.model.remat:
        fixes.append(("ModelConfig.remat", changed.model.remat))
    if changed.num_microbatches != config.num_microbatches:
        fixes.append(("RunConfig.num_microbatches", changed.num_microbatches))
    for axis in ("data", "fsdp", "model"):
        size = getattr(changed.mesh, axis)
        if size != getattr(config.mesh, axis):
            fixes.append((f"MeshConfig.{axis}", size))
    return fixes


def _in_words(mesh: MeshConfig) -> str:
    """Returns the axes of a mesh that are not left to data, as they are typed.

    >>> _in_words(MeshConfig(fsdp=4)), _in_words(MeshConfig(fsdp=2, model=2)), _in_words(MeshConfig())
    ('MeshConfig.fsdp = 4', 'MeshConfig.fsdp = 2 with MeshConfig.model = 2', 'MeshConfig.fsdp = 1')
    """
    if mesh.model == 1:
        return f"MeshConfig.fsdp = {mesh.fsdp}"
    if mesh.fsdp == 1:
        return f"MeshConfig.model = {mesh.model}"
    return f"MeshConfig.fsdp = {mesh.fsdp} with MeshConfig.model = {mesh.model}"
