"""The rows that a run trains on: their padding, the run's tokens and epochs, and how fast they are read here."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from limba.api import RunData, flops_per_sequence
from limba.config import RunConfig, environment
from limba.config.speed import LEAST_STEP_SECONDS
from limba.tools.preflight.checks.findings import logged, shorter
from limba.tools.preflight.checks.objective import TITLE as OBJECTIVE
from limba.tools.preflight.checks.objective import needed_targets, wasted_share
from limba.tools.preflight.checks.verdict import Data, Line

if TYPE_CHECKING:
    from limba.tools.preflight.compiled.topologies import Topology

PADDED = 0.1  # share of a step's FLOPs for padding that is found in rows
MOST_EPOCHS = 64  # with which T5 lost little (Raffel et al. 2020, table 9); with 256 and more it did
WORDS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
MFU = 0.4  # an assumption: the share of their peak at which devices compute, and so want tokens
MOST_READERS = 16  # processes of a host that read
CORES_OF_HOST = 96  # that a TPU's host, or a node with GPUs, has at least


class Reading(NamedTuple):
    """Some rows of the first data shard, as training reads them."""

    rows: int
    filled: Mapping[str, int]  # real tokens of all rows, by feature
    seconds: float
    cpu_seconds: float


def of_rows(
    config: RunConfig, run: RunData, lengths: Mapping[str, int], chips: Topology | None, seconds: float, data: Data
) -> Iterator[Line]:
    """Yields what rows hold, and how fast they are read; reads for so many seconds."""
    reading = read_for(run, lengths, seconds)
    if not reading.rows:
        yield Line("warning", "The first data shard gives no row.", "give more text", "no-rows")
        return
    filled = _sides(config, reading.filled)
    real = {name: count / reading.rows for name, count in filled.items()}  # tokens of a row
    tokens = sum(real.values())
    data["text_share"] = _text_share(config, run, lengths)
    data["tokens_per_row"] = tokens
    yield from _padding(config, run, _sides(config, lengths), real, data)
    yield from _totals(config, tokens, data)
    yield from _speed(config, run, chips, reading, real, data)


def read_for(run: RunData, lengths: Mapping[str, int], most: float) -> Reading:
    """Returns what reading for `most` seconds has given: batches after the first, or the first where it is alone."""
    rows = 0
    filled = dict.fromkeys(lengths, 0)
    with logged():  # the section has its own lines about units and shards
        batches = run.rows(lengths)
        first = next(batches, None)  # opens files, and is not timed
        began = time.monotonic()
        cpu_began = time.process_time()
        for batch in batches:
            rows += len(next(iter(batch.values())))
            for name in filled:
                filled[name] += int(np.count_nonzero(batch[name]))
            if time.monotonic() - began > most:
                break
        seconds = time.monotonic() - began
        cpu_seconds = time.process_time() - cpu_began
    if not rows and first is not None:
        rows = len(next(iter(first.values())))
        filled = {name: int(np.count_nonzero(first[name])) for name in filled}
    return Reading(rows, filled, seconds, cpu_seconds)


def _sides(config: RunConfig, sides: Mapping[str, int]) -> Mapping[str, int]:
    """Returns the sides of a row that a network reads; an encoder's two are one text, before and after masking."""
    if config.model.is_encoder:
        return {"targets": sides["inputs"]}
    return sides


def _text_share(config: RunConfig, run: RunData, lengths: Mapping[str, int]) -> float:
    """Returns the share of a row's real tokens that is text, and not sentinels."""
    if config.model.is_decoder_only or not run.fills_gaps:
        return 1.0
    with logged():
        batch = next(run.rows(lengths))
    num_sentinels = sum(np.count_nonzero(np.isin(batch[name], run.sentinels)) for name in lengths)
    num_tokens = sum(np.count_nonzero(batch[name]) for name in lengths)
    return 1 - num_sentinels / num_tokens


def _padding(
    config: RunConfig, run: RunData, lengths: Mapping[str, int], real: Mapping[str, float], data: Data
) -> Iterator[Line]:
    """Yields the padding in rows; a warning where packing makes it much less."""
    data["padding"] = {name: 1 - count / lengths[name] for name, count in real.items()}
    inputs = lengths.get("inputs", 0)
    targets = lengths.get("targets", 0)
    waste = wasted_share(config, inputs, real.get("targets", 0), targets, real.get("inputs", 0))
    data["padding_flops_share_of_rows"] = waste
    text = "Padding in the rows that are trained on: "
    text += ", ".join(f"{share:.1%} of the {name}" for name, share in data["padding"].items())
    needed = needed_targets(run, inputs) if inputs else None
    # Padding that follows from the lengths alone has a finding of its own.
    by_lengths = 0.0 if needed is None else wasted_share(config, inputs, needed, targets)
    # Packed rows are as full as their examples allow.
    if waste - by_lengths < PADDED or config.data.pack:
        if by_lengths >= PADDED:
            text += f"; {waste:.0%} of a step's FLOPs, by the lengths: see {OBJECTIVE}"
        yield Line("ok", f"{text}.")
        return
    text += f"; {waste:.0%} of a step's FLOPs"
    left = _padding_if_packed(config, run, inputs, targets)
    if waste - left < PADDED:
        yield Line("ok", f"{text}, and {left:.0%} if rows are packed: two examples seldom fit in one.")
    else:
        yield Line("warning", f"{text}, of which packing leaves {left:.0%}.", ("DataConfig.pack", True), "padding")


