"""UL2's mixture of denoisers (Tay et al. 2022, arXiv:2205.05131, section 3.1.2 and table 1).

Seven ways to corrupt a row, in equal shares: R corrupts short spans, S the end of the row, X many
tokens or long spans. A mode token before the inputs names the mode; a fine-tuning run chooses one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import seqio
import tensorflow as tf

from limba.config import ConfigError, InputError
from limba.data.objectives.spans import num_noise
from limba.data.objectives.token_blocks import (
    Features,
    Rows,
    Side,
    check_targets,
    padded,
    require_sentinels,
    rows_of_blocks,
    stacked,
)
from limba.data.vocabulary.load import num_sentinels

MODES = ("R", "S", "X")
TOKENS_PER_BLOCK = 20_000  # about: a saved data position may hold one block of tokens and one of rows
CYCLES_PER_BLOCK = 4
_SEEDS = 3  # of a denoiser's rows in a block: for the number of spans, for noise, for text


@dataclass(frozen=True)
class Denoiser:
    """One row of the paper's table 1. A mean span of None is S: one span, at the end of the row."""

    mode: str
    mean_noise_span_length: float | None
    noise_density: float
    share: int = 1  # rows in each cycle of the mixture

    def __post_init__(self) -> None:
        mean = self.mean_noise_span_length
        possible = self.mode in MODES and self.share >= 1 and 0 < self.noise_density <= 0.5
        if not possible or (mean is not None and mean < 1):
            raise InputError(
                f"{self} is not possible; give a mode of {', '.join(MODES)}, a mean span of 1 or more, a density "
                "above 0 and up to 0.5, and a share of 1 or more."
            )


UL2 = (
    Denoiser("R", 3.0, 0.15),
    Denoiser("R", 8.0, 0.15),
    Denoiser("S", None, 0.25),
    Denoiser("X", 3.0, 0.5),
    Denoiser("X", 8.0, 0.5),
    Denoiser("X", 64.0, 0.15),
    Denoiser("X", 64.0, 0.5),
)


def mode_ids(vocabulary: seqio.Vocabulary) -> dict[str, int]:
    """Returns the ids of the mode tokens: the vocabulary's last three sentinels.

    So <extra_id_0>, <extra_id_1>, … keep their meaning, and the ids do not depend on the rows' length. With 100
    sentinels [R], [S], [X] are <extra_id_97>, <extra_id_98>, <extra_id_99>. Raises ConfigError where
    the vocabulary has fewer than three sentinels.

    >>> mode_ids(seqio.ByteVocabulary(100))
    {'R': 261, 'S': 260, 'X': 259}
    """
    require_sentinels(vocabulary, len(MODES), "UL2's mode tokens", "another DataConfig.vocabulary")
    lowest = vocabulary.vocab_size - num_sentinels(vocabulary)
    return {mode: lowest + len(MODES) - 1 - place for place, mode in enumerate(MODES)}


def most_spans(noise: int, mean_noise_span_length: float) -> int:
    """Returns the maximum number of spans of a row; rows have this number or one less, to give the mean length."""
    return max(math.ceil(noise / mean_noise_span_length), 1)


def denoiser_lengths(inputs_length: int, denoiser: Denoiser) -> tuple[int, int]:
    """Returns (raw tokens, longest targets) of rows whose inputs fit, mode token and end included.

    >>> denoiser_lengths(512, UL2[0]), denoiser_lengths(512, UL2[2]), denoiser_lengths(512, UL2[6])
    ((566, 115), (511, 256), (1004, 511))

    Raises ConfigError if no such row exists.
    """
    if denoiser.mean_noise_span_length is None:
        raw = inputs_length - 1
        longest = 2 * _mean_end(raw, denoiser.noise_density) - 1
        if raw >= 8:
            return raw, longest + 1
    else:
        fitting = None
        raw = inputs_length - 2
        while raw >= 2:
            noise, _ = num_noise(raw, denoiser.noise_density, denoiser.mean_noise_span_length)
            spans = most_spans(noise, denoiser.mean_noise_span_length)
            if raw - noise + spans + 2 > inputs_length:
                break
            if spans <= raw - noise:
                fitting = raw, noise + spans + 1
            raw += 1
        if fitting is not None and inputs_length >= 16:
            return fitting
    raise ConfigError(
        "DataConfig.task_feature_lengths",
        f"gives 'inputs' {inputs_length}, too short for UL2's denoisers; give 16 or more.",
    )


