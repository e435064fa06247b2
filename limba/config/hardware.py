"""Every chip that a run may train on: memory, peak, bandwidth and types, by the names that people write for it.

One device is what JAX calls one: a core of a TPU v2 or v3, a die of an MI250X, else a chip or a card.

Sources. TPUs: Google's system architecture pages; their memory is what libtpu's compiler lets a program use. NVIDIA:
the white papers of Volta, Turing, GA100, GA102, Ada, Hopper and RTX Blackwell, and the data sheets of cards that these
lack. Peaks are dense, of float16 or bfloat16 with sums in float32, which GeForce cards, the A10G and the L40 do at half
of the rate of their sums in float16. A data sheet of the workstation cards of Ada prints FP8 with sparsity, four times
as much: 327.6 TFLOPS of the RTX 4000 are 81.9. One of Hopper and Blackwell prints sparsity, twice as much: 1,671 of the
H200 NVL, and 10,000 of the two cards of a GB200. Memory of a card is what its driver reports; jax takes a share of it
for programs.
"""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

BFLOAT16_CAPABILITY = 8.0  # of NVIDIA's cards from which on they have bfloat16, and the attention kernel runs


class Chip(NamedTuple):
    """One device of a kind; GB are 10^9 bytes, GiB 2^30."""

    name: str  # as in a topology
    device_kind: str  # words that are all in what jax calls it
    gib: float  # memory
    tflops: float  # peak of matrix products in the dtype that training takes, dense
    gb_per_second: float  # between the device and its memory
    link_gb_per_second: float  # between devices: all links of one, in one direction
    capability: float = 0.0  # CUDA compute capability of NVIDIA's cards
    devices: int = 1  # of a chip or card

    @property
    def platform(self) -> str:
        """`tpu` or `gpu`."""
        return "tpu" if self.device_kind.startswith("tpu") else "gpu"

    @property
    def is_nvidia(self) -> bool:
        """Whether it is a card of NVIDIA's."""
        return self.capability > 0

    @property
    def has_bfloat16(self) -> bool:
        """Whether it multiplies matrices in bfloat16; Volta and Turing have float16 alone."""
        return not self.is_nvidia or self.capability >= BFLOAT16_CAPABILITY

    @property
    def has_kernels(self) -> bool:
        """Whether attention has a kernel there, which keeps no scores."""
        if self.platform == "tpu":
            return self.name not in ("v2", "v3")
        return self.capability >= BFLOAT16_CAPABILITY


