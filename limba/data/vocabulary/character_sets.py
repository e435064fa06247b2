"""Which script the targets' bytes are in: Latin, hiragana, katakana, kanji, or anything else.

Unicode's Script property (UAX #24). Kanji is Script=Han; the long vowel mark, which hiragana and katakana share, is
taken for katakana, where nearly all of them stand. Digits, punctuation, spaces and other scripts are "other".
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import regex

SETS = ("latin", "hiragana", "katakana", "kanji", "other")
OTHER = SETS.index("other")
_PATTERNS = (r"\p{Script=Latin}", r"\p{Script=Hiragana}", r"[\p{Script=Katakana}ーｰ]", r"\p{Script=Han}")
_SPELLS_NOTHING = b"\xff"  # a byte that no UTF-8 has: it keeps the characters before and behind it apart
_FEW = 1 << 16  # tokens whose bytes are looked at together


@functools.cache
def _sets_of_code_points() -> np.ndarray:
    """Returns the place in SETS of every code point, uint8 [0x110000]."""
    found = np.full([0x110000], OTHER, np.uint8)
    encodable = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    for number, pattern in enumerate(_PATTERNS):
        found[[ord(character) for character in regex.findall(pattern, encodable)]] = number
    return found


def sets_of_bytes(text: np.ndarray) -> np.ndarray:
    """Returns the place in SETS of the character that each byte is of, uint8 [n], for UTF-8 as uint8 [n].

    Bytes that make no whole character are other.

    >>> [SETS[number] for number in sets_of_bytes(np.frombuffer("aか。".encode(), np.uint8))]
    ['latin', 'hiragana', 'hiragana', 'hiragana', 'other', 'other', 'other']
    """
    found = np.full([len(text)], OTHER, np.uint8)
    padded = np.append(text, np.zeros(3, np.uint8)).astype(np.int32)
    continues = padded & 0xC0 == 0x80
    for length, first, mask in ((1, 0x00, 0x80), (2, 0xC0, 0xE0), (3, 0xE0, 0xF0), (4, 0xF0, 0xF8)):
        places = np.flatnonzero(padded[: len(text)] & mask == first)
        for behind in range(1, length):
            places = places[continues[places + behind]]
        code_points = padded[places] & ~mask
        for behind in range(1, length):
            code_points = code_points << 6 | padded[places + behind] & 0x3F
        sets = _sets_of_code_points()[np.minimum(code_points, 0x10FFFF)]
        for behind in range(length):
            found[places + behind] = sets
    return found


class CharacterSets:
    """The character sets of a vocabulary's tokens where they stand."""

    def __init__(self, pieces: Sequence[bytes]):
        """`pieces` is what each id spells in UTF-8, or a part of it; b"" for ids that spell nothing."""
        self._spells = np.array([bool(piece) for piece in pieces])
        filled = [piece or _SPELLS_NOTHING for piece in pieces]
        self._lengths = np.array([len(piece) for piece in filled])
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._bytes = np.frombuffer(b"".join(filled), np.uint8)
        self._dtype = np.min_scalar_type(self._lengths.max())

    def counts(self, tokens: np.ndarray) -> np.ndarray:
        """Returns how many bytes of each token are in each set, unsigned [B, L, sets], for int32 [B, L].

        A character that several tokens spell, as byte pieces do, is looked at as one; characters do not go on
        from row to row. An id that spells nothing has one byte in "other".
        """
        rows = max(1, _FEW // tokens.shape[1])
        parts = [self._of_rows(tokens[start : start + rows]) for start in range(0, len(tokens), rows)]
        return np.concatenate(parts)

    def _of_rows(self, tokens: np.ndarray) -> np.ndarray:
        apart = np.pad(tokens, ((0, 0), (0, 1))).ravel()  # id 0 spells nothing
        lengths = self._lengths[apart]
        token = np.repeat(np.arange(len(apart)), lengths)
        within = np.arange(len(token)) - (np.cumsum(lengths) - lengths)[token]
        sets = sets_of_bytes(self._bytes[self._starts[apart][token] + within])
        found = np.bincount(token * len(SETS) + sets, minlength=len(apart) * len(SETS)).astype(self._dtype)
        return found.reshape(len(tokens), -1, len(SETS))[:, :-1]

    def num_bytes(self, tokens: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns the bytes in each set that tokens of weight 1 spell, int64 [sets]; tokens and weights are [B, L]."""
        counted = (weights > 0) & self._spells[tokens]
        return self.counts(tokens)[counted].sum(axis=0, dtype=np.int64)