def _mean_end(raw: int, share: float) -> int:
    return max(int(np.round(raw * share)), 1)


def ul2_lengths(lengths: Mapping[str, int], denoisers: Sequence[Denoiser] = UL2) -> dict[str, int]:
    """Returns {"inputs", "targets"}, the targets long enough for every denoiser.

    >>> ul2_lengths({"inputs": 512})
    {'inputs': 512, 'targets': 512}
    """
    return {
        "inputs": lengths["inputs"],
        "targets": max(denoiser_lengths(lengths["inputs"], denoiser)[1] for denoiser in denoisers),
    }


def ul2(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    denoisers: Sequence[Denoiser] = UL2,
    mode_tokens: bool = True,
    append_eos: bool = True,
) -> tf.data.Dataset:
    """Returns {"inputs", "targets"}, int32, of {"targets": int32 [n]}: rows of the denoisers in their shares.

    Rows come in cycles that have each denoiser `share` times, in random order. A row takes as many tokens as fill its
    inputs (R 566, X 64/50 % 1004 for 512), so that each token of the stream is used once. R's and X's spans are cut as
    t5 cuts them, all masks being equally likely (the paper's own code, appendix 9.2), but the number of spans is drawn
    between the two nearest integers, so that the mean length is the configured one: t5 would make spans of 90 where 64
    are configured. S cuts off an end whose length is uniform, with mean 25 % of the row, and has no sentinel.

    Raises ConfigError if the lengths do not fit or the vocabulary has too few sentinels: 512 inputs
    need 128 for X 3/50 % and three for the modes.
    """
    denoisers = tuple(denoisers)
    needed = ul2_lengths(sequence_length, denoisers)
    check_targets("UL2", sequence_length, needed["targets"])
    vocabulary = output_features["targets"].vocabulary
    modes = mode_ids(vocabulary)
    spans = max(_most_sentinels(needed["inputs"], denoiser) for denoiser in denoisers)
    require_sentinels(
        vocabulary, spans + len(MODES) * mode_tokens, f"UL2 of {needed['inputs']} inputs", "shorter inputs"
    )
    rows_of, num_tokens = _graph_function(
        needed["inputs"],
        needed["targets"],
        denoisers,
        tuple(modes[denoiser.mode] for denoiser in denoisers) if mode_tokens else None,
        vocabulary.vocab_size - 1,
        vocabulary.eos_id if append_eos else None,
    )
    return rows_of_blocks(dataset, num_tokens, rows_of)


def _most_sentinels(inputs_length: int, denoiser: Denoiser) -> int:
    if denoiser.mean_noise_span_length is None:
        return 0
    noise, _ = num_noise(denoiser_lengths(inputs_length, denoiser)[0], denoiser.noise_density, 1.0)
    return most_spans(noise, denoiser.mean_noise_span_length)