TPUS = (
    Chip("v2", "tpu v2", 7.48, 23.0, 350.0, 124.0, devices=2),
    Chip("v3", "tpu v3", 15.48, 61.5, 450.0, 164.0, devices=2),
    Chip("v4", "tpu v4", 30.75, 275.0, 1228.0, 300.0),
    Chip("v5e", "tpu v5 lite", 15.75, 197.0, 819.0, 200.0),
    Chip("v5e", "tpu v5e", 15.75, 197.0, 819.0, 200.0),
    Chip("v5p", "tpu v5p", 95.74, 459.0, 2765.0, 600.0),
    Chip("v5p", "tpu v5", 95.74, 459.0, 2765.0, 600.0),
    Chip("v6e", "tpu v6", 31.25, 918.0, 1638.0, 448.0),
    Chip("v6e", "tpu v6e", 31.25, 918.0, 1638.0, 448.0),
)
# name, words of jax's name, GiB, TFLOP/s, GB/s of memory, GB/s of links, compute capability
NVIDIA = (
    # Volta and Turing: float16
    Chip("v100", "v100", 15.74, 125.0, 900.0, 150.0, 7.0),
    Chip("v100-32gb", "v100 32gb", 31.74, 125.0, 900.0, 150.0, 7.0),
    Chip("v100s", "v100s", 31.74, 130.0, 1134.0, 16.0, 7.0),
    Chip("t4", "t4", 14.71, 65.0, 320.0, 16.0, 7.5),
    Chip("rtx2060", "rtx 2060", 5.8, 25.8, 336.0, 16.0, 7.5),
    Chip("rtx2060super", "rtx 2060 super", 7.8, 28.7, 448.0, 16.0, 7.5),
    Chip("rtx2070", "rtx 2070", 7.8, 29.9, 448.0, 16.0, 7.5),
    Chip("rtx2070super", "rtx 2070 super", 7.8, 36.3, 448.0, 16.0, 7.5),
    Chip("rtx2080", "rtx 2080", 7.8, 40.3, 448.0, 16.0, 7.5),
    Chip("rtx2080super", "rtx 2080 super", 7.8, 44.6, 496.0, 16.0, 7.5),
    Chip("rtx2080ti", "rtx 2080 ti", 10.8, 53.8, 616.0, 16.0, 7.5),
    Chip("titanrtx", "titan rtx", 23.6, 130.5, 672.0, 16.0, 7.5),
    Chip("quadrortx6000", "quadro 6000", 23.6, 130.5, 672.0, 16.0, 7.5),
    Chip("quadrortx8000", "quadro 8000", 47.4, 130.5, 672.0, 16.0, 7.5),
    # Ampere
    Chip("a100", "a100", 79.16, 312.0, 2039.0, 300.0, 8.0),
    Chip("a100-40", "a100 40gb", 39.58, 312.0, 1555.0, 300.0, 8.0),
    Chip("a30", "a30", 23.5, 165.0, 933.0, 32.0, 8.0),
    Chip("a2", "a2", 14.6, 18.0, 200.0, 16.0, 8.6),
    Chip("a10", "a10", 22.0, 125.0, 600.0, 32.0, 8.6),
    Chip("a10g", "a10g", 22.0, 70.0, 600.0, 32.0, 8.6),
    Chip("a40", "a40", 44.4, 149.7, 696.0, 32.0, 8.6),
    Chip("a4000", "a4000", 15.7, 76.7, 448.0, 32.0, 8.6),
    Chip("a4500", "a4500", 19.7, 94.6, 640.0, 32.0, 8.6),
    Chip("a5000", "a5000", 23.6, 111.1, 768.0, 32.0, 8.6),
    Chip("a6000", "a6000", 47.4, 154.8, 768.0, 32.0, 8.6),
    Chip("rtx3060", "rtx 3060", 11.7, 25.5, 360.0, 32.0, 8.6),
    Chip("rtx3060ti", "rtx 3060 ti", 7.8, 32.4, 448.0, 32.0, 8.6),
    Chip("rtx3070", "rtx 3070", 7.8, 40.6, 448.0, 32.0, 8.6),
    Chip("rtx3070ti", "rtx 3070 ti", 7.8, 43.5, 608.0, 32.0, 8.6),
    Chip("rtx3080", "rtx 3080", 9.7, 59.5, 760.0, 32.0, 8.6),
    Chip("rtx3080-12gb", "rtx 3080 12gb", 11.7, 61.3, 912.0, 32.0, 8.6),
    Chip("rtx3080ti", "rtx 3080 ti", 11.7, 68.2, 912.0, 32.0, 8.6),
    Chip("rtx3090", "rtx 3090", 23.6, 71.2, 936.0, 32.0, 8.6),
    Chip("rtx3090ti", "rtx 3090 ti", 23.6, 80.0, 1008.0, 32.0, 8.6),
    # Ada
    Chip("l4", "l4", 22.35, 121.0, 300.0, 32.0, 8.9),
    Chip("l40", "l40", 44.4, 181.0, 864.0, 32.0, 8.9),
    Chip("l40s", "l40s", 44.4, 362.0, 864.0, 32.0, 8.9),
    Chip("rtx4000ada", "4000 ada", 19.6, 81.9, 360.0, 32.0, 8.9),
    Chip("rtx5000ada", "5000 ada", 31.5, 261.1, 576.0, 32.0, 8.9),
    Chip("rtx6000ada", "6000 ada", 47.4, 364.2, 960.0, 32.0, 8.9),
    Chip("rtx4060", "rtx 4060", 7.7, 30.2, 272.0, 16.0, 8.9),
    Chip("rtx4060ti", "rtx 4060 ti", 7.7, 44.1, 288.0, 16.0, 8.9),
    Chip("rtx4060ti-16gb", "rtx 4060 ti 16gb", 15.7, 44.1, 288.0, 16.0, 8.9),
    Chip("rtx4070", "rtx 4070", 11.7, 58.3, 504.0, 32.0, 8.9),
    Chip("rtx4070super", "rtx 4070 super", 11.7, 71.0, 504.0, 32.0, 8.9),
    Chip("rtx4070ti", "rtx 4070 ti", 11.7, 80.2, 504.0, 32.0, 8.9),
    Chip("rtx4070tisuper", "rtx 4070 ti super", 15.6, 88.2, 672.0, 32.0, 8.9),
    Chip("rtx4080", "rtx 4080", 15.6, 97.5, 717.0, 32.0, 8.9),
    Chip("rtx4080super", "rtx 4080 super", 15.6, 104.4, 736.0, 32.0, 8.9),
    Chip("rtx4090", "rtx 4090", 23.6, 165.2, 1008.0, 32.0, 8.9),
    # Hopper
    Chip("h100", "h100", 79.16, 989.0, 3350.0, 450.0, 9.0),
    Chip("h100-pcie", "h100 pcie", 79.1, 756.0, 2000.0, 64.0, 9.0),
    Chip("h100-nvl", "h100 nvl", 93.0, 835.0, 3900.0, 64.0, 9.0),
    Chip("h200", "h200", 139.79, 989.0, 4800.0, 450.0, 9.0),
    Chip("h200-nvl", "h200 nvl", 139.79, 835.5, 4800.0, 64.0, 9.0),  # bridges join two or four cards alone
    Chip("gh200", "gh200", 94.99, 989.0, 4000.0, 450.0, 9.0),
    # Blackwell
    Chip("b200", "b200", 177.88, 2250.0, 8000.0, 900.0, 10.0),
    Chip("gb200", "gb200", 183.8, 2500.0, 8000.0, 900.0, 10.0),  # a card, of which a superchip has two
    Chip("rtx5060", "rtx 5060", 7.7, 38.4, 448.0, 32.0, 12.0),
    Chip("rtx5060ti", "rtx 5060 ti", 7.7, 47.4, 448.0, 32.0, 12.0),
    Chip("rtx5060ti-16gb", "rtx 5060 ti 16gb", 15.5, 47.4, 448.0, 32.0, 12.0),
    Chip("rtx5070", "rtx 5070", 11.6, 61.7, 672.0, 64.0, 12.0),
    Chip("rtx5070ti", "rtx 5070 ti", 15.5, 87.9, 896.0, 64.0, 12.0),
    Chip("rtx5080", "rtx 5080", 15.5, 112.6, 960.0, 64.0, 12.0),
    Chip("rtx5090", "rtx 5090", 31.3, 209.5, 1792.0, 64.0, 12.0),
    Chip("rtxpro6000", "pro 6000", 94.9, 503.8, 1792.0, 64.0, 12.0),
)
AMD = (
    Chip("mi250x", "mi250x", 63.98, 191.5, 1638.0, 100.0, devices=2),
    Chip("mi300x", "mi300x", 191.85, 1307.0, 5300.0, 448.0),
)
CHIPS = (*TPUS, *NVIDIA, *AMD)
_BY_NAME = {chip.name: chip for chip in CHIPS}
TPU_NAMES = tuple(dict.fromkeys(chip.name for chip in TPUS))
GPU_NAMES = tuple(chip.name for chip in (*NVIDIA, *AMD))

