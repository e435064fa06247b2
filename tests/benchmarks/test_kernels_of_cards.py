"""Attention's kernels compiled for every kind of NVIDIA's cards, without one: they fit into its shared memory."""

import importlib.util
import itertools
import json
import subprocess
import sys

import pytest

from limba.config import hardware
from limba.model.kernels import pallas_gpu
from limba.model.kernels.choose import SHARED_KIB
from limba.tools.preflight.compiled import nvidia

# What the tensor cores of a compute capability are given products of two-byte numbers by.
INSTRUCTIONS = {8: {"mma"}, 9: {"wgmma"}, 10: {"mma", "tcgen05"}, 12: {"mma"}}


def test_the_cards_cover_every_compute_capability_that_has_the_kernel() -> None:
    described = {chip.capability for chip in hardware.NVIDIA if chip.name in nvidia.CARDS}
    assert described == {8.0, 8.6, 8.9, 9.0, 10.0, 12.0}
    wanted = {chip.capability for chip in hardware.NVIDIA if chip.capability >= 8}
    assert wanted <= set(SHARED_KIB) and {int(number) for number in wanted} == set(pallas_gpu.MOST_SHARED_KIB)
    for name, card in nvidia.CARDS.items():
        capability = hardware.chip(name).capability
        assert float("{}.{}".format(*card.compute_capability)) == capability
        assert card.shared_kib == SHARED_KIB[capability]
        of_card = pallas_gpu.MOST_SHARED_KIB[int(capability)]
        assert max(max(sizes.values()) for sizes in of_card.values()) <= card.shared_kib, name


@pytest.mark.night
@pytest.mark.aot
@pytest.mark.skipif(importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs bash launch/setup.sh cuda12")
@pytest.mark.parametrize("choices", [[], ["--causal", "--length=229"], ["--no-bias", "--causal"]], ids=str)
@pytest.mark.parametrize("card", nvidia.CARDS)
def test_kernels_compile_and_take_the_shared_memory_that_is_written_down(card: str, choices: list[str]) -> None:
    command = [sys.executable, "-m", "benchmarks.attention_blocks", f"--topology={card}", "--batch=16", "--heads=8"]
    done = subprocess.run([*command, *choices], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wanted = set(itertools.product(("bfloat16", "float32"), pallas_gpu.WIDTHS))
    assert {(line["dtype"], line["width"]) for line in lines} == wanted
    capability = hardware.chip(card).capability
    for line in lines:
        kernels = line["kernels"].values()
        assert len(kernels) == (3 if "--no-bias" in choices else 4)
        size = 2 if line["dtype"] == "bfloat16" else 4
        taken = max(kernel["shared_kib"] for kernel in kernels)
        assert taken <= pallas_gpu.shared_kib(capability, size, line["width"]) <= SHARED_KIB[capability], line
        if size == 2:
            products = itertools.chain.from_iterable(kernel["products"] for kernel in kernels)
            instructions = {product.split()[0] for product in products}
            assert instructions and instructions <= INSTRUCTIONS[int(capability)], line