@functools.lru_cache(maxsize=16)
def _graph_function(
    inputs_length: int,
    targets_length: int,
    denoisers: tuple[Denoiser, ...],
    modes: tuple[int, ...] | None,
    top_sentinel: int,
    end: int | None,
) -> tuple[Callable[[tf.Tensor, tf.Tensor], Rows], int]:
    """Returns (rows of a block and its seed, tokens of a block), traced once for all shards of a process."""
    raws = [denoiser_lengths(inputs_length, denoiser)[0] for denoiser in denoisers]
    cycle = np.repeat(np.arange(len(denoisers)), [denoiser.share for denoiser in denoisers])
    tokens_per_cycle = int(np.take(raws, cycle).sum())
    num_cycles = max(min(TOKENS_PER_BLOCK // tokens_per_cycle, CYCLES_PER_BLOCK), 1)
    num_tokens = num_cycles * tokens_per_cycle

    densities = np.array([denoiser.noise_density for denoiser in denoisers], np.float32)
    means = np.array([denoiser.mean_noise_span_length or 0.0 for denoiser in denoisers], np.float32)
    signature = [
        tf.TensorSpec([None, None], tf.int32),
        tf.TensorSpec([_SEEDS, 2], tf.int64),
        tf.TensorSpec([], tf.int32),
    ]

    def of(values: np.ndarray, number: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.constant(values), number)

    def rows(inputs: Side, targets: Side, number: tf.Tensor) -> Rows:
        mode = None if modes is None else of(np.array(modes, np.int32), number)
        return padded(inputs, targets, (inputs_length, targets_length), mode, end)

    # Traced once for all denoisers of a kind: seven times over would take seconds.
    @tf.function(autograph=False, input_signature=signature)
    def with_spans(tokens: tf.Tensor, seeds: tf.Tensor, number: tf.Tensor) -> Rows:
        return rows(*corrupt_spans(tokens, seeds, of(densities, number), of(means, number), top_sentinel), number)

    @tf.function(autograph=False, input_signature=signature)
    def without_end(tokens: tf.Tensor, seeds: tf.Tensor, number: tf.Tensor) -> Rows:
        return rows(*split_end(tokens, seeds, of(densities, number)), number)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([2], tf.int64)])
    def rows_of(tokens: tf.Tensor, seed: tf.Tensor) -> Rows:
        seeds = tf.random.split(seed, _SEEDS * (len(denoisers) + 1) + 1)
        draws = tf.random.stateless_uniform([num_cycles, len(cycle)], seeds[-1])
        layout = tf.reshape(tf.gather(tf.constant(cycle, tf.int32), tf.argsort(draws)), [-1])
        ends = tf.cumsum(tf.gather(tf.constant(raws, tf.int32), layout))
        starts = tf.pad(ends[:-1], [[1, 0]])
        # Only the end of a finite stream is less than a whole block: it is padded, and the rows that begin in the
        # padding are dropped.
        num_given = tf.size(tokens)
        whole = tf.pad(tokens, [[0, num_tokens - num_given]])
        parts, places = [], []
        for number, raw in enumerate(raws):
            own = tf.where(layout == number)[:, 0]
            own = tf.ensure_shape(own, [num_cycles * denoisers[number].share])
            segments = tf.gather(whole, tf.gather(starts, own)[:, None] + tf.range(raw))
            kind = without_end if denoisers[number].mean_noise_span_length is None else with_spans
            parts.append(kind(segments, seeds[_SEEDS * number : _SEEDS * (number + 1)], number))  # pyright: ignore[reportArgumentType]
            places.append(own)
        in_order = tf.argsort(tf.concat(places, 0))
        made = {name: tf.gather(value, in_order) for name, value in stacked(parts).items()}
        num_whole = tf.reduce_sum(tf.cast(ends <= num_given, tf.int32))
        made = {name: value[:num_whole] for name, value in made.items()}
        used = tf.gather(tf.pad(ends, [[1, 0]]), num_whole)

        def with_rest() -> Rows:
            # The remaining tokens fill part of a row, which is corrupted separately.
            number = layout[num_whole]
            rest = (tokens[None, used:], seeds[-1 - _SEEDS : -1], number)
            return stacked(
                [made, tf.cond(of(means, number) > 0, lambda: with_spans(*rest), lambda: without_end(*rest))]
            )

        return tf.cond(used < num_given, with_rest, lambda: made)

    return rows_of, num_tokens