# Other names that people write, without signs between their parts.
_ALIASES = {
    "v5litepod": "v5e", "v10016gb": "v100", "rtx8000": "quadrortx8000", "a10040gb": "a100-40", "a10080": "a100",
    "a10080gb": "a100", "a100sxm": "a100", "a100sxm4": "a100", "a100pcie": "a100", "h10080": "h100",
    "h10080gb": "h100", "h100sxm": "h100", "h100sxm5": "h100", "rtx6000adageneration": "rtx6000ada",
    "rtxpro6000blackwell": "rtxpro6000", "rtx306012gb": "rtx3060", "306012gb": "rtx3060",
}  # fmt: skip
# Words in jax's name of a card that has the number of another one, and less of all: of a laptop ("RTX 2080 with Max-Q
# Design" too) and of a small case.
_SMALLER = {"laptop", "design", "sff"}
_MAKERS = re.compile(r"\b(nvidia|geforce|tesla|amd|instinct|google|cloud|tpu)\b")


def _names() -> dict[str, str]:
    """Returns {a name without signs: the chip's name}, with all that people write."""
    names = dict(_ALIASES)
    for chip in CHIPS:
        plain = re.sub(r"\W", "", chip.name)
        names[plain] = chip.name
        if plain.startswith("rtx"):
            names.setdefault(plain.removeprefix("rtx"), chip.name)
        if re.fullmatch(r"a\d000|a4500", plain):  # NVIDIA calls an A6000 RTX A6000
            names[f"rtx{plain}"] = chip.name
    return names


