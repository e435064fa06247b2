"""Reads the text of a compiled program: XLA's cycles, its loops, its kernels, and the bytes it exchanges."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter

HEADER = re.compile(r"^(ENTRY )?%?([\w.\-<>]+) .*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
CALLED = re.compile(r"(?:body|condition|calls|to_apply|\w+_computations)=\{?((?:%[\w.\-]+[, ]*)+)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# A collective that runs beside other work stands in its start, whose flag is -1, and again in each fusion that has a
# step of it, whose flags say which.
LATER_STEP = re.compile(r'"async_collective_fusion_config":\{"flag_start":"\d')
PALLAS = re.compile(r'"(tpu_custom_call|__gpu\$xla\.gpu\.triton)"')
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
# XLA's operation -> the kind under which its bytes are counted. The -done of a -start exchanges nothing more.
COLLECTIVES = {
    "all-reduce": "all-reduce",
    "all-reduce-start": "all-reduce",
    "all-gather": "all-gather",
    "all-gather-start": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "reduce-scatter-start": "reduce-scatter",
    "all-to-all": "other",
    "all-to-all-start": "other",
    "collective-permute": "other",
    "collective-permute-start": "other",
}
# Operations that apply a computation to single numbers, which costs nothing compared with the operation itself.
SCALARWISE = ("reduce", "all-reduce", "all-reduce-start", "reduce-scatter", "reduce-window", "sort", "scatter", "map")


@dataclasses.dataclass
class ProgramCosts:
    """Of one device, all loops multiplied: XLA's cycles and fusions, calls of each Pallas kernel, collectives by their
    kind, and bytes of their results (of a reduce-scatter's operands, which are what an all-reduce in its place would
    give).

    `product_flops` count matrix products that are written as such: on CPUs, not on TPUs.
    """

    fusion_cycles: int = 0
    fusions: int = 0
    product_flops: int = 0
    kernels: Counter[str] = dataclasses.field(default_factory=Counter)
    collectives: Counter[str] = dataclasses.field(default_factory=Counter)
    collective_bytes: Counter[str] = dataclasses.field(default_factory=Counter)


def costs_of_program(text: str) -> ProgramCosts:
    """Returns the costs of an optimized HLO module's text.

    A while loop counts its body as often as it runs; one whose trips are unknown raises ValueError.
    """
    entry, computations = _computations(text)
    costs = ProgramCosts()

    def visit(name: str, times: int, inside_fusion: bool) -> None:
        shapes = {name: shape for name, shape, _, _ in computations[name]}
        for _, shape, operation, rest in computations[name]:
            cycles = CYCLES.search(rest)
            if cycles and not inside_fusion:
                costs.fusion_cycles += times * int(cycles[1])
            if operation == "fusion" and not inside_fusion:
                costs.fusions += times
            if operation in COLLECTIVES and not LATER_STEP.search(rest):
                # In a computation of this name a TPU's compiler writes a reduce-scatter.
                is_scatter = name.startswith("all-reduce-scatter")
                kind = "reduce-scatter" if is_scatter else COLLECTIVES[operation]
                costs.collectives[kind] += times
                costs.collective_bytes[kind] += times * _exchanged_bytes(operation, shape, rest, shapes)
            if operation == "dot":
                costs.product_flops += times * _flops_of_product(shape, rest, shapes)
            if operation == "custom-call" and PALLAS.search(rest):
                costs.kernels[_kernel_name(rest)] += times
            repeats = 1
            if operation == "while":
                repeats = _trips(rest, computations)
            if operation in SCALARWISE:
                continue
            for group in CALLED.findall(rest):
                for called in re.findall(r"%([\w.\-]+)", group):
                    visit(called, times * repeats, inside_fusion or operation == "fusion")

    visit(entry, 1, False)
    return costs


def _computations(text: str) -> tuple[str, dict[str, list[tuple[str, str, str, str]]]]:
    """Returns the entry's name and each computation's instructions: (name, shape, operation, the rest)."""
    computations: dict[str, list[tuple[str, str, str, str]]] = {}
    entry = ""
    current = None
    for line in text.splitlines():
        instruction = INSTRUCTION.match(line)
        header = None if instruction else HEADER.match(line)
        if instruction and current is not None:
            name, shape, operation, rest = instruction.groups()
            current.append((name, shape, operation, rest))
        if header:
            is_entry, name = header.groups()
            current = computations.setdefault(name, [])
            if is_entry:
                entry = name
    return entry, computations


def _exchanged_bytes(operation: str, shape: str, rest: str, shapes: dict[str, str]) -> int:
    """Returns the bytes of a collective's results, or of a reduce-scatter's operands, which are what is exchanged."""
    if operation == "reduce-scatter":
        return sum(_bytes_of(ARRAY.findall(shapes[name])) for name in _operands(rest))
    arrays = ARRAY.findall(shape)
    if not operation.endswith("-start") or operation == "all-reduce-start":
        return _bytes_of(arrays)
    # A start gives its operands before its results.
    number = 0 if COLLECTIVES[operation] == "reduce-scatter" else 1
    if shape.startswith("(("):  # several of each
        return _bytes_of(ARRAY.findall(shape.split("), ")[number]))
    return _bytes_of(arrays[number : number + 1])


def _flops_of_product(shape: str, rest: str, shapes: dict[str, str]) -> int:
    """Returns two FLOPs for each result and each term that is summed for it."""
    left = shapes[_operands(rest)[0]]
    left_sizes = _sizes(ARRAY.findall(left)[0][1])
    summed_axes = _sizes(re.findall(r"lhs_contracting_dims=\{([\d,]*)\}", rest)[0])
    num_results = math.prod(_sizes(ARRAY.findall(shape)[0][1]))
    num_terms = math.prod(left_sizes[axis] for axis in summed_axes)
    return 2 * num_results * num_terms


def _operands(rest: str) -> list[str]:
    return re.findall(r"%([\w.\-]+)", rest.split(")")[0])


def _bytes_of(arrays: list[tuple[str, str]]) -> int:
    """Returns the bytes of arrays, each as XLA writes it: its dtype, and its sizes with commas."""
    total = 0
    for dtype, sizes in arrays:
        total += BYTES.get(dtype, 4) * math.prod(_sizes(sizes))
    return total


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size]


def _trips(rest: str, computations: dict[str, list[tuple[str, str, str, str]]]) -> int:
    """Returns how often a while loop runs; XLA writes it down, or the condition compares a counter from 0 with it."""
    known = TRIPS.search(rest)
    if known:
        return int(known[1])
    condition = computations[re.findall(r"condition=%([\w.\-]+)", rest)[0]]
    bounds = [int(rest.split(")")[0]) for _, _, operation, rest in condition if operation == "constant"]
    if len(bounds) != 1 or "direction=LT" not in condition[-1][3]:
        raise ValueError(f"A loop of unknown length: {rest[:200]}")
    return bounds[0]


def _kernel_name(rest: str) -> str:
    """Returns the name given to a Pallas call, from its place in the traced program.

    A name is wrapped in the names of the transformations that made it, as in `transpose(jvp(name))`.
    """
    op_name = re.search(r'op_name="([^"]*)"', rest)
    parts = op_name[1].split("/") if op_name else []
    if "pallas_call" not in parts:
        return "unnamed"
    return re.sub(r"^(\w+\()*|\)*$", "", parts[parts.index("pallas_call") - 1])
