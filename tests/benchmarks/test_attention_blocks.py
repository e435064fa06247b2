"""benchmarks.attention_blocks, without a card."""

import re

import pytest

from benchmarks import attention_blocks
from limba.model.kernels import pallas_gpu


@pytest.mark.night
def test_each_kernel_is_timed_in_other_blocks_and_keeps_its_own(capsys: pytest.CaptureFixture) -> None:
    before = pallas_gpu.Call.blocks
    small = ["--batch=1", "--length=32", "--heads=1", "--width=16", "--calls=1"]
    attention_blocks.main([*small, "--queries=32", "--keys=32", "--warps=4", "--stages=2", "--interpret"])
    printed = re.findall(r"^(\w+) +\(([\d, ]+)\) +[\d.]+ ms(  now)?$", capsys.readouterr().out, re.M)
    assert [name for name, _, now in printed if now] == list(pallas_gpu.KERNELS)
    assert {sizes for _, sizes, now in printed if not now} >= {"32, 32, 4, 2"}
    assert pallas_gpu.Call.blocks is before