_NAMES = _names()


def chip(name: str) -> Chip:
    """Returns the chip of a name in the table."""
    return _BY_NAME[name]


def written(name: str) -> tuple[Chip, int | None] | None:
    """Returns the chip, and how many, that a name means; None for another name, and for how many if it does not say.

    The number of a TPU is the one that Google's name has.

    >>> names = ("8xH100", "h100-8", "a100-40", "a100-8", "RTX 4090", "2x3090-ti", "v4-8")
    >>> [(found[0].name, found[1]) for name in names if (found := written(name))]
    [('h100', 8), ('h100', 8), ('a100-40', None), ('a100', 8), ('rtx4090', None), ('rtx3090ti', 2), ('v4', 8)]
    >>> written("toaster")
    """
    text = _MAKERS.sub("", name.lower()).strip(" -_")
    alone = _NAMES.get(_without_signs(text))
    if alone is not None:
        return _BY_NAME[alone], None
    number_first = re.fullmatch(r"(?P<number>\d+) ?x ?[- ]?(?P<chip>.+)", text)
    number_last = re.fullmatch(r"(?P<chip>.+?)[- ]?[x-] ?(?P<number>\d+)", text)
    for match in (number_first, number_last):
        name_of_chip = None if match is None else _NAMES.get(_without_signs(match["chip"]))
        if match is not None and name_of_chip is not None:
            return _BY_NAME[name_of_chip], int(match["number"])
    return None


def _without_signs(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)


def near(name: str, others: tuple[str, ...] = ()) -> list[str]:
    """Returns the names of chips that are nearest to one that is not known, `others` among them.

    >>> near("rtx4091")[0], near("h10")[0]
    ('rtx4090', 'h100')
    """
    text = re.sub(r"^\d+ ?x ?|-\d+$|(?<=\d)x\d+$", "", name.lower())
    known = {_without_signs(name_of_chip): name_of_chip for name_of_chip in (*_BY_NAME, *others)}
    known |= {plain: listed for plain, listed in _NAMES.items() if plain not in known}
    close = difflib.get_close_matches(_without_signs(text), known, n=4, cutoff=0.5)
    return list(dict.fromkeys(known[match] for match in close))[:3]


def of_device_kind(kind: str) -> Chip | None:
    """Returns the chip that jax gives this name, None for one that is not in the table, as a CPU or a laptop's card.

    >>> [found.name for kind in ("NVIDIA A100-SXM4-40GB", "NVIDIA RTX 6000 Ada Generation", "TPU v5 lite", "Tesla T4")
    ...  if (found := of_device_kind(kind))]
    ['a100-40', 'rtx6000ada', 'v5e', 't4']
    """
    words = set(re.findall(r"[a-z0-9]+", kind.lower()))
    if words & _SMALLER:
        return None
    fitting = [chip for chip in CHIPS if set(chip.device_kind.split()) <= words]
    return max(fitting, key=lambda chip: len(chip.device_kind.split()), default=None)
