"""Training steps compiled by a process of their own: for CPUs here, for TPUs and cards where their compilers are."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from limba.config import DataConfig, EvaluationConfig, MeshConfig, RunConfig, plain
from limba.run import train
from limba.tools.preflight.checks import compiler
from limba.tools.preflight.compiled import changes, step
from limba.tools.preflight.compiled.memory import size_in_words
from tasks import demo  # noqa: F401  registers the task
from tests import tiny
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


@pytest.mark.night
def test_several_devices_exchange_and_their_mesh_is_told() -> None:
    config = runs.run(runs.TINY, rows=8)
    alone = compiler.compiled(config, "cpu-2").data
    assert sum(alone["collective_bytes"].values()) > 0 and alone["mesh"] == [2, 1, 1]


@pytest.mark.night
@pytest.mark.parametrize(
    ("what", "topology", "share", "fix"),
    [
        ({"vocab_size": 65536, "remat": "full"}, "cpu-4", 0.6, ("MeshConfig.fsdp", 4)),
    ],
)
def test_a_run_that_does_not_fit_gets_a_fix_that_was_compiled_and_fits(
    what: dict, topology: str, share: float, fix: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, lengths = (4, (32, 16)) if "vocab_size" in what else (32, (256, 64))
    mesh = MeshConfig(shard_update=False)
    config = runs.changed(runs.run(runs.TINY, rows=rows, lengths=lengths, mesh=mesh), **what)
    needed = compiler.compiled(config, topology).data["live_bytes"]
    monkeypatch.setattr(compiler, "limit_bytes", lambda wanted: share * needed)
    line = compiler.compiled(config, topology).lines[0]
    assert line.level == "error" and line.fix, line
    section = compiler.advice(config, topology, None)
    fitting = [each for each in section.data["changes"] if each.get("fits")]
    assert len(fitting) == 1 and fix in fitting[0]["fix"], section.data
    assert fitting[0]["live_bytes"] <= share * needed
    assert any(line.fix == list(fitting[0]["fix"]) for line in section.lines)
    assert any("Not tried" in line.text for line in section.lines) or section.data["changes"][-1]["tried"]


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
    monkeypatch.setattr(changes, "compiled_step", compiled)
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))  # a topology of CPUs sets it
    yield
    jax.config.update("jax_enable_compilation_cache", before)


@pytest.mark.night
@pytest.mark.parametrize(
    ("remat", "fix", "name"),
    [
        ("none", ("ModelConfig.remat", "minimal"), "remat minimal"),
        ("full", ("RunConfig.num_microbatches", 2), "2 micro-batches"),
    ],
)
def test_arrays_of_the_backward_pass_that_do_not_fit_get_a_fix_that_was_compiled_and_fits(
    remat: str, fix: tuple, name: str, compiled_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"num_encoder_layers": 4, "num_decoder_layers": 4}  # scanned: their arrays are kept, or computed again
    config = runs.changed(runs.run(runs.TINY, rows=32, lengths=(128, 64)), remat=remat, **layers)
    changed = runs.changed(config, remat="minimal")
    if remat == "full":
        changed = dataclasses.replace(config, num_microbatches=2)
    sizes = [compiler.compiled(run, "cpu-1").data["live_bytes"] for run in (config, changed)]
    assert sizes[1] < 0.9 * sizes[0]
    monkeypatch.setattr(compiler, "limit_bytes", lambda wanted: sum(sizes) / 2)
    line = compiler.compiled(config, "cpu-1").lines[0]
    assert line.level == "error" and line.fix == fix, line
    section = compiler.advice(config, "cpu-1", None)
    (fitting,) = [each for each in section.data["changes"] if each.get("fits")]
    assert fitting["fix"] == (fix,) and fitting["live_bytes"] == sizes[1]
    (said,) = [line for line in section.lines if line.fix == [fix]]
    memory = f"fits, {size_in_words(sizes[1])} a device of {size_in_words(sum(sizes) / 2)}"
    assert said.text == f"{name}: {memory} ({size_in_words(sizes[0])} before)."


@pytest.mark.night
def test_a_real_run_on_the_same_devices_replaces_the_estimate(
    compiled_here: None, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"vocab_size": 384, "emb_dim": 32, "num_heads": 2, "mlp_dim": 64}
    data = DataConfig(
        "demo_span_corruption", {"inputs": 32}, batch_size=8, vocabulary="byte", data_files=str(corpus),
        num_data_shards=4,
    )  # fmt: skip
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    schedule = {"train_steps": 6, "log_every_steps": 2, "evaluation": EvaluationConfig(every_steps=100, num_batches=1)}
    config = RunConfig(tiny.model(**small, **layers), data, str(tmp_path / "run"), **schedule)
    train(config)
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    speeds = sorted(each["tokens_per_second"] for each in logged if each["kind"] == "train")
    section = compiler.compiled(config, "cpu-8", calibrate=config.model_dir)
    low, high = section.data["estimate"]["tokens_per_second"]
    assert low < speeds[len(speeds) // 2] < high and high / low == pytest.approx(1.15 / 0.85, rel=0.02)
    (said,) = [line.text for line in section.lines if "tokens a second" in line.text]
    assert said.startswith("By a measured run, not a promise")
    assert (
        f"the run in {config.model_dir} had (median of {len(speeds)} logged lines)" in section.data["estimate"]["made"]
    )


NEEDS_LIBTPU = "needs libtpu: bash launch/setup.sh tpu"


@pytest.mark.aot
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason=NEEDS_LIBTPU)
def test_micro_batches_are_compiled_for_a_tpu_that_a_step_does_not_fit() -> None:
    config = runs.changed(runs.run(runs.TINY, rows=16384), remat="full")
    line = compiler.compiled(config, "v5e-1").lines[0]
    assert line.level == "error" and line.fix == ("RunConfig.num_microbatches", 2), line
    section = compiler.advice(config, "v5e-1", 5.0)
    (fitting,) = [each for each in section.data["changes"] if each.get("fits")]
    assert fitting["fix"] == (line.fix,) and 0 < fitting["live_bytes"] < 15.75 * 2**30
    assert any(each.fix == [line.fix] and "fits, " in each.text and "GiB" in each.text for each in section.lines)


@pytest.mark.parametrize(
    ("name", "chosen", "compiled"),
    [(place, chosen, True) for place in ("v4-8", "cpu-1") for chosen in (None, True, False)]
    + [("h100-1", None, None), ("h100-1", True, True), ("h100-1", False, None)],
)
def test_cards_compile_what_runs_there_and_others_a_scan(name: str, chosen: bool | None, compiled: bool | None) -> None:
    config, wanted = runs.run(tiny.model(scan_layers=chosen), rows=4), compiler.topology(name)
    assert compiler.stand_in(config, wanted).model.scan_layers is compiled


def test_the_documented_commands_of_the_figures_are_known() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks.preflight", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and all(part in done.stdout for part in ("table", "memory", "start", "verdict"))
