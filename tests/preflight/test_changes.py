"""What is printed for a run that does not fit: the memory of each choice, and a fix that fits."""

from __future__ import annotations

import dataclasses
import re

import pytest

from limba.api import PlannedRun
from limba.config import MeshConfig, RunConfig
from limba.config.errors import Open
from limba.tools.preflight.checks import compiler, estimate, start
from limba.tools.preflight.compiled import arithmetic, changes
from limba.tools.preflight.compiled.memory import size_in_words
from limba.tools.preflight.compiled.topologies import limit_bytes, topology
from tests.preflight import runs

GIB = 2**30
CHIPS = topology("v5e-8")
NAMES = {"ModelConfig.remat": "REMAT", "RunConfig.num_microbatches": "NUM_MICROBATCHES"}


def run_of(rows: int = 512, **changed: object) -> RunConfig:
    return dataclasses.replace(runs.changed(runs.run(rows=rows), remat="none"), **changed)


def bytes_of(config: RunConfig) -> float:
    return arithmetic.memory(PlannedRun(config), CHIPS).total


def applied(config: RunConfig, fixes: list[tuple[str, object]]) -> RunConfig:
    """Returns the run with the fixes as a user types them."""
    fix_values = dict(fixes)
    axes = {
        axis: fix_values.get(f"MeshConfig.{axis}", getattr(config.mesh, axis)) for axis in ("data", "fsdp", "model")
    }
    changed = runs.changed(config, remat=fix_values.get("ModelConfig.remat", config.model.remat))
    parts = fix_values.get("RunConfig.num_microbatches", config.num_microbatches)
    return dataclasses.replace(changed, num_microbatches=parts, mesh=dataclasses.replace(config.mesh, **axes))


def test_a_run_that_does_not_fit_gets_the_memory_of_each_policy_and_of_micro_batches() -> None:
    config = run_of()
    sizes = [bytes_of(runs.changed(config, remat=policy)) for policy in changes.POLICIES]
    assert sizes[0] > sizes[1] > sizes[2]
    device = changes.Device(CHIPS, (sizes[1] + sizes[2]) / 2)
    lines = changes.table(config, device).splitlines()
    assert lines[1:4] == [
        f"  ModelConfig.remat = 'none': {size_in_words(sizes[0])}, as it is",
        f"  ModelConfig.remat = 'minimal': {size_in_words(sizes[1])}",
        f"  ModelConfig.remat = 'full': {size_in_words(sizes[2])}, fits",
    ]
    *too_large, fitting = lines[4:-1]  # they end with the first that fits
    for power, line in enumerate([*too_large, fitting], 1):
        parts = 2**power
        size = bytes_of(dataclasses.replace(config, num_microbatches=parts))
        fits = ", fits" if line == fitting else ""
        assert line == f"  RunConfig.num_microbatches = {parts}: {size_in_words(size)}{fits}"
        assert (size <= device.limit) == (line == fitting)
    assert too_large


def test_the_finding_has_the_table_in_the_words_of_the_gin_file_and_a_log_has_its_first_line() -> None:
    config = run_of(rows=1 << 17)
    (line,) = estimate.memory_lines(config, CHIPS, False, {})
    assert line.level == "error" and line.code == "does-not-fit"
    worded = estimate.Section("Estimate", [line]).worded(NAMES).lines[0]
    assert "\n  REMAT = 'minimal': " in worded.text and "\n  NUM_MICROBATCHES = 2: " in worded.text
    said = start.of_memory(config, [Chip()] * 8, CHIPS.gib * GIB)
    assert (
        len(said) == 1 and "\n" not in said[0].partition(" Fix: ")[0] and "ModelConfig.remat = 'minimal'" not in said[0]
    )


class Chip:
    """A device as jax has it."""

    device_kind = "TPU v5e"
    platform = "tpu"
    process_index = 0


@pytest.mark.parametrize("share", [0.9, 0.6, 0.3, 0.1])
def test_the_fix_fits_and_costs_no_more_than_it_must(share: float) -> None:
    config = run_of()
    device = changes.Device(CHIPS, share * bytes_of(config))
    fixes = changes.that_fits(config, device)
    fixed = applied(config, fixes)
    assert bytes_of(fixed) <= device.limit and list(estimate.divides(fixed, CHIPS)) == []
    for number in range(len(fixes)):  # without one of its lines it does not fit
        assert bytes_of(applied(config, fixes[:number] + fixes[number + 1 :])) > device.limit


