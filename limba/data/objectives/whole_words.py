"""Span corruption of whole words, whose beginnings the pieces of a vocabulary mark.

Raffel et al. 2020 corrupt pieces, and half a word often reveals the other half. Here t5's random
segmentation (arXiv:1910.10683, section 3.1.4) is applied to words instead of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from limba.config import ConfigError, InputError
from limba.data.dataset import Dataset, preprocessor
from limba.data.draws import Words, order_of
from limba.data.objectives.spans import raw_and_targets
from limba.data.objectives.token_blocks import NAMES, Features, Rows, Sentinels, check_targets, rows_of_blocks
from limba.data.vocabulary.sentinels import num_sentinels, sentinel_table
from limba.data.vocabulary.shifted import StreamVocabulary
from limba.data.vocabulary.spelling import first_byte
from limba.data.vocabulary.tokenizers import SPACE, TokenizersVocabulary
from limba.data.vocabulary.vocabularies import ByteVocabulary, SentencePieceVocabulary, Vocabulary

LONGEST_WORD = 16  # pieces; longer runs without a marker (addresses, scripts without spaces) count as several words


def whole_word_span_corruption_lengths(
    lengths: Mapping[str, int], noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> dict[str, int]:
    """Returns {"inputs", "targets"}, the targets a sixteenth longer than span corruption's (512 and 121).

    A row ends when either side is full, and rows differ in their amount of noise: with a sixteenth more, inputs and
    targets together have the least padding.

    >>> whole_word_span_corruption_lengths({"inputs": 512})
    {'inputs': 512, 'targets': 121}
    """
    targets = raw_and_targets(lengths["inputs"], noise_density, mean_noise_span_length)[1]
    return {"inputs": lengths["inputs"], "targets": targets + targets // 16}


@preprocessor
def whole_word_span_corruption(
    dataset: Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    append_eos: bool = True,
) -> Dataset:
    """Returns {"inputs", "targets"}, int32, of {"targets": int32 [n]}: spans begin and end with a word.

    `noise_density` is the share of words that are noise. Spans have the given mean length in tokens, or
    one word where words are longer. All such masks are equally likely. Rows are then cut
    between spans, as long as inputs, targets and sentinels allow, so that no text is lost and every row fits.
    Words of more than 16 pieces count as several.

    Raises ConfigError if the lengths do not fit or the vocabulary has no sentinels, InputError for vocabularies
    that do not mark words.

    >>> row = next(iter(whole_word_span_corruption(tokens, {"inputs": 24}, features)))
    >>> tuple(features[name].vocabulary.decode(row[name]) for name in ("inputs", "targets"))
    ('To be, or not be, that', ' to')
    """
    choices = (noise_density, mean_noise_span_length)
    needed = whole_word_span_corruption_lengths(sequence_length, *choices)
    check_targets("whole-word span corruption", sequence_length, needed["targets"])
    vocabulary = output_features["targets"].vocabulary
    sentinels = num_sentinels(vocabulary)
    if not sentinels:
        raise ConfigError(
            "DataConfig.extra_ids",
            "must be above 0: whole-word span corruption needs sentinels, and the vocabulary has none.",
        )
    limits = (needed["inputs"] - append_eos, sequence_length.get("targets", needed["targets"]) - append_eos, sentinels)
    end = vocabulary.eos_id if append_eos else None
    window = raw_and_targets(needed["inputs"], *choices)[0]
    placed = Sentinels(vocabulary)
    rows_of = _block_function(begins_word(vocabulary), *choices, window, limits, placed.top, end)
    return rows_of_blocks(dataset, dataset.rows_per_block * window, placed.placed(rows_of))


def begins_word(vocabulary: Vocabulary) -> np.ndarray:
    """Returns bool [vocab_size]: the pieces that begin a word, or the bytes of white space.

    SentencePiece marks the piece that follows a space, byte-level BPE has the space in it, and WordPiece marks the
    pieces that go on with a word; there a punctuation mark is a word too. Raises InputError for other vocabularies, and
    if no piece has a marker.
    """
    begins = np.zeros([vocabulary.vocab_size], bool)
    if isinstance(vocabulary, StreamVocabulary):
        begins[vocabulary.offset :] = begins_word(vocabulary.published)
        begins[vocabulary.without_text] = False
        return begins
    if isinstance(vocabulary, TokenizersVocabulary):
        begins[:] = vocabulary.begins_word()
    elif isinstance(vocabulary, ByteVocabulary):
        begins[[first_byte(vocabulary) + byte for byte in b" \t\r\n"]] = True
    elif isinstance(vocabulary, SentencePieceVocabulary):
        pieces = vocabulary.tokenizer
        begins[:] = [pieces.IdToPiece(number).startswith(SPACE) for number in range(vocabulary.vocab_size)]
        begins[sentinel_table(vocabulary)] = False
    if not begins.any():
        raise InputError(
            "Whole words are hidden by pieces that mark where words begin, and the vocabulary has none; set"
            " DataConfig.vocabulary to one of SentencePiece, of byte-level BPE or of WordPiece, or to 'byte', or"
            " DataConfig.objective to 'span_corruption', for an encoder 'masked_lm'."
        )
    return begins


def _block_function(
    begins: np.ndarray,
    noise_density: float,
    mean_noise_span_length: float,
    window: int,
    limits: tuple[int, int, int],
    top_sentinel: int,
    end: int | None,
) -> Callable[[np.ndarray, Words], Rows]:
    def rows_of(tokens: np.ndarray, words: Words) -> Rows:
        keys = words.keys(2, len(tokens))
        edges = word_edges(begins[tokens])
        mask = whole_word_mask(edges, len(tokens), keys, noise_density, mean_noise_span_length, window)
        ranges = row_edges(mask, edges, *limits)
        pairs = [_row(tokens[start:stop], mask[start:stop], top_sentinel, end) for start, stop in ranges]
        sides = []
        for side in zip(*pairs, strict=True):
            lengths = np.array([len(row) for row in side], np.int32)
            matrix = np.zeros([len(side), lengths.max()], np.int32)
            matrix[np.arange(lengths.max()) < lengths[:, None]] = np.concatenate(side)
            sides += [matrix, lengths]
        num_tokens = np.diff([0, *(stop for _, stop in ranges)])
        return dict(zip(NAMES, (*sides, num_tokens), strict=True))

    return rows_of


def word_edges(begins: np.ndarray) -> np.ndarray:
    """Returns the positions of the words' edges, in order, from bool [n]: which tokens begin a word.

    Tokens before the first edge end a word of the previous block; those after the last may continue in the next block.
    """
    words = np.flatnonzero(begins)
    if not len(words):
        return words
    places = np.arange(words[0], len(begins))
    since = places - words[np.cumsum(begins[places]) - 1]
    return places[since % LONGEST_WORD == 0]


def whole_word_mask(
    edges: np.ndarray,
    num_tokens: int,
    keys: np.ndarray,
    noise_density: float,
    mean_noise_span_length: float,
    window: int,
) -> np.ndarray:
    """Returns bool [num_tokens], true in the noise, from the words' edges and random keys [2, num_tokens].

    Each window of `window` tokens has its share of the noise, so that rows are alike; the rounding remainder is added
    to the next window.
    """
    mask = np.zeros([num_tokens], bool)
    num_words = len(edges) - 1
    if num_words < 2:
        return mask
    num_windows = max(min(round(num_tokens / window), num_words // 2), 1)
    starts = num_words * np.arange(num_windows + 1) // num_windows
    tokens_at = edges[starts] - edges[0]
    noise_at = np.round(starts * noise_density).astype(int)
    spans_at = np.round(tokens_at * (noise_density / mean_noise_span_length)).astype(int)
    for start, stop, noise, spans in zip(starts, starts[1:], np.diff(noise_at), np.diff(spans_at), strict=False):
        words = stop - start
        noise = min(max(noise, 1), words - 1) if num_windows == 1 else min(noise, words - 1)
        spans = min(max(spans, 1), noise, words - noise)
        if not noise:
            continue
        text_lengths = _random_segments(words - noise, spans, keys[0, start:stop])
        noise_lengths = _random_segments(noise, spans, keys[1, start:stop])
        is_noise = np.repeat(np.tile([False, True], spans), np.stack([text_lengths, noise_lengths], 1).reshape(-1))
        inner = edges[start : stop + 1]
        mask[inner[0] : inner[-1]] = np.repeat(is_noise, np.diff(inner))
    return mask


def _random_segments(num_items: int, num_segments: int, keys: np.ndarray) -> np.ndarray:
    """Returns int [num_segments]: positive lengths that add up to num_items, all such equally likely."""
    inner = np.flatnonzero(order_of(keys[: num_items - 1]) < num_segments - 1) + 1
    return np.diff(np.concatenate([[0], inner, [num_items]]))


def row_edges(mask: np.ndarray, edges: np.ndarray, inputs: int, targets: int, sentinels: int) -> list[tuple[int, int]]:
    """Returns (start, stop) of rows that hold all tokens in order, each within the three limits.

    A row ends between spans; a span too long for a row is cut between words.
    """
    num_tokens = len(mask)
    follows = np.concatenate([[False], mask[1:] & mask[:-1], [False]])  # a cut here would divide a span
    noise_before = np.concatenate([[0], np.cumsum(mask)])
    starts_before = np.concatenate([[0], np.cumsum(mask & ~follows[:-1])])
    is_edge = np.zeros([num_tokens + 1], bool)
    is_edge[edges] = True
    rows = []
    start = 0
    while start < num_tokens:
        stops = np.arange(start + 1, min(start + inputs + targets, num_tokens) + 1)
        noise = noise_before[stops] - noise_before[start]
        spans = starts_before[stops] - starts_before[start] + follows[start]
        fits = (stops - start - noise + spans <= inputs) & (noise + spans <= targets) & (spans <= sentinels)
        stops = stops[fits]
        choices = (stops[~follows[stops]], stops[is_edge[stops]], stops)
        stop = next(int(places[-1]) for places in choices if len(places))
        rows.append((start, stop))
        start = stop
    return rows


def _row(tokens: np.ndarray, mask: np.ndarray, top_sentinel: int, end: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns (inputs, targets) of one row: a sentinel replaces a span in the inputs and precedes it in the targets."""
    first = mask & ~np.concatenate([[False], mask[:-1]])
    number = np.cumsum(first)
    sentinels = (top_sentinel + 1 - number).astype(np.int32)
    ends = np.array([] if end is None else [end], np.int32)
    inputs = np.where(first, sentinels, tokens)[first | ~mask]
    targets = np.insert(tokens[mask], np.flatnonzero(first[mask]), sentinels[first])
    return np.concatenate([inputs, ends]), np.concatenate([targets, ends])
