"""The largest temporaries of a compiled step when its memory is at its peak, by the text that XLA writes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from limba.tools.preflight.compiled.topologies import Figures

LIVE = re.compile(r"^    ([\w.\-]+)\{(\d*)[\d, ]*\}: (\d+) bytes")
REPORTED = re.compile(r"^Memory Space: default \(color=0\)\nTotal bytes: (\d+)", re.MULTILINE)
OP_NAME = re.compile(r'op_name="([^"]*)"')
SHAPE = re.compile(r"\w+\[[\d,]*\]")
# What jax puts around the names of our own code in `op_name`.
WRAPPERS = re.compile(r"(?:transpose|jvp|vmap|checkpoint|rematted_computation|remat\d?|jit|pjit|custom_vjp_call)\(?")
# What else `op_name` has that is not a part of the network: control flow, and the functions around it.
NOT_OF_NETWORK = ("while", "body", "closed_call", "train_step", "dropping", "cond", "shard_map")
NUMBER_SHOWN = 8


def largest(dump: str, text: str, most: int = NUMBER_SHOWN) -> list[Figures]:
    """Returns the largest arrays that are live when a device's memory is at its peak, the largest first.

    Each has "bytes", "shape", "where" (the part of the network, as parameters are named) and "of" ('argument' or
    'temporary'). `dump` is the folder of XLA's texts, `text` the optimized program; [] if XLA wrote none.
    """
    written = sorted(Path(dump).glob("*live-range.txt"), key=lambda path: path.stat().st_size)
    if not written:
        return []
    whole = written[-1].read_text(errors="replace")
    if not text:  # of a program that did not fit
        programs = sorted(Path(dump).glob("*after_optimizations.txt"), key=lambda path: path.stat().st_size)
        text = programs[-1].read_text(errors="replace") if programs else ""
    instructions = _instructions(text)
    arrays = []
    for line in whole.partition("(peak):\n")[2].splitlines():
        match = LIVE.match(line)
        if match is None:
            break
        shapes, op_name, is_argument = instructions.get(match[1], ([], "", False))
        number = int(match[2] or 0)  # in the tuple of arrays that a loop carries
        arrays.append(
            {
                "bytes": int(match[3]),
                "shape": shapes[number] if number < len(shapes) else "",
                "where": part_of_network(op_name),
                "of": "argument" if is_argument else "temporary",
                "name": match[1],
            }
        )
    arrays.sort(key=lambda array: -array["bytes"])
    return arrays[:most]


def peak_bytes(dump: str) -> int:
    """Returns the bytes that are live at the peak of the largest program in the folder; 0 if XLA wrote none."""
    totals = [0]
    for path in Path(dump).glob("*live-range.txt"):
        totals_of_program = re.findall(r"\(cumulative: (\d+) bytes\)", path.read_text(errors="replace"))
        if totals_of_program:
            totals.append(int(totals_of_program[-1]))  # the last one is of the peak
    return max(totals)


def reported_bytes(dump: str) -> int:
    """Returns the bytes of a device's main memory that the largest program in the folder has, by XLA's own report.

    Arguments, and temporaries in the places that they share; a TPU's compiler accepts programs that fit by this number
    and not by jax's analysis. 0 if XLA wrote none.
    """
    totals = [0]
    for path in Path(dump).glob("*memory-usage-report.txt"):
        totals += map(int, REPORTED.findall(path.read_text(errors="replace")))
    return max(totals)


def device_bytes(step: Figures) -> int:
    """Returns the bytes of a device's memory that a compiled step takes, as its compiler counts them.

    jax's analysis counts more for a TPU: by it XL on a v5e-16 takes 18.72 of 15.75 GiB, and the compiler takes it.
    """
    return step.get("reported_bytes") or step["live_bytes"]


def _instructions(text: str) -> dict[str, tuple[list[str], str, bool]]:
    """Returns {instruction: (its shapes, its op_name, whether it is an argument of the program)}."""
    instructions = {}
    inside_entry = False
    for line in text.splitlines():
        if line.startswith(("ENTRY ", "%")):
            inside_entry = line.startswith("ENTRY ")
        start = line.lstrip()
        if not start.startswith(("%", "ROOT %")) or " = " not in start:
            continue
        name, _, rest = start.removeprefix("ROOT ").partition(" = ")
        whole = rest.partition(") ")[0] if rest.startswith("(") else rest.partition(" ")[0]
        op_name = OP_NAME.search(rest)
        is_argument = inside_entry and " parameter(" in rest
        instructions[name.lstrip("%")] = (SHAPE.findall(whole), op_name[1] if op_name else "", is_argument)
    return instructions


def part_of_network(op_name: str) -> str:
    """Returns the part of the network that an instruction belongs to, as jax's `op_name` says.

    >>> part_of_network("jit(train_step)/jvp(Transformer)/encoder/while/body/mlp/wi_0/dot_general")
    'encoder/mlp/wi_0/dot_general'
    >>> part_of_network("state.params['decoder']['layers']['mlp']['wo']['kernel']")
    'params/decoder/layers/mlp/wo/kernel'
    """
    if op_name.startswith("state"):
        return "/".join(part for part in re.split(r"[\[\]'.]+", op_name) if part and part != "state")
    parts = []
    for part in op_name.split("/"):
        name = WRAPPERS.sub("", part).strip("()")
        if name and name not in NOT_OF_NETWORK and not name.startswith("Transformer"):
            parts.append(name)
    return "/".join(dict.fromkeys(parts))


def size_in_words(num_bytes: float) -> str:
    """Returns bytes in GiB, or below a tenth of one in MiB.

    >>> size_in_words(2**31), size_in_words(2**20)
    ('2.00 GiB', '1.0 MiB')
    """
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 / 10 else f"{num_bytes / 2**20:.1f} MiB"


def in_words(arrays: Sequence[Figures]) -> list[str]:
    """Returns one short text for each kind of array: how many, the size of each, shape, where.

    >>> one = {"bytes": 2**29, "shape": "bf16[12,16,512,1024]", "where": "encoder/mlp", "of": "temporary", "name": "x"}
    >>> in_words([one, one, {**one, "where": "params/head", "of": "argument"}])
    ['2 x 0.50 GiB bf16[12,16,512,1024] encoder/mlp', '0.50 GiB bf16[12,16,512,1024] params/head (argument)']
    """
    kinds: dict[str, int] = {}
    for array in arrays:
        what = f"{size_in_words(array['bytes'])} {array['shape']} {array['where'] or array['name']}"
        what += " (argument)" if array["of"] == "argument" else ""
        kinds[what] = kinds.get(what, 0) + 1
    return [f"{number} x {what}" if number > 1 else what for what, number in kinds.items()]
