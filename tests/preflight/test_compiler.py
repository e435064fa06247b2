"""Training steps compiled by a process of their own: for CPUs here, for TPUs and cards where their compilers are."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from limba.config import RunConfig, saved_config
from limba.tools.preflight.checks import compiler
from limba.tools.preflight.compiled import step
from limba.tools.preflight.compiled.memory import size_in_words
from limba.tools.preflight.compiled.topologies import topology
from tests import tiny
from tests.preflight import runs


@pytest.mark.slow
def test_the_verdict_of_one_device_names_memory_and_makes_no_promise(capfd: pytest.CaptureFixture) -> None:
    section = compiler.compiled(runs.run(runs.TINY, rows=4), topology("cpu-1"))
    assert [line.level for line in section.lines] == ["ok"] * len(section.lines), section.lines
    texts = "\n".join(line.text for line in section.lines)
    for part in ("a device of the", "mesh data 1 x fsdp 1 x model 1", "Estimate, not a promise", "Compiled for cpu-1"):
        assert part in texts, texts
    figures = section.data
    assert 0 < figures["state_bytes"] < figures["live_bytes"] < figures["limit_bytes"]
    assert figures["largest"][0]["bytes"] >= figures["largest"][-1]["bytes"] > 0
    low, high = figures["estimate"]["tokens_per_second"]
    assert 0 < low < high and figures["estimate"]["mfu"] is None
    assert any("coder" in figure["where"] for figure in figures["largest"]), figures["largest"]
    assert capfd.readouterr() == ("", "")  # what XLA prints stays in the process


@pytest.fixture
def compiled_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Compiles in this process, whose libraries are loaded, and not in a new one; each step once."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    kept: dict[str, dict] = {}

    def compiled(config: RunConfig, shapes: dict, name: str) -> dict:
        asked = f"{name} {saved_config.to_text(config)}"
        if asked not in kept:
            kept[asked] = step.figures(config, shapes, name, str(tmp_path))
        return kept[asked]

    monkeypatch.setattr(compiler, "compiled_step", compiled)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # a topology of CPUs sets it
    yield
    jax.config.update("jax_enable_compilation_cache", before)


@pytest.mark.night
def test_several_devices_exchange(compiled_here: None) -> None:
    figures = compiler.compiled(runs.run(runs.TINY, rows=8), topology("cpu-2")).data
    assert sum(figures["collective_bytes"].values()) > 0 and figures["mesh"] == [2, 1, 1]


@pytest.mark.night
@pytest.mark.parametrize(
    ("remat", "share", "field"),
    [("none", 0.8, "ModelConfig.remat"), ("full", 0.8, "RunConfig.num_microbatches")],
)
def test_the_printed_change_of_a_run_that_does_not_fit_fits_when_it_is_compiled(
    remat: str, share: float, field: str, compiled_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"num_encoder_layers": 4, "num_decoder_layers": 4}  # scanned: their arrays are kept, or computed again
    config = runs.changed(runs.run(runs.TINY, rows=32, lengths=(128, 64)), remat=remat, **layers)
    chips = topology("cpu-1")
    needed = compiler.compiled(config, chips).data["live_bytes"]
    monkeypatch.setattr(compiler, "limit_bytes", lambda _: share * needed)
    line = compiler.compiled(config, chips).lines[0]
    assert line.level == "error" and f"ModelConfig.remat = {remat!r}: {size_in_words(needed)}, as it is" in line.text
    fixes = dict(line.fix)
    assert next(iter(fixes)) == field, line
    fixed = runs.changed(config, remat=fixes.get("ModelConfig.remat", remat))
    fixed = dataclasses.replace(fixed, num_microbatches=fixes.get("RunConfig.num_microbatches", 1))
    assert compiler.compiled(fixed, chips).data["live_bytes"] <= share * needed


NEEDS_LIBTPU = "needs libtpu: bash launch/setup.sh tpu"


@pytest.mark.night
@pytest.mark.aot
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason=NEEDS_LIBTPU)
def test_the_printed_change_of_a_run_that_does_not_fit_a_tpu_is_taken_by_its_compiler() -> None:
    config = runs.changed(runs.run(runs.TINY, rows=16384), remat="full")
    line = compiler.compiled(config, topology("v5e-1")).lines[0]
    assert line.level == "error" and "ModelConfig.remat = 'full'" in line.text, line
    ((field, parts),) = line.fix
    assert field == "RunConfig.num_microbatches"
    fixed = compiler.compiled(dataclasses.replace(config, num_microbatches=parts), topology("v5e-1"))
    assert fixed.data["fits"] and fixed.lines[0].level == "ok"


@pytest.mark.parametrize(
    ("name", "chosen", "compiled"),
    [(chips, chosen, True) for chips in ("v4-8", "cpu-1") for chosen in (None, True, False)]
    + [("h100-1", None, None), ("h100-1", True, True), ("h100-1", False, None)],
)
def test_cards_compile_what_runs_there_and_others_a_scan(name: str, chosen: bool | None, compiled: bool | None) -> None:
    config = runs.run(tiny.model(scan_layers=chosen), rows=4)
    wanted = topology(name)
    assert compiler.stand_in(config, wanted).model.scan_layers is compiled


@pytest.mark.slow
def test_the_documented_commands_of_the_figures_are_known() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.preflight", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and all(part in done.stdout for part in ("table", "start", "verdict"))
