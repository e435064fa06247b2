"""What a compiled program costs, read from its text; and, where their compilers are, kernels for a TPU and a GPU."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from benchmarks import compiled
from limba.config import InputError
from limba.tools.preflight.compiled import nvidia
from limba.tools.preflight.compiled.program import costs_of_program

PROGRAM = """HloModule jit_step, is_scheduled=true

%fused (p: bf16[8,128]) -> bf16[8,128] {
  %p = bf16[8,128]{1,0} parameter(0)
  ROOT %add.1 = bf16[8,128]{1,0} add(%p, %p), backend_config={"estimated_cycles":"999"}
}

%body (arg: (s32[], f32[4,256])) -> (s32[], f32[4,256]) {
  %arg = (s32[], f32[4,256]{1,0}) parameter(0)
  %fusion.1 = bf16[8,128] fusion(%x), calls=%fused, backend_config={"estimated_cycles":"100"}
  %all-reduce.1 = (f32[4,256]{1,0}, bf16[128]{0}) all-reduce(%y, %z), to_apply=%sum
  %left.1 = f32[4,256]{1,0} get-tuple-element(%arg), index=1
  %w = f32[256,8]{1,0} constant({...})
  %dot.1 = f32[4,8]{1,0} dot(%left.1, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %try.1 = bf16[8,128] custom-call(%x), custom_call_target="tpu_custom_call", metadata={op_name="f/a/pallas_call"}
  %triton.1 = bf16[8] custom-call(%x), custom_call_target="__gpu$xla.gpu.triton", metadata={op_name="f/b/pallas_call"}
  ROOT %tuple.1 = (s32[], f32[4,256]{1,0}) tuple(%i, %y)
}

%condition (arg.1: (s32[], f32[4,256])) -> pred[] {
  %arg.1 = (s32[], f32[4,256]{1,0}) parameter(0)
  %constant.1 = s32[] constant(3)
  ROOT %lt = pred[] compare(%i, %constant.1), direction=LT
}

%all-reduce-scatter.2 (p.2: bf16[64,128]) -> bf16[16,128] {
  %p.2 = bf16[64,128]{1,0} parameter(0)
  %all-reduce.3 = bf16[64,128]{1,0} all-reduce(%p.2), to_apply=%sum
  ROOT %slice.1 = bf16[16,128]{1,0} dynamic-slice(%all-reduce.3, %i), dynamic_slice_sizes={16,128}
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  ROOT %add.2 = f32[] add(%a, %a), backend_config={"estimated_cycles":"5"}
}

%start (p.4: f32[4,256]) -> f32[16,256] {
  %p.4 = f32[4,256]{1,0} parameter(0)
  ROOT %all-gather.4 = f32[16,256]{1,0} all-gather(%p.4), backend_config={STARTS}
}

%step (p.5: f32[4,256]) -> f32[16,256] {
  %p.5 = f32[4,256]{1,0} parameter(0)
  ROOT %all-gather.5 = f32[16,256]{1,0} all-gather(%p.5), backend_config={STEP}
}

ENTRY %main (x: f32[4,256]) -> f32[4,256] {
  %x = f32[4,256]{1,0} parameter(0)
  %while.1 = (s32[], f32[4,256]{1,0}) while(%t), condition=%condition, body=%body
  %while.2 = (s32[], f32[4,256]) while(%t), condition=%condition, body=%body, config={"known_trip_count":{"n":"2"}}
  %all-gather-start.1 = (f32[4,256]{1,0}, f32[16,256]{1,0}) all-gather-start(%x), dimensions={0}
  %reduce-scatter.1 = f32[1,256]{1,0} reduce-scatter(%x), dimensions={0}, to_apply=%sum
  %fusion.3 = bf16[16,128]{1,0} fusion(%g), kind=kCustom, calls=%all-reduce-scatter.2
  %both.1 = ((f32[4]{0}, bf16[8]{0}), (f32[2]{0}, bf16[4]{0})) reduce-scatter-start(%x, %y), dimensions={0}
  %both.2 = ((f32[4]{0}, bf16[8]{0}), (f32[8]{0}, bf16[16]{0})) all-to-all-start(%x, %y), dimensions={0}
  %start.1 = f32[16,256]{1,0} fusion(%x), kind=kCustom, calls=%start
  %step.1 = f32[16,256]{1,0} fusion(%x), kind=kOutput, calls=%step
  ROOT %copy.1 = f32[4,256]{1,0} copy(%x), backend_config={"estimated_cycles":"7"}
}
"""
# What libtpu writes of a gather that runs beside other work: its start, and a fusion with a step of it.
PROGRAM = PROGRAM.replace("STARTS", '"async_collective_fusion_config":{"flag_start":"-1","flag_end":"-1"}')
PROGRAM = PROGRAM.replace("STEP", '"async_collective_fusion_config":{"flag_start":"2","flag_end":"15"}')
SCHEDULE = """= control target key start
LB: loop body

     0   :  { %s1 = sld [smem:[#allocation0]] } /* entry bundle */
   0x1   :  { %s2 = sld [smem:[#allocation2]] }
   0x2 LB: > { %s3 = sphi %s2, %s4 } /* Start region 86 */
   0x3   : > { %v1 = vld [vmem:[%s3]]
second_minor_factor: 1 */ }
   0x4 PF: > { %p1 = scmp.ge.s32.totalorder %s3, 12 /* loop exit test */ }
   0x5   :  { %s6 = smov 0 } /* End region 4 */
"""


def test_costs_multiply_loops_and_leave_out_what_is_inside_a_fusion() -> None:
    costs = costs_of_program(PROGRAM)
    assert costs.fusion_cycles == 5 * 100 + 7
    assert costs.fusions == 5 * 1 + 3
    assert costs.kernels == {"a": 5, "b": 5}
    assert costs.product_flops == 5 * 2 * 4 * 256 * 8
    assert costs.collectives == {"all-reduce": 5, "all-gather": 2, "reduce-scatter": 3, "other": 1}
    assert costs.collective_bytes["all-reduce"] == 5 * (4 * 256 * 4 + 128 * 2)
    assert costs.collective_bytes["all-gather"] == 2 * 16 * 256 * 4
    assert costs.collective_bytes["reduce-scatter"] == 4 * 256 * 4 + 64 * 128 * 2 + (4 * 4 + 8 * 2)
    assert costs.collective_bytes["other"] == 8 * 4 + 16 * 2
    with pytest.raises(ValueError, match="unknown length"):
        costs_of_program(PROGRAM.replace("direction=LT", "direction=NE"))


def test_a_kernel_s_bundles_are_multiplied_by_its_grid() -> None:
    assert (
        compiled.cycles_of_schedule(SCHEDULE) == 3 + 3 * 10
    )  # the exit test counts two iterations of the pipeline's ends
    assert compiled.cycles_of_schedule(SCHEDULE.replace("0x3   : >", "0x3   : > >")) is None
    assert compiled.cycles_of_schedule(SCHEDULE.replace(" /* loop exit test */", "")) is None


def test_fields_are_the_network_s_or_the_optimizer_s() -> None:
    args = compiled.parse(
        ["--optimizer=muon", "--field=mlp_dim=8", "--field=muon_others=adafactor", "--field=muon_beta=0.9"]
    )
    assert args.field == ["mlp_dim=8"]
    assert args.optimizer_fields == {"muon_others": "adafactor", "muon_beta": 0.9}
    with pytest.raises(InputError, match=r"--field=name=muon is not NAME=VALUE .*mlp_dim.*OptimizerConfig \(.*beta1"):
        compiled.parse(["--field=name=muon"])


@pytest.mark.night
def test_windows_of_long_rows_have_fewer_products_and_less_memory(monkeypatch, capsys) -> None:
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    step = "--family=modernbert --size=tiny --topology=cpu-1 --batch=1 --targets=1024 --predicted=8 --remat=none"
    figures = []
    for fields in ([], ["--field=local_attention=None", "--field=biases=()"]):
        compiled.main([*step.split(), "--no-scan", "--attention=einsum", "--json", *fields])
        figures.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    windows, whole = figures
    assert windows["product_gflops"] < 0.8 * whole["product_gflops"]
    assert windows["live_gib_per_chip"] < 0.8 * whole["live_gib_per_chip"]


@pytest.mark.night  # the landing has tests/training/test_compiled_figures.py
@pytest.mark.aot
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: bash launch/setup.sh tpu")
def test_a_step_compiles_for_a_tpu_pod() -> None:
    layers = [f"--field=num_{part}_layers=1" for part in ("encoder", "decoder")]
    command = [sys.executable, "-m", "benchmarks.compiled", "--size=tiny", "--topology=v4-8", "--json", *layers]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["total_cycles"] == figures["fusion_cycles"] + figures["kernel_cycles"]
    assert {kernel["counted_from"] for kernel in figures["kernels"].values()} == {"compiled schedule"}
    assert len(figures["kernels"]) == 6 and figures["live_gib_per_chip"] > 0 and 0 < figures["estimated_mfu"] < 1


def test_without_nvidia_s_compiler_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="No compiler for NVIDIA's cards.*setup.sh cuda12"):
        nvidia.topology_devices("h200-1", "unused")


@pytest.mark.aot
@pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs bash launch/setup.sh cuda12")
@pytest.mark.parametrize("topology", ["h200-2", "a100-1"])
def test_a_step_compiles_for_a_gpu_and_spills_little(topology: str) -> None:
    layers = [f"--field=num_{part}_layers=1" for part in ("encoder", "decoder")]
    command = [sys.executable, "-m", "benchmarks.compiled", "--size=small", f"--topology={topology}", "--json", *layers]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert len(figures["kernels"]) == 11 and figures["live_gib_per_chip"] > 0
    assert (figures["all_reduce_mib"] > 0) == (topology == "h200-2")
    for name, kernel in figures["kernels"].items():
        most = 320 if "to_bias" in name and topology == "h200-2" else 0  # where it is faster so (benchmarks/README.md)
        assert kernel["calls"] == 1 and kernel["spilled_bytes"] <= most
        assert all(name.startswith("wgmma" if topology == "h200-2" else "mma") for name in kernel["products"])
        assert kernel["products"] and kernel["shared_kib"] < (227 if topology == "h200-2" else 163)


@pytest.mark.aot
@pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs bash launch/setup.sh cuda12")
@pytest.mark.parametrize("choices", [["--family=modernbert"], ["--family=modernbert", "--mixed"]])
def test_windows_and_masks_of_rows_compile_for_a_gpu_without_spilling(choices: list[str]) -> None:
    step = "--topology=h200-1 --batch=8 --targets=2048 --predicted=640 --field=num_decoder_layers=3 --json"
    command = [sys.executable, "-m", "benchmarks.compiled", *step.split(), *choices]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = json.loads(done.stdout.splitlines()[-1])["kernels"]
    assert len(kernels) == 3 and all("near" in name and kernel["calls"] == 3 for name, kernel in kernels.items())
    assert all(kernel["spilled_bytes"] == 0 and kernel["products"] for kernel in kernels.values())


def test_the_order_of_a_set_does_not_change_a_digest() -> None:
    texts = [
        "policy=Save(names=frozenset({'dense', 'attended'})) x",
        "policy=Save(names=frozenset({'attended', 'dense'})) x",
    ]
    assert compiled.with_sorted_sets(texts[0]) == compiled.with_sorted_sets(texts[1]) == texts[1]
