"""Training steps compiled by a process of their own: for CPUs here, for TPUs and cards where their compilers are."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from limba.config import MeshConfig, RunConfig, plain
from limba.preflight import compiler
from limba.preflight.compiled import mends, step
from tests.preflight import runs


@pytest.mark.slow
def test_the_verdict_of_one_device_names_memory_and_makes_no_promise(capfd: pytest.CaptureFixture) -> None:
    section = compiler.compiled(runs.run(runs.TINY, rows=4), "cpu-1")
    assert [line.level for line in section.lines] == ["ok"] * len(section.lines), section.lines
    texts = "\n".join(line.text for line in section.lines)
    for part in ("a device of the", "mesh data 1 x fsdp 1 x model 1", "Estimate, not a promise", "1 compilation"):
        assert part in texts, texts
    figures = section.data
    assert 0 < figures["state_bytes"] < figures["live_bytes"] < figures["limit_bytes"]
    assert figures["largest"][0]["bytes"] >= figures["largest"][-1]["bytes"] > 0
    low, high = figures["estimate"]["tokens_per_second"]
    assert 0 < low < high and figures["estimate"]["mfu"] is None
    assert any("coder" in each["where"] for each in figures["largest"]), figures["largest"]
    assert capfd.readouterr() == ("", "")  # what XLA prints stays in the process


@pytest.mark.slow
def test_several_devices_exchange_and_a_mesh_is_chosen_in_two_compilations() -> None:
    config = runs.run(runs.TINY, rows=8)
    alone = compiler.compiled(config, "cpu-2").data
    assert sum(alone["collective_bytes"].values()) > 0 and alone["mesh"] == [2, 1, 1]
    # The state of pure data parallelism fits half of what the step needs, so it is compiled, and passed over.
    gib = 0.9 * alone["live_bytes"] / 2**30
    auto = dataclasses.replace(config, mesh=MeshConfig(auto=True, memory_gib=gib))
    section = compiler.compiled(auto, "cpu-2")
    assert section.data["num_compiled"] == 2 and section.data["mesh"] == [1, 2, 1]
    assert "was passed over" in section.lines[1].text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "topology", "share", "mend"),
    [
        ({"vocab_size": 65536, "remat": "full"}, "cpu-4", 0.6, "MeshConfig.fsdp = 4"),
    ],
)
def test_a_run_that_does_not_fit_gets_a_mend_that_was_compiled_and_fits(
    what: dict, topology: str, share: float, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, lengths = (4, (32, 16)) if "vocab_size" in what else (32, (256, 64))
    mesh = MeshConfig(shard_update=False)
    config = runs.changed(runs.run(runs.TINY, rows=rows, lengths=lengths, mesh=mesh), **what)
    needed = compiler.compiled(config, topology).data["live_bytes"]
    monkeypatch.setattr(compiler, "limit_bytes", lambda wanted: share * needed)
    line = compiler.compiled(config, topology).lines[0]
    assert line.level == "error" and line.mend, line
    section = compiler.advice(config, topology, None)
    fitting = [each for each in section.data["mends"] if each.get("fits")]
    assert len(fitting) == 1 and any(mend in part for part in fitting[0]["mend"]), section.data
    assert fitting[0]["live_bytes"] <= share * needed
    assert any(line.mend == "\n".join(fitting[0]["mend"]) for line in section.lines)
    assert any("Not tried" in line.text for line in section.lines) or section.data["mends"][-1]["tried"]


@pytest.fixture
def compiled_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Compiles in this process, whose libraries are loaded, and not in a new one; each step once."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    kept: dict[str, dict] = {}

    def compiled(config: RunConfig, shapes: dict, topology: str) -> dict:
        asked = f"{topology} {plain.to_text(config)}"
        if asked not in kept:
            kept[asked] = step.figures(config, shapes, topology, str(tmp_path))
        return kept[asked]

    monkeypatch.setattr(compiler, "compiled_step", compiled)
    monkeypatch.setattr(mends, "compiled_step", compiled)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # a topology of CPUs sets it
    yield
    jax.config.update("jax_enable_compilation_cache", before)


@pytest.mark.slow
def test_arrays_of_the_backward_pass_that_do_not_fit_get_a_mend_that_was_compiled_and_fits(
    compiled_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"num_encoder_layers": 4, "num_decoder_layers": 4}  # scanned: their arrays are kept, or computed again
    config = runs.changed(runs.run(runs.TINY, rows=32, lengths=(128, 64)), remat="none", **layers)
    changed = runs.changed(config, remat="minimal")
    sizes = [compiler.compiled(run, "cpu-1").data["live_bytes"] for run in (config, changed)]
    assert sizes[1] < 0.9 * sizes[0]
    monkeypatch.setattr(compiler, "limit_bytes", lambda wanted: sum(sizes) / 2)
    line = compiler.compiled(config, "cpu-1").lines[0]
    assert line.level == "error" and line.mend, line
    section = compiler.advice(config, "cpu-1", None)
    (fitting,) = [each for each in section.data["mends"] if each.get("fits")]
    assert fitting["mend"] == ["ModelConfig.remat = 'minimal'"] and fitting["live_bytes"] == sizes[1]
    assert any(line.mend == "ModelConfig.remat = 'minimal'" for line in section.lines)


def test_the_documented_commands_of_the_figures_are_known() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.preflight", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and all(part in done.stdout for part in ("table", "memory", "start"))
