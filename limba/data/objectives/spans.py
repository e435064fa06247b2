"""Span corruption on blocks of rows (Raffel et al. 2020, arXiv:1910.10683, section 3.1.4).

A block of rows is cut from the stream of tokens and corrupted at once. For the same draws the rows are exactly t5's,
which shuffles spans by sorting random numbers, too.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from limba.config import ConfigError
from limba.data.dataset import Dataset, preprocessor
from limba.data.draws import Words, order_of
from limba.data.objectives.token_blocks import (
    NAMES,
    Features,
    Rows,
    Sentinels,
    check_targets,
    require_sentinels,
    rows_of_blocks,
)

LONGEST_RAW = 200  # tokens of a row for each of its inputs; a higher density leaves nearly no text
SHORTEST = 16  # inputs, with T5's choices
TRIED = 8  # mean spans, to name one that fits


@functools.cache  # single precision in numpy costs as much as the rows' masks
def num_noise(length: int, noise_density: float, mean_noise_span_length: float) -> tuple[int, int]:
    """Returns (noise tokens, noise spans) of a row of `length` tokens, each at least 1.

    >>> num_noise(568, 0.15, 3.0)
    (85, 28)
    """
    length = max(length, 2)
    # Single precision and rounding half to even, as in t5's graph: double precision rounds some halves differently.
    noise = int(np.round(np.float32(length) * np.float32(noise_density)))
    noise = min(max(noise, 1), length - 1)
    spans = int(np.round(np.float32(noise) / np.float32(mean_noise_span_length)))
    return noise, max(spans, 1)


def raw_and_targets(
    inputs_length: int, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> tuple[int, int]:
    """Returns (raw tokens, targets length) that fill inputs of `inputs_length`; both sides include their end.

    >>> raw_and_targets(512)
    (568, 114)

    Raises ConfigError if no such row exists.
    """

    if not (0 < noise_density < 1 and mean_noise_span_length >= 1):
        raise ConfigError(
            "DataConfig.noise_density",
            f"{noise_density} with DataConfig.mean_noise_span_length {mean_noise_span_length} is not possible; "
            "give a density between 0 and 1 and a mean span of 1 or more.",
        )
    lengths = _fitting_lengths(inputs_length, noise_density, mean_noise_span_length)
    if lengths is None:
        raise _advice(inputs_length, noise_density, mean_noise_span_length)
    return lengths


def span_corruption_lengths(
    lengths: Mapping[str, int], noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> dict[str, int]:
    """Returns {"inputs", "targets"}, without padding (512 and 114)."""
    targets = raw_and_targets(lengths["inputs"], noise_density, mean_noise_span_length)[1]
    return {"inputs": lengths["inputs"], "targets": targets}


def _fitting_lengths(inputs_length: int, noise_density: float, mean_noise_span_length: float) -> tuple[int, int] | None:
    """Returns `raw_and_targets`; None if there is no such row."""

    def lengths(raw: int) -> tuple[int, int]:
        noise = round(raw * noise_density)
        spans = round(noise / mean_noise_span_length)
        return raw - noise + spans + 1, noise + spans + 1

    # The most raw tokens whose inputs fit. One more never has shorter inputs, so they need not be tried one by one.
    choices = range(inputs_length, LONGEST_RAW * inputs_length + 2)
    raw = inputs_length - 1 + bisect.bisect_right(choices, inputs_length, key=lambda raw: lengths(raw)[0])
    if raw > LONGEST_RAW * inputs_length:
        return None
    targets = lengths(raw)[1]
    if noise_density == 0.5 and targets > inputs_length:
        # t5 makes both sides equal here, since that is more likely a round number.
        raw -= 1
        targets -= 1
    noise, spans = num_noise(raw, noise_density, mean_noise_span_length) if raw >= 2 else (0, 0)
    if not 0 < spans <= min(noise, raw - noise) or raw - noise + spans + 1 > inputs_length:
        return None
    return raw, max(targets, noise + spans + 1)


def _advice(inputs_length: int, noise_density: float, mean_noise_span_length: float) -> ConfigError:
    """Returns the error for choices without a row: which of the three has to change, and to what."""
    choices = f"density {noise_density} and mean span {mean_noise_span_length}"
    highest = 1 - 1 / (1 + mean_noise_span_length)  # a token of text between two spans
    if noise_density > highest:
        return ConfigError(
            "DataConfig.noise_density",
            f"is {noise_density}, and spans of DataConfig.mean_noise_span_length {mean_noise_span_length} tokens with a"
            f" token of text between them allow at most {math.floor(100 * highest) / 100}; give a lower density.",
        )
    if inputs_length < SHORTEST and _fitting_lengths(SHORTEST, noise_density, mean_noise_span_length):
        return ConfigError(
            "DataConfig.task_feature_lengths",
            f"gives 'inputs' {inputs_length}, too short for span corruption with {choices}; give {SHORTEST} or more.",
        )
    noise = int(min(inputs_length / (1 - noise_density), LONGEST_RAW * inputs_length) * noise_density)
    means = range(min(noise, int(min(mean_noise_span_length, noise))), 0, -1)
    for mean in itertools.islice(means, TRIED):
        if _fitting_lengths(inputs_length, noise_density, mean):
            return ConfigError(
                "DataConfig.mean_noise_span_length",
                f"is {mean_noise_span_length}, longer than all noise of a row of {inputs_length} inputs with density"
                f" {noise_density}; give at most {mean}, or longer inputs in DataConfig.task_feature_lengths.",
            )
    return ConfigError(
        "DataConfig.noise_density",
        f"is {noise_density}, too high for span corruption of {inputs_length} inputs with DataConfig."
        f"mean_noise_span_length {mean_noise_span_length}; give a lower density, such as 0.15.",
    )


@preprocessor
def span_corruption(
    dataset: Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    append_eos: bool = True,
) -> Dataset:
    """Returns {"inputs", "targets"}, int32, of {"targets": int32 [n]}, one row of the token stream each.

    Each span of noise becomes one sentinel in the inputs; the targets are the sentinels, each followed
    by its span. Sentinels count down from the top of the vocabulary, or stand where it has them. Rows fill
    `sequence_length` exactly (512/114 from 568 tokens); the last row of a finite stream is padded with zeros.

    Raises ConfigError if the lengths do not fit or the vocabulary has too few sentinels.

    >>> row = next(iter(span_corruption(tokens, {"inputs": 24}, features)))
    >>> tuple(features[name].vocabulary.decode(row[name]) for name in ("inputs", "targets"))
    ('To be, or not to be, t', 'hat ')
    """
    raw, targets_length = raw_and_targets(sequence_length["inputs"], noise_density, mean_noise_span_length)
    check_targets("span corruption", sequence_length, targets_length)
    vocabulary = output_features["targets"].vocabulary
    noise, spans = num_noise(raw, noise_density, mean_noise_span_length)
    require_sentinels(
        vocabulary,
        spans,
        f"Span corruption of {sequence_length['inputs']} inputs",
        "shorter inputs, or a longer mean span",
        may_be_bytes=True,
    )
    widths = (raw - noise + spans + append_eos, noise + spans + append_eos)
    sentinels = Sentinels(vocabulary)
    rows_of = functools.partial(
        _rows_of_block,
        raw=raw,
        widths=widths,
        choices=(
            sentinels.top,
            vocabulary.eos_id if append_eos else None,
            noise_density,
            mean_noise_span_length,
        ),
    )

    return rows_of_blocks(dataset, dataset.rows_per_block * raw, sentinels.placed(rows_of))


def _rows_of_block(
    tokens: np.ndarray,
    words: Words,
    raw: int,
    widths: tuple[int, int],
    choices: tuple[int, int | None, float, float],
) -> Rows:
    """Returns the rows, inputs [R, I] and targets [R, T], of a block's tokens [n] and its random numbers.

    Only the end of a finite stream is less than a whole block; its last, shorter row is corrupted separately, draws
    after the others, and is padded with zeros.
    """
    num_rows, rest = divmod(len(tokens), raw)
    parts = []
    if num_rows:
        whole_rows = tokens[: num_rows * raw].reshape(num_rows, raw)
        parts.append(corrupt_spans(whole_rows, keys_of_rows(whole_rows.shape, words, choices[2]), *choices))
    if rest:
        last_row = tokens[None, num_rows * raw :]
        sides = corrupt_spans(last_row, keys_of_rows(last_row.shape, words, choices[2]), *choices)
        parts.append(
            [np.pad(side, [(0, 0), (0, width - side.shape[1])]) for side, width in zip(sides, widths, strict=True)]
        )
    sides = parts[0] if len(parts) == 1 else [np.concatenate(of_side) for of_side in zip(*parts, strict=True)]
    sizes = [np.full(len(side), side.shape[1]) for side in sides]
    num_tokens = np.full(len(sides[0]), raw)
    if rest:
        num_tokens[-1] = rest
    return dict(zip(NAMES, (sides[0], sizes[0], sides[1], sizes[1], num_tokens), strict=True))


def corrupt_spans(
    tokens: np.ndarray,
    keys: Sequence[np.ndarray],
    top_sentinel: int,
    end: int | None,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (inputs [B, I], targets [B, T]) of tokens int32 [B, L] and the keys of `keys_of_rows`.

    `end` is the id to append, or None. Rows of one length have one I and one T.
    """
    is_noise = random_spans_noise_mask(tokens.shape[1], keys, noise_density, mean_noise_span_length)
    inputs, targets = (_spans_to_sentinels(tokens, is_span, top_sentinel, end) for is_span in (is_noise, ~is_noise))
    return inputs, targets


