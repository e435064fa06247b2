"""UL2's mixture of denoisers (Tay et al. 2022, arXiv:2205.05131, section 3.1.2 and table 1).

Seven ways to corrupt a row, in equal shares: R corrupts short spans, S the end of the row, X many
tokens or long spans. A mode token before the inputs names the mode; a fine-tuning run chooses one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from limba.config import ConfigError, InputError
from limba.data.dataset import Dataset, preprocessor
from limba.data.draws import Words, order_of
from limba.data.objectives import token_blocks
from limba.data.objectives.spans import num_noise
from limba.data.objectives.token_blocks import Features
from limba.data.vocabulary.sentinels import sentinel_table
from limba.data.vocabulary.vocabularies import Vocabulary

MODES = ("R", "S", "X")
TOKENS_PER_BLOCK = 20_000  # at most, about: a resumed run makes a block again
ROWS_A_CYCLE = 8  # about: of the rows of a block


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


def mode_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Returns the ids of the mode tokens: the vocabulary's last three sentinels.

    So <extra_id_0>, <extra_id_1>, … keep their meaning, and the ids do not depend on the rows' length. With 100
    sentinels [R], [S], [X] are <extra_id_97>, <extra_id_98>, <extra_id_99>. Raises ConfigError where
    the vocabulary has fewer than three sentinels.

    >>> from limba.data.vocabulary import ByteVocabulary
    >>> mode_ids(ByteVocabulary(100))
    {'R': 261, 'S': 260, 'X': 259}
    """
    token_blocks.require_sentinels(vocabulary, len(MODES), "UL2's mode tokens", "another DataConfig.vocabulary")
    return dict(zip(MODES, sentinel_table(vocabulary)[-len(MODES) :], strict=True))


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
        longest = 2 * max(int(np.round(raw * denoiser.noise_density)), 1) - 1
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


def ul2_lengths(lengths: Mapping[str, int], denoisers: Sequence[Denoiser] = UL2) -> dict[str, int]:
    """Returns {"inputs", "targets"}, the targets long enough for every denoiser.

    >>> ul2_lengths({"inputs": 512})
    {'inputs': 512, 'targets': 512}
    """
    longest = max(denoiser_lengths(lengths["inputs"], denoiser)[1] for denoiser in denoisers)
    return {"inputs": lengths["inputs"], "targets": longest}