def split_end(tokens: tf.Tensor, seeds: tf.Tensor, share: tf.Tensor) -> tuple[Side, Side]:
    """Returns (inputs, targets) of tokens int32 [B, L]: an end of uniform length, its mean `share` of L."""
    length = tf.shape(tokens)[1]
    chance = tf.random.stateless_uniform([tf.shape(tokens)[0]], seeds[0])  # pyright: ignore[reportArgumentType]
    mean = tf.maximum(tf.cast(tf.round(tf.cast(length, tf.float32) * share), tf.int32), 1)
    ends = 1 + tf.cast(tf.floor(chance * tf.cast(2 * mean - 1, tf.float32)), tf.int32)
    is_end = tf.range(length)[None] >= length - ends[:, None]
    return (tokens, tf.logical_not(is_end)), (tokens, is_end)


def corrupt_spans(
    tokens: tf.Tensor, seeds: tf.Tensor, noise_density: tf.Tensor, mean_noise_span_length: tf.Tensor, top_sentinel: int
) -> tuple[Side, Side]:
    """Returns (inputs, targets) of tokens int32 [B, L], without mode and end, from seeds [3, 2].

    Rows begin with text and end with noise. Their number of spans is one of the two integers nearest to the value for
    the mean length, at least 1.
    """
    num_rows, length = tf.shape(tokens)[0], tf.shape(tokens)[1]
    padded_length = tf.maximum(length, 2)
    noise = tf.cast(tf.round(tf.cast(padded_length, tf.float32) * noise_density), tf.int32)
    noise = tf.minimum(tf.maximum(noise, 1), padded_length - 1)
    text = padded_length - noise
    chance = tf.random.stateless_uniform([num_rows], seeds[0])  # pyright: ignore[reportArgumentType]
    spans = tf.cast(tf.floor(tf.cast(noise, tf.float32) / mean_noise_span_length + chance), tf.int32)
    spans = tf.minimum(tf.maximum(spans, 1), tf.minimum(noise, text))
    most = tf.reduce_max(spans)
    lengths = [
        _segment_lengths(items, spans, most, tf.random.stateless_uniform(tf.stack([num_rows, items - 1]), seed))
        for items, seed in ((text, seeds[1]), (noise, seeds[2]))
    ]
    # The parity of a span's number, repeated over its length, is the mask; spans that a row lacks are empty.
    parity = tf.tile(tf.constant([False, True]), [num_rows * most])  # pyright: ignore[reportArgumentType]
    is_noise = tf.repeat(parity, tf.reshape(tf.stack(lengths, 2), [-1]))
    is_noise = tf.reshape(is_noise, [num_rows, padded_length])[:, :length]
    return _with_sentinels(tokens, is_noise, top_sentinel), _with_sentinels(
        tokens, tf.logical_not(is_noise), top_sentinel
    )


def _segment_lengths(num_items: tf.Tensor, num_segments: tf.Tensor, most: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Returns int32 [B, most]: num_segments [B] positive lengths a row that add up to num_items, then zeros."""
    starts = tf.argsort(draws) < num_segments[:, None] - 1
    numbers = tf.pad(tf.cumsum(tf.cast(starts, tf.int32), axis=1), [[0, 0], [1, 0]])
    num_rows = tf.shape(draws)[0]
    flat = tf.reshape(numbers + most * tf.range(num_rows)[:, None], [-1])
    return tf.reshape(tf.math.unsorted_segment_sum(tf.ones_like(flat), flat, num_rows * most), [num_rows, most])


def _with_sentinels(tokens: tf.Tensor, is_span: tf.Tensor, top_sentinel: int) -> Side:
    """Replaces each run of true values in a row by one sentinel, counted down from the top."""
    follows = tf.pad(is_span[:, :-1], [[0, 0], [1, 0]])
    first = is_span & tf.logical_not(follows)
    sentinels = top_sentinel + 1 - tf.cumsum(tf.cast(first, tokens.dtype), axis=1)
    return tf.where(first, sentinels, tokens), tf.logical_not(is_span & follows)
