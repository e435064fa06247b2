"""Which size to train on some hardware in some days, for how many steps, with the reasons.

The rules: the largest size that sees 20 tokens a parameter, which use a budget of compute best (Hoffmann et al. 2022,
arXiv:2203.15556; measured on decoder-only models, and used here for T5s too, for which no such law is published), in
the time and in 40 passes over the text. Up to 4 are worth nearly as much as new text (Muennighoff et al. 2023,
arXiv:2305.16264), and 64 cost T5 little (Raffel et al. 2020, arXiv:1910.10683, table 9). Speed and hours are a range,
those of `limba preflight` before it compiles (`compiled/instant.py`); the slow end of it fits into the days.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from limba.api import flops_per_sequence, read_model
from limba.config import ModelConfig
from limba.config.prices import DATE
from limba.config.speed import BESIDE, hours_of_run, in_range, in_time, step_seconds
from limba.tools.corpus.counting import SMALL, Counted
from limba.tools.corpus.hardware import Hardware
from limba.tools.corpus.survey import Survey

BEST_RATIO, LEAST_RATIO, MOST_RATIO = 20, 5, 400  # tokens a parameter
FREE_EPOCHS, MOST_EPOCHS = 4, 40
SIZES = {
    "t5": ("tiny", "mini", "little", "small", "base", "large", "xl", "xxl"),
    "lm": ("tiny", "0.05b", "0.1b", "1.0b"),
    "encoder": ("tiny", "small", "base", "large"),
}
FILES = {
    "t5": "gin/models/t5_1_1/{}.gin",
    "lm": "gin/models/lm_modern/{}.gin",
    "encoder": "gin/models/encoder/{}.gin",
}
PUBLISHED = {  # that a run of this kind can go on from
    "t5": "--from=google/umt5-base",
    "lm": "--from= with a decoder-only model of the hub (Llama, GPT-2)",
    "encoder": "--from= with an encoder of the hub (EuroBERT, ModernBERT)",
}
ABOUT = {"t5": "T5 1.1", "lm": "decoder-only", "encoder": "encoder"}
# Up to so many bytes of text, and up to such a width of the model, a vocabulary has at most these ids.
IDS_OF_TEXT = ((1 << 17, 1_000), (1 << 19, 2_000), (1 << 20, 4_000), (1 << 23, 8_000), (1 << 26, 16_000),
               (1 << 30, 32_000))  # fmt: skip
IDS_OF_WIDTH = ((128, 4_000), (256, 8_000), (384, 16_000), (512, 32_000))
MOST_IDS = 64_000
ROWS_OF_WIDTH = ((128, 32), (384, 64), (768, 128), (1024, 256), (2048, 512))  # of a batch, at most; wider: 1,024
ROWS_A_DEVICE = ((128, 64), (512, 32), (768, 16), (1024, 8), (2048, 4))  # at once; more are micro-batches
LEAST_ROWS, FEW_STEPS = 16, 2_000  # a batch is halved down to the first, while a run has fewer steps than the second
LITTLE_TEXT = 5e6  # tokens, below which rows are short, so that a step has more of them
# By kind, of long rows and of short ones: inputs, targets, tokens of text. A T5 hides 15 % in spans of 3.
LENGTHS = {"t5": ((512, 114, 568), (128, 29, 141)), "lm": ((0, 512, 512), (0, 128, 128))}
LENGTHS["encoder"] = LENGTHS["lm"]
HIDDEN = 0.3  # of an encoder's tokens, the only ones that have logits
SAVED_SHARE, SAVED_SECONDS, RARELY_SECONDS = 0.02, 1800.0, 120.0  # what a preemption costs; of a run of minutes
EVALUATED_SHARE, EVAL_STEPS = 0.05, 20  # of the time, at most; batches of an evaluation
UPDATE_PER_EVALUATION = 3  # forward and backward pass against the forward pass alone


class Start(NamedTuple):
    """A published model that a run goes on from."""

    name: str  # a hub id or a path
    config: ModelConfig
    vocabulary: str  # a path, an address, or 'byte'
    extra_ids: int | None


class Plan(NamedTuple):
    """A proposed run; `reasons` are sentences for the user and for the header of the gin file."""

    kind: str  # t5, lm or encoder
    size: str
    about: str  # the model in words
    config: ModelConfig
    parameters: int
    vocabulary: int  # ids, sentinels included
    rows: int  # of the embedding
    inputs: int
    targets: int
    batch: int
    microbatches: int
    shards: int
    steps: int
    tokens: float  # of text, repetitions included
    epochs: float
    hours: tuple[float, float]  # at least and at most
    share: float  # of the days, at most
    checkpoints: int  # steps between two
    evaluations: int
    eval_steps: int
    log: int
    start: Start | None
    reasons: tuple[str, ...]


@functools.cache
def model_of(kind: str, size: str, rows: int) -> ModelConfig:
    """Returns the network of a size with so many rows of the embedding, from its gin file."""
    return dataclasses.replace(read_model(FILES[kind].format(size)), vocab_size=rows)


def num_parameters(config: ModelConfig) -> int:
    """Returns the parameters of a T5 or of a decoder-only model without biases by formula, without jax.

    >>> num_parameters(ModelConfig(32128, 768, 12, 64, 2048, 12, 12))
    247577856
    """
    d, inner = config.emb_dim, config.num_heads * config.head_dim
    mlp = (len(config.mlp_activations) + 1) * d * config.mlp_dim
    embeddings = (1 if config.logits_via_embedding else 2) * config.vocab_size * d
    if config.is_decoder_only:
        attention = 2 * d * (inner + config.kv_heads * config.head_dim)
        return config.num_decoder_layers * (attention + mlp + 2 * d) + d + embeddings
    encoder = config.num_encoder_layers * (4 * d * inner + mlp + 2 * d) + d
    decoder = config.num_decoder_layers * (8 * d * inner + mlp + 3 * d) + d
    biases = config.num_encoder_layers + config.num_decoder_layers if config.relative_bias_per_layer else 2
    return encoder + decoder + biases * config.num_relpos_buckets * config.num_heads + embeddings


def of_limit(table: tuple[tuple[int, int], ...], value: int, beyond: int) -> int:
    """Returns the entry of the first limit that a value does not exceed.

    >>> of_limit(((128, 4), (512, 8)), 300, 16)
    8
    """
    return next((entry for limit, entry in table if value <= limit), beyond)


class _Choice(NamedTuple):
    """One size on the hardware, for as long as the text and the days allow."""

    size: str
    config: ModelConfig
    counted: Counted
    lengths: tuple[int, int, int]
    unique: float  # tokens of the text, without those of validation
    batch: int
    step_seconds: tuple[float, float]  # at least and at most
    tokens: float

    @property
    def ratio(self) -> float:
        return self.tokens / num_parameters(self.config)


def _choice(
    found: Survey, machine: Hardware, days: float, counts: Callable[[int], Counted], kind: str, start: str | Start
) -> _Choice:
    """Returns the choice of one size, or of a published model."""
    if isinstance(start, Start):
        size, config, counted = "from", start.config, counts(0)
    else:
        width = model_of(kind, start, 128).emb_dim
        ids = min(of_limit(IDS_OF_TEXT, found.bytes, MOST_IDS), of_limit(IDS_OF_WIDTH, width, MOST_IDS))
        counted = counts(ids)
        size, config = start, model_of(kind, start, -(-counted.ids // 128) * 128)
    unique = max(1.0, found.bytes * counted.tokens_per_byte * (1 - found.validation_percent / 100))
    lengths = LENGTHS[kind][machine.setup == "cpu" or unique < LITTLE_TEXT]
    predicted = round(HIDDEN * lengths[1]) if kind == "encoder" else None
    flops, speeds = flops_per_sequence(config, *lengths[:2], predicted), machine.flops_at(config.emb_dim)
    most = of_limit(ROWS_OF_WIDTH, config.emb_dim, 1024)
    least = min(LEAST_ROWS, most) if machine.setup == "cpu" else max(LEAST_ROWS, 8 * machine.devices)
    batch = -(-max(most, least) // machine.devices) * machine.devices
    while True:
        seconds = step_seconds(batch * flops, speeds)
        steps_of_days = days * 24 / hours_of_run(1, seconds)[1]
        tokens = min(steps_of_days * batch * lengths[2], MOST_EPOCHS * unique)
        if tokens / (batch * lengths[2]) >= FEW_STEPS or batch // 2 < least or batch // 2 % machine.devices:
            return _Choice(size, config, counted, lengths, unique, batch, seconds, tokens)
        batch //= 2


def plan(
    found: Survey,
    machine: Hardware,
    days: float,
    counts: Callable[[int], Counted],
    kind: str = "t5",
    given: str | Start | None = None,
    dollars: float | None = None,
) -> Plan:
    """Returns the largest size that sees BEST_RATIO tokens a parameter in the days and in MOST_EPOCHS of the corpus.

    `counts` gives the tokens of a byte for a vocabulary of some ids. Of a size or a published model that is `given`
    only the steps are found. The steps fill the days, but for MOST_EPOCHS. `dollars` a chip-hour replace the list's.
    """
    choice = larger = None
    for size in reversed(SIZES[kind]) if given is None else (given,):
        larger, choice = choice, _choice(found, machine, days, counts, kind, size)
        if choice.ratio >= BEST_RATIO:
            if choice.ratio > MOST_RATIO and larger is not None and larger.ratio >= LEAST_RATIO:
                choice = larger
            break
    assert choice is not None
    row, config, batch = choice.lengths[2], choice.config, choice.batch
    steps = max(1, int(choice.tokens / (batch * row)))
    unit = 10 ** max(0, len(str(steps)) - 2)
    steps = steps // unit * unit  # two digits, and not above what the text and the days give
    a_device = batch // machine.devices
    parts = 1 if machine.setup == "cpu" else _parts(a_device, of_limit(ROWS_A_DEVICE, config.emb_dim, 2))
    most_shards = max(16, machine.devices // 4)  # a host has at least 4 devices, and reads at least one shard
    shards = 1 << int(math.log2(max(1.0, min(most_shards, found.documents / 8))))
    hours = hours_of_run(steps, choice.step_seconds)
    run_seconds = hours[1] * 3600
    slow_step = run_seconds / steps
    saved = max(SAVED_SHARE * run_seconds, RARELY_SECONDS)
    evaluations = min(steps, max(min(200, steps // 5), steps // 100, 1))
    name = choice.size if given is None or isinstance(given, str) else given.name
    plan = Plan(
        kind=kind, size=choice.size, about=f"{ABOUT[kind]} {name}",
        config=config, parameters=num_parameters(config), vocabulary=choice.counted.ids, rows=config.vocab_size,
        inputs=choice.lengths[0], targets=choice.lengths[1], batch=batch, microbatches=parts,
        shards=math.gcd(shards, batch), steps=steps, tokens=float(steps * batch * row),
        epochs=steps * batch * row / choice.unique, hours=hours, share=run_seconds / (days * 86_400),
        checkpoints=max(1, min(steps, int(min(saved, SAVED_SECONDS) / slow_step))),
        evaluations=evaluations,
        eval_steps=max(1, min(EVAL_STEPS, int(evaluations * EVALUATED_SHARE * UPDATE_PER_EVALUATION))),
        log=min(100, max(1, steps // 50)), start=given if isinstance(given, Start) else None, reasons=(),
    )  # fmt: skip
    if plan.start:
        plan = plan._replace(about=plan.start.name)
    return plan._replace(reasons=tuple(_reasons(found, machine, days, choice, plan, dollars)))


def _parts(rows: int, most: int) -> int:
    """Returns the smallest number of equal parts of some rows that have at most `most` of them each.

    >>> _parts(32, 16), _parts(12, 8), _parts(8, 64)
    (2, 2, 1)
    """
    return next(parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts <= most)


def _reasons(
    found: Survey, machine: Hardware, days: float, choice: _Choice, plan: Plan, dollars: float | None
) -> list[str]:
    speeds = [plan.tokens / plan.steps / seconds for seconds in reversed(choice.step_seconds)]
    chip_hours = [hours * machine.chips for hours in plan.hours]
    lines = [
        f"Text: {short(choice.unique)} tokens to train on, counted on {short_bytes(choice.counted.sample)} of it with a"
        f" vocabulary of {choice.counted.made or plan.vocabulary:,} ids; it is read {plan.epochs:.1f} times.",
        f"Time: {machine.reason} (not measured here), give {' to '.join(map(short, speeds))} tokens/s.",
        f"Size: {plan.tokens / plan.parameters:.1f} tokens a parameter; about {BEST_RATIO} use the compute best"
        " (Hoffmann et al. 2022, arXiv:2203.15556, for decoder-only models).",
        f"Cost: {in_time(plan.hours)}, {BESIDE}: at most {_percent(plan.share)} of {_days(days)};"
        f" {in_range(chip_hours)} chip-hours{_money(chip_hours, machine.price, dollars)}.",
    ]
    if choice.counted.made and choice.counted.made < plan.vocabulary:
        is_whole = found.bytes < SMALL  # the run trains its vocabulary on the same text
        of_more = "" if is_whole else "; the run trains on more text, and says how many it found"
        lines.insert(1, (
            f"Vocabulary: {plan.vocabulary:,} ids at most. The {'text' if is_whole else 'sample'} has too few different"
            f" words for more than {choice.counted.made:,}{of_more}."
        ))  # fmt: skip
    if plan.epochs > FREE_EPOCHS:
        lines.insert(1, (
            f"WARNING: more than {FREE_EPOCHS} passes are worth less than new text (Muennighoff et al. 2023,"
            " arXiv:2305.16264). 64 cost T5 little (Raffel et al. 2020, arXiv:1910.10683, table 9: SuperGLUE 71.36 for"
            " 72.03); stop if the validation loss rises."
        ))  # fmt: skip
    text_ends = choice.tokens >= MOST_EPOCHS * choice.unique
    if text_ends and plan.share < 0.8:
        lines.append(
            f"The text gives no more: {MOST_EPOCHS} passes take {_percent(plan.share)} of the time. A larger corpus"
            f" would use it{'' if plan.start else f', or a model that knows much already, by {PUBLISHED[plan.kind]}'}."
        )
    if not plan.start and plan.tokens < LEAST_RATIO * plan.parameters:
        more = "more text" if text_ends else "more days or devices"
        lines.append(f"That is below {LEAST_RATIO} tokens a parameter: {more} would give a better model.")
    if not plan.start and plan.tokens > MOST_RATIO * plan.parameters:
        lines.append(f"That is above {MOST_RATIO} tokens a parameter: a larger --size would learn more of this text.")
    if not plan.start and found.bytes < 1e9:
        lines.append(
            "Below 1 GB of text a published model that goes on with it is better than one from scratch:"
            f" {PUBLISHED[plan.kind]}, or a folder."
        )
    return lines


def _money(chip_hours: Sequence[float], listed: float | None, given: float | None) -> str:
    each = listed if given is None else given
    if each is None:
        return "; --price= adds what they cost"
    dollars = in_range([hours * each for hours in chip_hours], "$")
    return f", {dollars} at ${each:,.2f} each" + (f" (list, {DATE})" if given is None else "")


def _days(days: float) -> str:
    """Returns a number of days in words.

    >>> _days(1), _days(0.5), _days(30)
    ('1 day', '0.5 days', '30 days')
    """
    return f"{days:g} day{'' if days == 1 else 's'}"


def _percent(share: float) -> str:
    """Returns a share in whole percent.

    >>> _percent(0.994), _percent(0.002)
    ('99 %', 'under 1 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.01 else "under 1 %"


def short_bytes(number: float) -> str:
    """Returns a number of bytes in the units that files have.

    >>> short_bytes(3.97e10), short_bytes(860_000), short_bytes(12)
    ('39.7 GB', '860 kB', '12 bytes')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.{1 if number < 100 * size else 0}f} {unit}"
    return f"{number:.0f} bytes"


def short(number: float) -> str:
    """Returns a number with two or three digits and k, M, B or T.

    >>> short(1234567), short(1.5e9), short(99)
    ('1.2 M', '1.5 B', '99')
    """
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.{1 if number < 100 * size else 0}f} {unit}"
    return f"{number:.0f}"
