"""What is read from compilers' texts, and made of figures; nothing is compiled."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from limba.config import InputError, MeshConfig
from limba.tools.preflight.checks import compiler
from limba.tools.preflight.compiled import arithmetic, memory, nvidia, process, speed, step, topologies
from tests.preflight import runs

# As libtpu writes them, shortened.
LIVE_RANGE = """HloLiveRange (max 4):
  BufferLiveRange:
    x.1{}:0-4
  Live ranges at 3 (peak):
    fusion.7{}: 3000 bytes (cumulative: 3000 bytes)
    while.2{1}: 2000 bytes (cumulative: 3000 bytes)
    fusion.8{}: 5000 bytes (cumulative: 8000 bytes)
    x.1{}: 4000 bytes (cumulative: 12000 bytes)
  Stack trace breakdown for peak usage: 12 000 bytes
    main.1 (100.0%, total: 12 000 bytes)
"""
PROGRAM = """HloModule jit_train_step, is_scheduled=true

%body (arg: f32[8]) -> f32[8] {
  %arg = f32[8]{0} parameter(0)
  ROOT %fusion.8 = bf16[12,8,64]{2,1,0} fusion(%arg), metadata={op_name="jit(train_step)/transpose(jvp(Transformer))/Transformer.encode/encoder/while/body/mlp/wi_0/dot_general" source_line=3}
}