def test_the_fix_is_the_weakest_policy_then_micro_batches() -> None:
    config = run_of()
    _, minimal, full = (bytes_of(runs.changed(config, remat=policy)) for policy in changes.POLICIES)
    halves = bytes_of(dataclasses.replace(config, num_microbatches=2))
    assert full < halves < minimal
    assert changes.that_fits(config, changes.Device(CHIPS, minimal)) == [("ModelConfig.remat", "minimal")]
    assert changes.that_fits(config, changes.Device(CHIPS, halves)) == [("ModelConfig.remat", "full")]
    both = [("ModelConfig.remat", "full"), ("RunConfig.num_microbatches", 2)]
    assert changes.that_fits(config, changes.Device(CHIPS, 0.99 * full)) == both


def test_a_batch_ends_the_micro_batches_that_are_tried() -> None:
    config = run_of(rows=24)  # which 16 parts, or 2 on each of 8 devices, do not divide
    for chips, parts in ((topology("v5e-1"), [2, 4, 8]), (CHIPS, [])):
        device = changes.Device(chips, 1.0)
        matches = re.findall(r"num_microbatches = (\d+)", changes.table(config, device))
        assert [int(match) for match in matches] == parts
        assert changes.that_fits(config, device)[0][0] == "DataConfig.batch_size"


def test_a_state_that_is_too_large_is_shared_by_all_devices_and_at_last_the_batch_is_open() -> None:
    model = dataclasses.replace(runs.SMALL, vocab_size=1 << 17)
    config = run_of(model=model, mesh=MeshConfig(shard_update=False))
    state = PlannedRun(config).num_bytes
    fixes = changes.that_fits(config, changes.Device(CHIPS, 0.8 * state))
    assert ("MeshConfig.fsdp", 8) in fixes
    ((field, value),) = changes.that_fits(config, changes.Device(CHIPS, state / 100))
    assert field == "DataConfig.batch_size" and isinstance(value, Open)
    assert "No mesh of these devices fits" in changes.table(config, changes.Device(CHIPS, state / 100))


def test_the_meshes_that_are_printed_divide_and_fit_and_others_do_not() -> None:
    config = run_of(model=dataclasses.replace(runs.SMALL, vocab_size=1 << 17, num_heads=4), rows=64)
    device = changes.Device(CHIPS, 0.7 * bytes_of(config))
    *_, line = changes.table(config, device).splitlines()
    assert line.startswith("  Meshes that fit: ")
    printed = re.findall(r"((?:MeshConfig\.\w+ = \d+(?: with )?)+) \(([^)]*)\)", line)
    assert printed
    named = set()
    for axes, size in printed:
        mesh = MeshConfig(**{axis: int(number) for axis, number in re.findall(r"MeshConfig\.(\w+) = (\d+)", axes)})
        changed = dataclasses.replace(config, mesh=mesh)
        named.add((mesh.fsdp, mesh.model))
        assert list(estimate.divides(changed, CHIPS)) == []
        assert bytes_of(changed) <= device.limit and size == size_in_words(bytes_of(changed))
    for fsdp, model in [(1, 2), (2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (2, 4), (1, 4)]:
        changed = dataclasses.replace(config, mesh=MeshConfig(fsdp=fsdp, model=model))
        assert (bytes_of(changed) <= device.limit) == ((fsdp, model) in named), (fsdp, model)
    assert not any(model == 8 for _, model in named)  # the run has 4 heads
    reduced = dataclasses.replace(config, gradient_reduce_dtype="bfloat16")  # which wants data parallelism alone
    assert "No mesh" in changes.table(reduced, device)


def test_what_a_compiler_has_counted_sets_the_sizes_of_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler refuses a step that arithmetic would take."""
    limit = limit_bytes(CHIPS)
    config = run_of(rows=int(512 * 0.9 * limit / bytes_of(run_of())) // 8 * 8)
    needed = int(1.05 * limit)
    scale = needed / bytes_of(config)
    assert 1 < scale < 1.5
    program = {"fits": False, "live_bytes": needed, "largest": [], "mesh": [8, 1, 1], "state_bytes": 1 << 28}
    program |= {"seconds": 1.0, "cpu_seconds": 1.0}
    monkeypatch.setattr(compiler, "compiled_step", lambda *_: program)
    line = compiler.compiled(config, CHIPS).lines[0]
    assert line.level == "error" and f"ModelConfig.remat = 'none': {size_in_words(needed)}, as it is\n" in line.text
    minimal = scale * bytes_of(runs.changed(config, remat="minimal"))
    assert f"ModelConfig.remat = 'minimal': {size_in_words(minimal)}" in line.text
    assert scale * bytes_of(applied(config, line.fix)) <= compiler.TIGHT * limit