@preprocessor
def ul2(
    dataset: Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    denoisers: Sequence[Denoiser] = UL2,
    mode_tokens: bool = True,
    append_eos: bool = True,
) -> Dataset:
    """Returns {"inputs", "targets"}, int32, of {"targets": int32 [n]}: rows of the denoisers in their shares.

    Rows come in cycles that have each denoiser `share` times, in random order. A row takes as many tokens as fill its
    inputs (R 566, X 64/50 % 1004 for 512), so that each token of the stream is used once. R's and X's spans are cut as
    t5 cuts them, all masks being equally likely (the paper's own code, appendix 9.2), but the number of spans is drawn
    between the two nearest integers, so that the mean length is the configured one: t5 would make spans of 90 where 64
    are configured. S cuts off an end whose length is uniform, with mean 25 % of the row, and has no sentinel.

    Raises ConfigError if the lengths do not fit or the vocabulary has too few sentinels: 512 inputs
    need 128 for X 3/50 % and three for the modes.

    >>> row = next(iter(ul2(tokens, {"inputs": 24}, features)))
    >>> features["targets"].vocabulary.decode(row["inputs"])  # before it stands the token of the mode
    'To be, or not to be, '
    """
    denoisers = tuple(denoisers)
    needed = ul2_lengths(sequence_length, denoisers)
    token_blocks.check_targets("UL2", sequence_length, needed["targets"])
    vocabulary = output_features["targets"].vocabulary
    modes = mode_ids(vocabulary)
    spans = max(_most_sentinels(needed["inputs"], denoiser) for denoiser in denoisers)
    token_blocks.require_sentinels(
        vocabulary, spans + len(MODES) * mode_tokens, f"UL2 of {needed['inputs']} inputs", "shorter inputs"
    )
    sentinels = token_blocks.Sentinels(vocabulary)
    rows_of, num_tokens = _block_function(
        needed["inputs"],
        needed["targets"],
        denoisers,
        tuple(modes[denoiser.mode] for denoiser in denoisers) if mode_tokens else None,
        sentinels.top,
        vocabulary.eos_id if append_eos else None,
        most_cycles=max(dataset.rows_per_block // ROWS_A_CYCLE, 1),
    )
    return token_blocks.rows_of_blocks(dataset, num_tokens, sentinels.placed(rows_of))


def _most_sentinels(inputs_length: int, denoiser: Denoiser) -> int:
    if denoiser.mean_noise_span_length is None:
        return 0
    noise, _ = num_noise(denoiser_lengths(inputs_length, denoiser)[0], denoiser.noise_density, 1.0)
    return most_spans(noise, denoiser.mean_noise_span_length)


def _block_function(
    inputs_length: int,
    targets_length: int,
    denoisers: tuple[Denoiser, ...],
    modes: tuple[int, ...] | None,
    top_sentinel: int,
    end: int | None,
    most_cycles: int,
) -> tuple[Callable[[np.ndarray, Words], token_blocks.Rows], int]:
    """Returns (rows of a block and its random numbers, tokens of a block)."""
    raws = np.array([denoiser_lengths(inputs_length, denoiser)[0] for denoiser in denoisers])
    cycle = np.repeat(np.arange(len(denoisers)), [denoiser.share for denoiser in denoisers])
    tokens_per_cycle = int(raws[cycle].sum())
    num_cycles = max(min(TOKENS_PER_BLOCK // tokens_per_cycle, most_cycles), 1)
    num_tokens = num_cycles * tokens_per_cycle

    def rows(tokens: np.ndarray, words: Words, number: int) -> token_blocks.Rows:
        density = denoisers[number].noise_density
        mean = denoisers[number].mean_noise_span_length
        if mean is None:
            sides = split_end(tokens, words, density)
        else:
            sides = corrupt_spans(tokens, words, density, mean, top_sentinel)
        return token_blocks.padded(
            *sides, (inputs_length, targets_length), None if modes is None else modes[number], end
        )

    def rows_of(tokens: np.ndarray, words: Words) -> token_blocks.Rows:
        layout = cycle[order_of(words.keys(num_cycles, len(cycle)))].reshape(-1)
        edges = np.append(0, np.cumsum(raws[layout]))
        # Only the end of a finite stream is less than a whole block: it is padded, and the rows that begin in the
        # padding are dropped.
        whole = np.pad(tokens, (0, num_tokens - len(tokens)))
        places = [np.flatnonzero(layout == number) for number in range(len(denoisers))]
        parts = [
            rows(whole[edges[indices][:, None] + np.arange(raws[number])], words, number)
            for number, indices in enumerate(places)
        ]
        num_whole = int((edges[1:] <= len(tokens)).sum())
        in_order = np.argsort(np.concatenate(places))[:num_whole]
        made = {name: value[in_order] for name, value in token_blocks.stacked(parts).items()}
        rest = tokens[None, edges[num_whole] :]
        # The remaining tokens fill part of a row, which is corrupted separately.
        if not rest.size:
            return made
        return token_blocks.stacked([made, rows(rest, words, layout[num_whole])])

    return rows_of, num_tokens


def split_end(tokens: np.ndarray, words: Words, share: float) -> tuple[token_blocks.Side, token_blocks.Side]:
    """Returns (inputs, targets) of tokens int32 [B, L]: an end of uniform length, its mean `share` of L."""
    num_rows, length = tokens.shape
    chance = words.uniform(num_rows)
    mean = max(int(np.round(np.float32(length) * np.float32(share))), 1)
    ends = 1 + np.floor(chance * np.float32(2 * mean - 1)).astype(np.int32)
    is_end = np.arange(length) >= length - ends[:, None]
    return (tokens, ~is_end), (tokens, is_end)


def corrupt_spans(
    tokens: np.ndarray, words: Words, noise_density: float, mean_noise_span_length: float, top_sentinel: int
) -> tuple[token_blocks.Side, token_blocks.Side]:
    """Returns (inputs, targets) of tokens int32 [B, L], without mode and end.

    Rows begin with text and end with noise. Their number of spans is one of the two integers nearest to the value for
    the mean length, at least 1.
    """
    num_rows, length = tokens.shape
    padded_length = max(length, 2)
    noise = int(np.round(np.float32(padded_length) * np.float32(noise_density)))
    noise = min(max(noise, 1), padded_length - 1)
    text = padded_length - noise
    chance = words.uniform(num_rows)
    of_text = words.keys(num_rows, text - 1)
    of_noise = words.keys(num_rows, noise - 1)
    spans = np.floor(np.float32(noise) / np.float32(mean_noise_span_length) + chance).astype(np.int32)
    spans = np.minimum(np.maximum(spans, 1), min(noise, text))
    lengths = [_segment_lengths(spans, of_text), _segment_lengths(spans, of_noise)]
    # The parity of a span's number, repeated over its length, is the mask; spans that a row lacks are empty.
    parity = np.tile([False, True], lengths[0].size)
    is_noise = np.repeat(parity, np.stack(lengths, 2).reshape(-1)).reshape(num_rows, padded_length)[:, :length]
    return _with_sentinels(tokens, is_noise, top_sentinel), _with_sentinels(tokens, ~is_noise, top_sentinel)


def _segment_lengths(num_segments: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns int [B, most]: num_segments [B] positive lengths a row that add up to n, then zeros; keys [B, n - 1]."""
    starts = order_of(keys) < num_segments[:, None] - 1
    numbers = np.pad(np.cumsum(starts, axis=1), [(0, 0), (1, 0)])
    most = int(num_segments.max(initial=1))
    flat = numbers + most * np.arange(len(keys))[:, None]
    return np.bincount(flat.reshape(-1), minlength=len(keys) * most).reshape(len(keys), most)


def _with_sentinels(tokens: np.ndarray, is_span: np.ndarray, top_sentinel: int) -> token_blocks.Side:
    """Replaces each run of true values in a row by one sentinel, counted down from the top."""
    follows = np.pad(is_span[:, :-1], [(0, 0), (1, 0)])
    first = is_span & ~follows
    sentinels = top_sentinel + 1 - np.cumsum(first, axis=1, dtype=np.int32)
    return np.where(first, sentinels, tokens), ~(is_span & follows)