def keys_of_rows(shape: tuple[int, ...], words: Words, noise_density: float = 0.15) -> list[np.ndarray]:
    """Returns random keys uint32 [B, noise - 1] and [B, text - 1], for tokens of shape [B, L]."""
    num_rows, length = shape
    noise = num_noise(length, noise_density, 1.0)[0]
    text = max(length, 2) - noise
    keys = words.keys(num_rows, noise - 1 + text - 1)
    return [keys[:, : noise - 1], keys[:, noise - 1 :]]


def random_spans_noise_mask(
    length: int, keys: Sequence[np.ndarray], noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> np.ndarray:
    """Returns bool [B, length], true in the noise, from the keys of `keys_of_rows`.

    Spans alternate, beginning with text and ending with noise. The numbers of noise tokens and of spans follow
    from the length; all masks with these numbers are equally likely.
    """
    noise, spans = num_noise(length, noise_density, mean_noise_span_length)
    padded = max(length, 2)
    num_rows = len(keys[0])
    spans = min(spans, padded - noise)  # the last row of a stream may have fewer tokens of text than spans
    noise_lengths = _random_segments(noise, spans, keys[0])
    text_lengths = _random_segments(padded - noise, spans, keys[1])
    span_lengths = np.stack([text_lengths, noise_lengths], 2)
    # The parity of a span's number, repeated over its length, is the mask.
    is_noise = np.repeat(np.tile([False, True], num_rows * spans), span_lengths.reshape(-1))
    return is_noise.reshape(num_rows, padded)[:, :length]


def _random_segments(num_items: int, num_segments: int, keys: np.ndarray) -> np.ndarray:
    """Returns int [B, num_segments]: positive lengths that add up to num_items, by keys [B, num_items - 1]."""
    # t5 shuffles ones among zeros by sorting random numbers.
    is_start = order_of(keys) < num_segments - 1
    edges = np.zeros([len(keys), num_segments + 1], np.int64)
    starts = np.flatnonzero(is_start).reshape(len(keys), num_segments - 1)  # counted through all rows
    edges[:, 1:-1] = starts - (num_items - 1) * np.arange(len(keys))[:, None] + 1
    edges[:, -1] = num_items
    return np.diff(edges)


def _spans_to_sentinels(tokens: np.ndarray, is_span: np.ndarray, top_sentinel: int, end: int | None) -> np.ndarray:
    """Replaces each run of true values in a row by one sentinel, counted down from the top, and appends the end."""
    stays = np.ones_like(is_span)
    stays[:, 1:] = ~(is_span[:, 1:] & is_span[:, :-1])
    # By places, since numpy takes twice as long to select by a mask that the processor cannot foresee.
    places = np.flatnonzero(stays)
    kept = tokens.reshape(-1).take(places).astype(np.int32, copy=False)
    sentinels = np.flatnonzero(is_span.reshape(-1).take(places))
    num_spans = len(sentinels) // len(tokens)  # the same in each row
    kept[sentinels] = np.tile(top_sentinel - np.arange(num_spans, dtype=np.int32), len(tokens))
    kept = kept.reshape(len(tokens), -1)
    if end is None:
        return kept
    ended = np.full([len(kept), kept.shape[1] + 1], end, np.int32)
    ended[:, :-1] = kept
    return ended