def _padding_if_packed(config: RunConfig, run: RunData, inputs: int, targets: int) -> float:
    """Returns the share of FLOPs for padding in some rows of several examples each."""
    packed = RunData(dataclasses.replace(config.data, pack=True), run.task)
    reading = read_for(packed, packed.lengths(), 0.0)
    filled = _sides(config, reading.filled)
    real_inputs = filled.get("inputs", 0) / reading.rows
    real_targets = filled["targets"] / reading.rows
    return wasted_share(config, inputs, real_targets, targets, real_inputs)


def _totals(config: RunConfig, tokens: float, data: Data) -> Iterator[Line]:
    """Yields the tokens of a step and of the run, and its epochs over the corpus where that is known."""
    per_step = tokens * config.data.batch_size
    data["tokens_per_step"] = per_step
    corpus = sum(data.get("corpus_tokens", {}).values())
    steps = corpus / (per_step * data["text_share"])
    data["steps_per_epoch"] = steps
    text = f"{per_step:,.0f} real tokens a step"
    most_epochs = config.data.num_epochs
    if config.train_steps is None or (most_epochs and steps and config.train_steps > most_epochs * steps):
        data["epochs"] = most_epochs
        yield Line("ok", f"{text}; the run ends after {most_epochs} epochs.")
        return
    total = per_step * config.train_steps
    data["tokens_in_all"] = total
    text += f", {in_words(total)} in {config.train_steps:,} steps"
    if not corpus:
        yield Line("ok", f"{text}.")
        return
    epochs = config.train_steps / steps
    data["epochs"] = epochs
    text += f": about {epochs:,.2f}" if epochs < 100 else f": about {epochs:,.0f}"
    text += " epochs over the corpus"
    if epochs <= MOST_EPOCHS:
        yield Line("ok", f"{text}.")
        return
    text += f"; beyond {MOST_EPOCHS} a model learns its text by heart (T5's paper, section 3.4.2)"
    most_steps = max(1, int(MOST_EPOCHS * steps))
    yield Line("warning", f"{text}.", shorter(config, most_steps), "too-many-epochs")


def _speed(
    config: RunConfig, run: RunData, chips: Topology | None, reading: Reading, real: Mapping[str, float], data: Data
) -> Iterator[Line]:
    """Yields the tokens that a core of this machine reads, beside what the chips want to read."""
    tokens = reading.rows * sum(real.values())
    of_core = tokens / max(reading.cpu_seconds, 1e-9)
    by_clock = tokens / max(reading.seconds, 1e-9)
    data["tokens_per_cpu_second"] = of_core
    data["tokens_per_second_of_one_shard"] = by_clock
    text = f"Reading: {of_core / 1e6:.2f} million tokens per second of one core of this machine"
    text += f" ({environment.num_cores()} cores), {by_clock / 1e6:.2f} million by the clock from one data shard"
    if chips is None or not chips.peak_flops or wanted_tokens(config, chips, real) == 0:
        yield Line("ok", f"{text}.")
        return
    wanted = wanted_tokens(config, chips, real) / chips.hosts
    cores = wanted / of_core
    data["tokens_wanted_per_host"] = wanted
    data["cores_wanted_per_host"] = cores
    want = f"1 host of {chips.name} wants" if chips.hosts == 1 else f"{chips.hosts:,} hosts of {chips.name} want"
    text += f"; {want} {wanted / 1e6:.2f} million each at {MFU:.0%} of the peak (an assumption)"
    text += f", the work of {cores:.1f} such cores."
    if cores > CORES_OF_HOST:
        yield Line("warning", text, ("DataConfig.num_reader_processes", MOST_READERS), "reading-too-slow")
        return
    if cores > 2 * config.data.num_reader_processes:
        enough = min(MOST_READERS, int(cores) + 1)
        text += f" More than one process reads faster: DataConfig.num_reader_processes = {enough}."
    yield Line("ok", text)


def wanted_tokens(config: RunConfig, chips: Topology, real: Mapping[str, float]) -> float:
    """Returns the tokens a second that all devices take at MFU of their peak, of rows with these many real tokens.

    A step of a small model takes at least LEAST_STEP_SECONDS, whatever the peak is.
    """
    inputs = round(real.get("inputs", 0))
    targets = round(real.get("targets", 0))
    per_row = flops_per_sequence(config.model, inputs, targets, config.data.num_predicted)
    rows = MFU * chips.peak_flops * chips.devices / per_row if per_row else 0.0
    return min(rows, config.data.batch_size / LEAST_STEP_SECONDS) * sum(real.values())


def in_words(number: float) -> str:
    """Returns a number of tokens or bytes as a reader counts them, to three digits.

    >>> in_words(33_512), in_words(3_014_400), in_words(160_256_000_000), in_words(0)
    ('33,500', '3.01 million', '160 billion', '0')
    """
    for size, word in WORDS:
        if number >= size:
            return f"{float(f'{number / size:.3g}'):,.4g} {word}"
    return f"{float(f'{number:.3g}'):,.0f}"
