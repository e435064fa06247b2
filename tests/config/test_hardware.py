"""Chips by the names that people write, and by those that jax gives them."""

import pytest

from limba.config import InputError, hardware, prices
from limba.tools.preflight.compiled import nvidia
from limba.tools.preflight.compiled.topologies import of_devices, topologies, topology


@pytest.mark.parametrize(
    ("written", "name", "devices", "chips"),
    [
        ("rtx4090", "rtx4090-1", 1, 1),
        ("4090", "rtx4090-1", 1, 1),
        ("RTX 4070 Ti SUPER", "rtx4070tisuper-1", 1, 1),
        ("2x3090", "rtx3090-2", 2, 2),
        ("a6000", "a6000-1", 1, 1),
        ("RTX A6000", "a6000-1", 1, 1),
        ("8xa100", "a100-8", 8, 8),
        ("h100", "h100-1", 1, 1),
        ("H100 80GB", "h100-1", 1, 1),
        ("a100-40", "a100-40-1", 1, 1),
        ("a100-40gb-4", "a100-40-4", 4, 4),
        ("a100-8", "a100-8", 8, 8),
        ("a100x4", "a100-4", 4, 4),
        ("Tesla T4", "t4-1", 1, 1),
        ("4060ti-16gb", "rtx4060ti-16gb-1", 1, 1),
        ("v100-32", "v100-32", 32, 32),
        ("V100 32GB", "v100-32gb-1", 1, 1),
        ("v100s x 2", "v100s-2", 2, 2),
        ("h100-24", "h100-24", 24, 24),
        ("mi250x-8", "mi250x-8", 8, 4),
        ("v2-8", "v2-8", 8, 4),
        ("v3-8", "v3-8", 8, 4),
        ("v4-8", "v4-8", 4, 4),
        ("v4-24", "v4-24", 12, 12),
        ("v5litepod-8", "v5e-8", 8, 8),
        ("TPU v6e-8", "v6e-8", 8, 8),
        ("v5e-16x4", "v5e-16x4", 64, 64),
        ("cpu", "cpu-1", 1, 1),
    ],
)
def test_names_as_people_write_them(written: str, name: str, devices: int, chips: int) -> None:
    known = topology(written)
    assert (known.name, known.devices, known.chips) == (name, devices, chips)
    assert topology(name) == known


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("rtx4091", "did you mean rtx4090"),
        ("h10", "did you mean h100"),
        ("toaster", "is not known; give cpu, a card such as rtx4090"),
        ("gpu", "names no card; give one of v100, .*rtx5090.*mi300x, several as 8xh100"),
        ("tpu", "names no TPU; give one of v2, v3, v4, v5e, v5p, v6e with its size"),
        ("v4", "has no size: v4 comes as v4-8, v4-16"),
        ("v4-7", "does not exist: v4 comes as v4-8, v4-16"),
        ("v3-9", "does not exist: v3 comes as v3-8"),
        ("v5litepod-7", "does not exist: v5e comes as v5e-1, v5e-4"),
        ("0xh100", "does not exist: give 1 to 8 cards of one machine"),
        ("h100-9", "does not exist: give 1 to 8 cards of one machine"),
    ],
)
def test_another_name_is_one_sentence(written: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        topology(written, "--hardware=")
    assert str(raised.value).startswith(f"--hardware={written} ")


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [
        ("NVIDIA GeForce RTX 3090 Ti", 1, "rtx3090ti-1"),
        ("NVIDIA RTX A6000", 2, "a6000-2"),
        ("NVIDIA RTX 6000 Ada Generation", 1, "rtx6000ada-1"),
        ("Quadro RTX 6000", 1, "quadrortx6000-1"),
        ("NVIDIA H100 80GB HBM3", 8, "h100-8"),
        ("NVIDIA H100 PCIe", 1, "h100-pcie-1"),
        ("NVIDIA GH200 480GB", 1, "gh200-1"),
        ("NVIDIA H200", 8, "h200-8"),
        ("NVIDIA H200 NVL", 2, "h200-nvl-2"),
        ("NVIDIA GB200", 4, "gb200-4"),
        ("NVIDIA A100-SXM4-40GB", 1, "a100-40-1"),
        ("NVIDIA L40S", 1, "l40s-1"),
        ("Tesla V100-SXM2-16GB", 4, "v100-4"),
        ("Tesla V100-SXM2-32GB", 32, "v100-32gb-32"),
        ("Tesla V100S-PCIE-32GB", 1, "v100s-1"),
        ("TPU v3", 8, "v3-8"),
        ("TPU v4", 4, "v4-8"),
        ("TPU v5 lite", 4, "v5e-4"),
        ("TPU v5", 4, "v5p-8"),
        ("TPU v6 lite", 1, "v6e-1"),
    ],
)
def test_devices_that_jax_finds(kind: str, number: int, name: str) -> None:
    known = of_devices(kind, number)
    assert known is not None and known.name == name


def test_what_jax_names_otherwise_is_no_chip() -> None:
    assert hardware.of_device_kind("cpu") is None and of_devices("NVIDIA Jetson Orin", 1) is None


@pytest.mark.parametrize(
    "kind",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 2080 with Max-Q Design",
        "NVIDIA RTX 4000 SFF Ada Generation",
    ],
)
def test_a_smaller_card_has_no_figures_of_another(kind: str) -> None:
    assert hardware.of_device_kind(kind) is None


def test_the_table_holds_together() -> None:
    names = [chip.name for chip in hardware.CHIPS if chip.platform == "gpu"]
    assert len(names) == len(set(names)) >= 60
    for chip in hardware.CHIPS:
        # FLOPs for each byte of memory: from a V100's to an L4's and a TPU v6e's.
        assert 60 < 1e3 * chip.tflops / chip.gb_per_second < 700 and chip.gib > 5, chip.name
        assert chip.has_bfloat16 == chip.has_kernels or not chip.is_nvidia
    assert {chip.name for chip in hardware.NVIDIA if not chip.has_bfloat16} >= {"t4", "v100", "rtx2080ti"}
    assert set(prices.PRICES) <= {chip.name for chip in hardware.CHIPS}
    assert set(nvidia.CARDS) <= set(names)
    for entry in topologies():
        assert entry.platform == "cpu" or entry.chip is not None
        if entry.platform == "gpu":  # so that it gets the card's price
            assert hardware.written(entry.name) == (entry.chip, entry.devices)


@pytest.mark.parametrize(
    ("name", "tflops", "gigabytes_a_second"),
    [
        # NVIDIA's white papers and data sheets: dense, float16 or bfloat16 with sums in float32
        ("t4", 65, 320), ("rtx2080ti", 53.8, 616), ("v100", 125, 900), ("a100", 312, 2039), ("rtx3090", 71, 936),
        ("a6000", 154.8, 768), ("rtx4090", 165.2, 1008), ("l4", 121, 300), ("l40s", 362, 864), ("h100", 989, 3350),
        ("h200", 989, 4800), ("h200-nvl", 1671 / 2, 4800), ("gb200", 10_000 / 2 / 2, 8000), ("rtx5090", 209.5, 1792),
        ("rtx4000ada", 327.6 / 4, 360), ("rtx5000ada", 1044.4 / 4, 576), ("rtx6000ada", 1457 / 4, 960),
    ],
)  # fmt: skip
def test_peaks_are_those_of_white_papers(name: str, tflops: float, gigabytes_a_second: float) -> None:
    chip = hardware.chip(name)
    assert chip.tflops == pytest.approx(tflops, rel=0.005) and chip.gb_per_second == gigabytes_a_second
