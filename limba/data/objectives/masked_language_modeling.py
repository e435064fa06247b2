"""Masked language modeling: some tokens of a row are hidden, and predicted from those on both sides.

Devlin et al. 2019 (BERT, arXiv:1810.04805, section 3.1). A row's inputs are its targets, position by position, with
masks. Which rows there are is causal LM's choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from limba.data.dataset import TOKENS, Dataset, preprocessor
from limba.data.draws import Words
from limba.data.objectives.language_modeling import causal_lm, causal_lm_lengths
from limba.data.objectives.token_blocks import Features
from limba.data.objectives.whole_words import LONGEST_WORD, begins_word
from limba.data.packing import CAUSAL, PREDICTED
from limba.data.vocabulary.sentinels import mask_id
from limba.data.vocabulary.spelling import piece_texts
from limba.data.vocabulary.vocabularies import Vocabulary


def masked_lm_lengths(lengths: Mapping[str, int]) -> dict[str, int]:
    """Returns {"inputs", "targets"}, both as long as the sequence.

    >>> masked_lm_lengths({"targets": 512})
    {'inputs': 512, 'targets': 512}
    """
    return dict.fromkeys(("inputs", "targets"), causal_lm_lengths(lengths)["targets"])


whole_word_masked_lm_lengths = masked_lm_lengths


@preprocessor
def masked_lm(
    dataset: Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    noise_density: float = 0.15,
    mask_share: float = 0.8,
    causal_share: float = 0.0,
    mean_noise_span_length: float = 1.0,
    whole_documents: bool = False,
) -> Dataset:
    """Returns {"inputs", "targets"}, int32 of equal length, of {"targets": int32 [n]}: rows with and without masks.

    `noise_density` is the share of a row's tokens that are hidden: its own number of them is one of the two nearest
    integers, with that mean. Of these, `mask_share` are shown as the mask, half of the others as a random token, and
    half as they are; 1 shows only masks (BERT: 0.8; Wettig et al. 2023, arXiv:2202.08005: a density of 0.4 and only
    masks are no worse). Ends of sequence, unknown and other tokens that spell nothing are never hidden, nor drawn as
    random tokens. A hidden token's id in the inputs has PREDICTED added. Rows are made as by `causal_lm`. Of these,
    `causal_share`, evenly spread, are read causally, so that each token is predicted from those before it (Charpentier
    & Samuel 2024, arXiv:2410.24159): CAUSAL and PREDICTED are added to all of their inputs. Raises InputError for a
    vocabulary without a mask.

    With a `mean_noise_span_length` above 1, runs of tokens are hidden together, of at most 16 and about that mean
    (Joshi et al. 2020, SpanBERT, arXiv:1907.10529, has 3.8); neighbours may be hidden too.

    >>> row = next(iter(masked_lm(tokens, {"targets": 16}, features)))
    >>> row["inputs"].shape, features["targets"].vocabulary.decode(row["targets"])
    ((16,), 'To be, or not to')
    """
    shares = (noise_density, mask_share, causal_share, mean_noise_span_length)
    return _masked(dataset, sequence_length, output_features, shares, whole_documents, False)


@preprocessor
def whole_word_masked_lm(
    dataset: Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    noise_density: float = 0.15,
    mask_share: float = 0.8,
    causal_share: float = 0.0,
    whole_documents: bool = False,
) -> Dataset:
    """Returns what `masked_lm` does, with whole words hidden, whose beginnings the pieces mark.

    Words are taken in random order as long as they fit into the row's number of hidden tokens. Words of more than 16
    pieces count as several. Raises InputError for vocabularies that do not mark words, too.

    >>> row = next(iter(whole_word_masked_lm(tokens, {"targets": 16}, features, mask_share=1.0)))
    >>> hidden = features["targets"].vocabulary.decode(row["targets"][row["inputs"] != row["targets"]])
    >>> hidden in ("To", " or")
    True
    """
    shares = (noise_density, mask_share, causal_share, 1.0)
    return _masked(dataset, sequence_length, output_features, shares, whole_documents, True)


def _masked(
    dataset: Dataset,
    sequence_length: Mapping[str, int],
    output_features: Features,
    shares: tuple[float, float, float, float],
    whole_documents: bool,
    whole_words: bool,
) -> Dataset:
    vocabulary = output_features["targets"].vocabulary
    begins = begins_word(vocabulary) if whole_words else np.ones([vocabulary.vocab_size], bool)
    mask = mask_id(vocabulary)
    ordinary = ordinary_ids(vocabulary)
    rows_per_block = dataset.rows_per_block
    words_of = dataset.take_words()
    rows = causal_lm(dataset, sequence_length, output_features, whole_documents)

    def hidden(block: Sequence[Mapping[str, np.ndarray]], number: int) -> list[dict[str, np.ndarray]]:
        targets = [row["targets"] for row in block]
        shown = hide(targets, words_of(number), (*shares[:2], shares[3]), mask, ordinary, begins)
        borders = np.floor((number * rows_per_block + np.arange(len(block) + 1)) * shares[2])
        for row in np.flatnonzero(np.diff(borders)):
            shown[row] = targets[row] + (PREDICTED + CAUSAL)
        return [{"inputs": masked_row, "targets": row} for masked_row, row in zip(shown, targets, strict=True)]

    return rows.map_groups(rows_per_block, hidden, dict.fromkeys(("inputs", "targets"), TOKENS))


def ordinary_ids(vocabulary: Vocabulary) -> np.ndarray:
    """Returns bool [ids]: the pieces that spell text, which can be hidden; the mask is not among them."""
    spelled = np.array([bool(text) for text in piece_texts(vocabulary, vocabulary.vocab_size)])
    spelled[mask_id(vocabulary)] = False
    return spelled


def hide(
    rows: Sequence[np.ndarray],
    words: Words,
    shares: tuple[float, float, float],
    mask: int,
    ordinary: np.ndarray,
    begins: np.ndarray,
) -> list[np.ndarray]:
    """Returns each row's inputs; `ordinary` and `begins` are bool [ids]."""
    density, mask_share, mean = shares
    tokens = np.concatenate(rows)
    size = len(tokens)
    lengths = np.array([len(row) for row in rows])
    of_row = np.repeat(np.arange(len(rows)), lengths)
    starts = np.cumsum(lengths) - lengths
    order, choice, replacement = words.uniform(3, size)
    of_rows = words.uniform(len(rows))
    can_hide = ordinary[tokens]
    begun = words.uniform(size) < 1 / mean if mean > 1 else begins[tokens]
    first = begun | ~can_hide | np.pad(~can_hide, (1, 0))[:-1]
    first[starts[lengths > 0]] = True
    places = np.arange(size)
    since = places - np.maximum.accumulate(np.where(first, places, 0))
    first |= since % LONGEST_WORD == 0
    word_at = np.flatnonzero(first & can_hide)
    of_word = np.cumsum(first) - 1
    word_sizes = np.bincount(of_word, minlength=1)[of_word[word_at]]
    most = np.floor(np.bincount(of_row, can_hide, len(rows)) * density + of_rows).astype(int)
    in_order = np.lexsort((order[word_at], of_row[word_at]))
    taken = np.zeros([of_word[-1] + 1 if size else 0], bool)
    cuts = np.searchsorted(of_row[word_at][in_order], np.arange(len(rows) + 1))
    for row, (start, stop) in enumerate(itertools.pairwise(cuts)):
        of_this_row = in_order[start:stop]
        fits = _fitting(word_sizes[of_this_row], int(most[row]))
        taken[of_word[word_at[of_this_row[fits]]]] = True
    is_hidden = taken[of_word] if size else taken
    random = np.flatnonzero(ordinary)[np.floor(replacement * np.float32(ordinary.sum())).astype(int)]
    shown = np.where(choice < mask_share, mask, np.where(choice < (1 + mask_share) / 2, random, tokens))
    inputs = np.where(is_hidden, shown + PREDICTED, tokens).astype(np.int32)
    return np.split(inputs, starts[1:])


def _fitting(sizes: np.ndarray, most: int) -> np.ndarray:
    """Returns bool [n]: the words that are taken, one after another, each if there is room for it in `most` tokens."""
    fits = np.cumsum(sizes) <= most
    left = most - int(sizes[fits].sum())
    for index in range(int(fits.sum()), len(sizes)):
        if not left:
            break
        fits[index] = sizes[index] <= left
        left -= int(sizes[index]) * bool(fits[index])
    return fits
