"""Which size of T5 1.1 to train, for how many steps, on some hardware in some days, with the reasons.

The rules: 20 tokens a parameter use a budget of compute best (Hoffmann et al. 2022, arXiv:2203.15556; measured on
decoder-only models, and used here for T5s too, for which no such law is published); up to 4 epochs of a corpus are
worth nearly as much as new text (Muennighoff et al. 2023, arXiv:2305.16264); the speed is the matrix products of a
step over the devices' peak, at MFU of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from typing import NamedTuple

from limba.api import read_model
from limba.config import InputError, ModelConfig
from limba.tools.corpus.preparation.survey import Survey

TOKENS_PER_PARAMETER = 20
MOST_EPOCHS = 4
MFU = 0.4  # an assumption, as in the headers of the gin files; a run's log has its own
CPU_GFLOPS = 100.0  # of a core; T5 1.1 small on two cores with AVX-512 has 128 (benchmarks/README.md)
LONG, SHORT = (512, 114, 568), (128, 29, 141)  # inputs, targets and tokens of text of a row: density 0.15, mean span 3
LITTLE_TEXT = 5e6  # tokens, below which rows are short, so that a step has more of them
SIZES = ("tiny", "small", "base", "large", "xl", "xxl")
ROWS_A_DEVICE = {"tiny": 64, "small": 32, "base": 16, "large": 8, "xl": 4, "xxl": 2}  # at once; more are micro-batches
LEAST_STEPS = 100
# From so many bytes of text on: ids of the vocabulary, and letters that one of them spells in scripts with spaces.
VOCABULARIES = ((1 << 30, 64_000, 4.6), (1 << 26, 32_000, 4.4), (1 << 23, 16_000, 4.0), (1 << 20, 8_000, 3.6),
                (1 << 17, 4_000, 3.0), (0, 1_000, 2.2))  # fmt: skip
UNSPACED_LETTERS = 1.7  # that one id spells in scripts without spaces
TPU = re.compile(r"v(\d)(e|p|litepod)?-(\d+)", re.IGNORECASE)
GPU = re.compile(r"(?:(\d+)x)?(a100|h100|h200)(?:x(\d+))?", re.IGNORECASE)
KINDS = {  # of TPUs: jax's name, cores of a chip where the number counts those, chips of a host
    "v2": ("TPU v2", 1), "v3": ("TPU v3", 1), "v4": ("TPU v4", 2), "v5e": ("TPU v5e", 1), "v5litepod": ("TPU v5e", 1),
    "v5p": ("TPU v5p", 2), "v6e": ("TPU v6", 1),
}  # fmt: skip


class Hardware(NamedTuple):
    """Some devices; `flops` is what one of them computes a second, at MFU of its peak."""

    name: str
    setup: str  # the argument of launch/setup.sh: tpu, cuda or cpu
    devices: int
    flops: float
    reason: str


class Plan(NamedTuple):
    """A proposed run; `reasons` are sentences for the user and for the header of the gin file."""

    size: str
    parameters: int
    vocabulary: int  # ids, sentinels included
    rows: int  # of the embedding
    inputs: int
    batch: int
    microbatches: int
    shards: int
    steps: int
    tokens: float  # of text, repetitions included
    epochs: float
    hours: float
    reasons: tuple[str, ...]


def hardware(name: str | None) -> Hardware:
    """Returns the hardware of a name such as v4-8, h100, 8xh100 or cpu; None: that of this machine.

    >>> hardware("v4-8")[:3], hardware("8xh100")[:3]
    (('v4-8', 'tpu', 4), ('8xh100', 'cuda', 8))
    """
    from limba.api import PEAK_TFLOPS

    if name is None or name == "cpu":
        cores = len(os.sched_getaffinity(0))
        return Hardware(
            "cpu", "cpu", 1, cores * CPU_GFLOPS * 1e9, f"{cores} cores of this machine at {CPU_GFLOPS:.0f} GFLOP/s each"
        )
    if match := GPU.fullmatch(name):
        count, kind = int(match[1] or match[3] or 1), match[2].upper()
        setup = "cuda"
    elif (match := TPU.fullmatch(name)) and (key := f"v{match[1]}{(match[2] or '').lower()}") in KINDS:
        kind, cores = KINDS[key]
        count, setup = max(1, int(match[3]) // cores), "tpu"
    else:
        raise InputError(
            f"--hardware={name} is not known; give cpu, a GPU such as h100, a100 or 8xh100, or a TPU such as v4-8,"
            " v5e-8 or v5p-16."
        )
    if count < 1:
        raise InputError(f"--hardware={name} has no device; give a number of 1 or more.")
    peak = PEAK_TFLOPS[kind]
    reason = f"{count} x {kind} at {MFU:.0%} of {peak:g} TFLOP/s"
    return Hardware(name, setup, count, peak * 1e12 * MFU, reason)


@functools.cache
def model_of(size: str, rows: int) -> ModelConfig:
    """Returns T5 1.1 of a size with so many rows of the embedding, from its gin file."""
    return dataclasses.replace(read_model(f"gin/models/t5_1_1/{size}.gin"), vocab_size=rows)


def num_parameters(config: ModelConfig) -> int:
    """Returns the parameters of a T5 1.1 by formula, without jax.

    >>> num_parameters(ModelConfig(32128, 768, 12, 64, 2048, 12, 12))
    247577856
    """
    d, inner = config.emb_dim, config.num_heads * config.head_dim
    mlp = (len(config.mlp_activations) + 1) * d * config.mlp_dim
    encoder = config.num_encoder_layers * (4 * d * inner + mlp + 2 * d) + d
    decoder = config.num_decoder_layers * (8 * d * inner + mlp + 3 * d) + d
    return encoder + decoder + 2 * 32 * config.num_heads + 2 * config.vocab_size * d


def num_tokens(found: Survey) -> tuple[int, float]:
    """Returns (ids of a vocabulary for the corpus, its tokens in that vocabulary, estimated from its letters)."""
    ids, letters = next((ids, letters) for least, ids, letters in VOCABULARIES if found.bytes >= least)
    spaced = (1 - found.unspaced) / letters + found.unspaced / UNSPACED_LETTERS
    return ids, max(1.0, found.letters * spaced)


def plan(found: Survey, machine: Hardware, days: float, size: str | None = None) -> Plan:
    """Returns the largest size that sees TOKENS_PER_PARAMETER tokens in the time and in MOST_EPOCHS of the corpus.

    Of a `size` that is given only the steps are found. The steps fill the time, but for MOST_EPOCHS.
    """
    from limba.api import flops_per_sequence

    ids, unique = num_tokens(found)
    rows = -(-ids // 128) * 128
    inputs, targets, row = SHORT if machine.setup == "cpu" or unique < LITTLE_TEXT else LONG
    data_limit = MOST_EPOCHS * unique
    fitting: list[tuple[str, int, float, float]] = []
    for each in SIZES if size is None else (size,):
        config = model_of(each, rows)
        speed = machine.devices * machine.flops / flops_per_sequence(config, inputs, targets) * row  # tokens a second
        fitting.append((each, num_parameters(config), speed, min(speed * days * 86_400, data_limit)))
    enough = [one for one in fitting if one[3] >= TOKENS_PER_PARAMETER * one[1]]
    name, parameters, speed, tokens = (enough or fitting[:1])[-1]
    batch = 32 if name == "tiny" or machine.setup == "cpu" else 128
    rows_a_device = -(-max(batch, 8 * machine.devices) // machine.devices)
    batch = rows_a_device * machine.devices
    parts = 1 if machine.setup == "cpu" else _parts(rows_a_device, ROWS_A_DEVICE[name])
    steps = max(LEAST_STEPS, int(tokens / (batch * row)))
    steps = round(steps, 2 - len(str(steps)))  # two digits
    tokens = float(steps * batch * row)
    most = max(16, machine.devices // 4)  # a host has at least 4 devices, and reads at least one shard
    shards = 1 << int(math.log2(max(1.0, min(most, found.documents / 8))))
    return Plan(
        name, parameters, ids, rows, inputs, batch, parts, math.gcd(shards, batch), steps, tokens, tokens / unique,
        tokens / speed / 3600, _reasons(found, machine, days, bool(enough), parameters, tokens, speed),
    )  # fmt: skip


def _parts(rows: int, most: int) -> int:
    """Returns the smallest number of equal parts of some rows that have at most `most` of them each.

    >>> _parts(32, 16), _parts(12, 8), _parts(8, 64)
    (2, 2, 1)
    """
    return next(parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts <= most)


def _reasons(
    found: Survey, machine: Hardware, days: float, is_enough: bool, parameters: int, tokens: float, speed: float
) -> tuple[str, ...]:
    hours, (_, unique) = tokens / speed / 3600, num_tokens(found)
    lines = [
        f"Text: about {short(unique)} tokens, estimated from {found.letters:,} letters; 4 epochs of it are"
        f" {short(MOST_EPOCHS * unique)} (more is worth little: Muennighoff et al. 2023, arXiv:2305.16264).",
        f"Time: {machine.reason} (assumed) give about {short(speed)} tokens/s, {short(speed * days * 86_400)} in"
        f" {days:g} days.",
        f"Size: {tokens / parameters:.1f} tokens a parameter; about {TOKENS_PER_PARAMETER} use the compute best"
        " (Hoffmann et al. 2022, arXiv:2203.15556, for decoder-only models).",
    ]
    if not is_enough:
        lines.append(
            f"That is below {TOKENS_PER_PARAMETER}: "
            + ("more text" if MOST_EPOCHS * unique < speed * days * 86_400 else "more days or devices")
            + " would give a better model; or start from an existing one (INITIAL_CHECKPOINT_PATH)."
        )
    elif hours < 0.8 * days * 24:
        lines.append(f"The {MOST_EPOCHS} epochs are done after {hours:.1f} of the {days * 24:.1f} hours.")
    return tuple(lines)


def short(number: float) -> str:
    """Returns a number with two or three digits and k, M, B or T.

    >>> short(1234567), short(1.5e9), short(99)
    ('1.2 M', '1.5 B', '99')
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.{1 if number < 100 * size else 0}f} {unit}"
    return f"{number:.0f}"
