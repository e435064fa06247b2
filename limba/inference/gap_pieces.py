"""What each id of a vocabulary may do in a gap of a text: begin a fill, continue it, or end it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from limba.data.vocabulary.sentences import HAN, UNSPACED
from limba.data.vocabulary.sentinels import num_sentinels, sentinel_ids
from limba.data.vocabulary.special_ids import SpecialIds, of_run
from limba.data.vocabulary.spelling import is_byte_piece, piece_texts
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.inference import generate
from limba.model import Network


class Fill(NamedTuple):
    """A text for a gap; the probability that the model writes exactly this there, its end included; its ids."""

    text: str
    probability: float
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Pieces:
    """What the ids of a vocabulary may do in a gap; bool [V] each."""

    vocabulary: Vocabulary
    sentinels: Sequence[int]
    start: int  # the first id of the decoder's input
    is_text: Bool[np.ndarray, " V"]  # neither a control nor a sentinel, nor a row without a piece
    has_letter: Bool[np.ndarray, " V"]  # or begins a letter of several bytes
    is_word: Bool[np.ndarray, " V"]  # is a word, or a good part of one: `is_word`
    has_space: Bool[np.ndarray, " V"]  # begins with a space
    ends: Bool[np.ndarray, " V"]  # sentinels and the end of sequence

    @property
    def tell_spaces(self) -> bool:
        """Whether pieces begin with a space where a word begins. Of bytes they do not: only one id is a space."""
        return int(self.has_space.sum()) > 1


def pieces_of(vocabulary: Vocabulary, num_rows: int, special: SpecialIds) -> Pieces:
    """Returns the table for a vocabulary whose embedding has `num_rows` rows."""
    spelled = piece_texts(vocabulary, num_rows)
    is_single_byte = np.zeros(num_rows, bool)
    is_single_byte[: vocabulary.vocab_size] = is_byte_piece(vocabulary)[:num_rows]
    texts = [piece.decode("utf-8", "ignore") for piece in spelled]
    sentinels = sentinel_ids(vocabulary, num_sentinels(vocabulary))
    ends = np.zeros(num_rows, bool)
    ends[[number for number in (*sentinels, *special.ends) if number < num_rows]] = True
    return Pieces(
        vocabulary=vocabulary,
        sentinels=sentinels,
        start=special.generation_start,
        is_text=np.asarray([bool(piece) and "\n" not in text for piece, text in zip(spelled, texts, strict=True)]),
        has_letter=np.asarray([_has_letter(piece, text) for piece, text in zip(spelled, texts, strict=True)])
        & ~is_single_byte,
        is_word=np.asarray([is_word(text) for text in texts]) & ~is_single_byte,
        has_space=np.asarray([piece[:1] == b" " for piece in spelled]),
        ends=ends,
    )


def _has_letter(piece: bytes, text: str) -> bool:
    """Returns whether a piece has a letter or digit, or begins one: in UTF-8 several bytes begin with C2 or above."""
    return any(letter.isalnum() for letter in text) or piece[:1] >= b"\xc2"


def is_word(text: str) -> bool:
    """Returns whether a piece is a word or a good part of one: two letters or a kanji, or one letter after a space.

    >>> [is_word(text) for text in ("the", " a", "する", "型", "s", "の", " の", " 1", ",")]
    [True, True, True, True, False, False, False, False, False]
    """
    num_letters = sum(letter.isalpha() for letter in text)
    if num_letters > 1 or re.search(HAN, text):
        return True
    return num_letters == 1 and text[0] == " " and not UNSPACED.search(text)


def first_pieces(network: Network, vocabulary: Vocabulary) -> generate.Gaps | None:
    """Returns which ids may begin a T5's fills; None for a language model, and where no piece could."""
    if network.config.is_decoder_only:
        return None
    pieces = pieces_of(vocabulary, network.config.vocab_size, of_run(vocabulary, network.config))
    may_begin = pieces.is_text & pieces.is_word
    if not may_begin.any():  # as in a vocabulary of bytes
        may_begin = pieces.is_text & pieces.has_letter
    if not may_begin.any():
        return None
    is_sentinel = np.zeros(network.config.vocab_size, bool)
    is_sentinel[[number for number in pieces.sentinels if number < len(is_sentinel)]] = True
    return generate.Gaps(is_sentinel, may_begin)