ENTRY %main (x.1: f32[8]) -> f32[8] {
  %x.1 = f32[1000]{0} parameter(0), metadata={op_name="state.params['token_embedder']['embedding']"}
  %while.2 = (s32[]{:T(128)}, f32[2,250]{1,0:T(8,128)}) while(%t), metadata={op_name="jit(train_step)/jvp(Transformer)/encoder/while"}
  %fusion.7 = f32[750]{0} fusion(%x.1), calls=%c, metadata={op_name="jit(train_step)/jvp(Transformer)/decoder/logits_dense/dot_general"}
}
"""  # noqa: E501


def test_the_largest_arrays_have_names_of_the_network(tmp_path: Path) -> None:
    (tmp_path / "module_0001.jit_train_step.x.after_optimizations-live-range.txt").write_text(LIVE_RANGE)
    arrays = memory.largest(str(tmp_path), PROGRAM)
    assert [array["bytes"] for array in arrays] == [5000, 4000, 3000, 2000]
    assert [array["where"] for array in arrays] == [
        "encoder/mlp/wi_0/dot_general",
        "params/token_embedder/embedding",
        "decoder/logits_dense/dot_general",
        "encoder",
    ]
    assert [array["of"] for array in arrays] == ["temporary", "argument", "temporary", "temporary"]
    assert (
        arrays[0]["shape"] == "bf16[12,8,64]"
        and arrays[3]["shape"] == "f32[2,250]"
        and memory.peak_bytes(str(tmp_path)) == 12000
    )
    # A program that did not fit is read from what the compiler wrote.
    (tmp_path / "module_0001.jit_train_step.x.after_optimizations.txt").write_text(PROGRAM)
    assert memory.largest(str(tmp_path), "") == arrays
    assert memory.largest(str(tmp_path / "none"), PROGRAM) == []


def test_topologies_have_the_sizes_of_the_cloud_s_names() -> None:
    table = {topology.name: topology for topology in topologies.topologies()}
    assert len(table) == len(topologies.topologies())
    sizes = {name: (table[name].devices, table[name].chips, table[name].hosts) for name in table}
    assert sizes["v3-8"] == (8, 4, 1) and sizes["v3-32"] == (32, 16, 4)
    assert sizes["v4-8"] == (4, 4, 1) and sizes["v4-32"] == (16, 16, 4) and sizes["v5p-8"] == (4, 4, 1)
    assert sizes["v5e-16"] == (16, 16, 4) and sizes["v6e-1"] == (1, 1, 1)
    assert sizes["h100-8"] == (8, 8, 1) and sizes["h100-16"] == (16, 16, 2) and sizes["cpu-8"] == (8, 8, 1)
    # jax gives a program three quarters of a single card.
    assert 58 < table["h100-1"].gib < 60 and 70 < table["h100-8"].gib < 72
    with pytest.raises(InputError, match="The topology v4-7 does not exist: v4 comes as v4-8, v4-16"):
        topologies.topology("v4-7")


@pytest.mark.parametrize(("name", "part"), [("v4-8", "tpu"), ("h100-8", "cuda12")])
def test_a_compiler_that_is_not_installed_is_one_warning(name: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = lambda module: None if module in ("libtpu", "nvidia") or "plugin" in module else real(module)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    config = runs.run()
    (line,) = compiler.compiled(config, topologies.topology(name)).lines
    assert line.level == "warning" and f"No compiler for {name}" in line.text
    assert line.fix.startswith(f"bash ./launch/setup.sh {part}")
    large = dataclasses.replace(config, data=dataclasses.replace(config.data, batch_size=1 << 20))
    warning, error = compiler.compiled(large, topologies.topology(name)).lines
    assert warning.code == "not-compiled" and (error.level, error.code) == ("error", "does-not-fit")  # by arithmetic


def test_a_batch_or_mesh_that_does_not_divide_is_an_error_before_anything_is_compiled() -> None:
    (line,) = compiler.compiled(runs.run(rows=10), topologies.topology("v4-8")).lines
    assert line.level == "error" and line.fix == [("DataConfig.batch_size", 8)]
    (line,) = compiler.compiled(runs.run(mesh=MeshConfig(fsdp=3)), topologies.topology("v4-8")).lines
    assert line.level == "error" and line.fix == [("MeshConfig.fsdp", 1)]


def test_the_features_are_those_of_the_configuration() -> None:
    config = runs.run(rows=8, lengths=(512, 114))
    shapes = compiler.feature_shapes(config)
    assert shapes == dict.fromkeys(
        ("decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights"), (8, 114)
    ) | {"encoder_input_tokens": (8, 512)}
    data = dataclasses.replace(config.data, task_feature_lengths={"inputs": 512}, pack=True)
    packed = compiler.feature_shapes(dataclasses.replace(config, data=data))
    assert packed == shapes | {"encoder_segment_ids": (8, 512), "decoder_segment_ids": (8, 114)}


def test_an_estimate_is_a_range_that_says_how_it_was_made() -> None:
    config = runs.run()
    counted = {"fusion_cycles": 2e8, "kernel_flops": 0.0, "collective_bytes": {"all-reduce": 3e8}}
    pod = topologies.topology("v4-8")
    estimate = speed.estimate(config, counted, (256, 64), pod)
    seconds = 2e8 / 1.05e9
    assert estimate.fastest == pytest.approx(seconds) and estimate.slowest == pytest.approx(2 * (seconds + 2e-3))
    figures = estimate.figures(config, (256, 64), pod)
    low, high = figures["tokens_per_second"]
    assert low < high == pytest.approx(16 * 320 / seconds) and figures["mfu"][0] < figures["mfu"][1]
    assert figures["days"][1] == pytest.approx(1000 * estimate.slowest / 86400)
    large = runs.run(rows=1_024)
    card = speed.estimate(large, counted, (256, 64), topologies.topology("a100-1"))
    assert card.slowest == pytest.approx(2 * card.fastest) and "gives no time" in card.made
    figures = card.figures(large, (256, 64), topologies.topology("a100-1"))
    assert figures["mfu"] == pytest.approx(list(arithmetic.MFU))  # one definition, and nothing beside that range
    small = speed.estimate(config, counted, (256, 64), topologies.topology("a100-1"))
    assert small.fastest == arithmetic.LEAST_STEP_SECONDS  # no step takes microseconds


def test_a_process_that_gives_no_answer_is_a_sentence() -> None:
    assert "because memory ran out" in process._last_words("", -9)
    assert process._last_words("x\nE0000 it broke\n", 1).endswith("status 1: E0000 it broke")
    assert step.needed_bytes("nothing of it") == 0 and nvidia._topology_text(16) == "1x2x8"
